//! One pod's work, step by step as the plan says. May be cut off at any call and done again: every
//! step finds out what is there already.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use schema::meta::NamespacedName;
use schema::records::{EventType, PodInstance};
use schema::store::events::{EventDraft, EventRecorder};
use tokio::sync::Semaphore;

use super::credentials::Credentials;
use super::facts::{NodeFacts, Slot, Uid};
use super::hush::{UNSHOWN, hushed, secrets_of};
use super::ledger::{InFlight, Ledger, Retry};
use super::names;
use super::probes::Asker;
use super::pulls::Pulls;
use super::render::{self, Rendered, SecretValue, VolumePrep};
use super::steps::{ContainerAct, ContainerStep, Down, LinkStep, PauseStep, Target, Up};
use super::volumes::{self, VolumeError};
use crate::files::secrets::{check_file_names, variable};
use crate::files::{Ensured, PodFiles, SecretError};
use crate::worlds::docker::{Docker, DockerError, ListedContainer, Namespaces, NewContainer};
use crate::worlds::netlink::{Netlink, PodLink};

/// Longest wait for the volumes of a pod: a file system that is away hangs for ever.
const VOLUMES_MAX: Duration = Duration::from_secs(30);
/// How often, and how far apart, a container is looked for whose name is taken.
const LISTED_TRIES: u32 = 5;
const LISTED_WAIT: Duration = Duration::from_millis(200);

/// Where a secret is mounted, its files, and the group that they get.
type SecretVolume = (PathBuf, BTreeMap<String, Vec<u8>>, Option<u32>);

/// Makes the archive of the pause image.
pub type PauseArchive = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

/// What all tasks share.
#[derive(Clone)]
pub struct Worker {
    /// The engine.
    pub docker: Arc<dyn Docker>,
    /// Runs hooks.
    pub asker: Asker,
    /// The kernel.
    pub netlink: Arc<dyn Netlink>,
    /// The node.
    pub node: Arc<NodeFacts>,
    /// The pause image's bytes.
    pub pause_archive: PauseArchive,
    /// What is under way and what went wrong.
    pub ledger: Ledger,
    /// Events.
    pub events: EventRecorder,
    /// Files of the repository and secrets.
    pub files: Arc<PodFiles>,
    /// Pods being made at once.
    pub creations: Arc<Semaphore>,
    /// Containers being stopped at once.
    pub stops: Arc<Semaphore>,
    /// Images being fetched.
    pub pulls: Pulls,
    /// Logins at registries.
    pub credentials: Arc<dyn Credentials>,
}

/// The pod as a whole could not go on.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct PodFailure {
    /// The word in status.
    pub reason: &'static str,
    /// The word of the event.
    pub event: &'static str,
    /// What happened.
    pub message: String,
}

impl PodFailure {
    fn new(reason: &'static str, event: &'static str, message: impl fmt::Display) -> Self {
        Self { reason, event, message: message.to_string() }
    }
}

/// A pod, for events.
#[derive(Debug, Clone)]
pub struct PodId {
    /// Namespace and name.
    pub pod: NamespacedName,
    /// Which incarnation.
    pub uid: Uid,
}

impl PodId {
    /// A container of it.
    pub fn slot(&self, container: &str) -> Slot {
        (self.uid.clone(), container.to_owned())
    }
}

/// Which start of which incarnation: the same words within a minute would be told once.
fn start_of(id: &PodId, step: &ContainerStep) -> String {
    let uid = id.uid.get(..8).unwrap_or(&id.uid);
    match step.attempt {
        0 => format!(" of pod {uid}"),
        again => format!(" of pod {uid}, restart {again}"),
    }
}

