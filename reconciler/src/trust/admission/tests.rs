//! Lives of machines and people, from a token to their removal, over a store in memory.

use std::sync::atomic::Ordering;

use futures::future::join_all;
use schema::kinds::node::NodeSpec;
use schema::records::{EtcdMemberReport, Event, TrustRecord};
use schema::store::Store as _;
use schema::store::events::RECONCILER;
use schema::store::memory::MemoryStore;
use schema::testing::{SnapshotBuilder, at};
use schema::trust::{Authority, KeyPair, Peer, bundle_from_pem};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::testing::{FakeAccounts, deps, signing_request};
use super::*;

struct Story {
    store: Arc<MemoryStore>,
    admission: Admission,
    calls: Arc<Mutex<Vec<String>>>,
    dir: TempDir,
}

impl Story {
    fn new() -> Self {
        Self::over(SnapshotBuilder::new())
    }

    fn over(builder: SnapshotBuilder) -> Self {
        Self::with(builder, FakeAccounts::default())
    }

    fn with(builder: SnapshotBuilder, accounts: FakeAccounts) -> Self {
        let (dir, store) = (tempfile::tempdir().unwrap(), Arc::new(MemoryStore::new()));
        let calls = Arc::clone(&accounts.calls);
        let deps = deps(dir.path(), &store, SnapshotReader::fixed(builder.snapshot));
        let admission = Admission::new(AdmissionDeps { accounts: Box::new(accounts), ..deps });
        Self { store, admission, calls, dir }
    }

    fn authority(&self) -> Arc<Authority> {
        self.admission.0.own.authority()
    }

    async fn token(&self, identity: &str) -> JoinToken {
        let request = TokenRequest { identity: identity.to_owned(), ttl_seconds: None };
        let answer = self.admission.create_token(&request, "uid 0", at(0)).await.unwrap();
        answer.token.parse().unwrap()
    }

    /// Joins with a new key; returns the answer and the key's fingerprint.
    async fn join(&self, token: &JoinToken, identity: &str) -> Result<(JoinAnswer, String), AdmissionError> {
        let (request, key) = request(token, identity);
        Ok((self.admission.join(&request, "10.0.0.7", at(10)).await?, key))
    }

    async fn joined(&self, identity: &str) -> (JoinAnswer, String) {
        self.join(&self.token(identity).await, identity).await.unwrap()
    }

    async fn record<T: DeserializeOwned>(&self, key: &Key) -> Option<T> {
        let found = self.store.get(&key.to_string()).await.unwrap()?;
        Some(decode(&found.value).unwrap())
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.calls))
    }
}

/// A request with a new key, and the key's fingerprint.
fn request(token: &JoinToken, identity: &str) -> (JoinRequest, KeyFingerprint) {
    let (signing_request, key) = signing_request(identity);
    let request = JoinRequest {
        token: token.id.clone(),
        secret: token.secret.clone(),
        identity: identity.to_owned(),
        signing_request,
        recipient: Some(age::x25519::Identity::generate().to_public().to_string()),
        addresses: vec!["10.0.0.9".to_owned()],
    };
    (request, key)
}

fn refusal<T>(result: Result<T, AdmissionError>) -> Refusal {
    match result {
        Err(AdmissionError::Refused(refusal)) => refusal,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was admitted"),
    }
}

#[tokio::test]
async fn a_token_admits_one_machine() {
    let story = Story::new();
    let token = story.token("node-n1").await;
    assert_eq!(token.pin, story.authority().certificate().digest().unwrap());
    let (answer, key) = story.join(&token, "node-n1").await.unwrap();

    let certificate = Certificate::from_pem(&answer.certificate).unwrap();
    assert_eq!(certificate.identity().unwrap().to_string(), "node-n1");
    assert_eq!(certificate.public_key().unwrap().fingerprint().unwrap(), key);
    assert!(certificate.addresses().is_empty(), "a node has none");
    let trusted = bundle_from_pem(&answer.authorities).unwrap();
    assert!(certificate.is_signed_by(&trusted[0]));
    assert_eq!(answer.etcd, ["https://10.0.0.5:7079"]);
    assert_eq!(answer.reconcilers, ["https://10.0.0.5:7070"]);
    assert_eq!(answer.sealed_authority, None);

    let record: IdentityRecord = story.record(&Key::Identity("node-n1".to_owned())).await.unwrap();
    assert_eq!((&record.key, record.joined_at), (&key, at(10)));
    assert!(record.serials.keys().eq([&certificate.serial().unwrap()]));
    assert!(record.recipient.is_some_and(|recipient| recipient.starts_with("age1")));
    assert_eq!(story.calls(), ["ensure node-n1"]);
    assert_eq!(refusal(story.join(&token, "node-n1").await), Refusal::UsedToken(at(10)));
}

