//! Both older forms and our own, with real functions: the right numbers, and each run once.

use std::collections::BTreeSet;
use std::time::Instant;

use super::*;

const ADD: &str = "def main(params):\n    print('called add', params)\n    return {'x': params['x'] + params['y'], 'y': params['y']}\n";
const SQUARE: &str =
    "def main(params):\n    print('called square', params)\n    return {'x': params['x'] ** 2}\n";
const NEGATE: &str =
    "def main(params):\n    print('called negate', params)\n    return {'x': -params['x']}\n";
/// Fails until its third call.
const MOODY: &str = "import os\n\n\nclass Moody(Exception):\n    pass\n\n\ndef main(params):\n    count = params.get('attempt', 0)\n    print('called moody', count)\n    if count < params['until']:\n        raise Moody('not yet')\n    return {'mood': 'good'}\n";

/// Fails twice and succeeds at every third call, counted in its memory.
const SHAKY: &str = "COUNT = [0]\n\n\nclass Shaky(Exception):\n    pass\n\n\ndef main(params):\n    COUNT[0] += 1\n    print('called shaky', COUNT[0])\n    if COUNT[0] % 3:\n        raise Shaky('not yet')\n    return {'calls': COUNT[0]}\n";

const FORM_A: &str = r#"{
  "apiVersion": "/api/v1", "kind": "Workflow",
  "metadata": {"namespace": "default", "name": "form-a"},
  "startAt": "add",
  "params": {"x": 3, "y": 4},
  "nodes": {
    "add": {"type": "task", "next": "check"},
    "check": {"type": "Choice", "choices": [
      {"variable": "x", "numericEquals": "7", "next": "square"},
      {"variable": "$.x", "numericNotEquals": 7, "next": "negate"}]},
    "square": {"type": "Task"},
    "negate": {"type": "Task", "next": null}
  }
}"#;

const FORM_B: &str = r#"
kind: Workflow
apiVersion: v1
metadata: {name: form-b}
spec:
  entryParams: '{"x": 1, "y": 2}'
  entryNodeName: first
  workflowNodes:
  - name: first
    type: func
    funcData: {funcName: add, funcNamespace: default, nextNodeName: second}
  - name: second
    type: choice
    choiceData: {trueNextNodeName: big, falseNextNodeName: small, checkType: numGreaterThan, checkVarName: x, compareValue: 10}
  - name: big
    type: func
    funcData: {funcName: square}
  - name: small
    type: func
    funcData: {funcName: negate}
"#;

/// Two parallel branches, a list, a wait of 2 s, a function that succeeds at the third try, an error that is caught
/// after three.
const WHOLE: &str = r"
apiVersion: minik8s.io/v1
kind: Workflow
metadata: {name: whole}
spec:
  startAt: both
  states:
    both:
      type: Parallel
      branches:
      - {startAt: add, states: {add: {type: Task, function: add, end: true}}}
      - {startAt: square, states: {square: {type: Task, function: square, end: true}}}
      resultSelector: {sum.$: '$[0].x', square.$: '$[1].x', all.$: 'States.Array($[0].x, $[1].x)'}
      next: each
    each:
      type: Map
      itemsPath: $.all
      itemSelector: {x.$: $$.Map.Item.Value}
      maxConcurrency: 1
      itemProcessor: {startAt: one, states: {one: {type: Task, function: negate, end: true}}}
      resultPath: $.negated
      next: rest
    rest: {type: Wait, seconds: 2, next: again}
    again:
      type: Task
      function: shaky
      parameters: {}
      resultPath: $.shaky
      retry: [{errorEquals: [Shaky], intervalSeconds: 1, maxAttempts: 2, backoffRate: 1}]
      next: risk
    risk:
      type: Task
      function: moody
      parameters: {until: 9}
      retry: [{errorEquals: [Moody], intervalSeconds: 1, maxAttempts: 2, backoffRate: 1}]
      catch: [{errorEquals: [Moody], resultPath: $.problem, next: done}]
      next: done
    done: {type: Pass, parameters: {sum.$: $.sum, square.$: $.square, negated.$: $.negated, calls.$: $.shaky.calls, why.$: $.problem.Error}, end: true}
";

