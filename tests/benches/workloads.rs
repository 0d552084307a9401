//! A workload of many pods: scaled up and down, rolled, and moved off a lost node. Compared with bare Docker,
//! which creates as many pairs with its API, and with Docker Swarm, on the same daemons in the same run.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use harness::{Change, Cluster, ClusterOptions, Context, IMAGE, Result, Where, ensure, eventually, secs};

use crate::Scale;
use crate::engine::Engine;
use crate::figures::{Row, Table, ms, ratio};
use crate::pods::sync;
use crate::swarm::Swarm;

/// A command that exits immediately on SIGTERM.
const COMMAND: &str = "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done";
/// Pairs that the bare engine creates in parallel on each node.
const AT_ONCE: usize = 4;
/// Pods of the rollout.
const ROLLED: usize = 20;
/// Pods of the workload when a node is lost.
const MOVED: usize = 6;

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    for nodes in [1, 3] {
        // There is no poll: every commit is found by the sync right after its push.
        let place = Where::Namespaces(nodes);
        let options = ClusterOptions { place, poll: "1h", live_restore: false, ..ClusterOptions::default() };
        Cluster::run(options, |cluster| on_nodes(cluster, scale, table))?;
    }
    Ok(())
}

fn on_nodes(cluster: &mut Cluster, scale: Scale, table: &mut Table) -> Result<()> {
    let (count, replicas) = (cluster.nodes.len(), scale.replicas);
    let on = if count == 1 { "one node".to_owned() } else { format!("{count} nodes") };
    let words = ["sh", "-c", COMMAND].map(str::to_owned);
    let mut engines = Vec::new();
    for node in &cluster.nodes {
        let mut engine = Engine::of(cluster, node)?;
        engine.command = words.to_vec();
        engines.push(engine);
    }
    println!("workloads on {on}: ours, bare, Swarm");
    ours(cluster, &engines, 1, 0)?;
    let all = cluster.containers()?;
    let main = all.iter().find(|one| one.label("container") == "main").context("no container")?;
    let pause = cluster.pod(main.label("pod"))?.pause.image;
    ours(cluster, &engines, 0, 0)?;
    let (bare_up, bare_down) = bare(&engines, &pause, replicas)?;
    let (our_up, our_down) = (ours(cluster, &engines, replicas, 0)?, ours(cluster, &engines, 0, 0)?);
    ours(cluster, &engines, ROLLED, 0)?;
    let our_roll = ours(cluster, &engines, ROLLED, 1)?;
    ours(cluster, &engines, MOVED, 1)?;
    let lost = cluster.nodes.len() - 1;
    let our_move = (lost > 0).then(|| lose(cluster, &engines, lost)).transpose()?;
    ours(cluster, &engines, 0, 1)?;
    let mut theirs = Theirs::default();
    if let Err(error) = theirs.measure(cluster, &engines, replicas) {
        println!("workloads on {on}: Swarm did not get to its end: {error:#}");
    }
    let mut beside =
        |what: String, us: Duration, bare: Option<Duration>, them: Option<Duration>, budget: &str| {
            if let Some(bare) = bare {
                let (bare_text, budget) = (ms(bare), if count == 1 { "≤ 1.15 × bare" } else { "" });
                table.add(Row { what: &what, ours: ms(us), bare: bare_text, ratio: ratio(us, bare), budget });
            }
            let what = format!("{what}, beside Swarm");
            let (them, ratio) =
                them.map_or(("none".into(), String::new()), |them| (ms(them), ratio(us, them)));
            table.add(Row { what: &what, ours: ms(us), bare: them, ratio, budget });
        };
    beside(format!("0 to {replicas} pods on {on}"), our_up, Some(bare_up), theirs.up, "ahead");
    beside(format!("{replicas} to 0 pods on {on}"), our_down, Some(bare_down), theirs.down, "ahead");
    beside(format!("rolling update of {ROLLED} pods on {on}"), our_roll, None, theirs.roll, "ahead");
    if let Some(us) = our_move {
        let what = format!("a node of {count} is cut off until its pods of {MOVED} run elsewhere");
        beside(what, us, None, theirs.moved, "");
    }
    Ok(())
}

/// Times of Swarm, as far as it got: it may hang on tasks for ever, which must not cost the other figures.
#[derive(Default)]
struct Theirs {
    up: Option<Duration>,
    down: Option<Duration>,
    roll: Option<Duration>,
    /// Time from the loss of one of several nodes until its tasks run elsewhere.
    moved: Option<Duration>,
}

