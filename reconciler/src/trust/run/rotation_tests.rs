//! Rotations of the authority from beginning to end: two reconcilers with a member of etcd each, of which the first leads,
//! one that joins meanwhile, and a node that is away for a while.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::codec::encode;
use schema::control::lock;
use schema::keys::{Key, ROOT};
use schema::records::{AuthorityRecord, IdentityRecord, NodeRecord, Roll, TrustRecord};
use schema::store::Store as _;
use schema::store::etcd::Access;
use schema::store::events::EventRecorder;
use schema::store::memory::MemoryStore;
use schema::store::reflector::SnapshotReader;
use schema::testing::{node_record, take_lead};
use schema::trust::{Certificate, TrustDir};
use tempfile::TempDir;

use super::tests::World;
use crate::trust::admission::{Admission, AdmissionDeps, AdmissionError};
use crate::trust::etcd_users::EtcdUsers;
use crate::trust::fake::{FakeAuth, member};
use crate::trust::member::EtcdMembership;
use crate::trust::setup::sign_etcd;

const WEEK: SignedDuration = SignedDuration::from_hours(24 * 7);
/// Runs of each loop that are enough for whatever does not wait for others.
const RUNS: usize = 12;

struct Cluster {
    all: Vec<World>,
    auth: FakeAuth,
    /// Digest of the first authority.
    first: String,
}

fn pki(dir: &TempDir) -> TrustDir {
    TrustDir::new(dir.path().join("reconciler/pki"))
}

fn etcd_pki(world: &World) -> TrustDir {
    TrustDir::new(world.dir.path().join("reconciler/pki/etcd"))
}

/// State directory of a machine to which a reconciler has given the authority.
fn joined(from: &TempDir) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["authority.pem", "authority-key.pem", "authorities.pem"] {
        pki(&dir).write(name, pki(from).read(name).unwrap().as_bytes()).unwrap();
    }
    dir
}

fn digest(certificate: &Certificate) -> String {
    certificate.digest().unwrap()
}

impl Cluster {
    async fn new() -> Self {
        let (store, auth) = (Arc::new(MemoryStore::new()), FakeAuth::default());
        *lock(&auth.members) = vec![member("minik8s", "10.0.0.1"), member("r2", "10.0.0.2")];
        let fence = take_lead(&*store).await;
        let addresses = ["127.0.0.1".to_owned()];
        let one = tempfile::tempdir().unwrap();
        sign_etcd(one.path(), &addresses, WEEK, Timestamp::now()).unwrap();
        let two = joined(&one);
        let membership = EtcdMembership {
            name: "r2".to_owned(),
            address: Some("10.0.0.2".to_owned()),
            join: Vec::new(),
            initial_cluster: Some("minik8s=https://10.0.0.1:7080,r2=https://10.0.0.2:7080".to_owned()),
            rolled: 0,
        };
        membership.save(two.path()).unwrap();
        sign_etcd(two.path(), &addresses, WEEK, Timestamp::now()).unwrap();
        let r1 = World::over(Arc::clone(&store), one, ("r1", Some(fence)), auth.clone(), true);
        let r2 = World::over(store, two, ("r2", None), auth.clone(), true);
        let first = digest(r1.the_loop.deps.own.authority().certificate());
        let mut cluster = Self { all: vec![r1, r2], auth, first };
        cluster.node_reports(&[&cluster.first.clone()]).await;
        cluster.node_has_certificate_of(&cluster.first.clone()).await;
        cluster.run().await;
        cluster
    }

    async fn node_reports(&self, authorities: &[&str]) {
        let authorities = authorities.iter().map(|digest| (*digest).to_owned()).collect();
        let record = NodeRecord { authorities, ..node_record("n1") };
        self.all[0].put(Key::Node("n1".to_owned()), encode(&record).unwrap()).await;
    }

    async fn node_has_certificate_of(&self, authority: &str) {
        let record = IdentityRecord {
            key: "sha256:n1".to_owned(),
            serials: BTreeMap::new(),
            issuer: authority.to_owned(),
            not_after: Timestamp::now() + SignedDuration::from_hours(1),
            joined_at: Timestamp::now(),
            recipient: None,
            api: None,
            authorities: Vec::new(),
            etcd_member: None,
            confirmed_roll: None,
        };
        self.all[0].put(Key::Identity("node-n1".to_owned()), encode(&record).unwrap()).await;
    }

    async fn run(&mut self) {
        for _ in 0..RUNS {
            for world in &mut self.all {
                let _ = world.run().await;
            }
        }
    }

    /// Begins a rotation; returns the digest of the next authority.
    async fn rotate(&self) -> Result<String, AdmissionError> {
        let deps = &self.all[0].the_loop.deps;
        let access = Access::anonymous(&["https://10.0.0.1:2379".to_owned()]);
        let own = deps.own.keeper.current().identity().clone();
        let admission = Admission::new(AdmissionDeps {
            store: Arc::clone(&deps.store),
            snapshot: SnapshotReader::fixed(schema::snapshot::Snapshot::default()),
            events: EventRecorder::disabled(),
            own: deps.own.clone(),
            accounts: Box::new(EtcdUsers::new(access, own)),
            owns_etcd: true,
            etcd: Vec::new(),
            api: Vec::new(),
            lifetime: SignedDuration::from_hours(1),
        });
        Ok(admission.rotate("uid 0", Timestamp::now()).await?.authority)
    }

