//! The two older forms of an autoscaler, on three nodes: one replica per interval, up and down, for a ReplicaSet
//! and for a Pod from Git. New pods run on several nodes and are reached through the Service.

use std::collections::BTreeSet;

use harness::{
    Change, Cluster, ClusterOptions, Context as _, Happened, IMAGE, Moment, Result, Timeline, Where, ensure,
    eventually, secs,
};
use schema::keys::prefix;
use schema::records::ScaleRecord;

use crate::workloads::{Runs, Workload, per_node};

const MOST: usize = 3;
/// Largest time by which a step may seem early: it is measured where containers start and end, not where it is
/// decided.
const JITTER_NANOS: i64 = 2_000_000_000;

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

/// Waits until `wanted` pods of each workload run.
fn count(cluster: &Cluster, all: &[Workload], wanted: usize) -> Result<Vec<Vec<Runs>>> {
    eventually(&format!("{wanted} of each run"), secs(150), || {
        let running = all.iter().map(|one| one.running(cluster)).collect::<Result<Vec<_>>>()?;
        ensure!(running.iter().all(|running| running.len() == wanted), "{running:?}");
        Ok(running)
    })
}

/// Checks that events of this type in the workload's containers are at least the interval apart.
fn are_apart(moments: &[&Moment], happened: Happened, interval: u64) -> Result<()> {
    let at: Vec<i64> = moments.iter().filter(|m| m.happened == happened).map(|m| m.at_nanos).collect();
    let gaps: Vec<i64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    println!("{happened:?}: {:?} ms apart", gaps.iter().map(|gap| gap / 1_000_000).collect::<Vec<_>>());
    let least = secs(interval).as_nanos();
    ensure!(gaps.iter().all(|gap| i128::from(gap + JITTER_NANOS) >= least.cast_signed()), "{moments:?}");
    Ok(())
}

// Seen red with a `Rate::step_limit` that allows one pod more: two started within 215 ms.
#[test]
fn the_older_forms_add_and_remove_one_replica_per_interval() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let timeline = Timeline::begin(cluster)?;
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
        let mut files = Vec::new();
        for (workload, (name, kind, _, api, spec)) in all.iter().zip(forms) {
            files.extend([workload.service(), burner(name, kind), autoscaler(name, api, spec)]);
        }
        cluster.push(&files, "Open")?;
        let named = eventually("the pod runs that Git names", secs(60), || {
            let running = all[0].running(cluster)?;
            running.into_iter().find(|runs| runs.pod == "adjust").context("not yet")
        })?;
        let burning = count(cluster, &all, MOST)?;
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
        let last = count(cluster, &all, 1)?;
        ensure!(last[0] == [named], "Git's own pod is never a victim: {:?}", last[0]);
        let moments = timeline.moments()?;
        for (workload, (name, kind, interval, ..)) in all.iter().zip(forms) {
            println!("{name}, one per {interval} s:");
            let moments = workload.moments(&moments);
            are_apart(&moments, Happened::Began, interval)?;
            are_apart(&moments, Happened::Signalled, interval)?;
            let changes = cluster.etcd.changes(&format!("{}{kind}/default/{name}", prefix::SCALE), 0)?;
            let counts = changes.iter().filter_map(|change| change.value.as_deref());
            let counts = counts.map(|value| Ok(serde_json::from_str::<ScaleRecord>(value)?.replicas));
            let counts: Vec<u32> = counts.collect::<Result<_>>()?;
            println!("{name}: {counts:?} replicas one after the other");
            ensure!(counts.windows(2).all(|pair| pair[0].abs_diff(pair[1]) <= 1), "{counts:?}");
            ensure!(counts.ends_with(&[3, 2, 1]), "{counts:?}");
        }
        Ok(())
    })
}
