//! Docker Swarm on the daemons of a cluster's nodes, for comparison.

use std::time::{Duration, Instant};

use harness::{Cluster, Context, DockerWorld, IMAGE, Result};

use crate::engine::Engine;
use crate::workloads::wait;

const SERVICE: &str = "beside";

/// A swarm of all nodes; on drop every node leaves it.
pub(crate) struct Swarm<'a> {
    dockers: Vec<&'a DockerWorld>,
    engines: &'a [Engine],
}

impl<'a> Swarm<'a> {
    /// Creates the swarm with the first node as its manager.
    pub(crate) fn of(cluster: &'a Cluster, engines: &'a [Engine]) -> Result<Self> {
        let dockers: Vec<_> = cluster.nodes.iter().map(|node| &node.docker).collect();
        let swarm = Self { dockers, engines };
        let manager = cluster.nodes[0].address()?;
        swarm.manager().run(&["swarm", "init", "--advertise-addr", manager])?;
        let token = swarm.manager().run(&["swarm", "join-token", "-q", "worker"])?;
        for node in &cluster.nodes[1..] {
            let (token, manager) = (token.trim(), format!("{manager}:2377"));
            let own = node.address()?;
            node.docker.run(&["swarm", "join", "--token", token, "--advertise-addr", own, &manager])?;
        }
        Ok(swarm)
    }

    fn manager(&self) -> &DockerWorld {
        self.dockers[0]
    }

    /// Creates the service without tasks.
    pub(crate) fn create(&self, command: &str) -> Result<()> {
        let all = [
            "service",
            "create",
            "--detach",
            "--name",
            SERVICE,
            "--replicas",
            "0",
            "--endpoint-mode",
            "dnsrr",
        ];
        let what = ["--env", "VERSION=0", IMAGE, "sh", "-c", command];
        self.manager().run(&[&all[..], &what].concat()).map(drop)
    }

    /// Scales the service; returns the time until exactly `replicas` tasks of this version run.
    pub(crate) fn scale(&self, replicas: usize, version: usize) -> Result<Duration> {
        let start = Instant::now();
        self.manager().run(&["service", "scale", "--detach", &format!("{SERVICE}={replicas}")])?;
        self.wait(replicas, version)?;
        Ok(start.elapsed())
    }

    /// Runs a rolling update with as many tasks at once as ours; returns the time until every task is new.
    pub(crate) fn roll(&self, replicas: usize, at_once: usize) -> Result<Duration> {
        let start = Instant::now();
        let at_once = at_once.to_string();
        let how = ["--update-parallelism", &at_once, "--update-delay", "0s", "--update-order", "start-first"];
        let args = [&["service", "update", "--detach", "--env-add", "VERSION=1"], &how[..], &[SERVICE]];
        self.manager().run(&args.concat())?;
        self.wait(replicas, 1)?;
        Ok(start.elapsed())
    }

    /// Time until `replicas` updated tasks run on the first `nodes` nodes.
    pub(crate) fn moved(&self, nodes: usize, replicas: usize) -> Result<Duration> {
        let start = Instant::now();
        wait(&self.engines[..nodes], &labels(), replicas, 1)?;
        Ok(start.elapsed())
    }

    fn wait(&self, replicas: usize, version: usize) -> Result<()> {
        let come = wait(self.engines, &labels(), replicas, version);
        come.with_context(|| {
            self.manager().run(&["service", "ps", "--no-trunc", SERVICE]).unwrap_or_default()
        })
    }
}

fn labels() -> Vec<String> {
    vec![format!("com.docker.swarm.service.name={SERVICE}")]
}

impl Drop for Swarm<'_> {
    fn drop(&mut self) {
        for docker in self.dockers.iter().rev() {
            let left = docker.run(&["swarm", "leave", "--force"]).context("a node stays in the swarm");
            if let Err(error) = left {
                eprintln!("{error:#}");
            }
        }
    }
}
