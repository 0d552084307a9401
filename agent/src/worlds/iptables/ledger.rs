//! Tells the rule changes of this process from those of others. Pure.
//!
//! Two loops write rules, each its own chains, and the kernel counts every transaction. Without this ledger each
//! loop would read all rules again, half a second for 1,000 services, whenever the other has written.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddrV4;
use std::path::Path;

use rtnetlink::sys::protocols::NETLINK_NETFILTER;

use super::UdpFlow;
use crate::worlds::netlink::in_namespace;
use crate::worlds::netlink::raw::{REQUEST, find_in, half, send_request};

/// Number of the kernel's steps to ignore.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    quiet: u32,
}

impl Ledger {
    /// Records that `input` was applied while the kernel's count went from `before` to `after`. If others wrote
    /// meanwhile, all steps count: callers then find that something changed.
    pub(super) fn applied(&mut self, input: &str, before: u32, after: u32) {
        let steps = TransactionCounts::of(input);
        if before.wrapping_add(steps.quiet).wrapping_add(steps.loud) == after {
            self.quiet = self.quiet.wrapping_add(steps.quiet);
        }
    }

    /// The kernel's count without our own quiet steps.
    pub(super) fn counted(&self, kernel: u32) -> u32 {
        kernel.wrapping_sub(self.quiet)
    }
}

/// Counts the transactions of an input that insert or delete single rules, as is done in the kernel's chains: both
/// loops check these again.
pub fn loud_steps(input: &str) -> u32 {
    TransactionCounts::of(input).loud
}

/// Transactions of an input of `iptables-restore`, each counted by the kernel.
#[derive(Debug, Default, PartialEq, Eq)]
struct TransactionCounts {
    quiet: u32,
    loud: u32,
}

impl TransactionCounts {
    fn of(input: &str) -> Self {
        let (mut steps, mut is_loud) = (Self::default(), false);
        for line in input.lines() {
            if line.starts_with("-I ") || line.starts_with("-D ") {
                is_loud = true;
            } else if line == "COMMIT" {
                if is_loud {
                    steps.loud += 1;
                } else {
                    steps.quiet += 1;
                }
                is_loud = false;
            }
        }
        steps
    }
}

// Queries that need no program: the kernel's generation of rules, and its setting for frames within a bridge. Also
// parses the output of `conntrack`.

/// `NFNL_SUBSYS_NFTABLES` and `NFT_MSG_GETGEN`, `NFT_MSG_NEWGEN` (linux/netfilter/nfnetlink.h, nf_tables.h).
const GET: u16 = 10 << 8 | 16;
const NEW: u16 = 10 << 8 | 15;
/// `NFTA_GEN_ID`: 32 bits, big-endian.
const ID: u16 = 1;

/// True if iptables of this version writes rules that the kernel counts; the legacy backend does not.
pub(super) fn is_counted_by_kernel(version: &str) -> bool {
    version.contains("nf_tables")
}

/// Generation of the kernel's rules, in this namespace or that at `path`. The kernel answers synchronously, within
/// microseconds.
pub(super) fn generation(path: Option<&Path>) -> io::Result<u32> {
    in_namespace(path, count)
}

/// True if rules apply to frames within a bridge, in this namespace or that at `path`. The file exists only with
/// the module `br_netfilter`.
pub(super) fn bridged_frames(path: Option<&Path>) -> bool {
    let read = || std::fs::read_to_string("/proc/sys/net/bridge/bridge-nf-call-iptables");
    in_namespace(path, read).is_ok_and(|value| value.trim() == "1")
}

fn count() -> io::Result<u32> {
    // Family, version and resource of nfgenmsg are 0.
    let answer = send_request(NETLINK_NETFILTER, GET, REQUEST, [0; 4], &[])?;
    id_of(&answer).ok_or_else(|| io::Error::other("the kernel does not count changes of rules"))
}

