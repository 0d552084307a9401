//! Docker, as far as Minik8s uses it: a small trait, the real engine and a scripted fake.

mod transfer;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use jiff::Timestamp;
use tokio::sync::watch;

mod body;
mod build;
mod error;
mod exec;
#[cfg(any(test, feature = "fakes"))]
mod fake;
mod image;
mod network;
mod raw_log;
mod real;
mod spec;

pub use build::{BuildSecret, ImageBuild, ImageStream, PROCESSES_MAX, SECRET_VARIABLE, remove_build_cgroup};
pub use error::DockerError;
#[cfg(any(test, feature = "fakes"))]
pub use fake::{Call, Exit, FakeDocker, FakeExec, Fault};
pub use image::{ImageFacts, PullProgress, RegistryLogin, StoredImage, repo_digest};
pub use network::EngineNetwork;
pub use real::RealDocker;
pub use spec::{BindMount, Limits, LogLimits, Namespaces, NewContainer, Propagation, Resolver};

/// State of a container in the engine's listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EngineState {
    Created,
    /// Running, or paused.
    Running,
    Exited,
    Removing,
    /// The removal of the container failed: the only way on is to remove it again.
    Dead,
}

/// A row of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedContainer {
    pub id: String,
    /// Name without the leading slash.
    pub name: String,
    /// The image as given at creation.
    pub image: String,
    /// The image's content id.
    pub image_id: String,
    pub created_at: Timestamp,
    pub state: EngineState,
    pub labels: BTreeMap<String, String>,
}

/// Facts that a listing lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerDetails {
    /// Process id on the host, 0 if the container does not run.
    pub pid: i32,
    /// Time of creation, more precise than in a listing.
    pub created_at: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub exit_code: i64,
    pub oom_killed: bool,
    pub error: String,
}

/// The part of a log to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    pub follow: bool,
    pub tail: Option<u64>,
    pub since: Option<Timestamp>,
    pub timestamps: bool,
}

/// A change of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerEvent {
    pub id: String,
    /// `die`, `start`, `destroy`, `oom`.
    pub action: String,
    /// Labels of the container, beside its name and image.
    pub labels: BTreeMap<String, String>,
}

/// Maximum bytes kept of a command's output; the kubelet's limit.
pub const EXEC_OUTPUT_MAX: usize = 10 * 1024;

/// End of a command in a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecEnd {
    /// Exit code; 126 or 127 if there is no such program.
    Exited(i64),
    TimedOut,
}

/// Result of a command in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutcome {
    pub end: ExecEnd,
    /// Beginning of its standard output and error, at most [`EXEC_OUTPUT_MAX`] bytes.
    pub output: String,
}

/// Stream of a log's bytes, standard output and error in the order in which they were written.
pub type LogStream = BoxStream<'static, Result<Bytes, DockerError>>;

/// The engine. Every call that is not a stream is bounded in time by the implementation.
#[async_trait]
pub trait Docker: Send + Sync + 'static {
    /// The engine's version, `20.10.24`.
    async fn version(&self) -> Result<String, DockerError>;
    /// Lists the containers of the instance, in any state: those whose name and labels agree (see
    /// [`crate::names::is_own`]).
    async fn list(&self, instance: &str) -> Result<Vec<ListedContainer>, DockerError>;
    /// Returns the facts that a listing lacks.
    async fn inspect(&self, id: &str) -> Result<ContainerDetails, DockerError>;
    /// Creates a container and returns its id.
    async fn create(&self, new: &NewContainer) -> Result<String, DockerError>;
    /// Starts a container; no error if it is already running.
    async fn start(&self, id: &str) -> Result<(), DockerError>;
    /// Sends the stop signal, then SIGKILL after `grace`; no error if the container does not run. Returns after its
    /// end.
    async fn stop(&self, id: &str, grace: Duration) -> Result<(), DockerError>;
    /// Runs a command in a running container; it is killed after `timeout`.
    async fn exec(&self, id: &str, command: &[String], timeout: Duration)
    -> Result<ExecOutcome, DockerError>;
    /// Kills and removes a container.
    async fn remove(&self, id: &str) -> Result<(), DockerError>;
    /// Returns an image on the node, `None` if missing.
    async fn image(&self, reference: &str) -> Result<Option<ImageFacts>, DockerError>;
    /// Pulls an image from its registry. Dropping the future cancels the pull at the engine, too.
    async fn pull(
        &self,
        reference: &str,
        login: Option<&RegistryLogin>,
        progress: &watch::Sender<PullProgress>,
    ) -> Result<(), DockerError>;
    /// Lists the images on the node, except intermediate ones of builds.
    async fn images(&self) -> Result<Vec<StoredImage>, DockerError>;
    /// Removes a tag, and the image with its last tag; given an id, an image without tags. Never forces:
    /// [`DockerError::ImageInUse`] if something needs the image. No error if it is missing.
    async fn remove_image(&self, reference: &str) -> Result<(), DockerError>;
    /// Ids of the images of all containers on the engine.
    async fn images_in_use(&self) -> Result<BTreeSet<String>, DockerError>;
    /// True if the engine has a runtime of this name.
    async fn has_runtime(&self, name: &str) -> Result<bool, DockerError>;
    /// True if users of containers are others on the node: such users must pass through the folders above a mount.
    async fn remaps_users(&self) -> Result<bool, DockerError>;
    /// Directory in which the engine keeps its data.
    async fn data_root(&self) -> Result<PathBuf, DockerError>;
    /// Loads images from an archive as written by `docker save`.
    async fn load(&self, archive: Vec<u8>) -> Result<(), DockerError>;
    /// Builds an image; the output goes to `log`. Dropping the future cancels the build at the engine, too.
    async fn build(
        &self,
        build: ImageBuild,
        log: &(dyn for<'t> Fn(&'t str) + Send + Sync),
    ) -> Result<(), DockerError>;
    /// Creates a network if missing; true if it was created.
    async fn ensure_network(&self, network: &EngineNetwork) -> Result<bool, DockerError>;
    /// Removes a network that no container uses; true if it existed.
    async fn remove_network(&self, name: &str) -> Result<bool, DockerError>;
    /// Gives an image another name, `repository:tag`.
    async fn tag(&self, image: &str, name: &str) -> Result<(), DockerError>;
    /// Pushes an image to the registry in its name. Dropping the future cancels the push at the engine, too.
    async fn push(&self, reference: &str, login: Option<&RegistryLogin>) -> Result<(), DockerError>;
    /// Exports an image as an archive, as `docker save` does.
    fn save(&self, reference: &str) -> ImageStream;
    /// Loads a streamed archive. Returns the names that the engine reports as loaded, even before an error: a name
    /// that another image had moves to the loaded one.
    async fn load_stream(&self, archive: ImageStream) -> (Vec<String>, Result<(), DockerError>);
    /// Returns the log of a container.
    async fn logs(&self, id: &str, options: &LogOptions) -> Result<LogStream, DockerError>;
    /// Streams events of the instance's containers, from now on.
    async fn events(
        &self,
        instance: &str,
    ) -> Result<BoxStream<'static, Result<ContainerEvent, DockerError>>, DockerError>;
}
