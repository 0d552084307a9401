//! Carries a trial out.

use futures::future::join_all;

use super::ChecksumsDeps;
use super::plan::{Step, Trial, Verdict};
use crate::worlds::netlink::{Checksums, NetlinkError, Offload};

/// Does it, and says what it showed.
pub(super) async fn carry_out(
    deps: &ChecksumsDeps,
    offload: Offload,
    step: &Step,
) -> Result<Verdict, NetlinkError> {
    match step {
        Step::Recover => recover(deps).await,
        Step::Ask(trial) if trial.0.is_empty() => Ok(Verdict::Untried),
        Step::Ask(trial) => ask(deps, offload, trial).await,
    }
}

/// With the card's checksums, with the kernel's, and with the card's again: what was lost by chance the first
/// time is not mended at the cost of throughput.
async fn ask(deps: &ChecksumsDeps, offload: Offload, asked: &Trial) -> Result<Verdict, NetlinkError> {
    let (checksums, tunnel) = (deps.checksums.as_ref(), deps.tunnel.as_str());
    if !answering(checksums, asked).await.0.is_empty() {
        return Ok(Verdict::Sound);
    }
    if let Err(error) = std::fs::write(&deps.mark, offload.index.to_string()) {
        tracing::warn!(%error, file = %deps.mark.display(), "checksums: no trial without this file");
        return Ok(Verdict::Silence);
    }
    checksums.set_offload(tunnel, false).await?;
    let reached = answering(checksums, asked).await;
    checksums.set_offload(tunnel, true).await?;
    let verdict = match reached.0.values().next() {
        None => Verdict::Silence,
        Some(_) if !answering(checksums, &reached).await.0.is_empty() => Verdict::Sound,
        Some(node) => {
            checksums.set_offload(tunnel, false).await?;
            Verdict::Computed(node.clone())
        }
    };
    let _ = std::fs::remove_file(&deps.mark);
    Ok(verdict)
}

/// What a trial left off that nobody ended is on again.
async fn recover(deps: &ChecksumsDeps) -> Result<Verdict, NetlinkError> {
    deps.checksums.set_offload(&deps.tunnel, true).await?;
    let _ = std::fs::remove_file(&deps.mark);
    Ok(Verdict::Recovered)
}

/// Those of them who answer.
async fn answering(checksums: &dyn Checksums, asked: &Trial) -> Trial {
    let answers =
        asked.0.iter().map(async |(at, node)| checksums.answers(*at).await.then(|| (*at, node.clone())));
    Trial(join_all(answers).await.into_iter().flatten().collect())
}
