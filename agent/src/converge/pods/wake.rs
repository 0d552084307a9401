//! What wakes the pods loop beside changes of etcd: the moment at which it acts without etcd, and a container of ours
//! that starts, ends or goes. Now and then it looks anyway: that is its row's interval.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use schema::control::{Nudge, lock};
use tokio::time::sleep;

use crate::desired::ETCD_GRACE;
use crate::worlds::docker::Docker;

/// Before events are asked for again.
const EVENTS_RETRY: Duration = Duration::from_secs(1);

/// Containers whose cached details are not to be trusted any more.
pub(super) type Stale = Arc<Mutex<StaleSet>>;

#[derive(Debug, Default)]
pub(super) struct StaleSet {
    pub(super) ids: BTreeSet<String>,
    pub(super) all: bool,
}

/// Nudges at the moment at which an agent without etcd acts from its disk.
pub(super) async fn at_grace(nudge: Nudge) -> Infallible {
    sleep(ETCD_GRACE).await;
    nudge.nudge();
    pending().await
}

/// Nudges on every event of a container of ours; asks again when the stream ends.
pub(super) async fn on_docker(
    docker: Arc<dyn Docker>,
    instance: String,
    stale: Stale,
    nudge: Nudge,
) -> Infallible {
    loop {
        if let Ok(mut events) = docker.events(&instance).await {
            // What happened before this stream began is not reported.
            lock(&stale).all = true;
            nudge.nudge();
            while let Some(Ok(event)) = events.next().await {
                lock(&stale).ids.insert(event.id);
                // The task that starts a container reports it.
                if event.action != "start" {
                    nudge.nudge();
                }
            }
        }
        sleep(EVENTS_RETRY).await;
    }
}
