//! Tables of the plan, and the loop with an authority, a folder and a store of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::codec::encode;
use schema::control::{DiskRecord, Loop as _, Observation, lock};
use schema::keys::Key;
use schema::records::{RevokedKey, TrustRecord};
use schema::store::memory::MemoryStore;
use schema::store::{Op, SharedStore, Store as _};
use schema::testing::{authority, enroll};
use schema::trust::{Authority, Certificate, TrustDir};

use super::plan::{
    ClusterTrust, Observed, OwnTrust, RETRY_MAX, RecordFacts, RecordedAuthority, RenewReason, TrustChanges,
    UNCURED_AGAIN, plan,
};
use super::{NodeTrust, NodeTrustError, TrustLoop, TrustSettings};
use crate::cluster::ClusterAddresses;
use crate::worlds::admission::FakeAdmission;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn urls(urls: &[&str]) -> Vec<String> {
    urls.iter().map(|url| (*url).to_owned()).collect()
}

/// A certificate that is renewed from 200 s on and ends at 300 s, signed by the only authority.
fn observed(record: RecordFacts) -> Observed {
    let known = ClusterAddresses { etcd: urls(&["https://e:1"]), reconcilers: urls(&["https://r:1"]) };
    let own = OwnTrust {
        renew_at: at(200),
        not_after: at(300),
        authorities: urls(&["A"]),
        revoked: BTreeMap::from([("old".to_owned(), at(100)), ("new".to_owned(), at(1_000))]),
        known,
    };
    Observed { own, record, renewed_at: None, retry_at: None }
}

fn cluster(authorities: &[(&str, bool)]) -> ClusterTrust {
    let authority = |(pem, has_signed): &(&str, bool)| RecordedAuthority {
        pem: (*pem).to_owned(),
        has_signed: *has_signed,
    };
    ClusterTrust { authorities: authorities.iter().map(authority).collect(), ..ClusterTrust::default() }
}

#[test]
fn a_certificate_is_renewed_for_its_age_for_etcd_and_for_another_authority() {
    use RenewReason::{Aged, Denied, Expired, NewAuthority};
    let known = |authorities: &[(&str, bool)]| RecordFacts::Known(cluster(authorities));
    for (record, now, reason) in [
        (known(&[("A", true)]), 0, None),
        (RecordFacts::Unknown, 199, None),
        (RecordFacts::Unknown, 200, Some(Aged)),
        (RecordFacts::Denied, 0, Some(Denied)),
        (RecordFacts::Denied, 200, Some(Aged)),
        (RecordFacts::Denied, 300, Some(Expired)),
        (RecordFacts::Unknown, 300, Some(Expired)),
        (known(&[("A", true), ("B", false)]), 0, None),
        (known(&[("B", false), ("A", true)]), 0, Some(NewAuthority)),
        (known(&[]), 0, None),
    ] {
        let plan = plan(&observed(record.clone()), at(now));
        assert_eq!((plan.renew, plan.renew_at), (reason, None), "{record:?} at {now}");
    }
}

#[test]
fn a_renewal_that_failed_or_cured_nothing_waits() {
    let denied = || observed(RecordFacts::Denied);
    let aged = || observed(RecordFacts::Unknown);
    let (uncured, retry_max) = (UNCURED_AGAIN.as_secs(), RETRY_MAX.as_secs().cast_signed());
    for (observed, now, waits_until) in [
        (Observed { retry_at: Some(at(20)), ..denied() }, 10, Some(20)),
        (Observed { retry_at: Some(at(20)), ..denied() }, 20, None),
        (Observed { renewed_at: Some(at(0)), ..denied() }, uncured - 1, Some(uncured)),
        (Observed { renewed_at: Some(at(0)), ..denied() }, uncured, None),
        (Observed { renewed_at: Some(at(0)), ..aged() }, 200, None),
        (Observed { renewed_at: Some(at(190)), ..aged() }, 200, Some(220)),
        (Observed { renewed_at: Some(at(190)), retry_at: Some(at(230)), ..aged() }, 200, Some(230)),
        // The clock was set back.
        (Observed { renewed_at: Some(at(9_000)), ..denied() }, 10, None),
        (Observed { retry_at: Some(at(10 + retry_max)), ..denied() }, 10, Some(10 + retry_max)),
        (Observed { retry_at: Some(at(11 + retry_max)), ..denied() }, 10, None),
    ] {
        let plan = plan(&observed, at(now));
        let is_due = waits_until.is_none();
        assert_eq!((plan.renew.is_some(), plan.renew_at), (is_due, waits_until.map(at)), "{observed:?}");
    }
}

