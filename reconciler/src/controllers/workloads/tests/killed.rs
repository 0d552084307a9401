//! Kills the leading reconciler between any two transactions of a rollout and a scale-up: its successor reaches
//! the same end, and no extra pod was ever created.

use std::collections::BTreeSet;

use schema::codec::decode;
use schema::keys::Key;

use super::field::{Field, replica_set, rolling};
use crate::controllers::{Change, Write};

/// Applies plans up to a kill, just before write number `killed_before`.
struct Leader {
    written: usize,
    killed_before: usize,
    /// Names of all pods ever created.
    made: Vec<String>,
}

impl Leader {
    /// Applies the transactions of one plan; those after the kill are never sent.
    fn act(&mut self, field: &mut Field) {
        let plan = super::super::plan::plan(field.snapshot(), &field.last_known, None, field.now);
        let mut writes = plan.writes.iter().peekable();
        while let Some(first) = writes.next() {
            if self.written == self.killed_before {
                // Its successor immediately plans again on the stored state.
                self.killed_before = usize::MAX;
                return self.act(field);
            }
            self.written += 1;
            self.write(field, first);
            while let Some(joined) = writes.next_if(|write| write.joined) {
                self.write(field, joined);
            }
        }
    }

    fn write(&mut self, field: &mut Field, write: &Write) {
        let builder = std::mem::take(&mut field.builder);
        field.builder = match &write.change {
            Change::Delete => builder.delete(&write.key),
            Change::Put(value) => {
                if let Key::Pod(pod) = &write.key {
                    self.made.push(pod.name.clone());
                }
                let value: serde_json::Value = decode(value).unwrap();
                builder.put(&write.key, &value)
            }
        };
    }
}

/// Rolls out six pods and scales them to nine; returns the number of transactions, the pods created and the pods
/// left.
fn story(killed_before: usize) -> (usize, Vec<String>, Vec<String>) {
    let mut leader = Leader { written: 0, killed_before, made: Vec::new() };
    let mut field = Field::new(rolling(replica_set(6, "web:1"), 2, 1));
    let settle = |field: &mut Field, leader: &mut Leader| {
        for _ in 0..25 {
            leader.act(field);
            field.bind();
            field.report();
            field.after(2);
            let living = field.pods().len();
            assert!(living <= 11, "{living} pods, killed before write {killed_before}");
        }
    };
    settle(&mut field, &mut leader);
    field.push(rolling(replica_set(6, "web:2"), 2, 1), 2);
    settle(&mut field, &mut leader);
    field.push(rolling(replica_set(9, "web:2"), 2, 1), 3);
    settle(&mut field, &mut leader);
    let rollout = field.rollout();
    assert!(
        rollout.complete && rollout.failure.is_none(),
        "killed before write {killed_before}: {rollout:?}"
    );
    assert_eq!(field.snapshot().templates.len(), 1);
    assert_eq!(field.images(), ["web:2"; 9]);
    (leader.written, leader.made, field.pods().into_keys().collect())
}

// Seen red with a `free_names` that reuses a name which has a pod, but no node yet.
#[test]
fn a_leader_killed_before_any_write_leaves_the_same_pods() {
    let (writes, made, left) = story(usize::MAX);
    assert_eq!(made.len(), made.iter().collect::<BTreeSet<_>>().len(), "a pod was made twice: {made:?}");
    assert!(writes > 30, "{writes}");
    for killed_before in 0..writes {
        let (_, made_then, left_then) = story(killed_before);
        let (mut all, mut all_then) = (made.clone(), made_then);
        all.sort();
        all_then.sort();
        assert_eq!((all, &left), (all_then, &left_then), "killed before write {killed_before}");
    }
}
