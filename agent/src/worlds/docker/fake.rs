//! An in-memory engine: the same rules as far as the agent relies on them, a clock set by the test, and faults after
//! the n-th changing call. A "crash" lets that call take effect, but neither that call nor any later one returns, as
//! for an agent killed at that moment.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use jiff::Timestamp;
use schema::control::lock;
use tokio::sync::{Notify, watch};

use super::{
    ContainerDetails, ContainerEvent, Docker, DockerError, EngineNetwork, EngineState, ExecEnd, ExecOutcome,
    ImageBuild, ImageFacts, ImageStream, ListedContainer, LogOptions, LogStream, Namespaces, NewContainer,
    PullProgress, RegistryLogin, StoredImage,
};
use crate::names;

/// A changing call, by container name or image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call(pub String);

/// An injected failure.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Changing call number `call` (from 1) fails with `error` and does nothing.
    Fail { call: usize, error: DockerError },
    /// Changing call number `call` takes effect, and nothing returns from then on: its answer is lost.
    Crash { call: usize },
    /// Changing call number `call` does nothing, and nothing returns from then on: the call before it was answered,
    /// and
    /// this one never arrived.
    CrashBefore { call: usize },
}

/// Exit of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exit {
    pub code: i64,
    /// Killed for its memory use.
    pub oom_killed: bool,
}

/// Scripted behavior of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FakeExec {
    pub code: i64,
    pub output: String,
    pub hangs: bool,
}

/// A container of the fake.
#[derive(Debug, Clone)]
pub struct FakeContainer {
    pub new: NewContainer,
    pub row: ListedContainer,
    pub details: ContainerDetails,
}

/// The fake's state.
#[derive(Debug, Default)]
pub struct FakeEngine {
    pub containers: BTreeMap<String, FakeContainer>,
    pub images: BTreeMap<String, ImageFacts>,
    /// Images that a pull finds.
    pub registry: BTreeSet<String>,
    /// Images that a pull gets only as this user.
    pub logins: BTreeMap<String, String>,
    /// Pulls begun: image, and the user if there was a login.
    pub pulls_begun: Vec<(String, Option<String>)>,
    pub pulls_dropped: Vec<String>,
    /// Holds pulls until they are released.
    pub hold_pulls: bool,
    /// Releases one pull per permit.
    pub pulls_released: Arc<Notify>,
    /// Names of networks.
    pub networks: BTreeSet<String>,
    /// Build requests so far.
    pub builds: Vec<ImageBuild>,
    pub now: Timestamp,
    pub calls: Vec<Call>,
    pub fault: Option<Fault>,
    /// Names of containers whose inspection fails.
    pub opaque: BTreeSet<String>,
    /// Images whose containers end with code 0 as soon as they start.
    pub brief: BTreeSet<String>,
    /// Names of containers whose end is not in the listing yet.
    pub behind: BTreeSet<String>,
    /// Output of containers, by name, in pieces; any other container writes a line with its name.
    pub written: BTreeMap<String, Vec<Bytes>>,
    /// Commands by their words; any other ends with 0 immediately.
    pub execs: BTreeMap<String, FakeExec>,
    /// Grace period of each stop, by container name.
    pub graces: Vec<(String, Duration)>,
    /// Names of containers that take their whole grace period to end.
    pub stubborn: BTreeSet<String>,
    /// Set if every process ignores SIGTERM: a stop takes its whole grace period, by tokio's clock.
    pub all_stubborn: bool,
    /// Names of containers whose stop and removal never return.
    pub hung: BTreeSet<String>,
    /// Names of containers that can't be killed: stop and removal are refused.
    pub unkillable: BTreeSet<String>,
    pub unreachable: bool,
    /// Time that each query takes, by tokio's clock.
    pub query_time: Duration,
    crashed: bool,
    next_id: u64,
}

/// An engine in memory.
#[derive(Debug, Default)]
pub struct FakeDocker(Mutex<FakeEngine>);

impl FakeDocker {
    /// A line of an archive that can't be loaded.
    pub const DAMAGED: &str = "damaged";
    /// Prefix of a line of an archive whose image is loaded without reporting its name.
    pub const UNNAMED: &str = "unnamed ";