/// Checks a run through all kinds of states with `describe` and `logs`.
fn every_kind_of_state(cluster: &Cluster) -> Result<()> {
    let began = Instant::now();
    let (ok, output) = run(cluster, "whole", r#"{"x": 2, "y": 3}"#, "w1")?;
    let negated = [-5, -4].map(|x| serde_json::json!({ "x": x }));
    // A wait of 2 s, and twice two retries after 1 s each.
    let took = began.elapsed();
    ensure!(took >= secs(6), "its waits and retries took {took:?}");
    let expected = serde_json::json!({"sum": 5, "square": 4, "negated": negated, "calls": 3, "why": "Moody"});
    ensure!(ok && output == expected, "{output:#}");
    ensure!(calls(cluster, "moody")?.len() == 3, "{:?}", calls(cluster, "moody")?);
    let page = cluster.cli(&["describe", "run", "whole/w1"])?.ok()?;
    println!("{page}");
    ensure!(page.contains("risk (Task") && page.matches("3 attempts").count() == 2, "{page}");
    ensure!(calls(cluster, "shaky")? == ["shaky 1", "shaky 2", "shaky 3"], "{:?}", calls(cluster, "shaky")?);
    // Of this run alone: two others called `add` before.
    let logs = cluster.cli(&["logs", "run/whole/w1"])?.ok()?;
    println!("{logs}");
    let lines = |state: &str| -> (BTreeSet<&str>, Vec<&str>) {
        let of_state = format!("[{state}] [");
        logs.lines().filter_map(|line| line.strip_prefix(&of_state)?.split_once("] called ")).unzip()
    };
    ensure!(lines("add").1 == ["add {'x': 2, 'y': 3}"], "{logs}");
    let (activations, again) = lines("again");
    ensure!(activations.len() == 3 && again == ["shaky 1", "shaky 2", "shaky 3"], "{logs}");
    ensure!(lines("risk").1.len() == 3, "{logs}");

    // The same id is the same run, and nothing is called again.
    let (ok, again) = run(cluster, "whole", "{}", "w1")?;
    ensure!(ok && again == expected && calls(cluster, "moody")?.len() == 3, "{again:#}");
    Ok(())
}

// Seen red with a plan that starts a run for a push with an unchanged hash.
#[test]
fn pushes_start_one_run_each_and_more_are_asked_for() -> Result<()> {
    Cluster::run(one_node(), |cluster| {
        let mut changes: Vec<Change> =
            [("add", ADD), ("square", SQUARE), ("negate", NEGATE), ("moody", MOODY), ("shaky", SHAKY)]
                .into_iter()
                .flat_map(|(name, main)| function(name, main))
                .collect();
        changes.push(Change::write("form-a.json", FORM_A));
        changes.push(Change::write("form-b.yaml", FORM_B));
        changes.push(Change::write("whole.yaml", WHOLE));
        let commit = cluster.push(&changes, "Three workflows")?;
        cluster.applied(&commit)?;

        let first = pushed(cluster, "form-a")?;
        let a = ended(cluster, "form-a", &first)?;
        ensure!(a["phase"] == "Succeeded" && a["output"]["x"] == 49, "{a:#}");
        let b = ended(cluster, "form-b", &pushed(cluster, "form-b")?)?;
        ensure!(b["phase"] == "Succeeded" && b["output"]["x"] == -3, "{b:#}");
        let adds = calls(cluster, "add")?;
        ensure!(adds.len() == 2, "each push ran once: {adds:?}");

        every_kind_of_state(cluster)?;

        // A push that does not change the workflow starts no run; one that does starts one.
        let changes = [Change::write("form-a.json", FORM_A.replace(r#""y": 4"#, r#""y": 5"#))];
        let commit = cluster.push(&changes, "Another sum")?;
        cluster.applied(&commit)?;
        let second = eventually("another run begins", secs(30), || {
            let id = pushed(cluster, "form-a")?;
            ensure!(id != first, "it is {id} still");
            Ok(id)
        })?;
        let other = ended(cluster, "form-a", &second)?;
        ensure!(other["output"]["x"] == -8, "{other:#}");
        let runs = cluster.cli(&["get", "runs"])?.ok()?;
        println!("{runs}");
        ensure!(runs.lines().count() == 1 + 4, "{runs}");

        // A long run is ended from Git.
        let long = WHOLE.replace("seconds: 2,", "seconds: 3000,").replace("name: whole", "name: long");
        cluster.push(&[Change::write("long.yaml", &long)], "Wait for long")?;
        cluster.cli(&["run", "long", "-d", r#"{"x": 2, "y": 3}"#, "--id", "endless"])?.ok()?;
        let ended_by_git = long.replace("  startAt: both", "  cancel: [endless]\n  startAt: both");
        eventually("it waits", secs(60), || {
            let run: Value =
                serde_json::from_str(&cluster.cli(&["get", "run", "long/endless", "-o", "json"])?.ok()?)?;
            ensure!(run["state"] == "rest", "{}", run["state"]);
            Ok(())
        })?;
        cluster.push(&[Change::write("long.yaml", ended_by_git)], "Enough")?;
        let run = ended(cluster, "long", "endless")?;
        ensure!(run["phase"] == "Aborted", "{run:#}");
        Ok(())
    })
}
