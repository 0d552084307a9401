//! Every etcd key: how it is built and parsed, and who may write it.
//!
//! `docs/contract.md` is generated from [`CONTRACT`].

use std::fmt;
use std::str::FromStr;

use crate::kinds::Kind;
use crate::meta::{NamespacedName, ObjectRef};

/// What all keys begin with.
pub const ROOT: &str = "/minik8s/";

/// One key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// `leader`: who leads, and the fence of all the reconciler's writes.
    Leader,
    /// `sources/<source>`.
    Source(String),
    /// `revisions/<source>/<seq>`; the number is zero-padded to 10 digits, so keys sort by it.
    Revision(String, u64),
    /// `objects/<kind>/<ns>/<name>`.
    Object(ObjectRef),
    /// `scale/<ns>/<workload>`.
    Scale(NamespacedName),
    /// `pods/<ns>/<name>`.
    Pod(NamespacedName),
    /// `bindings/<node>/<ns>/<pod>`.
    Binding(String, NamespacedName),
    /// `bindings/<node>/settled`; two parts below the prefix, where a binding has three.
    Settled(String),
    /// `services/<ns>/<name>`.
    Service(NamespacedName),
    /// `routes/<ns>/<name>`.
    Route(NamespacedName),
    /// `nodes/<node>`.
    Node(String),
    /// `subnets/<node>`.
    Subnet(String),
    /// `heartbeats/<node>`.
    Heartbeat(String),
    /// `status/<node>/pods/<ns>/<name>`.
    PodStatus(String, NamespacedName),
    /// `status/<node>/usage`.
    Usage(String),
    /// `status/<node>/rules`.
    Rules(String),
    /// `deliveries/<id>`.
    Delivery(String),
    /// `events/<ns>/<id>`; the id begins with the time in microseconds, so keys sort by it.
    Event(String, String),
}

/// Who may write a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// Every reconciler, to become leader.
    Election,
    /// The leading reconciler's gitops.
    Gitops,
    /// The leading reconciler's controller of that name.
    Controller(&'static str),
    /// The agent of the node in the key.
    Agent,
    /// The reconciler that took the request, leading or not; then the leading one's gitops.
    Receiver,
    /// Whoever saw it happen.
    Anyone,
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Writer::Election => f.write_str("reconcilers"),
            Writer::Gitops => f.write_str("gitops"),
            Writer::Controller(name) => write!(f, "{name} controller"),
            Writer::Agent => f.write_str("that node's agent"),
            Writer::Receiver => f.write_str("the reconciler that took it, then gitops"),
            Writer::Anyone => f.write_str("who saw it"),
        }
    }
}

/// One row of the contract: pattern below [`ROOT`], what it holds, its only writer, its main reader.
pub struct ContractRow {
    /// Pattern below [`ROOT`].
    pub pattern: &'static str,
    /// What the value is.
    pub holds: &'static str,
    /// Its only writer.
    pub writer: Writer,
    /// Who reads it first of all.
    pub reader: &'static str,
}

/// The whole contract, as a table.
pub const CONTRACT: &[ContractRow] = &[
    row(
        "leader",
        "who leads; its create revision fences every write of the reconciler",
        Writer::Election,
        "all writers of the reconciler",
    ),
    row(
        "sources/<source>",
        "observed and applied commit, quarantined files, held prune, error",
        Writer::Gitops,
        "CLI",
    ),
    row(
        "revisions/<source>/<seq>",
        "one applied commit: author, counts, duration, verdict",
        Writer::Gitops,
        "CLI",
    ),
    row(
        "objects/<kind>/<ns>/<name>",
        "desired object with provenance, hash and generation",
        Writer::Gitops,
        "controllers",
    ),
    row("scale/<ns>/<workload>", "replica override", Writer::Controller("hpa"), "workloads"),
    row(
        "pods/<ns>/<name>",
        "a pod that should exist, with its owner",
        Writer::Controller("workloads"),
        "scheduler",
    ),
    row(
        "bindings/<node>/<ns>/<pod>",
        "the pod in full, given to a node",
        Writer::Controller("scheduler"),
        "that node's agent",
    ),
    row(
        "bindings/<node>/settled",
        "once all that Git says has become bindings; before, a missing one is no removal",
        Writer::Controller("scheduler"),
        "that node's agent",
    ),
    row("services/<ns>/<name>", "cluster IP and ready endpoints", Writer::Controller("services"), "agents"),
    row("routes/<ns>/<name>", "host and paths to services", Writer::Controller("services"), "agents"),
    row("nodes/<node>", "capacity, addresses, versions", Writer::Agent, "scheduler"),
    row("subnets/<node>", "pod CIDR of the node", Writer::Controller("nodes"), "agents"),
    row("heartbeats/<node>", "alive, on a 15 s lease", Writer::Agent, "nodes"),
    row("status/<node>/pods/<ns>/<name>", "what the pod is", Writer::Agent, "controllers, CLI"),
    row("status/<node>/usage", "CPU and memory in use", Writer::Agent, "hpa, CLI"),
    row("status/<node>/rules", "revision of services/ that is programmed", Writer::Agent, "agents, CLI"),
    row(
        "deliveries/<id>",
        "receipt of a webhook or of `minik8s sync`, and what came of it, on a lease of 24 h",
        Writer::Receiver,
        "gitops, CLI",
    ),
    row("events/<ns>/<id>", "what happened, on a lease of 1 h", Writer::Anyone, "CLI"),
];

