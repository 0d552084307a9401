//! Services on three real nodes with pods on any of them: from each node and its pods, from a client
//! outside, over the tunnel and locally; an even share for every endpoint; and a UDP client that
//! follows its server from node to node.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use harness::manifests::{sleeper, web};
use harness::{
    Change, Cluster, ClusterOptions, Context, NetWorld, Node, PodView, Result, UDP_PORT, UdpClient,
    UdpServer, Where, ensure, eventually, secs,
};

use crate::services::{programmed, record, service};

/// Number of pods, placed on one node after another.
const PODS: usize = 20;
/// Endpoints of each service, the first pods of all, with the value of chi-square that chance alone exceeds once
/// in 100,000 times for one degree of freedom less.
const BALANCED: [(usize, f64); 3] = [(2, 19.5), (5, 28.5), (20, 57.4)];
/// Expected number of requests per endpoint.
const ASKED_EACH: usize = 40;
/// Time within which an immediate refusal must arrive.
const REFUSED_MAX: Duration = Duration::from_secs(1);
/// Time within which a UDP client must follow a replaced endpoint.
const FOLLOWS_MAX: Duration = Duration::from_secs(2);

fn three() -> ClusterOptions {
    ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() }
}

/// Pod `p1` on the first node, `p2` on the second and so on.
fn pod(cluster: &Cluster, number: usize) -> Result<Change> {
    let name = format!("p{number}");
    let node = &cluster.numbered((number - 1) % 3 + 1)?.name;
    let mut pod = web(&name).greeting(&name).on(node).verbose();
    for (first, _) in BALANCED {
        if number <= first {
            pod = pod.label(&format!("of-{first}"), "yes");
        }
    }
    Ok(Change::write(format!("{name}.yaml"), pod.to_string()))
}

/// Answers to this many clients by name, one connection each.
fn answers(from: &NetWorld, address: &str, count: usize) -> Result<BTreeMap<String, usize>> {
    let url = format!("http://{address}/?[1-{count}]");
    let said =
        from.run("curl", &["-sSf", "-m", "60", "--connect-timeout", "5", "-H", "Connection: close", &url])?;
    let mut tally = BTreeMap::new();
    for name in said.split_whitespace() {
        *tally.entry(name.to_owned()).or_default() += 1;
    }
    let sum: usize = tally.values().sum();
    ensure!(sum == count, "{sum} answers of {count}: {tally:?}");
    Ok(tally)
}

fn asks(from: &NetWorld, address: &str) -> Result<String> {
    Ok(from.run("curl", &["-sSf", "-m", "5", &format!("http://{address}/")])?.trim().to_owned())
}

/// Every possible client within the cluster: each node, and a pod on each.
fn askers(cluster: &Cluster, pods: &[PodView]) -> Vec<NetWorld> {
    let nodes = cluster.nodes.iter().map(|node| node.net.clone());
    nodes.chain(pods.iter().map(Cluster::net_of)).collect()
}

// Seen red with a chance of one in n + 1 for the first rule.
#[test]
fn services_are_balanced_over_three_nodes_and_reached_from_all_of_them() -> Result<()> {
    Cluster::run(three(), |cluster| {
        let port = 30_000 + (cluster.slot().port(0) - 17_000);
        let plain = "{port: 80, targetPort: 8080}";
        let mut changes = (1..=PODS).map(|number| pod(cluster, number)).collect::<Result<Vec<_>>>()?;
        for (first, _) in BALANCED {
            changes.push(service(&format!("of-{first}"), &format!("of-{first}: \"yes\""), plain, ""));
        }
        let to_port = |port: u16| format!("{{port: 80, targetPort: 8080, nodePort: {port}}}");
        changes.extend([
            service("solo", "app: p2", &to_port(port), "  type: NodePort\n"),
            service(
                "local",
                "app: p2",
                &to_port(port + 1),
                "  type: NodePort\n  externalTrafficPolicy: Local\n",
            ),
            service("sticky", "of-20: \"yes\"", plain, "  sessionAffinity: ClientIP\n"),
            service("lonely", "app: nobody", plain, ""),
        ]);
        cluster.push(&changes, "Open")?;
        let pods =
            (1..=3).map(|n| cluster.running(&format!("p{n}"), &["web"])).collect::<Result<Vec<_>>>()?;
        let [solo, lonely, sticky] = [("solo", 1), ("lonely", 0), ("sticky", PODS)]
            .map(|(name, endpoints)| programmed(cluster, name, endpoints));
        let (solo, lonely, sticky) = (solo?, lonely?, sticky?);
        programmed(cluster, "local", 1)?;

        // From everywhere to the pod of the second node, which reaches itself as well.
        for from in askers(cluster, &pods) {
            ensure!(asks(&from, &solo)? == "p2");
            refused_at_once(&from, &lonely)?;
            let first = answers(&from, &sticky, 20)?;
            ensure!(first.len() == 1, "{first:?}");
        }
        from_beyond(cluster, &pods[1], port)?;

        // An even share for each, from a node and from a pod.
        for (count, limit) in BALANCED {
            let address = programmed(cluster, &format!("of-{count}"), count)?;
            for from in [&cluster.numbered(1)?.net, &Cluster::net_of(&pods[2])] {
                let tally = answers(from, &address, ASKED_EACH * count)?;
                let chi = chi_square(&tally, count);
                println!("chi-square of {count} endpoints: {chi:.1} (limit {limit})");
                ensure!(chi < limit, "{chi} of {count}: {tally:?}");
            }
        }
        Ok(())
    })
}

