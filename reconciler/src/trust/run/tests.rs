//! Plans as tables, and the loop on a store and users in memory, with certificates of a real authority.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::codec::{decode, encode};
use schema::control::{Loop as _, LoopError, Observation, lock};
use schema::keys::{Key, ROOT};
use schema::kinds::metadata::GONE_ANNOTATION;
use schema::kinds::node::NodeSpec;
use schema::object::Object;
use schema::records::{EtcdMemberReport, IdentityRecord, RevokedIdentity, Roll, TrustRecord};
use schema::snapshot::{Change, Snapshot};
use schema::store::election::{Fence, FenceReader};
use schema::store::etcd::{Access, AuthState};
use schema::store::events::EventRecorder;
use schema::store::memory::MemoryStore;
use schema::store::reflector::{SnapshotPublisher, SnapshotReader};
use schema::store::{KeyValue, Op, Store as _};
use schema::testing::{SnapshotBuilder, at, object_of, take_lead};
use schema::trust::{LEAF_DAYS, TlsFiles};
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use super::plan::roll::ObservedMember;
use super::plan::{Observed, ObservedOwnMember, ObservedUsers, OwnIdentity, TrustPlan, plan};
use super::{TrustDeps, TrustLoop};
use crate::crypt;
use crate::trust::fake::{FakeAuth, FakeMember};
use crate::trust::setup::{TrustSettings, open};

const URL: &str = "https://10.0.0.1:7070";

/// This reconciler, a week before the end of its certificate.
pub(super) fn own() -> OwnIdentity {
    OwnIdentity {
        identity: "reconciler-r1".parse().unwrap(),
        key: "sha256:r1".to_owned(),
        serial: "01".to_owned(),
        issuer: "d1".to_owned(),
        signer: "CA1".to_owned(),
        not_after: at(7 * 86_400),
        renew_at: at(4 * 86_400),
        member: Some(ObservedOwnMember {
            name: "minik8s".to_owned(),
            issuer: "d1".to_owned(),
            renew_at: at(5 * 86_400),
            refused: BTreeMap::new(),
            rolled: 0,
        }),
        authority: "CA1".to_owned(),
        authority_ends_at: at(3650 * 86_400),
        authority_ends_soon_at: at(3285 * 86_400),
        trusted: vec!["CA1".to_owned()],
        node: None,
        revoked: BTreeMap::new(),
        api: Some(URL.to_owned()),
        recipient: None,
    }
}

pub(super) fn identity_record(key: &str) -> IdentityRecord {
    IdentityRecord {
        key: key.to_owned(),
        serials: [("01".to_owned(), at(7 * 86_400))].into(),
        issuer: "d1".to_owned(),
        not_after: at(7 * 86_400),
        joined_at: at(0),
        recipient: None,
        api: key.ends_with("r1").then(|| URL.to_owned()),
        authorities: key.ends_with("r1").then(|| "d1".to_owned()).into_iter().collect(),
        etcd_member: key.ends_with("r1").then(|| EtcdMemberReport {
            name: "minik8s".to_owned(),
            rolled: 0,
            issuer: "d1".to_owned(),
        }),
        confirmed_roll: None,
    }
}

/// A cluster of this reconciler and a node, with the record that belongs to it.
pub(super) fn cluster() -> SnapshotBuilder {
    SnapshotBuilder::new()
        .put(&Key::Identity("reconciler-r1".to_owned()), &identity_record("sha256:r1"))
        .put(&Key::Identity("node-n1".to_owned()), &identity_record("sha256:n1"))
        .put(&Key::Trust, &trust_record())
}

pub(super) fn trust_record() -> TrustRecord {
    TrustRecord {
        authorities: vec!["CA1".to_owned()],
        revoked: BTreeMap::new(),
        etcd: vec!["https://10.0.0.1:2379".to_owned()],
        reconcilers: vec![URL.to_owned()],
        roll: None,
    }
}

