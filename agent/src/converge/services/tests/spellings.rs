//! Other programs' changes to our chains are healed each time; this iptables' own spelling is left alone.

use std::time::Duration;

use schema::control::Next;

use super::fakes::{Rig, rig};
use super::*;
use crate::desired::StateOrigin;

/// A rig whose kernel keeps restored rules, with one service whose rules are in place.
async fn programmed_rig(generation: Option<u32>, apply: fn(&str, &str) -> String) -> Rig {
    let mut rig = rig();
    {
        let mut rules = rig.iptables.rules();
        (rules.generation, rules.saved, rules.apply) = (generation, BARE.to_owned(), Some(apply));
    }
    rig.know(StateOrigin::Etcd, 5, &[("web", service(&["10.244.3.5:80"]))]);
    assert_eq!(rig.run().await, Ok(true));
    rig
}

impl Rig {
    /// Changes the rules as another program would.
    fn meddle(&self, change: impl Fn(&str) -> String) {
        let mut rules = self.iptables.rules();
        rules.saved = change(&rules.saved);
        rules.generation = rules.generation.map(|count| count + 1);
    }

    fn saved(&self) -> String {
        self.iptables.rules().saved.clone()
    }
}

fn without(saved: &str, rules: &str) -> String {
    saved.lines().filter(|line| !line.starts_with(rules)).map(|line| format!("{line}\n")).collect()
}

type Change = fn(&str) -> String;

const CHANGES: [(&str, Change); 4] = [
    ("a flush of one chain", |saved| without(saved, "-A MK8S-SERVICES ")),
    ("a flush of all", |saved| without(saved, "-A ")),
    ("another endpoint", |saved| saved.replace("10.244.3.5:80", "10.244.3.66:80")),
    ("a rule less", |saved| without(saved, "-A MK8S-MASQ -m mark ")),
];

// Seen red with the state before the write taken for a spelling (another endpoint), and with empty chains taken for
// one (both flushes).
#[tokio::test(start_paused = true)]
async fn what_others_do_after_each_write_is_healed_each_time() {
    for generation in [Some(1), None] {
        for (what, change) in CHANGES {
            let mut rig = programmed_rig(generation, after_restore).await;
            let whole = rig.saved();
            for time in 1..=8 {
                rig.meddle(change);
                assert_ne!(rig.saved(), whole, "{what} changes nothing");
                assert_eq!(rig.run().await, Ok(true), "{what}, time {time}, {generation:?}");
                assert_eq!(rig.saved(), whole, "{what}, time {time}, {generation:?}");
                tokio::time::advance(Duration::from_secs(4)).await;
            }
            assert!(rig.services.spellings.known().is_empty(), "{what}");
            assert_eq!(rig.run().await, Ok(false));
        }
    }
}

/// Restores as a kernel or program that prints a mark differently.
fn respelled(there: &str, input: &str) -> String {
    after_restore(there, input).replace("0x4000/0x0\n", "0x4000/0x00000000\n")
}

// Seen red with a `learn` that learns nothing.
#[tokio::test(start_paused = true)]
async fn another_spelling_is_written_once_more_and_then_known_until_somebody_changes_it() {
    for generation in [Some(1), None] {
        let mut rig = programmed_rig(generation, respelled).await;
        // With a generation counter, all rules are read only now.
        tokio::time::advance(Duration::from_secs(61)).await;
        assert!(rig.saved().contains("0x00000000"), "{}", rig.saved());
        assert_eq!(rig.run().await, Ok(true), "it may be somebody's change");
        for _ in 0..3 {
            tokio::time::advance(Duration::from_secs(61)).await;
            assert_eq!(rig.run().await, Ok(false), "it is this iptables");
        }
        let whole = rig.saved();
        for change in [|saved: &str| saved.replace("0x00000000", "0x1"), |saved: &str| without(saved, "-A ")]
        {
            rig.meddle(change);
            assert_eq!(rig.run().await, Ok(true), "that is somebody's change");
            assert_eq!(rig.saved(), whole);
            tokio::time::advance(Duration::from_secs(4)).await;
        }
        assert_eq!(rig.run().await, Ok(false));
    }
}

// Seen red with `Next::Interval` always.
#[tokio::test(start_paused = true)]
async fn a_change_soon_after_a_read_is_read_as_soon_as_it_may_be() {
    let mut rig = programmed_rig(Some(1), after_restore).await;
    rig.iptables.rules().save_takes = Duration::from_millis(1_000);
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(rig.run().await, Ok(false));
    let whole = rig.saved();
    rig.meddle(|saved| without(saved, "-A "));
    tokio::time::advance(Duration::from_millis(500)).await;
    assert_eq!(rig.run().await, Ok(false), "too soon to read again");
    assert_eq!(rig.next, Some(Next::After(Duration::from_millis(1_500))));
    tokio::time::advance(Duration::from_millis(1_500)).await;
    assert_eq!(rig.run().await, Ok(true));
    assert_eq!((rig.saved(), rig.next), (whole, Some(Next::Interval)));
}
