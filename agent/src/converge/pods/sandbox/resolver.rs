//! A pod's `resolv.conf`, by `dnsPolicy` and `dnsConfig`, with the kubelet's limits (`getPodDNSType`,
//! `appendDNSConfig` and `formDNSSearchFitsLimits` in pkg/kubelet/network/dns), and its own names. Pure.

use schema::kinds::pod::{DnsPolicy, PodSpec};
use schema::records::PodInstance;

use crate::converge::node_dns::NodeDns;
use crate::worlds::docker::Resolver;

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
    use super::*;
    use crate::converge::node_dns::ResolvConf;
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