pub(super) fn seen(builder: SnapshotBuilder) -> Observed {
    Observed {
        lost: Vec::new(),
        snapshot: Arc::new(builder.snapshot),
        leads: true,
        own: own(),
        etcd: vec!["https://10.0.0.1:2379".to_owned()],
        members: Ok(vec![ObservedMember { name: "minik8s".to_owned(), error: None }]),
        owns_etcd: true,
        digests: (1..=9).map(|number| (format!("CA{number}"), format!("d{number}"))).collect(),
        users: ObservedUsers::NotDue,
        recorded: BTreeSet::new(),
        verified: BTreeSet::new(),
        enables_auth: false,
        denied: None,
    }
}

pub(super) fn revoked_row(keys: BTreeMap<String, Timestamp>) -> RevokedIdentity {
    RevokedIdentity { keys, serials: BTreeMap::new(), ..RevokedIdentity::default() }
}

pub(super) fn gone(node: &str) -> Object {
    let mut object = object_of(node, NodeSpec::default());
    object.metadata.annotations.insert(GONE_ANNOTATION.into(), "true".into());
    object
}

pub(super) fn reasons(plan: &TrustPlan) -> Vec<&'static str> {
    plan.problems.iter().map(|problem| problem.reason).collect()
}

pub(super) fn record_of(plan: &TrustPlan) -> TrustRecord {
    decode(&plan.record.as_ref().expect("a record is written").value).unwrap()
}

pub(super) fn is_quiet(plan: &TrustPlan) -> bool {
    schema::control::Plan::is_empty(plan) && plan.problems.is_empty()
}

#[test]
fn nothing_is_done_until_a_certificate_is_past_two_thirds() {
    let seen = seen(cluster());
    let early = plan(&seen, at(10));
    assert!(is_quiet(&early), "{early:?}");
    assert_eq!(schema::control::Plan::replan_at(&early), Some(at(4 * 86_400)));
    assert!(plan(&seen, at(4 * 86_400)).renews);
    let own = OwnIdentity { renew_at: at(6 * 86_400), ..own() };
    assert!(plan(&Observed { own, ..seen }, at(5 * 86_400)).renews, "that of etcd");
}

#[test]
fn the_own_record_follows_the_certificate_and_keeps_when_it_joined() {
    let own = OwnIdentity { serial: "02".to_owned(), not_after: at(9 * 86_400), ..own() };
    let planned = plan(&Observed { own, leads: false, ..seen(cluster()) }, at(10));
    let Some((_, Op::Put { key, value, .. })) = planned.own_record else { panic!("a put") };
    let record: IdentityRecord = decode(&value).unwrap();
    assert_eq!(key, "/minik8s/identities/reconciler-r1");
    assert_eq!((record.not_after, record.joined_at), (at(9 * 86_400), at(0)));
    let serials = [("01".to_owned(), at(7 * 86_400)), ("02".to_owned(), at(9 * 86_400))];
    assert_eq!(record.serials, serials.into(), "the former certificate has not ended");
}

#[test]
fn a_record_of_another_machine_is_not_overwritten() {
    let other = identity_record("sha256:other");
    let builder = cluster().put(&Key::Identity("reconciler-r1".to_owned()), &other);
    let planned = plan(&seen(builder), at(10));
    assert!(planned.own_record.is_none());
    assert_eq!(reasons(&planned), ["NameTaken"]);
}

#[test]
fn authorities_of_the_record_are_trusted_besides_the_own_one() {
    let record = TrustRecord { authorities: vec!["CA1".to_owned(), "CA2".to_owned()], ..trust_record() };
    let planned = plan(&Observed { leads: false, ..seen(cluster().put(&Key::Trust, &record)) }, at(10));
    assert_eq!(planned.trust.unwrap().authorities, ["CA1", "CA2"]);
    let own = OwnIdentity { trusted: vec!["CA2".to_owned(), "CA1".to_owned()], ..own() };
    let reported = IdentityRecord {
        authorities: vec!["d2".to_owned(), "d1".to_owned()],
        ..identity_record("sha256:r1")
    };
    let builder = cluster().put(&Key::Trust, &record);
    let builder = builder.put(&Key::Identity("reconciler-r1".to_owned()), &reported);
    let settled = Observed { own, leads: false, ..seen(builder) };
    assert!(is_quiet(&plan(&settled, at(10))), "the order is of no importance");
}