const fn row(
    pattern: &'static str,
    holds: &'static str,
    writer: Writer,
    reader: &'static str,
) -> ContractRow {
    ContractRow { pattern, holds, writer, reader }
}

/// Prefixes below which keys lie, for lists and watches.
pub mod prefix {
    /// `sources/`.
    pub const SOURCES: &str = "/minik8s/sources/";
    /// `revisions/`.
    pub const REVISIONS: &str = "/minik8s/revisions/";
    /// `objects/`.
    pub const OBJECTS: &str = "/minik8s/objects/";
    /// `scale/`.
    pub const SCALE: &str = "/minik8s/scale/";
    /// `pods/`.
    pub const PODS: &str = "/minik8s/pods/";
    /// `bindings/`.
    pub const BINDINGS: &str = "/minik8s/bindings/";
    /// `services/`.
    pub const SERVICES: &str = "/minik8s/services/";
    /// `routes/`.
    pub const ROUTES: &str = "/minik8s/routes/";
    /// `nodes/`.
    pub const NODES: &str = "/minik8s/nodes/";
    /// `subnets/`.
    pub const SUBNETS: &str = "/minik8s/subnets/";
    /// `heartbeats/`.
    pub const HEARTBEATS: &str = "/minik8s/heartbeats/";
    /// `status/`.
    pub const STATUS: &str = "/minik8s/status/";
    /// `deliveries/`.
    pub const DELIVERIES: &str = "/minik8s/deliveries/";
    /// `events/`.
    pub const EVENTS: &str = "/minik8s/events/";

    /// `bindings/<node>/`.
    pub fn bindings_of(node: &str) -> String {
        format!("{BINDINGS}{node}/")
    }

    /// `status/<node>/pods/`.
    pub fn pod_status_of(node: &str) -> String {
        format!("{STATUS}{node}/pods/")
    }

    /// `revisions/<source>/`.
    pub fn revisions_of(source: &str) -> String {
        format!("{REVISIONS}{source}/")
    }
}

impl Key {
    /// The only one who may write it.
    pub fn writer(&self) -> Writer {
        match self {
            Key::Leader => Writer::Election,
            Key::Source(_) | Key::Revision(..) | Key::Object(_) => Writer::Gitops,
            Key::Scale(_) => Writer::Controller("hpa"),
            Key::Pod(_) => Writer::Controller("workloads"),
            Key::Binding(..) | Key::Settled(_) => Writer::Controller("scheduler"),
            Key::Service(_) | Key::Route(_) => Writer::Controller("services"),
            Key::Subnet(_) => Writer::Controller("nodes"),
            Key::Node(_) | Key::Heartbeat(_) | Key::PodStatus(..) | Key::Usage(_) | Key::Rules(_) => {
                Writer::Agent
            }
            Key::Delivery(_) => Writer::Receiver,
            Key::Event(..) => Writer::Anyone,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ROOT)?;
        match self {
            Key::Leader => f.write_str("leader"),
            Key::Source(source) => write!(f, "sources/{source}"),
            Key::Revision(source, sequence) => write!(f, "revisions/{source}/{sequence:010}"),
            // As it always was, and not as objects are shown to people.
            Key::Object(ObjectRef { kind, namespace, name }) => {
                write!(f, "objects/{kind}/{namespace}/{name}")
            }
            Key::Scale(workload) => write!(f, "scale/{workload}"),
            Key::Pod(pod) => write!(f, "pods/{pod}"),
            Key::Binding(node, pod) => write!(f, "bindings/{node}/{pod}"),
            Key::Settled(node) => write!(f, "bindings/{node}/settled"),
            Key::Service(service) => write!(f, "services/{service}"),
            Key::Route(route) => write!(f, "routes/{route}"),
            Key::Node(node) => write!(f, "nodes/{node}"),
            Key::Subnet(node) => write!(f, "subnets/{node}"),
            Key::Heartbeat(node) => write!(f, "heartbeats/{node}"),
            Key::PodStatus(node, pod) => write!(f, "status/{node}/pods/{pod}"),
            Key::Usage(node) => write!(f, "status/{node}/usage"),
            Key::Rules(node) => write!(f, "status/{node}/rules"),
            Key::Delivery(id) => write!(f, "deliveries/{id}"),
            Key::Event(namespace, id) => write!(f, "events/{namespace}/{id}"),
        }
    }
}

