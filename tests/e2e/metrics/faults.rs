//! Alerts by a real fault, each of which clears after the repair. Without etcd, Prometheus keeps its targets.

use std::fs;
use std::time::Instant;

use harness::{Cluster, ClusterOptions, Prometheus, Result, Where, ensure, eventually, rounds, secs};

use super::{is_installed, scrapes_all, shipped, start};
use crate::state_disk::SmallDisk;
use crate::workloads::Workload;

/// The shipped rules, which wait for two seconds before they fire.
fn hasty_rules() -> Result<String> {
    let rules = fs::read_to_string(shipped().join("prometheus/alerts.yml"))?;
    let hasty = |line: &str| match line.split_once("for: ") {
        Some((indent, _)) if indent.trim().is_empty() => format!("{indent}for: 2s\n"),
        _ => format!("{line}\n"),
    };
    Ok(rules.lines().map(hasty).collect())
}

/// The alert about a fault.
struct Alert<'p> {
    prometheus: &'p Prometheus,
    name: &'static str,
}

impl Alert<'_> {
    fn is_firing(&self, wanted: bool) -> Result<()> {
        let firing = self.prometheus.firing()?;
        ensure!(firing.contains(self.name) == wanted, "firing: {firing:?}");
        Ok(())
    }

    /// Waits until it fires; `false`: until it no longer does.
    fn waits(&self, wanted: bool) -> Result<()> {
        let begun = Instant::now();
        let what = if wanted { "fires" } else { "has cleared" };
        eventually(&format!("{} {what}", self.name), secs(120), || self.is_firing(wanted))?;
        println!("{} {what} after {:.1?}", self.name, begun.elapsed());
        Ok(())
    }

    /// Makes a fault and repairs it, each of them on the cluster.
    fn follows(
        &self,
        cluster: &mut Cluster,
        fault: impl FnOnce(&mut Cluster) -> Result<()>,
        repair: impl FnOnce(&mut Cluster) -> Result<()>,
    ) -> Result<()> {
        self.is_firing(false)?;
        fault(cluster)?;
        self.waits(true)?;
        repair(cluster)?;
        self.waits(false)
    }
}

/// Waits until Prometheus gets no list of targets, because nobody leads; it must keep scraping all that it had.
fn keeps_targets(prometheus: &Prometheus) -> Result<()> {
    let failures = || prometheus.own("prometheus_sd_http_failures_total");
    let before = failures()?;
    eventually("two requests for targets have failed", secs(60), || {
        let failed = failures()? - before;
        ensure!(failed >= 2.0, "{failed}");
        Ok(())
    })?;
    scrapes_all(prometheus)
}

#[test]
fn four_alerts_fire_by_a_real_fault_and_clear_by_its_repair() -> Result<()> {
    if rounds(0, 1) == 0 {
        println!("no fault is made: `just soak metrics` does");
        return Ok(());
    }
    if !is_installed() {
        return Ok(());
    }
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    let mut cluster = Cluster::prepare(options)?;
    cluster.run_story(|cluster| {
        let disk = SmallDisk::mount_on(cluster.numbered(2)?)?;
        cluster.start_all()?;
        let prometheus = start(cluster, &hasty_rules()?)?;
        scrapes_all(&prometheus)?;
        let alert = |name| Alert { prometheus: &prometheus, name };

        let more = "  progressDeadlineSeconds: 12\n".to_owned();
        let mut shop = Workload { more, ..Workload::new("shop", 3) };
        cluster.push(&[shop.service(), shop.file()], "Open")?;
        shop.serves(cluster)?;
        let broken = Workload { image: "127.0.0.1:9/absent:1", version: 90, ..shop.clone() }.file();
        alert("Minik8sRolloutFailed").follows(
            cluster,
            |cluster| cluster.push(&[broken], "Break").map(drop),
            |cluster| cluster.push(&[shop.roll()], "Mend").map(drop),
        )?;
        shop.serves(cluster)?;

        alert("Minik8sNodeDiskFilling").follows(cluster, |_| disk.fill_nearly(), |_| disk.empty())?;

        alert("Minik8sNodeNotReady").follows(
            cluster,
            |cluster| cluster.numbered(3)?.cut_off(),
            |cluster| cluster.numbered(3)?.reconnect(),
        )?;

        alert("Minik8sEtcdDown").follows(
            cluster,
            |cluster| cluster.etcd.daemon.kill(),
            |cluster| {
                keeps_targets(&prometheus)?;
                cluster.etcd.start()
            },
        )
    })
}
