//! The timeline of a commit, beside what Docker says about its containers.

use std::time::Instant;

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Context, Result, Where, ensure, eventually, secs};
use jiff::Timestamp;
use schema::records::PodTimeline;
use serde_json::Value;

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n\
                       spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}\n";

const STEPS: [&str; 8] = ["read", "checked", "planned", "applied", "bound", "ready", "programmed", "decided"];

#[test]
fn the_timeline_of_a_commit_says_where_the_time_until_its_pods_serve_went() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(2), poll: "1h", ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        cluster.source_where("the first look is over", |source| source.observed_commit.is_some())?;
        let pod = |index: usize| {
            let node = &cluster.nodes[index].name;
            let pod = web(&format!("web-{index}")).label("app", "web").on(node);
            Change::write(format!("web-{index}.yaml"), pod.to_string())
        };
        let changes = [Change::write("service.yaml", SERVICE), pod(0), pod(1)];
        let commit = cluster.repo.push(&changes, "Open")?;
        let asked = Instant::now();
        cluster.cli(&["sync"])?.ok()?;
        cluster.cli(&["wait", "--for", "healthy", "--commit", &commit, "--timeout", "60s"])?.ok()?;
        let shown = eventually("the timeline is whole", secs(20), || whole(cluster, &commit[..7]))?;
        let total = shown["total"].as_u64().context("no total")?;
        let most = asked.elapsed().as_millis();
        ensure!(u128::from(total) <= most, "{total} ms of {most} ms at most: {shown}");
        ensure!(shown["seenBy"] == "cli" && shown["status"] == "Good" && shown["pods"] == 2, "{shown}");
        let until: Vec<u64> = steps(&shown).into_iter().map(|(_, to)| to).collect();
        // The verdict on the commit may come before the last node has its rules.
        let is_in_order = until[..4].is_sorted() && until[4..7].is_sorted() && until[5] <= until[7];
        ensure!(is_in_order, "{until:?}");
        let pods: Vec<PodTimeline> = serde_json::from_value(shown["slowest"].clone())?;
        ensure!(pods.len() == 2, "{pods:?}");
        pods.iter().try_for_each(|pod| as_docker_says(cluster, pod))?;
        let text = cluster.cli(&["history", "HEAD", "--timeline"])?.ok()?;
        let names = STEPS.iter().all(|step| text.contains(step));
        ensure!(names && text.contains("default/web-0") && text.contains("###"), "{text}");
        println!("{text}");
        Ok(())
    })
}

fn steps(shown: &Value) -> Vec<(String, u64)> {
    let steps = shown["steps"].as_array().into_iter().flatten();
    let step = |step: &Value| Some((step["name"].as_str()?.to_owned(), step["to"].as_u64()?));
    steps.filter_map(step).collect()
}

fn whole(cluster: &Cluster, commit: &str) -> Result<Value> {
    let shown = cluster.cli(&["history", commit, "--timeline", "-o", "json"])?.ok()?;
    let shown: Value = serde_json::from_str(&shown)?;
    let names: Vec<String> = steps(&shown).into_iter().map(|(name, _)| name).collect();
    ensure!(names == STEPS, "{names:?}");
    Ok(shown)
}

/// Checks the node's part of a pod's timeline against Docker's own times.
fn as_docker_says(cluster: &Cluster, shown: &PodTimeline) -> Result<()> {
    let name = shown.pod.strip_prefix("default/").context("another namespace")?;
    let pod = cluster.pod(name)?;
    let node = cluster.node_of(&pod)?;
    ensure!(shown.node.as_ref() == Some(&node.name), "{shown:?}");
    let format = "{{.Created}} {{.State.StartedAt}}";
    let said = node.docker.run(&["inspect", "--format", format, &pod.container("web")?.id])?;
    let (created, started) = said.trim().split_once(' ').context("two times")?;
    let (created, started): (Timestamp, Timestamp) = (created.parse()?, started.parse()?);
    let between = u64::try_from(started.duration_since(created).as_millis())?;
    ensure!(shown.started == Some(between), "{shown:?}, and Docker: {between} ms from {said}");
    let known = [shown.bound, shown.image, shown.created, shown.ready, shown.reported, shown.programmed];
    ensure!(known.iter().all(Option::is_some), "{shown:?}");
    Ok(())
}
