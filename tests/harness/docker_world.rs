//! State reported by Docker itself through its command line; containers, which are read all the time, through its
//! API.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::http::unix_get;
use crate::process::{Outcome, outcome};

const LIMIT: Duration = Duration::from_secs(60);

/// A Docker daemon.
#[derive(Debug, Clone)]
pub struct DockerWorld {
    host: String,
}

/// A container, as Docker shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerView {
    /// Full id.
    pub id: String,
    /// Name, without the leading `/`.
    pub name: String,
    /// Image as requested.
    pub image: String,
    /// Content id of the image.
    pub image_id: String,
    /// True while it runs.
    pub running: bool,
    /// Process id of its first process; 0 if it does not run.
    pub pid: u32,
    /// Start time in Docker's format.
    pub started_at: String,
    /// End time in Docker's format.
    pub finished_at: String,
    /// Exit code of its last run.
    pub exit_code: i64,
    /// Number of restarts by Docker itself: always 0, because restarts are the agent's work.
    pub restarts: u32,
    pub labels: BTreeMap<String, String>,
    /// `NAME=value`.
    pub env: Vec<String>,
    /// `container:<id>`, `none`, ….
    pub network_mode: String,
    /// Memory limit in bytes; 0 for none.
    pub memory: i64,
    /// CPU quota in microseconds per period, converted from `nano_cpus` if needed; 0 for none.
    pub cpu_quota: i64,
}

impl ContainerView {
    /// Value of one of our labels, by the part after `minik8s.io/`; empty if missing.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(&format!("minik8s.io/{name}")).map_or("", String::as_str)
    }
}

impl DockerWorld {
    /// Daemon at this `unix://` address.
    pub fn new(host: impl Into<String>) -> Self {
        Self { host: host.into() }
    }

    /// The machine's own daemon.
    pub fn of_machine() -> Self {
        Self::new(std::env::var("DOCKER_HOST").unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned()))
    }

    /// Address of the daemon, `unix://…`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Runs `docker ARGS`; returns its standard output.
    pub fn run(&self, args: &[&str]) -> Result<String> {
        self.outcome(args)?.ok().with_context(|| format!("docker {}", args.join(" ")))
    }

    /// Runs `docker ARGS`, whatever the exit code.
    pub fn outcome(&self, args: &[&str]) -> Result<Outcome> {
        outcome(Command::new("docker").args(["--host", &self.host]).args(args), LIMIT)
    }

    /// Runs a command inside a container; returns its standard output.
    pub fn exec(&self, container: &ContainerView, command: &[&str]) -> Result<String> {
        let mut args = vec!["exec", container.id.as_str()];
        args.extend(command);
        self.run(&args)
    }

    /// True if the daemon has the image.
    pub fn has_image(&self, image: &str) -> Result<bool> {
        Ok(!self.run(&["images", "-q", image])?.trim().is_empty())
    }

    /// Every container of an instance, running or not, by name.
    pub fn containers(&self, instance: &str) -> Result<Vec<ContainerView>> {
        self.by_filter(&format!("label=minik8s.io/instance={instance}"))
    }

    /// Every container that passes a filter of `docker ps`, `key=value`.
    pub fn by_filter(&self, filter: &str) -> Result<Vec<ContainerView>> {
        let (key, value) = filter.split_once('=').context("a filter is key=value")?;
        let filters = serde_json::json!({ key: [value] }).to_string();
        let path = format!("/containers/json?all=1&filters={}", percent_encoded(&filters));
        let listed: Vec<Listed> = self.get(&path)?.context("Docker has no list")?;
        let mut views = Vec::new();
        for Listed { id } in listed {
            // A container removed between the two requests is simply missing.
            let shown: Option<Inspected> = self.get(&format!("/containers/{id}/json"))?;
            views.extend(shown.map(view));
        }
        views.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(views)
    }

    /// Response of the API at this path; `None` on a 404.
    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>> {
        let socket = self.host.strip_prefix("unix://").context("Docker is not at a socket")?;
        let (code, body) = unix_get(Path::new(socket), path, LIMIT)?;
        ensure!(code == 200 || code == 404, "Docker says {code} to {path}: {body}");
        Ok(if code == 404 { None } else { serde_json::from_str(&body)? })
    }

    /// Runs `docker rm -f` on every container that passes the filter.
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

fn percent_encoded(text: &str) -> String {
    let encoded = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encoded).collect()
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    id: String,
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
