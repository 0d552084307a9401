//! The engine at a Unix socket, through bollard, with a negotiated API version.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use bollard::auth::DockerCredentials;
use bollard::models::{ContainerSummaryStateEnum as Summary, CreateImageInfo};
use bollard::query_parameters::{
    CreateContainerOptions, CreateImageOptions, EventsOptions, ImportImageOptions, ListContainersOptions,
    ListImagesOptions, LogsOptions, RemoveContainerOptions, RemoveImageOptions, StopContainerOptions,
};
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use jiff::Timestamp;
use tokio::sync::watch;

use super::body::create_body;
use super::error::{READ, WRITE, within};
use super::image::pull_reference;
use super::transfer::{PullActivity, PullMessage};
use super::{
    ContainerDetails, ContainerEvent, Docker, DockerError, EngineNetwork, EngineState, ExecOutcome,
    ImageBuild, ImageFacts, ImageStream, ListedContainer, LogOptions, LogStream, NewContainer, PullProgress,
    RegistryLogin, StoredImage, raw_log, transfer,
};
use crate::names;

/// Time added to the grace period of a stop, for SIGKILL and the engine's own bookkeeping.
const STOP_EXTRA: Duration = Duration::from_secs(30);
/// Timeout of the client; ours are shorter, except for streams.
const CLIENT_SECONDS: u64 = 24 * 3600;
/// Security options of an engine whose containers run as other users of the node.
const REMAPPING: [&str; 2] = ["name=userns", "name=rootless"];
/// The oldest API with everything the agent needs (`cgroupns`, mounts): Docker 20.10.
const API_MIN: (usize, usize) = (1, 41);

/// The real engine.
#[derive(Debug, Clone)]
pub struct RealDocker {
    client: bollard::Docker,
    socket: PathBuf,
    movement: PullActivity,
}

impl RealDocker {
    /// Connects to `unix:///path` (or a bare path) and agrees on an API version.
    pub async fn connect(host: &str) -> Result<Self, DockerError> {
        let act = "to connect";
        let path = host.strip_prefix("unix://").unwrap_or(host);
        let client = bollard::Docker::connect_with_unix(path, CLIENT_SECONDS, bollard::API_DEFAULT_VERSION)
            .map_err(|e| DockerError::from_client(act, &e))?;
        let client = within(act, READ, client.negotiate_version()).await?;
        let version = client.client_version();
        if (version.major_version, version.minor_version) < API_MIN {
            let message = format!(
                "it supports API {version}, but {}.{} (Docker 20.10) or later is needed; upgrade Docker",
                API_MIN.0, API_MIN.1
            );
            return Err(DockerError::Refused { act, status: 0, message });
        }
        Ok(Self { client, socket: PathBuf::from(path), movement: PullActivity::default() })
    }
}

#[async_trait]
impl Docker for RealDocker {
    async fn version(&self) -> Result<String, DockerError> {
        Ok(within("to report its version", READ, self.client.version()).await?.version.unwrap_or_default())
    }

    async fn list(&self, instance: &str) -> Result<Vec<ListedContainer>, DockerError> {
        let filters = HashMap::from([("label".to_owned(), vec![instance_label(instance)])]);
        let options = ListContainersOptions { all: true, filters: Some(filters), ..Default::default() };
        let rows = within("to list containers", READ, self.client.list_containers(Some(options))).await?;
        let rows = rows.into_iter().map(listed);
        Ok(rows.filter(|row| names::is_own(&row.name, &row.labels)).collect())
    }

    async fn inspect(&self, id: &str) -> Result<ContainerDetails, DockerError> {
        let none = None::<bollard::query_parameters::InspectContainerOptions>;
        let answer = within("to inspect a container", READ, self.client.inspect_container(id, none))
            .await
            .map_err(|e| e.for_container(id))?;
        let state = answer.state.unwrap_or_default();
        Ok(ContainerDetails {
            pid: state.pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default(),
            created_at: answer.created.as_deref().and_then(|text| text.parse().ok()),
            started_at: time(state.started_at.as_deref()),
            finished_at: time(state.finished_at.as_deref()),
            exit_code: state.exit_code.unwrap_or_default(),
            oom_killed: state.oom_killed.unwrap_or_default(),
            error: state.error.unwrap_or_default(),
        })
    }