/// The text is no key of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a key of Minik8s")]
pub struct NotAKey(pub String);

impl FromStr for Key {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, NotAKey> {
        let not_a_key = || NotAKey(text.to_owned());
        let below = text.strip_prefix(ROOT).ok_or_else(not_a_key)?;
        let parts: Vec<&str> = below.split('/').collect();
        if parts.iter().any(|part| part.is_empty()) {
            return Err(not_a_key());
        }
        Ok(match parts.as_slice() {
            ["leader"] => Key::Leader,
            ["sources", source] => Key::Source((*source).to_owned()),
            ["revisions", source, sequence] => {
                Key::Revision((*source).to_owned(), sequence.parse().map_err(|_| not_a_key())?)
            }
            ["objects", kind, namespace, name] => Key::Object(ObjectRef {
                kind: kind.parse::<Kind>().map_err(|_| not_a_key())?,
                namespace: (*namespace).to_owned(),
                name: (*name).to_owned(),
            }),
            ["scale", namespace, name] => Key::Scale(NamespacedName::new(*namespace, *name)),
            ["pods", namespace, name] => Key::Pod(NamespacedName::new(*namespace, *name)),
            ["bindings", node, namespace, name] => {
                Key::Binding((*node).to_owned(), NamespacedName::new(*namespace, *name))
            }
            ["bindings", node, "settled"] => Key::Settled((*node).to_owned()),
            ["services", namespace, name] => Key::Service(NamespacedName::new(*namespace, *name)),
            ["routes", namespace, name] => Key::Route(NamespacedName::new(*namespace, *name)),
            ["nodes", node] => Key::Node((*node).to_owned()),
            ["subnets", node] => Key::Subnet((*node).to_owned()),
            ["heartbeats", node] => Key::Heartbeat((*node).to_owned()),
            ["status", node, "pods", namespace, name] => {
                Key::PodStatus((*node).to_owned(), NamespacedName::new(*namespace, *name))
            }
            ["status", node, "usage"] => Key::Usage((*node).to_owned()),
            ["status", node, "rules"] => Key::Rules((*node).to_owned()),
            ["deliveries", id] => Key::Delivery((*id).to_owned()),
            ["events", namespace, id] => Key::Event((*namespace).to_owned(), (*id).to_owned()),
            _ => return Err(not_a_key()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Key> {
        let pod = NamespacedName::new("default", "web");
        vec![
            Key::Leader,
            Key::Source("main".into()),
            Key::Revision("main".into(), 7),
            Key::Object(ObjectRef { kind: Kind::Pod, namespace: "default".into(), name: "web".into() }),
            Key::Scale(pod.clone()),
            Key::Pod(pod.clone()),
            Key::Binding("n1".into(), pod.clone()),
            Key::Settled("n1".into()),
            Key::Service(pod.clone()),
            Key::Route(pod.clone()),
            Key::Node("n1".into()),
            Key::Subnet("n1".into()),
            Key::Heartbeat("n1".into()),
            Key::PodStatus("n1".into(), pod),
            Key::Usage("n1".into()),
            Key::Rules("n1".into()),
            Key::Delivery("github-1".into()),
            Key::Event("default".into(), "0001-ab".into()),
        ]
    }

    #[test]
    fn every_key_parses_back_to_itself() {
        for key in samples() {
            assert_eq!(key.to_string().parse::<Key>(), Ok(key));
        }
        let node = ObjectRef { kind: Kind::Node, namespace: "default".into(), name: "n1".into() };
        let key = Key::Object(node);
        assert_eq!(key.to_string(), "/minik8s/objects/Node/default/n1");
        assert_eq!(key.to_string().parse::<Key>(), Ok(key));
    }

    #[test]
    fn the_contract_has_one_row_per_key() {
        assert_eq!(CONTRACT.len(), samples().len());
        for (row, key) in CONTRACT.iter().zip(samples()) {
            let head = row.pattern.split('/').next().unwrap_or_default();
            assert!(key.to_string().starts_with(&format!("{ROOT}{head}")), "{} is not {}", key, row.pattern);
            assert_eq!(row.writer, key.writer(), "{}", row.pattern);
        }
    }

    #[test]
    fn strangers_are_no_keys() {
        for text in [
            "/minik8s/",
            "/minik8s/pods/x",
            "/other/pods/a/b",
            "/minik8s/objects/Nope/a/b",
            "/minik8s/pods//x",
        ] {
            assert!(text.parse::<Key>().is_err(), "{text}");
        }
    }
}
