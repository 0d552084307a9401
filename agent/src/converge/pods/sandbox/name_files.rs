//! A pod's `/etc/hosts` and `/etc/resolv.conf`. The engine creates none for a pause container without a sandbox, so
//! the agent writes them and mounts them into each container, as the kubelet does with `/etc/hosts`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use schema::control::{DiskRecord, Fsync};

use super::{render, resolver};
use crate::converge::names;
use crate::converge::pods::facts::Placement;
use crate::worlds::docker::{BindMount, Resolver};

const HOSTS: &str = "hosts";
const RESOLV_CONF: &str = "resolv.conf";

/// Head of `/etc/hosts`, as in Docker.
const HOSTS_HEAD: &str = "127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::0\tip6-localnet\n\
    ff00::0\tip6-mcastprefix\n\
    ff02::1\tip6-allnodes\n\
    ff02::2\tip6-allrouters\n";

/// Contents of the name files of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameFiles {
    folder: PathBuf,
    hosts: String,
    resolv_conf: String,
}

impl NameFiles {
    /// Renders the files of a pod; `None` on the host's network, where the engine creates them.
    pub fn of(at: Placement<'_>) -> Option<Self> {
        let address = at.address?;
        let pod = &at.binding.pod;
        let own_names = resolver::own_names(pod, &render::host_name(pod), &at.node.dns);
        Some(Self {
            folder: names::name_files_dir(&at.node.state_dir, &pod.uid),
            hosts: format!("{HOSTS_HEAD}{}\t{own_names}\n", address.addr()),
            resolv_conf: resolv_conf(&resolver::resolver(pod, &at.node.dns)),
        })
    }

    /// Writes both files. Blocking; safe to repeat.
    pub fn write(&self) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        write(&self.folder.join(HOSTS), &self.hosts)?;
        write(&self.folder.join(RESOLV_CONF), &self.resolv_conf)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Adds the pod's files to a container's mounts, except where the manifest mounts something in their place.
pub fn add_mounts(at: Placement<'_>, is_read_only: bool, mounts: &mut Vec<BindMount>) {
    if at.address.is_none() {
        return;
    }
    let folder = names::name_files_dir(&at.node.state_dir, &at.binding.pod.uid);
    for (file, target) in [(HOSTS, "/etc/hosts"), (RESOLV_CONF, "/etc/resolv.conf")] {
        // Compared as paths: `/etc//hosts` is the same.
        if !mounts.iter().any(|mount| Path::new(&mount.target) == Path::new(target)) {
            let (source, target) = (folder.join(file), target.to_owned());
            mounts.push(BindMount { source, target, read_only: is_read_only });
        }
    }
}

/// Always creates a new file and never opens the existing one: a container may have changed it in any way, or hold
/// a lease on it that an open would wait for. Running containers keep their file.
fn write(path: &Path, text: &str) -> io::Result<()> {
    // Readable by any user of a container.
    DiskRecord::new(path).fsync(Fsync::None).mode(0o644).write_bytes(text.as_bytes())
}

fn resolv_conf(resolver: &Resolver) -> String {
    let Resolver { nameservers, searches, options } = resolver;
    let mut text = String::new();
    let mut line = |word: &str, values: &[String]| {
        if !values.is_empty() {
            text.push_str(&format!("{word} {}\n", values.join(" ")));
        }
    };
    line("search", searches);
    for server in nameservers {
        line("nameserver", std::slice::from_ref(server));
    }
    line("options", options);
    text
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    use schema::kinds::pod::PodSpec;

    use super::*;
    use crate::converge::pods::{container, tests};

    #[test]
    fn a_resolv_conf_has_a_line_only_for_what_there_is() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        let full = Resolver {
            nameservers: words("10.96.0.10 192.0.2.1"),
            searches: words("svc.cluster.local lan"),
            options: words("ndots:5 rotate"),
        };
        let wanted = "search svc.cluster.local lan\nnameserver 10.96.0.10\nnameserver 192.0.2.1\noptions ndots:5 rotate\n";
        assert_eq!(resolv_conf(&full), wanted);
        assert_eq!(resolv_conf(&Resolver::default()), "");
    }

    // Seen red with the file written in place.
    #[test]
    fn containers_that_start_later_get_files_as_they_should_be() {
        let state = tempfile::tempdir().unwrap();
        let (hosts, resolv_conf) =
            ("127.0.0.1\tlocalhost\n".to_owned(), "nameserver 10.96.0.10\n".to_owned());
        let files = NameFiles { folder: state.path().join("names"), hosts, resolv_conf };
        files.write().unwrap();
        let hosts = files.folder.join(HOSTS);
        // The file as a running container has it mounted.
        let mut mounted = fs::OpenOptions::new().append(true).open(&hosts).unwrap();
        mounted.write_all(b"192.0.2.1\tevil\n").unwrap();
        mounted.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        files.write().unwrap();
        assert_eq!(fs::read_to_string(&hosts).unwrap(), files.hosts);
        assert_eq!(fs::metadata(&hosts).unwrap().permissions().mode() & 0o777, 0o644);
        mounted.write_all(b"192.0.2.1\tevil\n").unwrap();
        assert_eq!(fs::read_to_string(&hosts).unwrap(), files.hosts, "it is not the container's any more");
    }

    // Seen red with mounts that are never read-only.
    #[test]
    fn in_a_read_only_root_they_are_read_only() {
        let spec = serde_json::json!({"containers": [
            {"name": "closed", "image": "app:1", "securityContext": {"readOnlyRootFilesystem": true}},
            {"name": "open", "image": "app:1"},
        ]});
        let (node, binding) = (tests::node(), tests::binding("web", serde_json::from_value(spec).unwrap()));
        let address = Some("10.244.3.2/24".parse().unwrap());
        let at = Placement { node: &node, binding: &binding, address, ports: &[] };
        let read_only = |container: usize| -> Vec<bool> {
            let rendered = container::render::container(at, &binding.pod.spec.containers[container], 0, 0);
            rendered.unwrap().new.mounts.iter().map(|mount| mount.read_only).collect()
        };
        assert_eq!((read_only(0), read_only(1)), (vec![true; 2], vec![false; 2]));
    }

    #[test]
    fn what_the_manifest_mounts_in_their_place_stays() {
        let (node, binding) = (tests::node(), tests::binding("web", PodSpec::default()));
        let address = Some("10.244.3.2/24".parse().unwrap());
        let at = Placement { node: &node, binding: &binding, address, ports: &[] };
        let own = BindMount { source: "/srv/hosts".into(), target: "/etc//hosts".into(), read_only: true };
        let mut mounts = vec![own.clone()];
        add_mounts(at, false, &mut mounts);
        let targets: Vec<_> = mounts.iter().map(|mount| mount.target.as_str()).collect();
        assert_eq!((targets, &mounts[0]), (vec!["/etc//hosts", "/etc/resolv.conf"], &own));
    }
}