    /// Creates an engine with these images.
    pub fn with_images(images: &[&str]) -> Self {
        let fake = Self::default();
        for image in images {
            let facts = ImageFacts { id: format!("sha256:{image}"), ..ImageFacts::default() };
            fake.engine().images.insert((*image).to_owned(), facts);
        }
        fake
    }

    /// The state, to inspect and change.
    pub fn engine(&self) -> MutexGuard<'_, FakeEngine> {
        lock(&self.0)
    }

    /// Ends the container with this name.
    pub fn end(&self, name: &str, exit: Exit) {
        let mut engine = self.engine();
        let now = engine.now;
        let container = engine.containers.values_mut().find(|c| c.row.name == name);
        let container = container.unwrap_or_else(|| panic!("no container {name}"));
        assert_eq!(container.row.state, EngineState::Running, "{name} does not run");
        container.finish(exit, now);
    }

    /// Names of all containers and whether they run.
    pub fn running(&self) -> BTreeMap<String, bool> {
        self.engine()
            .containers
            .values()
            .map(|c| (c.row.name.clone(), c.row.state == EngineState::Running))
            .collect()
    }

    /// Replaces the agent that hung in a crash by one that gets answers.
    pub fn revive(&self) {
        let mut engine = self.engine();
        engine.crashed = false;
        engine.fault = None;
    }

    /// True once the injected crash has happened.
    pub fn has_crashed(&self) -> bool {
        self.engine().crashed
    }

    /// Counts a changing call of any world and runs `effect` unless a fault forbids it. Hangs after a crash.
    pub async fn gate<T>(
        &self,
        call: String,
        effect: impl FnOnce(&mut FakeEngine) -> Result<T, DockerError>,
    ) -> Result<T, DockerError> {
        let outcome = {
            let mut engine = self.engine();
            if engine.crashed {
                None
            } else if engine.unreachable {
                Some(Err(DockerError::Unreachable { message: "fake outage".into() }))
            } else {
                engine.calls.push(Call(call));
                let number = engine.calls.len();
                match engine.fault.clone() {
                    Some(Fault::Fail { call, error }) if call == number => Some(Err(error)),
                    Some(Fault::Crash { call }) if call == number => {
                        let _ = effect(&mut engine);
                        engine.crashed = true;
                        None
                    }
                    Some(Fault::CrashBefore { call }) if call == number => {
                        engine.crashed = true;
                        None
                    }
                    _ => Some(effect(&mut engine)),
                }
            }
        };
        match outcome {
            Some(outcome) => outcome,
            None => std::future::pending().await,
        }
    }

    /// Hangs or fails for a container that can't be ended.
    async fn held_up(&self, name: &str) -> Result<(), DockerError> {
        let (hung, unkillable) = {
            let engine = self.engine();
            (engine.hung.contains(name), engine.unkillable.contains(name))
        };
        if hung {
            std::future::pending::<()>().await;
        }
        let message = format!("could not kill container {name}: tried to kill it, but got no exit event");
        let refused = DockerError::Refused { act: "to kill a container", status: 500, message };
        if unkillable { Err(refused) } else { Ok(()) }
    }

    async fn read<T>(
        &self,
        read: impl FnOnce(&FakeEngine) -> Result<T, DockerError>,
    ) -> Result<T, DockerError> {
        let (outcome, takes) = {
            let engine = self.engine();
            let outcome = match (engine.crashed, engine.unreachable) {
                (true, _) => None,
                (_, true) => Some(Err(DockerError::Unreachable { message: "fake outage".into() })),
                _ => Some(read(&engine)),
            };
            (outcome, engine.query_time)
        };
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        match outcome {
            Some(outcome) => outcome,
            None => std::future::pending().await,
        }
    }
}

/// Records a held pull that was cancelled.
struct DroppedPull<'a>(&'a FakeDocker, String);

impl Drop for DroppedPull<'_> {
    fn drop(&mut self) {
        self.0.engine().pulls_dropped.push(self.1.clone());
    }
}

impl FakeContainer {
    fn finish(&mut self, exit: Exit, now: Timestamp) {
        self.row.state = EngineState::Exited;
        self.details.pid = 0;
        self.details.finished_at = Some(now);
        self.details.exit_code = exit.code;
        self.details.oom_killed = exit.oom_killed;
    }
}

