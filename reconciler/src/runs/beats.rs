//! Heartbeats of a called function: it sends them to the gateway that forwarded its call, and they arrive in that
//! node's `demand/<node>`.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use schema::records::NodeDemand;
use schema::snapshot::Snapshot;
use schema::store::reflector::SnapshotReader;
use tokio::sync::mpsc;

/// Header that identifies the call to the gateway: nobody else can beat for it.
pub(super) const TOKEN: &str = "x-heartbeat-token";
/// Maximum delay of a beat: its node writes `demand/` once a second.
pub(super) const BEAT_DELAY_MAX: Duration = Duration::from_secs(2);

/// Heartbeats of one call.
pub(super) struct Beats {
    token: String,
}

impl Beats {
    /// Creates the heartbeats of a call, with a new token.
    pub(super) fn new() -> Self {
        Self { token: format!("{:032x}", rand::random::<u128>()) }
    }

    /// Returns the token that goes to the gateway.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Sends the call's id whenever new beats have arrived.
    pub(super) async fn pass_on(
        &self,
        mut snapshot: SnapshotReader,
        call: u64,
        beats: mpsc::Sender<u64>,
    ) -> Infallible {
        let mut known = BTreeMap::new();
        loop {
            snapshot.changed().await;
            let counts = self.counts(&snapshot.current());
            let is_alive = has_risen(&known, &counts);
            known = counts;
            if is_alive {
                // Nobody receives it once the run has ended, and then this future is dropped as well.
                let _ = beats.send(call).await;
            }
        }
    }

    /// Returns the counts of each gateway that forwarded the call.
    fn counts(&self, snapshot: &Snapshot) -> BTreeMap<String, u32> {
        let of_node = |node: &NodeDemand| node.beats.get(&self.token).copied();
        let counts = snapshot.demand.iter();
        counts.filter_map(|(name, node)| Some((name.clone(), of_node(&node.value)?))).collect()
    }
}

/// True if a count has risen. A gateway that is done with the call no longer counts it: that is no beat.
fn has_risen(before: &BTreeMap<String, u32>, now: &BTreeMap<String, u32>) -> bool {
    now.iter().any(|(node, count)| *count > before.get(node).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_count_that_rises_is_a_sign_of_life() {
        let counts = |all: &[(&str, u32)]| all.iter().map(|(node, n)| ((*node).to_owned(), *n)).collect();
        for (before, now, is_alive) in [
            (&[][..], &[("a", 1)][..], true),
            (&[("a", 1)], &[("a", 2)], true),
            (&[("a", 2)], &[("a", 2)], false),
            (&[("a", 2)], &[], false),
            (&[("a", 2), ("b", 1)], &[("b", 1)], false),
            (&[("a", 2)], &[("b", 1)], true),
        ] {
            assert_eq!(has_risen(&counts(before), &counts(now)), is_alive, "{before:?} {now:?}");
        }
    }
}
