//! Table of every etcd key: how it is built and parsed, its only writer, and its place in the snapshot.
//!
//! A new key is one row of `key_table` plus its record type. The rows generate [`Key`], [`prefix`], [`CONTRACT`]
//! with `docs/contract.md`, the role of a node ([`node_role`]) and the tables of
//! [`Snapshot`](crate::snapshot::Snapshot).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::kinds::Kind;
use crate::meta::{NamespacedName, ObjectRef};

/// Prefix of all keys but those of workflow runs.
pub const ROOT: &str = "/minik8s/";
/// Prefix of the keys of workflow runs, which are in no snapshot.
pub const RUNS_ROOT: &str = "/minik8s-runs/";

/// Passes the table to the macro `$make`. A row is
///
/// ```text
/// Variant(field: type, …), NAME_OF_ITS_PREFIX, "pattern" => "what it holds",
///     only writer, "main reader", read access of agents; snapshot table: record, loops that a change wakes
/// ```
///
/// A `<placeholder>` is one part of the key; a `NamespacedName` takes two and an `ObjectRef` three. Keys in
/// `unwatched` are in no snapshot. A change of a `Plans` table wakes every controller, a change of a `ByName` table
/// only the loops whose row names it.
macro_rules! key_table {
    ($make:ident) => {
        $make! {
            unwatched {
                Leader, LEADER, "/minik8s/leader"
                    => "the leader; its create revision fences every write of the reconciler",
                    Election, "all writers of the reconciler", All;
                Event(reporter: String, namespace: String, id: String), EVENTS, "/minik8s/events/<reporter>/<ns>/<id>"
                    => "an event, on a lease of 1 h; a node's reporter is its name", Reporter, "CLI", Nothing;
                Join(id: String), JOINS, "/minik8s/joins/<id>"
                    => "a join token: its hash, the name it is bound to, its end, whether it is spent; on a lease of 24 h",
                    Reconcilers, "reconcilers", Nothing;
                RunRequest(workflow: NamespacedName, run: String), RUN_REQUESTS, "/minik8s-runs/requests/<ns>/<workflow>/<run>"
                    => "a requested run: its input; until it starts", Receiver, "workflows", Nothing;
                RunInput(workflow: NamespacedName, run: String, part: u64), RUN_INPUTS,
                    "/minik8s-runs/inputs/<ns>/<workflow>/<run>/<n>"
                    => "a part of the input of a requested run, if it has more than 32 KiB",
                    Receiver, "workflows", Nothing;
                RunHead(workflow: NamespacedName, run: String), RUN_HEADS, "/minik8s-runs/heads/<ns>/<workflow>/<run>"
                    => "summary of a run: when and why it started, how it ended",
                    Controller("workflows"), "CLI", Nothing;
                RunEntries(workflow: NamespacedName, run: String, first: u64), RUN_JOURNALS,
                    "/minik8s-runs/journal/<ns>/<workflow>/<run>/<seq>"
                    => "journal of a run from this number on: one entry, or several once they are compacted",
                    Controller("workflows"), "CLI", Nothing;
                RunPayload(workflow: NamespacedName, run: String, digest: String, part: u64), RUN_PAYLOADS,
                    "/minik8s-runs/payload/<ns>/<workflow>/<run>/<digest>/<n>"
                    => "a part of an input or output of more than 32 KiB",
                    Controller("workflows"), "CLI", Nothing;
                RunDefinition(workflow: NamespacedName, hash: String), RUN_DEFINITIONS,
                    "/minik8s-runs/definitions/<ns>/<workflow>/<hash>"
                    => "the state machine that runs were started with", Controller("workflows"), "CLI", Nothing;
            }
            watched {
                Source(source: String), SOURCES, "/minik8s/sources/<source>"
                    => "observed and applied commit, quarantined files, held prune, error",
                    Gitops, "CLI", Nothing; sources: SourceStatus, Plans;
                Revision(source: String, sequence: u64), REVISIONS, "/minik8s/revisions/<source>/<seq>"
                    => "one applied commit: author, counts, duration, verdict",
                    Gitops, "CLI", Nothing; revisions: Revision, Plans;
                Object(object: ObjectRef), OBJECTS, "/minik8s/objects/<kind>/<ns>/<name>"
                    => "desired object with provenance, hash and generation",
                    Gitops, "controllers", Nothing; objects: Object, Plans;
                Rollout(workload: ObjectRef), ROLLOUTS, "/minik8s/rollouts/<kind>/<ns>/<name>"
                    => "rollout of a workload: wanted, last good and failed template and why it failed, status",
                    Controller("workloads"), "gitops, CLI", Nothing; rollouts: Rollout, Plans;
                Template(workload: ObjectRef, hash: String), TEMPLATES, "/minik8s/templates/<kind>/<ns>/<name>/<hash>"
                    => "a pod template in full, while it is wanted or the last good one",
                    Controller("workloads"), "workloads, blobs", Nothing; templates: Template, Plans;
                Scale(workload: ObjectRef), SCALE, "/minik8s/scale/<kind>/<ns>/<name>"
                    => "number of pods of a workload, in place of the number in Git",
                    Scaler, "workloads", Nothing; scales: ScaleRecord, Plans;
                Autoscaler(autoscaler: NamespacedName), AUTOSCALERS, "/minik8s/autoscalers/<ns>/<name>"
                    => "state of an autoscaler: recommendations, changes, status",
                    Controller("autoscaler"), "CLI", Nothing; autoscalers: AutoscalerRecord, Plans;
                Pod(pod: NamespacedName), PODS, "/minik8s/pods/<ns>/<name>"
                    => "a pod that should exist, with its owner",
                    Controller("workloads"), "scheduler", Nothing; pods: PodInstance, Plans;
                Binding(node: String, pod: NamespacedName), BINDINGS, "/minik8s/bindings/<node>/<ns>/<pod>"
                    => "the full pod, assigned to a node",
                    Controller("scheduler"), "that node's agent", Own; bindings: Binding, Plans;
                Settled(node: String), SETTLED, "/minik8s/bindings/<node>/settled"
                    => "written once all bindings from Git exist; until then, a missing one is not a removal",
                    Controller("scheduler"), "that node's agent", Own; settled: SettledRecord, Plans;
                Settings, SETTINGS, "/minik8s/settings"
                    => "the Cluster object as agents need it; defaults without one",
                    Controller("settings"), "agents", All; settings: ClusterSettings, Plans;
                Service(service: NamespacedName), SERVICES, "/minik8s/services/<ns>/<name>"
                    => "cluster IP and ready endpoints",
                    Controller("services"), "agents", All; services: ServiceRecord, Plans;
                Route(route: NamespacedName), ROUTES, "/minik8s/routes/<ns>/<name>"
                    => "host and paths to services",
                    Controller("services"), "agents", All; routes: RouteRecord, Plans;
                Function(function: NamespacedName), FUNCTIONS, "/minik8s/functions/<ns>/<name>"
                    => "a function for gateways: images, limits on calls, replicas",
                    Controller("functions"), "agents", All; functions: FunctionRecord, Plans;
                Build(node: String, image: String), WORK, "/minik8s/work/<node>/builds/<image>"
                    => "order to build an image",
                    Controller("functions"), "that node's agent", Own; builds: BuildOrder, Plans;
                NodeImage(node: String, image: String), NODE_IMAGES, "/minik8s/status/<node>/images/<image>"
                    => "progress of the node's build of an image",
                    Agent, "functions, CLI", Own; node_images: NodeImage, Plans;
                Job(node: String, job: NamespacedName), JOBS, "/minik8s/work/<node>/jobs/<ns>/<name>"
                    => "order to submit a Slurm job",
                    Controller("jobs"), "that node's agent", Own; jobs: JobOrder, Plans;
                JobReport(node: String, job: NamespacedName), JOB_REPORTS, "/minik8s/status/<node>/jobs/<ns>/<name>"
                    => "progress of the node's Slurm job",
                    Agent, "jobs, CLI", Own; job_reports: JobReport, Plans;
                Demand(node: String), DEMAND, "/minik8s/demand/<node>"
                    => "calls of functions through the node's gateway",
                    Agent, "functions", Own; demand: NodeDemand, ByName;
                Workflow(workflow: NamespacedName), WORKFLOWS, "/minik8s/workflows/<ns>/<workflow>"
                    => "the run of the last push, and how many runs there are",
                    Controller("workflows"), "gitops, CLI", Nothing; workflows: WorkflowRecord, Plans;
                Trigger(object: ObjectRef, trigger: String), TRIGGERS, "/minik8s/triggers/<kind>/<ns>/<name>/<trigger>"
                    => "when a trigger last started a run, and when it will next",
                    Controller("workflows"), "CLI", Nothing; triggers: TriggerRecord, Plans;
                Node(node: String), NODES, "/minik8s/nodes/<node>"
                    => "capacity, addresses, versions", Agent, "scheduler", All; nodes: NodeRecord, Plans;
                Subnet(node: String), SUBNETS, "/minik8s/subnets/<node>"
                    => "pod CIDR of the node", Controller("nodes"), "agents", All; subnets: Subnet, Plans;
                NodeConditions(node: String), NODESTATE, "/minik8s/nodestate/<node>"
                    => "readiness and since when, eviction, drain",
                    Controller("nodes"), "scheduler, CLI", Nothing; node_conditions: NodeConditions, Plans;
                Heartbeat(node: String), HEARTBEATS, "/minik8s/heartbeats/<node>"
                    => "alive, on a 15 s lease", Agent, "nodes", All; heartbeats: Heartbeat, Plans;
                PodStatus(node: String, pod: NamespacedName), STATUS, "/minik8s/status/<node>/pods/<ns>/<name>"
                    => "status of the pod", Agent, "controllers, CLI", Own; pod_status: PodStatus, Plans;
                Usage(node: String), USAGE, "/minik8s/usage/<node>"
                    => "CPU and memory in use", Agent, "autoscaler, CLI", Own; usage: NodeUsage, ByName;
                Rules(node: String), RULES, "/minik8s/rules/<node>"
                    => "revision of services/ that is programmed",
                    Agent, "rules controller, CLI", Own; rules: RulesStatus, ByName;
                Programmed, PROGRAMMED, "/minik8s/programmed"
                    => "revision of services/ that all live nodes have programmed",
                    Controller("rules"), "agents (drain)", All; programmed: ProgrammedRules, ByName;
                Request(id: String), REQUESTS, "/minik8s/requests/<id>"
                    => "a webhook's delivery or a `minik8s sync`, on a lease of 24 h",
                    Receiver, "the leader's gitops", Nothing; requests: SyncRequest, ByName;
                Answer(id: String), ANSWERS, "/minik8s/answers/<id>"
                    => "outcome of a request, on a lease of 24 h",
                    Leader, "CLI, the reconciler that took the request", Nothing; answers: RequestAnswer, ByName;
                Outbox(target: String, subject: String), OUTBOX, "/minik8s/outbox/<target>/<subject>"
                    => "the wanted message about a subject, and the state of its delivery",
                    Leader, "CLI", Nothing; outbox: OutboxEntry, ByName;
                Identity(identity: String), IDENTITIES, "/minik8s/identities/<identity>"
                    => "a certificate of a node, a reconciler or a user: key, serial numbers, end; its age recipient",
                    Reconcilers, "trust controller, CLI", Nothing; identities: IdentityRecord, ByName;
                RevokedIdentity(identity: String), REVOKED, "/minik8s/revoked/<identity>"
                    => "a removed identity: the keys that are revoked, until when",
                    Reconcilers, "trust controller", Nothing; revoked: RevokedIdentity, ByName;
                Trust, TRUST, "/minik8s/trust"
                    => "trusted authorities, revoked keys, addresses of etcd and of the reconcilers, the restart of etcd's members",
                    Controller("trust"), "agents, reconcilers", All; trust: TrustRecord, ByName;
                Authority(digest: String), AUTHORITIES, "/minik8s/authorities/<digest>"
                    => "an authority that signs, or is about to: certificate and key, encrypted to the reconcilers",
                    Reconcilers, "reconcilers", Nothing; authorities: AuthorityRecord, ByName;
                DefragRequest, DEFRAG_REQUEST, "/minik8s/etcd/defrag"
                    => "the last `minik8s etcd defrag`",
                    Receiver, "the leader's upkeep", Nothing; defrag_requests: DefragRequest, ByName;
                EtcdUpkeep, ETCD_UPKEEP, "/minik8s/etcd/upkeep"
                    => "whether the leader maintains etcd, and when it last did",
                    Leader, "CLI, doctor", All; etcd_upkeep: EtcdUpkeep, ByName;
            }
        }
    };
}
#[cfg(feature = "store")]
pub(crate) use key_table;

