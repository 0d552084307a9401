//! Our figures next to those of the bare engine, measured in the same run on the same machine and printed as
//! one table. Nothing is asserted: the table shows the budgets for the reader to compare.
//!
//! `MINIK8S_BENCH=short` takes small samples for a short check. Words after `--` select the
//! parts to measure: `cargo bench -p minik8s-tests -- files plans`.

mod controllers;
mod drains;
mod engine;
mod figures;
mod files;
mod fleet;
mod functions;
mod gateway;
mod hooks;
mod idle;
mod jobs;
mod large_cluster;
mod metrics;
mod names;
mod page;
mod plans;
mod pods;
mod rules;
mod runs;
mod swarm;
mod trust;
mod workloads;
mod written;

use harness::Result;

use crate::figures::Table;

/// Sizes of the samples.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Pushes, one after another.
    pushes: usize,
    /// Pods in one push.
    pods: usize,
    /// Files of the large repository.
    files: usize,
    /// Changes of one of those files.
    changes: usize,
    /// Seconds of measuring an idle daemon.
    idle_seconds: u64,
    /// Pods of the idle agent.
    idle_pods: usize,
    /// Objects of the idle reconciler.
    idle_objects: usize,
    /// Services whose names are resolved.
    services: usize,
    /// Turns of load on the gateway and its competitors, 1 s each.
    gateway_rounds: usize,
    /// Replicas that a workload is scaled to.
    replicas: usize,
    /// Turns of load between nodes and on the bare link, 4 s each.
    link_rounds: usize,
    /// Transitions of a run.
    transitions: usize,
    /// Kept runs.
    kept_runs: usize,
    /// Jobs waiting in Slurm's queue.
    queued_jobs: usize,
    /// Cold starts of a function.
    colds: usize,
    /// Pods of the agent that is scraped.
    scraped_pods: usize,
    /// New TLS connections of each turn.
    handshakes: usize,
    /// Joins of a node.
    joins: usize,
}

const FULL: Scale = Scale {
    pushes: 20,
    pods: 50,
    files: 10_000,
    changes: 20,
    idle_seconds: 30,
    idle_pods: 30,
    idle_objects: 1_000,
    services: 1_000,
    gateway_rounds: 20,
    replicas: 50,
    link_rounds: 5,
    transitions: 2_000,
    kept_runs: 100_000,
    queued_jobs: 200,
    colds: 50,
    scraped_pods: 100,
    handshakes: 2_000,
    joins: 10,
};
const SHORT: Scale = Scale {
    pushes: 5,
    pods: 12,
    files: 10_000,
    changes: 5,
    idle_seconds: 10,
    idle_pods: 12,
    idle_objects: 1_000,
    services: 1_000,
    gateway_rounds: 4,
    replicas: 12,
    link_rounds: 1,
    transitions: 500,
    kept_runs: 5_000,
    queued_jobs: 40,
    colds: 5,
    scraped_pods: 12,
    handshakes: 300,
    joins: 3,
};

/// A part of the figures, and the function that measures it.
type Part = (&'static str, fn(Scale, &mut Table) -> Result<()>);

const PARTS: [Part; 18] = [
    ("plans", plans::measure),
    ("controllers", controllers::measure),
    ("pods", pods::measure),
    ("files", files::measure),
    ("hooks", hooks::measure),
    ("idle", idle::measure),
    ("dns", names::measure),
    ("gateway", gateway::measure),
    ("rules", rules::measure),
    ("fleet", fleet::measure),
    ("workloads", workloads::measure),
    ("drains", drains::measure),
    ("runs", runs::measure),
    ("jobs", jobs::measure),
    ("functions", functions::measure),
    ("page", page::measure),
    ("metrics", metrics::measure),
    ("trust", trust::measure),
];

fn main() -> Result<()> {
    if !std::env::args().any(|arg| arg == "--bench") {
        println!("run it with `cargo bench -p minik8s-tests`: figures of a debug build say nothing");
        return Ok(());
    }
    let short = std::env::var("MINIK8S_BENCH").is_ok_and(|value| value == "short");
    let scale = if short { SHORT } else { FULL };
    let mut table = Table::default();
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    for (name, measure) in PARTS {
        if wanted.is_empty() || wanted.iter().any(|part| part == name) {
            measure(scale, &mut table)?;
        }
    }
    println!("{table}");
    Ok(())
}
