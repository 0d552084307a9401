//! The life of a function: pushed, called from everywhere, changed and removed.

use super::*;
use harness::{eventually, secs};

const HELLO: &str = "import os\n\nSTART = os.urandom(4).hex()\n\n\ndef main(params):\n    name = params.get('name', 'you')\n    return {'greeting': 'hello ' + name, 'start': START}\n";

/// Running containers of the function on all nodes.
pub(super) fn containers(cluster: &Cluster, name: &str) -> Result<usize> {
    let mut count = 0;
    for node in &cluster.nodes {
        let all = node.docker.containers(&cluster.slot().instance())?;
        let is_it = |pod: &str| pod.starts_with(&format!("{name}-"));
        count += all
            .iter()
            .filter(|c| c.running && c.label("container") == "function" && is_it(c.label("pod")))
            .count();
    }
    Ok(count)
}

/// A push that can't be built while the function sleeps: a call still wakes the old version.
fn broken_code_leaves_the_old_one(cluster: &Cluster) -> Result<()> {
    eventually("it sleeps again", secs(100), || {
        ensure!(containers(cluster, "hello")? == 0, "it runs");
        Ok(())
    })?;
    let commit = cluster.push(&[code("hello", "main.py", "def main(params:\n    pass\n")], "Broken")?;
    cluster.applied(&commit)?;
    eventually("the build has failed", secs(60), || {
        let log = cluster.cli(&["logs", "function/hello", "--build"])?;
        ensure!(log.stdout.contains("SyntaxError"), "{log:?}");
        Ok(())
    })?;
    let old = call(cluster.node(), "hello", "{}")?;
    ensure!(old.status == 200 && old.body["greeting"] == "hello you", "{old:?}");
    Ok(())
}

#[test]
fn a_pushed_function_answers_from_every_node_sleeps_and_wakes() -> Result<()> {
    Cluster::run(three_nodes(), |cluster| {
        let spec = "  scaleToZeroAfterSeconds: 5\n";
        let changes = [other_object(), manifest("hello", spec), code("hello", "main.py", HELLO)];
        let commit = cluster.push(&changes, "Say hello")?;
        cluster.applied(&commit)?;
        let first = call(cluster.node(), "hello", r#"{"name": "Ada"}"#)?;
        ensure!(first.status == 200 && first.body["greeting"] == "hello Ada", "{first:?}");
        for node in &cluster.nodes {
            let answer = call(node, "hello", "{}")?;
            ensure!(
                answer.status == 200 && answer.body["greeting"] == "hello you",
                "{}: {answer:?}",
                node.name
            );
        }
        eventually("it sleeps", secs(100), || {
            ensure!(containers(cluster, "hello")? == 0, "it runs");
            Ok(())
        })?;
        let woken = call(&cluster.nodes[2], "hello", r#"{"name": "Bo"}"#)?;
        ensure!(woken.status == 200 && woken.body["greeting"] == "hello Bo", "{woken:?}");
        broken_code_leaves_the_old_one(cluster)?;
        let missing = call(cluster.node(), "missing", "{}")?;
        ensure!(missing.status == 404 && missing.error() == "NotFound", "{missing:?}");
        let list = call(cluster.node(), "hello", "[1]")?;
        ensure!(list.status == 400 && list.error() == "NotAnObject", "{list:?}");
        let commit = cluster.push(&[Change::remove("hello.yaml")], "Enough")?;
        cluster.applied(&commit)?;
        eventually("it is gone", secs(30), || {
            ensure!(containers(cluster, "hello")? == 0, "it runs");
            let answer = call(cluster.node(), "hello", "{}")?;
            ensure!(answer.status == 404, "{answer:?}");
            Ok(())
        })
    })
}
