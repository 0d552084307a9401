//! A pod's `/etc/hosts` and `/etc/resolv.conf`. The engine creates none for a pause container without a sandbox, so
//! the agent writes them and mounts them into each container, as the kubelet does with `/etc/hosts`.

use std::path::{Path, PathBuf};
use std::{fs, io};

use schema::control::{DiskRecord, Fsync};
use schema::kinds::pod::{DnsPolicy, HostAlias, PodSpec};
use schema::records::PodInstance;

use super::render;
use crate::converge::pods::facts::Placement;
use crate::converge::shared::node_network::NodeDns;
use crate::names;
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
    /// `/etc/hosts`; on the host's network what follows the node's own.
    hosts: String,
    /// `None` on the host's network, where the engine creates it.
    resolv_conf: Option<String>,
}

impl NameFiles {
    /// Renders the files of a pod; `None` on the host's network, where the engine creates them, unless the pod has host
    /// aliases: the engine would leave out the node's own names beside them.
    pub fn for_placement(at: Placement<'_>) -> Option<Self> {
        let pod = &at.binding.pod;
        let (folder, aliases) =
            (names::name_files_dir(&at.node.state_dir, &pod.uid), aliases(&pod.spec.host_aliases));
        let Some(address) = at.address else {
            return (!aliases.is_empty()).then_some(Self { folder, hosts: aliases, resolv_conf: None });
        };
        let own_names = own_names(pod, &render::host_name(pod), &at.node.dns);
        Some(Self {
            folder,
            hosts: format!("{HOSTS_HEAD}{}\t{own_names}\n{aliases}", address.addr()),
            resolv_conf: Some(resolv_conf(&resolver(pod, &at.node.dns))),
        })
    }

