//! Follows the progress of a pull, and gives up a stalled one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bollard::auth::DockerCredentials;
use bollard::query_parameters::{PushImageOptions, TagImageOptions};
use futures::stream::{Stream, StreamExt};
use schema::control::lock;
use schema::image::ImageReference;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::error::{READ, within};
use super::{DockerError, PullProgress};

/// Longest time without any progress of a pull.
const STALLED: Duration = Duration::from_secs(120);

/// A message of a pull.
#[derive(Debug, Clone, Default)]
pub(super) struct PullMessage {
    /// Id of the layer, or other text in its place.
    pub(super) layer: String,
    pub(super) status: String,
    /// Bytes downloaded, and in total.
    pub(super) bytes: Option<(u64, u64)>,
    pub(super) error: Option<String>,
}

/// Time at which any pull of this agent last made progress.
#[derive(Debug, Clone)]
pub(super) struct PullActivity(Arc<Mutex<Instant>>);

impl Default for PullActivity {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl PullActivity {
    fn note(&self) {
        *lock(&self.0) = Instant::now();
    }

    fn last(&self) -> Instant {
        *lock(&self.0)
    }
}

/// Follows a pull to its end.
pub(super) async fn follow(
    reference: &str,
    mut steps: impl Stream<Item = Result<PullMessage, DockerError>> + Unpin,
    movement: &PullActivity,
    progress: &watch::Sender<PullProgress>,
) -> Result<(), DockerError> {
    let mut moved = Instant::now();
    loop {
        // Docker limits concurrent downloads across all pulls: a queued pull makes progress when the others do.
        let queued = progress.borrow().is_queued();
        let last = || if queued { moved.max(movement.last()) } else { moved };
        let step = match tokio::time::timeout_at(last() + STALLED, steps.next()).await {
            Err(_) if last() + STALLED > Instant::now() => continue,
            Err(_) => return Err(DockerError::Timeout { act: "to pull an image", after: STALLED }),
            Ok(None) => return Ok(()),
            Ok(Some(step)) => step?,
        };
        if let Some(message) = step.error {
            return Err(DockerError::from_pull_message(reference, message));
        }
        moved = Instant::now();
        movement.note();
        progress.send_modify(|progress| progress.note(&step.layer, &step.status, step.bytes));
    }
}

// Tags images and pushes them to a registry.

/// Longest time without a message of a push.
const SILENCE_MAX: Duration = Duration::from_secs(60);

pub(super) async fn tag(client: &bollard::Docker, image: &str, name: &str) -> Result<(), DockerError> {
    let ImageReference { name, tag, .. } = ImageReference::split(name);
    let options = TagImageOptions { repo: Some(name.to_owned()), tag: tag.map(str::to_owned) };
    within("to tag an image", READ, client.tag_image(image, Some(options))).await
}

pub(super) async fn push(
    client: &bollard::Docker,
    reference: &str,
    login: Option<DockerCredentials>,
) -> Result<(), DockerError> {
    let act = "to push an image";
    let failed = |message: String| DockerError::Push { image: reference.to_owned(), message };
    let ImageReference { name: repository, tag, .. } = ImageReference::split(reference);
    let options = PushImageOptions { tag: tag.map(str::to_owned), platform: None };
    // Docker 20.10 requires the header even without a login.
    let login = Some(login.unwrap_or_default());
    let mut steps = client.push_image(repository, Some(options), login).boxed();
    loop {
        let step = timeout(SILENCE_MAX, steps.next()).await;
        let step = step.map_err(|_| DockerError::Timeout { act, after: SILENCE_MAX })?;
        let Some(step) = step else { return Ok(()) };
        let step = step.map_err(|error| match DockerError::from_client(act, &error) {
            DockerError::Refused { message, .. } => failed(message),
            other => other,
        })?;
        if let Some(message) = step.error_detail.and_then(|error| error.message) {
            return Err(failed(message));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    fn step(layer: &str, status: &str) -> Result<PullMessage, DockerError> {
        Ok(PullMessage { layer: layer.into(), status: status.into(), ..PullMessage::default() })
    }

    /// A pull with the given messages, each after the seconds before it, and then silence.
    async fn pull(movement: &PullActivity, said: &[(u64, &str)]) -> (Result<(), DockerError>, u64) {
        let began = Instant::now();
        let said: Vec<(u64, String)> = said.iter().map(|(wait, word)| (*wait, (*word).to_owned())).collect();
        let said = stream::iter(said).then(|(wait, word)| async move {
            tokio::time::sleep(Duration::from_secs(wait)).await;
            step("a", &word)
        });
        let (progress, _) = watch::channel(PullProgress::default());
        let done = follow("app:1", said.chain(stream::pending()).boxed(), movement, &progress).await;
        (done, began.elapsed().as_secs())
    }

    // Seen red with `moved` for `last()` (the queued one ends at 120 s), and with `movement.last()` for it
    // whether queued or not (the silent one goes on to 620 s).
    #[tokio::test(start_paused = true)]
    async fn a_pull_that_waits_behind_others_is_given_up_when_they_stand_still_too() {
        let movement = PullActivity::default();
        let moves: Vec<(u64, &str)> = (0..10).map(|_| (50, "Downloading")).collect();
        let (moving, queued, silent) = tokio::join!(
            pull(&movement, &moves),
            pull(&movement, &[(0, "Pulling fs layer"), (0, "Waiting")]),
            pull(&movement, &[(0, "Pulling fs layer"), (0, "Waiting"), (1, "Downloading")]),
        );
        for (what, (done, after), expected) in
            [("moving", moving, 620), ("queued", queued, 620), ("silent", silent, 121)]
        {
            assert!(matches!(done, Err(DockerError::Timeout { .. })), "{what}: {done:?}");
            assert_eq!(after, expected, "{what}");
        }
    }

    #[tokio::test]
    async fn a_pull_ends_with_dockers_last_word_or_its_error() {
        let (progress, _) = watch::channel(PullProgress::default());
        let all = stream::iter([step("a", "Waiting"), step("a", "Pull complete")]);
        follow("app:1", all, &PullActivity::default(), &progress).await.unwrap();
        let error = Ok(PullMessage { error: Some("manifest unknown".into()), ..PullMessage::default() });
        let failed = follow("app:1", stream::iter([error]), &PullActivity::default(), &progress).await;
        assert!(matches!(failed, Err(DockerError::Pull { .. })), "{failed:?}");
    }
}
