//! Clients of a Service notice nothing while its pods are replaced and removed: a pod gets SIGTERM only
//! when no node leads new connections to it. `MINIK8S_ROUNDS` sets the rounds (2 replacements and 4 removals
//! by default; 5 and 20 in a soak).
//!
//! The first story shows the user's view and may pass without a drain: an endpoint mostly leaves the rules
//! as fast as Docker stops a container. The second story holds a node back, and was seen red with a
//! `DrainBook::look` that finds nothing.

use harness::manifests::web;
use harness::{
    Change, Clients, Cluster, ClusterOptions, Context, Result, Target, Where, ensure, eventually, holds,
    rounds, secs,
};
use nix::sys::signal::Signal;
use schema::keys::Key;
use schema::meta::NamespacedName;
use schema::records::ServiceRecord;

const READY: &str = "    readinessProbe: {httpGet: {path: /index.html, port: 8080}, periodSeconds: 1}\n";
const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: shop}\nspec:\n  \
                       selector: {group: shop}\n  ports: [{port: 80, targetPort: 8080}]\n";
/// The hook that Kubernetes advises for servers that exit immediately: requests already sent to the pod are answered.
const ANSWERS_ON: &str = "    lifecycle: {preStop: {exec: {command: [sleep, \"1\"]}}}\n";
/// Answers between two changes, so that requests coincide with each change.
const ANSWERS: u64 = 20;

/// A pod of the service on one of the nodes; another `version` makes another pod.
fn pod(cluster: &Cluster, index: usize, version: usize, fields: &str) -> Result<Change> {
    let node = &cluster.numbered(index % cluster.nodes.len() + 1)?.name;
    let name = format!("shop-{index}");
    let versioned = format!("{READY}{fields}    workingDir: /{}\n", "./".repeat(version));
    let text = web(&name).greeting("open").label("group", "shop").on(node).container_fields(&versioned);
    Ok(Change::write(format!("{name}.yaml"), text.to_string()))
}

/// Waits until `count` pods are behind the service, none with a `former` address.
fn behind(cluster: &Cluster, count: usize, former: &[String]) -> Result<ServiceRecord> {
    eventually(&format!("{count} pods are behind the service"), secs(60), || {
        let record: ServiceRecord =
            cluster.etcd.value(Key::Service(NamespacedName::new("default", "shop")))?;
        let addresses: Vec<String> = record.endpoints.iter().map(|e| e.address.to_string()).collect();
        ensure!(addresses.len() == count, "{addresses:?}");
        ensure!(former.iter().all(|address| !addresses.contains(address)), "{addresses:?} of {former:?}");
        Ok(record)
    })
}

#[test]
fn nobody_notices_that_the_pods_of_a_service_are_replaced_and_removed() -> Result<()> {
    let (replacements, removals) = (rounds(2, 5), rounds(4, 20));
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let mut changes = vec![Change::write("service.yaml", SERVICE)];
        for index in 0..3 {
            changes.push(pod(cluster, index, 0, ANSWERS_ON)?);
        }
        cluster.push(&changes, "Open")?;
        let address = behind(cluster, 3, &[])?.cluster_ip.context("no address")?;
        let mut clients: Vec<Clients> = cluster.nodes.iter().map(Clients::on).collect::<Result<_>>()?;
        for (client, node) in clients.iter_mut().zip(&cluster.nodes) {
            let url = format!("http://{address}/");
            eventually("the service answers", secs(20), || node.net.run("curl", &["-sf", "-m", "2", &url]))?;
            let (name, answer) = (format!("client on {}", node.name), "open".to_owned());
            client.ask(Target { name, address: format!("{address}:80"), answer })?;
        }
        let answered = |clients: &[Clients]| clients.iter().try_for_each(|client| client.answered(ANSWERS));

        for version in 1..=replacements {
            for index in 0..3 {
                let name = format!("shop-{index}");
                let former = cluster.pod(&name)?.address()?.to_owned();
                cluster.push(&[pod(cluster, index, version, ANSWERS_ON)?], "Replace")?;
                behind(cluster, 3, &[former])?;
                answered(&clients)?;
            }
        }
        for removal in 0..removals {
            let index = removal % 3;
            cluster.push(&[Change::remove(format!("shop-{index}.yaml"))], "Remove")?;
            cluster.gone(&format!("shop-{index}"))?;
            answered(&clients)?;
            cluster.push(&[pod(cluster, index, replacements + removal, ANSWERS_ON)?], "And back")?;
            behind(cluster, 3, &[])?;
            answered(&clients)?;
        }
        for client in &mut clients {
            println!("drain: {} requests, none failed", client.end()?);
        }
        Ok(())
    })
}

/// Seconds during which the pod must keep running after everyone else knows of its removal. Without a drain
/// it gets SIGTERM within some 100 ms; a drain waits for 5 s at most.
const HELD_BACK: u64 = 1;

#[test]
fn a_pod_gets_no_sigterm_while_a_node_still_leads_clients_to_it() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let goes = pod(cluster, 0, 0, "")?;
        cluster.push(&[Change::write("service.yaml", SERVICE), goes, pod(cluster, 1, 0, "")?], "Open")?;
        let address = behind(cluster, 2, &[])?.cluster_ip.context("no address")?;
        let url = format!("http://{address}/");
        for node in &cluster.nodes {
            eventually("the service answers", secs(20), || node.net.run("curl", &["-sf", "-m", "2", &url]))?;
        }
        let going = cluster.pod("shop-0")?;
        let (docker, id) = (&cluster.node_of(&going)?.docker, &going.container("web")?.id);
        let runs = || -> Result<()> {
            let said = docker.run(&["inspect", "-f", "{{.State.Running}}", id])?;
            ensure!(said.trim() == "true", "{said}");
            Ok(())
        };
        // From now on the node without the pod programs nothing.
        let (here, other) = (&cluster.node_of(&going)?.name, &cluster.nodes);
        let other = other.iter().find(|node| node.name != *here).context("one node")?;
        other.agent.signal(Signal::SIGSTOP)?;
        let held = cluster.push(&[Change::remove("shop-0.yaml")], "Remove").and_then(|_| {
            behind(cluster, 1, &[])?;
            holds("the pod runs on", secs(HELD_BACK), runs)?;
            // The pod serves clients that use the old rules.
            other.net.run("curl", &["-sf", "-m", "2", &format!("http://{}:8080/", going.address()?)])
        });
        other.agent.signal(Signal::SIGCONT)?;
        held?;
        cluster.gone("shop-0")
    })
}
