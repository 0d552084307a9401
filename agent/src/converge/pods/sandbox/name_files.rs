//! A pod's `/etc/hosts` and `/etc/resolv.conf`. The engine makes none for a pause container without a sandbox, so the
//! agent writes them and mounts them in each container, as the kubelet does with `/etc/hosts`.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::{render, resolver};
use crate::converge::names;
use crate::converge::pods::facts::Placement;
use crate::worlds::docker::{BindMount, Resolver};

const HOSTS: &str = "hosts";
const RESOLV_CONF: &str = "resolv.conf";

/// What `/etc/hosts` begins with, as in Docker.
const HOSTS_HEAD: &str = "127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::0\tip6-localnet\n\
    ff00::0\tip6-mcastprefix\n\
    ff02::1\tip6-allnodes\n\
    ff02::2\tip6-allrouters\n";

/// What the files of one pod say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameFiles {
    folder: PathBuf,
    hosts: String,
    resolv_conf: String,
}

impl NameFiles {
    /// Those of a pod; none on the host's network, where the engine makes them.
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

    /// Writes what is not there as it should be. Blocks; may be done again.
    pub fn write(&self) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        write(&self.folder.join(HOSTS), &self.hosts)?;
        write(&self.folder.join(RESOLV_CONF), &self.resolv_conf)
    }

    /// Where they are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Adds the files of a pod to what a container mounts; what its manifest mounts in their place stays.
pub fn add_mounts(at: Placement<'_>, is_read_only: bool, mounts: &mut Vec<BindMount>) {
    if at.address.is_none() {
        return;
    }
    let folder = names::name_files_dir(&at.node.state_dir, &at.binding.pod.uid);
    for (file, target) in [(HOSTS, "/etc/hosts"), (RESOLV_CONF, "/etc/resolv.conf")] {
        // As paths: `/etc//hosts` is the same.
        if !mounts.iter().any(|mount| Path::new(&mount.target) == Path::new(target)) {
            let (source, target) = (folder.join(file), target.to_owned());
            mounts.push(BindMount { source, target, read_only: is_read_only });
        }
    }
}

/// A container may have written to its file, and as much as the disk takes; others get it as it should be.
fn write(path: &Path, text: &str) -> io::Result<()> {
    if is_as_wanted(path, text) {
        return Ok(());
    }
    // Containers that run keep the file that they have.
    let draft = path.with_extension("new");
    fs::write(&draft, text)?;
    // Whatever the agent's umask is: any user of a container reads them.
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o644))?;
    fs::rename(&draft, path)
}

/// Reads no more than it must.
fn is_as_wanted(path: &Path, text: &str) -> bool {
    let is_right = |there: &fs::Metadata| {
        there.is_file() && there.len() == text.len() as u64 && there.permissions().mode() & 0o777 == 0o644
    };
    // A container may hold a lease on it, for which a plain open waits.
    let flags = OFlag::O_NONBLOCK.bits();
    let Ok(mut file) = fs::OpenOptions::new().read(true).custom_flags(flags).open(path) else { return false };
    if !file.metadata().is_ok_and(|there| is_right(&there)) {
        return false;
    }
    // It may grow at this moment.
    let mut there = vec![0; text.len()];
    file.read_exact(&mut there).is_ok() && there == text.as_bytes()
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
    use schema::kinds::pod::PodSpec;

    use super::*;
    use crate::converge::pods::tests;

    fn files(folder: &Path) -> NameFiles {
        let (hosts, resolv_conf) =
            ("127.0.0.1\tlocalhost\n".to_owned(), "nameserver 10.96.0.10\n".to_owned());
        NameFiles { folder: folder.join("names"), hosts, resolv_conf }
    }

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

    // Seen red without the comparison of lengths, of modes, and of contents.
    #[test]
    fn files_that_a_container_changed_are_written_anew_and_others_stay() {
        let state = tempfile::tempdir().unwrap();
        let files = files(state.path());
        let hosts = files.folder.join(HOSTS);
        files.write().unwrap();
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        let first = inode(&hosts);
        files.write().unwrap();
        assert_eq!(inode(&hosts), first, "as it should be already");
        for spoiled in ["127.0.0.1\tlocalhost\n192.0.2.1\tevil\n", "127.0.0.1\tlocalhosT\n", ""] {
            fs::write(&hosts, spoiled).unwrap();
            files.write().unwrap();
            assert_eq!(fs::read_to_string(&hosts).unwrap(), files.hosts, "{spoiled:?}");
        }
        fs::set_permissions(&hosts, fs::Permissions::from_mode(0o600)).unwrap();
        files.write().unwrap();
        assert_eq!(fs::metadata(&hosts).unwrap().permissions().mode() & 0o777, 0o644);
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
