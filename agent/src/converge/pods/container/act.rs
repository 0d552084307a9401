//! Creates and starts the containers of a pod; a failure affects only its own container.

use std::collections::BTreeMap;

use futures::future::join_all;
use schema::files::{ContentRef, of_content};
use schema::records::{EventType, PodInstance};

use super::env::{INPUTS_MAX, too_long};
use super::redact::{UNSHOWN, redact_secrets};
use super::render;
use super::rendered::{KeyedValue, Rendered, secrets_of};
use crate::converge::names;
use crate::converge::pods::steps::{ContainerAct, ContainerStep, Up};
use crate::converge::pods::task_reports::{Retry, TaskReport};
use crate::converge::pods::worker::{PodId, Worker};
use crate::files::SecretError;
use crate::files::secrets::variable;
use crate::worlds::docker::{DockerError, Namespaces, NewContainer};

/// Identifies the start and the incarnation in an event: the same text within a minute would be recorded once.
fn start_of(id: &PodId, step: &ContainerStep) -> String {
    let uid = id.uid.get(..8).unwrap_or(&id.uid);
    match step.attempt {
        0 => format!(" of pod {uid}"),
        again => format!(" of pod {uid}, restart {again}"),
    }
}

/// True if the pod carries the content: an optional secret may be absent.
fn has(pod: &PodInstance, of: &ContentRef) -> bool {
    of_content(&pod.files, of).is_some()
}

