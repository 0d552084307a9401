//! Workflows: durable state machines over real Python functions.

use harness::{Change, Cluster, ClusterOptions, Context, Result, ensure, eventually, secs};
use serde_json::Value;

use crate::functions::{code, manifest};

mod forms;
mod heartbeats;
mod triggers;

/// A single node that can build Python functions and stays: the functions' output is in their containers' logs.
pub(crate) fn one_node() -> ClusterOptions {
    ClusterOptions { python: true, ..ClusterOptions::default() }
}

/// A function of this single file that keeps one replica.
pub(crate) fn function(name: &str, main: &str) -> [Change; 2] {
    let spec = "  public: true\n  minScale: 1\n  maxScale: 1\n";
    [manifest(name, spec), code(name, "main.py", main)]
}

/// Lines in the logs of the function's containers that begin with `called `, by the rest of the line.
pub(crate) fn calls(cluster: &Cluster, function: &str) -> Result<Vec<String>> {
    let docker = &cluster.node().docker;
    let mut lines = Vec::new();
    for container in docker.containers(&cluster.slot().instance())? {
        let of_function = container.label("pod").starts_with(&format!("{function}-"));
        if of_function && container.label("container") == "function" {
            let log = docker.run(&["logs", &container.id])?;
            let reported =
                log.lines().filter_map(|line| line.split_once("called ").map(|(_, rest)| rest.to_owned()));
            lines.extend(reported);
        }
    }
    Ok(lines)
}

/// Output of `minik8s run … --wait`, and true if the run succeeded.
pub(crate) fn run(cluster: &Cluster, workflow: &str, input: &str, id: &str) -> Result<(bool, Value)> {
    let said = cluster.cli(&["run", workflow, "-d", input, "--id", id, "--wait", "--timeout", "50s"])?;
    let output = serde_json::from_str(said.stdout.trim()).unwrap_or(Value::Null);
    println!("{workflow}/{id}: {} {} {}", said.code, said.stdout.trim(), said.stderr.trim());
    Ok((said.code == 0, output))
}

/// Waits until a run has ended, and returns its page as JSON.
pub(crate) fn ended(cluster: &Cluster, workflow: &str, id: &str) -> Result<Value> {
    eventually(&format!("run {workflow}/{id} ends"), secs(120), || {
        let run: Value = serde_json::from_str(
            &cluster.cli(&["get", "run", &format!("{workflow}/{id}"), "-o", "json"])?.ok()?,
        )?;
        ensure!(run["phase"] != "Running", "it is in state {}", run["state"]);
        Ok(run)
    })
}

/// Id of the last run started by a push.
pub(crate) fn pushed(cluster: &Cluster, workflow: &str) -> Result<String> {
    eventually(&format!("a push started a run of {workflow}"), secs(60), || {
        let found: Value =
            serde_json::from_str(&cluster.cli(&["get", "workflow", workflow, "-o", "json"])?.ok()?)?;
        found["lastRun"]["id"].as_str().map(str::to_owned).context("none yet")
    })
}
