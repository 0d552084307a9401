//! The checksums loop: does TCP get through the tunnel when the card computes the checksums?
//!
//! Some cards and virtual machines say that they compute those of packets within a tunnel, and do not: names
//! are answered, pings too, and every connection to a pod of another node hangs. So each link is tried once
//! when it is there, and where only the kernel's own checksums get through, these it is. Who switched them
//! already is left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use jiff::Timestamp;
use schema::control::{Loop, LoopError, Next, Observation, Plan};
use tokio::sync::watch;
use tokio::time::Instant;

#[cfg(test)]
mod tests;

use crate::catalog::Catalog;
use crate::worlds::netlink::{Checksums, NetlinkError, Offload, TunnelEntry, Tunnels};

/// How often the link is looked at; a change of the other nodes wakes the loop.
pub const INTERVAL: Duration = Duration::from_secs(10);

/// So many nodes are asked at once: one that is away, or lets no TCP in, says nothing of the tunnel.
const ASKED_MAX: usize = 3;

/// The wait after a trial that nobody answered: the other nodes may be about to start.
const RETRY_FIRST: Duration = Duration::from_secs(10);

/// With so many of these the last wait is five minutes, and nobody is expected to answer any more.
const TRIALS_MAX: u32 = 6;

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

/// What is known of a link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// The link's number.
    index: Option<u32>,
    /// It is decided.
    is_settled: bool,
    /// Of these nodes nobody answered, so often.
    silent: BTreeSet<SocketAddr>,
    trials: u32,
    not_before: Option<Instant>,
}

/// The link, and who could answer behind it.
#[derive(Debug, Clone)]
pub struct Observed {
    offload: Offload,
    peers: BTreeMap<SocketAddr, String>,
    history: History,
    now: Instant,
}

/// Whom to ask; nobody: nothing to find out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trial(BTreeMap<SocketAddr, String>);

impl Plan for Trial {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a trial showed.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing was tried.
    Untried,
    /// TCP gets through as it is.
    Sound,
    /// It reaches this node only with the kernel's checksums, which are computed from now on.
    Computed(String),
    /// Nobody answered, with whosever checksums.
    Silence,
    /// The kernel does not let them be set.
    Refused(String),
}

/// Whom to ask now. Total and pure.
pub fn plan(seen: &Observed) -> Trial {
    let history = &seen.history;
    let is_new = history.index != Some(seen.offload.index);
    if !seen.offload.is_on || (history.is_settled && !is_new) {
        return Trial::default();
    }
    // Those who were silent once are asked last.
    let (silent, others): (Vec<_>, Vec<_>) =
        seen.peers.iter().partition(|(at, _)| history.silent.contains(at));
    let waits = history.not_before.is_some_and(|at| seen.now < at) || history.trials >= TRIALS_MAX;
    if !is_new && waits && others.is_empty() {
        return Trial::default();
    }
    let asked = others.into_iter().chain(silent).take(ASKED_MAX);
    Trial(asked.map(|(at, node)| (*at, node.clone())).collect())
}

impl History {
    /// With what a trial of this link showed.
    fn after(&self, index: u32, asked: &Trial, verdict: &Verdict, now: Instant) -> Self {
        let mut next = match self.index == Some(index) {
            true => self.clone(),
            false => Self { index: Some(index), ..Self::default() },
        };
        match verdict {
            Verdict::Untried => {}
            Verdict::Sound | Verdict::Computed(_) | Verdict::Refused(_) => next.is_settled = true,
            Verdict::Silence => {
                if !asked.0.keys().all(|at| next.silent.contains(at)) {
                    next.trials = 0;
                }
                next.silent.extend(asked.0.keys());
                next.not_before = Some(now + RETRY_FIRST * 2_u32.pow(next.trials.min(TRIALS_MAX)));
                next.trials += 1;
            }
        }
        next
    }
}

#[async_trait]
impl Loop for ChecksumsLoop {
    type Observed = Observed;
    type Plan = Trial;
    type Outcome = (u32, Trial, Verdict);

    fn name(&self) -> &'static str {
        "checksums"
    }

    async fn observe(&mut self) -> Result<Observation<Observed>, LoopError> {
        let failed = |error| LoopError::new("cannot look at the tunnel's checksums", error);
        let name = &self.deps.tunnel;
        let Some(offload) = self.deps.checksums.offload_of(name).await.map_err(failed)? else {
            return Ok(Observation::NotReady("there is no tunnel yet; the network loop makes it".to_owned()));
        };
        let entries = self.deps.tunnels.tunnel_entries(name).await.map_err(failed)?;
        let catalog = self.deps.catalog.borrow_and_update().clone();
        let there = catalog.peers.iter().filter(|(_, peer)| peer.absent_since.is_none());
        let peers = there
            .filter(|(_, peer)| entries.contains(&TunnelEntry::Route(peer.cidr.trunc(), peer.cidr.network())))
            .map(|(node, peer)| ((peer.cidr.network(), self.deps.port).into(), node.clone()));
        let (peers, history) = (peers.collect(), self.history.clone());
        Ok(Observation::Ready(Observed { offload, peers, history, now: Instant::now() }))
    }

    fn plan(observed: &Observed, _now: Timestamp) -> Trial {
        plan(observed)
    }

    async fn act(&mut self, observed: &Observed, trial: Trial) -> (u32, Trial, Verdict) {
        let verdict = match trial.is_empty() {
            true => Verdict::Untried,
            false => match carry_out(self.deps.checksums.as_ref(), &self.deps.tunnel, &trial).await {
                Ok(verdict) => verdict,
                Err(error) => Verdict::Refused(error.to_string()),
            },
        };
        (observed.offload.index, trial, verdict)
    }

    async fn report(
        &mut self,
        _observed: Observed,
        (index, trial, verdict): (u32, Trial, Verdict),
    ) -> Result<Next, LoopError> {
        let tunnel = &self.deps.tunnel;
        match &verdict {
            Verdict::Untried | Verdict::Sound | Verdict::Silence => {}
            Verdict::Computed(node) => tracing::warn!(
                "checksums: TCP through {tunnel} reaches node {node} only with checksums that the kernel \
                 computes; it does from now on, which costs throughput (tx-checksum-ip-generic is off)"
            ),
            Verdict::Refused(why) => tracing::warn!("checksums: those of {tunnel} stay as they are: {why}"),
        }
        self.history = self.history.after(index, &trial, &verdict, Instant::now());
        Ok(Next::Interval)
    }
}

/// With the card's checksums, with the kernel's, and with the card's again: what was lost by chance the first
/// time is not mended at the cost of throughput.
async fn carry_out(checksums: &dyn Checksums, tunnel: &str, asked: &Trial) -> Result<Verdict, NetlinkError> {
    if !answering(checksums, asked).await.is_empty() {
        return Ok(Verdict::Sound);
    }
    checksums.set_offload(tunnel, false).await?;
    let reached = answering(checksums, asked).await;
    checksums.set_offload(tunnel, true).await?;
    let Some(node) = reached.0.values().next() else { return Ok(Verdict::Silence) };
    if !answering(checksums, &reached).await.is_empty() {
        return Ok(Verdict::Sound);
    }
    checksums.set_offload(tunnel, false).await?;
    Ok(Verdict::Computed(node.clone()))
}

/// Those of them who answer.
async fn answering(checksums: &dyn Checksums, asked: &Trial) -> Trial {
    let answers =
        asked.0.iter().map(async |(at, node)| checksums.answers(*at).await.then(|| (*at, node.clone())));
    Trial(join_all(answers).await.into_iter().flatten().collect())
}
