//! The plan of the outbox: which messages are delivered when, and that the last one always arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use schema::control::Plan as _;
use schema::keys::Key;
use schema::kinds::cluster::NotificationEvent;
use schema::records::{Message, MessageState, OutboxEntry};
use schema::snapshot::{Change, Snapshot};
use schema::testing::at;

use super::fold::WantedMessages;
use super::plan::{
    DeliveryResult, ENTRIES_MAX, EntryKey, InFlight, Memory, OutboxPlan, Outcome, PlannedDelivery, plan,
};

/// A forge with the last state of each subject.
#[derive(Default)]
struct Forge {
    states: BTreeMap<EntryKey, Message>,
}

impl Forge {
    /// Sets a state; one that may be there already is read back before.
    fn accept(&mut self, delivery: &PlannedDelivery) -> Result<(), TestCaseError> {
        let is_there = self.states.get(&delivery.key) == Some(&delivery.message);
        prop_assert!(
            !is_there || delivery.may_have_arrived,
            "{} was set twice in a row",
            delivery.message.title
        );
        self.states.insert(delivery.key.clone(), delivery.message.clone());
        Ok(())
    }
}

/// Outbox and leader, with their clock.
struct World {
    snapshot: Snapshot,
    wanted: WantedMessages,
    /// Hash of the settings of each target.
    targets: BTreeMap<String, String>,
    memory: Memory,
    now: Timestamp,
    /// Deliveries under way.
    flying: Vec<PlannedDelivery>,
    /// Message of each id so far.
    ids: BTreeMap<String, (EntryKey, Message)>,
    /// Set if etcd refuses the next writes.
    is_refusing: bool,
}

impl World {
    fn new() -> Self {
        Self {
            snapshot: Snapshot::default(),
            wanted: WantedMessages::new(),
            targets: ["a", "b"].map(|name| (name.to_owned(), format!("of {name}"))).into(),
            memory: Memory::default(),
            now: at(0),
            flying: Vec::new(),
            ids: BTreeMap::new(),
            is_refusing: false,
        }
    }

    fn want(&mut self, target: &str, subject: &str, message: Message) {
        self.wanted.insert((target.to_owned(), subject.to_owned()), message);
    }

