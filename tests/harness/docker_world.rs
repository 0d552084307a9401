//! What Docker itself says, asked by its own command line.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::process::{Outcome, outcome};

const LIMIT: Duration = Duration::from_secs(60);

/// One Docker daemon.
#[derive(Debug, Clone)]
pub struct DockerWorld {
    host: String,
}

/// One container, as `docker inspect` shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerView {
    /// Full id.
    pub id: String,
    /// Name, without the leading `/`.
    pub name: String,
    /// Image as it was asked for.
    pub image: String,
    /// Content id of the image.
    pub image_id: String,
    /// Runs.
    pub running: bool,
    /// Process id of its first process; 0 if it does not run.
    pub pid: u32,
    /// When it was started, as Docker writes it.
    pub started_at: String,
    /// When it ended, as Docker writes it.
    pub finished_at: String,
    /// How it ended.
    pub exit_code: i64,
    /// How often Docker itself started it again: never, that is the agent's.
    pub restarts: u32,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// `NAME=value`.
    pub env: Vec<String>,
    /// `container:<id>`, `none`, ….
    pub network_mode: String,
    /// Limit in bytes; 0 is none.
    pub memory: i64,
    /// CPU quota in microseconds per period; 0 is none. `nano_cpus` is turned into it.
    pub cpu_quota: i64,
}

impl ContainerView {
    /// One of our labels, by the part after `minik8s.io/`; empty if it is not there.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(&format!("minik8s.io/{name}")).map_or("", String::as_str)
    }
}

impl DockerWorld {
    /// The daemon at this `unix://` address.
    pub fn new(host: impl Into<String>) -> Self {
        Self { host: host.into() }
    }

    /// The machine's own daemon.
    pub fn of_machine() -> Self {
        Self::new(std::env::var("DOCKER_HOST").unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned()))
    }

    /// Its `unix://` address.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// `docker ARGS`; standard output.
    pub fn run(&self, args: &[&str]) -> Result<String> {
        self.outcome(args)?.ok().with_context(|| format!("docker {}", args.join(" ")))
    }

    /// `docker ARGS`, whatever the exit code.
    pub fn outcome(&self, args: &[&str]) -> Result<Outcome> {
        outcome(Command::new("docker").args(["--host", &self.host]).args(args), LIMIT)
    }

    /// A command inside a container; standard output.
    pub fn exec(&self, container: &ContainerView, command: &[&str]) -> Result<String> {
        let mut args = vec!["exec", container.id.as_str()];
        args.extend(command);
        self.run(&args)
    }

    /// Whether the image is there.
    pub fn has_image(&self, image: &str) -> Result<bool> {
        Ok(!self.run(&["images", "-q", image])?.trim().is_empty())
    }

    /// All containers of an instance, running or not, by name.
    pub fn containers(&self, instance: &str) -> Result<Vec<ContainerView>> {
        self.by_filter(&format!("label=minik8s.io/instance={instance}"))
    }

    /// All containers that pass a filter of `docker ps`.
    pub fn by_filter(&self, filter: &str) -> Result<Vec<ContainerView>> {
        let listed = self.run(&["ps", "-aq", "--no-trunc", "--filter", filter])?;
        let ids: Vec<&str> = listed.split_whitespace().collect();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut args = vec!["inspect", "--type", "container"];
        args.extend(&ids);
        let inspected = self.outcome(&args)?;
        // One that went between the two is just not there: Docker shows the others, and exits with an error.
        let went = |line: &str| line.contains("No such container");
        ensure!(
            inspected.code == 0 || inspected.stderr.lines().all(went),
            "docker inspect: {}",
            inspected.stderr
        );
        let shown: Vec<Inspected> = serde_json::from_str(&inspected.stdout)?;
        let mut views: Vec<ContainerView> = shown.into_iter().map(view).collect();
        views.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(views)
    }

    /// `docker rm -f` of everything that passes the filter.
    pub fn remove_by_filter(&self, filter: &str) -> Result<()> {
        let listed = self.run(&["ps", "-aq", "--no-trunc", "--filter", filter])?;
        let mut args = vec!["rm", "-f", "-v"];
        args.extend(listed.split_whitespace());
        if args.len() > 3 {
            self.run(&args)?;
        }
        Ok(())
    }
}

fn view(shown: Inspected) -> ContainerView {
    let HostConfig { network_mode, memory, cpu_quota, nano_cpus } = shown.host_config;
    ContainerView {
        id: shown.id,
        name: shown.name.trim_start_matches('/').to_owned(),
        image: shown.config.image,
        image_id: shown.image,
        running: shown.state.running,
        pid: shown.state.pid,
        started_at: shown.state.started_at,
        finished_at: shown.state.finished_at,
        exit_code: shown.state.exit_code,
        restarts: shown.restart_count,
        labels: shown.config.labels.unwrap_or_default(),
        env: shown.config.env.unwrap_or_default(),
        network_mode,
        memory,
        // 10^9 nano-CPUs are one CPU, 100,000 µs of every period of 100,000 µs.
        cpu_quota: if cpu_quota == 0 { nano_cpus / 10_000 } else { cpu_quota },
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    name: String,
    image: String,
    restart_count: u32,
    state: State,
    config: Config,
    host_config: HostConfig,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct State {
    running: bool,
    pid: u32,
    started_at: String,
    finished_at: String,
    exit_code: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Config {
    image: String,
    labels: Option<BTreeMap<String, String>>,
    env: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HostConfig {
    network_mode: String,
    #[serde(default)]
    memory: i64,
    #[serde(default)]
    cpu_quota: i64,
    #[serde(default)]
    nano_cpus: i64,
}
