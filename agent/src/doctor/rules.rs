//! Tests that this machine accepts the packet rules that the agent writes. Each match and target is really
//! installed in a temporary network namespace: `iptables-restore --test` does not ask the kernel.

use crate::worlds::iptables::{Iptables as _, RealIptables};
use crate::worlds::netlink::ScratchNamespace;

/// A match or a target, and the kernel's answer.
pub(super) type Tried = (&'static str, Result<(), String>);

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
/// `--random-fully` is used if iptables supports it.
const MASQUERADE: &str = "target MASQUERADE";
const REJECT: &str = "REJECT by reset";

/// Tries every rule; an error if nothing can be tried.
pub(super) async fn try_all() -> Result<Vec<Tried>, String> {
    let scratch = ScratchNamespace::new().map_err(|error| format!("no network namespace: {error}"))?;
    let iptables = RealIptables::at(scratch.path());
    let random_fully = iptables.has_random_fully().await.map_err(|error| error.to_string())?;
    let mut tried = Vec::new();
    for (name, table, rule) in RULES {
        let rule = if random_fully { rule.to_owned() } else { rule.replace(" --random-fully", "") };
        let input = format!("*{table}\n:MK8S-PROBE - [0:0]\n-A MK8S-PROBE {rule}\nCOMMIT\n");
        tried.push((name, iptables.restore(&input).await.map_err(|error| error.to_string())));
    }
    Ok(tried)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words after `-m` and `-j`, except chains of ours.
    fn used(rules: &str) -> std::collections::BTreeSet<String> {
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
