//! Carries a trial out.

use futures::future::join_all;

use schema::control::Plan as _;

use super::ChecksumsDeps;
use super::plan::{Trial, Verdict};
use crate::worlds::netlink::{Checksums, NetlinkError, Offload};

/// With the card's checksums, with the kernel's, and with the card's again: what was lost by chance the first
/// time is not mended at the cost of throughput.
pub(super) async fn carry_out(
    deps: &ChecksumsDeps,
    offload: Offload,
    asked: &Trial,
) -> Result<Verdict, NetlinkError> {
    let (checksums, tunnel) = (deps.checksums.as_ref(), deps.tunnel.as_str());
    if !answering(checksums, asked).await.is_empty() {
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
        Some(_) if !answering(checksums, &reached).await.is_empty() => Verdict::Sound,
        Some(node) => {
            checksums.set_offload(tunnel, false).await?;
            Verdict::Computed(node.clone())
        }
    };
    let _ = std::fs::remove_file(&deps.mark);
    Ok(verdict)
}

/// What a trial left off that nobody ended is on again.
pub(super) async fn recover(deps: &ChecksumsDeps, offload: Offload) -> Result<Offload, NetlinkError> {
    let is_left = || std::fs::read_to_string(&deps.mark).is_ok_and(|text| text == offload.index.to_string());
    if offload.is_on || !is_left() {
        return Ok(offload);
    }
    deps.checksums.set_offload(&deps.tunnel, true).await?;
    let _ = std::fs::remove_file(&deps.mark);
    tracing::info!(
        "checksums: those of {} are the card's again: a trial was not brought to its end",
        deps.tunnel
    );
    Ok(Offload { is_on: true, ..offload })
}

/// Those of them who answer.
async fn answering(checksums: &dyn Checksums, asked: &Trial) -> Trial {
    let answers =
        asked.0.iter().map(async |(at, node)| checksums.answers(*at).await.then(|| (*at, node.clone())));
    Trial(join_all(answers).await.into_iter().flatten().collect())
}
