//! Cost of metrics: scrapes of a leader in memory and of both daemons with 100 pods, and pushes and requests through the
//! gateway with and without a scraper.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use harness::{Cluster, ClusterOptions, Error, Result, ensure, eventually, http_get, secs, tls_get};
use schema::trust::TrustDir;

use crate::Scale;
use crate::engine::Engine;
use crate::figures::{Row, Series, Table, ms, ratio};
use crate::gateway::{Measured, host_header, load, on_a_host};
use crate::idle::resident_mib;
use crate::large_cluster::{NODES, snapshot_of};
use crate::page::Server;
use crate::pods::{clear, push};

/// Nodes of a cluster of 1,200 pods.
const SMALL: usize = 40;
const SCRAPES: usize = 100;
/// Interval of the scraper: a fifteenth of the usual one.
const SCRAPE_EVERY: Duration = Duration::from_secs(1);

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    leader(SMALL, "≤ 50 ms", table)?;
    leader(NODES, "", table)?;
    daemons(scale, table)?;
    gateway(scale, table)
}

/// Measures the reconciler's own router over a snapshot in memory, in this process.
fn leader(nodes: usize, budget: &str, table: &mut Table) -> Result<()> {
    let snapshot = snapshot_of(nodes)?;
    let what = format!("scrape of a leader with {} pods on {nodes} nodes", snapshot.pods.len());
    let server = Server::start(snapshot)?;
    let target = Target { address: server.address.to_string(), pki: None };
    let text = scrapes(&what, &target, budget, table)?;
    ensure!(text.contains("\nminik8s_pods{"), "there is nothing about the cluster: it does not lead");
    Ok(())
}

/// A daemon, or a router in this process, which has no TLS.
struct Target {
    address: String,
    pki: Option<TrustDir>,
}

impl Target {
    /// Reconciler and agent of a cluster.
    fn of(cluster: &Cluster) -> Result<[Self; 2]> {
        let pki = Some(cluster.trust.reconciler("r0")?);
        let agent = cluster.node().listen().to_owned();
        Ok([cluster.listen(0), agent].map(|address| Self { address, pki: pki.clone() }))
    }

    fn scrape(&self) -> Result<String> {
        let (code, text) = match &self.pki {
            Some(pki) => tls_get(&self.address, "/metrics", pki)?,
            None => http_get(&self.address, "/metrics")?,
        };
        ensure!(code == 200, "{} says {code}: {text}", self.address);
        Ok(text)
    }
}

/// Scrapes again and again; returns the last answer.
fn scrapes(what: &str, target: &Target, budget: &str, table: &mut Table) -> Result<String> {
    let (mut times, mut text) = (Series::default(), String::new());
    for _ in 0..SCRAPES {
        let begun = Instant::now();
        text = target.scrape()?;
        times.add(begun.elapsed());
    }
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    let (half, most) = (ms(times.percentile(50)), ms(times.percentile(99)));
    let ours = format!("{half}, {most}, {:.1} KB, {series} series", text.len() as f64 / 1000.0);
    table.add(Row { what: &format!("{what}: p50, p99, size"), ours, budget, ..Row::default() });
    Ok(text)
}

fn daemons(scale: Scale, table: &mut Table) -> Result<()> {
    // There is no poll: every commit is found by the sync right after its push.
    let options = ClusterOptions { poll: "1h", ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let engine = Engine::beside(cluster)?;
        push(cluster, &engine, &["warm-up".to_owned()])?;
        pushes(cluster, &engine, scale, table)?;
        clear(cluster)?;
        let pods: Vec<_> = (1..scale.scraped_pods).map(|index| format!("scraped-{index}")).collect();
        push(cluster, &engine, &pods)?;
        let [reconciler, agent] = Target::of(cluster)?;
        eventually("every pod has its figures", secs(60), || {
            let text = agent.scrape()?;
            let of_pod = |line: &&str| line.starts_with("minik8s_pod_memory_working_set_bytes{");
            let count = text.lines().filter(of_pod).count();
            ensure!(count == scale.scraped_pods, "{count} have");
            Ok(())
        })?;
        for (who, target, pid, budget) in [
            ("agent", &agent, cluster.node().agent.pid()?, "≤ 2,000 series"),
            ("reconciler", &reconciler, cluster.reconcilers[0].pid()?, ""),
        ] {
            let before = resident_mib(pid)?;
            scrapes(&format!("scrape of the {who} with {} pods", scale.scraped_pods), target, budget, table)?;
            let what = format!("memory of the {who} before and after {SCRAPES} scrapes");
            let ours = format!("{before:.1}, {:.1} MiB", resident_mib(pid)?);
            table.add(Row { what: &what, ours, ..Row::default() });
        }
        Ok(())
    })
}