impl FakeEngine {
    fn container(&mut self, id: &str) -> Result<&mut FakeContainer, DockerError> {
        self.containers.get_mut(id).ok_or_else(|| DockerError::NotFound { id: id.to_owned() })
    }

    fn name(&self, id: &str) -> String {
        self.containers.get(id).map_or_else(|| id.to_owned(), |c| c.row.name.clone())
    }

    fn create(&mut self, new: &NewContainer) -> Result<String, DockerError> {
        let Some(image) = self.images.get(&new.image) else {
            return Err(DockerError::NoSuchImage { image: new.image.clone() });
        };
        if self.containers.values().any(|c| c.row.name == new.name) {
            return Err(DockerError::NameTaken { name: new.name.clone() });
        }
        if let Some(absent) = new.mounts.iter().find(|mount| !mount.source.exists()) {
            let message = format!(
                "invalid mount config for type \"bind\": bind source path does not exist: {}",
                absent.source.display()
            );
            return Err(DockerError::Refused { act: "to create a container", status: 400, message });
        }
        self.next_id += 1;
        let id = format!("{:012x}", self.next_id);
        let row = ListedContainer {
            id: id.clone(),
            name: new.name.clone(),
            image: new.image.clone(),
            image_id: image.id.clone(),
            created_at: self.now,
            state: EngineState::Created,
            labels: new.labels.clone(),
        };
        let container = FakeContainer { new: new.clone(), row, details: ContainerDetails::default() };
        self.containers.insert(id.clone(), container);
        Ok(id)
    }

    fn start(&mut self, id: &str) -> Result<(), DockerError> {
        let now = self.now;
        if let Namespaces::Join { pause, .. } = &self.container(id)?.new.namespaces {
            let pause = pause.clone();
            if self.containers.get(&pause).is_none_or(|p| p.row.state != EngineState::Running) {
                let message = "cannot join network of a non running container".to_owned();
                return Err(DockerError::Refused { act: "to start a container", status: 409, message });
            }
        }
        self.next_id += 1;
        let pid = i32::try_from(self.next_id).unwrap_or(1);
        let brief = self.brief.clone();
        let container = self.container(id)?;
        if container.row.state != EngineState::Running {
            container.row.state = EngineState::Running;
            container.details =
                ContainerDetails { pid, started_at: Some(now), ..ContainerDetails::default() };
            if brief.contains(&container.new.image) {
                container.finish(Exit::default(), now);
            }
        }
        Ok(())
    }

    fn stop(&mut self, id: &str) -> Result<(), DockerError> {
        let now = self.now;
        let container = self.container(id)?;
        if container.row.state == EngineState::Running {
            container.finish(Exit { code: 143, oom_killed: false }, now);
        }
        Ok(())
    }
}

#[async_trait]
impl Docker for FakeDocker {
    async fn version(&self) -> Result<String, DockerError> {
        self.read(|_| Ok("fake".to_owned())).await
    }

    async fn list(&self, instance: &str) -> Result<Vec<ListedContainer>, DockerError> {
        self.read(|engine| {
            let ours = |row: &&ListedContainer| {
                let of_instance = row.labels.get(names::INSTANCE).is_some_and(|label| label == instance);
                of_instance && names::is_own(&row.name, &row.labels)
            };
            let mut rows: Vec<_> = engine.containers.values().map(|c| &c.row).filter(ours).cloned().collect();
            for row in rows.iter_mut().filter(|row| engine.behind.contains(&row.name)) {
                row.state = EngineState::Running;
            }
            Ok(rows)
        })
        .await
    }

    async fn inspect(&self, id: &str) -> Result<ContainerDetails, DockerError> {
        self.read(|engine| {
            let container = engine.containers.get(id);
            if container.is_some_and(|c| engine.opaque.contains(&c.row.name)) {
                let (act, message) = ("to inspect a container", "broken".to_owned());
                return Err(DockerError::Refused { act, status: 500, message });
            }
            container.map(|c| c.details.clone()).ok_or_else(|| DockerError::NotFound { id: id.to_owned() })
        })
        .await
    }

    async fn create(&self, new: &NewContainer) -> Result<String, DockerError> {
        self.gate(format!("create {}", new.name), |engine| engine.create(new)).await
    }

