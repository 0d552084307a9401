//! Plans as tables, and the loop on members and a store in memory.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop as _, Nudge, Observation, lock};
use schema::keys::{Key, ROOT};
use schema::records::{DiskSpace, EtcdMember, EtcdUpkeep, NO_SPACE};
use schema::store::election::FenceReader;
use schema::store::events::EventRecorder;
use schema::store::memory::MemoryStore;
use schema::store::reflector::SnapshotReader;
use schema::store::{SharedStore, StoreError, reflector};
use schema::testing::take_lead;
use tokio_util::sync::CancellationToken;

use super::plan::{Memory, Observed, PendingRequest, Role, Step, UpkeepPlan, plan};
use super::{DefragRequests, Members, UpkeepDeps, UpkeepLoop};

const MIB: u64 = 1 << 20;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_900_000_000 + seconds).unwrap()
}

/// A member of 1,000 MiB quota, at revision 100.
fn member(id: &str, size: u64, in_use: u64) -> EtcdMember {
    EtcdMember {
        id: id.to_owned(),
        name: id.to_owned(),
        endpoint: format!("http://{id}:2379"),
        size_bytes: size * MIB,
        in_use_bytes: in_use * MIB,
        quota_bytes: Some(1_000 * MIB),
        revision: 100,
        ..EtcdMember::default()
    }
}

fn full(id: &str, size: u64, in_use: u64) -> EtcdMember {
    EtcdMember { alarms: vec![NO_SPACE.to_owned()], ..member(id, size, in_use) }
}

fn silent(member: EtcdMember) -> EtcdMember {
    EtcdMember { error: Some("connection refused".to_owned()), ..member }
}

/// A leader's view of its own etcd.
fn seen(members: Vec<EtcdMember>) -> Observed {
    Observed {
        members,
        is_on: true,
        role: Role::Leads,
        endpoints: vec!["http://a:2379".to_owned()],
        memory: Memory::default(),
        record: None,
        request: None,
        own_disk: ("r0".to_owned(), None),
        node_disks: BTreeMap::new(),
    }
}

fn compact(revision: i64) -> Option<Step> {
    Some(Step::Compact { revision })
}

fn defragment(member: &str) -> Option<Step> {
    Some(Step::Defragment { member: member.to_owned() })
}

fn disarm(member: &str) -> Option<Step> {
    Some(Step::Disarm { member: member.to_owned() })
}

fn reasons(plan: &UpkeepPlan) -> Vec<&'static str> {
    plan.problems.iter().map(|problem| problem.reason).collect()
}

#[test]
fn the_history_is_compacted_every_five_minutes_to_what_was_newest_five_minutes_ago() {
    let mut memory = Memory::default();
    for (seconds, revision) in [(0, 10), (10, 11), (40, 12), (290, 50), (330, 60)] {
        memory.note_revision(revision, at(seconds));
    }
    let at_300 = |memory: &Memory, record: Option<EtcdUpkeep>, seconds: i64| {
        let seen = Observed { memory: memory.clone(), record, ..seen(vec![member("a", 1, 1)]) };
        plan(&seen, at(seconds)).step
    };
    assert_eq!(at_300(&memory, None, 339), compact(10), "the one at 40 s is not old enough");
    assert_eq!(at_300(&memory, None, 340), compact(10), "it is only noted with the next revision");
    memory.note_revision(70, at(345));
    assert_eq!(at_300(&memory, None, 345), compact(12));
    let compacted = |seconds, revision| {
        let compacted_at = Some(at(seconds));
        Some(EtcdUpkeep { compacted_at, compacted_revision: revision, ..EtcdUpkeep::default() })
    };
    for (record, expected) in [
        (compacted(44, 5), compact(12)),
        // The former leader did it four minutes ago.
        (compacted(105, 5), None),
        (compacted(0, 12), None),
        // The clock was set back, and etcd was lost.
        (compacted(9_999, 5), compact(12)),
        (compacted(0, 5_000), compact(12)),
    ] {
        assert_eq!(at_300(&memory, record.clone(), 345), expected, "{record:?}");
    }
    // A process that has just started knows no revision of that age, nor does one whose etcd is another.
    assert_eq!(at_300(&Memory::default(), None, 345), None);
    memory.note_revision(3, at(350));
    assert_eq!(memory.revisions, VecDeque::from([(at(350), 3)]));
}