    /// Writes the files. `node_hosts` is the node's `/etc/hosts`. Blocking; safe to repeat.
    pub fn write(&self, node_hosts: &Path) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let hosts = self.folder.join(HOSTS);
        match &self.resolv_conf {
            Some(resolv_conf) => {
                write(&hosts, &self.hosts)?;
                write(&self.folder.join(RESOLV_CONF), resolv_conf)
            }
            None => {
                let own = match fs::read(node_hosts) {
                    Ok(own) => String::from_utf8_lossy(&own).into_owned(),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => HOSTS_HEAD.to_owned(),
                    Err(error) => return Err(error),
                };
                let end = if own.is_empty() || own.ends_with('\n') { "" } else { "\n" };
                write(&hosts, &format!("{own}{end}{}", self.hosts))
            }
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Adds the pod's files to a container's mounts, except where the manifest mounts something in their place.
pub fn add_mounts(at: Placement<'_>, is_read_only: bool, mounts: &mut Vec<BindMount>) {
    let all = [(HOSTS, "/etc/hosts"), (RESOLV_CONF, "/etc/resolv.conf")];
    let files = match at.address {
        Some(_) => &all[..],
        None if at.binding.pod.spec.host_aliases.is_empty() => &[],
        None => &all[..1],
    };
    let folder = names::name_files_dir(&at.node.state_dir, &at.binding.pod.uid);
    for (file, target) in files {
        // Compared as paths: `/etc//hosts` is the same.
        if !mounts.iter().any(|mount| Path::new(&mount.target) == Path::new(target)) {
            let (source, target) = (folder.join(file), (*target).to_owned());
            mounts.push(BindMount { source, target, read_only: is_read_only, ..BindMount::default() });
        }
    }
}

/// Renders host aliases as the kubelet does (`hostsEntriesFromHostAliases` in pkg/kubelet/kubelet_pods.go).
fn aliases(aliases: &[HostAlias]) -> String {
    let mut text = String::new();
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
    }
    for HostAlias { ip, hostnames } in aliases {
        text.push_str(&format!("{ip}\t{}\n", hostnames.join("\t")));
    }
    text
}

/// Always creates a new file and never opens the existing one: a container may have changed it in any way, or hold
/// a lease on it that an open would wait for. Running containers keep their file. On a full disk a restarted container
/// keeps it, too.
fn write(path: &Path, text: &str) -> io::Result<()> {
    // Readable by any user of a container.
    let written = DiskRecord::new(path).fsync(Fsync::None).mode(0o644).write_bytes(text.as_bytes());
    let is_there = || fs::symlink_metadata(path).is_ok_and(|there| there.is_file());
    match written {
        Err(error) if error.kind() == io::ErrorKind::StorageFull && is_there() => {
            tracing::warn!(path = %path.display(), %error, "file of an earlier start used");
            Ok(())
        }
        written => written,
    }
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

// A pod's `resolv.conf`, by `dnsPolicy` and `dnsConfig`, with the kubelet's limits (`getPodDNSType`,
// `appendDNSConfig` and `formDNSSearchFitsLimits` in pkg/kubelet/network/dns), and its own names. Pure.

/// Maximum number of name servers, as in Kubernetes; libc uses no more.
const NAMESERVERS_MAX: usize = 3;

/// Maximum number of search domains, as in Kubernetes.
const SEARCHES_MAX: usize = 32;

/// Maximum number of characters of all search domains, with the spaces between them, as in Kubernetes.
const SEARCH_LENGTH_MAX: usize = 2048;

/// Names with fewer dots are tried in the search domains first, as in Kubernetes.
const NDOTS: &str = "ndots:5";

/// Builds the contents of a pod's `resolv.conf`.
pub fn resolver(pod: &PodInstance, node: &NodeDns) -> Resolver {
    let mut resolver = base(&pod.spec, &pod.namespace, node);
    if let Some(config) = &pod.spec.dns_config {
        resolver.nameservers.extend(config.nameservers.iter().cloned());
        resolver.searches.extend(config.searches.iter().cloned());
        for option in &config.options {
            resolver.options.retain(|there| there.split(':').next() != Some(option.name.as_str()));
            resolver.options.push(match &option.value {
                Some(value) => format!("{}:{value}", option.name),
                None => option.name.clone(),
            });
        }
    }
    limit(&mut resolver);
    resolver
}

/// Returns a pod's names in its own `/etc/hosts`: with a `subdomain` the full name and then the host name, as the
/// kubelet writes it, so that programs that resolve their full name get it; else the host name.
pub fn own_names(pod: &PodInstance, hostname: &str, node: &NodeDns) -> String {
    match &pod.spec.subdomain {
        Some(subdomain) => {
            format!("{hostname}.{subdomain}.{}.svc.{} {hostname}", pod.namespace, node.domain)
        }
        None => hostname.to_owned(),
    }
}

fn base(pod: &PodSpec, namespace: &str, node: &NodeDns) -> Resolver {
    let cluster = match pod.dns_policy {
        DnsPolicy::None => return Resolver::default(),
        DnsPolicy::Default => None,
        // A surprise that comes from Kubernetes: on the host's network `ClusterFirst` means `Default`.
        DnsPolicy::ClusterFirst => node.server.filter(|_| !pod.host_network),
        DnsPolicy::ClusterFirstWithHostNet => node.server,
    };
    let machine = &node.machine;
    let domain = &node.domain;
    match cluster {
        Some(server) => {
            let own = [format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()];
            Resolver {
                nameservers: vec![server.to_string()],
                searches: own.into_iter().chain(machine.searches.iter().cloned()).collect(),
                options: vec![NDOTS.to_owned()],
            }
        }
        None => {
            let servers: Vec<String> = machine.nameservers.iter().map(ToString::to_string).collect();
            // The machine's only servers are on its loopback: use the cluster's, which asks them.
            let ours = node.server.filter(|_| servers.is_empty()).map(|server| server.to_string());
            Resolver {
                nameservers: servers.into_iter().chain(ours).collect(),
                searches: machine.searches.clone(),
                options: machine.options.clone(),
            }
        }
    }
}

fn limit(resolver: &mut Resolver) {
    unique(&mut resolver.nameservers);
    resolver.nameservers.truncate(NAMESERVERS_MAX);
    let searches = &mut resolver.searches;
    // The root domain means no search at all.
    searches.retain(|domain| domain != "." && !domain.is_empty());
    unique(searches);
    searches.truncate(SEARCHES_MAX);
    let mut length = 0;
    let fits = |domain: &String| {
        length += domain.len() + 1;
        length <= SEARCH_LENGTH_MAX + 1
    };
    let count = searches.iter().map(fits).take_while(|fits| *fits).count();
    searches.truncate(count);
}

/// Removes duplicates; keeps the first occurrence.
fn unique(list: &mut Vec<String>) {
    let mut seen = std::collections::BTreeSet::new();
    list.retain(|word| seen.insert(word.clone()));
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    use schema::kinds::pod::PodSpec;

    use super::*;
    use crate::converge::pods::facts::NodeFacts;
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
        let files = NameFiles { folder: state.path().join("names"), hosts, resolv_conf: Some(resolv_conf) };
        let write = || files.write(Path::new("/nowhere")).unwrap();
        write();
        let hosts = files.folder.join(HOSTS);
        // The file as a running container has it mounted.
        let mut mounted = fs::OpenOptions::new().append(true).open(&hosts).unwrap();
        mounted.write_all(b"192.0.2.1\tevil\n").unwrap();
        mounted.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        write();
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

    /// The cases of `TestNodeHostsFileContent` and `TestManagedHostsFileContent` (pkg/kubelet/kubelet_pods_test.go of
    /// kubernetes/kubernetes) with one alias or two.
    #[test]
    fn host_aliases_follow_the_pods_own_name_or_the_nodes_hosts() {
        let state = tempfile::tempdir().unwrap();
        let node_hosts = state.path().join("etc-hosts");
        fs::write(&node_hosts, "127.0.0.1\tlocalhost\n10.0.0.9\tnas").unwrap();
        let alias = |ip: &str, names: &[&str]| HostAlias {
            ip: ip.to_owned(),
            hostnames: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let host_aliases = vec![alias("123.45.67.89", &["foo", "bar", "baz"]), alias("fd00::1", &["db"])];
        let lines = "\n# Entries added by HostAliases.\n123.45.67.89\tfoo\tbar\tbaz\nfd00::1\tdb\n";
        let node = NodeFacts { state_dir: state.path().to_owned(), ..tests::node() };
        let written = |host_aliases: &[HostAlias], address: Option<&str>| {
            let host_network = address.is_none();
            let spec = PodSpec { host_aliases: host_aliases.to_vec(), host_network, ..PodSpec::default() };
            let binding = tests::binding("web", spec);
            let address = address.map(|address| address.parse().unwrap());
            let at = Placement { node: &node, binding: &binding, address, ports: &[] };
            let mut mounts = Vec::new();
            add_mounts(at, false, &mut mounts);
            let files = NameFiles::for_placement(at)?;
            files.write(&node_hosts).unwrap();
            Some((fs::read_to_string(&mounts[0].source).unwrap(), mounts.len()))
        };
        let (own, mounts) = written(&host_aliases, Some("10.244.3.2/24")).unwrap();
        assert_eq!(
            (own.strip_prefix(HOSTS_HEAD).unwrap(), mounts),
            (&*format!("10.244.3.2\tweb\n{lines}"), 2)
        );
        let (on_host, mounts) = written(&host_aliases, None).unwrap();
        let wanted = format!("127.0.0.1\tlocalhost\n10.0.0.9\tnas\n{lines}");
        assert_eq!((on_host, mounts), (wanted, 1), "resolv.conf is the engine's");
        assert_eq!(written(&[], None), None);
    }

    #[test]
    fn what_the_manifest_mounts_in_their_place_stays() {
        let (node, binding) = (tests::node(), tests::binding("web", PodSpec::default()));
        let address = Some("10.244.3.2/24".parse().unwrap());
        let at = Placement { node: &node, binding: &binding, address, ports: &[] };
        let (source, target) = ("/srv/hosts".into(), "/etc//hosts".into());
        let own = BindMount { source, target, read_only: true, ..BindMount::default() };
        let mut mounts = vec![own.clone()];
        add_mounts(at, false, &mut mounts);
        let targets: Vec<_> = mounts.iter().map(|mount| mount.target.as_str()).collect();
        assert_eq!((targets, &mounts[0]), (vec!["/etc//hosts", "/etc/resolv.conf"], &own));
    }
}

#[cfg(test)]
mod resolver_tests {
    use super::*;
    use crate::converge::shared::node_network::ResolvConf;
    use schema::kinds::pod::{DnsConfig, DnsOption};

    fn node() -> NodeDns {
        NodeDns {
            server: Some("10.96.0.10".parse().unwrap()),
            domain: "cluster.local".into(),
            machine: ResolvConf::parse("nameserver 192.0.2.1\nsearch lan .\noptions edns0\n"),
        }
    }

    fn pod(spec: PodSpec) -> PodInstance {
        let spec = serde_json::to_value(spec).unwrap();
        let pod = serde_json::json!({
            "namespace": "shop", "name": "web", "uid": "u", "hash": "h", "owner": {"kind": "Pod", "name": "web"},
            "labels": {}, "annotations": {}, "commit": "c", "spec": spec,
        });
        serde_json::from_value(pod).unwrap()
    }

    fn text_of(spec: PodSpec, node: &NodeDns) -> String {
        let Resolver { nameservers, searches, options } = resolver(&pod(spec), node);
        format!("{} | {} | {}", nameservers.join(" "), searches.join(" "), options.join(" "))
    }

    #[test]
    fn each_policy_gives_what_kubernetes_gives() {
        let spec = |dns_policy, host_network| PodSpec { dns_policy, host_network, ..PodSpec::default() };
        let cluster = "10.96.0.10 | shop.svc.cluster.local svc.cluster.local cluster.local lan | ndots:5";
        let machine = "192.0.2.1 | lan | edns0";
        for (policy, host_network, wanted) in [
            (DnsPolicy::ClusterFirst, false, cluster),
            (DnsPolicy::ClusterFirst, true, machine),
            (DnsPolicy::ClusterFirstWithHostNet, true, cluster),
            (DnsPolicy::Default, false, machine),
            (DnsPolicy::None, false, " |  | "),
        ] {
            assert_eq!(text_of(spec(policy, host_network), &node()), wanted, "{policy:?} {host_network}");
        }
        // Only a server on the machine's loopback.
        let alone = NodeDns { machine: ResolvConf::default(), ..node() };
        assert_eq!(text_of(spec(DnsPolicy::Default, false), &alone), "10.96.0.10 |  | ");
    }

    // Seen red with the host name alone.
    #[test]
    fn a_pod_with_a_subdomain_gets_its_full_name_first() {
        let with = |subdomain: Option<&str>| {
            pod(PodSpec { subdomain: subdomain.map(Into::into), ..PodSpec::default() })
        };
        assert_eq!(own_names(&with(None), "web-0", &node()), "web-0");
        let full = "web-0.db.shop.svc.cluster.local web-0";
        assert_eq!(own_names(&with(Some("db")), "web-0", &node()), full);
    }

    // Seen red without the limit of characters.
    #[test]
    fn dns_config_is_merged_within_kubernetes_limits() {
        let option =
            |name: &str, value: Option<&str>| DnsOption { name: name.into(), value: value.map(Into::into) };
        let config = DnsConfig {
            nameservers: vec![
                "192.0.2.7".into(),
                "10.96.0.10".into(),
                "192.0.2.8".into(),
                "192.0.2.9".into(),
            ],
            searches: (0..40).map(|n| format!("s{n}.example")).chain(["lan".into()]).collect(),
            options: vec![option("ndots", Some("2")), option("rotate", None)],
        };
        let text = text_of(PodSpec { dns_config: Some(Box::new(config)), ..PodSpec::default() }, &node());
        let (servers, rest) = text.split_once(" | ").unwrap();
        let (searches, options) = rest.split_once(" | ").unwrap();
        assert_eq!((servers, options), ("10.96.0.10 192.0.2.7 192.0.2.8", "ndots:2 rotate"));
        assert_eq!(searches.split(' ').count(), 32);
        assert!(searches.starts_with("shop.svc.cluster.local ") && searches.ends_with(" s27.example"));
        let long =
            |n: usize| format!("{}.{n:03}", ["x".repeat(60), "y".repeat(60), "z".repeat(60)].join("."));
        let config = DnsConfig { searches: (0..20).map(long).collect(), ..DnsConfig::default() };
        let text = text_of(PodSpec { dns_config: Some(Box::new(config)), ..PodSpec::default() }, &node());
        let searches = text.split(" | ").nth(1).unwrap();
        assert!(searches.len() <= 2048 && searches.len() > 2048 - 187, "{}", searches.len());
    }
}
