//! Gives an image another name, and brings it to a registry.

use std::time::Duration;

use bollard::auth::DockerCredentials;
use bollard::query_parameters::{PushImageOptions, TagImageOptions};
use futures::StreamExt as _;
use tokio::time::timeout;

use super::DockerError;
use super::error::{READ, within};

/// Longest time without a word of a push.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The repository and the tag; a colon before the last slash is the registry's port.
fn split_reference(reference: &str) -> (String, Option<String>) {
    match reference.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')) {
        Some((repository, tag)) => (repository.to_owned(), Some(tag.to_owned())),
        None => (reference.to_owned(), None),
    }
}

pub(super) async fn tag(client: &bollard::Docker, image: &str, name: &str) -> Result<(), DockerError> {
    let (repo, tag) = split_reference(name);
    let options = TagImageOptions { repo: Some(repo), tag };
    within("to name an image", READ, client.tag_image(image, Some(options))).await
}

pub(super) async fn push(
    client: &bollard::Docker,
    reference: &str,
    login: Option<DockerCredentials>,
) -> Result<(), DockerError> {
    let act = "to push an image";
    let failed = |message: String| DockerError::Push { image: reference.to_owned(), message };
    let (repository, tag) = split_reference(reference);
    // The engine of Docker 20.10 wants the header also where there is no login.
    let login = Some(login.unwrap_or_default());
    let mut steps =
        client.push_image(&repository, Some(PushImageOptions { tag, platform: None }), login).boxed();
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
