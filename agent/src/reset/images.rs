//! The pause image goes when no container of any instance uses it any more, and with it the images that were made for
//! functions, unless another instance says that it needs them. An instance that needs them again makes them again. Other
//! names of the same images are their owners'.

use super::removed::Removed;
use crate::converge::builds::plan::{base_removal_of, of_bases, of_functions, removal_of};
use crate::worlds::docker::{Docker, DockerError};
use crate::worlds::pause::IMAGE_REPOSITORY;

fn is_ours(tag: &str) -> bool {
    tag.rsplit_once(':').is_some_and(|(name, _)| name == IMAGE_REPOSITORY)
}

pub(crate) async fn remove(docker: &dyn Docker, instance: &str, removed: &mut Removed) {
    let images = match docker.images().await {
        Ok(images) => images,
        Err(error) => return removed.failures.push(format!("image {IMAGE_REPOSITORY}: {error}")),
    };
    let tags: Vec<String> = images.iter().flat_map(|image| image.tags.clone()).collect();
    for tag in tags.iter().filter(|tag| is_ours(tag)) {
        match docker.remove_image(tag).await {
            // Another instance runs pods here.
            Err(DockerError::ImageInUse { .. }) => return,
            result => removed.note(format!("image {tag}"), result.map(|()| true)),
        }
    }
    let bases = of_bases(&images);
    let built = of_functions(images);
    let mut names = Vec::new();
    for removal in built.iter().filter_map(|(hash, image)| removal_of(instance, hash, image)) {
        names.extend(removal.names);
        // A reset reaches neither the login nor the functions that may need it at other nodes.
        let stays = |(repository, digest)| format!("image {repository}@{digest} stays in the registry");
        removed.remarks.extend(removal.pushed.into_iter().map(stays));
    }
    let bases = bases.iter().filter_map(|(name, image)| base_removal_of(instance, name, image));
    names.extend(bases.flat_map(|removal| removal.names));
    for tag in names {
        match docker.remove_image(&tag).await {
            Err(DockerError::ImageInUse { .. }) => {}
            result => removed.note(format!("image {tag}"), result.map(|()| true)),
        }
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