macro_rules! define_keys {
    (
        unwatched { $($unwatched:tt)* }
        watched { $(
            $variant:ident $(($($field:ident: $type:ty),+))?, $prefix:ident, $pattern:literal => $holds:literal,
            $writer:expr, $reader:literal, $agents:ident; $table:ident: $record:ty, $planned:ident;
        )* }
    ) => {
        define_keys! {
            $($unwatched)*
            $($variant $(($($field: $type),+))?, $prefix, $pattern => $holds, $writer, $reader, $agents;)*
        }
    };
    ($(
        $variant:ident $(($($field:ident: $type:ty),+))?, $prefix:ident, $pattern:literal => $holds:literal,
        $writer:expr, $reader:literal, $agents:ident;
    )*) => {
        /// An etcd key.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Key {
            $(#[doc = concat!("`", $pattern, "`: ", $holds, ".")] $variant $(($($type),+))?,)*
        }

        /// Key prefixes for lists and watches.
        pub mod prefix {
            $(#[doc = concat!("Of `", $pattern, "`.")] pub const $prefix: &str = super::fixed_prefix($pattern);)*

            /// Returns `bindings/<node>/`.
            pub fn bindings_of(node: &str) -> String {
                format!("{BINDINGS}{node}/")
            }

            /// Returns `status/<node>/pods/`.
            pub fn pod_status_of(node: &str) -> String {
                format!("{STATUS}{node}/pods/")
            }

            /// Returns `status/<node>/images/`.
            pub fn node_images_of(node: &str) -> String {
                format!("{STATUS}{node}/images/")
            }

            /// Returns `status/<node>/jobs/`.
            pub fn job_reports_of(node: &str) -> String {
                format!("{STATUS}{node}/jobs/")
            }

            /// Returns `work/<node>/`.
            pub fn work_of(node: &str) -> String {
                format!("{WORK}{node}/")
            }
        }

        /// The contract: every key with its writer and readers.
        pub const CONTRACT: &[ContractRow] = {
            use {AgentReads::*, Writer::*};
            &[$(ContractRow {
                pattern: $pattern, holds: $holds, writer: $writer, reader: $reader, agents: $agents,
            },)*]
        };

        impl Key {
            /// Returns the only writer of the key.
            pub fn writer(&self) -> Writer {
                use Writer::*;
                match self {
                    $(Key::$variant { .. } => $writer,)*
                }
            }
        }

        impl fmt::Display for Key {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Key::$variant $(($($field),+))? => fill(f, $pattern, &[$($($field),+)?]),)*
                }
            }
        }

        impl FromStr for Key {
            type Err = NotAKey;

            fn from_str(text: &str) -> Result<Self, NotAKey> {
                let not_a_key = || NotAKey(text.to_owned());
                $(if matches_pattern($pattern, text) {
                    #[allow(unused_mut, unused_variables, reason = "a key without fields")]
                    let mut parts = placeholders($pattern, text);
                    return Ok(Key::$variant $(($(<$type>::read(&mut parts).ok_or_else(not_a_key)?),+))?);
                })*
                Err(not_a_key())
            }
        }
    };
}
key_table!(define_keys);

