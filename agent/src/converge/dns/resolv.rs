//! Reads, interprets and writes `resolv.conf`. Pure.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::converge::shared::node_network::ResolvConf;

/// DNS port.
pub const PORT: u16 = 53;

/// Maximum number of name servers that resolvers use (`MAXNS` of libc).
pub const NAMESERVERS_MAX: usize = 3;

/// File in which systemd-resolved lists the servers behind its stub.
pub const RESOLVED_LIST: &str = "/run/systemd/resolve/resolv.conf";

/// Start of a file written by this agent; the instance follows.
const MARKER: &str = "# Written by minik8s-agent of instance ";

/// The machine's name server configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// Content of `resolv.conf`.
    pub text: String,
    /// Content of `resolv.conf` before this agent changed it.
    pub former: Option<String>,
    /// systemd-resolved's own list, if there is one.
    pub resolved: Option<String>,
}

impl Machine {
    /// Returns the configuration without this agent, with the real servers in place of systemd-resolved's stub.
    pub fn without_agent(&self) -> ResolvConf {
        let text = match &self.former {
            Some(former) if is_written(&self.text) => former,
            _ => &self.text,
        };
        let conf = ResolvConf::parse(text);
        let behind = self.resolved.as_deref().filter(|_| conf.is_resolved_stub()).map(ResolvConf::parse);
        match behind.filter(|behind| !behind.nameservers.is_empty()) {
            Some(behind) => ResolvConf { nameservers: behind.nameservers, ..conf },
            None => conf,
        }
    }
}

/// End of a link to systemd-resolved's stub; the link may be dangling while the machine starts.
const RESOLVED_STUB_LINK: &str = "systemd/resolve/stub-resolv.conf";

/// True if the machine's file leads to systemd-resolved, or did before this agent wrote it. `link` and
/// `former_link`: the file's target as a symbolic link, now and before.
///
/// Decided from the file alone: systemd-resolved may be unresponsive for a moment.
pub fn uses_resolved(machine: &Machine, link: Option<&str>, former_link: Option<&str>) -> bool {
    let (text, link) = match &machine.former {
        Some(former) if is_written(&machine.text) => (former, former_link),
        _ => (&machine.text, link),
    };
    link.is_some_and(|link| link.ends_with(RESOLVED_STUB_LINK))
        || machine.resolved.is_some() && ResolvConf::parse(text).is_resolved_stub()
}

/// Returns the upstream servers of this node's DNS: the machine's servers except ourselves, which would loop.
pub fn upstreams(machine: &Machine, own_address: Option<Ipv4Addr>) -> Vec<SocketAddr> {
    let mut list: Vec<SocketAddr> = Vec::new();
    for server in machine.without_agent().nameservers {
        let upstream = SocketAddr::new(server, PORT);
        if Some(server) != own_address.map(IpAddr::V4) && !list.contains(&upstream) {
            list.push(upstream);
        }
    }
    list.truncate(NAMESERVERS_MAX);
    list
}

/// True if an agent wrote the file.
pub fn is_written(text: &str) -> bool {
    text.starts_with(MARKER)
}

/// True if the agent of this instance wrote the file.
pub fn is_written_by(text: &str, instance: &str) -> bool {
    text.strip_prefix(MARKER).is_some_and(|rest| rest.split([';', '\n']).next() == Some(instance))
}