#[test]
fn only_the_leader_acts_and_only_on_an_etcd_of_its_own_unless_nobody_can_lead() {
    let half_free = || vec![member("a", 100, 50)];
    for (role, is_on, members, acts) in [
        (Role::Leads, true, half_free(), true),
        (Role::Leads, false, half_free(), false),
        (Role::Follows, true, half_free(), false),
        (Role::Leaderless, true, half_free(), false),
        (Role::Follows, true, vec![full("a", 1_000, 10)], false),
        (Role::Leaderless, true, vec![full("a", 1_000, 10)], true),
        (Role::Leaderless, false, vec![full("a", 1_000, 10)], false),
    ] {
        let seen = Observed { role, is_on, ..seen(members) };
        assert_eq!(plan(&seen, at(0)).step.is_some(), acts, "{role:?} {is_on} {:?}", seen.members);
    }
}

#[test]
fn members_are_defragmented_one_by_one_the_leader_last() {
    let leader = |member| EtcdMember { is_leader: true, ..member };
    let tried = |seconds: &[(&str, i64)]| Memory {
        defragmentation_tried: seconds.iter().map(|(id, seconds)| ((*id).to_owned(), at(*seconds))).collect(),
        ..Memory::default()
    };
    let half = || vec![leader(member("a", 100, 50)), member("b", 100, 40), member("c", 100, 60)];
    for (members, memory, expected) in [
        (half(), tried(&[]), defragment("b")),
        (half(), tried(&[("b", 900)]), defragment("a")),
        (half(), tried(&[("a", 900), ("b", 401)]), None),
        (half(), tried(&[("a", 900), ("b", 400)]), defragment("b")),
        // The others must carry on meanwhile.
        (vec![member("a", 100, 50), silent(member("b", 1, 1))], tried(&[]), None),
        (vec![member("a", 10, 1)], tried(&[]), None),
        (vec![member("a", 801, 600)], tried(&[]), defragment("a")),
    ] {
        let seen = Observed { memory, ..seen(members) };
        assert_eq!(plan(&seen, at(1_000)).step, expected, "{:?}", seen.memory);
    }
}

#[test]
fn a_request_compacts_then_defragments_every_member_that_answers_and_is_answered_then() {
    let request = Some(PendingRequest { since: at(10), revision: 7 });
    let members = || vec![member("a", 1, 1), member("b", 1, 1), silent(member("c", 1, 1))];
    let mut memory = Memory { compaction_tried: Some(at(9)), ..Memory::default() };
    let step = |memory: &Memory| {
        let plan = plan(&Observed { request, memory: memory.clone(), ..seen(members()) }, at(20));
        assert_eq!(plan.answered.is_some(), plan.step.is_none());
        assert_eq!(plan.record.is_some_and(|record| record.answered == 7), plan.step.is_none());
        plan.step
    };
    assert_eq!(step(&memory), compact(100));
    memory.compaction_tried = Some(at(11));
    assert_eq!(step(&memory), defragment("a"));
    memory.defragmentation_tried.insert("a".to_owned(), at(12));
    assert_eq!(step(&memory), defragment("b"));
    memory.defragmentation_tried.insert("b".to_owned(), at(13));
    assert_eq!(step(&memory), None);
}

#[test]
fn a_full_etcd_is_compacted_defragmented_and_let_go_on() {
    let mut memory = Memory { full_since: Some(at(0)), ..Memory::default() };
    let step = |members: Vec<EtcdMember>, memory: &Memory, seconds: i64| {
        let plan = plan(&Observed { memory: memory.clone(), ..seen(members) }, at(seconds));
        assert_eq!(plan.record, None, "nothing can be written");
        plan.step
    };
    let at_quota = || vec![full("a", 1_000, 990)];
    assert_eq!(step(at_quota(), &memory, 1), compact(100));
    (memory.compaction_tried, memory.compacted_revision) = (Some(at(1)), 100);
    assert_eq!(step(at_quota(), &memory, 1), defragment("a"));
    memory.defragmentation_tried.insert("a".to_owned(), at(2));
    assert_eq!(step(vec![full("a", 899, 890)], &memory, 2), disarm("a"));
    // Its values alone fill it: tried again only once something is deleted, and not at once.
    assert_eq!(step(vec![full("a", 900, 900)], &memory, 60), None);
    let deleted = || vec![EtcdMember { revision: 101, ..full("a", 1_000, 990) }];
    assert_eq!(step(deleted(), &memory, 30), None);
    assert_eq!(step(deleted(), &memory, 31), compact(101));
    // All members must have room, but for those that do not answer.
    assert_eq!(step(vec![full("a", 10, 1), silent(member("b", 1_000, 1))], &memory, 2), disarm("a"));
    let mut tried = memory.clone();
    tried.defragmentation_tried.insert("b".to_owned(), at(2));
    assert_eq!(step(vec![full("a", 10, 1), member("b", 950, 1)], &tried, 2), None);
    // Without a quota, a defragmentation tells.
    let unknown = || vec![EtcdMember { quota_bytes: None, ..full("a", 10, 1) }];
    assert_eq!(step(unknown(), &memory, 2), disarm("a"));
    memory.defragmentation_tried.clear();
    assert_eq!(step(unknown(), &memory, 2), defragment("a"));
}

