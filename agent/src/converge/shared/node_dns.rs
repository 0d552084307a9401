//! Name servers of pods, and parsing of `resolv.conf`. Pure.

use std::net::{IpAddr, Ipv4Addr};

/// DNS settings for pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeDns {
    /// The cluster's server; `None` before the node has a range.
    pub server: Option<Ipv4Addr>,
    /// The zone, without a trailing dot.
    pub domain: String,
    /// The machine's own resolver, without servers that only the machine itself can reach.
    pub machine: ResolvConf,
}

/// The addresses of systemd-resolved's stub.
const RESOLVED_STUBS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 53)), IpAddr::V4(Ipv4Addr::new(127, 0, 0, 54))];

/// Settings of a resolver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvConf {
    pub nameservers: Vec<IpAddr>,
    pub searches: Vec<String>,
    /// Options, `name` or `name:value`.
    pub options: Vec<String>,
}

impl ResolvConf {
    /// Parses a file as libc does: unknown keywords are ignored, the last `search` wins.
    pub fn parse(text: &str) -> Self {
        let mut conf = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let Some(keyword) = words.next().filter(|word| !word.starts_with(['#', ';'])) else { continue };
            match keyword {
                "nameserver" => {
                    conf.nameservers.extend(words.next().and_then(|word| word.parse::<IpAddr>().ok()));
                }
                "search" | "domain" => conf.searches = words.map(str::to_owned).collect(),
                "options" => conf.options.extend(words.map(str::to_owned)),
                _ => {}
            }
        }
        conf
    }

    /// True if systemd-resolved answers in front of the real servers.
    pub fn is_resolved_stub(&self) -> bool {
        self.nameservers.iter().any(|server| RESOLVED_STUBS.contains(server))
    }
}
