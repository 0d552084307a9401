//! The bare engine: Docker's API with nothing on top, and Docker's own report of start times.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, EventsOptionsBuilder, ListContainersOptionsBuilder,
};
use futures::{StreamExt, TryStreamExt};
use harness::{Cluster, Context, IMAGE, Node, PodView, Result, ensure, eventually, secs};
use schema::control::lock;
use tokio::runtime::Runtime;

/// Times in nanoseconds since the epoch, by pod and container name.
type Times = Arc<Mutex<BTreeMap<(String, String), i64>>>;

/// Docker's API, and everything that Docker reports as started or ended in one cluster.
pub(crate) struct Engine {
    runtime: Runtime,
    docker: Docker,
    slot: String,
    starts: Times,
    ends: Times,
    /// Command of the second containers of pairs.
    pub(crate) command: Vec<String>,
}

impl Engine {
    /// Starts following the events of `cluster`'s containers on its first node.
    pub(crate) fn beside(cluster: &Cluster) -> Result<Self> {
        Self::of(cluster, cluster.node())
    }

    /// Like `beside`, on this node.
    pub(crate) fn of(cluster: &Cluster, node: &Node) -> Result<Self> {
        let runtime = Runtime::new()?;
        let host = node.docker.host().to_owned();
        let docker = runtime.block_on(async {
            Docker::connect_with_socket(&host, 120, bollard::API_DEFAULT_VERSION)?.negotiate_version().await
        })?;
        let (starts, ends) = (Times::default(), Times::default());
        let slot = cluster.slot().instance();
        let filters = HashMap::from([
            ("type".to_owned(), vec!["container".to_owned()]),
            ("event".to_owned(), vec!["start".to_owned(), "die".to_owned()]),
            ("label".to_owned(), vec![format!("minik8s.io/instance={slot}")]),
        ]);
        let (listener, started, ended) = (docker.clone(), Arc::clone(&starts), Arc::clone(&ends));
        runtime.spawn(async move {
            let options = EventsOptionsBuilder::default().filters(&filters).build();
            let mut events = std::pin::pin!(listener.events(Some(options)));
            while let Some(Ok(event)) = events.next().await {
                let times = if event.action.as_deref() == Some("start") { &started } else { &ended };
                let labels = event.actor.and_then(|actor| actor.attributes).unwrap_or_default();
                let label =
                    |name: &str| labels.get(&format!("minik8s.io/{name}")).cloned().unwrap_or_default();
                if let Some(time) = event.time_nano {
                    lock(times).insert((label("pod"), label("container")), time);
                }
            }
        });
        let command = vec!["sleep".to_owned(), "100000".to_owned()];
        Ok(Self { runtime, docker, slot, starts, ends, command })
    }

    /// Time from `since` until Docker had started container `main` of every one of these pods.
    pub(crate) fn started(&self, pods: &[String], since: SystemTime) -> Result<Duration> {
        happened(&self.starts, pods, since)
    }

    /// Time from `since` until container `main` of every one of these pods had ended.
    pub(crate) fn died(&self, pods: &[String], since: SystemTime) -> Result<Duration> {
        happened(&self.ends, pods, since)
    }

    /// Creates and starts `count` pause containers, with one container each in their namespaces, `at_once` in
    /// parallel; returns the total time.
    pub(crate) fn bare_pairs(
        &self,
        pause: &str,
        name: &str,
        count: usize,
        at_once: usize,
    ) -> Result<Duration> {
        let start = Instant::now();
        self.runtime.block_on(
            futures::stream::iter(0..count)
                .map(|index| self.bare_pair(pause, format!("{}-{name}-{index}", self.slot)))
                .buffer_unordered(at_once)
                .try_collect::<Vec<String>>(),
        )?;
        Ok(start.elapsed())
    }

