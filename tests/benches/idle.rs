//! Memory and CPU of both daemons, and requests to etcd, while nothing happens.

use std::time::Duration;

use harness::manifests::{sleeper, web};
use harness::{
    Change, Cluster, ClusterOptions, Context, Result, Where, ensure, eventually, holds, secs, tls_get,
};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;

use crate::Scale;
use crate::figures::{Row, Table};

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    agent(scale, table)?;
    reconciler(scale, table)?;
    [1, 3].into_iter().try_for_each(|nodes| etcd(nodes, scale, table))
}

fn pods(count: usize) -> Vec<Change> {
    (0..count).map(|i| Change::write(format!("pods/idle-{i}.yaml"), sleeper(&format!("idle-{i}")))).collect()
}

/// Servers with two probes each, at the default frequency of Kubernetes.
fn probed(count: usize) -> Vec<Change> {
    let probe = "{httpGet: {path: /, port: 8080}, periodSeconds: 10}";
    let probes = format!("    readinessProbe: {probe}\n    livenessProbe: {probe}\n");
    let pod = |i: usize| web(&format!("idle-{i}")).container_fields(&probes).to_string();
    (0..count).map(|i| Change::write(format!("pods/idle-{i}.yaml"), pod(i))).collect()
}

fn agent(scale: Scale, table: &mut Table) -> Result<()> {
    // The default poll interval, as users have it when idle.
    Cluster::run(ClusterOptions { poll: "5s", ..ClusterOptions::default() }, |cluster| {
        cluster.push(&probed(scale.idle_pods), "Idle pods")?;
        eventually("all pods run", secs(180), || {
            let running = cluster.containers()?.iter().filter(|container| container.running).count();
            ensure!(running == 2 * scale.idle_pods, "{running} containers run");
            Ok(())
        })?;
        let with = format!("with {} pods of two probes each", scale.idle_pods);
        let (agent, reconciler) = (cluster.node().agent.pid()?, cluster.reconcilers[0].pid()?);
        Idler { who: format!("agent {with}"), pid: agent, budget: "≤ 40 MiB" }.show(scale, table)?;
        Idler { who: format!("reconciler {with}"), pid: reconciler, budget: "≤ 60 MiB" }.show(scale, table)
    })
}

fn reconciler(scale: Scale, table: &mut Table) -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions { poll: "5s", ..ClusterOptions::default() })?;
    cluster.start_etcd()?;
    cluster.reconcilers[0].start()?;
    cluster.push(&pods(scale.idle_objects), "Idle objects")?;
    let who = format!("reconciler with {} objects", scale.idle_objects);
    Idler { who, pid: cluster.reconcilers[0].pid()?, budget: "≤ 60 MiB" }.show(scale, table)
}

/// Requests that etcd gets from a reconciler and the agents of so many nodes.
fn etcd(nodes: u8, scale: Scale, table: &mut Table) -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(nodes), poll: "5s", ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        cluster.push(&[Change::write("idle.yaml", web("idle").to_string())], "An idle pod")?;
        cluster.running("idle", &["web"])?;
        holds("it settles", secs(20), || Ok(()))?;
        let (before, during) = (requests(cluster)?, secs(2 * scale.idle_seconds));
        holds("nothing happens", during, || Ok(()))?;
        let rate = (requests(cluster)? - before) / during.as_secs_f64();
        let what = format!("requests to etcd at rest, {nodes} node{}", if nodes == 1 { "" } else { "s" });
        table.add(Row { what: &what, ours: format!("{rate:.1}/s"), ..Row::default() });
        Ok(())
    })
}

/// Messages that etcd has received from its clients.
fn requests(cluster: &Cluster) -> Result<f64> {
    let address = cluster.etcd.endpoint().trim_start_matches("https://");
    let (_, text) = tls_get(address, "/metrics", &cluster.trust.reconciler("r0")?)?;
    let counters = text.lines().filter(|line| line.starts_with("grpc_server_msg_received_total{"));
    let counts = counters.filter_map(|line| line.rsplit_once(' ')).map(|(_, count)| count.parse::<f64>());
    Ok(counts.collect::<Result<Vec<_>, _>>()?.iter().sum())
}

/// A daemon with nothing to do.
pub(crate) struct Idler {
    pub(crate) who: String,
    pub(crate) pid: u32,
    pub(crate) budget: &'static str,
}

impl Idler {
    pub(crate) fn show(&self, scale: Scale, table: &mut Table) -> Result<()> {
        // The work of the push must be over before the idle daemons are measured.
        holds("it settles", secs(3), || Ok(()))?;
        let (before, during) = (cpu_time(self.pid)?, secs(scale.idle_seconds));
        holds("nothing happens", during, || Ok(()))?;
        let share = (cpu_time(self.pid)? - before).as_secs_f64() / during.as_secs_f64() * 100.0;
        let (what, ours) =
            (&format!("memory of the {}", self.who), format!("{:.0} MiB", resident_mib(self.pid)?));
        table.add(Row { what, ours, budget: self.budget, ..Row::default() });
        let (what, ours) = (&format!("idle CPU of the {}", self.who), format!("{share:.2} %"));
        table.add(Row { what, ours, budget: "≤ 1 % of a core", ..Row::default() });
        Ok(())
    }
}

/// Resident memory of a process.
pub(crate) fn resident_mib(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

/// CPU time of a process in nanoseconds, including ended threads.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(pid)?))?;
    Ok(clock.now()?.into())
}