    async fn start(&self, id: &str) -> Result<(), DockerError> {
        let name = self.engine().name(id);
        self.gate(format!("start {name}"), |engine| engine.start(id)).await
    }

    async fn exec(
        &self,
        id: &str,
        command: &[String],
        timeout: Duration,
    ) -> Result<ExecOutcome, DockerError> {
        let (name, words) = (self.engine().name(id), command.join(" "));
        let done = self.gate(format!("exec {name} {words}"), |engine| {
            let script = engine.execs.get(&words).cloned().unwrap_or_default();
            if engine.container(id)?.row.state != EngineState::Running {
                let message = format!("Container {id} is not running");
                return Err(DockerError::Refused { act: "to prepare a command", status: 409, message });
            }
            Ok(script)
        });
        let FakeExec { code, output, hangs } = done.await?;
        if !hangs {
            return Ok(ExecOutcome { end: ExecEnd::Exited(code), output });
        }
        tokio::time::sleep(timeout).await;
        Ok(ExecOutcome { end: ExecEnd::TimedOut, output })
    }

    async fn stop(&self, id: &str, grace: Duration) -> Result<(), DockerError> {
        let name = self.engine().name(id);
        self.engine().graces.push((name.clone(), grace));
        self.held_up(&name).await?;
        let stubborn = self.engine().all_stubborn || self.engine().stubborn.contains(&name);
        if stubborn {
            tokio::time::sleep(grace).await;
        }
        self.gate(format!("stop {name}"), |engine| engine.stop(id)).await
    }

    async fn remove(&self, id: &str) -> Result<(), DockerError> {
        let name = self.engine().name(id);
        self.held_up(&name).await?;
        self.gate(format!("remove {name}"), |engine| {
            engine.container(id)?;
            engine.containers.remove(id);
            Ok(())
        })
        .await
    }

    async fn image(&self, reference: &str) -> Result<Option<ImageFacts>, DockerError> {
        self.read(|engine| Ok(engine.images.get(reference).cloned())).await
    }

    async fn pull(
        &self,
        reference: &str,
        login: Option<&RegistryLogin>,
        progress: &watch::Sender<PullProgress>,
    ) -> Result<(), DockerError> {
        let held = {
            let mut engine = self.engine();
            engine.pulls_begun.push((reference.to_owned(), login.map(|login| login.username.clone())));
            engine.hold_pulls.then(|| Arc::clone(&engine.pulls_released))
        };
        if let Some(released) = held {
            progress.send_modify(|p| p.note("layer", "Downloading", Some((1 << 20, 4 << 20))));
            let dropped = DroppedPull(self, reference.to_owned());
            released.notified().await;
            std::mem::forget(dropped);
        }
        self.gate(format!("pull {reference}"), |engine| {
            let wanted = engine.logins.get(reference);
            if wanted.is_some_and(|user| login.is_none_or(|login| login.username != *user)) {
                return Err(DockerError::from_pull_message(
                    reference,
                    "no basic auth credentials".to_owned(),
                ));
            }
            if !engine.registry.contains(reference) {
                let message = "no such host".to_owned();
                return Err(DockerError::Pull { image: reference.to_owned(), message });
            }
            let facts = ImageFacts { id: format!("sha256:{reference}"), ..ImageFacts::default() };
            engine.images.insert(reference.to_owned(), facts);
            Ok(())
        })
        .await
    }

    async fn images(&self) -> Result<Vec<StoredImage>, DockerError> {
        self.read(|engine| {
            let mut rows: Vec<StoredImage> = Vec::new();
            for (tag, facts) in &engine.images {
                match rows.iter_mut().find(|row| !row.id.is_empty() && row.id == facts.id) {
                    Some(row) => row.tags.push(tag.clone()),
                    None => rows.push(StoredImage {
                        id: facts.id.clone(),
                        tags: vec![tag.clone()],
                        digests: facts.repo_digests.clone(),
                        size_bytes: facts.size_bytes,
                    }),
                }
            }
            Ok(rows)
        })
        .await
    }

    async fn remove_image(&self, reference: &str) -> Result<(), DockerError> {
        self.gate(format!("remove image {reference}"), |engine| {
            engine.images.remove(reference);
            Ok(())
        })
        .await
    }

