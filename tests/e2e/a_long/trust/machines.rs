//! Three machines with reconcilers and members of etcd, as people set them up: the first machine is lost for good, and, in
//! a soak, the authority is replaced under load.

use std::fs;
use std::time::Instant;

use harness::manifests::{sleeper, web};
use harness::{
    Change, Cluster, Context, Result, Timeline, UpCluster, ensure, eventually, run, secs, served_issuer,
};
use schema::keys::Key;
use schema::records::IdentityRecord;

use super::{copied, is_soak, renewed};
use crate::workloads::{Workload, clients, cluster_file, started_once};

/// Number of machines; nodes with greater numbers have an agent only.
const MACHINES: usize = 3;

/// Starts the machines, and lets the other nodes join.
fn start(all: &mut UpCluster, nodes: &[usize]) -> Result<()> {
    all.start_first()?;
    join_machines(all)?;
    for number in nodes {
        all.join_node(*number)?;
    }
    Ok(())
}

/// Lets the other machines join.
fn join_machines(all: &mut UpCluster) -> Result<()> {
    for number in 2..=MACHINES {
        all.join_machine(number)?;
    }
    let members = all.cluster.etcd.etcdctl(&["member", "list"])?;
    // The last column tells of learners.
    ensure!(members.matches("started").count() == MACHINES && !members.contains("true"), "{members}");
    Ok(())
}

/// Pushes a pod in place of the former one, and waits until it runs.
fn tick(cluster: &Cluster, number: usize) -> Result<()> {
    let name = |number: usize| format!("tick-{number}");
    let mut changes = vec![Change::write(format!("{}.yaml", name(number)), sleeper(&name(number)))];
    if let Some(former) = number.checked_sub(1) {
        changes.push(Change::remove(format!("{}.yaml", name(former))));
    }
    cluster.push(&changes, &name(number))?;
    cluster.running(&name(number), &["main"]).map(drop)
}

/// Name of the authority that signed a certificate, as OpenSSL's own program reads it.
fn issuer(file: &std::path::Path) -> Result<String> {
    let said = run("openssl", &["x509", "-noout", "-issuer", "-in", &file.to_string_lossy()])?;
    Ok(said.rsplit('=').next().context("no name")?.trim().to_owned())
}

/// Checks that everything on disk and on the wire is of another authority than the former, and trusts only that one.
fn is_rotated(all: &UpCluster, former: &str) -> Result<()> {
    for number in 1..=all.cluster.nodes.len() {
        let (mut folders, mut ports) = (vec![all.node_pki(number)?], vec![UpCluster::AGENT_PORT]);
        if number <= MACHINES {
            folders.extend([all.reconciler_pki(number)?, all.member_pki(number)?]);
            ports.push(UpCluster::API_PORT);
            ports.extend(UpCluster::ETCD_PORTS);
        }
        for folder in &folders {
            let (path, found) = (folder.path().display(), issuer(&folder.certificate_file())?);
            ensure!(found != former, "{path} is of {found}");
            let trusted = folder.authorities()?.len();
            ensure!(trusted == 1, "{path} trusts {trusted} authorities");
        }
        // The only identity that has a word at etcd's port for members, too.
        let own = all.member_pki(1)?;
        for port in ports {
            let address = all.at(number, port)?;
            let found = served_issuer(&address, &own)?;
            ensure!(found != former, "{address} shows a certificate of {found}");
        }
    }
    Ok(())
}

#[test]
fn the_authority_is_replaced_under_load_without_a_failed_request() -> Result<()> {
    if !is_soak() {
        return Ok(());
    }
    UpCluster::run(5, |all| {
        start(all, &[4, 5])?;
        let timeline = Timeline::begin(&all.cluster)?;
        let shop = Workload::new("shop", 5);
        all.cluster.push(&[shop.file(), shop.service()], "Open")?;
        let first = shop.serves(&all.cluster)?;
        let address = shop.address(&all.cluster)?;
        let mut clients = clients(&all.cluster, &[&address])?;
        let former = issuer(&all.reconciler_pki(1)?.certificate_file())?;
        let kept = copied(&all.node_pki(5)?, all.cluster.dir("kept"))?;
        let gets = || all.cluster.etcd.etcdctl_as(&kept, &["get", "/minik8s/settings"]);
        gets()?;

        let (began, mut pushes, mut failed) = (Instant::now(), 0, Vec::new());
        all.cluster.cli(&["trust", "rotate"])?.ok()?;
        let rotated = eventually("all have the next authority only", secs(1200), || {
            if let Err(error) = tick(&all.cluster, pushes) {
                failed.push(format!("push {pushes}: {error:#}"));
            }
            pushes += 1;
            is_rotated(all, &former)
        });
        let status = || all.cluster.cli(&["status"]).map_or_else(|e| e.to_string(), |said| said.stdout);
        rotated.with_context(status)?;
        let took = began.elapsed();
        ensure!(failed.is_empty(), "{failed:#?}");
        let mut requests = 0;
        for clients in &mut clients {
            requests += clients.end()?;
        }
        println!("rotation: {took:.1?}, {requests} requests and {pushes} pushes, none failed");

        let last = shop.serves(&all.cluster)?;
        ensure!(last == first, "pods were touched: {first:?}, then {last:?}");
        let moments = timeline.moments()?;
        // No pod of the pushes runs twice either.
        let started = started_once(&moments.iter().collect::<Vec<_>>())?;
        ensure!(started == shop.replicas + pushes, "{started} pods started in {pushes} pushes");

        // Whoever kept files of before has nothing.
        kept.write_authorities(&all.node_pki(5)?.authorities()?)?;
        let said = gets();
        ensure!(said.is_err(), "etcd takes the former authority: {said:?}");
        for number in 1..=MACHINES {
            let api = all.at(number, UpCluster::API_PORT)?;
            let (code, said) = renewed(&api, &kept, &all.reconciler_pki(number)?)?;
            ensure!(code == 401, "{api}: {code} {said}");
        }
        Ok(())
    })
}