#[test]
fn only_what_differs_is_put_in_force_and_no_revoked_key_comes_back() {
    let apply = |cluster: ClusterTrust| plan(&observed(RecordFacts::Known(cluster)), at(150)).apply.unwrap();
    let revoked = |all: &[(&str, i64)]| {
        Some(all.iter().map(|(key, until)| ((*key).to_owned(), at(*until))).collect::<BTreeMap<_, _>>())
    };
    // `old` is of no use any more.
    let only_revoked = TrustChanges { revoked: revoked(&[("new", 1_000)]), ..TrustChanges::default() };
    assert_eq!(apply(cluster(&[("A", true)])), only_revoked);
    assert_eq!(apply(cluster(&[])), only_revoked);
    assert_eq!(apply(cluster(&[("B", false)])), only_revoked, "this node's certificate would be of no use");
    let both = ClusterTrust {
        revoked: BTreeMap::from([("third".to_owned(), at(900))]),
        addresses: ClusterAddresses { etcd: urls(&["https://e:2"]), reconcilers: Vec::new() },
        ..cluster(&[("A", true), ("B", false)])
    };
    let wanted = TrustChanges {
        authorities: Some(urls(&["A", "B"])),
        revoked: revoked(&[("new", 1_000), ("third", 900)]),
        addresses: Some(ClusterAddresses {
            etcd: urls(&["https://e:2"]),
            reconcilers: urls(&["https://r:1"]),
        }),
    };
    assert_eq!(apply(both), wanted);
    // Nothing is known of a cluster whose record can't be read.
    assert_eq!(plan(&observed(RecordFacts::Unknown), at(150)).apply, None);
}

/// A node that joined at `from`.
struct Rig {
    root: tempfile::TempDir,
    authority: Authority,
    admission: Arc<FakeAdmission>,
    store: Arc<MemoryStore>,
}

impl Rig {
    fn new(from: Timestamp) -> Self {
        let rig = Self {
            root: tempfile::tempdir().unwrap(),
            authority: authority(),
            admission: Arc::default(),
            store: Arc::new(MemoryStore::new()),
        };
        enroll(&rig.dir(), &rig.authority, "node-n1", (from, SignedDuration::from_hours(3)));
        *lock(&rig.admission.authority) = Some(rig.authority.clone());
        rig
    }

    fn dir(&self) -> TrustDir {
        TrustDir::new(self.root.path().join("pki"))
    }

    fn file(&self) -> DiskRecord {
        ClusterAddresses::file(self.root.path())
    }

    fn open(&self, node: &str) -> Result<NodeTrust, NodeTrustError> {
        let known = ClusterAddresses { etcd: Vec::new(), reconcilers: urls(&["https://r:1", "https://r:2"]) };
        let settings = TrustSettings {
            node: node.to_owned(),
            dir: self.dir(),
            given: ClusterAddresses::default(),
            known: known.clone(),
            used: known,
            file: self.file(),
        };
        NodeTrust::open(settings, self.admission.clone())
    }

    fn start(&self) -> TrustLoop {
        let store: SharedStore = self.store.clone();
        TrustLoop::new(self.open("n1").unwrap(), store, None)
    }

    async fn record(&self, record: &TrustRecord) {
        let put = Op::put(Key::Trust, encode(record).unwrap());
        let _ = self.store.txn(vec![], vec![put]).await.unwrap();
    }
}

/// Runs the loop once; returns its error.
async fn run(the_loop: &mut TrustLoop) -> Option<String> {
    let Observation::Ready(observed) = the_loop.observe().await.unwrap() else { panic!("always ready") };
    let plan = TrustLoop::plan(&observed, Timestamp::now());
    let outcome = the_loop.act(&observed, plan).await;
    the_loop.report(observed, outcome).await.err().map(|error| error.to_string())
}

fn hours_ago(hours: i64) -> Timestamp {
    Timestamp::now() - SignedDuration::from_hours(hours)
}

#[tokio::test]
async fn an_old_certificate_is_renewed_with_the_same_key_and_a_new_one_is_left_alone() {
    for (age, is_renewed) in [(0, false), (2, true), (4, true)] {
        let rig = Rig::new(hours_ago(age));
        let former = rig.dir().certificate().unwrap();
        let mut the_loop = rig.start();
        let reader = the_loop.trust.reader();
        assert_eq!(run(&mut the_loop).await, None);
        let next = rig.dir().certificate().unwrap();
        assert_eq!(next.serial().unwrap() != former.serial().unwrap(), is_renewed, "{age} h");
        assert!(next.public_key().unwrap().is(&former.public_key().unwrap()));
        assert_eq!(reader.current().certificate().serial().unwrap(), next.serial().unwrap());
        assert_eq!(run(&mut the_loop).await, None);
        assert_eq!(lock(&rig.admission.asked).len(), usize::from(is_renewed), "{age} h");
    }
}

