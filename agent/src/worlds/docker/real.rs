//! The engine at a Unix socket, through bollard at the version that it speaks.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::ContainerSummaryStateEnum as Summary;
use bollard::query_parameters::{
    CreateContainerOptions, CreateImageOptions, EventsOptions, ImportImageOptions, ListContainersOptions,
    LogsOptions, RemoveContainerOptions, StopContainerOptions,
};
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use jiff::Timestamp;

use super::body::create_body;
use super::{
    ContainerDetails, ContainerEvent, Docker, DockerError, EngineState, EngineVersion, INSTANCE_LABEL,
    ImageFacts, ListedContainer, LogOptions, LogStream, NewContainer,
};

/// Longest time for a request that reads.
const READ: Duration = Duration::from_secs(20);
/// Longest time for a request that makes, starts or removes: a slow disk may take long.
const WRITE: Duration = Duration::from_secs(120);
/// On top of the grace period of a stop: SIGKILL, and the engine's own bookkeeping.
const STOP_EXTRA: Duration = Duration::from_secs(30);
/// Longest time without any progress of a pull.
const PULL_STALLED: Duration = Duration::from_secs(120);
/// The client's own limit; ours above are shorter, except for streams.
const CLIENT_SECONDS: u64 = 24 * 3600;
/// The oldest API that has all we ask for (`cgroupns`, mounts): Docker 20.10.
const API_MIN: (usize, usize) = (1, 41);

/// The real engine.
#[derive(Debug, Clone)]
pub struct RealDocker {
    client: bollard::Docker,
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
                "it speaks API {version}, and {}.{} (Docker 20.10) is the oldest that works; upgrade Docker",
                API_MIN.0, API_MIN.1
            );
            return Err(DockerError::Refused { act, status: 0, message });
        }
        Ok(Self { client })
    }
}

/// Bounds one request in time and translates its error.
async fn within<T>(
    act: &'static str,
    after: Duration,
    request: impl Future<Output = Result<T, bollard::errors::Error>>,
) -> Result<T, DockerError> {
    match tokio::time::timeout(after, request).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(DockerError::from_client(act, &error)),
        Err(_) => Err(DockerError::Timeout { act, after }),
    }
}

#[async_trait]
impl Docker for RealDocker {
    async fn version(&self) -> Result<EngineVersion, DockerError> {
        let version = within("its version", READ, self.client.version()).await?;
        Ok(EngineVersion {
            version: version.version.unwrap_or_default(),
            api: version.api_version.unwrap_or_default(),
        })
    }

    async fn list(&self, instance: &str) -> Result<Vec<ListedContainer>, DockerError> {
        let filters = HashMap::from([("label".to_owned(), vec![format!("{INSTANCE_LABEL}={instance}")])]);
        let options = ListContainersOptions { all: true, filters: Some(filters), ..Default::default() };
        let rows = within("to list containers", READ, self.client.list_containers(Some(options))).await?;
        Ok(rows.into_iter().map(listed).collect())
    }

    async fn inspect(&self, id: &str) -> Result<ContainerDetails, DockerError> {
        let none = None::<bollard::query_parameters::InspectContainerOptions>;
        let answer = within("to inspect a container", READ, self.client.inspect_container(id, none))
            .await
            .map_err(|e| e.about(id))?;
        let state = answer.state.unwrap_or_default();
        Ok(ContainerDetails {
            pid: state.pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default(),
            started_at: time(state.started_at.as_deref()),
            finished_at: time(state.finished_at.as_deref()),
            exit_code: state.exit_code.unwrap_or_default(),
            oom_killed: state.oom_killed.unwrap_or_default(),
            error: state.error.unwrap_or_default(),
        })
    }

    async fn create(&self, new: &NewContainer) -> Result<String, DockerError> {
        let options = CreateContainerOptions { name: Some(new.name.clone()), ..Default::default() };
        let request = self.client.create_container(Some(options), create_body(new));
        within("to create a container", WRITE, request)
            .await
            .map(|created| created.id)
            .map_err(|e| e.of_create(&new.name, &new.image))
    }

