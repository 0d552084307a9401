//! `minik8s trust remove`: revokes the key of a node, a reconciler or a user.

use schema::trust::{Identity, Role};

use crate::args::TrustRemoveArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::cli::output::{note, write_lines};
use crate::trust::RemovedIdentity;

pub(in crate::cli) async fn run(args: &TrustRemoveArgs) -> Result<(), CliError> {
    let client = Client::new(args.server.given())?;
    let removed: RemovedIdentity =
        client.post(&["identities", &args.identity.to_string(), "remove"], &[]).await?;
    write_lines(&said(&args.identity, &removed))?;
    if let Some(rest) = rest(&args.identity, &removed) {
        note(rest);
    }
    Ok(())
}

fn said(identity: &Identity, removed: &RemovedIdentity) -> String {
    let member = removed.etcd_member.as_ref();
    let member = member.map(|name| format!(", and its member {name} of etcd")).unwrap_or_default();
    format!("removed {identity}{member}; its key is revoked\n")
}

/// Returns what is left for a person to do.
fn rest(identity: &Identity, removed: &RemovedIdentity) -> Option<&'static str> {
    match (identity.role(), &removed.etcd_member) {
        (Role::Reconciler, Some(_)) => Some(
            "its machine still has the key of the authority: run 'minik8s down' there, or 'minik8s trust rotate' here",
        ),
        (Role::Reconciler, None) => Some(
            "no member of etcd was removed with it: if its machine has one, run 'etcdctl member remove'; the machine still \
             has the key of the authority: run 'minik8s down' there, or 'minik8s trust rotate' here",
        ),
        (Role::Node, _) => Some(
            "its pods are replaced, and its range of addresses stays until Git marks the node as gone; run 'minik8s-agent \
             reset' there before it joins again",
        ),
        (Role::User | Role::Etcd, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_says_what_is_done_and_what_is_left_to_do() {
        let (reconciler, person) = ("reconciler-r2".parse().unwrap(), "user-ada".parse().unwrap());
        let with_member = RemovedIdentity { etcd_member: Some("r2".to_owned()) };
        assert_eq!(
            said(&reconciler, &with_member),
            "removed reconciler-r2, and its member r2 of etcd; its key is revoked\n"
        );
        let none = RemovedIdentity::default();
        assert!(rest(&reconciler, &none).is_some_and(|rest| rest.contains("etcdctl member remove")));
        assert!(rest(&reconciler, &with_member).is_some_and(|rest| !rest.contains("etcdctl")));
        assert_eq!(rest(&person, &none), None);
    }
}
