//! A daemon set on three nodes: one pod on each, also on a node that joins later; rolled out node by node;
//! undisturbed by bad templates, drains, a lost node and a lost etcd.
//!
//! Seen red with a `free` of `daemon_set.rs` that ignores pods already down: two nodes are without a pod at once.

use std::collections::{BTreeMap, BTreeSet};

use harness::{
    Change, Cluster, ClusterOptions, ContainerView, Context, IMAGE, Result, Where, ensure, eventually, secs,
};
use schema::keys::{Key, prefix};
use schema::kinds::Kind;
use schema::kinds::pod::PodStatus;
use schema::meta::ObjectRef;
use schema::records::Rollout;

const CLUSTER: &str = "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {name: cluster}\n\
                       spec: {nodes: {evictAfterSeconds: 5}}\n";

fn template(image: &str, version: usize) -> Change {
    let command = "trap 'exit 0' TERM; echo open > /tmp/index.html; httpd -f -p 8080 -h /tmp & wait";
    let text = format!(
        "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {{name: exporter}}\nspec:\n  \
         progressDeadlineSeconds: 20\n  selector: {{matchLabels: {{app: exporter}}}}\n  \
         updateStrategy: {{type: RollingUpdate, rollingUpdate: {{maxUnavailable: 1}}}}\n  template:\n    \
         metadata: {{labels: {{app: exporter}}}}\n    spec:\n      terminationGracePeriodSeconds: 2\n      \
         nodeSelector: {{kubernetes.io/os: linux}}\n      containers:\n      - name: web\n        image: {image}\n        \
         command: [sh, -c, {command:?}]\n        env: [{{name: VERSION, value: \"{version}\"}}]\n        \
         ports: [{{containerPort: 8080, hostPort: 9100}}]\n        \
         readinessProbe: {{httpGet: {{path: /index.html, port: 8080}}, periodSeconds: 1}}\n"
    );
    Change::write("exporter.yaml", text)
}

/// Running containers of the set in Docker, by node.
fn containers(cluster: &Cluster) -> Result<BTreeMap<String, Vec<ContainerView>>> {
    let mut found = BTreeMap::new();
    for node in &cluster.nodes {
        let mut all = node.docker.containers(&cluster.slot().instance())?;
        all.retain(|container| container.running && container.label("container") == "web");
        found.insert(node.name.clone(), all);
    }
    Ok(found)
}

fn versions(containers: &BTreeMap<String, Vec<ContainerView>>) -> Vec<(String, String)> {
    let version = |container: &ContainerView| {
        container.env.iter().find_map(|pair| pair.strip_prefix("VERSION=")).unwrap_or_default().to_owned()
    };
    let each = containers.iter().flat_map(|(node, all)| all.iter().map(|one| (node.clone(), version(one))));
    each.collect()
}

/// Nodes that report a ready pod.
fn serving(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let mut nodes = BTreeSet::new();
    for found in cluster.etcd.list(prefix::STATUS)? {
        if let Ok(Key::PodStatus(node, _)) = found.key.parse() {
            let status: PodStatus = serde_json::from_str(&found.value)?;
            if status.is_ready() && !status.is_terminating() {
                nodes.insert(node);
            }
        }
    }
    Ok(nodes)
}

/// Waits until each node runs exactly one container, all of this version, all ready. Returns the containers, and
/// the largest number of nodes without a ready one at any time.
fn runs(cluster: &Cluster, version: usize) -> Result<(BTreeMap<String, String>, usize)> {
    let mut most_down = 0;
    let ids = eventually(&format!("one container of version {version} on each node"), secs(120), || {
        let ready = serving(cluster)?.len();
        most_down = most_down.max(cluster.nodes.len().saturating_sub(ready));
        let running = containers(cluster)?;
        let wanted: Vec<_> = running.keys().map(|node| (node.clone(), version.to_string())).collect();
        ensure!(versions(&running) == wanted, "{:?}", versions(&running));
        ensure!(ready == cluster.nodes.len(), "{ready} are ready");
        Ok(running
            .into_iter()
            .flat_map(|(node, all)| all.into_iter().map(move |one| (node.clone(), one.id)))
            .collect())
    })?;
    Ok((ids, most_down))
}

fn rollout(cluster: &Cluster) -> Result<Rollout> {
    let (kind, namespace) = (Kind::DaemonSet, "default".to_owned());
    cluster.etcd.value(Key::Rollout(ObjectRef { kind, namespace, name: "exporter".to_owned() }))
}

fn complete(cluster: &Cluster) -> Result<()> {
    eventually("the rollout is complete", secs(30), || {
        let rollout = rollout(cluster)?;
        ensure!(rollout.complete && rollout.status.available_replicas == 3, "{rollout:?}");
        Ok(())
    })
}