#[test]
fn problems_are_named_with_their_remedy_and_told_once() {
    let low = DiskSpace { total_bytes: 1_000 * MIB, free_bytes: 99 * MIB };
    let node_disks = BTreeMap::from([("n1".to_owned(), low)]);
    let own_disk = ("r0".to_owned(), Some(low));
    let nearly = Observed { node_disks, own_disk, ..seen(vec![member("a", 800, 790)]) };
    let plan_of = |seen: &Observed| plan(seen, at(60));
    let first = plan_of(&nearly);
    assert_eq!(reasons(&first), ["EtcdNearlyFull", "DiskNearlyFull", "DiskNearlyFull"]);
    assert_eq!(first.events.len(), 3);
    let line = "the disk of its state directory has 9 % free (99 MiB of 1000 MiB)";
    assert!(first.problems[1].message.starts_with(line), "{:?}", first.problems);
    let mut again = nearly.clone();
    assert_eq!(first.reported.len(), 3);
    again.memory.reported.clone_from(&first.reported);
    assert!(plan_of(&again).events.is_empty());
    // Nothing is told while etcd is full, so it is news afterwards.
    let meanwhile = plan_of(&Observed { members: vec![full("a", 1_000, 1)], ..nearly.clone() });
    assert_eq!((meanwhile.events.len(), meanwhile.reported.len()), (0, 0));
    // A follower tells of its own disk only.
    let told = plan_of(&Observed { role: Role::Follows, ..nearly }).events;
    assert_eq!(told.iter().map(|event| event.object_kind.as_str()).collect::<Vec<_>>(), ["Reconciler"]);
    assert!(plan_of(&seen(vec![member("a", 799, 790)])).problems.is_empty());

    for (members, is_on, expected) in [
        (vec![full("a", 1_000, 10)], true, "the leader compacts and defragments it"),
        (
            vec![full("a", 1_000, 950)],
            true,
            "its values alone take 950 MiB: raise the quota with etcd's --quota",
        ),
        (vec![full("a", 1_000, 10)], false, "run 'etcdctl --endpoints=http://a:2379 compact 100 && etcdctl"),
        (vec![silent(full("a", 1_000, 10)), member("b", 1, 1)], true, "etcd refuses writes"),
        (
            vec![member("a", 1, 1), silent(member("b", 1, 1))],
            true,
            "member b does not answer: connection refused",
        ),
    ] {
        let plan = plan_of(&Observed { is_on, ..seen(members) });
        assert!(plan.problems[0].message.contains(expected), "{:?}", plan.problems);
    }
    // That etcd was full is told when it can be written.
    let mut full_now = seen(vec![full("a", 1_000, 10)]);
    full_now.memory.full_since = Some(at(0));
    assert!(plan_of(&full_now).events.is_empty());
    full_now.members = vec![member("a", 10, 10)];
    let told = plan_of(&full_now).events;
    assert_eq!(told[0].reason, "EtcdFull");
    assert!(told[0].message.contains("for 60 s"), "{told:?}");
}

/// A member of etcd in memory. Its file shrinks to what is in use when it is defragmented.
#[derive(Clone)]
struct FakeMembers(Arc<Mutex<(EtcdMember, Vec<Step>)>>);

#[async_trait]
impl Members for FakeMembers {
    async fn read(&mut self) -> Vec<EtcdMember> {
        vec![lock(&self.0).0.clone()]
    }