/// Writer of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// Every reconciler, to become leader.
    Election,
    /// The leading reconciler's gitops.
    Gitops,
    /// The leading reconciler's controller of that name.
    Controller(&'static str),
    /// The leading reconciler's controller that scales workloads of that kind.
    Scaler,
    /// The agent of the node in the key.
    Agent,
    /// The reconciler that received the request, leading or not.
    Receiver,
    /// The leading reconciler's loop that handled the request.
    Leader,
    /// Any reconciler that admits, renews or removes somebody.
    Reconcilers,
    /// The reporter in the key.
    Reporter,
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Writer::Election => f.write_str("reconcilers"),
            Writer::Gitops => f.write_str("gitops"),
            Writer::Controller(name) => write!(f, "{name} controller"),
            Writer::Scaler => f.write_str("autoscaler controller; functions controller of functions"),
            Writer::Agent => f.write_str("that node's agent"),
            Writer::Receiver => f.write_str("the reconciler that took it"),
            Writer::Leader => f.write_str("the leader's loop that did it"),
            Writer::Reconcilers => f.write_str("the reconciler that signed it, or removes it"),
            Writer::Reporter => f.write_str("that reporter"),
        }
    }
}

/// Read access of an agent to the keys of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentReads {
    /// Nothing.
    Nothing,
    /// Keys that name its node.
    Own,
    /// Every key.
    All,
}