    /// Kills the first process of the pod's container `main`; returns the time from its end until Docker had started
    /// its successor.
    pub(crate) fn restarted(&self, pod: &PodView) -> Result<Duration> {
        let main = pod.container("main")?;
        let name = main.label("pod").to_owned();
        lock(&self.starts).remove(&(name.clone(), "main".to_owned()));
        self.runtime.block_on(self.docker.kill_container(&main.id, None))?;
        let ended = self.ended(&main.id)?;
        self.started(&[name], ended)
    }

    /// Creates a pair, stops its second container and starts it again; returns the time of the start.
    pub(crate) fn bare_restart(&self, pause: &str, name: &str) -> Result<Duration> {
        let id = self.runtime.block_on(self.bare_pair(pause, format!("{}-{name}", self.slot)))?;
        self.runtime.block_on(self.docker.kill_container(&id, None))?;
        self.ended(&id)?;
        let start = Instant::now();
        self.runtime.block_on(self.docker.start_container(&id, None))?;
        Ok(start.elapsed())
    }

    /// End time of the container as reported by Docker.
    fn ended(&self, id: &str) -> Result<SystemTime> {
        eventually("the container has ended", secs(20), || {
            let state = self.runtime.block_on(self.docker.inspect_container(id, None))?.state;
            let state = state.context("no state")?;
            ensure!(state.running != Some(true), "it runs");
            let at: jiff::Timestamp = state.finished_at.context("no end")?.parse()?;
            Ok(at.into())
        })
    }

    async fn bare_pair(&self, pause: &str, name: String) -> Result<String> {
        let owner = HostConfig {
            network_mode: Some("none".to_owned()),
            ipc_mode: Some("shareable".to_owned()),
            ..HostConfig::default()
        };
        let owner = self.create(&format!("{name}-pause"), pause, None, owner).await?;
        let joined = Some(format!("container:{owner}"));
        let member = HostConfig { network_mode: joined.clone(), ipc_mode: joined, ..HostConfig::default() };
        self.create(&format!("{name}-main"), IMAGE, Some(self.command.clone()), member).await
    }

    /// Ids of the running containers with all these labels.
    pub(crate) fn running(&self, labels: &[String]) -> Result<Vec<String>> {
        let filters = HashMap::from([("label".to_owned(), labels.to_vec())]);
        let options = ListContainersOptionsBuilder::default().filters(&filters).build();
        let all = self.runtime.block_on(self.docker.list_containers(Some(options)))?;
        Ok(all.into_iter().filter_map(|one| one.id).collect())
    }

    /// True if the container has `wanted` in its environment.
    pub(crate) fn has_env(&self, id: &str, wanted: &str) -> Result<bool> {
        let config = self.runtime.block_on(self.docker.inspect_container(id, None))?.config;
        Ok(config.and_then(|config| config.env).is_some_and(|env| env.iter().any(|one| one == wanted)))
    }

    /// Stops and removes `count` pairs created by [`Engine::bare_pairs`], `at_once` in parallel; returns the total
    /// time.
    pub(crate) fn end_pairs(&self, name: &str, count: usize, at_once: usize) -> Result<Duration> {
        let start = Instant::now();
        let pairs = futures::stream::iter(0..count).map(|index| async move {
            for member in ["main", "pause"] {
                let name = format!("{}-{name}-{index}-{member}", self.slot);
                self.docker.stop_container(&name, None).await?;
                self.docker.remove_container(&name, None).await?;
            }
            Ok::<(), bollard::errors::Error>(())
        });
        self.runtime.block_on(pairs.buffer_unordered(at_once).try_collect::<Vec<()>>())?;
        Ok(start.elapsed())
    }