#[test]
fn an_authority_that_is_not_the_clusters_changes_nobodys_trust() {
    let record = TrustRecord { authorities: vec!["CA9".to_owned()], ..trust_record() };
    let planned = plan(&seen(cluster().put(&Key::Trust, &record)), at(10));
    assert_eq!(reasons(&planned), ["ForeignAuthority"]);
    assert!(planned.record.is_none() && planned.trust.is_none());
    let users = ObservedUsers::Found(AuthState::default());
    let builder = cluster().put(&Key::Trust, &record).object(&gone("n1"));
    let planned = plan(&Observed { users, ..seen(builder) }, at(10));
    assert!(planned.removals.is_empty() && planned.users.is_empty());
}

#[test]
fn the_end_of_the_authority_is_a_problem_in_the_last_tenth_of_its_time() {
    let own = |days: i64| OwnIdentity { authority_ends_soon_at: at(days * 86_400), ..own() };
    let found = |days| reasons(&plan(&Observed { own: own(days), ..seen(cluster()) }, at(10)));
    assert_eq!((found(0), found(1)), (vec!["AuthorityEnds"], vec![]));
}

#[test]
fn who_joined_just_now_keeps_its_user_and_who_was_removed_does_not() {
    let keys = BTreeMap::from([("sha256:n3".to_owned(), at(100))]);
    let builder = cluster().put(&Key::RevokedIdentity("node-n3".to_owned()), &revoked_row(keys));
    let user = |name: &str| (name.to_owned(), BTreeSet::from([name.to_owned(), "x".to_owned()]));
    let found =
        AuthState { users: BTreeMap::from([user("node-n2"), user("node-n3")]), ..AuthState::default() };
    let seen = Observed {
        users: ObservedUsers::Found(found),
        recorded: BTreeSet::from(["node-n2".parse().unwrap()]),
        verified: BTreeSet::from(["node-n1".parse().unwrap(), "reconciler-r1".parse().unwrap()]),
        ..seen(builder)
    };
    let steps: Vec<String> =
        plan(&seen, at(10)).users.iter().map(|planned| planned.step.to_string()).collect();
    let about = |name: &str| steps.iter().filter(|step| step.contains(name)).collect::<Vec<_>>();
    assert_eq!(about("node-n3"), ["user delete node-n3"]);
    assert!(!about("node-n2").is_empty() && !steps.contains(&"user delete node-n2".to_owned()));
    assert!(about("node-n1").is_empty() && about("reconciler-r1").is_empty(), "they are verified: {steps:?}");
}

fn with_roll(number: u64, turn: Option<&str>) -> SnapshotBuilder {
    let roll = Roll { number, turn: turn.map(str::to_owned), why: "to read the list".to_owned() };
    cluster().put(&Key::Trust, &TrustRecord { roll: Some(roll), ..trust_record() })
}

#[test]
fn a_removed_node_begins_a_roll_and_its_turn_waits_for_etcds_users() {
    let year = SignedDuration::from_hours(24 * 365);
    let keys = BTreeMap::from([("sha256:n2".to_owned(), at(100) + year)]);
    let revoked = |builder: SnapshotBuilder| {
        let keys = revoked_row(keys.clone());
        builder.put(&Key::RevokedIdentity("node-n2".to_owned()), &keys)
    };
    let roll = record_of(&plan(&seen(revoked(cluster())), at(10))).roll.unwrap();
    assert_eq!((roll.number, roll.turn), (1, None));
    assert!(roll.why.contains("node-n2"), "{}", roll.why);
    let user = BTreeMap::from([("node-n2".to_owned(), BTreeSet::from(["node-n2".to_owned()]))]);
    let found = ObservedUsers::Found(AuthState { users: user, ..AuthState::default() });
    for (users, has_turn) in
        [(found, false), (ObservedUsers::Failed("x".to_owned()), false), (ObservedUsers::NotDue, true)]
    {
        let planned = plan(&Observed { users, ..seen(with_roll(1, None)) }, at(10));
        let turn = planned.record.as_ref().and_then(|_| record_of(&planned).roll.unwrap().turn);
        assert_eq!(turn.is_some(), has_turn, "{planned:?}");
        assert!(schema::control::Plan::replan_at(&planned).unwrap() < at(20), "somebody waits");
    }
}

