//! Carries a trial out.

use futures::future::join_all;

use schema::control::Plan as _;

use super::plan::{Trial, Verdict};
use crate::worlds::netlink::{Checksums, NetlinkError};

/// With the card's checksums, with the kernel's, and with the card's again: what was lost by chance the first
/// time is not mended at the cost of throughput.
pub(super) async fn carry_out(
    checksums: &dyn Checksums,
    tunnel: &str,
    asked: &Trial,
) -> Result<Verdict, NetlinkError> {
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