    /// Configuration for a container of the same image with the same limits, on Docker's own bridge.
    pub(crate) fn like(&self, id: &str) -> Result<ContainerCreateBody> {
        let found = self.runtime.block_on(self.docker.inspect_container(id, None))?;
        let (config, host) = (found.config.context("no config")?, found.host_config.context("no bounds")?);
        let host_config = HostConfig {
            memory: host.memory,
            memory_swap: host.memory_swap,
            nano_cpus: host.nano_cpus,
            cpu_quota: host.cpu_quota,
            cpu_period: host.cpu_period,
            cpu_shares: host.cpu_shares,
            pids_limit: host.pids_limit,
            readonly_rootfs: host.readonly_rootfs,
            cap_drop: host.cap_drop,
            security_opt: host.security_opt,
            ..HostConfig::default()
        };
        Ok(ContainerCreateBody {
            image: config.image,
            env: config.env,
            user: config.user,
            labels: Some(HashMap::from([("minik8s-test.slot".to_owned(), self.slot.clone())])),
            host_config: Some(host_config),
            ..ContainerCreateBody::default()
        })
    }

    /// Creates and starts such a container; returns the time until its first answer, and stops it.
    pub(crate) fn first_answer(
        &self,
        body: &ContainerCreateBody,
        name: &str,
        ask: impl Fn(&str) -> Result<()>,
    ) -> Result<Duration> {
        let start = Instant::now();
        let options = CreateContainerOptionsBuilder::default().name(&format!("{}-{name}", self.slot)).build();
        let address = self.runtime.block_on(async {
            let id = self.docker.create_container(Some(options), body.clone()).await?.id;
            self.docker.start_container(&id, None).await?;
            let networks = self.docker.inspect_container(&id, None).await?.network_settings;
            let networks = networks.and_then(|settings| settings.networks).unwrap_or_default();
            let address = networks.into_values().find_map(|network| network.ip_address);
            address.context("it has no address")
        })?;
        let address = format!("{address}:8080");
        while let Err(error) = ask(&address) {
            ensure!(start.elapsed() < secs(30), "no answer: {error:#}");
            // Short compared with the measured time: the address refuses connections until the code is loaded.
            std::thread::sleep(Duration::from_millis(1));
        }
        let took = start.elapsed();
        self.runtime.block_on(self.docker.kill_container(&format!("{}-{name}", self.slot), None))?;
        Ok(took)
    }

    /// Freezes a container's processes.
    pub(crate) fn pause(&self, id: &str) -> Result<()> {
        Ok(self.runtime.block_on(self.docker.pause_container(id))?)
    }

    /// Resumes a container's processes.
    pub(crate) fn resume(&self, id: &str) -> Result<()> {
        Ok(self.runtime.block_on(self.docker.unpause_container(id))?)
    }

    async fn create(
        &self,
        name: &str,
        image: &str,
        command: Option<Vec<String>>,
        host_config: HostConfig,
    ) -> Result<String> {
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            cmd: command,
            labels: Some(HashMap::from([("minik8s-test.slot".to_owned(), self.slot.clone())])),
            host_config: Some(host_config),
            ..ContainerCreateBody::default()
        };
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        let id = self.docker.create_container(Some(options), body).await?.id;
        self.docker.start_container(&id, None).await?;
        Ok(id)
    }
}

/// Time from `since` until the event of container `main` of the last of these pods.
fn happened(times: &Times, pods: &[String], since: SystemTime) -> Result<Duration> {
    let since = i64::try_from(since.duration_since(UNIX_EPOCH)?.as_nanos())?;
    let last = eventually("Docker has reported the pods", secs(180), || {
        let times = lock(times);
        let mut last = 0;
        for pod in pods {
            let time = times.get(&(pod.clone(), "main".to_owned()));
            last = last.max(*time.with_context(|| format!("{pod} was not reported"))?);
        }
        Ok(last)
    })?;
    ensure!(last >= since, "it happened before what should have caused it");
    Ok(Duration::from_nanos(u64::try_from(last - since)?))
}

/// Removes the bare containers.
pub(crate) fn remove_bare(cluster: &Cluster) -> Result<()> {
    let filter = format!("label=minik8s-test.slot={}", cluster.slot().instance());
    cluster.node().docker.remove_by_filter(&filter)
}