fn id_of(answer: &[u8]) -> Option<u32> {
    half(answer, 4).filter(|kind| *kind == NEW)?;
    find_in(answer, ID)?.try_into().ok().map(u32::from_be_bytes)
}

/// Parses the connections in the output of `conntrack -L`.
pub(super) fn udp_flows(text: &str) -> BTreeSet<UdpFlow> {
    text.lines().filter_map(udp_flow).collect()
}

fn udp_flow(line: &str) -> Option<UdpFlow> {
    let all = |key: &str| -> Vec<&str> {
        line.split_whitespace().filter_map(|word| word.strip_prefix(key)?.strip_prefix('=')).collect()
    };
    let (sources, targets) = (all("src"), all("dst"));
    let (from_ports, to_ports) = (all("sport"), all("dport"));
    // The first of each belongs to the client's packet, the second to the reply.
    let to = SocketAddrV4::new(targets.first()?.parse().ok()?, to_ports.first()?.parse().ok()?);
    let from = SocketAddrV4::new(sources.get(1)?.parse().ok()?, from_ports.get(1)?.parse().ok()?);
    Some(UdpFlow { to, from })
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: &str = "*nat\n:A - [0:0]\n-A A -j ACCEPT\nCOMMIT\n";
    const LOUD: &str = "*filter\n-I INPUT 1 -j A\nCOMMIT\n*nat\n-D OUTPUT -j A\nCOMMIT\n";

    #[test]
    fn own_chains_are_quiet_and_single_rules_are_loud() {
        assert_eq!(TransactionCounts::of(QUIET), TransactionCounts { quiet: 1, loud: 0 });
        assert_eq!(
            TransactionCounts::of(&format!("{QUIET}{LOUD}{QUIET}")),
            TransactionCounts { quiet: 2, loud: 2 }
        );
    }

    // Seen red with `applied` that takes every input for its own.
    #[test]
    fn own_quiet_steps_do_not_count_unless_others_wrote_between() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.counted(7), 7);
        ledger.applied(QUIET, 7, 8);
        assert_eq!(ledger.counted(8), 7);
        ledger.applied(LOUD, 8, 10);
        assert_eq!(ledger.counted(10), 9, "what both loops look at was changed");
        ledger.applied(QUIET, 10, 12);
        assert_eq!(ledger.counted(12), 11, "somebody else wrote, too");
        let mut wrapped = Ledger::default();
        wrapped.applied(QUIET, u32::MAX, 0);
        assert_eq!(wrapped.counted(0), u32::MAX);
    }
}

#[cfg(test)]
mod generation_tests {
    use super::*;

    #[test]
    fn flows_are_read_from_what_conntrack_prints() {
        let text = "\
udp      17 29 src=10.244.3.9 dst=10.96.0.5 sport=4000 dport=53 src=10.244.3.5 dst=10.244.3.1 sport=5353 dport=4000 mark=0 use=1
udp      17 9 src=192.0.2.2 dst=192.0.2.1 sport=1 dport=30053 [UNREPLIED] src=192.0.2.1 dst=192.0.2.2 sport=30053 dport=1 [ASSURED] mark=0 use=1
udp      17 29 src=fd00::1 dst=fd00::2 sport=4000 dport=53 src=fd00::2 dst=fd00::1 sport=53 dport=4000 use=1
";
        let flow = |to: &str, from: &str| UdpFlow { to: to.parse().unwrap(), from: from.parse().unwrap() };
        let expected = [flow("10.96.0.5:53", "10.244.3.5:5353"), flow("192.0.2.1:30053", "192.0.2.1:30053")];
        assert_eq!(udp_flows(text), BTreeSet::from(expected));
    }

    #[test]
    fn a_broken_answer_has_no_number() {
        let mut answer = vec![0_u8; 28];
        answer[4..6].copy_from_slice(&NEW.to_ne_bytes());
        assert_eq!(id_of(&answer), None);
        assert_eq!(id_of(&answer[..5]), None);
    }
}
