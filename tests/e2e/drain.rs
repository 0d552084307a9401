//! Clients of a Service notice nothing while its pods are replaced and removed: a pod is told to end only
//! when no node leads new connections to it. `MINIK8S_ROUNDS` says how often (2 replacements and 4 removals
//! by default; 5 and 20 in a soak).
//!
//! Red when `DrainBook::look` returns nothing.

use harness::manifests::web;
use harness::{
    Change, Clients, Cluster, ClusterOptions, Context, Result, Target, Where, ensure, eventually, rounds,
    secs,
};
use schema::keys::Key;
use schema::meta::PodRef;
use schema::records::ServiceRecord;

const READY: &str = "    readinessProbe: {httpGet: {path: /index.html, port: 8080}, periodSeconds: 1}\n";
const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: shop}\nspec:\n  \
                       selector: {group: shop}\n  ports: [{port: 80, targetPort: 8080}]\n";
/// What is asked between two changes, so that each is met by requests.
const ANSWERS: u64 = 20;

/// A pod of the service on one of the nodes; of another `version` it is another pod.
fn pod(cluster: &Cluster, index: usize, version: usize) -> Result<Change> {
    let node = &cluster.numbered(index % cluster.nodes.len() + 1)?.name;
    let name = format!("shop-{index}");
    let versioned = format!("{READY}    workingDir: /{}\n", "./".repeat(version));
    let text = web(&name).greeting("open").label("group", "shop").on(node).container_fields(&versioned);
    Ok(Change::write(format!("{name}.yaml"), text.to_string()))
}

/// Waits until so many pods are behind the service, none of them of `former` addresses.
fn behind(cluster: &Cluster, count: usize, former: &[String]) -> Result<ServiceRecord> {
    eventually(&format!("{count} pods are behind the service"), secs(60), || {
        let record: ServiceRecord = cluster.etcd.value(Key::Service(PodRef::new("default", "shop")))?;
        let addresses: Vec<String> = record.endpoints.iter().map(|e| e.address.to_string()).collect();
        ensure!(addresses.len() == count, "{addresses:?}");
        ensure!(former.iter().all(|address| !addresses.contains(address)), "{addresses:?} of {former:?}");
        Ok(record)
    })
}

#[test]
fn nobody_notices_that_the_pods_of_a_service_are_replaced_and_removed() -> Result<()> {
    let (replacements, removals) = (rounds(2, 5), rounds(4, 20));
    let options = ClusterOptions { place: Where::Namespaces(2), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let mut changes = vec![Change::write("service.yaml", SERVICE)];
        for index in 0..3 {
            changes.push(pod(cluster, index, 0)?);
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
                cluster.push(&[pod(cluster, index, version)?], "Replace")?;
                behind(cluster, 3, &[former])?;
                answered(&clients)?;
            }
        }
        for removal in 0..removals {
            let index = removal % 3;
            cluster.push(&[Change::remove(format!("shop-{index}.yaml"))], "Remove")?;
            cluster.gone(&format!("shop-{index}"))?;
            answered(&clients)?;
            cluster.push(&[pod(cluster, index, replacements + removal)?], "And back")?;
            behind(cluster, 3, &[])?;
            answered(&clients)?;
        }
        for client in &mut clients {
            println!("drain: {} requests, none failed", client.end()?);
        }
        Ok(())
    })
}