#[tokio::test]
async fn the_secret_of_a_token_is_not_stored() {
    let story = Story::new();
    let token = story.token("node-n1").await;
    for item in story.store.list("/").await.unwrap().items {
        let text = String::from_utf8_lossy(&item.value).into_owned();
        assert!(!text.contains(&token.secret), "{text}");
    }
}

#[tokio::test]
async fn of_machines_that_share_a_token_one_joins() {
    let story = Story::new();
    let token = story.token("node-n1").await;
    let all = join_all((0..8).map(|_| story.join(&token, "node-n1"))).await;
    assert_eq!(all.iter().filter(|one| one.is_ok()).count(), 1);
}

// Would fail with a write that is not guarded by the token: the second transaction overwrites the first.
#[tokio::test]
async fn a_token_that_was_spent_meanwhile_admits_nobody() {
    let story = Story::new();
    let token = story.token("node-n1").await;
    let (candidate, _) = story.admission.candidate(&request(&token, "node-n1").0).unwrap();
    let (guard, _) = story.admission.token(&token.id).await.unwrap();
    story.join(&token, "node-n1").await.unwrap();
    let spend = Op::delete(Key::Join(token.id.clone()));
    let enrolled = story.admission.enroll(&candidate, Some((guard, spend)), at(20)).await.unwrap();
    assert!(enrolled.is_none());
}

#[tokio::test]
async fn ten_thousand_wrong_tokens_admit_nobody_and_write_nothing() {
    let story = Story::new();
    let token = story.token("node-n1").await;
    let before = story.store.revision();
    let (right, _) = request(&token, "node-n1");
    let wrong: [&dyn Fn(usize) -> JoinRequest; 5] = [
        &|n| JoinRequest { secret: format!("{n}"), ..right.clone() },
        &|n| JoinRequest { token: format!("{n:012x}"), ..right.clone() },
        &|n| JoinRequest { identity: format!("node-n{}", n + 2), ..right.clone() },
        &|n| JoinRequest { token: format!("../identities/{n}"), ..right.clone() },
        &|_| JoinRequest { identity: "reconciler-r2".to_owned(), ..right.clone() },
    ];
    for n in 0..10_000 {
        let request = wrong[n % wrong.len()](n);
        let found = story.admission.join(&request, "10.0.0.7", at(10)).await;
        assert_eq!(refusal(found), Refusal::WrongToken, "{request:?}");
    }
    assert_eq!(story.store.revision(), before);
    story.admission.join(&right, "10.0.0.7", at(10)).await.unwrap();
}

#[tokio::test]
async fn a_refused_request_leaves_its_token_unspent() {
    let pinned = NodeSpec { identity: Some(format!("sha256:{:064}", 0)), ..NodeSpec::default() };
    let story = Story::over(SnapshotBuilder::new().node_object("n1", pinned));
    let token = story.token("node-n1").await;
    let (right, _) = request(&token, "node-n1");
    assert!(matches!(refusal(story.join(&token, "node-n1").await), Refusal::OtherInGit { .. }));
    for damaged in [
        JoinRequest { signing_request: "damaged".to_owned(), ..right.clone() },
        JoinRequest { recipient: Some("age1".to_owned()), ..right.clone() },
        JoinRequest { addresses: vec!["a b".to_owned()], ..right },
    ] {
        let found = story.admission.join(&damaged, "10.0.0.7", at(10)).await;
        assert!(matches!(found, Err(AdmissionError::Invalid(_))), "{damaged:?}");
    }
    let record: JoinRecord = story.record(&Key::Join(token.id.clone())).await.unwrap();
    assert_eq!(record.spent_at, None);
}