#[test]
fn the_own_member_restarts_with_the_turn_alone_and_with_the_list_of_the_record() {
    let restarts = |seen: &Observed| plan(seen, at(10)).restart.is_some();
    for (turn, expected) in [(Some("reconciler-r1"), true), (Some("reconciler-r2"), false), (None, false)] {
        for leads in [true, false] {
            assert_eq!(restarts(&Observed { leads, ..seen(with_roll(1, turn)) }), expected, "{turn:?}");
        }
    }
    let its_turn = || seen(with_roll(1, Some("reconciler-r1")));
    let behind = OwnIdentity { trusted: vec!["CA1".to_owned(), "CA2".to_owned()], ..own() };
    assert!(!restarts(&Observed { own: behind, ..its_turn() }), "it would read another list");
    let mut done = own();
    done.member.as_mut().unwrap().rolled = 1;
    let planned = plan(&Observed { own: done, leads: false, ..its_turn() }, at(10));
    assert!(planned.restart.is_none(), "once");
    let Some((_, Op::Put { value, .. })) = planned.own_record else { panic!("a report") };
    assert_eq!(decode::<IdentityRecord>(&value).unwrap().etcd_member.unwrap().rolled, 1);
    assert!(!restarts(&Observed { own: OwnIdentity { member: None, ..own() }, ..its_turn() }));
}

#[test]
fn a_lost_record_is_written_with_all_that_is_trusted_here() {
    let own = OwnIdentity { trusted: vec!["CA2".to_owned(), "CA1".to_owned()], ..own() };
    let builder =
        SnapshotBuilder::new().put(&Key::Identity("reconciler-r1".to_owned()), &identity_record("sha256:r1"));
    let record = record_of(&plan(&Observed { own, ..seen(builder) }, at(10)));
    assert_eq!(record.authorities, ["CA1", "CA2"]);
    assert_eq!(record.roll.unwrap().number, 1);
}

/// A reconciler that may lead, over a store and users in memory.
pub(super) struct World {
    pub(super) dir: TempDir,
    pub(super) store: Arc<MemoryStore>,
    publisher: SnapshotPublisher,
    auth: FakeAuth,
    pub(super) member: FakeMember,
    pub(super) the_loop: TrustLoop,
}

impl World {
    async fn new(leads: bool, auth: FakeAuth, owns_etcd: bool) -> Self {
        let store = Arc::new(MemoryStore::new());
        let fence = take_lead(&*store).await;
        Self::over(store, tempfile::tempdir().unwrap(), ("r1", leads.then_some(fence)), auth, owns_etcd)
    }

    /// A reconciler of this name, with a state directory of its own.
    pub(super) fn over(
        store: Arc<MemoryStore>,
        dir: TempDir,
        (name, fence): (&str, Option<Fence>),
        auth: FakeAuth,
        owns_etcd: bool,
    ) -> Self {
        let (publisher, snapshot) = SnapshotReader::channel(Snapshot::default());
        let settings = TrustSettings {
            name: name.to_owned(),
            addresses: Vec::new(),
            authority_days: 3650,
            certificate_lifetime: SignedDuration::from_hours(24 * i64::from(LEAF_DAYS)),
        };
        let own = open(dir.path(), &settings, Timestamp::now()).unwrap();
        let tls: TlsFiles = own.keeper.dir().tls_files();
        let deps = TrustDeps {
            last_known: tokio::sync::watch::Sender::new(Arc::default()).subscribe(),
            store: store.clone(),
            snapshot,
            fence: FenceReader::fixed(fence),
            events: EventRecorder::disabled(),
            own,
            settings,
            state_dir: dir.path().to_owned(),
            access: Access::anonymous(&["https://10.0.0.1:2379".to_owned()]).with_tls(Some(tls)),
            api: Some(URL.to_owned()),
            recipient: Some(crypt::ensure_identity(&dir.path().join("identity"), "a test").unwrap()),
            identity_file: dir.path().join("identity"),
            owns_etcd,
        };
        let member = FakeMember::default();
        let the_loop = TrustLoop::on(deps, Box::new(auth.clone()), Box::new(member.clone()));
        Self { dir, store, publisher, auth, member, the_loop }
    }

