//! etcd at its quota: reported within seconds although nothing can be written, and emptied without a restart; also by
//! a leader that is killed while it compacts or defragments.

use std::time::{Duration, Instant};

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Result, bail, ensure, eventually, secs};
use nix::sys::signal::Signal;
use schema::keys::Key;
use schema::records::{EtcdUpkeep, SourceStatus};
use schema::store::etcd::EtcdStore;
use schema::store::{Op, Store as _};
use serde_json::Value;

use crate::state_disk::SmallDisk;

/// Quota of etcd in these stories.
const QUOTA_BYTES: u64 = 16 << 20;
/// Longest time until a full etcd is reported.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);
/// Prefix of keys that are not the product's.
const FILL: &str = "/fill/";
/// Values in a transaction, and the bytes of each.
const VALUES: usize = 100;
const VALUE_BYTES: usize = 10_000;

/// Part of etcd that the filling takes.
#[derive(Clone, Copy, PartialEq)]
enum Filling {
    /// Values of keys: a compaction makes no room.
    Values,
    /// The history of the same keys.
    History,
}

fn small_etcd() -> Result<Cluster> {
    let mut cluster = Cluster::prepare(ClusterOptions::default())?;
    cluster.etcd.daemon.set_env("ETCD_QUOTA_BACKEND_BYTES", &QUOTA_BYTES.to_string());
    let mut command = cluster.serve_command(0);
    command.push("--etcd-upkeep".to_owned());
    cluster.reconcilers[0].set_command(command);
    Ok(cluster)
}

/// Writes until etcd refuses.
fn fill(cluster: &Cluster, filling: Filling) -> Result<()> {
    let value = "x".repeat(VALUE_BYTES);
    for round in 0..100 {
        let first = if filling == Filling::Values { round * VALUES } else { 0 };
        let put = |number: usize| Op::put(format!("{FILL}{number:06}"), value.clone());
        let puts: Vec<Op> = (first..first + VALUES).map(put).collect();
        let written = async |store: &EtcdStore| store.txn(Vec::new(), puts.clone()).await;
        if let Err(refused) = cluster.etcd.ask(&written) {
            ensure!(format!("{refused:#}").contains("database space exceeded"), "{refused:#}");
            return Ok(());
        }
    }
    bail!("etcd took {} bytes with a quota of {QUOTA_BYTES}", 100 * VALUES * VALUE_BYTES)
}

/// Alarms of etcd, as etcdctl prints them.
fn alarms(cluster: &Cluster) -> Result<String> {
    Ok(cluster.etcd.etcdctl(&["alarm", "list"])?.trim().to_owned())
}

/// Size of etcd's file.
fn size_bytes(cluster: &Cluster) -> Result<u64> {
    let said: Value = serde_json::from_str(&cluster.etcd.etcdctl(&["endpoint", "status", "-w", "json"])?)?;
    said[0]["Status"]["dbSize"].as_u64().ok_or_else(|| harness::Error::msg(format!("no size in {said}")))
}

/// Compactions that etcd has begun, by its log: a request to ask for one takes longer than the compaction.
fn compactions(cluster: &Cluster) -> Result<usize> {
    let log = std::fs::read_to_string(cluster.etcd.daemon.log_path())?;
    // Words of 3.4 and of later versions.
    Ok(log.matches("store.index: compact ").count() + log.matches("compact tree index").count())
}

/// True while etcd copies its file.
fn is_defragmenting(cluster: &Cluster) -> Result<bool> {
    let files = std::fs::read_dir(cluster.etcd.data_dir().join("member/snap"))?;
    Ok(files.flatten().any(|file| file.file_name().to_string_lossy().contains(".tmp")))
}

