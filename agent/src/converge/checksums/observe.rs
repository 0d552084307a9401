//! Reads what the checksums loop decides on: the link, the ways through it, the other nodes.

use schema::control::{LoopError, Observation};
use tokio::time::Instant;

use super::ChecksumsLoop;
use super::plan::Observed;
use crate::worlds::netlink::TunnelEntry;

impl ChecksumsLoop {
    pub(super) async fn look(&mut self) -> Result<Observation<Observed>, LoopError> {
        let failed = |error| LoopError::new("cannot look at the tunnel's checksums", error);
        let name = &self.deps.tunnel;
        let Some(offload) = self.deps.checksums.offload_of(name).await.map_err(failed)? else {
            return Ok(Observation::NotReady("there is no tunnel yet; the network loop makes it".to_owned()));
        };
        let of_this =
            || std::fs::read_to_string(&self.deps.mark).is_ok_and(|text| text == offload.index.to_string());
        let is_left_off = !offload.is_on && of_this();
        let entries = self.deps.tunnels.tunnel_entries(name).await.map_err(failed)?;
        let catalog = self.deps.catalog.borrow_and_update().clone();
        let there = catalog.peers.iter().filter(|(_, peer)| peer.absent_since.is_none());
        let peers = there
            .filter(|(_, peer)| entries.contains(&TunnelEntry::Route(peer.cidr.trunc(), peer.cidr.network())))
            .map(|(node, peer)| ((peer.cidr.network(), self.deps.port).into(), node.clone()));
        let (peers, history) = (peers.collect(), self.history.clone());
        Ok(Observation::Ready(Observed {
            offload,
            is_left_off,
            peers,
            history,
            now: Instant::now().into_std(),
        }))
    }
}