    async fn start(&self, id: &str) -> Result<(), DockerError> {
        let none = None::<bollard::query_parameters::StartContainerOptions>;
        match within("to start a container", WRITE, self.client.start_container(id, none)).await {
            Err(DockerError::Refused { status: 304, .. }) => Ok(()),
            other => other.map_err(|e| e.about(id)),
        }
    }

    async fn stop(&self, id: &str, grace: Duration) -> Result<(), DockerError> {
        let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
        let options = StopContainerOptions { t: Some(seconds), ..Default::default() };
        let request = self.client.stop_container(id, Some(options));
        match within("to stop a container", grace + STOP_EXTRA, request).await {
            Err(DockerError::Refused { status: 304, .. }) => Ok(()),
            other => other.map_err(|e| e.about(id)),
        }
    }

    async fn remove(&self, id: &str) -> Result<(), DockerError> {
        let options = RemoveContainerOptions { force: true, v: true, ..Default::default() };
        within("to remove a container", WRITE, self.client.remove_container(id, Some(options)))
            .await
            .map_err(|e| e.about(id))
    }

    async fn image(&self, reference: &str) -> Result<Option<ImageFacts>, DockerError> {
        match within("to inspect an image", READ, self.client.inspect_image(reference)).await {
            Ok(image) => Ok(Some(ImageFacts {
                id: image.id.unwrap_or_default(),
                user: image.config.and_then(|c| c.user).unwrap_or_default(),
            })),
            Err(DockerError::Refused { status: 404, .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }

    async fn pull(&self, reference: &str) -> Result<(), DockerError> {
        let act = "to pull an image";
        // Without a tag Docker would fetch every tag of the repository.
        let last = reference.rsplit('/').next().unwrap_or(reference);
        let from_image =
            if last.contains([':', '@']) { reference.to_owned() } else { format!("{reference}:latest") };
        let options = CreateImageOptions { from_image: Some(from_image), ..Default::default() };
        let mut progress = self.client.create_image(Some(options), None, None).boxed();
        let failed = |error: DockerError| match error {
            DockerError::Refused { message, .. } => {
                DockerError::Pull { image: reference.to_owned(), message }
            }
            other => other,
        };
        loop {
            match tokio::time::timeout(PULL_STALLED, progress.next()).await {
                Err(_) => return Err(DockerError::Timeout { act, after: PULL_STALLED }),
                Ok(None) => return Ok(()),
                Ok(Some(Err(error))) => return Err(failed(DockerError::from_client(act, &error))),
                Ok(Some(Ok(step))) => {
                    if let Some(message) = step.error_detail.and_then(|e| e.message) {
                        return Err(DockerError::Pull { image: reference.to_owned(), message });
                    }
                }
            }
        }
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

    async fn logs(&self, id: &str, options: &LogOptions) -> Result<LogStream, DockerError> {
        let since = options.since.and_then(|t| i32::try_from(t.as_second()).ok()).unwrap_or_default();
        let request = LogsOptions {
            follow: options.follow,
            stdout: true,
            stderr: true,
            since,
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
            ("label".to_owned(), vec![format!("{INSTANCE_LABEL}={instance}")]),
            ("event".to_owned(), ["die", "destroy", "start", "oom"].map(str::to_owned).to_vec()),
        ]);
        let options = EventsOptions { filters: Some(filters), ..Default::default() };
        let stream = self.client.events(Some(options));
        Ok(stream
            .map(|event| {
                event
                    .map(|e| ContainerEvent {
                        id: e.actor.and_then(|a| a.id).unwrap_or_default(),
                        action: e.action.unwrap_or_default(),
                    })
                    .map_err(|e| DockerError::from_client("events", &e))
            })
            .boxed())
    }
}

fn listed(row: bollard::models::ContainerSummary) -> ListedContainer {
    let name = row.names.unwrap_or_default().into_iter().next().unwrap_or_default();
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
            Some(Summary::REMOVING | Summary::DEAD) => EngineState::Removing,
            Some(Summary::CREATED | Summary::EMPTY) | None => EngineState::Created,
        },
        labels: row.labels.unwrap_or_default().into_iter().collect(),
    }
}

/// Docker writes the year 1 for "never".
fn time(text: Option<&str>) -> Option<Timestamp> {
    let time: Timestamp = text?.parse().ok()?;
    (time > Timestamp::UNIX_EPOCH).then_some(time)
}