    async fn images_in_use(&self) -> Result<BTreeSet<String>, DockerError> {
        self.read(|engine| Ok(engine.containers.values().map(|c| c.row.image_id.clone()).collect())).await
    }

    async fn has_runtime(&self, _name: &str) -> Result<bool, DockerError> {
        self.read(|_| Ok(false)).await
    }

    async fn remaps_users(&self) -> Result<bool, DockerError> {
        self.read(|_| Ok(false)).await
    }

    async fn data_root(&self) -> Result<PathBuf, DockerError> {
        self.read(|_| Ok(PathBuf::from("/"))).await
    }

    async fn load(&self, archive: Vec<u8>) -> Result<(), DockerError> {
        // The fake's archives are just the references.
        let reference = String::from_utf8_lossy(&archive).into_owned();
        self.gate(format!("load {reference}"), |engine| {
            engine.images.insert(reference, ImageFacts::default());
            Ok(())
        })
        .await
    }

    async fn build(
        &self,
        build: ImageBuild,
        log: &(dyn for<'t> Fn(&'t str) + Send + Sync),
    ) -> Result<(), DockerError> {
        let reference = build.reference.clone();
        log(&format!("builds {reference}\n"));
        self.gate(format!("build {reference}"), |engine| {
            engine.builds.push(build);
            let facts = ImageFacts { id: format!("sha256:{reference}"), ..ImageFacts::default() };
            engine.images.insert(reference, facts);
            Ok(())
        })
        .await
    }

    async fn ensure_network(&self, network: &EngineNetwork) -> Result<bool, DockerError> {
        let name = network.name.clone();
        self.gate(format!("ensure network {name}"), |engine| Ok(engine.networks.insert(name))).await
    }

    async fn remove_network(&self, name: &str) -> Result<bool, DockerError> {
        self.gate(format!("remove network {name}"), |engine| Ok(engine.networks.remove(name))).await
    }

    async fn tag(&self, image: &str, name: &str) -> Result<(), DockerError> {
        self.gate(format!("tag {image} {name}"), |engine| {
            let facts = engine.images.get(image).cloned();
            let facts = facts.ok_or_else(|| DockerError::NoSuchImage { image: image.to_owned() })?;
            engine.images.insert(name.to_owned(), facts);
            Ok(())
        })
        .await
    }

    async fn push(&self, reference: &str, _login: Option<&RegistryLogin>) -> Result<(), DockerError> {
        self.gate(format!("push {reference}"), |engine| {
            engine.registry.insert(reference.to_owned());
            Ok(())
        })
        .await
    }

    fn save(&self, reference: &str) -> ImageStream {
        // The fake's archives are just the references.
        stream::iter([Ok(Bytes::from(reference.to_owned()))]).boxed()
    }

    async fn load_stream(&self, archive: ImageStream) -> (Vec<String>, Result<(), DockerError>) {
        let pieces: Vec<Bytes> = archive.filter_map(|piece| async { piece.ok() }).collect().await;
        let mut names = Vec::new();
        for line in String::from_utf8_lossy(&pieces.concat()).lines() {
            if line == Self::DAMAGED {
                let message = "damaged".to_owned();
                return (names, Err(DockerError::Refused { act: "to load an image", status: 0, message }));
            }
            let unnamed = line.strip_prefix(Self::UNNAMED);
            if let Err(error) = self.load(unnamed.unwrap_or(line).as_bytes().to_vec()).await {
                return (names, Err(error));
            }
            names.extend(unnamed.is_none().then(|| line.to_owned()));
        }
        (names, Ok(()))
    }

    async fn logs(&self, id: &str, _options: &LogOptions) -> Result<LogStream, DockerError> {
        let name = self.read(|engine| Ok(engine.name(id))).await?;
        let written = self.engine().written.get(&name).cloned();
        let pieces = written.unwrap_or_else(|| vec![Bytes::from(format!("log of {name}\n"))]);
        Ok(stream::iter(pieces.into_iter().map(Ok)).boxed())
    }

    async fn events(
        &self,
        _instance: &str,
    ) -> Result<BoxStream<'static, Result<ContainerEvent, DockerError>>, DockerError> {
        Ok(stream::pending().boxed())
    }
}
