//! The revision that all live nodes have programmed.

use schema::codec::decode;
use schema::keys::Key;
use schema::records::{ProgrammedRules, RulesStatus};
use schema::testing::SnapshotBuilder;

use super::plan::plan_programmed;
use crate::controllers::Change;

fn with_rules(builder: SnapshotBuilder, node: &str, revision: i64) -> SnapshotBuilder {
    builder.put(&Key::Rules(node.to_owned()), &RulesStatus { revision, ..RulesStatus::default() })
}

/// The revision that the plan writes, if it writes one.
fn programmed(builder: &SnapshotBuilder) -> Option<i64> {
    let plan = plan_programmed(&builder.snapshot);
    assert!(plan.writes.len() < 2 && plan.writes.iter().all(|write| write.key == Key::Programmed), "{plan}");
    plan.writes.first().map(|write| match &write.change {
        Change::Put(value) => decode::<ProgrammedRules>(value).unwrap().revision,
        Change::Delete => panic!("{plan}"),
    })
}

#[test]
fn the_oldest_rules_of_a_live_node_count_and_are_written_once() {
    let builder = SnapshotBuilder::new().nodes(3);
    assert_eq!(programmed(&builder), None, "nobody has reported");
    let builder = with_rules(with_rules(builder, "n1", 7), "n2", 5);
    // The third node has reported nothing, so it programs nothing.
    assert_eq!(programmed(&builder), Some(5));
    let builder = builder.put(&Key::Programmed, &ProgrammedRules { revision: 5 });
    assert_eq!(programmed(&builder), None);
    assert_eq!(programmed(&with_rules(builder.clone(), "n1", 8)), None);
    assert_eq!(programmed(&with_rules(builder, "n2", 8)), Some(7));
}

#[test]
fn a_silent_node_counts_no_more_and_counts_again_when_it_returns() {
    let builder = with_rules(with_rules(SnapshotBuilder::new().nodes(2), "n1", 7), "n2", 5);
    let lost = builder.delete(&Key::Heartbeat("n2".to_owned()));
    assert_eq!(programmed(&lost), Some(7));
    let back = lost.put(&Key::Programmed, &ProgrammedRules { revision: 7 }).nodes(2);
    assert_eq!(programmed(&back), Some(5), "its rules may still lead to pods that are about to end");
    let none = back.delete(&Key::Heartbeat("n1".to_owned())).delete(&Key::Heartbeat("n2".to_owned()));
    assert_eq!(programmed(&none), None);
}

#[test]
fn a_report_that_cannot_be_read_counts_as_the_oldest() {
    let builder = with_rules(SnapshotBuilder::new().nodes(2), "n1", 7);
    let garbled = builder.clone().garbage(&Key::Rules("n2".to_owned()));
    assert_eq!(programmed(&garbled), Some(0));
    assert_eq!(programmed(&builder.clone().garbage(&Key::Rules("n9".to_owned()))), Some(7), "not alive");
    let plan = plan_programmed(&builder.garbage(&Key::Programmed).snapshot);
    assert!(plan.writes.is_empty() && plan.to_string().contains("Unreadable"), "{plan}");
}
