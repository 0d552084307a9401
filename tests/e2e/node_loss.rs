//! A node is lost: after the time set in the Cluster object its bare pods start on other nodes, and pods pinned to
//! the node wait for it. When it returns it stops the pods that now run elsewhere, and restarts nothing.

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Result, Where, ensure, eventually, secs};

/// Number of the node that is lost.
const LOST: usize = 3;

const CLUSTER: &str = "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {name: cluster}\n\
                       spec: {nodes: {evictAfterSeconds: 5}}\n";

fn cordon(name: &str) -> Change {
    let text =
        format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\nspec: {{unschedulable: true}}\n");
    Change::write(format!("node-{name}.yaml"), text)
}

/// Checks that the pod runs on the node of this number.
fn runs_on(cluster: &Cluster, node: usize, pod: &str) -> Result<bool> {
    let there = cluster.numbered(node)?.docker.containers(&cluster.slot().instance())?;
    Ok(there.iter().any(|c| c.label("pod") == pod && c.label("container") == "web" && c.running))
}

#[test]
fn pods_of_a_lost_node_start_elsewhere_and_what_names_it_waits_for_it() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let lost = cluster.numbered(LOST)?.name.clone();
        let others = [cluster.numbered(1)?.name.clone(), cluster.numbered(2)?.name.clone()];
        let mut changes: Vec<Change> = others.iter().map(|name| cordon(name)).collect();
        changes.push(Change::write("cluster.yaml", CLUSTER));
        changes.push(Change::write("roams.yaml", web("roams").to_string()));
        changes.push(Change::write("stays.yaml", web("stays").on(&lost).to_string()));
        cluster.push(&changes, "Cordon all but one node")?;
        let stays = cluster.running("stays", &["web"])?;
        cluster.running("roams", &["web"])?;
        ensure!(runs_on(cluster, LOST, "roams")?, "a cordoned node got a pod");
        let nodes = cluster.cli(&["get", "nodes"])?.ok()?;
        ensure!(nodes.matches("Ready,SchedulingDisabled").count() == 2, "{nodes}");
        let removed: Vec<Change> =
            others.iter().map(|name| Change::remove(format!("node-{name}.yaml"))).collect();
        let commit = cluster.push(&removed, "Open them again")?;
        cluster.applied(&commit)?;

        cluster.numbered(LOST)?.cut_off()?;
        eventually("the bare pod runs on another node", secs(60), || {
            ensure!(runs_on(cluster, 1, "roams")? || runs_on(cluster, 2, "roams")?, "it does not");
            Ok(())
        })?;
        let bound = cluster.etcd.list(&format!("/minik8s/bindings/{lost}/default/"))?;
        ensure!(bound.len() == 1 && bound[0].key.ends_with("/stays"), "{bound:?}");
        let page = cluster.cli(&["describe", &format!("node/{lost}")])?.ok()?;
        ensure!(page.contains("HeartbeatExpired") && page.contains("Evicted"), "{page}");

        cluster.numbered(LOST)?.reconnect()?;
        eventually("the node ends what runs elsewhere", secs(45), || {
            ensure!(!runs_on(cluster, LOST, "roams")?, "it still runs");
            Ok(())
        })?;
        eventually("the node is ready again", secs(30), || {
            let nodes = cluster.cli(&["get", "nodes"])?.ok()?;
            ensure!(!nodes.contains("NotReady"), "{nodes}");
            Ok(())
        })?;
        ensure!(cluster.pod("stays")?.lives() == stays.lives(), "its pod was started again");
        Ok(())
    })
}
