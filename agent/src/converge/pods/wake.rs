//! Wake-up sources of the pods loop in addition to changes in etcd: the moment from which it acts without etcd, and
//! the start, end or removal of one of its containers. The interval of its row covers the rest.

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

/// Delay before events are requested again.
const EVENTS_RETRY: Duration = Duration::from_secs(1);

/// Containers whose cached details can no longer be trusted.
pub(super) type Stale = Arc<Mutex<StaleSet>>;

#[derive(Debug, Default)]
pub(super) struct StaleSet {
    pub(super) ids: BTreeSet<String>,
    pub(super) all: bool,
}

/// Nudges at the moment from which an agent without etcd acts from its disk.
pub(super) async fn at_grace(nudge: Nudge) -> Infallible {
    sleep(ETCD_GRACE).await;
    nudge.nudge();
    pending().await
}

/// Nudges on every event of a container of this instance except a start; subscribes again when the stream ends.
pub(super) async fn on_docker(
    docker: Arc<dyn Docker>,
    instance: String,
    stale: Stale,
    nudge: Nudge,
) -> Infallible {
    loop {
        if let Ok(mut events) = docker.events(&instance).await {
            // Events before this stream began are not reported.
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
