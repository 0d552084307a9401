//! Effects of applying a change, in words. Pure.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use schema::kinds::pod::Protocol;
use serde::{Serialize, Serializer};

use schema::violation::plural;

/// A single effect of applying a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// New pods start.
    Start { pods: u32, containers: Vec<String> },
    /// Pods are stopped and started again because of these fields.
    Restart { pods: u32, containers: Vec<String>, because: Vec<String> },
    /// Pods are stopped permanently.
    Stop { pods: u32, containers: Vec<String> },
    /// A pod starts, restarts or stops on each node that fits, because of these fields; the number of nodes is
    /// unknown without a server.
    OnNodes { act: NodesAct, nodes: Option<u32>, containers: Vec<String>, because: Vec<String> },
    /// Nothing that runs is affected.
    InPlace,
    /// Only the object's place in the repository changes.
    Moved,
    /// More or fewer pods.
    Replicas { from: u32, to: u32 },
    /// A port starts answering.
    PortOpens(Port),
    /// A port stops answering.
    PortCloses(Port),
    /// A name starts resolving.
    NameAppears(String),
    /// A name stops resolving.
    NameVanishes(String),
    /// Other pods are behind the service.
    Selects,
    /// This service, `namespace/name`, loses its last pod.
    EndpointsLost { service: String },
    /// A line of the submitted script.
    Script(String),
    /// Anything that is best said in a sentence.
    Sentence(String),
}

/// Effect on the pods of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodesAct {
    /// Pods start.
    Starts,
    /// Pods are stopped and started again.
    Restarts,
    /// Pods are stopped permanently.
    Stops,
}

/// A port and its place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// Place: `host port`, `node port`, `service port`, `192.0.2.1 port`.
    pub place: Cow<'static, str>,
    pub number: u16,
    pub protocol: Protocol,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        };
        match self.number {
            0 => write!(f, "{} (any free)/{protocol}", self.place),
            number => write!(f, "{} {number}/{protocol}", self.place),
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Effect::Start { pods, containers } => write!(f, "starts {}", many(*pods, containers)),
            Effect::Restart { pods, containers, because } => {
                write!(f, "restarts {}{}", many(*pods, containers), Because(because))
            }
            Effect::OnNodes { act, nodes, containers, because } => {
                let act = match act {
                    NodesAct::Starts => "starts",
                    NodesAct::Restarts => "restarts",
                    NodesAct::Stops => "stops",
                };
                let nodes = match nodes {
                    Some(1) => "1 node".to_owned(),
                    Some(nodes) => format!("each of {nodes} nodes"),
                    None => "each node that fits".to_owned(),
                };
                let (containers, because) = (Containers(containers), Because(because));
                write!(f, "{act} one pod on {nodes} ({containers}){because}")
            }
            Effect::Stop { pods, containers } => write!(f, "stops {}", many(*pods, containers)),
            Effect::InPlace => f.write_str("changed in place, nothing restarts"),
            Effect::Moved => f.write_str("no change at runtime"),
            Effect::Replicas { from, to } if to > from => {
                write!(f, "replicas {from} -> {to}: {} more", plural(to - from, "pod"))
            }
            Effect::Replicas { from, to } => {
                write!(f, "replicas {from} -> {to}: {} fewer", plural(from - to, "pod"))
            }
            Effect::PortOpens(port) => write!(f, "opens {port}"),
            Effect::PortCloses(port) => write!(f, "closes {port}"),
            Effect::NameAppears(name) => write!(f, "name appears: {name}"),
            Effect::NameVanishes(name) => write!(f, "name vanishes: {name}"),
            Effect::Selects => f.write_str("it may select other pods"),
            Effect::EndpointsLost { service } => {
                write!(f, "service {service} loses its last endpoint: nothing answers there")
            }
            Effect::Script(line) => write!(f, "| {line}"),
            Effect::Sentence(text) => f.write_str(text),
        }
    }
}

impl Serialize for Effect {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn many(pods: u32, containers: &[String]) -> String {
    format!("{} ({})", plural(pods, "pod"), Containers(containers))
}

struct Containers<'a>(&'a [String]);

impl fmt::Display for Containers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.0.len() == 1 { "container" } else { "containers" };
        write!(f, "{word} {}", self.0.join(", "))
    }
}

struct Because<'a>(&'a [String]);

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ", because of {}", self.0.join(", ")) }
    }
}

/// Returns the effects of items that are only in `before`, which go, then of those only in `after`, which appear.
pub(crate) fn appear_and_go<T: Ord>(
    before: impl IntoIterator<Item = T>,
    after: impl IntoIterator<Item = T>,
    goes: fn(T) -> Effect,
    appears: fn(T) -> Effect,
) -> Vec<Effect> {
    let before: BTreeSet<T> = before.into_iter().collect();
    let mut after: BTreeSet<T> = after.into_iter().collect();
    let mut effects = Vec::new();
    for item in before {
        if !after.remove(&item) {
            effects.push(goes(item));
        }
    }
    effects.extend(after.into_iter().map(appears));
    effects
}