/// A row of the contract.
pub struct ContractRow {
    /// The key, with placeholders.
    pub pattern: &'static str,
    /// Content of the value.
    pub holds: &'static str,
    /// Only writer of the key.
    pub writer: Writer,
    /// Main reader of the key.
    pub reader: &'static str,
    /// Read access of agents.
    pub agents: AgentReads,
}

/// A permission in etcd: on one key, or on all below a prefix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// The key or prefix.
    pub key: String,
    /// True if `key` is a prefix.
    pub is_prefix: bool,
    /// True for read and write; else read only.
    pub write: bool,
}

impl fmt::Display for Permission {
    /// Formats the arguments after `etcdctl role grant-permission ROLE`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = if self.write { "readwrite" } else { "read" };
        write!(f, "{access} {}{}", self.key, if self.is_prefix { " --prefix" } else { "" })
    }
}

/// Returns every permission of a node's agent in etcd.
pub fn node_role(node: &str) -> BTreeSet<Permission> {
    let rows = CONTRACT.iter().flat_map(|row| {
        let all = fixed_prefix(row.pattern);
        let (_, rest) = row.pattern[all.len()..].split_once('>').unwrap_or_default();
        let own = |write| {
            let end = if rest.is_empty() { "" } else { "/" };
            Permission { key: format!("{all}{node}{end}"), is_prefix: !rest.is_empty(), write }
        };
        let read = match row.agents {
            AgentReads::Nothing => None,
            AgentReads::Own => Some(own(false)),
            AgentReads::All => {
                // Even for a single key: lists and watches ask for all keys that begin with it.
                Some(Permission { key: all.to_owned(), is_prefix: true, write: false })
            }
        };
        let write = matches!(row.writer, Writer::Agent | Writer::Reporter).then(|| own(true));
        // A write grant includes read; a second grant on the same key would replace the first.
        [read.filter(|read| write.as_ref().is_none_or(|write| write.key != read.key)), write]
    });
    rows.flatten().collect()
}

