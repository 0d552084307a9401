//! The one place that takes requests to look at a repository: webhooks and `minik8s sync`.
//!
//! It nudges the loop of this process first and writes the receipt then, which wakes the leader if that is another
//! process. Without etcd the nudge stands alone.

use jiff::Timestamp;
use schema::control::Nudge;
use schema::keys::Key;
use schema::records::{Delivery, DeliveryOutcome, Provider};
use schema::store::SharedStore;
use schema::store::reflector::SnapshotReader;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::decide::{self, Decision};
use super::payload::{self, Hint};
use super::provider::{EventKind, event_kind};
use super::receipts::{ReceiptError, Receipts};
use crate::git::Reference;

#[derive(Debug, Clone)]
pub struct SourceTarget {
    pub source: String,
    pub follows: Reference,
    pub nudge: Nudge,
}

impl SourceTarget {
    /// The target of a source that follows a branch.
    pub fn of_branch(source: &str, branch: &str, nudge: Nudge) -> Self {
        Self { source: source.to_owned(), follows: Reference::Branch(branch.to_owned()), nudge }
    }
}

pub struct Intake {
    targets: Vec<SourceTarget>,
    snapshot: SnapshotReader,
    pub(super) receipts: Receipts,
    identity: String,
}

/// Someone who asks, let in already.
#[derive(Debug, Clone)]
pub struct IncomingDelivery {
    pub provider: Provider,
    /// The provider's word for what has happened.
    pub event: String,
    pub id: Option<String>,
    pub hint: Hint,
    /// SHA-256 of the body in hex; empty without a body.
    pub body: String,
    pub peer: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub delivery: String,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    Accepted,
    Repeated,
    Duplicate,
    Ignored,
}

impl Intake {
    /// Takes requests for `targets`, at the reconciler `identity`.
    pub fn new(
        targets: Vec<SourceTarget>,
        snapshot: SnapshotReader,
        store: SharedStore,
        identity: impl Into<String>,
    ) -> Self {
        Self { targets, snapshot, receipts: Receipts::new(store), identity: identity.into() }
    }

    pub fn targets(&self) -> &[SourceTarget] {
        &self.targets
    }

    /// The source of that name; without a name, the only one.
    pub fn target(&self, source: Option<&str>) -> Option<&SourceTarget> {
        match (source, self.targets.as_slice()) {
            (Some(name), targets) => targets.iter().find(|target| target.source == name),
            (None, [only]) => Some(only),
            (None, _) => None,
        }
    }

    /// Lets someone in. Never fails: whatever cannot be written down is done all the same.
    pub async fn take(&self, target: &SourceTarget, incoming: IncomingDelivery) -> Receipt {
        let ignored = match event_kind(&incoming.event) {
            EventKind::Push => payload::not_followed(&target.follows, &incoming.hint),
            EventKind::Ping => Some("a ping asks for nothing".to_owned()),
            EventKind::Other => Some(format!("`{}` moves no branch or tag", incoming.event)),
        };
        // Before the nudge: the run that it wakes begins later than the receipt says, and answers it.
        let received_at = Timestamp::now();
        if ignored.is_none() {
            // Before anything that may take time, and whether or not it came before.
            target.nudge.nudge();
        }
        let own_id = incoming.id.clone();
        let new = self.receipt(target, incoming, ignored, received_at);
        let taken = match self.note(&new, own_id.is_some()).await {
            Ok(taken) => taken,
            Err(error) => {
                tracing::warn!(%error, source = target.source, "a hook has no receipt");
                let outcome = if new.outcome == DeliveryOutcome::Accepted {
                    Outcome::Accepted
                } else {
                    Outcome::Ignored
                };
                let note = format!("{error}; this reconciler looks anyway if it leads");
                Receipt { delivery: new.id.clone(), outcome, note: Some(note) }
            }
        };
        tracing::info!(
            id = taken.delivery, provider = %new.provider, event = new.event, source = new.source,
            peer = new.peer, outcome = ?taken.outcome, "took a hook in"
        );
        taken
    }

    fn receipt(
        &self,
        target: &SourceTarget,
        incoming: IncomingDelivery,
        ignored: Option<String>,
        received_at: Timestamp,
    ) -> Delivery {
        let mut new = Delivery {
            id: String::new(),
            provider: incoming.provider,
            event: incoming.event,
            source: target.source.clone(),
            repository: incoming.hint.repository,
            reference: incoming.hint.reference,
            commit_hint: incoming.hint.commit,
            received_at,
            repeated_at: None,
            repeats: 0,
            peer: incoming.peer,
            body: incoming.body,
            by: self.identity.clone(),
            outcome: ignored.map_or(DeliveryOutcome::Accepted, |why| DeliveryOutcome::Ignored { why }),
        };
        new.id = decide::id(&new, incoming.id.as_deref());
        new
    }

    /// Writes the request, or counts it at the former one. Without a guard: the later of two stands and is answered.
    async fn note(&self, new: &Delivery, has_own_id: bool) -> Result<Receipt, ReceiptError> {
        let requests = &self.snapshot.current().requests;
        let known = match requests.get(&new.id) {
            Some(known) => Some(known.value.clone()),
            // It may have come just now: etcd knows more than the snapshot.
            None => self.receipts.read(&new.id).await?,
        };
        let (id, outcome) = match decide::decide(requests, known.as_ref(), new, has_own_id) {
            Decision::Duplicate { id } => (id, Outcome::Duplicate),
            Decision::Write { remove } => {
                self.write(new, &remove).await?;
                (new.id.clone(), Outcome::Accepted)
            }
            Decision::Repeat(request) => {
                self.write(&request, &[]).await?;
                (request.id.clone(), Outcome::Repeated)
            }
        };
        let (outcome, note) = match &new.outcome {
            DeliveryOutcome::Ignored { why } => (ignored(outcome), Some(why.clone())),
            DeliveryOutcome::Accepted => (outcome, None),
        };
        Ok(Receipt { delivery: id, outcome, note })
    }

    async fn write(&self, request: &Delivery, remove: &[Key]) -> Result<(), ReceiptError> {
        let key = Key::Request(request.id.clone());
        self.receipts.write(&key, request, Vec::new(), remove).await.map(|_| ())
    }
}

fn ignored(outcome: Outcome) -> Outcome {
    if outcome == Outcome::Duplicate { outcome } else { Outcome::Ignored }
}

/// SHA-256 in hex, as receipts hold it.
pub(super) fn digest(hash: Sha256) -> String {
    hex::encode(hash.finalize())
}