    async fn record(&self) -> TrustRecord {
        self.all[0].get(Key::Trust).await.unwrap()
    }

    /// Digests of the trusted authorities, the one that signs first.
    async fn trusted(&self) -> Vec<String> {
        let record = self.record().await;
        record.authorities.iter().map(|pem| digest(&Certificate::from_pem(pem).unwrap())).collect()
    }

    async fn roll(&self) -> Roll {
        self.record().await.roll.unwrap()
    }

    fn restarts(&self) -> Vec<usize> {
        self.all.iter().map(|world| *lock(&world.member.restarts)).collect()
    }

    /// Sentences of the leader.
    fn sentences(&self) -> String {
        self.all[0].the_loop.problems().borrow().join("\n")
    }

    fn signers(&self) -> Vec<String> {
        self.all.iter().map(|world| digest(world.the_loop.deps.own.authority().certificate())).collect()
    }
}

#[tokio::test]
async fn an_authority_takes_the_place_of_another_and_nobody_is_locked_out_on_the_way() {
    let mut cluster = Cluster::new().await;
    let old = cluster.first.clone();
    assert_eq!(cluster.trusted().await, [old.as_str()]);
    let next = cluster.rotate().await.unwrap();
    let again = cluster.rotate().await;
    assert!(matches!(again, Err(AdmissionError::RotationUnderWay)), "{again:?}");

    // All learn to trust it, but for the node; one that joins now gets the key, too.
    let three = joined(&cluster.all[0].dir);
    let store = Arc::clone(&cluster.all[0].store);
    cluster.all.push(World::over(store, three, ("r3", None), cluster.auth.clone(), false));
    cluster.run().await;
    assert_eq!(cluster.trusted().await, [old.as_str(), next.as_str()]);
    assert_eq!(cluster.restarts(), [1, 1, 0]);
    assert_eq!((cluster.roll().await.number, cluster.roll().await.turn), (1, None));
    assert_eq!(cluster.signers(), [old.as_str(); 3]);
    assert!(cluster.sentences().contains("it waits for node-n1"), "{}", cluster.sentences());
    for world in &cluster.all {
        assert_eq!(world.the_loop.deps.own.keeper.current().authorities().len(), 2);
    }
    for world in &cluster.all[..2] {
        assert_eq!(etcd_pki(world).authorities().unwrap().len(), 2, "before its restart");
    }
    let record: AuthorityRecord = cluster.all[0].get(Key::Authority(next.clone())).await.unwrap();
    assert_eq!(record.recipients.len(), 3);

    // It signs.
    cluster.node_reports(&[&old, &next]).await;
    cluster.run().await;
    assert_eq!(cluster.trusted().await, [next.as_str(), old.as_str()]);
    assert_eq!(cluster.signers(), [next.as_str(); 3]);
    for world in &cluster.all {
        let own = &world.the_loop.deps.own;
        assert!(own.keeper.current().certificate().is_signed_by(own.authority().certificate()));
    }
    for world in &cluster.all[..2] {
        let signer = world.the_loop.deps.own.authority();
        assert!(etcd_pki(world).certificate().unwrap().is_signed_by(signer.certificate()));
    }
    assert_eq!(cluster.restarts(), [1, 1, 0], "the members know both");
    assert!(cluster.sentences().contains("it waits for node-n1"), "{}", cluster.sentences());

    // The former one is forgotten.
    cluster.node_has_certificate_of(&next).await;
    cluster.run().await;
    assert_eq!(cluster.trusted().await, [next.as_str()]);
    assert_eq!(cluster.restarts(), [2, 2, 0]);
    for world in &cluster.all[..2] {
        assert_eq!(etcd_pki(world).authorities().unwrap().len(), 1);
    }
    assert_eq!(cluster.sentences(), "");
    let before = cluster.all[0].store.list(ROOT).await.unwrap().revision;
    cluster.run().await;
    assert_eq!(cluster.all[0].store.list(ROOT).await.unwrap().revision, before, "all is quiet");
    assert!(cluster.rotate().await.is_ok(), "and may begin anew");
}

#[tokio::test]
async fn a_member_that_does_not_come_back_or_does_not_answer_stops_the_roll() {
    let mut cluster = Cluster::new().await;
    *lock(&cluster.all[0].member.fails) = true;
    let next = cluster.rotate().await.unwrap();
    cluster.node_reports(&[&cluster.first.clone(), &next]).await;
    cluster.run().await;
    assert_eq!(cluster.restarts()[1], 0, "two would be down");
    assert_eq!(cluster.roll().await.turn.as_deref(), Some("reconciler-r1"));
    assert_eq!(cluster.signers(), [cluster.first.as_str(); 2]);
    assert!(cluster.sentences().contains("reconciler-r1 restarts its member"), "{}", cluster.sentences());

    *lock(&cluster.all[0].member.fails) = false;
    lock(&cluster.auth.silent).insert("minik8s".to_owned());
    cluster.run().await;
    assert_eq!(cluster.restarts()[1], 0, "the first one does not answer");
    assert!(cluster.sentences().contains("the member minik8s does not answer"), "{}", cluster.sentences());

    lock(&cluster.auth.silent).clear();
    cluster.run().await;
    assert_eq!(cluster.restarts()[1], 1);
    assert_eq!(cluster.signers(), [next.as_str(); 2]);
}