    async fn compact(&mut self, revision: i64) -> Result<(), StoreError> {
        lock(&self.0).1.push(Step::Compact { revision });
        Ok(())
    }

    async fn defragment(&mut self, member: &str) -> Result<(), StoreError> {
        let mut state = lock(&self.0);
        state.0.size_bytes = state.0.in_use_bytes;
        state.1.push(Step::Defragment { member: member.to_owned() });
        Ok(())
    }

    async fn disarm(&mut self, member: &str) -> Result<(), StoreError> {
        let mut state = lock(&self.0);
        state.0.alarms.clear();
        state.1.push(Step::Disarm { member: member.to_owned() });
        Ok(())
    }
}

struct Kit {
    members: FakeMembers,
    requests: DefragRequests,
    store: SharedStore,
    snapshot: SnapshotReader,
    the_loop: UpkeepLoop,
    stop: CancellationToken,
}

impl Drop for Kit {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Kit {
    async fn new(member: EtcdMember, leads: bool) -> Self {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let stop = CancellationToken::new();
        let fence = if leads { Some(take_lead(store.as_ref()).await) } else { None };
        let (snapshot, reflecting) =
            reflector::reflect(Arc::clone(&store), vec![ROOT.to_owned()], stop.clone());
        tokio::spawn(reflecting);
        let members = FakeMembers(Arc::new(Mutex::new((member, Vec::new()))));
        let requests = DefragRequests::new(Arc::clone(&store), "r0".to_owned(), Nudge::default());
        let deps = UpkeepDeps {
            store: Arc::clone(&store),
            snapshot: snapshot.clone(),
            fence: FenceReader::fixed(fence),
            events: EventRecorder::disabled(),
            requests: requests.clone(),
            endpoints: vec!["http://a:2379".to_owned()],
            state_dir: Path::new("/").to_owned(),
            is_on: true,
        };
        let the_loop = UpkeepLoop::on(deps, Box::new(members.clone()));
        Self { members, requests, store, snapshot, the_loop, stop }
    }

    /// Runs until there is nothing left to do; returns the steps.
    async fn settle(&mut self) -> Vec<Step> {
        for _ in 0..10 {
            let Observation::Ready(seen) = self.the_loop.observe().await.unwrap() else {
                panic!("not ready")
            };
            let plan = UpkeepLoop::plan(&seen, Timestamp::now());
            let is_done = plan.step.is_none();
            let done = self.the_loop.act(&seen, plan).await;
            self.the_loop.report(seen, done).await.unwrap();
            if is_done {
                break;
            }
        }
        std::mem::take(&mut lock(&self.members.0).1)
    }
}

#[tokio::test]
async fn a_request_in_etcd_is_carried_out_once_and_answered() {
    let mut kit = Kit::new(member("a", 10, 1), true).await;
    assert_eq!(kit.settle().await, []);
    let revision = kit.requests.request(Timestamp::now()).await.unwrap();
    let mut snapshot = kit.snapshot.clone();
    while snapshot.current().revision < revision {
        snapshot.changed().await;
    }
    let expected = [compact(100), defragment("a")].map(Option::unwrap);
    assert_eq!(kit.settle().await, expected);
    while snapshot.current().etcd_upkeep.get(&()).is_none_or(|record| record.value.answered < revision) {
        snapshot.changed().await;
    }
    assert_eq!(kit.settle().await, []);
    let state = kit.the_loop.state().borrow().clone();
    assert_eq!((state.members[0].size_bytes, state.acts), (MIB, true));
}

#[tokio::test]
async fn a_full_etcd_without_a_leader_is_emptied_on_a_request_that_could_not_be_written() {
    let mut kit = Kit::new(full("a", 1_000, 1), false).await;
    let expected = [compact(100), defragment("a"), disarm("a")].map(Option::unwrap);
    let before = Timestamp::now();
    kit.requests.request_here(before);
    assert_eq!(kit.settle().await[..], expected[..]);
    // Where another leads, it is that one's work.
    let other = take_lead(kit.store.as_ref()).await;
    lock(&kit.members.0).0.alarms.push(NO_SPACE.to_owned());
    assert_eq!(kit.settle().await, []);
    assert!(!kit.the_loop.state().borrow().acts);
    assert!(kit.the_loop.state().borrow().full().is_some());
    assert!(kit.store.get(&Key::EtcdUpkeep.to_string()).await.unwrap().is_none(), "{other:?}");
}
