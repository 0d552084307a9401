//! Docker, as far as Minik8s uses it: one small trait, the real engine and a scripted one.

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
mod pull;
mod push;
mod raw_log;
mod real;
pub mod reference;
mod spec;

pub use build::{BuildSecret, ImageBuild, ImageStream, SECRET_VARIABLE};
pub use error::DockerError;
#[cfg(any(test, feature = "fakes"))]
pub use fake::{Call, Exit, FakeDocker, FakeExec, Fault};
pub use image::{ImageFacts, PullProgress, RegistryLogin, StoredImage};
pub use network::EngineNetwork;
pub use real::RealDocker;
pub use spec::{BindMount, Limits, LogLimits, Namespaces, NewContainer, Resolver};

/// The label by which a listing finds the containers of one instance.
pub const INSTANCE_LABEL: &str = "minik8s.io/instance";

/// What a container does, as the engine's listing says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EngineState {
    Created,
    /// Runs; a frozen one too.
    Running,
    Exited,
    Removing,
    /// Its removal failed: it can only be removed once more.
    Dead,
}

/// One row of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedContainer {
    pub id: String,
    /// Name without the leading slash.
    pub name: String,
    /// The image as it was asked for.
    pub image: String,
    /// The image's content id.
    pub image_id: String,
    pub created_at: Timestamp,
    pub state: EngineState,
    pub labels: BTreeMap<String, String>,
}

/// What a listing does not say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerDetails {
    /// Process id on the host, 0 when it does not run.
    pub pid: i32,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub exit_code: i64,
    pub oom_killed: bool,
    pub error: String,
}

/// Which part of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    pub follow: bool,
    pub tail: Option<u64>,
    pub since: Option<Timestamp>,
    pub timestamps: bool,
}

/// Something ended or went away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerEvent {
    pub id: String,
    /// `die`, `start`, `destroy`, `oom`.
    pub action: String,
}

/// As much of a command's output is kept, in bytes; as kubelet.
pub const EXEC_OUTPUT_MAX: usize = 10 * 1024;

/// How a command in a container ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecEnd {
    /// With this code; 126 or 127 when there is no such program.
    Exited(i64),
    TimedOut,
}

/// What a command in a container did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutcome {
    pub end: ExecEnd,
    /// The beginning of what it wrote to standard output and error, at most [`EXEC_OUTPUT_MAX`] bytes.
    pub output: String,
}

/// A stream of bytes of a log, standard output and error in the order in which they were written.
pub type LogStream = BoxStream<'static, Result<Bytes, DockerError>>;

/// The engine. Every call that is not a stream is bounded in time by the implementation.
#[async_trait]
pub trait Docker: Send + Sync + 'static {
    /// The engine's version, `20.10.24`.
    async fn version(&self) -> Result<String, DockerError>;
    /// All containers of the instance, in any state.
    async fn list(&self, instance: &str) -> Result<Vec<ListedContainer>, DockerError>;
    /// What a listing does not say of one container.
    async fn inspect(&self, id: &str) -> Result<ContainerDetails, DockerError>;
    /// Makes a container and returns its id.
    async fn create(&self, new: &NewContainer) -> Result<String, DockerError>;
    /// Starts a container; no error if it runs.
    async fn start(&self, id: &str) -> Result<(), DockerError>;
    /// Its stop signal, then SIGKILL after `grace`; no error if it does not run. Returns when it ended.
    async fn stop(&self, id: &str, grace: Duration) -> Result<(), DockerError>;
    /// Runs a command in a running container; it is killed after `timeout`.
    async fn exec(&self, id: &str, command: &[String], timeout: Duration)
    -> Result<ExecOutcome, DockerError>;
    /// Kills and removes a container.
    async fn remove(&self, id: &str) -> Result<(), DockerError>;
    /// An image on the node, none if it is not there.
    async fn image(&self, reference: &str) -> Result<Option<ImageFacts>, DockerError>;
    /// Fetches an image from its registry. Dropping the future ends the pull at the engine, too.
    async fn pull(
        &self,
        reference: &str,
        login: Option<&RegistryLogin>,
        progress: &watch::Sender<PullProgress>,
    ) -> Result<(), DockerError>;
    /// All images on the node, those in between of builds left out.
    async fn images(&self) -> Result<Vec<StoredImage>, DockerError>;
    /// Removes a tag, and the image with its last; by id an image without tags. Never by force:
    /// [`DockerError::ImageInUse`] if something needs it. No error if it is not there.
    async fn remove_image(&self, reference: &str) -> Result<(), DockerError>;
    /// Content ids of the images of all containers on the engine.
    async fn images_in_use(&self) -> Result<BTreeSet<String>, DockerError>;
    /// Where the engine keeps its data.
    async fn data_root(&self) -> Result<PathBuf, DockerError>;
    /// Takes images from an archive as `docker save` writes it.
    async fn load(&self, archive: Vec<u8>) -> Result<(), DockerError>;
    /// Builds an image; what the build says goes to `log`. Dropping the future ends it at the engine, too.
    async fn build(
        &self,
        build: ImageBuild,
        log: &(dyn for<'t> Fn(&'t str) + Send + Sync),
    ) -> Result<(), DockerError>;
    /// Makes a network unless it is there; true if it was made.
    async fn ensure_network(&self, network: &EngineNetwork) -> Result<bool, DockerError>;
    /// Removes a network that no container uses; true if it was there.
    async fn remove_network(&self, name: &str) -> Result<bool, DockerError>;
    /// Gives an image one more name, `repository:tag`.
    async fn tag(&self, image: &str, name: &str) -> Result<(), DockerError>;
    /// Brings an image to the registry that its name says. Dropping the future ends the push at the engine, too.
    async fn push(&self, reference: &str, login: Option<&RegistryLogin>) -> Result<(), DockerError>;
    /// An image as an archive, as `docker save` writes it.
    fn save(&self, reference: &str) -> ImageStream;
    /// The same as `load`, as the archive comes. Gives the names that the engine says that it brought, also before an
    /// error: a name that was another image's is taken from that one.
    async fn load_stream(&self, archive: ImageStream) -> (Vec<String>, Result<(), DockerError>);
    /// What a container wrote.
    async fn logs(&self, id: &str, options: &LogOptions) -> Result<LogStream, DockerError>;
    /// What happens to the containers of the instance, from now on.
    async fn events(
        &self,
        instance: &str,
    ) -> Result<BoxStream<'static, Result<ContainerEvent, DockerError>>, DockerError>;
}