fn chi_square(tally: &BTreeMap<String, usize>, count: usize) -> f64 {
    let wanted = ASKED_EACH as f64;
    let one = |number: usize| {
        let got = tally.get(&format!("p{number}")).copied().unwrap_or_default() as f64;
        (got - wanted).powi(2) / wanted
    };
    (1..=count).map(one).sum()
}

fn refused_at_once(from: &NetWorld, address: &str) -> Result<()> {
    let begun = Instant::now();
    let refused = asks(from, address).err().context("somebody answered")?;
    let took = begun.elapsed();
    ensure!(format!("{refused:#}").contains("exit code 7:"), "{refused:#} in {from:?}");
    ensure!(took < REFUSED_MAX, "refused after {took:?} in {from:?}");
    Ok(())
}

/// A client outside of all nodes connects to their ports: every node leads it to the pod on the second one, but
/// with `Local` only that node does, and there the pod gets the client's real address.
fn from_beyond(cluster: &Cluster, second: &PodView, port: u16) -> Result<()> {
    let beyond = NetWorld::of_machine();
    for node in &cluster.nodes {
        ensure!(asks(&beyond, &format!("{}:{port}", node.address()?))? == "p2", "{}", node.name);
    }
    let own = cluster.slot().underlay(1);
    let seen = |node: &Node| -> Result<bool> {
        let log = node.docker.outcome(&["logs", &second.container("web")?.id])?.stderr;
        Ok(log.contains(&format!("{own}]:")))
    };
    let home = cluster.numbered(2)?;
    ensure!(!seen(home)?, "the other way masquerades");
    let local = |node: &Node| asks(&beyond, &format!("{}:{}", node.address()?, port + 1));
    ensure!(local(home)? == "p2");
    ensure!(seen(home)?, "the client's own address is not in the pod's log");
    for number in [1, 3] {
        let refused = local(cluster.numbered(number)?).err().context("a node without the pod answered")?;
        let refused = format!("{refused:#}");
        ensure!(refused.contains("exit code 28:"), "{refused}");
    }
    Ok(())
}

// Seen red with UDP flows that are not ended.
#[test]
fn a_udp_client_follows_its_server_from_node_to_node() -> Result<()> {
    Cluster::run(three(), |cluster| {
        let on = |name: &str, node: usize, app: &str| -> Result<Change> {
            let labels = format!("metadata:\n  labels: {{app: {app}}}\n");
            let node = format!("spec:\n  nodeName: {}\n", cluster.numbered(node)?.name);
            let text = sleeper(name).replace("metadata:\n", &labels).replace("spec:\n", &node);
            Ok(Change::write(format!("{name}.yaml"), text))
        };
        let ports = format!("{{port: 53, targetPort: {UDP_PORT}, protocol: UDP}}");
        let names = |app: &str| service("names", &format!("app: {app}"), &ports, "");
        cluster.push(&[on("second", 2, "second")?, on("third", 3, "third")?, names("second")], "Open")?;
        let pods = ["second", "third"].map(|name| cluster.running(name, &["main"]));
        let [second, third] = pods;
        let (second, third) = (second?, third?);
        let _servers = [UdpServer::serve(&second, "second")?, UdpServer::serve(&third, "third")?];
        let address = format!("{}:53", programmed(cluster, "names", 1)?);
        let client = UdpClient::within(&cluster.numbered(1)?.net)?;
        let says = |name: &str| {
            eventually(&format!("{name} answers"), secs(45), || {
                let said = client.asks(&address)?;
                ensure!(said == name, "{said:?}");
                Ok(())
            })
        };
        says("second")?;
        for (name, pod) in [("third", &third), ("second", &second)] {
            cluster.push(&[names(name)], "Replace at once")?;
            let wanted = pod.address()?.to_owned();
            // The time counts from the last observation of the former record.
            let mut since = Instant::now();
            eventually("the record has the other endpoint", secs(45), || {
                let now = Instant::now();
                let record = record(cluster, "names")?;
                let is_new = record.endpoints.iter().map(|one| one.address.to_string()).eq([wanted.clone()]);
                if !is_new {
                    since = now;
                }
                ensure!(is_new, "{record:?}");
                Ok(())
            })?;
            says(name)?;
            let took = since.elapsed();
            println!("a UDP client on another node followed {took:?} after the record");
            ensure!(took <= FOLLOWS_MAX, "a UDP client followed {took:?} after the record only");
        }
        Ok(())
    })
}