/// Waits until the workload runs without the pods of the lost node, which nobody ends there.
fn elsewhere(all: &UpCluster, shop: &Workload, lost: &str) -> Result<()> {
    eventually("the workload runs on the other nodes", secs(120), || {
        let running = shop.running(&all.cluster)?;
        let there = running.iter().filter(|runs| runs.node != lost && runs.version == shop.version);
        ensure!(there.count() == shop.replicas, "{running:?}");
        Ok(())
    })
}

/// Ends a roll of etcd's members before others join: a node joins, and is removed. Seen red: the roll restarted the next
/// member while its machine came up, and etcd had no majority.
fn a_node_comes_and_goes(all: &mut UpCluster, number: usize) -> Result<()> {
    all.join_node(number)?;
    let identity = format!("node-{}", all.cluster.numbered(number)?.name);
    all.cluster.nodes[number - 1].agent.kill()?;
    all.cluster.expect_denials();
    all.cluster.cli(&["trust", "remove", &identity])?.ok()?;
    fs::remove_dir_all(all.node_pki(number)?.path())?;
    eventually("etcd was restarted for it", secs(60), || {
        let events = all.cluster.cli(&["events", "-A"])?.ok()?;
        ensure!(events.contains("MemberRestarted"), "{events}");
        Ok(())
    })
}

/// A machine loses its disk and joins again under its name: its node has another key then.
fn a_machine_loses_its_disk(all: &mut UpCluster, number: usize) -> Result<()> {
    let former = all.node_pki(number)?.certificate()?.public_key()?.fingerprint()?;
    all.lose_machine(number)?;
    fs::remove_dir_all(all.cluster.numbered(number)?.state_dir())?;
    all.join_machine(number)?;
    let own = all.node_pki(number)?.certificate()?.public_key()?.fingerprint()?;
    ensure!(own != former);
    let key = Key::Identity(format!("node-{}", all.cluster.numbered(number)?.name));
    eventually("its node's new key is recorded", secs(60), || {
        let recorded: IdentityRecord = all.cluster.etcd.value(&key)?;
        ensure!(recorded.key == own, "{recorded:?}");
        Ok(())
    })
}

#[test]
fn two_machines_go_on_when_the_first_is_lost_for_good() -> Result<()> {
    UpCluster::run(4, |all| {
        all.start_first()?;
        a_node_comes_and_goes(all, 4)?;
        join_machines(all)?;
        a_machine_loses_its_disk(all, MACHINES)?;
        let mut shop = Workload::new("shop", 3);
        let settings = cluster_file("nodes: {evictAfterSeconds: 5}");
        all.cluster.push(&[settings, shop.file(), shop.service()], "Open")?;
        shop.serves(&all.cluster)?;

        let (lost, began) = (all.cluster.numbered(1)?.name.clone(), Instant::now());
        all.ask_machine(2)?;
        all.lose_machine(1)?;
        all.cluster.push(&[Change::write("new.yaml", web("new").to_string())], "After it")?;
        all.cluster.running("new", &["web"])?;
        println!("lost machine: a push runs {:.1?} after the loss", began.elapsed());
        elsewhere(all, &shop, &lost)?;
        let change = shop.roll();
        all.cluster.push(&[change], "The next version")?;
        elsewhere(all, &shop, &lost)?;
        // They admit others without it.
        all.join_node(4)?;
        let pod = web("late").on(&all.cluster.numbered(4)?.name).to_string();
        all.cluster.push(&[Change::write("late.yaml", pod)], "For the one that joined")?;
        all.cluster.running("late", &["web"]).map(drop)
    })
}
