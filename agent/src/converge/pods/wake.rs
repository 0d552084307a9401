//! Wakes the pods loop: when etcd's snapshot changes, and when a container of ours starts, ends or goes.
//! Now and then it looks anyway: that is its driver's interval.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use schema::control::Nudge;
use schema::store::reflector::SnapshotReader;
use tokio_util::sync::CancellationToken;

use super::observe::Stale;
use crate::worlds::docker::Docker;

/// Before events are asked for again.
const EVENTS_RETRY: Duration = Duration::from_secs(1);

/// Nudges on every change of the snapshot.
pub async fn on_snapshot(mut snapshot: SnapshotReader, nudge: Nudge, shutdown: CancellationToken) {
    // The moment at which an agent without etcd acts from its disk.
    let grace = tokio::time::sleep(crate::desired::ETCD_GRACE);
    tokio::pin!(grace);
    let mut acted = false;
    loop {
        // All are cancel-safe: a change not seen here is seen by the next look.
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = snapshot.changed() => {}
            () = &mut grace, if !acted => acted = true,
        }
        nudge.nudge();
    }
}

/// Nudges on every event of a container of ours; asks again when the stream ends.
pub async fn on_docker(
    docker: Arc<dyn Docker>,
    instance: String,
    stale: Stale,
    nudge: Nudge,
    shutdown: CancellationToken,
) {
    let follow = async {
        loop {
            if let Ok(mut events) = docker.events(&instance).await {
                // What happened before this stream began is not reported.
                stale.all();
                nudge.nudge();
                while let Some(Ok(event)) = events.next().await {
                    stale.one(event.id);
                    // The task that starts a container reports it.
                    if event.action != "start" {
                        nudge.nudge();
                    }
                }
            }
            tokio::time::sleep(EVENTS_RETRY).await;
        }
    };
    // Cancel-safe: the next agent looks at everything.
    shutdown.run_until_cancelled(follow).await;
}
