//! Removal of the agent's directory. It holds mounts of the pods' volumes, some of which show directories of the
//! machine itself: nothing is deleted before the last mount is gone.

use std::path::Path;
use std::{fs, io};

use schema::kinds::function::split_registry_image;

use crate::config::{AGE_IDENTITY, MachineConfig};
use crate::converge::builds::plan::{
    Removal, base_image_removal, instance_removal, is_claim, select_base_images, select_function_images,
};
use crate::files::Keys;
use crate::worlds::docker::{Docker, DockerError, StoredImage};
use crate::worlds::pause::IMAGE_REPOSITORY;
use crate::{mounts, trees};

/// Maximum number of unmount rounds: mounts may be stacked.
const ROUNDS: usize = 8;

pub(crate) fn remove(machine: &MachineConfig, removed: &mut ResetOutcome) {
    let dir = machine.agent_dir();
    if !dir.exists() {
        return;
    }
    match unmount_below(&dir) {
        Ok(0) => {}
        Ok(count) => removed.done(format!("{count} mounts below {}", dir.display())),
        // Deleting now could delete the content of a mount.
        Err(error) => return removed.failures.push(format!("mounts below {}: {error}", dir.display())),
    }
    // Secrets that are encrypted to this identity alone are lost from here on.
    let identity = dir.join(AGE_IDENTITY);
    let recipient = identity.is_file().then(|| Keys::open(&identity).ok()).flatten();
    let recipient = recipient.and_then(|keys| keys.recipient().map(str::to_owned));
    // Containers may have nested folders deeper than the standard library can remove.
    let result = trees::clear(&dir).map_err(|error| error.to_string());
    let result = result.and_then(|()| fs::remove_dir_all(&dir).map_err(|error| error.to_string()));
    let result = result.map(|()| true);
    if let (Ok(_), Some(recipient)) = (&result, recipient) {
        removed.done(format!(
            "the age identity of recipient {recipient}: remove it from the list with 'minik8s secrets recipients remove'"
        ));
    }
    removed.note(format!("directory {}", dir.display()), result);
    // Succeeds only if it is empty.
    if fs::remove_dir(&machine.state_dir).is_ok() {
        removed.done(format!("directory {}", machine.state_dir.display()));
    }
}

/// Unmounts everything below `dir`, newest first; returns the number of mounts.
fn unmount_below(dir: &Path) -> io::Result<usize> {
    let mut count = 0;
    for _ in 0..ROUNDS {
        let points = mounts::below(dir)?;
        if points.is_empty() {
            return Ok(count);
        }
        mounts::detach(&points)?;
        count += points.len();
    }
    Err(io::Error::other("new ones keep appearing"))
}

// Outcome of a reset.

/// Removed things, failures and remarks.
#[derive(Debug, Default)]
pub(crate) struct ResetOutcome {
    pub(crate) lines: Vec<String>,
    pub(crate) failures: Vec<String>,
    pub(crate) remarks: Vec<String>,
}

impl ResetOutcome {
    pub(super) fn done(&mut self, what: impl Into<String>) {
        self.lines.push(what.into());
    }

    pub(super) fn note<E: std::fmt::Display>(&mut self, what: String, result: Result<bool, E>) {
        match result {
            Ok(true) => self.lines.push(what),
            Ok(false) => {}
            Err(error) => self.failures.push(format!("{what}: {error}")),
        }
    }
}

// Removal of images: the pause image, the images built for functions and their base images go with this instance,
// unless another instance needs them. An instance that needs one again builds it again. Other names of these
// images stay.
//
// While another instance runs pods here, this one only gives up its claims on images and its names for them in its
// registry; the other agent removes images without a claim.

fn is_pause(tag: &str) -> bool {
    tag.rsplit_once(':').is_some_and(|(name, _)| name == IMAGE_REPOSITORY)
}

pub(crate) async fn remove_images(docker: &dyn Docker, instance: &str, removed: &mut ResetOutcome) {
    let listed = async { Ok::<_, DockerError>((docker.images().await?, docker.images_in_use().await?)) };
    let (images, in_use) = match listed.await {
        Ok(listed) => listed,
        Err(error) => return removed.failures.push(format!("images: {error}")),
    };
    let (used, unused): (Vec<&StoredImage>, Vec<_>) = images
        .iter()
        .filter(|image| image.tags.iter().any(|tag| is_pause(tag)))
        .partition(|image| in_use.contains(&image.id));
    let others_run_pods = !used.is_empty();
    let mut names: Vec<String> =
        unused.iter().flat_map(|image| &image.tags).filter(|tag| is_pause(tag)).cloned().collect();
    for removal in removals(instance, images, others_run_pods) {
        // A reset knows neither the registry's login nor the functions on other nodes that may need the image.
        let stays = |(repository, digest)| format!("image {repository}@{digest} stays in the registry");
        removed.remarks.extend(removal.pushed.into_iter().map(stays));
        names.extend(removal.names);
    }
    for tag in names {
        match docker.remove_image(&tag).await {
            Err(DockerError::ImageInUse { .. }) => {}
            result => removed.note(format!("image {tag}"), result.map(|()| true)),
        }
    }
}