// Would fail with a loop that forgets the failure in its next run.
#[tokio::test]
async fn a_refusal_is_an_error_until_a_renewal_and_is_not_repeated_at_once() {
    let rig = Rig::new(hours_ago(2));
    *lock(&rig.admission.authority) = None;
    let mut the_loop = rig.start();
    for _ in 0..3 {
        let error = run(&mut the_loop).await.unwrap();
        assert!(error.contains("https://r:1: this token admits nobody; https://r:2: "), "{error}");
    }
    assert_eq!(*lock(&rig.admission.asked), ["https://r:1", "https://r:2"]);
    let left = the_loop.retry_at.unwrap().duration_since(Timestamp::now());
    assert!(left > SignedDuration::from_secs(4), "{left:?}");
    *lock(&rig.admission.authority) = Some(rig.authority.clone());
    the_loop.retry_at = None;
    assert_eq!(run(&mut the_loop).await, None);
}

#[tokio::test]
async fn the_record_of_etcd_is_put_in_force_and_kept_for_the_next_start() {
    let (rig, other) = (Rig::new(hours_ago(0)), authority());
    let pem = |authority: &Authority| authority.certificate().to_pem().unwrap();
    let until = Timestamp::now() + SignedDuration::from_hours(1);
    let revoked = RevokedKey { identity: "node-n9".to_owned(), until };
    rig.record(&TrustRecord {
        authorities: vec![pem(&rig.authority), pem(&other)],
        revoked: BTreeMap::from([("sha256:ab".to_owned(), revoked)]),
        etcd: urls(&["https://e:1", "http://10.0.0.1:1"]),
        reconcilers: urls(&["https://r:3"]),
        roll: None,
    })
    .await;
    let mut the_loop = rig.start();
    let addresses = the_loop.trust.addresses();
    assert_eq!(run(&mut the_loop).await, None);
    let credentials = the_loop.trust.credentials();
    assert!(credentials.is_revoked("sha256:ab") && credentials.authorities().len() == 2);
    let wanted = ClusterAddresses { etcd: urls(&["https://e:1"]), reconcilers: urls(&["https://r:3"]) };
    assert_eq!(*addresses.borrow(), wanted);
    assert_eq!(rig.file().read::<ClusterAddresses>().unwrap(), Some(wanted));
    assert_eq!(rig.dir().authorities().unwrap().len(), 2);

    // A record that was lost brings no key back.
    rig.record(&TrustRecord::default()).await;
    assert_eq!(run(&mut the_loop).await, None);
    assert!(the_loop.trust.credentials().is_revoked("sha256:ab"));
    rig.record(&TrustRecord { authorities: vec!["no certificate".to_owned()], ..TrustRecord::default() })
        .await;
    assert!(run(&mut the_loop).await.unwrap().contains("cannot read the record"));
}

#[tokio::test]
async fn once_another_authority_signs_the_node_gets_a_certificate_of_it() {
    let (rig, next) = (Rig::new(hours_ago(0)), authority());
    let pem = |authority: &Authority| authority.certificate().to_pem().unwrap();
    *lock(&rig.admission.authority) = Some(next.clone());
    rig.record(&TrustRecord { authorities: vec![pem(&next), pem(&rig.authority)], ..TrustRecord::default() })
        .await;
    let mut the_loop = rig.start();
    assert_eq!(run(&mut the_loop).await, None);
    let own: Certificate = rig.dir().certificate().unwrap();
    assert!(own.is_signed_by(next.certificate()));
}

// Would fail by a node that has reported an authority, and forgets it by a renewal at a reconciler that is behind.
#[tokio::test]
async fn a_renewal_forgets_no_authority_that_the_record_has() {
    let (rig, next) = (Rig::new(hours_ago(0)), authority());
    let mut trust = rig.open("n1").unwrap();
    let both = vec![rig.authority.certificate().clone(), next.certificate().clone()];
    trust.keeper_for_test().renew(trust.credentials().certificate().clone(), both).unwrap();
    trust.renew().await.unwrap();
    assert_eq!(trust.credentials().authorities().len(), 2);
}

#[test]
fn a_node_without_a_certificate_or_with_anothers_says_what_to_do() {
    let rig = Rig::new(hours_ago(0));
    let error = rig.open("n2").err().unwrap().to_string();
    assert!(error.contains("node-n1") && error.contains("node-n2") && error.contains("reset"), "{error}");
    std::fs::remove_dir_all(rig.dir().path()).unwrap();
    let error = rig.open("n1").err().unwrap().to_string();
    assert!(error.contains("minik8s token create --node n1"), "{error}");
}