impl Theirs {
    fn measure(&mut self, cluster: &Cluster, engines: &[Engine], replicas: usize) -> Result<()> {
        let swarm = Swarm::of(cluster, engines)?;
        swarm.create(COMMAND)?;
        self.up = Some(swarm.scale(replicas, 0)?);
        self.down = Some(swarm.scale(0, 0)?);
        swarm.scale(ROLLED, 0)?;
        self.roll = Some(swarm.roll(ROLLED, ROLLED / 4)?);
        swarm.scale(MOVED, 1)?;
        let lost = engines.len() - 1;
        if lost > 0 {
            cluster.nodes[lost].cut_off()?;
            let moved = swarm.moved(lost, MOVED);
            cluster.nodes[lost].reconnect()?;
            self.moved = Some(moved?);
        }
        Ok(())
    }
}

fn file(replicas: usize, version: usize) -> Change {
    let text = format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: many}}\nspec:\n  replicas: {replicas}\n  \
         selector: {{matchLabels: {{app: many}}}}\n  template:\n    metadata: {{labels: {{app: many}}}}\n    spec:\n      \
         containers:\n      - {{name: main, image: {IMAGE}, command: [sh, -c, {COMMAND:?}], env: [{{name: VERSION, value: \"{version}\"}}]}}\n"
    );
    Change::write("many.yaml", text)
}

fn ours_labels(cluster: &Cluster) -> Vec<String> {
    vec![format!("minik8s.io/instance={}", cluster.slot().instance()), "minik8s.io/container=main".to_owned()]
}

/// Pushes a replica count and a version; returns the time from the sync until exactly these pods run.
fn ours(cluster: &Cluster, engines: &[Engine], replicas: usize, version: usize) -> Result<Duration> {
    cluster.repo.push(&[file(replicas, version)], "Change")?;
    let start = Instant::now();
    sync(cluster)?;
    wait(engines, &ours_labels(cluster), replicas, version)?;
    println!("{replicas} pods of version {version}: {}", ms(start.elapsed()));
    Ok(start.elapsed())
}

/// Waits until exactly `replicas` containers with these labels run on the nodes, all of this version.
pub(crate) fn wait(engines: &[Engine], labels: &[String], replicas: usize, version: usize) -> Result<()> {
    let wanted = format!("VERSION={version}");
    let mut is_new: HashMap<String, bool> = HashMap::new();
    eventually(&format!("{replicas} of version {version} run"), secs(300), || {
        let mut running = 0;
        for engine in engines {
            for id in engine.running(labels)? {
                running += 1;
                if !is_new.contains_key(&id) {
                    is_new.insert(id.clone(), engine.has_env(&id, &wanted)?);
                }
                ensure!(is_new[&id], "an old one runs");
            }
        }
        ensure!(running == replicas, "{running} run");
        Ok(())
    })
}

/// Creates and stops pairs with Docker's API, an equal share on each node.
fn bare(engines: &[Engine], pause: &str, replicas: usize) -> Result<(Duration, Duration)> {
    let share = |index: usize| replicas / engines.len() + usize::from(index < replicas % engines.len());
    let all = |act: &(dyn Fn(&Engine, usize) -> Result<Duration> + Sync)| -> Result<Duration> {
        let start = Instant::now();
        std::thread::scope(|scope| {
            let acts: Vec<_> = engines
                .iter()
                .enumerate()
                .map(|(index, engine)| scope.spawn(move || act(engine, share(index))))
                .collect();
            acts.into_iter().try_for_each(|act| act.join().expect("no panic").map(drop))
        })?;
        Ok(start.elapsed())
    };
    let up = all(&|engine, share| engine.bare_pairs(pause, "bare", share, AT_ONCE))?;
    let down = all(&|engine, share| engine.end_pairs("bare", share, AT_ONCE))?;
    Ok((up, down))
}

/// Cuts a node off; returns the time until all pods run on the others.
fn lose(cluster: &Cluster, engines: &[Engine], lost: usize) -> Result<Duration> {
    cluster.nodes[lost].cut_off()?;
    let start = Instant::now();
    wait(&engines[..lost], &ours_labels(cluster), MOVED, 1)?;
    let moved = start.elapsed();
    cluster.nodes[lost].reconnect()?;
    Ok(moved)
}
