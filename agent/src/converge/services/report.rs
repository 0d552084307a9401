//! Reports the progress of the rules: to this node's own loops immediately, to others through etcd on change, at
//! most once a second.

use std::time::Duration;

use jiff::Timestamp;
use schema::control::{LoopError, Next};
use schema::kinds::Kind;
use schema::records::{EventType, RulesStatus};
use schema::store::events::EventDraft;

use super::act::{Outcome, Refusal};
use super::plan::Observed;
use super::refused::RETRY;
use super::state::ServicesLoop;
use crate::converge::publish;

/// Pause after a service was left out: enough for the other services, not a fix of the cause.
const AGAIN: Duration = Duration::from_millis(100);

impl ServicesLoop {
    pub(super) fn publish_status(
        &mut self,
        observed: &Observed,
        outcome: &Outcome,
    ) -> Result<Next, LoopError> {
        outcome.done.iter().for_each(|sentence| tracing::info!("services: {sentence}"));
        outcome.tolerated.iter().for_each(|sentence| tracing::warn!("services: {sentence}"));
        outcome.refused.iter().for_each(|refusal| self.record_refusal(refusal));
        let error = outcome.failed.join("; ");
        let is_done = error.is_empty() && outcome.refused.is_empty() && !outcome.is_outdated;
        // A catalog from disk has no revision to report.
        if let Some(revision) = observed.revision {
            if is_done && publish(&self.deps.programmed, revision) {
                self.programmed_at = Some(Timestamp::now());
            }
            let (left_out, more) = self.rendered.refused.named();
            let (revision, programmed_at) = (*self.deps.programmed.borrow(), self.programmed_at);
            let mut status = RulesStatus { revision, programmed_at, error: error.clone(), left_out };
            if more > 0 && status.error.is_empty() {
                // These must not count as programmed.
                status.error = format!("{more} more services are not programmed; see the events");
            }
            publish(&self.deps.status, Some(status));
        }
        match error.is_empty() {
            true if !is_done => Ok(Next::After(AGAIN)),
            true => Ok(self.rules.read_again().map_or(Next::Interval, Next::After)),
            false => Err(LoopError::message(error)),
        }
    }

    fn record_refusal(&self, Refusal { service: id, why, is_news }: &Refusal) {
        if !is_news {
            tracing::debug!("services: {id} was tried again and is left out as before: {why}");
            return;
        }
        let (node, seconds) = (&self.deps.node, RETRY.as_secs());
        tracing::warn!(
            "services: {id} is left out until it changes, and tried again each {seconds} s: {why}"
        );
        let message = format!("node {node} could not program it; retrying every {seconds} s: {why}");
        let draft = EventDraft::of(EventType::Warning, Kind::Service, id, "RulesRefused", message);
        self.deps.events.record(draft);
    }
}
