//! `minik8s trust etcd-users`: prints the etcdctl commands that create the users of Minik8s in an etcd of the user's.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use schema::keys::{Permission, ROOT, RUNS_ROOT, node_role};
use schema::trust::{Identity, IdentityError, Role};

use crate::args::EtcdUsersArgs;
use crate::cli::error::CliError;
use crate::cli::output::write_out;
use crate::trust::pki_dir;

/// Runs `minik8s trust etcd-users`.
pub fn etcd_users(args: &EtcdUsersArgs) -> Result<(), CliError> {
    let wrong = |error: IdentityError| CliError::Usage(error.to_string());
    let reconciler = match &args.name {
        Some(name) => Identity::new(Role::Reconciler, name).map_err(wrong)?,
        None => {
            let certificate = pki_dir(&args.state_dir).certificate();
            certificate.and_then(|certificate| certificate.identity()).map_err(|error| {
                CliError::NotFound(format!("{error}; give the name of the reconciler with --name"))
            })?
        }
    };
    let nodes: Result<Vec<_>, _> = args.node.iter().map(|name| Identity::new(Role::Node, name)).collect();
    write_out(&commands(&reconciler, &nodes.map_err(wrong)?))
}

/// Returns the commands, one per line. Names and keys have no character that a shell reads otherwise.
fn commands(reconciler: &Identity, nodes: &[Identity]) -> String {
    let all = |root: &str| Permission { key: root.to_owned(), is_prefix: true, write: true };
    let mut users = vec![(reconciler, BTreeSet::from([all(ROOT), all(RUNS_ROOT)]))];
    users.extend(nodes.iter().map(|node| (node, node_role(node.name()))));
    // etcd demands root before 'auth enable'.
    let mut text = format!(
        "etcdctl role add root\netcdctl user add root --no-password\netcdctl user grant-role root root\n\
         # With the role root, too, the reconciler makes the users of nodes itself, and may defragment:\n\
         # etcdctl user grant-role {reconciler} root\n"
    );
    for (user, permissions) in users {
        let _ = writeln!(text, "etcdctl role add {user}");
        for permission in permissions {
            let _ = writeln!(text, "etcdctl role grant-permission {user} {permission}");
        }
        let _ =
            writeln!(text, "etcdctl user add {user} --no-password\netcdctl user grant-role {user} {user}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_is_named_as_its_certificate_and_has_a_role_of_its_own() {
        let (reconciler, node) = ("reconciler-r1".parse().unwrap(), "node-web-2".parse().unwrap());
        let text = commands(&reconciler, &[node]);
        let root = [
            "etcdctl role add root",
            "etcdctl user add root --no-password",
            "etcdctl user grant-role root root",
        ];
        assert_eq!(text.lines().take(3).collect::<Vec<_>>(), root);
        for line in [
            "etcdctl role grant-permission reconciler-r1 readwrite /minik8s/ --prefix",
            "etcdctl role grant-permission reconciler-r1 readwrite /minik8s-runs/ --prefix",
            "etcdctl user grant-role reconciler-r1 reconciler-r1",
            "etcdctl role add node-web-2",
            "etcdctl role grant-permission node-web-2 read /minik8s/bindings/web-2/ --prefix",
            "etcdctl role grant-permission node-web-2 readwrite /minik8s/nodes/web-2",
            "etcdctl user add node-web-2 --no-password",
            "etcdctl user grant-role node-web-2 node-web-2",
        ] {
            assert!(text.lines().any(|printed| printed == line), "{line} is not in {text}");
        }
        let of_node = text.lines().filter(|line| line.contains(" node-web-2 read"));
        assert_eq!(of_node.count(), node_role("web-2").len());
    }
}
