//! `minik8s wait --for healthy` keeps its promise to scripts: the very next request is answered, by
//! every node, and with the content of the commit.
//!
//! Fails with services and hosts counted as healthy as soon as they are stored.

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Context, Node, Result, Where, ensure, service_address};
use schema::keys::Key;
use schema::meta::NamespacedName;
use schema::records::ServiceRecord;

const HOST: &str = "shop.example";
const READY: &str = "    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}\n";

/// A pod of this version, and a service and a host that lead to it alone.
fn commit(version: u32) -> [Change; 3] {
    let name = format!("web-{version}");
    let pod = web(&name).greeting(&name).container_fields(READY).to_string();
    let service = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: shop}}\nspec:\n  selector: {{app: {name}}}\n  \
         ports: [{{port: 80, targetPort: 8080}}]\n"
    );
    let dns = format!(
        "apiVersion: v1\nkind: Dns\nmetadata: {{name: shop}}\nspec:\n  host: {HOST}\n  \
         paths: [{{path: /{name}, rewrite: /, service: {{name: shop, port: 80}}}}]\n"
    );
    [
        Change::write(format!("{name}.yaml"), pod),
        Change::write("service.yaml", service),
        Change::write("dns.yaml", dns),
    ]
}

fn asked(node: &Node, more: &[&str]) -> Result<String> {
    let args = [["-sSf", "-m", "5"].as_slice(), more].concat();
    Ok(node.net.run("curl", &args)?.trim().to_owned())
}

#[test]
fn what_is_healthy_answers_the_next_request_on_every_node() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let gateway = service_address(cluster, 11)?;
        for version in 1..=4 {
            let wanted = format!("web-{version}");
            let commit = cluster.push(&commit(version), &wanted)?;
            let waited = ["wait", "--for", "healthy", "--commit", &commit, "--timeout", "60s"];
            cluster.cli(&waited)?.ok()?;
            let record: ServiceRecord =
                cluster.etcd.value(Key::Service(NamespacedName::new("default", "shop")))?;
            let address = record.cluster_ip.context("no address")?;
            for node in &cluster.nodes {
                let said = asked(node, &[&format!("http://{address}/")])?;
                ensure!(said == wanted, "service on {}: {said:?}, not {wanted}", node.name);
                let resolve = format!("{HOST}:80:{gateway}");
                let said = asked(node, &["--resolve", &resolve, &format!("http://{HOST}/{wanted}")])?;
                ensure!(said == wanted, "host on {}: {said:?}, not {wanted}", node.name);
            }
        }
        // An object that does not become healthy is waited for until the timeout, and named.
        let never = READY.replace("path: /,", "path: /nothing,");
        let pod = web("late").container_fields(&never).to_string();
        let text = "apiVersion: v1\nkind: Service\nmetadata: {name: late}\nspec:\n  selector: {app: late}\n  \
                    ports: [{port: 80, targetPort: 8080}]\n";
        let changes = [Change::write("late.yaml", pod), Change::write("late-service.yaml", text.to_owned())];
        let commit = cluster.push(&changes, "Late")?;
        let waited = cluster.cli(&["wait", "--for", "healthy", "--commit", &commit, "--timeout", "5s"])?;
        ensure!(waited.code == 1 && waited.stderr.contains("default/late"), "{waited:?}");
        Ok(())
    })
}
