//! Image builds by the engine, and images as streams between nodes.

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

/// Stream of the bytes of an image archive.
pub type ImageStream = BoxStream<'static, Result<Bytes, String>>;

/// Longest time without output of a build, or without a byte of an image.
const SILENCE_MAX: Duration = Duration::from_secs(300);
/// Period of the CPU quota.
const CPU_PERIOD_US: i32 = 100_000;

/// A request to build an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageBuild {
    /// Name of the image to build.
    pub reference: String,
    /// Build context as a tar.
    pub context: Bytes,
    /// Path of the Dockerfile in the context.
    pub dockerfile: String,
    /// Network of the build's steps; no network without it.
    pub network: Option<String>,
    /// Memory limit of a step in bytes, swap included.
    pub memory_bytes: i32,
    /// Microseconds of CPU per 100 ms for a step.
    pub cpu_quota_us: i32,
    pub labels: HashMap<String, String>,
    /// Secret in the environment of the steps; kept out of layers, history and log.
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

/// Variable that carries the secret to the steps of a build. Docker keeps build arguments named like proxy settings
/// out of the history, and the classic builder has no other way; nothing that installs packages speaks FTP.
pub const SECRET_VARIABLE: &str = "ftp_proxy";

/// Builds an image; each piece of the build's output goes to `log`.
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

/// Forwards the output of a build or load until its end.
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

/// Exports an image as an archive.
pub(super) fn save(client: &bollard::Docker, reference: &str) -> ImageStream {
    client.export_image(reference).map(|piece| piece.map_err(|error| error.to_string())).boxed()
}

/// Loads images from a stream; returns the names that the engine reports for them.
pub(super) async fn load(
    client: &bollard::Docker,
    archive: ImageStream,
) -> (Vec<String>, Result<(), DockerError>) {
    let (names, loaded) = mpsc::channel();
    let note = |said: &str| {
        if let Some(name) = said.trim().strip_prefix("Loaded image: ") {
            // The receiver lives as long as this function.
            let _ = names.send(name.to_owned());
        }
    };
    let steps = client.import_image_stream(ImportImageOptions::default(), archive, None);
    let result = follow("to load an image", steps.boxed(), &note).await;
    (loaded.try_iter().collect(), result)
}
