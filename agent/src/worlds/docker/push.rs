//! Tags images and pushes them to a registry.

use std::time::Duration;

use bollard::auth::DockerCredentials;
use bollard::query_parameters::{PushImageOptions, TagImageOptions};
use futures::StreamExt as _;
use tokio::time::timeout;

use super::DockerError;
use super::error::{READ, within};
use super::reference::split_tag;

/// Longest time without a message of a push.
const SILENCE_MAX: Duration = Duration::from_secs(60);

pub(super) async fn tag(client: &bollard::Docker, image: &str, name: &str) -> Result<(), DockerError> {
    let (repo, tag) = split_tag(name);
    let options = TagImageOptions { repo: Some(repo.to_owned()), tag: tag.map(str::to_owned) };
    within("to name an image", READ, client.tag_image(image, Some(options))).await
}

pub(super) async fn push(
    client: &bollard::Docker,
    reference: &str,
    login: Option<DockerCredentials>,
) -> Result<(), DockerError> {
    let act = "to push an image";
    let failed = |message: String| DockerError::Push { image: reference.to_owned(), message };
    let (repository, tag) = split_tag(reference);
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
