//! Rules written in several transactions: packets meet either all old rules or all new ones.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::kernel::{Node, converge};
use super::laws::{OTHERS, any_cluster};
use super::*;
use crate::packet_rules::chain::{ChainRef, Table};
use crate::packet_rules::restore::restore_in_parts;
use crate::packet_rules::saved::{SavedRules, flag_value, saved_rules};
use crate::worlds::iptables::Iptables as _;

/// Returns the rules of a table that packets can reach.
fn met(text: &str, table: Table) -> SavedRules {
    let saved = saved_rules(text, |chain| chain.table == table);
    let mut left: Vec<ChainRef> = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"]
        .map(|base| ChainRef::new(table, base))
        .into_iter()
        .collect();
    let mut met = SavedRules::new();
    while let Some(chain) = left.pop() {
        let Some(rules) = saved.get(&chain).filter(|_| !met.contains_key(&chain)) else { continue };
        left.extend(rules.iter().filter_map(|rule| Some(ChainRef::new(table, flag_value(rule, "-j")?))));
        met.insert(chain, rules.clone());
    }
    met
}

/// Finds a jump to a missing chain, which the kernel rejects.
fn dangling(text: &str) -> Option<String> {
    let saved = saved_rules(text, |_| true);
    let leads_nowhere = |chain: &ChainRef, rule: &[String]| {
        let to = flag_value(rule, "-j").map(|to| ChainRef::new(chain.table, to));
        to.is_some_and(|to| to.chain.starts_with("MK8S-") && !saved.contains_key(&to))
    };
    let mut rules = saved.iter().flat_map(|(chain, rules)| rules.iter().map(move |rule| (chain, rule)));
    rules.find(|(chain, rule)| leads_nowhere(chain, rule)).map(|(chain, rule)| format!("{chain} {rule:?}"))
}

/// Splits an input into its transactions, in order.
fn transactions(input: &str) -> Vec<String> {
    input.split_inclusive("COMMIT\n").map(str::to_owned).collect()
}

/// Flushes all nat rules, as somebody may do before the write.
fn flushed(there: &str) -> String {
    let rules = there.split_once("*nat").map_or(0, |(filter, _)| filter.lines().count());
    let kept = there.lines().enumerate().filter(|(at, line)| *at < rules || !line.starts_with("-A "));
    kept.map(|(_, line)| format!("{line}\n")).collect()
}

proptest! {
    // Seen red with every written chain taken for unreached, with the order of names in place of `leaves_first`,
    // and with
    // the obsolete chains removed before the others are written.
    #[test]
    fn packets_meet_all_old_rules_or_all_new_ones(
        first in any_cluster(),
        second in any_cluster(),
        part in 1_usize..5,
        is_flushed in any::<bool>(),
    ) {
        let mut there = after_restore(OTHERS, &input(&observed(first, OTHERS)));
        if is_flushed {
            there = flushed(&there);
        }
        let plan = plan(&observed(second, &there));
        let changes: Vec<_> = plan.rules.into_iter().map(|(change, _)| change).collect();
        let whole = after_restore(&there, &restore_input(&changes));
        let parts = restore_in_parts(&changes, &plan.unreached, part);
        prop_assert_eq!(&after_restore(&there, &parts), &whole);
        for table in [Table::Filter, Table::Nat] {
            let (old, new) = (met(&there, table), met(&whole, table));
            let (mut now, mut is_new) = (there.clone(), old == new);
            for transaction in transactions(&parts) {
                now = after_restore(&now, &transaction);
                let met = met(&now, table);
                prop_assert!(met == new || (!is_new && met == old), "after\n{transaction}\n{now}");
                is_new |= met == new;
                prop_assert_eq!(dangling(&now), None, "after\n{}", transaction);
            }
        }
    }
}

