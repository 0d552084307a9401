//! Images built by the engine, and images as streams from one node to another.

use std::collections::HashMap;
use std::fmt;
use std::sync::mpsc;
use std::time::Duration;

use bollard::models::BuildInfo;
use bollard::query_parameters::{BuildImageOptions, ImportImageOptions};
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt as _};
use tokio::time::timeout;

use super::DockerError;

/// Bytes of an archive of images, as they come.
pub type ImageStream = BoxStream<'static, Result<Bytes, String>>;

/// Longest time without a word of a build, or a byte of an image.
const SILENCE_MAX: Duration = Duration::from_secs(300);
/// Period of the CPU quota.
const CPU_PERIOD_US: i32 = 100_000;

/// An image to be built.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageBuild {
    /// What it is to be called.
    pub reference: String,
    /// A tar with all that the build sees.
    pub context: Bytes,
    /// Path of the Dockerfile in it.
    pub dockerfile: String,
    /// The network of the build's steps; without one they reach none.
    pub network: Option<String>,
    /// Most bytes of memory of a step, swap included.
    pub memory_bytes: i32,
    /// Microseconds of CPU per 100 ms of a step.
    pub cpu_quota_us: i32,
    pub labels: HashMap<String, String>,
    /// What its steps find in the environment, and no layer, history or log has.
    pub secret: Option<BuildSecret>,
}

/// A text that `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct BuildSecret(pub String);

impl fmt::Debug for BuildSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BuildSecret")
    }
}

/// The variable in which the steps of a build find the secret. Docker keeps the arguments that are called like those of
/// proxies out of the history, and it is the only way of the classic builder; nothing that installs packages speaks FTP.
pub const SECRET_VARIABLE: &str = "ftp_proxy";

/// Builds; each piece of what the build says goes to `log`.
pub(super) async fn build(
    client: &bollard::Docker,
    build: ImageBuild,
    log: &(dyn Fn(&str) + Send + Sync),
) -> Result<(), DockerError> {
    let options = BuildImageOptions {
        dockerfile: build.dockerfile,
        t: Some(build.reference),
        rm: true,
        forcerm: true,
        memory: Some(build.memory_bytes),
        memswap: Some(build.memory_bytes),
        cpuperiod: Some(CPU_PERIOD_US),
        cpuquota: Some(build.cpu_quota_us),
        labels: Some(build.labels),
        buildargs: build.secret.map(|secret| [(SECRET_VARIABLE.to_owned(), secret.0)].into()),
        networkmode: Some(build.network.unwrap_or_else(|| "none".to_owned())),
        ..Default::default()
    };
    let steps = client.build_image(options, None, Some(bollard::body_full(build.context)));
    follow("to build an image", steps.boxed(), log).await
}

/// All that a build or a load says, until its end.
async fn follow(
    act: &'static str,
    mut steps: BoxStream<'_, Result<BuildInfo, bollard::errors::Error>>,
    log: &(dyn Fn(&str) + Send + Sync),
) -> Result<(), DockerError> {
    loop {
        let step = timeout(SILENCE_MAX, steps.next()).await;
        let Some(step) = step.map_err(|_| DockerError::Timeout { act, after: SILENCE_MAX })? else {
            return Ok(());
        };
        let step = step.map_err(|error| DockerError::from_client(act, &error))?;
        if let Some(said) = step.stream.or(step.status) {
            log(&said);
        }
        if let Some(message) = step.error_detail.and_then(|error| error.message) {
            return Err(DockerError::Refused { act, status: 0, message });
        }
    }
}

/// An image as an archive.
pub(super) fn save(client: &bollard::Docker, reference: &str) -> ImageStream {
    client.export_image(reference).map(|piece| piece.map_err(|error| error.to_string())).boxed()
}

/// Takes images from an archive as it comes; gives the names that the engine says that they have now.
pub(super) async fn load(
    client: &bollard::Docker,
    archive: ImageStream,
) -> (Vec<String>, Result<(), DockerError>) {
    let (names, loaded) = mpsc::channel();
    let note = |said: &str| {
        if let Some(name) = said.trim().strip_prefix("Loaded image: ") {
            // The other end lives as long as this function.
            let _ = names.send(name.to_owned());
        }
    };
    let steps = client.import_image_stream(ImportImageOptions::default(), archive, None);
    let result = follow("to load an image", steps.boxed(), &note).await;
    (loaded.try_iter().collect(), result)
}