    async fn create(&self, new: &NewContainer) -> Result<String, DockerError> {
        let options = CreateContainerOptions { name: Some(new.name.clone()), ..Default::default() };
        // The engine runs on this machine. Checked each time: the kernel module may be loaded later.
        let has_ipv6 = Path::new("/proc/sys/net/ipv6").exists();
        let request = self.client.create_container(Some(options), create_body(new, has_ipv6));
        within("to create a container", WRITE, request)
            .await
            .map(|created| created.id)
            .map_err(|e| e.for_create(&new.name, &new.image))
    }

    async fn start(&self, id: &str) -> Result<(), DockerError> {
        let none = None::<bollard::query_parameters::StartContainerOptions>;
        match within("to start a container", WRITE, self.client.start_container(id, none)).await {
            Err(DockerError::Refused { status: 304, .. }) => Ok(()),
            other => other.map_err(|e| e.for_container(id)),
        }
    }

    async fn stop(&self, id: &str, grace: Duration) -> Result<(), DockerError> {
        let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
        let options = StopContainerOptions { t: Some(seconds), ..Default::default() };
        let request = self.client.stop_container(id, Some(options));
        match within("to stop a container", grace + STOP_EXTRA, request).await {
            Err(DockerError::Refused { status: 304, .. }) => Ok(()),
            other => other.map_err(|e| e.for_container(id)),
        }
    }

    async fn exec(
        &self,
        id: &str,
        command: &[String],
        timeout: Duration,
    ) -> Result<ExecOutcome, DockerError> {
        super::exec::exec(&self.client, id, command, timeout).await
    }

    async fn remove(&self, id: &str) -> Result<(), DockerError> {
        let options = RemoveContainerOptions { force: true, v: true, ..Default::default() };
        within("to remove a container", WRITE, self.client.remove_container(id, Some(options)))
            .await
            .map_err(|e| e.for_container(id))
    }