#[tokio::test]
async fn a_machine_with_another_key_takes_the_place_of_the_former_one() {
    let story = Story::new();
    let (former, answer) = node(&story).await;
    let old = former.public_key().unwrap().fingerprint().unwrap();
    let (_, new) = story.joined("node-n1").await;
    let revoked: RevokedIdentity = story.record(&Key::RevokedIdentity("node-n1".to_owned())).await.unwrap();
    assert_eq!(revoked.keys.keys().collect::<Vec<_>>(), [&old]);
    let keeper = &story.admission.0.own.keeper;
    assert!(keeper.current().is_revoked(&old) && !keeper.current().is_revoked(&new));
    assert!(keeper.dir().revoked().unwrap().contains_key(&old), "also after a restart");
    let found = story.admission.renew(&renewal(&former, &answer), at(20)).await;
    assert_eq!(refusal(found), Refusal::Revoked(old));
}

/// A node with its key.
async fn node(story: &Story) -> (KeyPair, JoinAnswer) {
    let (key, token) = (KeyPair::generate().unwrap(), story.token("node-n1").await);
    let signing_request = key.signing_request(&"node-n1".parse().unwrap()).unwrap();
    let request = JoinRequest { signing_request, ..request(&token, "node-n1").0 };
    (key, story.admission.join(&request, "10.0.0.7", at(10)).await.unwrap())
}

fn renewal(key: &KeyPair, answer: &JoinAnswer) -> RenewRequest {
    RenewRequest {
        certificate: answer.certificate.clone(),
        signing_request: key.signing_request(&"node-n1".parse().unwrap()).unwrap(),
    }
}

#[tokio::test]
async fn a_node_that_was_off_for_long_renews_even_if_etcd_was_lost() {
    let story = Story::new();
    let (key, answer) = node(&story).await;
    let before: IdentityRecord = story.record(&Key::Identity("node-n1".to_owned())).await.unwrap();
    let late = at(0) + SignedDuration::from_hours(24 * 60);
    let next = story.admission.renew(&renewal(&key, &answer), late).await.unwrap();
    assert!(Certificate::from_pem(&next.certificate).unwrap().not_after().unwrap() > late);
    let after: IdentityRecord = story.record(&Key::Identity("node-n1".to_owned())).await.unwrap();
    assert_eq!((&after.recipient, after.joined_at), (&before.recipient, before.joined_at));
    assert!(before.serials.keys().all(|serial| !after.serials.contains_key(serial)), "it has ended");
    story.store.lose_everything();
    let soon = story.admission.renew(&renewal(&key, &next), late).await;
    assert!(matches!(soon, Err(AdmissionError::TooOften(_))), "{soon:?}");
    let later = late + RENEWALS_GAP;
    story.admission.renew(&renewal(&key, &next), later).await.unwrap();
    let found: IdentityRecord = story.record(&Key::Identity("node-n1".to_owned())).await.unwrap();
    assert_eq!(found.key, before.key);
    assert_eq!(story.calls(), ["ensure node-n1", "ensure node-n1", "ensure node-n1"]);
}

#[tokio::test]
async fn who_was_removed_or_replaced_renews_nothing() {
    let story = Story::new();
    let (key, answer) = node(&story).await;
    let fingerprint = key.public_key().unwrap().fingerprint().unwrap();
    story.admission.remove("node-n1", "uid 0", at(20)).await.unwrap();
    assert_eq!(story.calls(), ["ensure node-n1", "remove node-n1"]);
    let found = story.admission.renew(&renewal(&key, &answer), at(30)).await;
    assert_eq!(refusal(found), Refusal::Revoked(fingerprint.clone()));
    // Another reconciler, which has not read the list of revoked keys yet.
    let other = Admission::new(AdmissionDeps {
        own: OwnTrust {
            keeper: Arc::clone(&Story::new().admission.0.own.keeper),
            signer: Arc::clone(&story.admission.0.own.signer),
        },
        ..deps(story.dir.path(), &story.store, SnapshotReader::fixed(SnapshotBuilder::new().snapshot))
    });
    assert!(!other.0.own.keeper.current().is_revoked(&fingerprint));
    let token = story.token("node-n1").await;
    let signing_request = renewal(&key, &answer).signing_request;
    let again = JoinRequest { signing_request, ..request(&token, "node-n1").0 };
    let found = other.join(&again, "10.0.0.7", at(30)).await;
    assert_eq!(refusal(found), Refusal::Revoked(fingerprint));
}

