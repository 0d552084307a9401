//! A node gets another address while its agent runs: within 5 s the tunnel, the pods on the node's own network
//! and the agent's API are found there, and no container is touched.
//!
//! Seen red when only the tunnel followed: after 5 s not even the tunnel's end in the node's record was
//! right, because the agent's connection to etcd was still that from the former address.

use std::net::IpAddr;

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Context, Result, Where, ensure, eventually, secs};
use schema::keys::Key;
use schema::kinds::pod::PodStatus;
use schema::meta::NamespacedName;
use schema::records::{NodeRecord, ServiceRecord};

const PROBES: &str = "    readinessProbe: {httpGet: {path: /index.html, port: 8080}, periodSeconds: 1}\n    \
                      livenessProbe: {tcpSocket: {port: 8080}, periodSeconds: 2}\n";
const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: hosted}\nspec:\n  type: NodePort\n  \
                       selector: {app: hosted}\n  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]\n";
const ANSWER: &str = "hello from hosted";

/// Checks that everything concerning the second node finds it at `address`.
fn is_at(cluster: &Cluster, address: &str) -> Result<()> {
    let (first, second) = (cluster.numbered(1)?, cluster.numbered(2)?);
    let record: NodeRecord = cluster.etcd.value(Key::Node(second.name.clone()))?;
    let vtep = record.vtep.map(|vtep| vtep.address.to_string());
    ensure!(vtep.as_deref() == Some(address), "the tunnel's end is {vtep:?}");
    let wanted: IpAddr = address.parse()?;
    ensure!(record.addresses == [wanted], "{:?}", record.addresses);
    ensure!(record.api == format!("https://{address}:7071"), "{}", record.api);
    let tunnel = format!("{}.1", cluster.slot().instance());
    let entries = first.net.run("bridge", &["fdb", "show", "dev", &tunnel])?;
    ensure!(entries.contains(&format!("dst {address} ")), "{entries}");

    let status: PodStatus =
        cluster.etcd.value(Key::PodStatus(second.name.clone(), NamespacedName::new("default", "hosted")))?;
    let ips = [status.host_ip, status.pod_ip];
    ensure!(ips.iter().all(|ip| ip.as_deref() == Some(address)), "{ips:?}");
    let service: ServiceRecord =
        cluster.etcd.value(Key::Service(NamespacedName::new("default", "hosted")))?;
    let endpoints: Vec<String> = service.endpoints.iter().map(|one| one.address.to_string()).collect();
    ensure!(endpoints == [address], "{endpoints:?}");

    let client = Cluster::net_of(&cluster.pod("client")?);
    let service = service.cluster_ip.context("the service has no address")?.to_string();
    for (what, to) in
        [("the service", format!("{service}:80")), ("the node port", format!("{address}:30080"))]
    {
        let said = client.run("curl", &["-s", "-m", "1", &format!("http://{to}/")]);
        let said = said.with_context(|| format!("{what} at {to}"))?;
        ensure!(said.trim() == ANSWER, "{what}: {said}");
    }
    let pod = format!("http://{}:8080/", cluster.pod("own")?.address()?);
    let said = client.run("curl", &["-s", "-m", "1", &pod]).context("through the tunnel")?;
    ensure!(said.trim() == "hello from own", "{said}");
    let log = cluster.cli(&["logs", "hosted", "-c", "web"])?.ok()?;
    ensure!(log.starts_with("serving\n"), "{log:?}");
    Ok(())
}

#[test]
fn a_node_that_gets_another_address_is_found_there_within_5_s() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(2), ..ClusterOptions::default() };
    let mut cluster = Cluster::prepare(options)?;
    cluster.nodes[1].find_address();
    cluster.run_story(|cluster| {
        cluster.start_all()?;
        let (first, second) = (cluster.numbered(1)?.name.clone(), cluster.numbered(2)?.name.clone());
        let hosted = web("hosted").on(&second).container_fields(PROBES).to_string();
        let hosted = hosted.replace("spec:\n", "spec:\n  hostNetwork: true\n");
        let pods = [
            Change::write("client.yaml", web("client").on(&first).to_string()),
            Change::write("own.yaml", web("own").on(&second).to_string()),
            Change::write("hosted.yaml", hosted),
            Change::write("service.yaml", SERVICE),
        ];
        cluster.push(&pods, "A pod on its node's network")?;
        for pod in ["client", "own", "hosted"] {
            cluster.running(pod, &["web"])?;
        }
        let home = cluster.numbered(2)?.address()?.to_owned();
        eventually("all of it is there", secs(45), || is_at(cluster, &home))?;
        let lives = cluster.lives()?;

        let gateway = cluster.slot().underlay(1);
        for address in [cluster.slot().underlay(40), home] {
            cluster.nodes[1].move_to(&address, &gateway)?;
            eventually(&format!("the node is found at {address}"), secs(5), || is_at(cluster, &address))?;
            ensure!(cluster.lives()? == lives, "containers were touched");
        }
        Ok(())
    })
}
