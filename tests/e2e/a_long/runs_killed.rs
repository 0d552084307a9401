//! Reconcilers are killed in the middle of a run, and etcd is lost after one: one result, and no run twice.

use std::collections::{BTreeMap, BTreeSet};

use harness::{
    Change, Cluster, ClusterOptions, Context as _, Result, ensure, eventually, outcome, rounds, secs,
};
use schema::keys::{Key, prefix};

use crate::workflows::{calls, ended, function, one_node, pushed, run};

const STEPS: usize = 20;
/// Slow enough for a kill to hit it in the middle. Prints its step and its idempotency key.
const COUNT: &str = "import os\nimport time\n\n\ndef main(params):\n    \
                     print('called', params['n'], os.environ['MINIK8S_IDEMPOTENCY_KEY'])\n    time.sleep(0.1)\n    return {'n': params['n'] + 1}\n";

fn flow(name: &str, params: &str) -> Change {
    let state = |number: usize| match number {
        STEPS => format!("    s{number}: {{type: Task, function: count, end: true}}\n"),
        _ => format!("    s{number}: {{type: Task, function: count, next: s{}}}\n", number + 1),
    };
    let states: String = (1..=STEPS).map(state).collect();
    let head = format!("apiVersion: minik8s.io/v1\nkind: Workflow\nmetadata: {{name: {name}}}\nspec:\n");
    Change::write(format!("{name}.yaml"), format!("{head}{params}  startAt: s1\n  states:\n{states}"))
}

/// Number of calls by each step; every call of a step must have the same key.
fn per_step(cluster: &Cluster) -> Result<BTreeMap<String, usize>> {
    let (mut counts, mut keys) = (BTreeMap::new(), BTreeMap::new());
    for call in calls(cluster, "count")? {
        let (step, key) = call.split_once(' ').context("no key")?;
        let first = keys.entry(step.to_owned()).or_insert_with(|| key.to_owned());
        ensure!(!key.is_empty() && first == key, "step {step} was called with {first} and {key}");
        *counts.entry(step.to_owned()).or_default() += 1;
    }
    let different: BTreeSet<_> = keys.values().collect();
    ensure!(different.len() == keys.len(), "steps share keys: {keys:?}");
    Ok(counts)
}

/// Index of the leading reconciler.
fn leader(cluster: &Cluster) -> Result<usize> {
    let leader = cluster.etcd.key(Key::Leader)?.context("none leads")?;
    Ok(usize::from(!leader.value.contains("\"r0\"")))
}

fn entries(cluster: &Cluster, run: &str) -> Result<usize> {
    Ok(cluster.etcd.list(&format!("{}default/flow/{run}/", prefix::RUN_JOURNALS))?.len())
}