/// Error for a text that is not a key of Minik8s.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a key of Minik8s")]
pub struct NotAKey(pub String);

/// A field of a key: one placeholder of its pattern or several.
trait Field {
    fn write<'a>(&'a self, parts: &mut Vec<Cow<'a, str>>);

    fn read<'a>(parts: &mut impl Iterator<Item = &'a str>) -> Option<Self>
    where
        Self: Sized;
}

impl Field for String {
    fn write<'a>(&'a self, parts: &mut Vec<Cow<'a, str>>) {
        parts.push(self.into());
    }

    fn read<'a>(parts: &mut impl Iterator<Item = &'a str>) -> Option<Self> {
        parts.next().map(str::to_owned)
    }
}

impl Field for u64 {
    /// Writes ten digits, so that keys sort by number.
    fn write<'a>(&'a self, parts: &mut Vec<Cow<'a, str>>) {
        parts.push(format!("{self:010}").into());
    }

    fn read<'a>(parts: &mut impl Iterator<Item = &'a str>) -> Option<Self> {
        parts.next()?.parse().ok()
    }
}

impl Field for NamespacedName {
    fn write<'a>(&'a self, parts: &mut Vec<Cow<'a, str>>) {
        parts.extend([(&self.namespace).into(), (&self.name).into()]);
    }

    fn read<'a>(parts: &mut impl Iterator<Item = &'a str>) -> Option<Self> {
        Some(Self::new(parts.next()?, parts.next()?))
    }
}

impl Field for ObjectRef {
    /// Always writes a namespace, although cluster-scoped objects are shown without one.
    fn write<'a>(&'a self, parts: &mut Vec<Cow<'a, str>>) {
        parts.extend([self.kind.as_str().into(), (&self.namespace).into(), (&self.name).into()]);
    }

    fn read<'a>(parts: &mut impl Iterator<Item = &'a str>) -> Option<Self> {
        let kind = parts.next()?.parse::<Kind>().ok()?;
        Some(Self { kind, namespace: parts.next()?.to_owned(), name: parts.next()?.to_owned() })
    }
}

/// Writes a pattern with its placeholders filled in.
fn fill(f: &mut fmt::Formatter<'_>, pattern: &str, fields: &[&dyn Field]) -> fmt::Result {
    let mut parts = Vec::new();
    fields.iter().for_each(|field| field.write(&mut parts));
    let mut parts = parts.iter();
    for (number, part) in pattern.split('/').enumerate() {
        f.write_str(if number == 0 { "" } else { "/" })?;
        f.write_str(if part.starts_with('<') { parts.next().map_or("", |part| &**part) } else { part })?;
    }
    Ok(())
}

fn matches_pattern(pattern: &str, text: &str) -> bool {
    let (mut wanted, mut parts) = (pattern.split('/'), text.split('/'));
    loop {
        match (wanted.next(), parts.next()) {
            (None, None) => return true,
            (Some(wanted), Some(part)) if wanted == part || wanted.starts_with('<') && !part.is_empty() => {}
            _ => return false,
        }
    }
}

/// Returns the parts of a matching text at the pattern's placeholders.
fn placeholders<'a>(pattern: &'a str, text: &'a str) -> impl Iterator<Item = &'a str> {
    let parts = pattern.split('/').zip(text.split('/'));
    parts.filter(|(wanted, _)| wanted.starts_with('<')).map(|(_, part)| part)
}

/// Returns the pattern up to its first placeholder.
const fn fixed_prefix(pattern: &'static str) -> &'static str {
    let mut end = 0;
    while end < pattern.len() && pattern.as_bytes()[end] != b'<' {
        end += 1;
    }
    pattern.split_at(end).0
}

#[cfg(test)]
mod tests;