/// Names of function images and their bases to remove.
fn removals(instance: &str, images: Vec<StoredImage>, others_run_pods: bool) -> Vec<Removal> {
    let bases = select_base_images(&images);
    let bases = bases.iter().filter_map(|(name, image)| base_image_removal(instance, name, image));
    let built = select_function_images(images);
    let built = built.iter().filter_map(|(hash, image)| instance_removal(instance, hash, image));
    let mut all: Vec<Removal> = built.chain(bases).collect();
    if others_run_pods {
        // Left with a name for the registry, the image would be deleted there too, by the other agent.
        let goes = |name: &String| is_claim(name) || split_registry_image(name).is_some();
        all.iter_mut().for_each(|removal| removal.names.retain(goes));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::worlds::docker::{FakeDocker, ImageFacts, NewContainer};

    // Seen red with every listed name taken for ours.
    #[test]
    fn only_names_of_ours_are_removed() {
        for (tag, ours) in [
            ("minik8s/pause:0123456789ab", true),
            ("kept/pause:mine", false),
            ("registry.local:5000/minik8s/pause:1", false),
            ("minik8s/pause-copy:1", false),
            ("<none>:<none>", false),
        ] {
            assert_eq!(is_pause(tag), ours, "{tag}");
        }
    }

    // Seen red with the claims left while another instance runs pods, and with the registry's name left.
    #[tokio::test]
    async fn while_another_instance_runs_pods_only_claims_and_names_for_the_registry_go() {
        let (hash, shared) = ("0".repeat(32), "1".repeat(32));
        let pause = "minik8s/pause:0123456789ab".to_owned();
        let claims = |hash: &str| ["mk8s", "two"].map(|by| format!("minik8s.local/instance-{by}:{hash}"));
        let named = |hash: &str| format!("minik8s.local/function:{hash}");
        let base = "minik8s.local/python:0123456789ab".to_owned();
        let pushed = format!("r.lan:5000/team/function:{hash}");
        let engine = || {
            let docker = FakeDocker::default();
            let digest = |name: &str| format!("r.lan:5000/team/function@sha256:{name}");
            for (id, tags) in [
                ("p", vec![pause.clone(), "kept/pause:mine".to_owned()]),
                ("f", vec![named(&hash), claims(&hash)[0].clone(), pushed.clone()]),
                ("s", [vec![named(&shared)], claims(&shared).to_vec()].concat()),
                ("b", vec![base.clone(), claims("python-0123456789ab")[0].clone()]),
            ] {
                let facts =
                    ImageFacts { id: id.to_owned(), repo_digests: vec![digest(id)], ..ImageFacts::default() };
                docker.engine().images.extend(tags.into_iter().map(|tag| (tag, facts.clone())));
            }
            docker
        };
        let left = |docker: &FakeDocker| docker.engine().images.keys().cloned().collect::<BTreeSet<_>>();
        let others =
            BTreeSet::from(["kept/pause:mine".to_owned(), named(&shared), claims(&shared)[1].clone()]);
        let said = ["image r.lan:5000/team/function@sha256:f stays in the registry"];

        let (docker, mut removed) = (engine(), ResetOutcome::default());
        remove_images(&docker, "mk8s", &mut removed).await;
        assert_eq!(left(&docker), others);
        assert_eq!((removed.remarks, removed.failures), (said.map(str::to_owned).to_vec(), vec![]));

        let (docker, mut removed) = (engine(), ResetOutcome::default());
        let of_another =
            NewContainer { name: "theirs".into(), image: pause.clone(), ..NewContainer::default() };
        docker.create(&of_another).await.unwrap();
        remove_images(&docker, "mk8s", &mut removed).await;
        let stays = BTreeSet::from([pause.clone(), named(&hash), base.clone()]);
        assert_eq!(left(&docker), &others | &stays);
        assert_eq!((removed.remarks, removed.failures), (said.map(str::to_owned).to_vec(), vec![]));
    }
}
