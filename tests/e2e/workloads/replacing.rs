//! Rollouts other than the default: Recreate, paused, minReadySeconds; and the rollback when no pod of the
//! last good template is left.

use std::collections::BTreeSet;

use harness::{
    Cluster, ClusterOptions, Context, Happened, Moment, Result, Timeline, ensure, eventually, holds,
    most_at_once, rounds, secs,
};
use schema::keys::{Key, prefix};
use schema::meta::NamespacedName;

use super::{Runs, SERVES, SLEEPS, Workload, started_once};

/// Template part of a pod's name: the eight digits after the name of the workload.
fn template(pod: &str) -> &str {
    pod.rsplit('-').nth(1).unwrap_or_default()
}

/// Checks that containers of different templates never run at the same time.
fn never_side_by_side(moments: &[&Moment]) -> Result<()> {
    let mut running: BTreeSet<(&str, &str)> = BTreeSet::new();
    for moment in moments {
        let container = (template(&moment.pod), moment.id.as_str());
        match moment.happened {
            Happened::Began => drop(running.insert(container)),
            Happened::Ended => drop(running.remove(&container)),
            Happened::Signalled => {}
        }
        let templates: BTreeSet<&str> = running.iter().map(|(template, _)| *template).collect();
        ensure!(templates.len() <= 1, "two templates ran at {moment:?}: {running:?}");
    }
    Ok(())
}

/// Like [`SERVES`], but it stops only after its grace period: a premature start would run next to it.
const ENDS_SLOWLY: &str =
    "trap 'sleep 60' TERM; echo open > /tmp/index.html; httpd -f -p 8080 -h /tmp & wait";

// Seen red with a `moves` that does not wait for stopped pods that still run.
#[test]
fn recreate_never_runs_two_versions_at_once() -> Result<()> {
    let rounds = rounds(2, 10);
    Cluster::run(ClusterOptions::default(), |cluster| {
        let timeline = Timeline::begin(cluster)?;
        let mut shop = Workload::new("shop", 3);
        (shop.command, shop.grace_seconds) = (ENDS_SLOWLY, 4);
        shop.more = "  strategy: {type: Recreate}\n".to_owned();
        cluster.push(&[shop.service(), shop.file()], "Open")?;
        shop.serves(cluster)?;
        cluster.settled()?;
        for _ in 0..rounds {
            cluster.push(&[shop.roll()], "Roll")?;
            shop.serves(cluster)?;
        }
        let moments = timeline.moments()?;
        let moments = shop.moments(&moments);
        never_side_by_side(&moments)?;
        ensure!(started_once(&moments)? == 3 * (rounds + 1), "{moments:?}");
        ensure!(most_at_once(moments.iter().copied()) == 3, "{moments:?}");
        Ok(())
    })
}

/// Checks that the reconciler knows the rollout of the present file.
fn is_known(cluster: &Cluster, shop: &Workload, former: &str) -> Result<()> {
    eventually("the changed template is known", secs(20), || {
        let rollout = shop.rollout(cluster)?;
        ensure!(rollout.wanted != former, "{rollout:?}");
        Ok(())
    })
}

// Seen red with a `Planned::target` that ignores `paused`.
#[test]
fn a_pause_holds_a_changed_template_while_the_number_follows() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let mut shop = Workload::new("shop", 2);
        cluster.push(&[shop.service(), shop.file()], "Open")?;
        let before = shop.serves(cluster)?;
        let former = shop.rollout(cluster)?.wanted;
        shop.more = "  paused: true\n".to_owned();
        cluster.push(&[shop.roll()], "Change the template of what is paused")?;
        is_known(cluster, &shop, &former)?;
        holds("nothing is rolled out", secs(4), || {
            let running = shop.running(cluster)?;
            ensure!(running == before, "{running:?}");
            Ok(())
        })?;
        // As in Kubernetes, the replica count is followed, with the former template.
        let change = shop.scale(3);
        cluster.push(&[change], "Scale what is paused")?;
        let held = Workload { version: 0, ..shop.clone() };
        let scaled = held.serves(cluster)?;
        ensure!(before.iter().all(|runs| scaled.contains(runs)), "{before:?}, then {scaled:?}");
        // A pod whose record is lost is adopted again, or replaced if its binding was deleted first, with the
        // former template.
        let lost = Key::Pod(NamespacedName::new("default", &scaled[0].pod));
        cluster.etcd.etcdctl(&["del", &lost.to_string()])?;
        eventually("three records are there", secs(20), || {
            let records = cluster.etcd.list(prefix::PODS)?.len();
            ensure!(records == 3, "{records} records");
            Ok(())
        })?;
        held.serves(cluster)?;
        let page = cluster.cli(&["describe", "replicaset/shop"])?.ok()?;
        ensure!(page.contains("waiting until `paused` is removed"), "{page}");
        shop.more = String::new();
        cluster.push(&[shop.file()], "End the pause")?;
        shop.serves(cluster).map(drop)
    })
}