/// Returns the machine's file with the cluster's server first. The former servers follow it, for times when no
/// agent runs.
pub fn render(instance: &str, server: Ipv4Addr, own: &ResolvConf) -> String {
    let mut text =
        format!("{MARKER}{instance}; the former one comes back without --node-dns and by reset.\n");
    let others = own.nameservers.iter().filter(|other| **other != IpAddr::V4(server));
    let servers = [IpAddr::V4(server)].into_iter().chain(others.copied());
    for server in servers.take(NAMESERVERS_MAX) {
        text.push_str(&format!("nameserver {server}\n"));
    }
    for (keyword, words) in [("search", &own.searches), ("options", &own.options)] {
        if !words.is_empty() {
            text.push_str(&format!("{keyword} {}\n", words.join(" ")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);

    // Seen red with only the current text checked, and without the check of links.
    #[test]
    fn the_file_says_whether_systemd_resolved_is_asked() {
        let (stub, real) = ("nameserver 127.0.0.53\n", "nameserver 192.0.2.1\n");
        let ours = render("mk8s", VIP, &ResolvConf::parse(real));
        let leads = Some("../run/systemd/resolve/stub-resolv.conf");
        let list = Some(real);
        for (what, seen, link, former_link, asks) in [
            ("a plain file", machine(real, None, list), None, None, false),
            ("the stub", machine(stub, None, list), None, None, true),
            ("a stub of something else", machine(stub, None, None), None, None, false),
            ("a link, before resolved has started", machine("", None, None), leads, None, true),
            ("resolved's own list", machine(real, None, list), Some(RESOLVED_LIST), None, false),
            ("ours, a plain file before", machine(&ours, Some(real), list), None, None, false),
            ("ours, the stub before", machine(&ours, Some(stub), list), None, None, true),
            ("ours, a link before", machine(&ours, Some(""), None), None, leads, true),
            ("ours, what was before is lost", machine(&ours, None, list), None, None, false),
            ("another's, what was before is of no use", machine(real, Some(stub), list), None, leads, false),
        ] {
            assert_eq!(uses_resolved(&seen, link, former_link), asks, "{what}");
        }
    }

    fn machine(text: &str, former: Option<&str>, resolved: Option<&str>) -> Machine {
        Machine { text: text.into(), former: former.map(Into::into), resolved: resolved.map(Into::into) }
    }

    #[test]
    fn files_are_read_as_libc_reads_them() {
        let text = "# a\n; b\ndomain old.example\nnameserver 192.0.2.1 # c\nnameserver fe80::1%eth0\n\
                    nameserver 2001:db8::1\nsearch a.example  b.example\noptions ndots:2 edns0\nsortlist x\n";
        let conf = ResolvConf::parse(text);
        assert_eq!(
            conf.nameservers,
            ["192.0.2.1".parse::<IpAddr>().unwrap(), "2001:db8::1".parse().unwrap()]
        );
        assert_eq!(
            (conf.searches.join(" "), conf.options.join(" ")),
            ("a.example b.example".into(), "ndots:2 edns0".into())
        );
    }

    // Seen red without the check for our own address.
    #[test]
    fn upstreams_never_lead_back_here() {
        let stub = "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch lan\n";
        let real = "nameserver 192.0.2.1\nnameserver 192.0.2.2\n";
        let own = render("mk8s", VIP, &ResolvConf::parse(real));
        for (machine, wanted) in [
            (machine(real, None, None), vec!["192.0.2.1:53", "192.0.2.2:53"]),
            (machine("nameserver 192.0.2.1\nnameserver 192.0.2.1\n", None, None), vec!["192.0.2.1:53"]),
            (machine(stub, None, Some(real)), vec!["192.0.2.1:53", "192.0.2.2:53"]),
            // A stub without servers behind it is queried itself: it gets our names only.
            (machine(stub, None, Some("")), vec!["127.0.0.53:53"]),
            (machine("nameserver 10.96.0.10\nnameserver 192.0.2.9\n", None, None), vec!["192.0.2.9:53"]),
            (machine(&own, Some(stub), Some(real)), vec!["192.0.2.1:53", "192.0.2.2:53"]),
            // The former file is lost: the servers listed after our address are left.
            (machine(&own, None, None), vec!["192.0.2.1:53", "192.0.2.2:53"]),
            // Another program has rewritten the file since.
            (machine("nameserver 192.0.2.7\n", Some(real), None), vec!["192.0.2.7:53"]),
            (machine("", None, None), vec![]),
        ] {
            let list: Vec<String> = upstreams(&machine, Some(VIP)).iter().map(ToString::to_string).collect();
            assert_eq!(list, wanted, "{machine:?}");
        }
    }

    #[test]
    fn a_written_file_is_known_again_by_its_instance_alone() {
        let own = ResolvConf::parse(
            "nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\nsearch lan\n",
        );
        let text = render("mk8s", VIP, &own);
        assert!(is_written_by(&text, "mk8s") && !is_written_by(&text, "mk8") && is_written(&text));
        assert_eq!(
            text.lines().skip(1).collect::<Vec<_>>(),
            ["nameserver 10.96.0.10", "nameserver 192.0.2.1", "nameserver 192.0.2.2", "search lan"]
        );
    }
}
