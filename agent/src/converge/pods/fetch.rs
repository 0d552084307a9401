//! Pulls an image for a container that waits for it, and reports progress.

use std::time::Duration;

use schema::kinds::pod::PullPolicy;
use schema::records::{EventType, PodInstance};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::facts::ContainerKey;
use super::steps::Pull;
use super::supervisor::{Retry, TaskReport};
use super::worker::{PodId, Worker};
use crate::converge::shared::pulls::{PULLS, PullHandle, PullSummary};
use crate::worlds::docker::DockerError;

/// Interval at which a waiting container's message shows the progress of its image.
const SHOWN_EVERY: Duration = Duration::from_secs(5);

/// Number of progress messages per event: one event per 15 s.
const EVENT_EVERY: u32 = 3;

/// Access of a pod to an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImageAccess {
    /// The image is on the node, and the pod may use it.
    Granted,
    /// The image came by a login that the pod does not have.
    NeedsLogin,
    /// The image is not on the node, or Docker does not answer.
    Unknown,
}

impl Worker {
    /// Returns a pod's access to an image as it is on the node.
    pub(crate) async fn image_access(&self, pod: &PodInstance, image: &str) -> ImageAccess {
        let Ok(Some(facts)) = self.docker.image(image).await else { return ImageAccess::Unknown };
        let book = self.pulls.book();
        if book.may_use(image, &facts.id, &[]) {
            return ImageAccess::Granted;
        }
        let logins = self.credentials.logins(pod, image).await.unwrap_or_default();
        match book.may_use(image, &facts.id, &logins) {
            true => ImageAccess::Granted,
            false => ImageAccess::NeedsLogin,
        }
    }

    /// Pulls an image for a container; reports the outcome for the next plan.
    pub async fn pull(&self, id: &PodId, pod: &PodInstance, pull: &Pull) {
        let (slot, image): (ContainerKey, _) = (id.slot(&pull.container), pull.image.as_str());
        // Another container's pull may have fetched it since this one found it missing.
        if pull.policy == PullPolicy::IfNotPresent
            && self.image_access(pod, image).await == ImageAccess::Granted
        {
            let message = format!("Container image {image:?} already present on machine");
            self.record_event(id, EventType::Normal, "Pulled", message);
            self.reporter.send(TaskReport::Pulled(slot, pull.attempt));
            return;
        }
        let (logins, no_logins) = match self.credentials.logins(pod, image).await {
            Ok(logins) => (logins, None),
            Err(why) => {
                self.record_event(id, EventType::Warning, "FailedToRetrieveImagePullSecret", why.clone());
                (Vec::new(), Some(why))
            }
        };
        let users: Vec<String> = logins.iter().map(|login| login.username.clone()).collect();
        self.record_event(id, EventType::Normal, "Pulling", format!("Pulling image {image:?}"));
        let began = Instant::now();
        let joined = self.pulls.join(image, logins);
        match self.follow(id, &slot, image, joined).await {
            Ok(pulled) => {
                let message = format!(
                    "Successfully pulled image {image:?} in {:.1?} ({:.1?} including waiting). Image size: {} bytes.",
                    pulled.took,
                    began.elapsed(),
                    pulled.size_bytes
                );
                let (container, bytes) = (&pull.container, pulled.size_bytes);
                tracing::info!(container, image, bytes, took = ?pulled.took, "image pulled");
                self.record_event(id, EventType::Normal, "Pulled", message);
                self.reporter.send(TaskReport::Pulled(slot, pull.attempt));
            }
            Err(error) => {
                let here = self.image_access(pod, image).await == ImageAccess::Granted;
                let reason = match error {
                    DockerError::InvalidImageName { .. } => "InvalidImageName",
                    _ => "ErrImagePull",
                };
                let message = format!("{error}{}", hint(&error, here, &users, no_logins.as_deref()));
                let took = began.elapsed();
                tracing::warn!(container = pull.container, image, ?took, error = message, "image not pulled");
                self.record_event(id, EventType::Warning, "Failed", message.clone());
                self.reporter.send(TaskReport::Failed(slot, reason.to_owned(), message, Retry::Image));
            }
        }
    }

    /// Waits for a pull and reports its progress from time to time.
    async fn follow(
        &self,
        id: &PodId,
        slot: &ContainerKey,
        image: &str,
        mut joined: PullHandle,
    ) -> Result<PullSummary, DockerError> {
        let mut shows = interval_at(Instant::now() + SHOWN_EVERY, SHOWN_EVERY);
        shows.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shown: u32 = 0;
        loop {
            // Cancel-safe: a shared future resumes where it was; a lost tick does no harm.
            tokio::select! {
                biased;
                done = &mut joined.pull => return done,
                _ = shows.tick() => {
                    let progress = joined.progress.borrow().clone();
                    let progress =
                        progress.unwrap_or_else(|| format!("waiting for one of {PULLS} pulls to end"));
                    shown += 1;
                    if shown.is_multiple_of(EVENT_EVERY) {
                        let message = format!("Pulling image {image:?}: {progress}");
                        self.record_event(id, EventType::Normal, "Pulling", message);
                    }
                    self.reporter.send(TaskReport::Progress(slot.clone(), progress));
                }
            }
        }
    }
}

/// Returns advice on a failed pull, to append to its error.
fn hint(error: &DockerError, here: bool, users: &[String], no_logins: Option<&str>) -> String {
    let login = match (error, users, no_logins) {
        (DockerError::LoginRefused { .. }, _, Some(why)) => {
            format!("; the registry requires a login, and there is none: {why}")
        }
        (DockerError::LoginRefused { .. }, [], None) => {
            "; the registry requires a login: name a secret that holds one in the pod's imagePullSecrets; if it has one, check the image's name".to_owned()
        }
        (DockerError::LoginRefused { .. }, users, None) => format!(
            "; the registry refused the login of {}: correct the secret named in imagePullSecrets, or this user's permissions",
            users.join(", ")
        ),
        (DockerError::InvalidImageName { .. }, ..) => String::new(),
        _ if here => String::new(),
        _ => "; check the image's name, the registry, and the node's connection to it".to_owned(),
    };
    if here {
        return format!(
            "{login}; the node has this image: set imagePullPolicy IfNotPresent (or a tag other than latest) to use it"
        );
    }
    login
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_pull_says_what_to_do() {
        let refused = DockerError::from_pull_message("h/app", "no basic auth credentials".into());
        let missing = DockerError::from_pull_message("h/app", "manifest unknown".into());
        for (error, here, users, why, part) in [
            (&refused, false, vec![], None, "imagePullSecrets"),
            (&refused, false, vec!["kim".to_owned()], None, "refused the login of kim"),
            (&refused, false, vec![], Some("secret reg is not there"), "secret reg is not there"),
            (&refused, true, vec![], None, "set imagePullPolicy IfNotPresent"),
            (&missing, false, vec![], None, "check the image's name"),
            (&missing, true, vec![], None, "set imagePullPolicy IfNotPresent"),
        ] {
            let text = hint(error, here, &users, why);
            assert!(text.contains(part), "{text}");
        }
    }
}
