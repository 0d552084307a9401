//! Stories of workloads, with their common parts: a Deployment as a person writes it, and its pods as shown by
//! Docker.

mod budgets;
mod drains;
mod placement;
mod replacing;
mod scheduling;

use std::collections::{BTreeMap, BTreeSet};

use harness::{
    Change, Clients, Cluster, Context, EtcdChange, Happened, IMAGE, Moment, Result, Target, ensure,
    eventually, secs,
};
use schema::keys::{Key, prefix};
use schema::kinds::Kind;
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::{PodInstance, Rollout, ServiceRecord};

/// Serves `open` at `/` on port 8080 and exits immediately on SIGTERM.
pub(crate) const SERVES: &str =
    "trap 'exit 0' TERM; echo open > /tmp/index.html; httpd -f -p 8080 -h /tmp & wait";
/// Never serves.
pub(crate) const SLEEPS: &str = "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done";

/// A Deployment whose pods are ready when they serve.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) replicas: usize,
    /// Version of the template.
    pub(crate) version: usize,
    pub(crate) image: &'static str,
    pub(crate) command: &'static str,
    pub(crate) grace_seconds: u32,
    /// More lines of its spec, indented by 2.
    pub(crate) more: String,
    /// More lines of its container, indented by 8.
    pub(crate) container: &'static str,
}

impl Workload {
    pub(crate) fn new(name: &'static str, replicas: usize) -> Self {
        let (image, command, more) = (IMAGE, SERVES, String::new());
        Self { name, replicas, version: 0, image, command, grace_seconds: 2, more, container: "" }
    }

    /// Changes the replica count.
    pub(crate) fn scale(&mut self, replicas: usize) -> Change {
        self.replicas = replicas;
        self.file()
    }

    /// Changes to the next template.
    pub(crate) fn roll(&mut self) -> Change {
        self.version += 1;
        self.file()
    }