    pub(super) async fn put(&self, key: Key, value: Vec<u8>) {
        let _ = self.store.txn(Vec::new(), vec![Op::put(key, value)]).await.unwrap();
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, key: Key) -> Option<T> {
        let found = self.store.get(&key.to_string()).await.unwrap()?;
        Some(decode(&found.value).unwrap())
    }

    /// Runs the loop on all that is in the store.
    pub(super) async fn run(&mut self) -> Result<(), LoopError> {
        let listing = self.store.list(ROOT).await.unwrap();
        let mut snapshot = Snapshot { synced: true, revision: listing.revision, ..Snapshot::default() };
        for KeyValue { key, value, create_revision, mod_revision } in listing.items {
            snapshot.apply(&Change::Put { key, value, create_revision, mod_revision });
        }
        self.publisher.publish(snapshot);
        let Observation::Ready(seen) = self.the_loop.observe().await? else { panic!("it is synced") };
        let planned = TrustLoop::plan(&seen, Timestamp::now());
        let done = self.the_loop.act(&seen, planned).await;
        self.the_loop.report(seen, done).await.map(drop)
    }

    fn steps(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.auth.steps))
    }
}

// Would fail after a week in which all was off: nobody reads etcd with certificates that have ended.
#[tokio::test]
async fn before_etcd_is_read_the_own_certificates_are_renewed_and_nothing_else_happens() {
    let mut world = World::new(true, FakeAuth::default(), true).await;
    let Observation::Ready(seen) = world.the_loop.observe().await.unwrap() else {
        panic!("it waits for etcd")
    };
    let late = Timestamp::now() + SignedDuration::from_hours(24 * 6);
    let mut planned = TrustLoop::plan(&seen, late);
    assert!(planned.renews);
    planned.renews = false;
    assert!(is_quiet(&planned), "{planned:?}");
}

#[tokio::test]
async fn a_leader_tells_all_whom_to_trust_and_then_is_quiet() {
    let mut world = World::new(true, FakeAuth::default(), false).await;
    world.run().await.unwrap();
    world.run().await.unwrap();
    let record: IdentityRecord = world.get(Key::Identity("reconciler-r1".to_owned())).await.unwrap();
    assert_eq!((record.api.as_deref(), &record.recipient), (Some(URL), &world.the_loop.deps.recipient));
    let trust: TrustRecord = world.get(Key::Trust).await.unwrap();
    assert_eq!(
        (trust.etcd, trust.reconcilers),
        (vec!["https://10.0.0.1:2379".to_owned()], vec![URL.to_owned()])
    );
    assert_eq!(trust.authorities, [world.the_loop.deps.own.authority().certificate().to_pem().unwrap()]);
    let steps = world.steps();
    assert!(steps.contains(&"user grant-role reconciler-r1 root".to_owned()), "{steps:?}");
    assert!(!steps.contains(&"auth enable".to_owned()), "this etcd is somebody else's");
    let before = world.store.list(ROOT).await.unwrap().revision;
    world.run().await.unwrap();
    assert_eq!(world.store.list(ROOT).await.unwrap().revision, before);
    assert_eq!((world.steps(), *lock(&world.auth.reads)), (Vec::new(), 1));
}

// Would fail by a leader that sends all nodes to its own loopback.
#[tokio::test]
async fn addresses_of_etcd_stay_published_while_its_members_are_not_listed() {
    let mut world = World::new(true, FakeAuth::default(), false).await;
    world.run().await.unwrap();
    world.the_loop.deps.access.endpoints = vec!["https://127.0.0.1:7079".to_owned()];
    world.the_loop.members = None;
    lock(&world.auth.members).clear();
    world.run().await.unwrap();
    let trust: TrustRecord = world.get(Key::Trust).await.unwrap();
    assert_eq!(trust.etcd, ["https://10.0.0.1:2379"]);
    let _ = world.store.txn(Vec::new(), vec![Op::delete(Key::Trust)]).await.unwrap();
    world.run().await.unwrap();
    let trust: TrustRecord = world.get(Key::Trust).await.unwrap();
    assert_eq!(trust.etcd, ["https://127.0.0.1:7079"]);
}

