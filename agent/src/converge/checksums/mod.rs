//! The checksums loop: does TCP get through the tunnel when the card computes the checksums?
//!
//! Some cards and virtual machines say that they compute those of packets within a tunnel, and do not: names
//! are answered, pings too, and every connection to a pod of another node hangs. So each link is tried once
//! when it is there, and where only the kernel's own checksums get through, these it is. Who switched them
//! already is left alone.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation};
use tokio::sync::watch;
use tokio::time::Instant;

mod act;
mod observe;
pub mod plan;
#[cfg(test)]
mod tests;

use self::plan::{History, Observed, Step, Verdict};
use crate::catalog::Catalog;
use crate::worlds::netlink::{Checksums, Tunnels};

/// How often the link is looked at; a change of the other nodes wakes the loop.
pub const INTERVAL: Duration = Duration::from_secs(10);

/// What the loop reads and writes.
pub struct ChecksumsDeps {
    /// Who computes the checksums.
    pub checksums: Arc<dyn Checksums>,
    /// The entries of the tunnel.
    pub tunnels: Arc<dyn Tunnels>,
    /// Name of the tunnel.
    pub tunnel: String,
    /// UDP port of the tunnel, which no one uses for TCP.
    pub port: u16,
    /// The other nodes.
    pub catalog: watch::Receiver<Arc<Catalog>>,
    /// While the offload is off for a trial, this file holds the link's number: an agent that ends then
    /// leaves it to the next one to switch it on again.
    pub mark: PathBuf,
}

/// The loop.
pub struct ChecksumsLoop {
    deps: ChecksumsDeps,
    history: History,
}

impl ChecksumsLoop {
    /// A loop that has tried nothing yet.
    pub fn new(deps: ChecksumsDeps) -> Self {
        Self { deps, history: History::default() }
    }
}

#[async_trait]
impl Loop for ChecksumsLoop {
    type Observed = Observed;
    type Plan = Step;
    type Outcome = (u32, Step, Verdict);

    fn name(&self) -> &'static str {
        "checksums"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        self.look().await
    }

    fn plan(observed: &Observed, _now: Timestamp) -> Step {
        plan::plan(observed)
    }

    async fn act(&mut self, observed: &Observed, step: Step) -> (u32, Step, Verdict) {
        let verdict = act::carry_out(&self.deps, observed.offload, &step).await;
        let verdict = verdict.unwrap_or_else(|error| Verdict::Refused(error.to_string()));
        (observed.offload.index, step, verdict)
    }

    async fn report(
        &mut self,
        _observed: Observed,
        (index, step, verdict): (u32, Step, Verdict),
    ) -> Result<Next, LoopError> {
        let tunnel = &self.deps.tunnel;
        if let (Step::Recover, Verdict::Refused(why)) = (&step, &verdict) {
            // The mark stays, so it is tried again, ever later.
            return Err(LoopError::message(format!(
                "cannot give the checksums of {tunnel} back to the card after a trial that was not brought to \
                 its end: {why}"
            )));
        }
        match &verdict {
            Verdict::Untried | Verdict::Sound | Verdict::Silence => {}
            Verdict::Recovered => tracing::info!(
                "checksums: those of {tunnel} are the card's again: a trial was not brought to its end"
            ),
            Verdict::Computed(node) => tracing::warn!(
                "checksums: TCP through {tunnel} reaches node {node} only with checksums that the kernel \
                 computes; it does from now on, which costs throughput (tx-checksum-ip-generic is off)"
            ),
            Verdict::Refused(why) => tracing::warn!("checksums: those of {tunnel} stay as they are: {why}"),
        }
        if let Step::Ask(trial) = &step {
            self.history = self.history.after(index, trial, &verdict, Instant::now().into_std());
        }
        // Tried anew at once, as if nothing had been.
        Ok(if verdict == Verdict::Recovered { Next::After(Duration::ZERO) } else { Next::Interval })
    }
}
