//! Records of incoming requests; none may be lost.

use std::sync::Arc;
use std::time::Duration;

use schema::codec::decode;
use schema::control::{Nudge, NudgeReceiver};
use schema::keys::{Key, ROOT, prefix};
use schema::records::{CLI_REQUESTS_MAX, Provider, RequestOutcome, SyncRequest, WEBHOOK_REQUESTS_MAX};
use schema::store::memory::MemoryStore;
use schema::store::reflector::{self, SnapshotReader};
use schema::store::{SharedStore, Store};
use tokio_util::sync::CancellationToken;

use crate::webhooks::payload::Hint;
use crate::webhooks::{IncomingRequest, Intake, Outcome, SourceTarget};

struct House {
    store: MemoryStore,
    snapshot: SnapshotReader,
    intake: Intake,
    nudged: NudgeReceiver,
}

impl House {
    fn new() -> Self {
        let store = MemoryStore::new();
        let shared: SharedStore = Arc::new(store.clone());
        let (snapshot, reflecting) =
            reflector::reflect(Arc::clone(&shared), vec![ROOT.to_owned()], CancellationToken::new());
        tokio::spawn(reflecting);
        let (nudge, nudged) = Nudge::new();
        let target = SourceTarget::of_branch("main", "main", nudge);
        let intake = Intake::new(vec![target], snapshot.clone(), shared, "r0");
        Self { store, snapshot, intake, nudged }
    }

    async fn take(&mut self, incoming: IncomingRequest) -> (String, Outcome) {
        let taken = self.intake.accept(self.intake.target(None).unwrap(), incoming).await;
        let newest = self.store.revision();
        while self.snapshot.current().revision < newest {
            self.snapshot.changed().await;
        }
        (taken.request, taken.outcome)
    }

    async fn requests(&self) -> Vec<SyncRequest> {
        let items = self.store.list(prefix::REQUESTS).await.unwrap().items;
        items.iter().map(|item| decode(&item.value).unwrap()).collect()
    }

    async fn was_nudged(&self) -> bool {
        tokio::time::timeout(Duration::from_millis(1), self.nudged.wait()).await.is_ok()
    }
}

