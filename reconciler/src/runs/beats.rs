//! Signs of life of a function that is called: it sends them to the gateway that passed its call on, and they come
//! here in that node's `demand/<node>`.

use std::convert::Infallible;
use std::time::Duration;

use schema::snapshot::Snapshot;
use schema::store::reflector::SnapshotReader;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// Names the call to the gateway: nobody else can beat for it.
pub(super) const TOKEN: &str = "x-heartbeat-token";
/// A beat is at most so long under way: its node writes `demand/` once a second.
pub(super) const TRAVELS: Duration = Duration::from_secs(2);
/// So many beats of each time without one that is allowed become entries of the journal; the others are as if they came
/// with the next of these.
const ENTRIES_PER_TIMEOUT: u32 = 3;

/// The beats of one call.
pub(super) struct Beats {
    token: String,
    spacing: Duration,
}

impl Beats {
    /// Those of a call that gives one in so many seconds.
    pub(super) fn new(seconds: u32) -> Self {
        let token = format!("{:032x}", rand::random::<u128>());
        Self { token, spacing: Duration::from_secs(u64::from(seconds)) / ENTRIES_PER_TIMEOUT }
    }

    /// What the gateway is told.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Sends the call's id whenever there are beats that it has not been sent for.
    pub(super) async fn pass_on(
        &self,
        mut snapshot: SnapshotReader,
        call: u64,
        beats: mpsc::Sender<u64>,
    ) -> Infallible {
        let mut known = 0;
        loop {
            snapshot.changed().await;
            let count = self.count(&snapshot.current());
            if count != known {
                known = count;
                // Nobody takes it once the run has ended, and then this is dropped as well.
                let _ = beats.send(call).await;
                sleep(self.spacing).await;
            }
        }
    }

    /// Of all gateways that passed the call on, one after the other.
    fn count(&self, snapshot: &Snapshot) -> u64 {
        snapshot
            .demand
            .values()
            .filter_map(|node| node.value.beats.get(&self.token))
            .map(|n| u64::from(*n))
            .sum()
    }
}
