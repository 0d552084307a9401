//! Ports of the node that the agent chooses: `hostPort: 0`.
//!
//! Seen red with a `Pool::ports` that skips nothing but held ports (the pod with the fixed port waits
//! for ever), and with one that does not keep the former port.

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Context, Result, Where, ensure, eventually, secs};

/// First port that an agent assigns.
const FIRST: u16 = 20_000;

/// A separate node: every instance assigns the same ports, and the ports of a machine are one set.
fn alone() -> ClusterOptions {
    ClusterOptions { place: Where::Namespaces(1), ..ClusterOptions::default() }
}

#[test]
fn a_free_host_port_is_shown_answers_and_stays_the_pods() -> Result<()> {
    Cluster::run(alone(), |cluster| {
        // The first pod gets the first port, and leaves it free.
        cluster.push(&[Change::write("early.yaml", web("early").host_port(0).to_string())], "Early")?;
        let early = shown_port(cluster, "early")?;
        answers(cluster, "early", early)?;
        cluster.push(&[Change::write("shop.yaml", web("shop").host_port(0).to_string())], "Open")?;
        let before = cluster.serving("shop", "hello from shop")?;
        let port = shown_port(cluster, "shop")?;
        answers(cluster, "shop", port)?;
        cluster.push(&[Change::remove("early.yaml")], "Gone")?;
        cluster.gone("early")?;

        cluster.node().docker.run(&["rm", "-f", &before.pause.id])?;
        eventually("the pod is made anew", secs(40), || {
            let pod = cluster.pod("shop")?;
            ensure!(pod.pause.id != before.pause.id && pod.containers.len() == 1);
            Ok(())
        })?;
        answers(cluster, "shop", port)?;
        ensure!(shown_port(cluster, "shop")? == port);
        Ok(())
    })
}

#[test]
fn a_free_port_is_none_that_a_pod_pushed_with_it_names() -> Result<()> {
    Cluster::run(alone(), |cluster| {
        // By name the free ones come first, whatever their uids are.
        let free = ["a-free", "b-free", "c-free"];
        let mut pods: Vec<String> = free.iter().map(|name| web(name).host_port(0).to_string()).collect();
        pods.push(web("named").host_port(FIRST).to_string());
        cluster.push(&[Change::write("all.yaml", pods.join("---\n"))], "Four at once")?;
        answers(cluster, "named", FIRST)?;
        for name in free {
            let port = shown_port(cluster, name)?;
            ensure!(port != FIRST);
            answers(cluster, name, port)?;
        }
        Ok(())
    })
}

/// Node port of a pod as shown by the command line.
fn shown_port(cluster: &Cluster, pod: &str) -> Result<u16> {
    eventually("the command line shows the port", secs(30), || {
        let table = cluster.cli(&["get", "pod", pod, "-o", "wide"])?.ok()?;
        let mut lines = table.lines();
        let at = lines.next().and_then(|head| head.find("HOST-PORTS")).context("no column")?;
        let row = lines.next().context("no row")?;
        let cell = row.get(at..).and_then(|rest| rest.split_whitespace().next()).context("no port")?;
        let digits: String = cell.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().with_context(|| format!("{cell} in {table}"))
    })
}

fn answers(cluster: &Cluster, pod: &str, port: u16) -> Result<()> {
    eventually(&format!("port {port} leads to {pod}"), secs(40), || {
        let (code, body) = cluster.get_from_node("127.0.0.1", port, "/")?;
        ensure!(code == 200 && body.trim() == format!("hello from {pod}"), "{code} {body}");
        Ok(())
    })
}
