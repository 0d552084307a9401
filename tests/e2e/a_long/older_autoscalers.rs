//! The two older forms of an autoscaler, on three nodes: one replica per interval, up and down, for a ReplicaSet
//! and for a Pod from Git. New pods run on several nodes and are reached through the Service.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use harness::{
    Change, Cluster, ClusterOptions, Context as _, IMAGE, Result, Where, ensure, eventually, secs,
};
use schema::keys::prefix;
use schema::records::ScaleRecord;

use crate::workloads::{Runs, Workload, per_node};

const MOST: usize = 3;

/// A server that burns CPU until `/tmp/idle` exists, and returns its pod's name at `/`.
fn burner(name: &str, kind: &str) -> Change {
    let burn = "trap 'exit 0' TERM; hostname > /tmp/index.html; httpd -p 8080 -h /tmp; \
                while :; do [ -e /tmp/idle ] && sleep 0.2; done";
    let head = match kind {
        "Pod" => format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {name}}}}}\n"),
        _ => format!(
            "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {{name: {name}}}\nspec:\n  replicas: 1\n  \
             selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n"
        ),
    };
    let spec = format!(
        "spec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  - name: web\n    image: {IMAGE}\n    \
         command: [sh, -c, {burn:?}]\n    env: [{{name: VERSION, value: \"0\"}}]\n    \
         resources: {{requests: {{cpu: 50m, memory: 16Mi}}, limits: {{cpu: 100m}}}}\n"
    );
    let indent = if kind == "Pod" { "" } else { "    " };
    let spec: String = spec.lines().map(|line| format!("{indent}{line}\n")).collect();
    let text = head + &spec;
    Change::write(format!("{name}.yaml"), text)
}

/// An autoscaler for the workload of the same name.
fn autoscaler(name: &str, api: &str, spec: &str) -> Change {
    let text = format!(
        "apiVersion: {api}\nkind: HorizontalPodAutoscaler\nmetadata: {{name: {name}}}\nspec:\n  minReplicas: 1\n  \
         maxReplicas: {MOST}\n{spec}"
    );
    Change::write(format!("{name}-hpa.yaml"), text)
}

/// A change of a number of replicas: the start of the last look that did not see it yet, and the end of the first
/// that did.
type Step = (Instant, Instant);

/// Desired replicas of a workload in etcd, looked at again and again.
struct Scale {
    key: String,
    replicas: u32,
    /// Start of the last look that saw `replicas`.
    looked: Instant,
    ups: Vec<Step>,
    downs: Vec<Step>,
}

impl Scale {
    fn new(kind: &str, name: &str) -> Self {
        let key = format!("{}{kind}/default/{name}", prefix::SCALE);
        Self { key, replicas: 1, looked: Instant::now(), ups: Vec::new(), downs: Vec::new() }
    }

    fn look(&mut self, cluster: &Cluster) -> Result<()> {
        let began = Instant::now();
        if let Some(key) = cluster.etcd.key(&self.key)? {
            let ScaleRecord { replicas, .. } = serde_json::from_str(&key.value)?;
            if replicas != self.replicas {
                let steps = if replicas > self.replicas { &mut self.ups } else { &mut self.downs };
                steps.push((self.looked, Instant::now()));
                self.replicas = replicas;
            }
        }
        self.looked = began;
        Ok(())
    }

    /// Checks that steps up, and steps down, are an interval apart. Between two looks nothing is known, so a step
    /// counts as made as early, and the next one as late, as the looks allow.
    fn steps_are_apart(&self, interval: Duration) -> Result<()> {
        for steps in [&self.ups, &self.downs] {
            let gaps: Vec<Duration> = steps.windows(2).map(|pair| pair[1].1 - pair[0].0).collect();
            println!("{}: at most {gaps:?} apart", self.key);
            ensure!(!gaps.is_empty() && gaps.iter().all(|gap| *gap >= interval), "{}: {gaps:?}", self.key);
        }
        Ok(())
    }
}

/// Waits until `wanted` pods of each workload run.
fn count(cluster: &Cluster, all: &[Workload], scales: &mut [Scale], wanted: usize) -> Result<Vec<Vec<Runs>>> {
    eventually(&format!("{wanted} of each run"), secs(150), || {
        scales.iter_mut().try_for_each(|scale| scale.look(cluster))?;
        let running = all.iter().map(|one| one.running(cluster)).collect::<Result<Vec<_>>>()?;
        ensure!(running.iter().all(|running| running.len() == wanted), "{running:?}");
        Ok(running)
    })
}

// Seen red with a `Rate::step_limit` that allows one pod more: two started within 215 ms.
#[test]
fn the_older_forms_add_and_remove_one_replica_per_interval() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let forms = [
            (
                "adjust",
                "Pod",
                15,
                "v1",
                "  workload: {kind: Pod, metadata: {name: adjust}}\n  adjustInterval: 15s\n  \
                 selector: {matchLabels: {app: adjust}}\n  metrics: {cpuPercent: 0.5, memPercent: 5}\n",
            ),
            (
                "paced",
                "ReplicaSet",
                10,
                "autoscaling/v1",
                "  scaleTargetRef: {apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: paced}}\n  \
                 scaleInterval: 10\n  metrics: {CPUUtilizationPercentage: 50}\n",
            ),
        ];
        let all = forms.map(|(name, ..)| Workload::new(name, MOST));
        let mut scales = forms.map(|(name, kind, ..)| Scale::new(kind, name));
        let mut files = Vec::new();
        for (workload, (name, kind, _, api, spec)) in all.iter().zip(forms) {
            files.extend([workload.service(), burner(name, kind), autoscaler(name, api, spec)]);
        }
        cluster.push(&files, "Open")?;
        let named = eventually("the pod runs that Git names", secs(60), || {
            let running = all[0].running(cluster)?;
            running.into_iter().find(|runs| runs.pod == "adjust").context("not yet")
        })?;
        let burning = count(cluster, &all, &mut scales, MOST)?;
        for (workload, running) in all.iter().zip(&burning) {
            ensure!(per_node(running).len() == MOST, "{running:?}");
            let url = format!("http://{}/", workload.address(cluster)?);
            let mut answered = BTreeSet::new();
            eventually("each pod has answered through the service", secs(60), || {
                answered.insert(cluster.node().net.run("curl", &["-sf", "-m", "5", &url])?.trim().to_owned());
                ensure!(answered.len() == MOST, "{answered:?}");
                Ok(())
            })?;
        }
        for node in &cluster.nodes {
            for container in node.docker.containers(&cluster.slot().instance())? {
                if container.label("container") == "web" {
                    node.docker.exec(&container, &["touch", "/tmp/idle"])?;
                }
            }
        }
        let last = count(cluster, &all, &mut scales, 1)?;
        ensure!(last[0] == [named], "Git's own pod is never a victim: {:?}", last[0]);
        for (scale, (_, _, interval, ..)) in scales.iter().zip(forms) {
            scale.steps_are_apart(secs(interval))?;
            let changes = cluster.etcd.changes(&scale.key, 0)?;
            let counts = changes.iter().filter_map(|change| change.value.as_deref());
            let counts = counts.map(|value| Ok(serde_json::from_str::<ScaleRecord>(value)?.replicas));
            let counts: Vec<u32> = counts.collect::<Result<_>>()?;
            println!("{}: {counts:?} replicas one after the other", scale.key);
            ensure!(counts.windows(2).all(|pair| pair[0].abs_diff(pair[1]) <= 1), "{counts:?}");
            ensure!(counts.ends_with(&[3, 2, 1]), "{counts:?}");
        }
        Ok(())
    })
}