impl Worker {
    /// Creates missing containers and returns all that can be started; a failure is recorded for its container.
    pub(crate) async fn create_all<'a>(
        &self,
        id: &PodId,
        up: &'a Up,
        pause: &str,
    ) -> Vec<(&'a ContainerStep, String)> {
        let each = up.containers.iter().map(|step| async move {
            match &step.act {
                ContainerAct::Start(container) => Some((step, container.clone())),
                ContainerAct::Create(rendered) => {
                    let made = self.create(id, step, (rendered, &up.pod), pause).await?;
                    Some((step, made))
                }
            }
        });
        join_all(each).await.into_iter().flatten().collect()
    }

    pub(crate) async fn create(
        &self,
        id: &PodId,
        step: &ContainerStep,
        (rendered, pod): (&Rendered, &PodInstance),
        pause: &str,
    ) -> Option<String> {
        let mut new = rendered.new.clone();
        if let Namespaces::Join { pause: joined, .. } = &mut new.namespaces {
            pause.clone_into(joined);
        }
        new.labels.insert(names::SANDBOX.to_owned(), pause.to_owned());
        if let Err(why) = self.fill_in(rendered, pod, &mut new).await {
            self.trouble(id, &step.container, "CreateContainerConfigError", &why.to_string());
            return None;
        }
        if let Err(why) = self.image_user(rendered, &mut new).await {
            self.trouble(id, &step.container, "CreateContainerConfigError", &why);
            return None;
        }
        match self.create_or_adopt(&new).await {
            Ok(container) => {
                let message = format!("Created container {}{}", step.container, start_of(id, step));
                self.record_event(id, EventType::Normal, "Created", message);
                Some(container)
            }
            Err(DockerError::NoSuchImage { image }) => {
                self.missing(id, step, &image, rendered);
                None
            }
            Err(error @ DockerError::InvalidImageName { .. }) => {
                self.record_event(id, EventType::Warning, "Failed", error.to_string());
                let slot = id.slot(&step.container);
                let failed =
                    TaskReport::Failed(slot, "InvalidImageName".to_owned(), error.to_string(), Retry::Image);
                self.reporter.send(failed);
                None
            }
            Err(error) => {
                let said = self.redacted(pod, &step.container, &error).await;
                self.trouble(id, &step.container, "CreateContainerError", &said);
                None
            }
        }
    }

    /// Replaces the markers with their values. From here on the container holds secrets in plain text, and goes
    /// nowhere but to the engine.
    pub(crate) async fn fill_in(
        &self,
        rendered: &Rendered,
        pod: &PodInstance,
        new: &mut NewContainer,
    ) -> Result<(), SecretError> {
        let mut read = BTreeMap::new();
        let mut values = rendered.values.clone();
        if let Some(of_secrets) = &rendered.of_secrets {
            let (spec, place) = &**of_secrets;
            for (of, _) in secrets_of(spec).into_iter().filter(|(of, key)| key.is_none() && has(pod, of)) {
                let entries = self.files.values(pod, &of).await?;
                read.insert(of, entries);
            }
            let keys = read.iter().map(|(of, entries)| (of.clone(), entries.keys().cloned().collect()));
            let inputs = render::inputs(spec, pod, place, &keys.collect()).map_err(SecretError::NoContent)?;
            (new.env, new.command, new.args, values) =
                (inputs.env, inputs.command, inputs.args, inputs.values);
        }
        for KeyedValue { marker, of, key } in &values {
            if !read.contains_key(of) {
                read.insert(of.clone(), self.files.values(pod, of).await?);
            }
            let Some(entries) = read.get(of) else { continue };
            let value = variable(of, key, entries)?;
            let texts = || new.env.iter().chain(&new.command).chain(&new.args);
            let length: usize = texts().map(String::len).sum();
            let uses: usize = texts().map(|text| text.matches(marker.as_str()).count()).sum();
            if length + uses * value.len() > INPUTS_MAX {
                return Err(SecretError::NoContent(too_long()));
            }
            for text in new.env.iter_mut().chain(&mut new.command).chain(&mut new.args) {
                *text = text.replace(marker.as_str(), &value);
            }
        }
        Ok(())
    }

    /// Returns the engine's error, without the secrets that the container holds.
    pub(crate) async fn redacted(&self, pod: &PodInstance, container: &str, error: &DockerError) -> String {
        let mut all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        let secrets = all.find(|spec| spec.name == container).map(secrets_of).unwrap_or_default();
        let mut values = Vec::new();
        for (of, key) in secrets.into_iter().filter(|(of, _)| has(pod, of)) {
            let Ok(mut entries) = self.files.values(pod, &of).await else { return UNSHOWN.to_owned() };
            entries.retain(|name, _| key.as_ref().is_none_or(|key| key == name));
            values.extend(entries.into_values().map(|value| String::from_utf8_lossy(&value).into_owned()));
        }
        redact_secrets(&error.to_string(), &values)
    }

    /// Checks the image's user, which only the image knows, and adds the group to it.
    pub(crate) async fn image_user(&self, rendered: &Rendered, new: &mut NewContainer) -> Result<(), String> {
        if !rendered.check_non_root && rendered.group_of_image_user.is_none() {
            return Ok(());
        }
        // A missing image is detected by the create that follows.
        let Some(image) = self.docker.image(&new.image).await.map_err(|e| e.to_string())? else {
            return Ok(());
        };
        let user = image.user.split(':').next().unwrap_or_default();
        if rendered.check_non_root {
            render::is_no_root(&new.image, user)?;
        }
        if let Some(group) = rendered.group_of_image_user {
            new.user = Some(format!("{}:{group}", if user.is_empty() { "0" } else { user }));
        }
        Ok(())
    }

    pub(crate) fn missing(&self, id: &PodId, step: &ContainerStep, image: &str, rendered: &Rendered) {
        let (container, slot) = (step.container.as_str(), id.slot(&step.container));
        if rendered.never_pull {
            let why = format!(
                "image {image} is not on this node and imagePullPolicy is Never; load it with docker load or change the policy"
            );
            self.trouble(id, container, "ErrImageNeverPull", &why);
            return;
        }
        self.reporter.send(TaskReport::Missing(slot.clone(), step.attempt));
        // It must not be pulled again immediately, or that would go on forever.
        if step.image_pulled {
            let message = format!(
                "image {image} was pulled, and Docker still has none of this name; check the image's name and what removes images on this node"
            );
            self.record_event(id, EventType::Warning, "Failed", message.clone());
            self.reporter.send(TaskReport::Failed(slot, "ErrImagePull".to_owned(), message, Retry::Image));
        }
    }

    pub(crate) async fn start(&self, id: &PodId, pod: &PodInstance, step: &ContainerStep, container: &str) {
        match self.docker.start(container).await {
            Ok(()) => {
                self.reporter.send(TaskReport::Clear(id.slot(&step.container)));
                let message = format!("Started container {}{}", step.container, start_of(id, step));
                self.record_event(id, EventType::Normal, "Started", message);
            }
            Err(error) => {
                let said = self.redacted(pod, &step.container, &error).await;
                self.trouble(id, &step.container, "RunContainerError", &said);
            }
        }
    }
}
