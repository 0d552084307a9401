//! Ends containers: preStop, SIGTERM, and SIGKILL, all within the grace period.

use std::time::Duration;

use schema::records::EventType;
use tokio::time::{Instant, timeout};

use super::probes::render::Action;
use super::steps::{Kill, Target};
use super::task::{PodId, Worker};
use crate::worlds::docker::DockerError;

/// What at least is left for SIGTERM after a hook, as in Kubernetes.
const GRACE_AFTER_HOOK_MIN: Duration = Duration::from_secs(2);
/// Before a container that could not be stopped is tried again.
const KILL_AGAIN: Duration = Duration::from_secs(5);

impl Worker {
    /// Stops a container that is no longer wanted; whatever goes wrong, its removal kills it.
    pub(super) async fn stop(&self, id: &PodId, target: &Target, grace: Duration) {
        let message = format!("Stopping container {}", target.container);
        let _ = self.end(id, target, grace, message).await;
    }

    /// Stops a container that failed a probe; the next plan sees its end and starts it again.
    pub(super) async fn kill(&self, id: &PodId, kill: &Kill) {
        if self.end(id, &kill.target, kill.grace, kill.message.clone()).await.is_err() {
            tokio::time::sleep(KILL_AGAIN).await;
        }
    }

    async fn end(
        &self,
        id: &PodId,
        target: &Target,
        mut grace: Duration,
        message: String,
    ) -> Result<(), DockerError> {
        // The semaphore is never closed.
        let _slot = self.stops.acquire().await;
        let (_stopping, first) = self.ledger.begin_stop(&target.id).await;
        self.tell(id, EventType::Normal, "Killing", message);
        if let Some(hook) = target.hook.as_ref().filter(|_| first && !grace.is_zero()) {
            grace = self.pre_stop(id, target, hook, grace).await;
        }
        match self.docker.stop(&target.id, grace).await {
            Ok(()) | Err(DockerError::NotFound { .. }) => Ok(()),
            Err(error) => {
                tracing::warn!(pod = %id.pod, container = %target.name, %error, "could not stop a container");
                self.tell(id, EventType::Warning, "FailedKillPod", error.to_string());
                Err(error)
            }
        }
    }

    /// Runs the hook; what remains of the grace.
    async fn pre_stop(&self, id: &PodId, target: &Target, hook: &Action, grace: Duration) -> Duration {
        let began = Instant::now();
        // A command that is cut off here ends with its container.
        let failed = match timeout(grace, self.asker.hook(&target.id, hook, grace)).await {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some(why),
            Err(_) => Some(format!("it did not end within the grace period of {} s", grace.as_secs())),
        };
        if let Some(why) = failed {
            let message = format!("PreStopHook of container {} failed: {why}", target.container);
            self.tell(id, EventType::Warning, "FailedPreStopHook", message);
        }
        grace.saturating_sub(began.elapsed()).max(GRACE_AFTER_HOOK_MIN)
    }
}