/// Seconds for which a new pod must be ready.
const MIN_READY: i64 = 4;

// Seen red with a `moves` that treats new pods as available.
#[test]
fn a_former_pod_gets_sigterm_only_when_its_successor_was_ready_for_long_enough() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let timeline = Timeline::begin(cluster)?;
        let mut shop = Workload::new("shop", 2);
        shop.more = format!(
            "  minReadySeconds: {MIN_READY}\n  strategy: {{rollingUpdate: {{maxSurge: 1, maxUnavailable: 0}}}}\n"
        );
        cluster.push(&[shop.service(), shop.file()], "Open")?;
        let before = shop.serves(cluster)?;
        cluster.push(&[shop.roll()], "Roll")?;
        shop.serves(cluster)?;
        let moments = timeline.moments()?;
        let moments = shop.moments(&moments);
        let of_former = |moment: &&&Moment| before.iter().any(|runs: &Runs| runs.pod == moment.pod);
        let at = |happened: Happened, former: bool| -> Vec<i64> {
            let all = moments.iter().filter(|m| m.happened == happened && of_former(m) == former);
            all.map(|moment| moment.at_nanos / 1_000_000).collect()
        };
        let (began, signalled) = (at(Happened::Began, false), at(Happened::Signalled, true));
        ensure!(began.len() == 2 && signalled.len() == 2, "{moments:?}");
        for (began, signalled) in began.iter().zip(&signalled) {
            println!("SIGTERM {} ms after the successor began", signalled - began);
            ensure!(signalled - began >= MIN_READY * 1000, "{moments:?}");
        }
        ensure!(began[1] > signalled[0] - 1000, "both new pods came at once: {moments:?}");
        Ok(())
    })
}

// Seen red with a `Planned::target` that does not read templates/.
#[test]
fn the_last_good_template_comes_back_when_none_of_its_pods_is_left() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let mut shop = Workload::new("shop", 3);
        shop.more = "  progressDeadlineSeconds: 12\n".to_owned();
        cluster.push(&[shop.service(), shop.file()], "Open")?;
        let good = shop.serves(cluster)?;
        cluster.settled()?;
        let good_template = template(&good[0].pod).to_owned();
        shop.command = SLEEPS;
        cluster.push(&[shop.roll()], "A template that is never ready")?;
        eventually("the bad template runs", secs(30), || {
            let running = shop.running(cluster)?;
            ensure!(running.iter().any(|runs| runs.version == 1), "{running:?}");
            Ok(())
        })?;
        // During the rollout, every good pod is lost, and its record, too: only templates/ knows the good template.
        let is_good = |pod: &str| shop.owns(pod) && template(pod) == good_template;
        for found in cluster.etcd.list(prefix::PODS)? {
            if matches!(found.key.parse(), Ok(Key::Pod(pod)) if is_good(&pod.name)) {
                cluster.etcd.etcdctl(&["del", &found.key])?;
            }
        }
        let docker = &cluster.node().docker;
        for container in docker.containers(&cluster.slot().instance())? {
            if is_good(container.label("pod")) {
                // It may have stopped by itself by now.
                let _ = docker.run(&["rm", "-f", &container.id]);
            }
        }
        ensure!(shop.rollout(cluster)?.failure.is_none(), "the rollout had failed before");
        eventually("no good pod is left", secs(20), || {
            let running = shop.running(cluster)?;
            ensure!(running.iter().all(|runs| runs.version == 1), "{running:?}");
            Ok(())
        })?;
        let failure = eventually("the rollout fails", secs(60), || {
            shop.rollout(cluster)?.failure.context("it has not failed")
        })?;
        println!("{}: {}", failure.reason, failure.message);
        let back = Workload { version: 0, ..shop.clone() }.serves(cluster)?;
        ensure!(back.iter().all(|runs| template(&runs.pod) == good_template), "{back:?}");
        let page = cluster.cli(&["describe", "replicaset/shop"])?.ok()?;
        ensure!(page.contains(&format!("template {good_template} serves again")), "{page}");
        // A good push ends it.
        shop.command = SERVES;
        cluster.push(&[shop.roll()], "Mend")?;
        shop.serves(cluster).map(drop)
    })
}