    async fn image(&self, reference: &str) -> Result<Option<ImageFacts>, DockerError> {
        let asked =
            if reference.starts_with("sha256:") { reference.to_owned() } else { pull_reference(reference) };
        match within("to inspect an image", READ, self.client.inspect_image(&asked)).await {
            Ok(image) => {
                let config = image.config.unwrap_or_default();
                Ok(Some(ImageFacts {
                    id: image.id.unwrap_or_default(),
                    user: config.user.unwrap_or_default(),
                    repo_digests: image.repo_digests.unwrap_or_default(),
                    size_bytes: bytes(image.size),
                    labels: config.labels.unwrap_or_default().into_iter().collect(),
                    has_triggers: config.on_build.is_some_and(|triggers| !triggers.is_empty()),
                }))
            }
            Err(DockerError::Refused { status: 404, .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }

    async fn pull(
        &self,
        reference: &str,
        login: Option<&RegistryLogin>,
        progress: &watch::Sender<PullProgress>,
    ) -> Result<(), DockerError> {
        let options =
            CreateImageOptions { from_image: Some(pull_reference(reference)), ..Default::default() };
        let steps = self.client.create_image(Some(options), None, login.map(credentials));
        let failed = |error: DockerError| match error {
            DockerError::Refused { message, .. } => DockerError::from_pull_message(reference, message),
            other => other,
        };
        let steps = steps.map(|step| match step {
            Err(error) => Err(failed(DockerError::from_client("to pull an image", &error))),
            Ok(step) => Ok(said(step)),
        });
        transfer::follow(reference, steps.boxed(), &self.movement, progress).await
    }

    async fn images(&self) -> Result<Vec<StoredImage>, DockerError> {
        let options = ListImagesOptions::default();
        let rows = within("to list images", READ, self.client.list_images(Some(options))).await?;
        let named = |names: Vec<String>| names.into_iter().filter(|n| !n.contains("<none>")).collect();
        let stored = rows.into_iter().map(|row| StoredImage {
            id: row.id,
            tags: named(row.repo_tags),
            digests: named(row.repo_digests),
            size_bytes: bytes(Some(row.size)),
        });
        Ok(stored.collect())
    }

    async fn remove_image(&self, reference: &str) -> Result<(), DockerError> {
        let options = RemoveImageOptions::default();
        let request = self.client.remove_image(reference, Some(options), None);
        match within("to remove an image", WRITE, request).await {
            Ok(_) | Err(DockerError::Refused { status: 404, .. }) => Ok(()),
            Err(DockerError::Refused { status: 409, message, .. }) => {
                Err(DockerError::ImageInUse { image: reference.to_owned(), message })
            }
            Err(other) => Err(other),
        }
    }

    async fn images_in_use(&self) -> Result<BTreeSet<String>, DockerError> {
        let options = ListContainersOptions { all: true, ..Default::default() };
        let rows = within("to list containers", READ, self.client.list_containers(Some(options))).await?;
        Ok(rows.into_iter().filter_map(|row| row.image_id).collect())
    }

    async fn has_runtime(&self, name: &str) -> Result<bool, DockerError> {
        let info = within("to list its runtimes", READ, self.client.info()).await?;
        Ok(info.runtimes.is_some_and(|runtimes| runtimes.contains_key(name)))
    }

    async fn remaps_users(&self) -> Result<bool, DockerError> {
        let info = within("whether it remaps users", READ, self.client.info()).await?;
        let options = info.security_options.unwrap_or_default();
        let remaps = |option: &String| option.split(',').any(|part| REMAPPING.contains(&part));
        Ok(options.iter().any(remaps))
    }

    async fn data_root(&self) -> Result<PathBuf, DockerError> {
        let info = within("to report its data directory", READ, self.client.info()).await?;
        let unknown = || DockerError::Refused {
            act: "to report its data directory",
            status: 0,
            message: "its answer has none".to_owned(),
        };
        info.docker_root_dir.map(PathBuf::from).ok_or_else(unknown)
    }

    async fn load(&self, archive: Vec<u8>) -> Result<(), DockerError> {
        let act = "to load an image";
        let body = bollard::body_full(Bytes::from(archive));
        let mut steps = self.client.import_image(ImportImageOptions::default(), body, None).boxed();
        let all = async {
            while let Some(step) = steps.next().await {
                step?;
            }
            Ok(())
        };
        within(act, WRITE, all).await
    }

    async fn build(
        &self,
        build: ImageBuild,
        log: &(dyn for<'t> Fn(&'t str) + Send + Sync),
    ) -> Result<(), DockerError> {
        super::build::build(&self.client, build, log).await
    }

    async fn ensure_network(&self, network: &EngineNetwork) -> Result<bool, DockerError> {
        super::network::ensure(&self.client, network).await
    }

    async fn remove_network(&self, name: &str) -> Result<bool, DockerError> {
        super::network::remove(&self.client, name).await
    }

    async fn tag(&self, image: &str, name: &str) -> Result<(), DockerError> {
        transfer::tag(&self.client, image, name).await
    }

    async fn push(&self, reference: &str, login: Option<&RegistryLogin>) -> Result<(), DockerError> {
        transfer::push(&self.client, reference, login.map(credentials)).await
    }

    fn save(&self, reference: &str) -> ImageStream {
        super::build::save(&self.client, reference)
    }

    async fn load_stream(&self, archive: ImageStream) -> (Vec<String>, Result<(), DockerError>) {
        super::build::load(&self.client, archive).await
    }

    async fn logs(&self, id: &str, options: &LogOptions) -> Result<LogStream, DockerError> {
        let none = None::<bollard::query_parameters::InspectContainerOptions>;
        let seen = within("to inspect a container", READ, self.client.inspect_container(id, none)).await;
        let config = seen.map_err(|e| e.for_container(id))?.config;
        if config.and_then(|config| config.tty).unwrap_or(false) {
            let version = self.client.client_version().to_string();
            return raw_log::logs(&self.socket, &version, id, options).await;
        }
        // The client counts in 32 bits: a time after 2038 is later than any line, not earlier.
        let since = options.since.map_or(0, |t| i32::try_from(t.as_second().max(0)).unwrap_or(i32::MAX));
        let request = LogsOptions {
            follow: options.follow,
            stdout: true,
            stderr: true,
            since,
            timestamps: options.timestamps,
            tail: options.tail.map_or_else(|| "all".to_owned(), |n| n.to_string()),
            ..Default::default()
        };
        let stream = self.client.logs(id, Some(request));
        Ok(stream
            .map(|piece| {
                piece
                    .map(bollard::container::LogOutput::into_bytes)
                    .map_err(|e| DockerError::from_client("to read a log", &e))
            })
            .boxed())
    }

    async fn events(
        &self,
        instance: &str,
    ) -> Result<BoxStream<'static, Result<ContainerEvent, DockerError>>, DockerError> {
        let filters = HashMap::from([
            ("type".to_owned(), vec!["container".to_owned()]),
            ("label".to_owned(), vec![instance_label(instance)]),
            ("event".to_owned(), ["die", "destroy", "start", "oom"].map(str::to_owned).to_vec()),
        ]);
        let options = EventsOptions { filters: Some(filters), ..Default::default() };
        let stream = self.client.events(Some(options));
        Ok(stream
            .map(|event| {
                event
                    .map(|e| {
                        let actor = e.actor.unwrap_or_default();
                        ContainerEvent {
                            id: actor.id.unwrap_or_default(),
                            action: e.action.unwrap_or_default(),
                            labels: actor.attributes.unwrap_or_default().into_iter().collect(),
                        }
                    })
                    .map_err(|e| DockerError::from_client("to stream events", &e))
            })
            .boxed())
    }
}

fn said(step: CreateImageInfo) -> PullMessage {
    let detail = step.progress_detail.unwrap_or_default();
    PullMessage {
        layer: step.id.unwrap_or_default(),
        status: step.status.unwrap_or_default(),
        bytes: detail.current.zip(detail.total).map(|(c, t)| (bytes(Some(c)), bytes(Some(t)))),
        error: step.error_detail.and_then(|error| error.message),
    }
}

fn credentials(login: &RegistryLogin) -> DockerCredentials {
    let some = |text: &String| (!text.is_empty()).then(|| text.clone());
    DockerCredentials {
        username: some(&login.username),
        password: some(&login.password),
        serveraddress: some(&login.server),
        identitytoken: some(&login.identity_token),
        ..Default::default()
    }
}

/// Docker's counts are signed; a negative one means "unknown".
fn bytes(count: Option<i64>) -> u64 {
    count.and_then(|count| u64::try_from(count).ok()).unwrap_or_default()
}

/// Filter of listings and events.
fn instance_label(instance: &str) -> String {
    format!("{}={instance}", names::INSTANCE)
}

fn listed(row: bollard::models::ContainerSummary) -> ListedContainer {
    // A link from another container adds a name, `/other/alias`.
    let is_own = |name: &String| !name.trim_start_matches('/').contains('/');
    let name = row.names.unwrap_or_default().into_iter().find(is_own).unwrap_or_default();
    ListedContainer {
        id: row.id.unwrap_or_default(),
        name: name.trim_start_matches('/').to_owned(),
        image: row.image.unwrap_or_default(),
        image_id: row.image_id.unwrap_or_default(),
        created_at: row
            .created
            .and_then(|seconds| Timestamp::from_second(seconds).ok())
            .unwrap_or(Timestamp::UNIX_EPOCH),
        state: match row.state {
            Some(Summary::RUNNING | Summary::PAUSED | Summary::RESTARTING | Summary::STOPPING) => {
                EngineState::Running
            }
            Some(Summary::EXITED) => EngineState::Exited,
            Some(Summary::REMOVING) => EngineState::Removing,
            Some(Summary::DEAD) => EngineState::Dead,
            Some(Summary::CREATED | Summary::EMPTY) | None => EngineState::Created,
        },
        labels: row.labels.unwrap_or_default().into_iter().collect(),
    }
}

/// Parses a time; Docker writes the year 1 for "never".
fn time(text: Option<&str>) -> Option<Timestamp> {
    let time: Timestamp = text?.parse().ok()?;
    (time > Timestamp::UNIX_EPOCH).then_some(time)
}
