//! An engine in memory: the same rules as far as the agent leans on them, a clock set by the test,
//! and faults after the n-th changing call. A "crash" lets that call take effect and never return,
//! nor any later one, as for an agent killed right there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use jiff::Timestamp;

use super::{
    ContainerDetails, ContainerEvent, Docker, DockerError, EngineState, EngineVersion, INSTANCE_LABEL,
    ImageFacts, ListedContainer, LogOptions, LogStream, Namespaces, NewContainer,
};

/// A changing call, by container name or image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call(pub String);

/// What goes wrong.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Changing call number `call` (from 1) fails with `error` and does nothing.
    Fail {
        /// Its number.
        call: usize,
        /// What it says.
        error: DockerError,
    },
    /// Changing call number `call` takes effect, and nothing returns from then on: its answer is lost.
    Crash {
        /// Its number.
        call: usize,
    },
    /// Changing call number `call` does nothing, and nothing returns from then on: the one before it
    /// was answered, and this one never arrived.
    CrashBefore {
        /// Its number.
        call: usize,
    },
}

/// How a container ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exit {
    /// Its code.
    pub code: i64,
    /// For its memory.
    pub oom_killed: bool,
}

/// One container of the fake.
#[derive(Debug, Clone)]
pub struct FakeContainer {
    /// What was asked for.
    pub new: NewContainer,
    /// What the listing says.
    pub row: ListedContainer,
    /// What inspect says.
    pub details: ContainerDetails,
}

/// The fake's state.
#[derive(Debug, Default)]
pub struct FakeEngine {
    /// Containers by id.
    pub containers: BTreeMap<String, FakeContainer>,
    /// Images on the node.
    pub images: BTreeMap<String, ImageFacts>,
    /// Images that a pull finds.
    pub registry: BTreeSet<String>,
    /// The time.
    pub now: Timestamp,
    /// Changing calls so far.
    pub calls: Vec<Call>,
    /// What goes wrong.
    pub fault: Option<Fault>,
    /// Names of containers that inspect fails on.
    pub opaque: BTreeSet<String>,
    /// Images whose containers end with code 0 as soon as they start.
    pub brief: BTreeSet<String>,
    /// Names of containers whose end the listing does not show yet.
    pub behind: BTreeSet<String>,
    /// Every call says that nobody answers.
    pub unreachable: bool,
    crashed: bool,
    next_id: u64,
}

/// An engine in memory.
#[derive(Debug, Default)]
pub struct FakeDocker(Mutex<FakeEngine>);

impl FakeDocker {
    /// An engine with these images.
    pub fn with_images(images: &[&str]) -> Self {
        let fake = Self::default();
        for image in images {
            let facts = ImageFacts { id: format!("sha256:{image}"), user: String::new() };
            fake.engine().images.insert((*image).to_owned(), facts);
        }
        fake
    }

    /// The state, to look at and to change.
    pub fn engine(&self) -> MutexGuard<'_, FakeEngine> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the container with this name.
    ///
    /// # Panics
    /// If there is none, or it does not run.
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

    /// The agent that hung in a crash is gone; the next one is answered.
    pub fn revive(&self) {
        let mut engine = self.engine();
        engine.crashed = false;
        engine.fault = None;
    }

    /// Whether the crash asked for has come.
    pub fn has_crashed(&self) -> bool {
        self.engine().crashed
    }

    /// Counts a changing call of any world; `effect` happens if no fault forbids it. Hangs after a crash.
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

    async fn read<T>(
        &self,
        read: impl FnOnce(&FakeEngine) -> Result<T, DockerError>,
    ) -> Result<T, DockerError> {
        let outcome = {
            let engine = self.engine();
            match (engine.crashed, engine.unreachable) {
                (true, _) => None,
                (_, true) => Some(Err(DockerError::Unreachable { message: "fake outage".into() })),
                _ => Some(read(&engine)),
            }
        };
        match outcome {
            Some(outcome) => outcome,
            None => std::future::pending().await,
        }
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
    async fn version(&self) -> Result<EngineVersion, DockerError> {
        self.read(|_| Ok(EngineVersion { version: "fake".into(), api: "1.41".into() })).await
    }

    async fn list(&self, instance: &str) -> Result<Vec<ListedContainer>, DockerError> {
        self.read(|engine| {
            let ours = |row: &&ListedContainer| {
                row.labels.get(INSTANCE_LABEL).is_some_and(|label| label == instance)
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

    async fn stop(&self, id: &str, _grace: Duration) -> Result<(), DockerError> {
        let name = self.engine().name(id);
        self.gate(format!("stop {name}"), |engine| engine.stop(id)).await
    }

    async fn remove(&self, id: &str) -> Result<(), DockerError> {
        let name = self.engine().name(id);
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

    async fn pull(&self, reference: &str) -> Result<(), DockerError> {
        self.gate(format!("pull {reference}"), |engine| {
            if !engine.registry.contains(reference) {
                let message = "no such host".to_owned();
                return Err(DockerError::Pull { image: reference.to_owned(), message });
            }
            let facts = ImageFacts { id: format!("sha256:{reference}"), user: String::new() };
            engine.images.insert(reference.to_owned(), facts);
            Ok(())
        })
        .await
    }

    async fn load(&self, archive: Vec<u8>) -> Result<(), DockerError> {
        // The fake's archives are just the reference.
        let reference = String::from_utf8_lossy(&archive).into_owned();
        self.gate(format!("load {reference}"), |engine| {
            engine.images.insert(reference, ImageFacts::default());
            Ok(())
        })
        .await
    }

    async fn logs(&self, id: &str, _options: &LogOptions) -> Result<LogStream, DockerError> {
        let name = self.read(|engine| Ok(engine.name(id))).await?;
        Ok(stream::iter([Ok(Bytes::from(format!("log of {name}\n")))]).boxed())
    }

    async fn events(
        &self,
        _instance: &str,
    ) -> Result<BoxStream<'static, Result<ContainerEvent, DockerError>>, DockerError> {
        Ok(stream::pending().boxed())
    }
}