fn push(id: Option<&str>, body: &str) -> IncomingRequest {
    IncomingRequest {
        provider: Provider::GitHub,
        event: "push".to_owned(),
        id: id.map(str::to_owned),
        hint: Hint { reference: Some("refs/heads/main".to_owned()), ..Hint::default() },
        body: body.to_owned(),
        peer: "192.0.2.7".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_request_again_writes_nothing_and_another_one_does() {
    let mut house = House::new();
    assert_eq!(house.take(push(Some("d1"), "b1")).await, ("main-github-d1".into(), Outcome::Accepted));
    let before = house.store.revision();
    assert_eq!(house.take(push(Some("d1"), "b1")).await, ("main-github-d1".into(), Outcome::Duplicate));
    assert_eq!(house.store.revision(), before);
    assert_eq!(house.take(push(Some("d2"), "b2")).await.1, Outcome::Accepted);
    assert_eq!(house.requests().await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_replayed_under_other_ids_makes_no_new_requests() {
    let mut house = House::new();
    house.take(push(Some("d1"), "b1")).await;
    for n in 0..20 {
        let (id, outcome) = house.take(push(Some(&format!("forged-{n}")), "b1")).await;
        assert_eq!((id.as_str(), outcome), ("main-github-d1", Outcome::Repeated));
    }
    let requests = house.requests().await;
    assert_eq!((requests.len(), requests[0].repeats), (1, 20));
}

#[tokio::test(start_paused = true)]
async fn senders_without_ids_wait_for_an_answer_every_time() {
    let mut house = House::new();
    let generic = || IncomingRequest { provider: Provider::Generic, ..push(None, "0123456789abcdef0123") };
    let (id, _) = house.take(generic()).await;
    assert!(id.starts_with("main-generic-0123456789abcdef-"), "{id}");
    let before = house.store.revision();
    house.take(generic()).await;
    assert!(house.store.revision() > before, "who leads elsewhere would not hear of it");
}

#[tokio::test(start_paused = true)]
async fn every_one_for_the_branch_nudges_and_no_other_does() {
    let mut house = House::new();
    let table = [
        ("push", "refs/heads/main", true),
        ("push", "refs/heads/other", false),
        ("issues", "refs/heads/main", false),
        ("push", "", true),
    ];
    for (n, (event, reference, wanted)) in table.into_iter().enumerate() {
        let reference = Some(reference.to_owned()).filter(|name| !name.is_empty());
        let hint = Hint { reference, ..Hint::default() };
        let id = n.to_string();
        house.take(IncomingRequest { event: event.to_owned(), hint, ..push(Some(&id), &id) }).await;
        assert_eq!(house.was_nudged().await, wanted, "{event} {n}");
        let request = house.requests().await.pop().unwrap();
        assert_eq!(request.outcome == RequestOutcome::Accepted, wanted);
    }
    house.take(push(Some("0"), "0")).await;
    assert!(house.was_nudged().await, "a duplicate is harmless, a lost one is not");
}

#[tokio::test(start_paused = true)]
async fn without_etcd_the_nudge_stands_alone_and_the_sender_hears_of_it() {
    let mut house = House::new();
    house.store.refuse_everything(true);
    let taken = house.intake.accept(house.intake.target(None).unwrap(), push(Some("d1"), "b1")).await;
    assert_eq!(taken.outcome, Outcome::Accepted);
    assert!(taken.note.unwrap().starts_with("cannot write the sync request"));
    assert!(house.was_nudged().await);
    house.store.refuse_everything(false);
    assert_eq!(house.take(push(Some("d1"), "b1")).await.1, Outcome::Accepted);
}

#[tokio::test(start_paused = true)]
async fn an_etcd_that_was_made_anew_has_no_lease_and_gets_one() {
    let mut house = House::new();
    house.take(push(Some("d1"), "b1")).await;
    house.store.lose_everything();
    let taken = house.intake.accept(house.intake.target(None).unwrap(), push(Some("d2"), "b2")).await;
    assert_eq!((taken.outcome, taken.note), (Outcome::Accepted, None));
    assert_eq!(house.requests().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn requests_are_gone_after_a_day_and_an_hour_and_not_before_a_day() {
    let mut house = House::new();
    house.take(push(Some("d1"), "b1")).await;
    tokio::time::advance(Duration::from_secs(3500)).await;
    house.take(push(Some("d2"), "b2")).await;
    tokio::time::advance(Duration::from_secs(24 * 3600)).await;
    assert!(house.store.get(&Key::Request("main-github-d2".into()).to_string()).await.unwrap().is_some());
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(house.requests().await, []);
}

#[tokio::test(start_paused = true)]
async fn many_requests_of_the_command_line_push_out_no_request_of_a_webhook() {
    let mut house = House::new();
    house.take(push(Some("d1"), "b1")).await;
    for n in 0..WEBHOOK_REQUESTS_MAX {
        let incoming = IncomingRequest { provider: Provider::Cli, ..push(Some(&format!("{n:05}")), "") };
        house.take(incoming).await;
    }
    let requests = house.requests().await;
    assert_eq!(requests.len(), 1 + CLI_REQUESTS_MAX);
    assert_eq!(requests[0].id, "main-cli-00950", "the newest are kept");
    assert_eq!(house.take(push(Some("d1"), "b1")).await.1, Outcome::Duplicate);
}

#[tokio::test(start_paused = true)]
async fn no_more_requests_are_kept_than_the_limit_and_the_oldest_go() {
    let mut house = House::new();
    for n in 0..WEBHOOK_REQUESTS_MAX + 5 {
        house.take(push(Some(&format!("{n:05}")), &n.to_string())).await;
    }
    let requests = house.requests().await;
    assert_eq!(requests.len(), WEBHOOK_REQUESTS_MAX);
    assert_eq!(requests[0].id, "main-github-00005");
}