    pub(crate) fn file(&self) -> Change {
        let Self { name, replicas, version, image, command, grace_seconds, more, container } = self;
        let text = format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: {replicas}\n{more}  \
             selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    \
             metadata: {{labels: {{app: {name}}}}}\n    spec:\n      terminationGracePeriodSeconds: {grace_seconds}\n      \
             containers:\n      - name: web\n        image: {image}\n        command: [sh, -c, {command:?}]\n        \
             env: [{{name: VERSION, value: \"{version}\"}}]\n        \
             readinessProbe: {{httpGet: {{path: /index.html, port: 8080}}, periodSeconds: 1}}\n{container}"
        );
        Change::write(format!("{name}.yaml"), text)
    }

    /// Service that leads to its pods.
    pub(crate) fn service(&self) -> Change {
        let name = self.name;
        let text = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  selector: {{app: {name}}}\n  \
             ports: [{{port: 80, targetPort: 8080}}]\n"
        );
        Change::write(format!("{name}-service.yaml"), text)
    }

    pub(crate) fn rollout(&self, cluster: &Cluster) -> Result<Rollout> {
        let (namespace, name) = ("default".to_owned(), self.name.to_owned());
        cluster.etcd.value(Key::Rollout(ObjectRef { kind: Kind::ReplicaSet, namespace, name }))
    }

    /// True for the name of one of its pods, or of the pod that Git names so.
    pub(crate) fn owns(&self, pod: &str) -> bool {
        pod == self.name || PodInstance::workload_in_name(pod) == Some(self.name)
    }

    /// Containers that Docker runs for it on all nodes, ordered by pod name.
    pub(crate) fn running(&self, cluster: &Cluster) -> Result<Vec<Runs>> {
        let mut found = Vec::new();
        for node in &cluster.nodes {
            for container in node.docker.containers(&cluster.slot().instance())? {
                let pod = container.label("pod").to_owned();
                if container.running && container.label("container") == "web" && self.owns(&pod) {
                    let version = container.env.iter().find_map(|pair| pair.strip_prefix("VERSION="));
                    let version = version.context("no version")?.parse()?;
                    let lives = format!("{} {}", container.id, container.started_at);
                    found.push(Runs { pod, node: node.name.clone(), version, lives });
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// Waits until exactly its pods run, all with its template, each behind its service if that has endpoints.
    pub(crate) fn serves(&self, cluster: &Cluster) -> Result<Vec<Runs>> {
        let Self { name, replicas, version, .. } = self;
        let what = format!("{replicas} pods of version {version} of {name} run and serve");
        eventually(&what, secs(120), || {
            let running = self.running(cluster)?;
            ensure!(running.len() == *replicas, "{running:?}");
            ensure!(running.iter().all(|runs| runs.version == *version), "{running:?}");
            let service = Key::Service(NamespacedName::new("default", self.name));
            if cluster.etcd.key(&service)?.is_some() {
                let record: ServiceRecord = cluster.etcd.value(service)?;
                ensure!(record.endpoints.len() == *replicas, "{:?}", record.endpoints);
            }
            Ok(running)
        })
    }

    /// Address of the service, once it answers on every node.
    pub(crate) fn address(&self, cluster: &Cluster) -> Result<String> {
        let record: ServiceRecord =
            cluster.etcd.value(Key::Service(NamespacedName::new("default", self.name)))?;
        let address = record.cluster_ip.context("no address")?.to_string();
        for node in &cluster.nodes {
            let url = format!("http://{address}/");
            eventually("the service answers", secs(20), || node.net.run("curl", &["-sf", "-m", "2", &url]))?;
        }
        Ok(address)
    }

    /// Moments of its own containers.
    pub(crate) fn moments<'a>(&self, all: &'a [Moment]) -> Vec<&'a Moment> {
        all.iter().filter(|moment| self.owns(&moment.pod)).collect()
    }

    /// Maximum number of concurrent pods from a revision of etcd on, not counting terminating ones.
    pub(crate) fn most_records(&self, cluster: &Cluster, since: i64) -> Result<usize> {
        let mut changes = cluster.etcd.changes(prefix::PODS, 0)?;
        changes.retain(|change| matches!(change.key.parse(), Ok(Key::Pod(pod)) if self.owns(&pod.name)));
        let (mut records, mut most) = (BTreeSet::new(), 0);
        for transaction in changes.chunk_by(|a, b| a.revision == b.revision) {
            for EtcdChange { key, value, .. } in transaction {
                if value.is_some() {
                    records.insert(key)
                } else {
                    records.remove(key)
                };
            }
            most = if transaction[0].revision > since { most.max(records.len()) } else { records.len() };
        }
        Ok(most)
    }
}

/// A pod of a workload as Docker runs it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Runs {
    pub(crate) pod: String,
    pub(crate) node: String,
    pub(crate) version: usize,
    /// Id and start time of its container: unchanged if it was not touched.
    pub(crate) lives: String,
}

/// Number of pods per node, for nodes that have some.
pub(crate) fn per_node(running: &[Runs]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for runs in running {
        *counts.entry(runs.node.as_str()).or_default() += 1;
    }
    counts
}

/// Checks that each pod was on one node only and its container started once; returns the number of started pods.
pub(crate) fn started_once(moments: &[&Moment]) -> Result<usize> {
    let mut places: BTreeMap<&str, &Moment> = BTreeMap::new();
    for moment in moments.iter().filter(|moment| moment.happened == Happened::Began) {
        if let Some(before) = places.insert(&moment.pod, moment) {
            harness::bail!("a pod was started twice: {before:?}, {moment:?}");
        }
    }
    Ok(places.len())
}

/// The Node object of a node.
pub(crate) fn node_file(name: &str, labels: &str, spec: &str) -> Change {
    let text = format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{{labels}}}}}\nspec: {{{spec}}}\n"
    );
    Change::write(node_path(name), text)
}

pub(crate) fn node_path(name: &str) -> String {
    format!("node-{name}.yaml")
}

/// The Cluster object.
pub(crate) fn cluster_file(spec: &str) -> Change {
    let text =
        format!("apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {{name: cluster}}\nspec: {{{spec}}}\n");
    Change::write("cluster.yaml", text)
}

/// Clients on every node that query each of these addresses all the time.
pub(crate) fn clients(cluster: &Cluster, addresses: &[&str]) -> Result<Vec<Clients>> {
    let mut clients: Vec<Clients> = cluster.nodes.iter().map(Clients::on).collect::<Result<_>>()?;
    for (client, node) in clients.iter_mut().zip(&cluster.nodes) {
        for address in addresses {
            let name = format!("client on {} of {address}", node.name);
            client.ask(Target { name, address: format!("{address}:80"), answer: "open".to_owned() })?;
        }
    }
    Ok(clients)
}