    fn after(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    /// Plans, writes and hands over, as the loop does.
    fn run(&mut self) -> Option<Timestamp> {
        let planned = plan(&self.snapshot.outbox, &self.targets, &self.wanted, &self.memory, self.now);
        let again_at = planned.replan_at();
        let OutboxPlan { writes, repeats, pauses, .. } = planned;
        self.memory.pauses = Some(pauses);
        let (mut deliveries, mut unwritten) = (repeats, BTreeSet::new());
        for write in writes {
            if self.is_refusing {
                unwritten.insert(write.key);
                continue;
            }
            let key = Key::Outbox(write.key.0, write.key.1);
            match &write.entry {
                Some(entry) => self.snapshot.put(&key, entry, self.snapshot.revision + 1),
                None => self.snapshot.apply(&Change::Delete { key: key.to_string() }),
            }
            deliveries.extend(write.delivery);
        }
        self.is_refusing = false;
        self.memory.forget_written(&unwritten);
        for delivery in deliveries {
            let flight = InFlight { key: delivery.key.clone(), id: delivery.id.clone() };
            let before = self.memory.in_flight.insert(delivery.key.0.clone(), flight);
            assert!(before.is_none() || !unwritten.is_empty(), "two deliveries to one target");
            let known = self.ids.entry(delivery.id.clone());
            let known = known.or_insert_with(|| (delivery.key.clone(), delivery.message.clone()));
            assert_eq!(
                *known,
                (delivery.key.clone(), delivery.message.clone()),
                "an id stands for two messages"
            );
            self.flying.push(delivery);
        }
        again_at
    }

    /// Ends the oldest delivery under way.
    fn end(&mut self, outcome: Outcome) -> Option<PlannedDelivery> {
        if self.flying.is_empty() {
            return None;
        }
        let delivery = self.flying.remove(0);
        let (key, id) = (delivery.key.clone(), delivery.id.clone());
        self.memory.results.push(DeliveryResult { key, id, at: self.now, outcome });
        Some(delivery)
    }

    fn entry(&self, target: &str, subject: &str) -> &OutboxEntry {
        &self.snapshot.outbox[&(target.to_owned(), subject.to_owned())].value
    }

    /// Titles of the deliveries under way.
    fn delivered(&self) -> Vec<&str> {
        self.flying.iter().map(|delivery| delivery.message.title.as_str()).collect()
    }
}

fn message(event: NotificationEvent, state: MessageState, title: &str) -> Message {
    Message {
        event,
        state,
        title: title.to_owned(),
        text: String::new(),
        page: String::new(),
        source: None,
        commit: None,
    }
}

fn status(title: &str) -> Message {
    message(NotificationEvent::Verdict, MessageState::Success, title)
}

fn failed(retry_after: Option<u64>) -> Outcome {
    Outcome::Failed { error: "503".to_owned(), retry_after: retry_after.map(Duration::from_secs) }
}

#[test]
fn a_problem_is_sent_once_it_lasts_and_an_all_clear_once_that_does() {
    let node = |state, title| message(NotificationEvent::Node, state, title);
    let mut world = World::new();
    world.want("a", "nodes", node(MessageState::Failure, "n1"));
    assert_eq!(world.run(), Some(at(10)));
    assert_eq!(world.delivered(), [""; 0]);
    // Another node falls silent: the first has been so for as long as before.
    world.after(6);
    world.want("a", "nodes", node(MessageState::Failure, "n1, n2"));
    world.run();
    world.after(4);
    world.run();
    assert_eq!(world.delivered(), ["n1, n2"]);
    world.end(Outcome::Accepted);
    assert_eq!(world.run(), None);
    // It comes and goes.
    for _ in 0..5 {
        world.want("a", "nodes", node(MessageState::Success, "ready"));
        world.run();
        world.after(20);
        world.run();
        world.want("a", "nodes", node(MessageState::Failure, "n1, n2"));
        world.run();
        world.after(20);
        assert_eq!(world.run(), None);
        assert_eq!(world.delivered(), [""; 0]);
    }
    world.want("a", "nodes", node(MessageState::Success, "ready"));
    world.run();
    world.after(30);
    world.run();
    assert_eq!(world.delivered(), ["ready"]);
}

#[test]
fn a_failed_delivery_is_repeated_under_its_id_with_growing_waits() {
    let mut world = World::new();
    world.want("a", "s", status("one"));
    world.run();
    let first = world.end(failed(None)).unwrap();
    let mut waits = Vec::new();
    for _ in 0..9 {
        let again_at = world.run().unwrap();
        waits.push(again_at.duration_since(world.now).as_secs());
        world.now = again_at;
        world.run();
        let again = world.end(failed(None)).unwrap();
        assert_eq!((&again.id, again.may_have_arrived), (&first.id, true));
    }
    assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 600, 600]);
    world.run();
    assert_eq!((world.entry("a", "s").failures, world.entry("a", "s").error.as_deref()), (10, Some("503")));
}

// Would fail with a wait of each message alone.
#[test]
fn a_target_that_asks_to_wait_is_left_alone_with_other_and_newer_messages_too() {
    let mut world = World::new();
    world.want("a", "s", status("one"));
    world.want("a", "t", status("two"));
    world.want("b", "s", status("other"));
    world.run();
    assert_eq!(world.delivered(), ["one", "other"]);
    world.end(failed(Some(100)));
    world.end(Outcome::Accepted);
    world.after(1);
    world.want("a", "s", status("newer"));
    assert_eq!(world.run(), Some(at(100)));
    // A new leader waits, too, also with a message that has no entry yet.
    world.memory = Memory::default();
    world.want("a", "u", status("three"));
    assert_eq!(world.run(), Some(at(100)));
    world.after(99);
    world.run();
    assert_eq!(world.delivered(), ["newer"]);
    // At most an hour.
    world.end(failed(Some(1_000_000)));
    assert_eq!(world.run(), Some(at(100 + 3_600)));
}

// Would fail with a delivery that the leader before had in flight.
#[test]
fn a_new_leader_waits_for_what_may_be_in_flight_and_delivers_to_others_meanwhile() {
    let mut world = World::new();
    world.want("a", "s", status("one"));
    world.run();
    let before = world.flying.pop().unwrap();
    world.memory = Memory::default();
    // Its entry goes, and with it the attempt.
    world.wanted.clear();
    world.run();
    world.want("a", "s", status("two"));
    world.want("b", "s", status("other"));
    assert_eq!(world.run(), Some(at(6)));
    assert_eq!(world.delivered(), ["other"]);
    world.after(6);
    world.run();
    assert_eq!(world.delivered(), ["other", "two"]);
    assert_ne!(world.flying[1].id, before.id);
}