#[test]
fn each_node_runs_one_pod_and_keeps_it_whatever_happens() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::prepare(options)?.run_story(|cluster| {
        // etcd does not know it yet.
        cluster.expect_denials();
        let late = cluster.nodes.pop().context("no node")?;
        cluster.start_all()?;
        cluster.push(&[Change::write("cluster.yaml", CLUSTER), template(IMAGE, 0)], "Export")?;
        runs(cluster, 0)?;
        cluster.nodes.push(late);
        let etcd = cluster.etcd_for_nodes();
        cluster.nodes[2].start_agent(&etcd)?;
        runs(cluster, 0)?;
        complete(cluster)?;
        let shown = cluster.cli(&["get", "ds"])?.ok()?;
        let words: Vec<&str> = shown.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        ensure!(
            words.starts_with(&["exporter", "3", "3", "3", "3", "3", "kubernetes.io/os=linux", "Healthy"]),
            "{shown}"
        );

        let commit = cluster.push(&[template(IMAGE, 1)], "Roll")?;
        let (_, most_down) = runs(cluster, 1)?;
        println!("daemon set: at most {most_down} of 3 nodes without a ready pod while it rolled");
        ensure!(most_down == 1, "{most_down} nodes were down at once");
        complete(cluster)?;
        cluster.cli(&["wait", "--for", "healthy", "--commit", &commit, "--timeout", "60s"])?.ok()?;
        bad_template(cluster)?;
        drain(cluster)?;
        lost_node(cluster)?;
        lost_etcd(cluster)?;

        cluster.push(&[Change::remove("exporter.yaml")], "Remove")?;
        eventually("all of it is gone", secs(60), || {
            let running = containers(cluster)?;
            ensure!(running.values().all(Vec::is_empty), "{running:?}");
            for prefix in [prefix::PODS, prefix::BINDINGS, prefix::ROLLOUTS, prefix::TEMPLATES] {
                let mut left = cluster.etcd.list(prefix)?;
                left.retain(|found| {
                    matches!(
                        found.key.parse(),
                        Ok(Key::Pod(_) | Key::Binding(..) | Key::Rollout(_) | Key::Template(..))
                    )
                });
                ensure!(left.is_empty(), "{left:?}");
            }
            Ok(())
        })
    })
}

/// Tries a bad template on one node while the others keep serving; then that node serves again.
fn bad_template(cluster: &mut Cluster) -> Result<()> {
    let (before, _) = runs(cluster, 1)?;
    let commit = cluster.push(&[template("127.0.0.1:9/absent:1", 2)], "Break")?;
    let failure = eventually("the template fails", secs(90), || {
        rollout(cluster)?.failure.context("it has not failed")
    })?;
    ensure!(failure.reason.contains("Image"), "{failure:?}");
    let waited = cluster.cli(&["wait", "--for", "healthy", "--commit", &commit, "--timeout", "60s"])?;
    ensure!(waited.code != 0, "{waited:?}");
    let (after, _) = runs(cluster, 1)?;
    let same = after.iter().filter(|(node, id)| before.get(*node) == Some(id)).count();
    ensure!(same == 2, "{before:?}, then {after:?}");
    cluster.push(&[template(IMAGE, 3)], "Mend")?;
    let (_, most_down) = runs(cluster, 3)?;
    ensure!(most_down == 1, "{most_down} nodes were down at once");
    complete(cluster)
}

fn drain(cluster: &mut Cluster) -> Result<()> {
    let (before, _) = runs(cluster, 3)?;
    let node = cluster.numbered(2)?.name.clone();
    let text = format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: {node}}}\nspec: {{unschedulable: true, drain: true}}\n"
    );
    cluster.push(&[Change::write("node.yaml", text)], "Drain")?;
    eventually("the node is drained", secs(30), || {
        let page = cluster.cli(&["describe", &format!("node/{node}")])?.ok()?;
        ensure!(page.contains("drained"), "{page}");
        Ok(())
    })?;
    ensure!(runs(cluster, 3)?.0 == before, "{:?} of {before:?}", containers(cluster)?);
    // A rollout still includes the node.
    cluster.push(&[template(IMAGE, 4)], "Roll while drained")?;
    runs(cluster, 4)?;
    complete(cluster)?;
    let commit = cluster.push(&[Change::remove("node.yaml")], "Open again")?;
    cluster.applied(&commit).map(|_| ())
}

fn lost_node(cluster: &mut Cluster) -> Result<()> {
    let (before, _) = runs(cluster, 4)?;
    let node = cluster.numbered(3)?.name.clone();
    cluster.numbered(3)?.cut_off()?;
    eventually("the node is given up", secs(60), || {
        let rollout = rollout(cluster)?;
        ensure!(rollout.status.desired_replicas == 2, "{:?}", rollout.status);
        Ok(())
    })?;
    let bound = cluster.etcd.list(&prefix::bindings_of(&node))?;
    ensure!(bound.iter().filter(|found| found.key.contains("exporter")).count() == 1, "{bound:?}");
    cluster.numbered(3)?.reconnect()?;
    complete(cluster)?;
    ensure!(runs(cluster, 4)?.0 == before, "{:?} of {before:?}", containers(cluster)?);
    Ok(())
}

fn lost_etcd(cluster: &mut Cluster) -> Result<()> {
    let (before, _) = runs(cluster, 4)?;
    cluster.lose_etcd()?;
    cluster.reconcilers[0].start()?;
    cluster.wait_reconciler(0)?;
    cluster.settled()?;
    complete(cluster)?;
    ensure!(runs(cluster, 4)?.0 == before, "{:?} of {before:?}", containers(cluster)?);
    Ok(())
}