// Seen red with one transaction for all.
#[test]
fn many_chains_are_written_in_small_transactions() {
    let records: Vec<(String, ServiceRecord)> = (0..100_u8)
        .map(|number| {
            let record = service(&["10.244.3.5:80", "10.244.3.6:80", "10.244.4.7:80"]);
            let cluster_ip = Some(Ipv4Addr::new(10, 96, 1, number));
            (format!("s{number}"), ServiceRecord { cluster_ip, ..record })
        })
        .collect();
    let pairs: Vec<_> = records.iter().map(|(name, record)| (name.as_str(), record)).collect();
    let plan = plan(&observed(wanted(&pairs), BARE));
    let changes: Vec<_> = plan.rules.into_iter().map(|(change, _)| change).collect();
    let transactions = transactions(&restore_in_parts(&changes, &plan.unreached, 128));
    let declared = |text: &String| text.lines().filter(|line| line.starts_with(':')).count();
    let sizes: Vec<usize> = transactions.iter().map(declared).collect();
    let chains = changes.iter().filter(|change| !change.to_string().contains(" -j ")).count();
    assert_eq!(sizes.iter().collect::<BTreeSet<_>>().last(), Some(&&128), "{sizes:?}");
    assert!(chains > 400 && sizes.iter().sum::<usize>() == chains, "{chains} {sizes:?}");
}

/// Builds 100 services of three endpoints each; with `moved`, every endpoint is another.
fn hundred(moved: bool) -> Vec<(String, ServiceRecord)> {
    let record = |number: u8| {
        let endpoints = [2, 3, 4].map(|node| format!("10.244.{}.{number}:80", node + u8::from(moved) * 10));
        let cluster_ip = Some(Ipv4Addr::new(10, 96, 1, number));
        ServiceRecord { cluster_ip, ..service(&endpoints.each_ref().map(String::as_str)) }
    };
    (0..100).map(|number| (format!("s{number}"), record(number))).collect()
}

fn pairs(records: &[(String, ServiceRecord)]) -> Vec<(&str, &ServiceRecord)> {
    records.iter().map(|(name, record)| (name.as_str(), record)).collect()
}

/// Asserts that the kernel has the rules of exactly these services.
async fn stand(node: &Node, services: &[(String, ServiceRecord)], when: &str) {
    let there = present(&node.iptables.save().await.unwrap(), &place().names);
    let wanted = wanted(&pairs(services));
    let chains: BTreeMap<_, _> =
        wanted.chains().map(|(chain, rules)| (chain.clone(), rules.fingerprint)).collect();
    assert_eq!(there.chains, chains, "{when}");
}

// Seen red with the order of names in place of `leaves_first`, and with obsolete chains removed in parts before all
// of
// them are empty.
#[tokio::test]
async fn many_services_are_written_changed_healed_and_removed_on_a_real_kernel() {
    let mut node = Node::new().await;
    let (first, second) = (hundred(false), hundred(true));
    node.serve(&pairs(&first)).await;
    stand(&node, &first, "from nothing").await;
    assert!(!converge(&mut node.services).await, "and nothing is left to do");
    node.serve(&pairs(&second)).await;
    stand(&node, &second, "all endpoints moved").await;
    for flush in ["iptables -t nat -F", "iptables -t nat -F; iptables -t nat -X"] {
        node.namespace.run("sh", &["-ec", flush]);
        // A change arrives together with the flush, and is written on the basis of the rules known before.
        node.know(&pairs(&first));
        for _ in 0..3 {
            converge(&mut node.services).await;
        }
        stand(&node, &first, flush).await;
        assert!(node.services.rendered.refused.named().0.is_empty(), "{flush}: no service is to blame");
        node.serve(&pairs(&second)).await;
        stand(&node, &second, flush).await;
    }
    let mut bad = first.clone();
    for number in [10, 60, 90] {
        // iptables rejects an affinity of zero seconds.
        bad[number].1.affinity_seconds = Some(0);
    }
    node.know(&pairs(&bad));
    // An unparsable text is rejected at its first bad line, so each bad line takes a round.
    for _ in 0..4 {
        converge(&mut node.services).await;
    }
    let refused: Vec<String> = node.services.rendered.refused.named().0.into_keys().collect();
    assert_eq!(refused, ["default/s10", "default/s60", "default/s90"]);
    bad.retain(|(_, record)| record.affinity_seconds.is_none());
    stand(&node, &bad, "but for three").await;
    node.serve(&[]).await;
    stand(&node, &[], "none").await;
}