// Would fail with the wait until the time that a clock ahead of this one wrote.
#[test]
fn times_of_a_clock_that_was_set_back_hold_nothing_up() {
    let mut world = World::new();
    world.now = at(100_000);
    world.want("a", "s", status("one"));
    world.want("b", "nodes", message(NotificationEvent::Node, MessageState::Failure, "n1"));
    world.run();
    world.end(failed(Some(60)));
    world.run();
    let id = world.entry("a", "s").attempt.clone().unwrap().id;
    world.now = at(0);
    assert_eq!(world.run(), Some(at(10)));
    world.after(10);
    world.run();
    assert_eq!(world.delivered(), ["n1"]);
    world.after(3_590);
    world.run();
    assert_eq!(world.delivered(), ["n1", "one"]);
    assert_eq!(world.flying[1].id, id);
}

// Would fail with the place before taken for the one that received the last message.
#[test]
fn a_target_with_other_settings_has_received_nothing() {
    let mut world = World::new();
    world.want("a", "s", status("one"));
    world.run();
    let first = world.end(Outcome::Accepted).unwrap();
    world.run();
    world.targets.insert("a".to_owned(), "another room".to_owned());
    world.run();
    assert!(world.snapshot.outbox.is_empty());
    world.run();
    let again = world.end(Outcome::Accepted).unwrap();
    assert_eq!((again.message.title.as_str(), again.may_have_arrived), ("one", true));
    assert_ne!(again.id, first.id);
}

#[test]
fn a_state_is_read_back_unless_another_one_was_set_last() {
    let mut world = World::new();
    let mut arrived = Vec::new();
    for title in ["one", "two"] {
        world.want("a", "s", status(title));
        world.run();
        arrived.push(world.end(Outcome::Accepted).unwrap().may_have_arrived);
        world.run();
    }
    world.wanted.clear();
    world.run();
    world.want("a", "s", status("two"));
    world.run();
    arrived.push(world.end(Outcome::Accepted).unwrap().may_have_arrived);
    assert_eq!(arrived, [true, false, true], "the entry was forgotten meanwhile");
}

// Would fail with the job that waits longer.
#[test]
fn problems_and_verdicts_come_before_jobs_and_etcd_comes_first() {
    let mut world = World::new();
    for (subject, event) in [
        ("job", NotificationEvent::Job),
        ("nodes", NotificationEvent::Node),
        ("verdict", NotificationEvent::Verdict),
    ] {
        world.want("b", subject, message(event, MessageState::Failure, subject));
    }
    world.run();
    assert_eq!(world.delivered(), ["verdict"]);
    world.after(10);
    world.want("b", "etcd", message(NotificationEvent::Etcd, MessageState::Failure, "etcd"));
    for title in ["etcd", "nodes", "job"] {
        world.end(Outcome::Accepted);
        world.run();
        assert_eq!(world.delivered(), [title]);
    }
}

// Would fail with the message that was sent left as the last word: the failure may have arrived.
#[test]
fn a_message_that_is_wanted_again_is_sent_again_if_another_may_have_arrived_since() {
    let mut world = World::new();
    for title in ["good", "bad", "good"] {
        world.want("a", "s", status(title));
        world.run();
        if title == "good" {
            assert_eq!(world.delivered(), ["good"]);
            world.end(Outcome::Accepted);
        } else {
            world.end(failed(None));
        }
    }
    world.run();
    assert!(!world.entry("a", "s").is_owed());
    let ids: BTreeSet<&String> = world.ids.keys().collect();
    assert_eq!(ids.len(), 3, "the second good is another message");
    world.targets.clear();
    world.run();
    assert!(world.snapshot.outbox.is_empty(), "the target is gone");
}

#[test]
fn a_message_about_a_subject_that_was_forgotten_has_a_new_id() {
    let mut world = World::new();
    world.want("a", "s", status("one"));
    world.run();
    let first = world.end(Outcome::Accepted).unwrap();
    world.run();
    world.wanted.clear();
    world.run();
    assert!(world.snapshot.outbox.is_empty());
    world.after(60);
    world.want("a", "s", status("one"));
    world.run();
    assert_ne!(world.end(Outcome::Accepted).unwrap().id, first.id);
    assert_eq!(first.id.len(), 32);
}

