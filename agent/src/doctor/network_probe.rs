//! Probes the node's network for the doctor. Judges nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::{fs, io};

use ipnet::Ipv4Net;
use schema::kinds::pod::Protocol;
use schema::records::{dns_address, gateway_address};

use super::check::Ranges;
use crate::config::Config;
use crate::converge::network::render::frame_rules;
use crate::converge::{dns, gateway};
use crate::packet_rules::chain::Names;
use crate::standby;
use crate::worlds::iptables::{Iptables as _, RealIptables};
use crate::worlds::netlink::{
    Device, Listener, Netlink as _, NetlinkError, Port, RealNetlink, Route, ScratchNamespace,
};

/// DNS port.
const DNS: u16 = 53;

/// Findings about the network; error texts where a probe failed.
#[derive(Debug, Clone)]
pub(super) struct NetworkFacts {
    pub(super) rules: Result<Vec<RuleTrial>, String>,
    pub(super) links: Result<Links, String>,
    /// True if an agent or its standby answers: listening was not tried.
    pub(super) is_answered: bool,
    /// Name, address and result of a trial listen for DNS and gateway.
    pub(super) fronts: Vec<(&'static str, String, Result<(), String>)>,
    /// `rp_filter` of each uplink, or that of `all` if larger.
    pub(super) rp_filter: BTreeMap<String, u8>,
    /// Connections that the kernel tracks, and their maximum.
    pub(super) connections: Option<(u64, u64)>,
    /// Range of ports that the kernel gives to sockets that ask for any.
    pub(super) local_ports: Option<(u16, u16)>,
    /// Ranges within `local_ports` that the kernel does not give out.
    pub(super) reserved_ports: Vec<(u16, u16)>,
}

/// Links, routes and sockets of the node.
#[derive(Debug, Clone, Default)]
pub(super) struct Links {
    pub(super) devices: Vec<Device>,
    /// Links of all default routes, the preferred one first.
    pub(super) uplinks: Vec<String>,
    pub(super) routes: Vec<Route>,
    pub(super) listeners: BTreeMap<Port, Listener>,
}

/// Probes the network. If `agent_runs`, its listen addresses are not tried.
pub(super) async fn gather(config: &Config, ranges: Ranges, agent_runs: bool) -> NetworkFacts {
    let links = links(config).await.map_err(|error| error.to_string());
    let uplinks = links.as_ref().map(|links| links.uplinks.clone()).unwrap_or_default();
    let whose = |protocol: Protocol, port: u16| {
        let listener = links.as_ref().ok().and_then(|links| links.listeners.get(&(protocol, port)));
        listener.and_then(|listener| listener.process.clone())
    };
    let is_answered = agent_runs || standby::is_serving(&config.machine.agent_dir());
    NetworkFacts {
        is_answered,
        fronts: try_listeners(ranges, is_answered, &whose),
        rules: try_all().await,
        rp_filter: uplinks.into_iter().filter_map(|name| Some((name.clone(), rp_filter(&name)?))).collect(),
        connections: number("/proc/sys/net/netfilter/nf_conntrack_count")
            .zip(number("/proc/sys/net/netfilter/nf_conntrack_max")),
        local_ports: read("/proc/sys/net/ipv4/ip_local_port_range").as_deref().and_then(pair),
        reserved_ports: port_list(&read("/proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default()),
        links,
    }
}

async fn links(config: &Config) -> Result<Links, NetlinkError> {
    let netlink = RealNetlink::open(&config.machine.instance)?;
    let (udp, tcp) = (Protocol::Udp, Protocol::Tcp);
    let named = BTreeSet::from([(udp, config.vxlan.port), (udp, DNS), (tcp, DNS), (tcp, gateway::PORT)]);
    Ok(Links {
        devices: netlink.devices().await?,
        uplinks: netlink.uplinks().await?,
        routes: netlink.list_routes().await?,
        listeners: netlink.listeners(&named).await?,
    })
}

/// Listens as the agent does and closes the sockets immediately. Not tried while an agent runs: its sockets share
/// their ports, and ours would take datagrams meant for it.
fn try_listeners(
    ranges: Ranges,
    agent_runs: bool,
    whose: &dyn Fn(Protocol, u16) -> Option<String>,
) -> Vec<(&'static str, String, Result<(), String>)> {
    let (names, web) = (dns_address(ranges.service), gateway_address(ranges.service));
    let (dns_at, web_at) = (format!("{names}:{DNS}"), format!("{web}:{}", gateway::PORT));
    if agent_runs {
        let left = || Err("not tried: an agent runs".to_owned());
        return vec![("dns", dns_at, left()), ("gateway", web_at, left())];
    }
    let explained = |result: io::Result<()>, ports: &[(Protocol, u16)]| {
        result.map_err(|error| {
            let process = ports.iter().find_map(|(protocol, port)| whose(*protocol, *port));
            process.map_or_else(|| error.to_string(), |process| format!("{error}: {process}"))
        })
    };
    let at = |address: Ipv4Addr, port: u16| (address, port);
    let dns = explained(dns::can_listen(names), &[(Protocol::Udp, DNS), (Protocol::Tcp, DNS)]);
    let listened = crate::http::server::listen(at(web, gateway::PORT).into()).map(drop);
    let http = explained(listened, &[(Protocol::Tcp, gateway::PORT)]);
    vec![("dns", dns_at, dns), ("gateway", web_at, http)]
}

/// Effective `rp_filter` of a link. The kernel takes the larger of the link's and that of `all`: loose (2) beats
/// strict (1).
fn rp_filter(link: &str) -> Option<u8> {
    let of = |name: &str| number(&format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"));
    let (all, own) = (of("all")?, of(link)?);
    u8::try_from(all.max(own)).ok()
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn number(path: &str) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

/// Parses `32768 60999`.
fn pair(text: &str) -> Option<(u16, u16)> {
    let mut numbers = text.split_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Parses `8080,30000-32767`.
fn port_list(text: &str) -> Vec<(u16, u16)> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    text.trim().split(',').filter_map(range).collect()
}

// Tests that this machine accepts the packet rules that the agent writes. Each match and target is really
// installed in a temporary network namespace: `iptables-restore --test` does not ask the kernel.

/// A match or a target, and the kernel's answer.
pub(super) type RuleTrial = (&'static str, Result<(), String>);

/// Name, table, and a rule as the agent spells it.
const RULES: [(&str, &str, &str); 14] = [
    ("match tcp", "filter", "-p tcp -m tcp --dport 80 -j RETURN"),
    ("match udp", "filter", "-p udp -m udp --dport 53 -j RETURN"),
    ("match comment", "filter", "-m comment --comment probe -j RETURN"),
    ("match addrtype", "nat", "-m addrtype --dst-type LOCAL -j RETURN"),
    (MANGLE, "mangle", "-m addrtype --dst-type LOCAL -j DROP"),
    ("match conntrack", "nat", "-m conntrack --ctstate DNAT -j RETURN"),
    ("match mark", "nat", "-m mark --mark 0x4000/0x4000 -j RETURN"),
    ("match statistic", "nat", "-m statistic --mode random --probability 0.50000000000 -j RETURN"),
    (RECENT, "nat", "-m recent --rcheck --seconds 10800 --reap --name MK8S-PROBE --rsource -j RETURN"),
    ("target MARK", "nat", "-j MARK --set-xmark 0x4000/0x4000"),
    ("target DNAT", "nat", "-p tcp -m tcp -j DNAT --to-destination 192.0.2.1:80"),
    (MASQUERADE, "nat", "-j MASQUERADE --random-fully"),
    (REJECT, "filter", "-p tcp -m tcp -j REJECT --reject-with tcp-reset"),
    ("target REJECT", "filter", "-p udp -m udp -j REJECT --reject-with icmp-port-unreachable"),
];

/// Needed only for services with `sessionAffinity`.
pub(super) const RECENT: &str = "match recent";
/// Needed only for builds that need the network.
pub(super) const MANGLE: &str = "table mangle";
/// Without it pods run all the same.
pub(super) const FRAMES: &str = "rules for frames";
/// `--random-fully` is used if iptables supports it.
const MASQUERADE: &str = "target MASQUERADE";
const REJECT: &str = "REJECT by reset";

/// Tries every rule; an error if nothing can be tried.
pub(super) async fn try_all() -> Result<Vec<RuleTrial>, String> {
    let scratch = ScratchNamespace::new().map_err(|error| format!("no network namespace: {error}"))?;
    let iptables = RealIptables::at(scratch.path());
    let random_fully = iptables.has_random_fully().await.map_err(|error| error.to_string())?;
    let mut tried = Vec::new();
    for (name, table, rule) in RULES {
        let rule = if random_fully { rule.to_owned() } else { rule.replace(" --random-fully", "") };
        let input = format!("*{table}\n:MK8S-PROBE - [0:0]\n-A MK8S-PROBE {rule}\nCOMMIT\n");
        tried.push((name, iptables.restore(&input).await.map_err(|error| error.to_string())));
    }
    let range = Ipv4Net::new_assert(Ipv4Addr::new(192, 0, 2, 0), 24);
    let input = frame_rules(&Names::for_instance("probe"), range);
    tried.push((FRAMES, iptables.change_frame_tables(&input).await.map_err(|error| error.to_string())));
    Ok(tried)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_running_agent_answers_nothing_is_tried() {
        let range = |text: &str| text.parse().unwrap();
        let ranges = Ranges { cluster: range("10.244.0.0/16"), service: range("127.96.0.0/16") };
        let tried = |agent_runs| try_listeners(ranges, agent_runs, &|_, _| None);
        assert_eq!(tried(true).iter().filter(|(.., result)| result.is_err()).count(), 2);
        assert!(
            tried(true).iter().all(|(.., result)| result.clone().is_err_and(|why| why.contains("not tried")))
        );
        assert_eq!(tried(true).first().map(|(_, at, _)| at.as_str()), Some("127.96.0.10:53"));
    }

    #[test]
    fn the_kernels_lists_of_ports_are_read() {
        assert_eq!(pair("32768\t60999\n"), Some((32768, 60999)));
        assert_eq!(pair("\n"), None);
        assert_eq!(port_list("8080,30000-32767\n"), [(8080, 8080), (30000, 32767)]);
        assert_eq!(port_list("\n"), []);
    }
}

#[cfg(test)]
mod rules_tests {
    use super::*;

    /// Words after `-m` and `-j`, except chains of ours.
    fn used(rules: &str) -> BTreeSet<String> {
        let apart = |c: char| c.is_whitespace() || "\"(".contains(c);
        let words: Vec<&str> = rules.split(apart).filter(|word| !word.is_empty()).collect();
        let pairs = words.windows(2).filter(|pair| ["-m", "-j"].contains(&pair[0]));
        let ours = |pair: &&[&str]| !pair[1].starts_with("MK8S-") && !["ACCEPT", "DROP"].contains(&pair[1]);
        pairs.filter(ours).map(|pair| format!("{} {}", pair[0], pair[1])).collect()
    }

    // Seen red with the rule of `statistic` left out.
    #[test]
    fn every_match_and_target_that_the_agent_writes_is_tried() {
        let tried = used(&RULES.map(|(_, _, rule)| rule).join(" "));
        let written = concat!(
            include_str!("../converge/network/render.rs"),
            include_str!("../converge/services/render.rs")
        );
        let is_word = |pair: &String| pair[3..].chars().all(char::is_alphanumeric);
        let written: Vec<String> = used(written).into_iter().filter(is_word).collect();
        assert!(written.len() > 8, "{written:?}");
        let missing: Vec<_> = written.iter().filter(|pair| !tried.contains(*pair)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    // Seen red with a match that no kernel has.
    #[tokio::test]
    async fn this_machine_takes_them_all_and_keeps_none() {
        let tried = try_all().await.unwrap();
        let refused: Vec<_> = tried.iter().filter(|(_, result)| result.is_err()).collect();
        assert!(refused.is_empty(), "{refused:?}");
        let own = RealIptables::new().save().await.unwrap();
        assert!(!own.contains("MK8S-PROBE"), "the node's own rules are left alone");
    }
}
