//! Tells how far the rules are: to this node's own loops at once, to the others through
//! `rules/<node>`, when it changes and at most once a second.

use std::time::Duration;

use jiff::Timestamp;
use schema::codec::encode;
use schema::control::{LoopError, Next};
use schema::keys::Key;
use schema::records::{EventType, RulesStatus};
use schema::store::events::EventDraft;
use schema::store::{Guard, Op, SharedStore, StoreError, TxnOutcome};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::ServicesLoop;
use super::act::{Outcome, Refusal};
use super::plan::Observed;
use super::refused::RETRY;

/// Between two writes, and between two tries when the store does not answer.
const SPACING: Duration = Duration::from_secs(1);
/// How often it is looked whether the key still holds what was written: etcd may have been lost.
const AUDIT: Duration = Duration::from_secs(30);
/// After a service was left out: time for others, not for the cause.
const AGAIN: Duration = Duration::from_millis(100);

impl ServicesLoop {
    pub(super) fn tell(&mut self, observed: &Observed, outcome: &Outcome) -> Result<Next, LoopError> {
        outcome.done.iter().for_each(|sentence| tracing::info!("services: {sentence}"));
        outcome.tolerated.iter().for_each(|sentence| tracing::warn!("services: {sentence}"));
        outcome.refused.iter().for_each(|refusal| self.tell_refused(refusal));
        let error = outcome.failed.join("; ");
        let is_done = error.is_empty() && outcome.refused.is_empty() && !outcome.is_outdated;
        // Of what the disk knows no revision is known, and nobody waits for one.
        if let Some(revision) = observed.revision {
            let is_news = |known: &mut i64| std::mem::replace(known, revision) != revision;
            if is_done && self.deps.programmed.send_if_modified(is_news) {
                self.programmed_at = Some(Timestamp::now());
            }
            let (left_out, more) = self.rendered.refused.named();
            let (revision, programmed_at) = (*self.deps.programmed.borrow(), self.programmed_at);
            let mut status = RulesStatus { revision, programmed_at, error: error.clone(), left_out };
            if more > 0 && status.error.is_empty() {
                // Nobody may read of one of these that it is programmed.
                status.error = format!("{more} services more than can be named are left out; see the events");
            }
            self.deps.status.send_if_modified(|known| {
                let status = Some(status);
                let differs = *known != status;
                *known = status;
                differs
            });
        }
        match error.is_empty() {
            true if !is_done => Ok(Next::After(AGAIN)),
            true => Ok(self.read_again.map_or(Next::Interval, Next::After)),
            false => Err(LoopError::message(error)),
        }
    }

    fn tell_refused(&self, Refusal { service: id, why, is_news }: &Refusal) {
        if !is_news {
            tracing::debug!("services: {id} was tried again and is left out as before: {why}");
            return;
        }
        let (node, seconds) = (&self.deps.node, RETRY.as_secs());
        tracing::warn!(
            "services: {id} is left out until it changes, and tried again each {seconds} s: {why}"
        );
        self.deps.events.record(EventDraft {
            kind: EventType::Warning,
            object_kind: "Service".to_owned(),
            namespace: id.namespace.clone(),
            name: id.name.clone(),
            reason: "RulesRefused".to_owned(),
            message: format!(
                "node {node} programs it not, until it changes or a try, one each {seconds} s, succeeds: {why}"
            ),
        });
    }
}

/// Writes the newest status of the rules until it is told to end. When etcd is away it waits here.
pub struct RulesWriter {
    key: String,
    store: SharedStore,
    written: Option<(RulesStatus, i64)>,
}

impl RulesWriter {
    /// A writer for `node`.
    pub fn new(node: &str, store: SharedStore) -> Self {
        Self { key: Key::Rules(node.to_owned()).to_string(), store, written: None }
    }

    /// Runs until `shutdown`.
    pub async fn run(
        mut self,
        mut statuses: watch::Receiver<Option<RulesStatus>>,
        shutdown: CancellationToken,
    ) {
        let run = async {
            let mut audit = Instant::now() + AUDIT;
            loop {
                let newest = statuses.borrow_and_update().clone();
                let begun = Instant::now();
                let result = match newest {
                    Some(status) => self.write(&status, begun >= audit).await,
                    None => Ok(()),
                };
                if begun >= audit {
                    audit = begun + AUDIT;
                }
                match result {
                    Ok(()) => {
                        // Over with the next change or the next audit; over either way.
                        let _ = timeout_at(audit, statuses.changed()).await;
                    }
                    Err(error) => tracing::debug!(%error, "the status of the rules is written later"),
                }
                sleep_until(begun + SPACING).await;
            }
        };
        // Cancel-safe: a write is one transaction.
        let _: Option<()> = shutdown.run_until_cancelled(run).await;
    }

    async fn write(&mut self, status: &RulesStatus, look: bool) -> Result<(), StoreError> {
        if self.written.is_none() || look {
            self.learn().await?;
        }
        // The agent before may have programmed this: then it is so since then.
        let since = self.written.as_ref().filter(|(written, _)| written.revision == status.revision);
        let programmed_at = since.and_then(|(written, _)| written.programmed_at).or(status.programmed_at);
        let status = &RulesStatus { programmed_at, ..status.clone() };
        if self.written.as_ref().is_some_and(|(written, _)| written == status) {
            return Ok(());
        }
        let guard = match &self.written {
            Some((_, revision)) => Guard::ModRevision(self.key.clone(), *revision),
            None => Guard::Absent(self.key.clone()),
        };
        let refused = |message: String| StoreError::Request { act: "the status of the rules", message };
        let bytes = encode(status).map_err(|error| refused(error.to_string()))?;
        match self.store.txn(vec![guard], vec![Op::put(&self.key, bytes)]).await? {
            TxnOutcome::Committed(revision) => {
                self.written = Some((status.clone(), revision));
                Ok(())
            }
            TxnOutcome::Conflict => {
                self.written = None;
                Err(refused("the key is not what was written last".to_owned()))
            }
        }
    }

    /// Takes over what is stored. What can't be read is written anew.
    async fn learn(&mut self) -> Result<(), StoreError> {
        let stored = self.store.get(&self.key).await?;
        self.written = stored.map(|stored| {
            let status = schema::codec::decode(&stored.value).unwrap_or_default();
            (status, stored.mod_revision)
        });
        Ok(())
    }
}
