//! Creates and starts the containers of a pod; a failure affects only its own container.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use futures::future::join_all;
use schema::content_refs::{ContentRef, find_content};
use schema::records::{EventType, PodInstance};
use tokio::time::{Instant, timeout};

use super::env::{INPUTS_MAX, expand_path, oversized, too_long};
use super::render;
use super::rendered::{HIDDEN_MESSAGE, KeyedValue, RenderedContainer, redact_secrets, secrets_of};
use crate::converge::pods::facts::ExitStatus;
use crate::converge::pods::fetch::ImageAccess;
use crate::converge::pods::probe::machine::Action;
use crate::converge::pods::steps::{BringUp, ContainerAct, ContainerStep, Kill, Target};
use crate::converge::pods::supervisor::{Retry, TaskReport, WorkGuard};
use crate::converge::pods::volume::spec::SubPath;
use crate::converge::pods::worker::{PodId, Turn, Worker};
use crate::files::SecretError;
use crate::files::secrets::variable;
use crate::metrics::METRICS;
use crate::names;
use crate::worlds::docker::{DockerError, ListedContainer, Namespaces, NewContainer};

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
    find_content(&pod.files, of).is_some()
}

impl Worker {
    /// Creates missing containers and returns all that can be started; a failure is recorded for its container.
    pub(crate) async fn create_all<'a>(
        &self,
        id: &PodId,
        up: &'a BringUp,
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
        (rendered, pod): (&RenderedContainer, &PodInstance),
        pause: &str,
    ) -> Option<String> {
        let mut new = rendered.new.clone();
        if let Namespaces::Join { pause: joined, .. } = &mut new.namespaces {
            pause.clone_into(joined);
        }
        new.labels.insert(names::SANDBOX.to_owned(), pause.to_owned());
        if let Err(why) = self.resolve_values(rendered, pod, &mut new).await {
            self.report_container_failure(
                id,
                &step.container,
                "CreateContainerConfigError",
                &why.to_string(),
            );
            return None;
        }
        if let Err(why) = self.image_user(rendered, &mut new).await {
            self.report_container_failure(id, &step.container, "CreateContainerConfigError", &why);
            return None;
        }
        // The usual case, no image that needs a login, costs nothing. A pull for this very start has shown the login.
        if !step.image_pulled
            && self.pulls.book().guards_any()
            && self.image_access(pod, &new.image).await == ImageAccess::NeedsLogin
        {
            self.report_guarded_image(id, step, &new.image, rendered);
            return None;
        }
        match self.create_or_adopt(&new).await {
            Ok(container) => {
                tracing::info!(container = step.container, attempt = step.attempt, "container created");
                let message = format!("Created container {}{}", step.container, start_of(id, step));
                self.record_event(id, EventType::Normal, "Created", message);
                Some(container)
            }
            Err(DockerError::NoSuchImage { image }) => {
                self.report_missing_image(id, step, &image, rendered);
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
                self.report_container_failure(id, &step.container, "CreateContainerError", &said);
                None
            }
        }
    }

    /// Replaces the markers with their values. From here on the container holds secrets in plain text, and goes
    /// nowhere but to the engine.
    pub(crate) async fn resolve_values(
        &self,
        rendered: &RenderedContainer,
        pod: &PodInstance,
        new: &mut NewContainer,
    ) -> Result<(), SecretError> {
        let mut read = BTreeMap::new();
        let mut values = rendered.values.clone();
        if let Some(of_secrets) = &rendered.secret_inputs {
            let (spec, place) = &**of_secrets;
            for (of, _) in secrets_of(spec).into_iter().filter(|(of, _)| has(pod, of)) {
                if let Entry::Vacant(unread) = read.entry(of) {
                    let entries = self.files.values(pod, unread.key()).await?;
                    unread.insert(entries);
                }
            }
            let keys = read.iter().map(|(of, entries)| (of.clone(), entries.keys().cloned().collect()));
            let inputs = render::inputs(spec, pod, place, &keys.collect()).map_err(SecretError::NoContent)?;
            (new.env, new.command, new.args, values) =
                (inputs.env, inputs.command, inputs.args, inputs.values);
        }
        for KeyedValue { marker, source: of, key } in &values {
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
        oversized(&new.env).map_or(Ok(()), |why| Err(SecretError::NoContent(why)))
    }

    /// Returns the paths that the container mounts, with the values of variables in them.
    pub(crate) async fn expand_sub_paths(
        &self,
        rendered: &RenderedContainer,
        pod: &PodInstance,
    ) -> Result<Vec<SubPath>, String> {
        let mut sub_paths = rendered.sub_paths.clone();
        if sub_paths.iter().any(|sub| sub.expression.is_some()) {
            let mut new = rendered.new.clone();
            self.resolve_values(rendered, pod, &mut new).await.map_err(|error| error.to_string())?;
            for sub in &mut sub_paths {
                if let Some(expression) = &sub.expression {
                    sub.path = expand_path(expression, &new.env)?;
                }
            }
        }
        Ok(sub_paths)
    }

    /// Returns the engine's error, without the secrets that the container holds.
    pub(crate) async fn redacted(&self, pod: &PodInstance, container: &str, error: &DockerError) -> String {
        let mut all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        let secrets = all.find(|spec| spec.name == container).map(secrets_of).unwrap_or_default();
        let mut values = Vec::new();
        for (of, key) in secrets.into_iter().filter(|(of, _)| has(pod, of)) {
            let Ok(mut entries) = self.files.values(pod, &of).await else { return HIDDEN_MESSAGE.to_owned() };
            entries.retain(|name, _| key.as_ref().is_none_or(|key| key == name));
            values.extend(entries.into_values().map(|value| String::from_utf8_lossy(&value).into_owned()));
        }
        redact_secrets(&error.to_string(), &values)
    }

    /// Checks the image's user, which only the image knows, and adds the group to it.
    pub(crate) async fn image_user(
        &self,
        rendered: &RenderedContainer,
        new: &mut NewContainer,
    ) -> Result<(), String> {
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

    /// Reports an image that another pod's login pulled: this pod pulls it with its own logins.
    fn report_guarded_image(
        &self,
        id: &PodId,
        step: &ContainerStep,
        image: &str,
        rendered: &RenderedContainer,
    ) {
        if rendered.never_pull {
            let why = format!(
                "image {image} came by a login that this pod does not have, and imagePullPolicy is Never; name the secret with the login in imagePullSecrets"
            );
            self.report_container_failure(id, &step.container, "ErrImageNeverPull", &why);
            return;
        }
        self.reporter.send(TaskReport::Missing(id.slot(&step.container), step.attempt));
    }

    pub(crate) fn report_missing_image(
        &self,
        id: &PodId,
        step: &ContainerStep,
        image: &str,
        rendered: &RenderedContainer,
    ) {
        let (container, slot) = (step.container.as_str(), id.slot(&step.container));
        if rendered.never_pull {
            let why = format!(
                "image {image} is not on this node and imagePullPolicy is Never; load it with docker load or change the policy"
            );
            self.report_container_failure(id, container, "ErrImageNeverPull", &why);
            return;
        }
        self.reporter.send(TaskReport::Missing(slot.clone(), step.attempt));
        // It must not be pulled again immediately, or that would go on forever.
        if step.image_pulled {
            let message = format!(
                "image {image} was pulled, but Docker has no image of this name; check the image's name and what removes images on this node"
            );
            self.record_event(id, EventType::Warning, "Failed", message.clone());
            self.reporter.send(TaskReport::Failed(slot, "ErrImagePull".to_owned(), message, Retry::Image));
        }
    }

    pub(crate) async fn start(&self, id: &PodId, pod: &PodInstance, step: &ContainerStep, container: &str) {
        let began = Instant::now();
        match self.docker.start(container).await {
            Ok(()) => {
                let (container, attempt) = (&step.container, step.attempt);
                METRICS.starts.count(true);
                tracing::info!(container, attempt, took = ?began.elapsed(), "container started");
                self.reporter.send(TaskReport::Clear(id.slot(&step.container)));
                let message = format!("Started container {}{}", step.container, start_of(id, step));
                self.record_event(id, EventType::Normal, "Started", message);
            }
            Err(error) => {
                let said = self.redacted(pod, &step.container, &error).await;
                self.report_container_failure(id, &step.container, "RunContainerError", &said);
            }
        }
    }
}

// Creates a container, or finds the one that a former attempt created.

/// Number of attempts to find a container whose name is taken, and their interval.
const LISTED_TRIES: u32 = 5;

const LISTED_WAIT: Duration = Duration::from_millis(200);

impl Worker {
    /// Creates a container, or finds the one that a former attempt created.
    pub(crate) async fn create_or_adopt(&self, new: &NewContainer) -> Result<String, DockerError> {
        match self.docker.create(new).await {
            Err(DockerError::NameTaken { name }) => {
                let Some(row) = self.listed(&name).await? else {
                    let message = format!(
                        "the container name {name} is taken by a container that Minik8s did not create; remove it with docker rm"
                    );
                    return Err(DockerError::Refused { act: "to create a container", status: 409, message });
                };
                // A container of a former agent lacks the labels without a value.
                let text = |labels: &BTreeMap<String, String>, key: &str| {
                    labels.get(key).cloned().unwrap_or_default()
                };
                let same = |key: &str| text(&row.labels, key) == text(&new.labels, key);
                // The last two are a pause container's: one created for another address is of no use.
                let labels = [names::UID, names::HASH, names::SANDBOX, names::IP, names::PORTS];
                if labels.into_iter().all(same) {
                    return Ok(row.id);
                }
                // In other namespaces: it can't be used, and its name is needed.
                self.docker.remove(&row.id).await?;
                self.docker.create(new).await
            }
            other => other,
        }
    }

    /// Finds a container of this instance by name. A container being created has its name before it is listed.
    pub(crate) async fn listed(&self, name: &str) -> Result<Option<ListedContainer>, DockerError> {
        for again in (0..LISTED_TRIES).rev() {
            let rows = self.docker.list(&self.node.instance).await?;
            let found = rows.into_iter().find(|row| row.name == name);
            if found.is_some() || again == 0 {
                return Ok(found);
            }
            tokio::time::sleep(LISTED_WAIT).await;
        }
        Ok(None)
    }
}

// Stops containers: preStop, SIGTERM, and SIGKILL, all within the grace period.

/// Minimum time left for SIGTERM after a hook, or after the wait of a sidecar, as in Kubernetes.
const GRACE_LEFT_MIN: Duration = Duration::from_secs(2);

/// Maximum wait for the exit status of a container.
const END_LOOK_MAX: Duration = Duration::from_secs(2);

impl Worker {
    /// Stops a container that is no longer wanted; whatever goes wrong, its removal kills it.
    pub(crate) async fn stop(
        &self,
        id: &PodId,
        target: &Target,
        (grace, turn): (Duration, Option<Turn>),
        in_flight: &WorkGuard,
    ) {
        let message = format!("Stopping container {}", target.container);
        let _ = self.end(id, target, (grace, message, turn), in_flight).await;
    }

    /// Reports the exit status of a container that is removed with its pod. A failure to find it holds nothing up.
    pub(crate) async fn note_end(&self, id: &PodId, target: &Target) {
        let Ok(Ok(details)) = timeout(END_LOOK_MAX, self.docker.inspect(&target.id)).await else { return };
        if let Some(finished_at) = details.finished_at.filter(|_| details.pid == 0) {
            let end = ExitStatus::from_details(&details, finished_at);
            self.reporter.send(TaskReport::End(id.uid.clone(), target.id.clone(), end));
        }
    }

    /// Stops a container that failed a probe; the next plan finds it ended and restarts it. If it can't be stopped,
    /// a later plan retries; the removal of the pod does not wait for that.
    pub(crate) async fn kill(&self, id: &PodId, kill: &Kill, in_flight: WorkGuard) {
        let done = self.end(id, &kill.target, (kill.grace, kill.message.clone(), None), &in_flight).await;
        // Sent while the container still counts as being stopped: the plan after that must know.
        let failed = done.err().map(|error| error.to_string());
        self.reporter.send(TaskReport::Kill(kill.target.id.clone(), failed));
    }

    async fn end(
        &self,
        id: &PodId,
        target: &Target,
        (mut grace, message, turn): (Duration, String, Option<Turn>),
        in_flight: &WorkGuard,
    ) -> Result<(), DockerError> {
        // A container is never stopped twice concurrently: the second caller waits.
        let is_hooked = in_flight.wait_for_kill(&target.id).await;
        // The semaphore is never closed.
        let mut slot = self.stops.acquire().await;
        self.record_event(id, EventType::Normal, "Killing", message.clone());
        let began = Instant::now();
        let once = !grace.is_zero() && !is_hooked;
        if let Some(hook) = target.hook.as_ref().filter(|_| once) {
            grace = self.pre_stop(id, target, hook, grace).await;
            in_flight.report_hook_done(&target.id);
        }
        if let Some(turn) = turn.filter(|_| !grace.is_zero()) {
            // Those that it waits for need slots, too.
            drop(slot);
            let began = Instant::now();
            turn.wait(grace).await;
            grace = grace.saturating_sub(began.elapsed()).max(GRACE_LEFT_MIN);
            slot = self.stops.acquire().await;
        }
        let _slot = slot;
        match self.docker.stop(&target.id, grace).await {
            Ok(()) => {
                let container = &target.container;
                tracing::info!(container, why = message, took = ?began.elapsed(), "container stopped");
                Ok(())
            }
            Err(DockerError::NotFound { .. }) => Ok(()),
            Err(error) => {
                let container = &target.container;
                tracing::warn!(container, %error, "container not stopped");
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
            Ok(hook) => match timeout(grace, self.actions.hook(&target.id, hook, grace)).await {
                Ok(Ok(())) => None,
                Ok(Err(why)) => Some(why),
                Err(_) => Some(format!("it did not end within the grace period of {} s", grace.as_secs())),
            },
            Err(why) => Some(format!("the container's label {} can't be read: {why}", names::PRE_STOP)),
        };
        if let Some(why) = failed {
            tracing::warn!(container = target.container, error = why, "preStop hook failed");
            let message = format!("PreStopHook of container {} failed: {why}", target.container);
            self.record_event(id, EventType::Warning, "FailedPreStopHook", message);
        }
        grace.saturating_sub(began.elapsed()).max(GRACE_LEFT_MIN)
    }
}
