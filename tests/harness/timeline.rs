//! Start and end times of containers on all nodes, as Docker itself reports them while they happen, so that nothing
//! between two checks is missed.

use std::collections::BTreeSet;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::cluster::Cluster;
use crate::docker_world::DockerWorld;
use crate::process::Daemon;
use crate::wait::{eventually, secs};

/// Event of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// Start of the container.
    Began,
    /// A signal, mostly SIGTERM.
    Signalled,
    /// End of its process.
    Ended,
}

/// An event of a container at its time; pause containers are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// Time in nanoseconds of the machine's clock.
    pub at_nanos: i64,
    pub node: String,
    pub pod: String,
    /// Full id of the container.
    pub id: String,
    pub happened: Happened,
}

/// Follows `docker events` of all nodes from its creation on.
#[derive(Debug)]
pub struct Timeline {
    instance: String,
    nodes: Vec<Followed>,
}

#[derive(Debug)]
struct Followed {
    name: String,
    docker: DockerWorld,
    events: Daemon,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "Action")]
    action: String,
    #[serde(rename = "Actor")]
    actor: Actor,
    #[serde(rename = "timeNano")]
    time_nano: i64,
}

#[derive(Deserialize)]
struct Actor {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "Attributes")]
    attributes: Map<String, Value>,
}

impl Timeline {
    /// Starts following. Each cluster needs one, created before its first container.
    pub fn begin(cluster: &Cluster) -> Result<Self> {
        let instance = cluster.slot().instance();
        // No event is lost before Docker begins to report, and none comes from the slot's former cluster.
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let since = format!("{}.{:09}", now.as_secs(), now.subsec_nanos());
        let mut nodes = Vec::new();
        for node in &cluster.nodes {
            let mut command: Vec<String> =
                ["docker", "--host", node.docker.host(), "events"].map(str::to_owned).into();
            command.extend(["--since", &since, "--format", "{{json .}}"].map(str::to_owned));
            let label = format!("label=minik8s.io/instance={instance}");
            for filter in ["type=container", "event=start", "event=kill", "event=die", &label] {
                command.extend(["--filter".to_owned(), filter.to_owned()]);
            }
            let mut events = Daemon::new(format!("events-{}", node.name), cluster.slot().dir(), command);
            events.start()?;
            nodes.push(Followed { name: node.name.clone(), docker: node.docker.clone(), events });
        }
        Ok(Self { instance, nodes })
    }

    /// Every moment until now, in order of time.
    pub fn moments(&self) -> Result<Vec<Moment>> {
        let mut all = Vec::new();
        for node in &self.nodes {
            all.extend(eventually("the events have come", secs(10), || node.moments(&self.instance))?);
        }
        all.sort_by_key(|moment| moment.at_nanos);
        Ok(all)
    }
}

impl Followed {
    /// Fails as long as the running containers in Docker differ from those in the events.
    fn moments(&self, instance: &str) -> Result<Vec<Moment>> {
        let text = fs::read_to_string(self.events.log_path())?;
        let (mut moments, mut running) = (Vec::new(), BTreeSet::new());
        for line in text.lines() {
            let Event { action, actor, time_nano } =
                serde_json::from_str(line).with_context(|| format!("docker events says {line}"))?;
            let happened = match action.as_str() {
                "start" => Happened::Began,
                "die" => Happened::Ended,
                _ => Happened::Signalled,
            };
            match happened {
                Happened::Began => drop(running.insert(actor.id.clone())),
                Happened::Ended => drop(running.remove(&actor.id)),
                Happened::Signalled => {}
            }
            let label =
                |name: &str| actor.attributes.get(&format!("minik8s.io/{name}")).and_then(Value::as_str);
            if label("container") == Some("POD") {
                continue;
            }
            let pod = label("pod").unwrap_or_default().to_owned();
            moments.push(Moment {
                at_nanos: time_nano,
                node: self.name.clone(),
                pod,
                id: actor.id,
                happened,
            });
        }
        let now = self.docker.containers(instance)?.into_iter().filter(|container| container.running);
        let now: BTreeSet<String> = now.map(|container| container.id).collect();
        ensure!(now == running, "{now:?} run, not {running:?}");
        Ok(moments)
    }
}

/// Maximum number of containers that ran at the same time.
pub fn most_at_once<'a>(moments: impl IntoIterator<Item = &'a Moment>) -> usize {
    let (mut running, mut most) = (BTreeSet::new(), 0);
    for moment in moments {
        match moment.happened {
            Happened::Began => drop(running.insert(&moment.id)),
            Happened::Ended => drop(running.remove(&moment.id)),
            Happened::Signalled => {}
        }
        most = most.max(running.len());
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_ended_does_not_run_beside_who_begins() {
        let moment = |id: &str, happened| Moment {
            at_nanos: 0,
            node: String::new(),
            pod: String::new(),
            id: id.to_owned(),
            happened,
        };
        let (began, ended) = (Happened::Began, Happened::Ended);
        let one_by_one = [moment("a", began), moment("a", ended), moment("b", began)];
        assert_eq!(most_at_once(&one_by_one), 1);
        let together =
            [moment("a", began), moment("b", began), moment("a", Happened::Signalled), moment("a", ended)];
        assert_eq!(most_at_once(&together), 2);
    }
}
