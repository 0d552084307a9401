//! Stops containers: preStop, SIGTERM, and SIGKILL, all within the grace period.

use std::time::Duration;

use schema::records::EventType;
use tokio::time::{Instant, timeout};

use crate::converge::names;
use crate::converge::pods::facts::Exited;
use crate::converge::pods::probe::target::Action;
use crate::converge::pods::steps::{Kill, Target};
use crate::converge::pods::task_reports::{InFlight, TaskReport};
use crate::converge::pods::worker::{PodId, Worker};
use crate::worlds::docker::DockerError;

/// Minimum time left for SIGTERM after a hook, as in Kubernetes.
const GRACE_AFTER_HOOK_MIN: Duration = Duration::from_secs(2);

/// Maximum wait for the exit status of a container.
const END_LOOK_MAX: Duration = Duration::from_secs(2);

impl Worker {
    /// Stops a container that is no longer wanted; whatever goes wrong, its removal kills it.
    pub(crate) async fn stop(&self, id: &PodId, target: &Target, grace: Duration, in_flight: &InFlight) {
        let message = format!("Stopping container {}", target.container);
        let _ = self.end(id, target, (grace, message), in_flight).await;
    }

    /// Reports the exit status of a container that is removed with its pod. A failure to find it holds nothing up.
    pub(crate) async fn note_end(&self, id: &PodId, target: &Target) {
        let Ok(Ok(details)) = timeout(END_LOOK_MAX, self.docker.inspect(&target.id)).await else { return };
        if let Some(finished_at) = details.finished_at.filter(|_| details.pid == 0) {
            let end = Exited::of(&details, finished_at);
            self.reporter.send(TaskReport::End(id.uid.clone(), target.id.clone(), end));
        }
    }

    /// Stops a container that failed a probe; the next plan finds it ended and restarts it. If it can't be stopped,
    /// a later plan retries; the removal of the pod does not wait for that.
    pub(crate) async fn kill(&self, id: &PodId, kill: &Kill, in_flight: InFlight) {
        let done = self.end(id, &kill.target, (kill.grace, kill.message.clone()), &in_flight).await;
        // Sent while the container still counts as being stopped: the plan after that must know.
        let failed = done.err().map(|error| error.to_string());
        self.reporter.send(TaskReport::Kill(kill.target.id.clone(), failed));
    }

    async fn end(
        &self,
        id: &PodId,
        target: &Target,
        (mut grace, message): (Duration, String),
        in_flight: &InFlight,
    ) -> Result<(), DockerError> {
        // A container is never stopped twice concurrently: the second caller waits.
        let is_hooked = in_flight.wait_for_kill(&target.id).await;
        // The semaphore is never closed.
        let _slot = self.stops.acquire().await;
        self.record_event(id, EventType::Normal, "Killing", message);
        let once = !grace.is_zero() && !is_hooked;
        if let Some(hook) = target.hook.as_ref().filter(|_| once) {
            grace = self.pre_stop(id, target, hook, grace).await;
            in_flight.note_hooked(&target.id);
        }
        match self.docker.stop(&target.id, grace).await {
            Ok(()) | Err(DockerError::NotFound { .. }) => Ok(()),
            Err(error) => {
                tracing::warn!(pod = %id.pod, container = %target.name, %error, "could not stop a container");
                self.record_event(id, EventType::Warning, "FailedKillPod", error.to_string());
                Err(error)
            }
        }
    }

    /// Runs the hook and returns the rest of the grace period.
    async fn pre_stop(
        &self,
        id: &PodId,
        target: &Target,
        hook: &Result<Action, String>,
        grace: Duration,
    ) -> Duration {
        let began = Instant::now();
        let failed = match hook {
            // A command that times out here ends with its container.
            Ok(hook) => match timeout(grace, self.asker.hook(&target.id, hook, grace)).await {
                Ok(Ok(())) => None,
                Ok(Err(why)) => Some(why),
                Err(_) => Some(format!("it did not end within the grace period of {} s", grace.as_secs())),
            },
            Err(why) => Some(format!("the container's label {} can't be read: {why}", names::PRE_STOP)),
        };
        if let Some(why) = failed {
            tracing::warn!(pod = %id.pod, container = %target.name, why, "a preStop hook failed");
            let message = format!("PreStopHook of container {} failed: {why}", target.container);
            self.record_event(id, EventType::Warning, "FailedPreStopHook", message);
        }
        grace.saturating_sub(began.elapsed()).max(GRACE_AFTER_HOOK_MIN)
    }
}
