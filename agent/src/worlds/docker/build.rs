//! Image builds by the engine, and images as streams between nodes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;
use std::{fmt, fs, io};

use bollard::models::{BuildInfo, SystemInfoCgroupDriverEnum, SystemInfoCgroupVersionEnum};
use bollard::query_parameters::{BuildImageOptions, ImportImageOptions};
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt as _};
use tokio::process::Command;
use tokio::time::timeout;

use super::DockerError;
use super::error::{READ, within};

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
    /// Name of the cgroup that bounds the processes of the steps; unbounded without it.
    pub cgroup: Option<String>,
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
    let client = match &build.cgroup {
        Some(name) => in_cgroup(client, bounded_cgroup(client, name).await?),
        None => client.clone(),
    };
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

// Bounds the processes of builds. The engine's API for builds has no limit for them, and RLIMIT_NPROC does not count
// root's, so the steps get a parent cgroup with one: a folder with the driver cgroupfs, a slice with systemd.

/// Maximum number of processes and threads of all builds of an instance together.
pub const PROCESSES_MAX: u32 = 4096;

const CGROUPS: &str = "/sys/fs/cgroup";
const UNITS: &str = "/run/systemd/system";
const BOUND: &str = "to bound the processes of builds";

/// Returns a client whose builds run below this cgroup; the client library knows no such option.
fn in_cgroup(client: &bollard::Docker, parent: String) -> bollard::Docker {
    client.clone().with_request_modifier(move |mut request| {
        let uri = format!("{}&cgroupparent={parent}", request.uri());
        // The name of an instance holds no letter that a URI lacks.
        *request.uri_mut() = uri.parse().expect("a URI with one more parameter is a URI");
        request
    })
}

/// Creates the cgroup unless it is there, and returns its name for the engine's driver.
async fn bounded_cgroup(client: &bollard::Docker, name: &str) -> Result<String, DockerError> {
    let info = within(BOUND, READ, client.info()).await?;
    let made = match (info.cgroup_driver, info.cgroup_version) {
        (Some(SystemInfoCgroupDriverEnum::SYSTEMD), _) => make_slice(name).await,
        (_, Some(SystemInfoCgroupVersionEnum::_2)) => make_folder(Path::new(CGROUPS), name, true),
        _ => make_folder(&Path::new(CGROUPS).join("pids"), name, false),
    };
    made.map_err(|message| DockerError::Refused { act: BOUND, status: 0, message })
}

fn make_folder(root: &Path, name: &str, is_v2: bool) -> Result<String, String> {
    let folder = root.join(name);
    let failed = |path: PathBuf| move |error: io::Error| format!("cannot write {}: {error}", path.display());
    if is_v2 {
        let control = root.join("cgroup.subtree_control");
        fs::write(&control, "+pids").map_err(failed(control))?;
    }
    fs::create_dir_all(&folder).map_err(failed(folder.clone()))?;
    let most = folder.join("pids.max");
    fs::write(&most, PROCESSES_MAX.to_string()).map_err(failed(most))?;
    Ok(format!("/{name}"))
}

async fn make_slice(name: &str) -> Result<String, String> {
    let slice = format!("{name}.slice");
    let unit = Path::new(UNITS).join(&slice);
    let text = format!("[Unit]\nDescription=Builds of Minik8s\n[Slice]\nTasksMax={PROCESSES_MAX}\n");
    if fs::read_to_string(&unit).ok().as_deref() != Some(&text) {
        let failed = |error: io::Error| format!("cannot write {}: {error}", unit.display());
        fs::create_dir_all(UNITS).and_then(|()| fs::write(&unit, &text)).map_err(failed)?;
        systemctl(&["daemon-reload"]).await?;
    }
    systemctl(&["start", &slice]).await?;
    Ok(slice)
}

async fn systemctl(words: &[&str]) -> Result<(), String> {
    let mut command = Command::new("systemctl");
    command.args(words).stdin(Stdio::null()).kill_on_drop(true);
    let ran = timeout(READ, command.output()).await.map_err(|_| "systemctl does not answer".to_owned())?;
    let output = ran.map_err(|error| format!("cannot run systemctl: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(format!("systemctl {}: {said}", words.join(" "))) }
}

/// Removes the cgroup of builds from every hierarchy; true if there was one. One that a build uses stays.
pub fn remove_build_cgroup(name: &str) -> bool {
    let hierarchies = fs::read_dir(CGROUPS).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut folders: Vec<PathBuf> = hierarchies.map(|hierarchy| hierarchy.join(name)).collect();
    folders.push(Path::new(CGROUPS).join(name));
    let removed = folders.iter().filter(|folder| fs::remove_dir(folder).is_ok()).count();
    // systemd ends an empty slice by itself.
    fs::remove_file(Path::new(UNITS).join(format!("{name}.slice"))).is_ok() || removed > 0
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