#[test]
fn a_full_etcd_is_reported_and_goes_on_without_a_restart_once_it_has_room() -> Result<()> {
    small_etcd()?.run_story(|cluster| {
        let node = cluster.node().name.clone();
        let disks = [
            SmallDisk::mount(cluster.dir("state-r0"))?,
            SmallDisk::mount(cluster.node().state_dir().to_owned())?,
        ];
        cluster.start_all()?;
        disks.iter().try_for_each(SmallDisk::fill_nearly)?;
        cluster.push(&[Change::write("shop.yaml", web("shop").to_string())], "Open")?;
        let shop = cluster.serving("shop", "hello from shop")?;
        eventually("status shows the quota", secs(10), || {
            let page = cluster.cli(&["status"])?.ok()?;
            ensure!(page.contains("of its quota of 16 MiB"), "{page}");
            Ok(())
        })?;
        let pids = (cluster.etcd.daemon.pid()?, cluster.reconcilers[0].pid()?, cluster.node().agent.pid()?);

        fill(cluster, Filling::Values)?;
        let full_since = Instant::now();
        ensure!(alarms(cluster)?.contains("NOSPACE"));
        let commit = cluster.repo.push(&[Change::write("blog.yaml", web("blog").to_string())], "More")?;
        eventually("status says that etcd is full", REPORTED_WITHIN, || {
            let page = cluster.cli(&["status"])?.ok()?;
            ensure!(page.contains("etcd refuses writes, so nothing new is applied"), "{page}");
            Ok(())
        })?;
        println!("status said so after {:?}", full_since.elapsed());
        for goal in [&["--commit", commit.as_str()][..], &[]] {
            let words = ["wait", "--for", "synced", "--timeout", "1s"];
            let waited = cluster.cli(&[&words[..], goal].concat())?;
            ensure!(waited.code == 1 && waited.stderr.contains("etcd refuses writes"), "{waited:?}");
        }
        let source: SourceStatus = cluster.etcd.value(Key::Source("main".to_owned()))?;
        ensure!(source.applied_commit.as_deref() != Some(commit.as_str()), "it was applied: {source:?}");
        ensure!(cluster.pod("shop")?.lives() == shop.lives());

        // Room, but still the alarm.
        cluster.etcd.etcdctl(&["del", FILL, "--prefix"])?;
        let said = cluster.cli(&["etcd", "defrag", "--timeout", "40s"])?.ok()?;
        ensure!(said.contains("member test:"), "{said}");
        ensure!(alarms(cluster)?.is_empty(), "{}", alarms(cluster)?);
        ensure!(size_bytes(cluster)? < QUOTA_BYTES / 4, "{} bytes", size_bytes(cluster)?);
        cluster.applied(&commit)?;
        cluster.serving("blog", "hello from blog")?;
        eventually("status says that all is well again", secs(10), || {
            let page = cluster.cli(&["status"])?.ok()?;
            ensure!(!page.contains("refuses writes"), "{page}");
            let events = cluster.cli(&["events", "-A"])?.ok()?;
            ensure!(events.contains("EtcdFull") && events.contains("EtcdDefragmented"), "{events}");
            Ok(())
        })?;
        let now = (cluster.etcd.daemon.pid()?, cluster.reconcilers[0].pid()?, cluster.node().agent.pid()?);
        ensure!(pids == now, "{pids:?} became {now:?}");
        ensure!(cluster.pod("shop")?.lives() == shop.lives());

        eventually("the disks that are nearly full are named", secs(30), || {
            let (page, events) = (cluster.cli(&["status"])?.ok()?, cluster.cli(&["events", "-A"])?.ok()?);
            for owner in ["reconciler r0".to_owned(), format!("node {node}")] {
                ensure!(page.contains(&format!("{owner}: the disk of its state directory has ")), "{page}");
            }
            ensure!(events.matches("DiskNearlyFull").count() == 2, "{events}");
            Ok(())
        })?;

        // While etcd accepts writes, the request is a key.
        cluster.cli(&["etcd", "defrag"])?.ok()?;
        let asked = cluster.etcd.key(Key::DefragRequest)?.map_or(0, |key| key.mod_revision);
        let upkeep: EtcdUpkeep = cluster.etcd.value(Key::EtcdUpkeep)?;
        ensure!(asked > 0 && upkeep.answered == asked && upkeep.is_on, "{asked}: {upkeep:?}");
        Ok(())
    })
}

/// Point at which the leader is killed.
#[derive(Debug, Clone, Copy)]
enum KilledAt {
    /// Kills the leader as soon as it compacts.
    Compaction,
    /// Kills the leader while it defragments.
    Defragmentation,
}

/// A leader that is killed leaves an etcd in which nobody can become leader: a lease is a write.
#[test]
fn a_leader_killed_while_it_empties_etcd_is_followed_by_one_that_goes_on() -> Result<()> {
    small_etcd()?.run_story(|cluster| {
        cluster.start_all()?;
        for (round, killed_at) in [KilledAt::Compaction, KilledAt::Defragmentation].into_iter().enumerate() {
            // It must not empty etcd before it is filled.
            cluster.reconcilers[0].signal(Signal::SIGSTOP)?;
            fill(cluster, Filling::History)?;
            ensure!(alarms(cluster)?.contains("NOSPACE"));
            let before = compactions(cluster)?;
            cluster.reconcilers[0].signal(Signal::SIGCONT)?;
            let deadline = Instant::now() + secs(20);
            // Without a pause: either lasts a fraction of a second.
            while match killed_at {
                KilledAt::Compaction => compactions(cluster)? == before,
                KilledAt::Defragmentation => !is_defragmenting(cluster)?,
            } {
                ensure!(Instant::now() < deadline, "{killed_at:?}: it did not begin");
            }
            cluster.reconcilers[0].kill()?;
            let left = alarms(cluster)?;
            println!("killed at {killed_at:?}: alarm left: {left:?}, {} bytes", size_bytes(cluster)?);
            ensure!(left.contains("NOSPACE"), "{killed_at:?}: it was done already");

            cluster.reconcilers[0].start()?;
            eventually("etcd is emptied", secs(30), || {
                let (alarms, size) = (alarms(cluster)?, size_bytes(cluster)?);
                ensure!(alarms.is_empty() && size < QUOTA_BYTES / 4, "{alarms:?}, {size} bytes");
                Ok(())
            })?;
            let name = format!("pod-{round}");
            cluster.push(&[Change::write(format!("{name}.yaml"), web(&name).to_string())], "More")?;
            cluster.serving(&name, &format!("hello from {name}"))?;
        }
        Ok(())
    })
}