fn pushes(cluster: &Cluster, engine: &Engine, scale: Scale, table: &mut Table) -> Result<()> {
    let scraper = Scraper::start(cluster)?;
    let mut series = [Series::default(), Series::default()];
    for turn in 0..2 * scale.pushes {
        let of = scraper.switch(turn);
        series[of].add(push(cluster, engine, &[format!("turn-{turn}")])?);
    }
    println!("{} scrapes during the pushes", scraper.end()?);
    compare("push with sync → container running", &series, ms, table);
    Ok(())
}

fn gateway(scale: Scale, table: &mut Table) -> Result<()> {
    on_a_host(|cluster, [_, ours, _], _| {
        let scraper = Scraper::start(cluster)?;
        let mut measured = [Measured::default(), Measured::default()];
        for turn in 0..2 * scale.gateway_rounds {
            let of = scraper.switch(turn);
            load(1, ours, &["-H", &host_header()], &mut measured[of])?;
        }
        println!("{} scrapes during the load", scraper.end()?);
        let us = |time: Duration| format!("{} µs", time.as_micros());
        compare("gateway, 1 kept connection", &measured.map(|measured| measured.half), us, table);
        Ok(())
    })
}

/// Adds a row that compares what was measured without and with a scraper.
fn compare(what: &str, [without, with]: &[Series; 2], text: fn(Duration) -> String, table: &mut Table) {
    let (without, with) = (without.percentile(50), with.percentile(50));
    table.add(Row {
        what: &format!("{what}, scraped each second, p50"),
        ours: text(with),
        bare: format!("not scraped {}", text(without)),
        ratio: ratio(with, without),
        budget: "≤ 1.01 ×",
    });
}

/// Scrapes both daemons of a node at [`SCRAPE_EVERY`] while it is on.
struct Scraper {
    is_on: Arc<AtomicBool>,
    end: Sender<()>,
    thread: JoinHandle<Result<usize>>,
}

impl Scraper {
    fn start(cluster: &Cluster) -> Result<Self> {
        let targets = Target::of(cluster)?;
        let (is_on, (end, ended)) = (Arc::new(AtomicBool::new(false)), channel());
        let switch = Arc::clone(&is_on);
        let scrape_all = move || -> Result<usize> {
            let mut count = 0;
            while ended.recv_timeout(SCRAPE_EVERY) == Err(RecvTimeoutError::Timeout) {
                for target in targets.iter().filter(|_| switch.load(Ordering::Relaxed)) {
                    target.scrape()?;
                    count += 1;
                }
            }
            Ok(count)
        };
        Ok(Self { is_on, end, thread: spawn(scrape_all) })
    }

    /// Switches it off or on for a turn; returns 0 or 1. In the order off, on, on, off, so that neither kind of turn
    /// comes first more often.
    fn switch(&self, turn: usize) -> usize {
        let is_on = matches!(turn % 4, 1 | 2);
        self.is_on.store(is_on, Ordering::Relaxed);
        usize::from(is_on)
    }

    /// Ends it; returns the number of scrapes.
    fn end(self) -> Result<usize> {
        drop(self.end);
        self.thread.join().map_err(|_| Error::msg("the scraper panicked"))?
    }
}