// Would fail with an identity that goes before the keys: then nobody could ask for the rest.
#[tokio::test]
async fn a_node_that_leaves_is_forgotten_once_its_heartbeat_has_ended() {
    let story = Story::new();
    let (_, key) = story.joined("node-n1").await;
    let peer = Peer { identity: "node-n1".parse().unwrap(), key };
    let heartbeat = Key::Heartbeat("n1".to_owned());
    let ops = [Key::Node("n1".to_owned()), Key::Subnet("n1".to_owned()), heartbeat.clone()];
    let _ = story.store.txn(vec![], ops.map(|key| Op::put(key, "{}")).to_vec()).await.unwrap();
    let early = story.admission.leave(&peer, at(20)).await;
    assert!(matches!(early, Err(AdmissionError::Alive(_))), "{early:?}");
    let _ = story.store.txn(vec![], vec![Op::delete(&heartbeat)]).await.unwrap();
    let other = Peer { key: "sha256:other".to_owned(), ..peer.clone() };
    let found = story.admission.leave(&other, at(20)).await;
    assert_eq!(refusal(found), Refusal::Replaced(peer.identity.clone()));
    assert_eq!(story.store.list("/minik8s/nodes/").await.unwrap().items.len(), 1);

    story.admission.leave(&peer, at(20)).await.unwrap();
    for prefix in ["/minik8s/nodes/", "/minik8s/subnets/", prefix::IDENTITIES] {
        assert!(story.store.list(prefix).await.unwrap().items.is_empty(), "{prefix}");
    }
    assert!(story.admission.0.own.keeper.current().is_revoked(&peer.key));
    assert_eq!(story.calls(), ["ensure node-n1", "remove node-n1"]);
    let again = story.admission.leave(&peer, at(30)).await;
    assert!(matches!(again, Err(AdmissionError::Unknown(_))), "{again:?}");
    let person = Peer { identity: "user-ada".parse().unwrap(), ..peer };
    let person = story.admission.leave(&person, at(30)).await;
    assert!(matches!(person, Err(AdmissionError::Invalid(_))), "{person:?}");
}

#[tokio::test]
async fn a_reconciler_is_removed_with_its_member_of_etcd_if_that_is_the_clusters_own() {
    for owns_etcd in [true, false] {
        let accounts = FakeAccounts::default();
        let members = || lock(&accounts.members).iter().cloned().collect::<Vec<_>>();
        lock(&accounts.members).extend(["minik8s", "r2", "r3"].map(str::to_owned));
        let mut story = Story::with(SnapshotBuilder::new(), accounts.clone());
        story.admission.0.owns_etcd = owns_etcd;
        let remove = |name| story.admission.remove(name, "uid 0", at(20));
        // A member of this name alone is no reconciler.
        assert!(matches!(remove("reconciler-minik8s").await, Err(AdmissionError::Unknown(_))));
        story.joined("reconciler-r2").await;
        let known = Key::Identity("reconciler-r2".to_owned());
        let record: IdentityRecord = story.record(&known).await.unwrap();
        // On the machine where the cluster began the member has another name than the reconciler.
        let report = EtcdMemberReport { name: "minik8s".to_owned(), rolled: 0, issuer: "ca".to_owned() };
        let record = IdentityRecord { etcd_member: Some(report), ..record };
        let _ = story.store.txn(vec![], vec![Op::put(&known, encode(&record).unwrap())]).await.unwrap();
        accounts.keeps_members.store(owns_etcd, Ordering::Relaxed);
        let first = remove("reconciler-r2").await;
        assert_eq!(matches!(first, Err(AdmissionError::Member { .. })), owns_etcd, "{first:?}");
        let revoked = Key::RevokedIdentity("reconciler-r2".to_owned());
        assert!(story.record::<RevokedIdentity>(&revoked).await.is_some(), "its key is of no use at once");
        accounts.keeps_members.store(false, Ordering::Relaxed);
        if owns_etcd {
            let removed = RemovedIdentity { etcd_member: Some("minik8s".to_owned()) };
            assert_eq!(remove("reconciler-r2").await.unwrap(), removed);
            assert_eq!(members(), ["r2", "r3"]);
        } else {
            assert_eq!(first.unwrap(), RemovedIdentity::default());
            assert_eq!(members().len(), 3);
        }
        assert!(matches!(remove("reconciler-r2").await, Err(AdmissionError::Unknown(_))));
    }
}