// Seen red with a task that makes its calls before it has recorded them.
#[test]
fn a_run_survives_kills_of_its_reconciler_and_calls_no_step_more_than_twice() -> Result<()> {
    let options = ClusterOptions { reconcilers: 2, ..one_node() };
    Cluster::run(options, |cluster| {
        // Longer than the next reconciler takes to start, for the case of a kill after every entry.
        let count = if rounds(4, STEPS) == STEPS { COUNT.replace("0.1", "1.5") } else { COUNT.to_owned() };
        let mut changes = function("count", &count).to_vec();
        changes.push(flow("flow", ""));
        let commit = cluster.push(&changes, "Twenty steps")?;
        cluster.applied(&commit)?;
        let (ok, warm) = run(cluster, "flow", r#"{"n": 1000}"#, "warm")?;
        ensure!(ok && warm["n"] == 1020, "{warm}");

        cluster.cli(&["run", "flow", "-d", r#"{"n": 0}"#, "--id", "killed"])?.ok()?;
        // Two kills without an entry in between may hit the same call.
        let (mut kills, mut at_last_kill, mut leaders) = (0, 0, BTreeSet::new());
        for round in 1..=rounds(4, STEPS) {
            // The first entry is the start; one per step follows.
            let wanted = (round * STEPS / rounds(4, STEPS).max(1)).max(at_last_kill + 1);
            if wanted > STEPS {
                break;
            }
            eventually("the run goes on", secs(60), || {
                let there = entries(cluster, "killed")?;
                ensure!(there >= wanted, "{there} of {wanted} entries");
                Ok(())
            })?;
            let led = eventually("one leads", secs(40), || leader(cluster))?;
            cluster.reconcilers[led].kill()?;
            (kills, at_last_kill) = (kills + 1, entries(cluster, "killed")?);
            leaders.insert(led);
            // Restarted immediately, it could win every election.
            eventually("the other leads", secs(40), || {
                ensure!(leader(cluster)? != led, "it is {led} still");
                Ok(())
            })?;
            cluster.reconcilers[led].start()?;
        }
        let done = ended(cluster, "flow", "killed")?;
        ensure!(done["phase"] == "Succeeded" && done["output"]["n"] == STEPS, "{done:#}");
        ensure!(kills < 2 || leaders.len() == 2, "{leaders:?} led");
        let counts = per_step(cluster)?;
        println!("{kills} kills: {counts:?}");
        for step in 0..STEPS {
            let times = counts.get(&step.to_string()).copied().unwrap_or(0);
            ensure!((1..=2).contains(&times), "step {step} was called {times} times: {counts:?}");
        }
        Ok(())
    })
}

// Seen red without the workflow records in the state that reconcilers keep on their disks.
#[test]
fn the_same_id_is_one_run_anywhere_and_a_loss_of_etcd_runs_nothing_again() -> Result<()> {
    let options = ClusterOptions { reconcilers: 2, ..one_node() };
    Cluster::run(options, |cluster| {
        let mut changes = function("count", COUNT).to_vec();
        changes.push(flow("flow", ""));
        changes.push(flow("once", "  params: {n: 500}\n"));
        let commit = cluster.push(&changes, "Twenty steps")?;
        cluster.applied(&commit)?;
        let once = ended(cluster, "once", &pushed(cluster, "once")?)?;
        ensure!(once["output"]["n"] == 520, "{once:#}");

        let ask = |reconciler: u16| {
            let mut command =
                cluster.cli_command(&["run", "flow", "-d", r#"{"n": 0}"#, "--id", "shared", "--wait"]);
            command.env("MINIK8S_SERVER", cluster.server(reconciler));
            outcome(&mut command, secs(60))
        };
        let (first, second) = std::thread::scope(|scope| {
            let other = scope.spawn(|| ask(1));
            (ask(0), other.join())
        });
        let second = second.map_err(|_| harness::Error::msg("the other client panicked"))?;
        for said in [first?.ok()?, second?.ok()?] {
            ensure!(said.contains(r#"{"n":20}"#), "{said}");
        }
        let counts = per_step(cluster)?;
        ensure!(counts.len() == 2 * STEPS && counts.values().all(|times| *times == 1), "{counts:?}");

        let kept = || std::fs::read_to_string(cluster.dir("state-r1/reconciler/last-known.json"));
        eventually("the other reconciler's disk has the run", secs(10), || {
            ensure!(kept()?.contains("/minik8s/workflows/default/once"), "not yet");
            Ok(())
        })?;
        // The first reconciler is lost with it, so the other one leads.
        cluster.lose_etcd()?;
        cluster.settled()?;
        eventually("both workflows are known again", secs(60), || {
            ensure!(cluster.etcd.list(prefix::WORKFLOWS)?.len() == 2, "not yet");
            Ok(())
        })?;
        let after = per_step(cluster)?;
        ensure!(after == counts, "something ran again: {after:?}");
        ensure!(cluster.etcd.list(prefix::RUN_HEADS)?.is_empty(), "a run began");
        Ok(())
    })
}