/// Work on volumes, which says where it is; the error says what failed, or what did not answer.
async fn on_disk(
    busy: &Arc<InFlight>,
    work: impl FnOnce(&dyn Fn(&Path)) -> Result<(), VolumeError> + Send + 'static,
) -> Result<(), String> {
    // A call that hangs can't be cut off: as long as it does, nothing else is done for the pod.
    let (busy, at) = (Arc::clone(busy), Arc::new(Mutex::new(PathBuf::new())));
    let now_at = {
        let at = Arc::clone(&at);
        move |path: &Path| path.clone_into(&mut at.lock().unwrap_or_else(PoisonError::into_inner))
    };
    let work = tokio::task::spawn_blocking(move || {
        let _busy = busy;
        work(&now_at)
    });
    let Ok(done) = tokio::time::timeout(VOLUMES_MAX, work).await else {
        let path = at.lock().unwrap_or_else(PoisonError::into_inner).display().to_string();
        let seconds = VOLUMES_MAX.as_secs();
        return Err(format!(
            "{path} did not answer within {seconds} s; check the file system that it is on, such as a network share whose server is away"
        ));
    };
    done.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

impl Worker {
    /// Tells of something about a pod.
    pub fn tell(&self, id: &PodId, kind: EventType, reason: &str, message: String) {
        self.events.record(EventDraft {
            kind,
            object_kind: "Pod".to_owned(),
            namespace: id.pod.namespace.clone(),
            name: id.pod.name.clone(),
            reason: reason.to_owned(),
            message,
        });
    }

    /// Makes and starts what is missing.
    pub async fn up(&self, id: &PodId, mut up: Up, busy: &Arc<InFlight>) -> Result<(), PodFailure> {
        // Before anything ends: what can't be fetched or read takes nothing down that runs. And without a
        // slot: a reconciler or a file system that is slow must not hold up pods that need nothing of it.
        self.fetch_files(id, &up).await?;
        let secrets = self.read_secrets(&up).await?;
        self.down(id, &up.down, busy).await?;
        self.prepare_volumes(&up, secrets, busy).await?;
        self.mount_sub_paths(id, &mut up, busy).await;
        {
            // The semaphore is never closed.
            let _slot = self.creations.acquire().await;
            self.make(id, &up).await?;
        }
        self.remove_obsolete(id, &up.obsolete).await;
        Ok(())
    }

    /// Removes dead starts; one that can't be removed is tried again for itself, and holds up nothing.
    async fn remove_obsolete(&self, id: &PodId, targets: &[Target]) {
        let each = targets.iter().map(|target| async move {
            let failed = self.remove(id, target).await.err();
            if let Some(failure) = &failed {
                tracing::warn!(pod = %id.pod, container = target.name, message = %failure, "a dead container was not removed");
                self.tell(id, EventType::Warning, failure.event, failure.to_string());
            }
            self.ledger.note_removal(&target.id, failed.map(|failure| failure.to_string()));
        });
        join_all(each).await;
    }

    /// Has all files of the pod on this node before anything of it is made.
    async fn fetch_files(&self, id: &PodId, up: &Up) -> Result<(), PodFailure> {
        if up.containers.is_empty() {
            return Ok(());
        }
        for (path, blob) in &up.pod.files {
            let done = self.files.ensure(path, blob).await;
            if done.map_err(|e| PodFailure::new("ContainerCreating", "FailedMount", e))? == Ensured::Repaired
            {
                let message =
                    format!("{path} on this node was not what the repository has; it was fetched anew");
                self.tell(id, EventType::Warning, "FilesChanged", message);
            }
        }
        Ok(())
    }

    async fn make(&self, id: &PodId, up: &Up) -> Result<(), PodFailure> {
        let pause = match &up.pause {
            PauseStep::Create(new) => self.create_pause(new).await?,
            PauseStep::Start(pause) | PauseStep::Runs(pause) => pause.clone(),
        };
        // Making the containers needs only the pause container's id, so its start goes on meanwhile.
        let (network, made) = futures::join!(self.network(up, &pause), self.create_all(id, up, &pause));
        network?;
        join_all(made.iter().map(|(step, container)| self.start(id, &up.pod, step, container))).await;
        Ok(())
    }

    async fn create_pause(&self, new: &NewContainer) -> Result<String, PodFailure> {
        let failed = |e: DockerError| PodFailure::new("ContainerCreating", "FailedCreatePodSandBox", e);
        match self.create_or_adopt(new).await {
            Err(DockerError::NoSuchImage { .. }) => {
                self.docker.load((self.pause_archive)()).await.map_err(failed)?;
                self.create_or_adopt(new).await.map_err(failed)
            }
            other => other.map_err(failed),
        }
    }

    /// What goes into the volumes of secrets.
    async fn read_secrets(&self, up: &Up) -> Result<Vec<SecretVolume>, PodFailure> {
        let unreadable = |e: SecretError| PodFailure::new("CreateContainerConfigError", "FailedMount", e);
        let mut secrets = Vec::new();
        for prep in &up.volumes {
            let VolumePrep::Secret { path, name, group } = prep else { continue };
            let entries = self.files.secret(&up.pod, name).await.map_err(unreadable)?;
            check_file_names(name, &entries).map_err(unreadable)?;
            secrets.push((path.clone(), entries, *group));
        }
        Ok(secrets)
    }

    async fn prepare_volumes(
        &self,
        up: &Up,
        secrets: Vec<SecretVolume>,
        busy: &Arc<InFlight>,
    ) -> Result<(), PodFailure> {
        let list: Vec<VolumePrep> = up.volumes.clone();
        if list.is_empty() {
            return Ok(());
        }
        let done = on_disk(busy, move |now_at| {
            list.iter().try_for_each(|prep| {
                now_at(prep.path());
                volumes::prepare(prep)
            })?;
            secrets.iter().try_for_each(|(path, keys, group)| {
                now_at(path);
                volumes::secret(path, keys, *group)
            })
        });
        done.await.map_err(|why| PodFailure::new("ContainerCreating", "FailedMount", why))
    }

    /// Takes the containers out whose `subPath` can't be mounted: that is their own trouble, as in Kubernetes,
    /// and the others are made.
    async fn mount_sub_paths(&self, id: &PodId, up: &mut Up, busy: &Arc<InFlight>) {
        let each = up.containers.iter().map(|step| async move {
            let ContainerAct::Create(rendered) = &step.act else { return true };
            let sub_paths = rendered.sub_paths.clone();
            if sub_paths.is_empty() {
                return true;
            }
            let done = on_disk(busy, move |now_at| {
                sub_paths.iter().try_for_each(|sub| {
                    now_at(&sub.root.join(&sub.path));
                    volumes::mount_sub_path(sub)
                })
            });
            let done = done.await;
            if let Err(why) = &done {
                self.trouble(id, &step.container, "CreateContainerConfigError", why);
            }
            done.is_ok()
        });
        let mut mounted = join_all(each).await.into_iter();
        up.containers.retain(|_| mounted.next().unwrap_or(true));
    }

    async fn network(&self, up: &Up, pause: &str) -> Result<(), PodFailure> {
        let failed = |e: DockerError| PodFailure::new("ContainerCreating", "FailedCreatePodSandBox", e);
        if !matches!(up.pause, PauseStep::Runs(_)) {
            self.docker.start(pause).await.map_err(failed)?;
        }
        let Some(link) = &up.link else { return Ok(()) };
        let details = self.docker.inspect(pause).await.map_err(failed)?;
        if details.pid == 0 {
            let message = format!("the pause container {pause} ended at once");
            return Err(PodFailure::new("ContainerCreating", "FailedCreatePodSandBox", message));
        }
        let LinkStep { host_name, bridge, address, gateway, mtu } = link.clone();
        let (pause_pid, pause_id) = (details.pid, Some(pause.to_owned()));
        let link = PodLink { pause_pid, pause_id, host_name, bridge, address, gateway, mtu };
        // Cut off or failed, it is not known to be whole.
        self.ledger.note_link(&up.pod.uid, false);
        let ensured = self.netlink.ensure_pod_link(&link).await;
        ensured.map_err(|e| PodFailure::new("ContainerCreating", "FailedCreatePodSandBox", e))?;
        self.ledger.note_link(&up.pod.uid, true);
        Ok(())
    }

    /// The containers that are there to be started; what failed is kept as trouble of its container.
    async fn create_all<'a>(&self, id: &PodId, up: &'a Up, pause: &str) -> Vec<(&'a ContainerStep, String)> {
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

    async fn create(
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
                self.tell(id, EventType::Normal, "Created", message);
                Some(container)
            }
            Err(DockerError::NoSuchImage { image }) => {
                self.missing(id, step, &image, rendered);
                None
            }
            Err(error @ DockerError::InvalidImageName { .. }) => {
                self.tell(id, EventType::Warning, "Failed", error.to_string());
                let slot = id.slot(&step.container);
                self.ledger.fail(slot, "InvalidImageName", error.to_string(), Retry::Image);
                None
            }
            Err(error) => {
                let said = self.hushed(pod, &step.container, &error).await;
                self.trouble(id, &step.container, "CreateContainerError", &said);
                None
            }
        }
    }

    /// Puts secrets in the place of their markers. From here on the container holds plain text, and goes
    /// nowhere but to the engine.
    async fn fill_in(
        &self,
        rendered: &Rendered,
        pod: &PodInstance,
        new: &mut NewContainer,
    ) -> Result<(), SecretError> {
        let mut read = BTreeMap::new();
        for SecretValue { marker, name, key } in &rendered.secrets {
            if !read.contains_key(name) {
                read.insert(name, self.files.secret(pod, name).await?);
            }
            let Some(entries) = read.get(name) else { continue };
            let value = variable(name, key, entries)?;
            for text in new.env.iter_mut().chain(&mut new.command).chain(&mut new.args) {
                *text = text.replace(marker.as_str(), &value);
            }
        }
        Ok(())
    }

    /// What the engine said, without the secrets that the container holds.
    async fn hushed(&self, pod: &PodInstance, container: &str, error: &DockerError) -> String {
        let mut all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        let secrets = all.find(|spec| spec.name == container).map(secrets_of).unwrap_or_default();
        let mut values = Vec::new();
        for SecretValue { name, key, .. } in secrets {
            let Ok(mut entries) = self.files.secret(pod, &name).await else { return UNSHOWN.to_owned() };
            values.extend(entries.remove(&key).map(|value| String::from_utf8_lossy(&value).into_owned()));
        }
        hushed(&error.to_string(), &values)
    }

    /// What only the image says: who its user is.
    async fn image_user(&self, rendered: &Rendered, new: &mut NewContainer) -> Result<(), String> {
        if !rendered.check_non_root && rendered.group_of_image_user.is_none() {
            return Ok(());
        }
        // An image that is not there is found out by the create that follows.
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

    fn missing(&self, id: &PodId, step: &ContainerStep, image: &str, rendered: &Rendered) {
        let (container, slot) = (step.container.as_str(), id.slot(&step.container));
        if rendered.never_pull {
            let why = format!(
                "image {image} is not on this node and imagePullPolicy is Never; load it with docker load or change the policy"
            );
            self.trouble(id, container, "ErrImageNeverPull", &why);
        } else if !self.ledger.note_missing(&slot, step.attempt) {
            let message = format!(
                "image {image} was pulled, and Docker still has none of this name; check the image's name and what removes images on this node"
            );
            self.tell(id, EventType::Warning, "Failed", message.clone());
            self.ledger.fail(slot, "ErrImagePull", message, Retry::Image);
        }
    }

    async fn start(&self, id: &PodId, pod: &PodInstance, step: &ContainerStep, container: &str) {
        match self.docker.start(container).await {
            Ok(()) => {
                self.ledger.clear(&id.slot(&step.container));
                let message = format!("Started container {}{}", step.container, start_of(id, step));
                self.tell(id, EventType::Normal, "Started", message);
            }
            Err(error) => {
                let said = self.hushed(pod, &step.container, &error).await;
                self.trouble(id, &step.container, "RunContainerError", &said);
            }
        }
    }

    /// Makes a container, or finds the one that a former try made.
    async fn create_or_adopt(&self, new: &NewContainer) -> Result<String, DockerError> {
        match self.docker.create(new).await {
            Err(DockerError::NameTaken { name }) => {
                let Some(row) = self.listed(&name).await? else {
                    let message = format!(
                        "the container name {name} is taken by a container that is not ours; remove it with docker rm"
                    );
                    return Err(DockerError::Refused { act: "to create a container", status: 409, message });
                };
                let same = |label: &str| row.labels.get(label) == new.labels.get(label);
                // The last two are a pause container's: one made for another address is of no use.
                let labels = [names::UID, names::HASH, names::SANDBOX, names::IP, names::PORTS];
                if labels.into_iter().all(same) {
                    return Ok(row.id);
                }
                // Of other namespaces: it can't be used, and its name is needed.
                self.docker.remove(&row.id).await?;
                self.docker.create(new).await
            }
            other => other,
        }
    }

    /// A container of ours by its name. One that is being made has its name before it is listed.
    async fn listed(&self, name: &str) -> Result<Option<ListedContainer>, DockerError> {
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

    /// Takes away; what is gone already is fine.
    pub async fn down(&self, id: &PodId, down: &Down, busy: &Arc<InFlight>) -> Result<(), PodFailure> {
        join_all(down.stop.iter().map(|target| async move {
            self.stop(id, target, down.grace).await;
            if down.folder {
                self.note_end(id, target).await;
            }
        }))
        .await;
        if down.unmount {
            let (node, uid, busy) = (Arc::clone(&self.node), id.uid.clone(), Arc::clone(busy));
            // Before the pause container goes: an agent that ends here does it again.
            let work = tokio::task::spawn_blocking(move || {
                let _busy = busy;
                volumes::unmount_pod(&node.state_dir, &uid)
            });
            let failed = |e: &dyn fmt::Display| PodFailure::new("Terminating", "FailedUnmount", e);
            work.await.map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
        }
        let (pauses, others): (Vec<_>, Vec<_>) =
            down.remove.iter().cloned().partition(|target| target.container == names::PAUSE);
        self.remove_all(id, &others).await?;
        self.remove_all(id, &pauses).await?;
        if let Some(link) = &down.link {
            let removed = self.netlink.remove_link(link).await;
            removed.map_err(|e| PodFailure::new("Terminating", "FailedKillPod", e))?;
        }
        if down.folder {
            let (node, uid, busy) = (Arc::clone(&self.node), id.uid.clone(), Arc::clone(busy));
            let work = tokio::task::spawn_blocking(move || {
                let _busy = busy;
                volumes::remove_pod(&node.state_dir, &uid)
            });
            let failed =
                |e: &dyn fmt::Display| PodFailure::new("Terminating", "FailedUnmount", e.to_string());
            work.await.map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
        }
        self.remove_obsolete(id, &down.obsolete).await;
        Ok(())
    }

    async fn remove_all(&self, id: &PodId, targets: &[Target]) -> Result<(), PodFailure> {
        // All of them, also when one can't be removed: it must not keep the others.
        join_all(targets.iter().map(|target| self.remove(id, target))).await.into_iter().collect()
    }

    async fn remove(&self, id: &PodId, target: &Target) -> Result<(), PodFailure> {
        match self.docker.remove(&target.id).await {
            Ok(()) | Err(DockerError::NotFound { .. }) => {}
            // Someone else removes it at this moment.
            Err(DockerError::BeingRemoved { .. }) => {}
            Err(error) => return Err(PodFailure::new("Terminating", "FailedKillPod", error)),
        }
        let (node, uid, target) = (Arc::clone(&self.node), id.uid.clone(), target.clone());
        let _ = tokio::task::spawn_blocking(move || {
            volumes::remove_sub_paths(&node.state_dir, &uid, &target.container, target.attempt);
        })
        .await;
        Ok(())
    }

    fn trouble(&self, id: &PodId, container: &str, reason: &str, message: &str) {
        tracing::warn!(pod = %id.pod, container, reason, message, "a container was not started");
        self.tell(id, EventType::Warning, "Failed", format!("{container}: {message}"));
        self.ledger.fail(id.slot(container), reason, message.to_owned(), Retry::Soon);
    }
}