#[tokio::test]
async fn a_certificate_whose_name_has_another_key_by_now_is_not_renewed() {
    let story = Story::new();
    let (key, answer) = node(&story).await;
    let known = Key::Identity("node-n1".to_owned());
    let record: IdentityRecord = story.record(&known).await.unwrap();
    let other = IdentityRecord { key: "sha256:other".to_owned(), ..record };
    let _ = story.store.txn(vec![], vec![Op::put(&known, encode(&other).unwrap())]).await.unwrap();
    let found = story.admission.renew(&renewal(&key, &answer), at(30)).await;
    assert_eq!(refusal(found), Refusal::Replaced("node-n1".parse().unwrap()));
}

#[tokio::test]
async fn a_reconciler_gets_the_authority_for_its_recipient_alone() {
    let story = Story::new();
    let (own, other) = (story.dir.path().join("own"), story.dir.path().join("other"));
    let recipient = crypt::ensure_identity(&own, "a test").unwrap();
    crypt::ensure_identity(&other, "a test").unwrap();
    let token = story.token("reconciler-r2").await;
    let without = JoinRequest { recipient: None, ..request(&token, "reconciler-r2").0 };
    let found = story.admission.join(&without, "10.0.0.7", at(10)).await;
    assert!(matches!(found, Err(AdmissionError::Invalid(_))), "{found:?}");
    let with = JoinRequest { recipient: Some(recipient), ..request(&token, "reconciler-r2").0 };
    let answer = story.admission.join(&with, "10.0.0.7", at(10)).await.unwrap();
    let sealed = answer.sealed_authority.unwrap();
    assert!(crypt::open_sealed(&sealed, &other).is_err());
    let opened: serde_json::Value =
        serde_json::from_str(&crypt::open_sealed(&sealed, &own).unwrap()).unwrap();
    let pem = |field: &str| opened[field].as_str().unwrap();
    let authority = Authority::from_pem(pem("certificate"), pem("key")).unwrap();
    assert_eq!(authority.key_pem().unwrap(), story.authority().key_pem().unwrap());
    let certificate = Certificate::from_pem(&answer.certificate).unwrap();
    assert_eq!(certificate.addresses(), ["10.0.0.9"]);
}

#[tokio::test]
async fn people_are_added_listed_and_removed_and_have_no_user_of_etcd() {
    let story = Story::new();
    let (signing_request, key) = signing_request("user-ada");
    let request = UserRequest { name: "ada".to_owned(), signing_request, lifetime_seconds: None };
    let answer = story.admission.add_user(&request, "uid 0", at(0)).await.unwrap();
    let end = Certificate::from_pem(&answer.certificate).unwrap().not_after().unwrap();
    assert_eq!(end, at(30 * 24 * 3600));
    let item = IdentityItem {
        identity: "user-ada".to_owned(),
        key: key.clone(),
        not_after: end,
        joined_at: at(0),
        recipient: None,
    };
    assert_eq!(story.admission.identities().await.unwrap(), [item]);
    story.admission.remove("user-ada", "uid 0", at(10)).await.unwrap();
    assert!(story.admission.identities().await.unwrap().is_empty());
    assert!(story.admission.0.own.keeper.current().is_revoked(&key));
    assert!(matches!(
        story.admission.remove("user-ada", "uid 0", at(10)).await,
        Err(AdmissionError::Unknown(_))
    ));
    let again = story.admission.add_user(&request, "uid 0", at(20)).await;
    assert_eq!(refusal(again), Refusal::Revoked(key));
    assert!(story.calls().is_empty());
}

#[tokio::test]
async fn tokens_and_removals_that_make_no_sense_are_refused() {
    let story = Story::new();
    for (identity, ttl_seconds) in [
        ("user-ada", None),
        ("etcd", None),
        ("n1", None),
        ("node-../n1", None),
        ("node-n1", Some(0)),
        ("node-n1", Some(24 * 3600 + 1)),
    ] {
        let request = TokenRequest { identity: identity.to_owned(), ttl_seconds };
        let found = story.admission.create_token(&request, "uid 0", at(0)).await;
        assert!(matches!(found, Err(AdmissionError::Invalid(_))), "{identity} {ttl_seconds:?}");
    }
    let own = story.admission.remove("reconciler-r1", "uid 0", at(0)).await;
    assert!(matches!(own, Err(AdmissionError::Invalid(_))), "{own:?}");
    assert_eq!(story.store.revision(), 1);
}

