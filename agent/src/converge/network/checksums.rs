//! Tests a new tunnel for TCP connectivity, with the first node that answers.
//!
//! Some network cards and hypervisors claim to compute checksums within a tunnel and do not: DNS and ping work
//! across nodes, but every connection hangs. The kernel then computes them instead.
//! nodes, and every connection hangs. The kernel computes them then.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;

use crate::worlds::netlink::{NetlinkError, Tunnels};

/// Trials of one link while no node answers, 1.6 s each; then its checksums stay as they are. When nodes start
/// together, the first has its tunnel before another can answer.
pub(super) const TRIALS_MAX: u8 = 5;

/// Result of a trial.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TrialResult {
    Sound,
    /// TCP reaches this node only with the kernel's checksums, which stay on.
    Computed(String),
    Silence,
}

/// Tries the card's checksums, then the kernel's, then the card's again, so that a randomly lost packet costs no
/// throughput.
pub(super) async fn try_checksums(
    tunnels: &dyn Tunnels,
    tunnel: &str,
    asked: &BTreeMap<SocketAddr, String>,
) -> Result<TrialResult, NetlinkError> {
    if first_answer(tunnels, asked.keys()).await.is_some() {
        return Ok(TrialResult::Sound);
    }
    tunnels.set_offload(tunnel, false).await?;
    let reached = first_answer(tunnels, asked.keys()).await;
    tunnels.set_offload(tunnel, true).await?;
    let Some(reached) = reached else { return Ok(TrialResult::Silence) };
    if tunnels.answers(reached).await {
        return Ok(TrialResult::Sound);
    }
    tunnels.set_offload(tunnel, false).await?;
    Ok(TrialResult::Computed(asked[&reached].clone()))
}

async fn first_answer(tunnels: &dyn Tunnels, asked: impl Iterator<Item = &SocketAddr>) -> Option<SocketAddr> {
    let ask = async |at: SocketAddr| tunnels.answers(at).await.then_some(at);
    let mut answers: FuturesUnordered<_> = asked.map(|at| ask(*at)).collect();
    while let Some(answer) = answers.next().await {
        if answer.is_some() {
            return answer;
        }
    }
    None
}
