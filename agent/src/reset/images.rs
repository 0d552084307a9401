//! The pause image: goes when no container of any instance uses it any more. An instance that needs
//! it again loads it again.

use std::collections::HashMap;
use std::time::Duration;

use bollard::query_parameters::{ListImagesOptionsBuilder, RemoveImageOptions};

use super::Removed;
use crate::worlds::pause::IMAGE_REPOSITORY;

/// Docker's status code for an image in use.
const CONFLICT: u16 = 409;

/// Longest wait for one answer of Docker, in seconds.
const ANSWER_MAX: Duration = Duration::from_secs(30);

pub(crate) async fn remove(host: &str, removed: &mut Removed) {
    let work = async {
        let path = host.strip_prefix("unix://").unwrap_or(host);
        let client =
            bollard::Docker::connect_with_unix(path, ANSWER_MAX.as_secs(), bollard::API_DEFAULT_VERSION)?;
        let client = client.negotiate_version().await?;
        let filters = HashMap::from([("reference", vec![IMAGE_REPOSITORY])]);
        let options = ListImagesOptionsBuilder::default().filters(&filters).build();
        let tags = client.list_images(Some(options)).await?.into_iter().flat_map(|image| image.repo_tags);
        let mut gone = Vec::new();
        for tag in tags {
            match client.remove_image(&tag, None::<RemoveImageOptions>, None).await {
                Ok(_) => gone.push(tag),
                Err(bollard::errors::Error::DockerResponseServerError { status_code: CONFLICT, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok::<_, bollard::errors::Error>(gone)
    };
    match work.await {
        Ok(gone) => gone.into_iter().for_each(|tag| removed.done(format!("image {tag}"))),
        Err(error) => removed.failures.push(format!("image {IMAGE_REPOSITORY}: {error}")),
    }
}