#[tokio::test]
async fn a_reconciler_that_was_removed_or_is_another_clusters_admits_and_removes_nobody() {
    let removed = Story::new();
    let key = removed.admission.0.own.key().unwrap();
    removed.admission.0.own.keeper.revoke([(key, at(100))].into()).unwrap();
    let trust = TrustRecord { authorities: vec!["CA9".to_owned()], ..TrustRecord::default() };
    let foreign = Story::over(SnapshotBuilder::new().put(&Key::Trust, &trust));
    for story in [removed, foreign] {
        let request = TokenRequest { identity: "node-n1".to_owned(), ttl_seconds: None };
        let token = story.admission.create_token(&request, "uid 0", at(0)).await;
        assert!(matches!(token, Err(AdmissionError::Excluded(_))), "{token:?}");
        let removal = story.admission.remove("node-n1", "uid 0", at(0)).await;
        assert!(matches!(removal, Err(AdmissionError::Excluded(_))), "{removal:?}");
        let rotation = story.admission.rotate("uid 0", at(0)).await;
        assert!(matches!(rotation, Err(AdmissionError::Excluded(_))), "{rotation:?}");
        assert_eq!(story.store.revision(), 1);
    }
}

// Would fail by a reconciler that revokes its own key.
#[tokio::test]
async fn a_former_name_with_the_reconcilers_own_key_is_not_removed() {
    let story = Story::new();
    story.joined("reconciler-old").await;
    let known = Key::Identity("reconciler-old".to_owned());
    let record: IdentityRecord = story.record(&known).await.unwrap();
    let own = story.admission.0.own.keeper.current().certificate().public_key().unwrap();
    let same = IdentityRecord { key: own.fingerprint().unwrap(), ..record };
    let _ = story.store.txn(vec![], vec![Op::put(&known, encode(&same).unwrap())]).await.unwrap();
    let found = story.admission.remove("reconciler-old", "uid 0", at(20)).await;
    assert!(matches!(found, Err(AdmissionError::Invalid(_))), "{found:?}");
    assert!(story.record::<IdentityRecord>(&known).await.is_some());
}

#[tokio::test]
async fn before_etcd_is_read_nobody_is_admitted() {
    let builder = SnapshotBuilder { snapshot: Snapshot::default() };
    let story = Story::over(builder);
    let request = TokenRequest { identity: "node-n1".to_owned(), ttl_seconds: None };
    let found = story.admission.create_token(&request, "uid 0", at(0)).await;
    assert!(matches!(found, Err(AdmissionError::Starting)), "{found:?}");
}

#[tokio::test]
async fn each_token_join_user_and_removal_is_an_event_and_so_is_an_etcd_that_refuses_users() {
    let accounts = FakeAccounts { denies: true, ..FakeAccounts::default() };
    let mut story = Story::with(SnapshotBuilder::new(), accounts);
    let shutdown = CancellationToken::new();
    let store: SharedStore = story.store.clone();
    let (events, writing) = EventRecorder::writing(store, RECONCILER, "reconciler", shutdown.clone());
    story.admission.0.events = events.reporting_as("trust");
    story.joined("node-n1").await;
    let (signing_request, _) = signing_request("user-ada");
    let user = UserRequest { name: "ada".to_owned(), signing_request, lifetime_seconds: Some(60) };
    story.admission.add_user(&user, "uid 0", at(0)).await.unwrap();
    story.admission.remove("user-ada", "uid 0", at(0)).await.unwrap();
    shutdown.cancel();
    writing.await;
    let mut found: Vec<String> = Vec::new();
    for item in story.store.list(prefix::EVENTS).await.unwrap().items {
        let event: Event = decode(&item.value).unwrap();
        if event.reason == "EtcdUsersDiffer" {
            assert!(event.message.contains("minik8s trust etcd-users"), "{}", event.message);
        }
        found.push(format!("{} {} {:?}", event.name, event.reason, event.kind));
    }
    found.sort();
    assert_eq!(
        found,
        [
            "node-n1 EtcdUsersDiffer Warning",
            "node-n1 Joined Normal",
            "node-n1 TokenCreated Normal",
            "user-ada Removed Normal",
            "user-ada UserAdded Normal",
        ]
    );
}
