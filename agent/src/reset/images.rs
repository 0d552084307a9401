//! The pause image: goes when no container of any instance uses it any more. An instance that needs
//! it again loads it again. Other names of the same image are their owners'.

use std::collections::HashMap;
use std::time::Duration;

use bollard::query_parameters::{ListImagesOptionsBuilder, RemoveImageOptions};

use super::Removed;
use crate::worlds::pause::IMAGE_REPOSITORY;

/// Docker's status code for an image in use.
const CONFLICT: u16 = 409;

/// Longest wait for one answer of Docker, in seconds.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A name of ours. With some engines a filter finds images by one name and lists all that they have.
fn is_ours(tag: &str) -> bool {
    tag.rsplit_once(':').is_some_and(|(name, _)| name == IMAGE_REPOSITORY)
}

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
        for tag in tags.filter(|tag| is_ours(tag)) {
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

#[cfg(test)]
mod tests {
    use super::is_ours;

    // Seen red with every name that is listed taken for ours.
    #[test]
    fn only_names_of_ours_are_removed() {
        for (tag, ours) in [
            ("minik8s/pause:0123456789ab", true),
            ("kept/pause:mine", false),
            ("registry.local:5000/minik8s/pause:1", false),
            ("minik8s/pause-copy:1", false),
            ("<none>:<none>", false),
        ] {
            assert_eq!(is_ours(tag), ours, "{tag}");
        }
    }
}