// Would fail with new subjects that wait for ever.
#[test]
fn a_target_has_a_thousand_entries_at_most_and_what_was_tried_in_vain_gives_way() {
    let mut world = World::new();
    world.want("b", "s", status("one"));
    for number in 0..1_100 {
        world.want("a", &format!("s{number:04}"), status("one"));
    }
    world.run();
    let count = |world: &World| world.snapshot.outbox.keys().filter(|key| key.0 == "a").count();
    assert_eq!(count(&world), ENTRIES_MAX);
    world.end(failed(None));
    world.after(3_599);
    world.run();
    assert!(!world.snapshot.outbox.contains_key(&("a".to_owned(), "s1050".to_owned())));
    world.after(1);
    world.end(failed(None));
    world.run();
    assert_eq!(count(&world), ENTRIES_MAX);
    assert!(world.snapshot.outbox.contains_key(&("a".to_owned(), "s1050".to_owned())));
    // Those that gave way come back in the places of others, each once in an hour.
    for _ in 0..12 {
        world.run();
    }
    let revision = world.snapshot.revision;
    world.run();
    assert_eq!(world.snapshot.revision, revision, "it comes to rest");
}

#[test]
fn a_link_leads_to_the_page_of_the_message() {
    let link = |base, page| super::link(base, page);
    assert_eq!(
        link(Some("https://k/ui/"), "/history/main/3").as_deref(),
        Some("https://k/ui/history/main/3")
    );
    assert_eq!((link(None, "/"), link(Some("https://k"), "")), (None, None));
}

/// An event between two runs.
#[derive(Debug, Clone)]
enum Act {
    Want {
        target: usize,
        subject: usize,
        title: usize,
    },
    /// Nothing is to be sent about the subject any more.
    Forget {
        target: usize,
        subject: usize,
    },
    /// The oldest delivery under way ends. `arrives`: the forge has the state, whatever the answer was.
    End {
        arrives: bool,
        retry_after: Option<u64>,
    },
    Accept,
    /// Another leader has the outbox alone.
    Kill {
        arrives: bool,
    },
    /// etcd refuses the next writes.
    Refuse,
    Wait(i64),
}

fn act() -> impl Strategy<Value = Act> {
    let end = (any::<bool>(), prop::option::of(1_u64..4_000));
    prop_oneof![
        4 => (0_usize..2, 0_usize..2, 0_usize..3).prop_map(|(target, subject, title)| {
            Act::Want { target, subject, title }
        }),
        1 => (0_usize..2, 0_usize..2).prop_map(|(target, subject)| Act::Forget { target, subject }),
        2 => end.prop_map(|(arrives, retry_after)| Act::End { arrives, retry_after }),
        3 => Just(Act::Accept),
        1 => any::<bool>().prop_map(|arrives| Act::Kill { arrives }),
        1 => Just(Act::Refuse),
        2 => (1_i64..700).prop_map(Act::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_last_message_always_arrives_and_no_state_is_set_twice(acts in prop::collection::vec(act(), 1..60)) {
        let (mut world, mut forge) = (World::new(), Forge::default());
        for act in acts {
            match act {
                Act::Want { target, subject, title } => {
                    let (target, subject) = (["a", "b"][target], ["s", "t"][subject]);
                    world.want(target, subject, status(["one", "two", "three"][title]));
                }
                Act::Forget { target, subject } => {
                    let key = (["a", "b"][target].to_owned(), ["s", "t"][subject].to_owned());
                    world.wanted.remove(&key);
                }
                Act::End { arrives, retry_after } => {
                    if let Some(delivery) = world.end(failed(retry_after)).filter(|_| arrives) {
                        forge.accept(&delivery)?;
                    }
                }
                Act::Accept => {
                    if let Some(delivery) = world.end(Outcome::Accepted) {
                        forge.accept(&delivery)?;
                    }
                }
                Act::Kill { arrives } => {
                    for delivery in std::mem::take(&mut world.flying).iter().filter(|_| arrives) {
                        forge.accept(delivery)?;
                    }
                    world.memory = Memory::default();
                }
                Act::Refuse => world.is_refusing = true,
                Act::Wait(seconds) => world.after(seconds),
            }
            world.run();
        }
        for _ in 0..50 {
            while let Some(delivery) = world.end(Outcome::Accepted) {
                forge.accept(&delivery)?;
            }
            world.run();
            world.after(600);
        }
        for (key, message) in &world.wanted {
            prop_assert_eq!(forge.states.get(key), Some(message));
        }
        prop_assert!(world.snapshot.outbox.values().all(|entry| !entry.value.is_owed()));
        prop_assert_eq!(world.run(), None, "it comes to rest");
    }
}