#[tokio::test]
async fn a_reconciler_that_learns_of_its_removal_ends() {
    let mut world = World::new(true, FakeAuth::default(), false).await;
    world.run().await.unwrap();
    assert!(!world.the_loop.removed().is_cancelled());
    let key = world.the_loop.deps.own.key().unwrap();
    let until = Timestamp::now() + SignedDuration::from_hours(1);
    let row = revoked_row(BTreeMap::from([(key.clone(), until)]));
    world.put(Key::RevokedIdentity("reconciler-r1".to_owned()), encode(&row).unwrap()).await;
    world.run().await.unwrap();
    assert!(world.the_loop.removed().is_cancelled() && world.the_loop.deps.own.is_removed().unwrap());
    let trust: TrustRecord = world.get(Key::Trust).await.unwrap();
    assert!(trust.revoked.contains_key(&key), "all others learn of it");
}

#[tokio::test]
async fn a_follower_keeps_its_own_record_and_nothing_else() {
    let mut world = World::new(false, FakeAuth::default(), true).await;
    world.run().await.unwrap();
    world.run().await.unwrap();
    assert!(world.get::<IdentityRecord>(Key::Identity("reconciler-r1".to_owned())).await.is_some());
    assert!(world.get::<TrustRecord>(Key::Trust).await.is_none());
    assert_eq!((world.steps(), *lock(&world.auth.reads)), (Vec::new(), 0));
}

#[tokio::test]
async fn authentication_of_an_own_etcd_is_switched_on_once_and_last() {
    let mut world = World::new(true, FakeAuth::default(), true).await;
    world.run().await.unwrap();
    assert_eq!(world.steps().last().map(String::as_str), Some("auth enable"));
    world.put(Key::Identity("node-n1".to_owned()), encode(&identity_record("sha256:n1")).unwrap()).await;
    world.run().await.unwrap();
    let steps = world.steps();
    assert!(steps.contains(&"user add node-n1 --no-password".to_owned()), "{steps:?}");
    assert!(!steps.contains(&"auth enable".to_owned()));
}

#[tokio::test]
async fn authentication_of_an_etcd_without_certificates_is_never_switched_on() {
    let mut world = World::new(true, FakeAuth::default(), true).await;
    world.the_loop.deps.access = Access::anonymous(&["http://127.0.0.1:2379".to_owned()]);
    world.run().await.unwrap();
    assert!(!world.steps().contains(&"auth enable".to_owned()));
}

// Seen through to the end: record, key, list of all, user.
#[tokio::test]
async fn a_node_that_git_declares_gone_can_do_nothing_any_more() {
    let mut world = World::new(true, FakeAuth::default(), false).await;
    let fresh = IdentityRecord { not_after: Timestamp::now(), ..identity_record("sha256:n1") };
    world.put(Key::Identity("node-n1".to_owned()), encode(&fresh).unwrap()).await;
    world.run().await.unwrap();
    assert!(lock(&world.auth.state).users.contains_key("node-n1"));
    let object = gone("n1");
    world.put(Key::Object(object.reference()), encode(&object).unwrap()).await;
    world.run().await.unwrap();
    world.steps();
    world.run().await.unwrap();
    assert!(world.get::<IdentityRecord>(Key::Identity("node-n1".to_owned())).await.is_none());
    let trust: TrustRecord = world.get(Key::Trust).await.unwrap();
    assert_eq!(trust.revoked["sha256:n1"].identity, "node-n1");
    assert!(world.the_loop.deps.own.keeper.current().is_revoked("sha256:n1"));
    assert_eq!(world.steps(), ["user delete node-n1", "role delete node-n1"]);
}

#[tokio::test]
async fn users_that_are_somebody_elses_are_a_problem_and_no_failure() {
    let mut world = World::new(true, FakeAuth { denies: true, ..FakeAuth::default() }, false).await;
    let problems = world.the_loop.problems();
    world.run().await.unwrap();
    let known = problems.borrow().clone();
    assert!(known.len() == 1 && known[0].contains("minik8s trust etcd-users"), "{known:?}");
    world.run().await.unwrap();
    world.run().await.unwrap();
    assert_eq!(*problems.borrow(), known, "it lasts");
    assert_eq!(*lock(&world.auth.reads), 1, "etcd is asked again after some minutes");
}
