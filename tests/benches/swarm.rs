//! Docker Swarm on the daemons of a cluster's nodes, to compare with.

use std::time::{Duration, Instant};

use harness::{Cluster, Context, DockerWorld, IMAGE, Result, ensure, eventually, secs};

const SERVICE: &str = "beside";

/// A swarm of all nodes; dropping it leaves it on each.
pub(crate) struct Swarm<'a> {
    dockers: Vec<&'a DockerWorld>,
}

impl<'a> Swarm<'a> {
    /// The first node manages it.
    pub(crate) fn of(cluster: &'a Cluster) -> Result<Self> {
        let dockers: Vec<_> = cluster.nodes.iter().map(|node| &node.docker).collect();
        let swarm = Self { dockers };
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

    /// Makes the service with no task yet.
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

    /// How long until exactly so many tasks run.
    pub(crate) fn scale(&self, replicas: usize) -> Result<Duration> {
        let start = Instant::now();
        self.manager().run(&["service", "scale", "--detach", &format!("{SERVICE}={replicas}")])?;
        self.wait(replicas, "")?;
        Ok(start.elapsed())
    }

    /// A rolling update, as many at once as ours; how long until all tasks are new ones.
    pub(crate) fn roll(&self, replicas: usize, at_once: usize) -> Result<Duration> {
        let start = Instant::now();
        let at_once = at_once.to_string();
        let how = ["--update-parallelism", &at_once, "--update-delay", "0s", "--update-order", "start-first"];
        let args = [&["service", "update", "--detach", "--env-add", "VERSION=1"], &how[..], &[SERVICE]];
        self.manager().run(&args.concat())?;
        self.wait(replicas, "1")?;
        Ok(start.elapsed())
    }

    /// How long until so many tasks run on these nodes alone.
    pub(crate) fn move_to(&self, nodes: &[usize], replicas: usize, since: Instant) -> Result<Duration> {
        eventually("the swarm has moved its tasks", secs(300), || {
            let counts = nodes.iter().map(|node| Ok(running(self.dockers[*node])?.len()));
            let sum: usize = counts.sum::<Result<usize>>()?;
            ensure!(sum == replicas, "{sum} tasks run");
            Ok(())
        })?;
        Ok(since.elapsed())
    }

    /// Until exactly so many containers run, all of this version if one is given.
    fn wait(&self, replicas: usize, version: &str) -> Result<()> {
        let come = eventually("the swarm is as it should be", secs(180), || {
            let mut all = Vec::new();
            for docker in &self.dockers {
                all.extend(running(docker)?.into_iter().map(|id| (*docker, id)));
            }
            ensure!(all.len() == replicas, "{} tasks run", all.len());
            if version.is_empty() {
                return Ok(());
            }
            let wanted = format!("VERSION={version}");
            for docker in &self.dockers {
                let own: Vec<&str> = all
                    .iter()
                    .filter(|(of, _)| of.host() == docker.host())
                    .map(|(_, id)| id.as_str())
                    .collect();
                let mut args = vec!["inspect", "--format", "{{.Config.Env}}"];
                args.extend(&own);
                let shown = if own.is_empty() { String::new() } else { docker.run(&args)? };
                ensure!(shown.lines().all(|line| line.contains(&wanted)), "old tasks run");
            }
            Ok(())
        });
        come.with_context(|| {
            self.manager().run(&["service", "ps", "--no-trunc", SERVICE]).unwrap_or_default()
        })
    }
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

fn running(docker: &DockerWorld) -> Result<Vec<String>> {
    let filter = format!("label=com.docker.swarm.service.name={SERVICE}");
    let listed = docker.run(&["ps", "-q", "--filter", &filter])?;
    Ok(listed.split_whitespace().map(str::to_owned).collect())
}
