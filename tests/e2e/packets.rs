//! Packets keep flowing whatever happens to a node's agent, flushed rules are back within 5 s, and a
//! bad link neither changes a rule nor restarts anything.
//!
//! The agent itself serves names and hosts: while it is away a standby process started by it answers them, from the
//! state on its disk.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use harness::manifests::web;
use harness::{
    BadLink, Change, Clients, Cluster, ClusterOptions, Context, NetWorld, Node, PodView, Result, Target,
    Where, dig, ensure, eventually, holds, rounds, secs, service_address,
};
use schema::keys::Key;
use schema::meta::NamespacedName;
use schema::records::ServiceRecord;

const READY: &str = "    readinessProbe: {httpGet: {path: /index.html, port: 8080}, periodSeconds: 1}\n";
/// Expected answer of every pod.
const ANSWER: &str = "open";
/// Answers required before and after a fault.
const ANSWERS: u64 = 20;
/// Number of times that the agent is killed while it is asked for names.
const KILLS: u32 = 2;
/// Percentage of frames that a bad link loses.
const LOSS: u8 = 20;

fn pod(cluster: &Cluster, name: &str, node: usize) -> Result<Change> {
    let node = &cluster.numbered(node)?.name;
    let text = web(name).greeting(ANSWER).label("group", "shop").on(node).container_fields(READY);
    Ok(Change::write(format!("{name}.yaml"), text.to_string()))
}

fn service(node_port: u16) -> Change {
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: shop}}\nspec:\n  type: NodePort\n  \
         selector: {{group: shop}}\n  ports: [{{port: 80, targetPort: 8080, nodePort: {node_port}}}]\n"
    );
    Change::write("service.yaml", text)
}

/// Address of the service, once this many pods are behind it.
fn behind(cluster: &Cluster, count: usize, former: &str) -> Result<String> {
    eventually(&format!("{count} pods are behind the service"), secs(60), || {
        let record: ServiceRecord =
            cluster.etcd.value(Key::Service(NamespacedName::new("default", "shop")))?;
        let addresses: Vec<String> = record.endpoints.iter().map(|e| e.address.to_string()).collect();
        ensure!(addresses.len() == count && !addresses.iter().any(|a| a == former), "{addresses:?}");
        Ok(record.cluster_ip.context("no address")?.to_string())
    })
}

/// Our rules on a node, in any order.
fn ours(cluster: &Cluster, node: &Node) -> Result<BTreeSet<String>> {
    let prefix = cluster.slot().chain_prefix();
    Ok(node.net.rules()?.into_iter().filter(|rule| rule.contains(&prefix)).collect())
}

fn asks(from: &NetWorld, address: &str) -> Result<()> {
    let said = from.run("curl", &["-sf", "-m", "2", &format!("http://{address}/")])?;
    ensure!(said.trim() == ANSWER, "{said}");
    Ok(())
}

/// A service with a pod on each of two nodes, and the routes to it.
struct Ways {
    pods: Vec<PodView>,
    service: String,
    node_port: u16,
}

impl Ways {
    fn open(cluster: &Cluster) -> Result<Self> {
        let node_port = 30_000 + (cluster.slot().port(0) - 17_000);
        let changes = [pod(cluster, "web-1", 1)?, pod(cluster, "web-2", 2)?, service(node_port)];
        cluster.push(&changes, "Open")?;
        let pods = ["web-1", "web-2"].map(|name| cluster.running(name, &["web"]));
        let pods = pods.into_iter().collect::<Result<_>>()?;
        let ways = Self { pods, service: behind(cluster, 2, "")?, node_port };
        eventually("every way is open", secs(45), || ways.all_open(cluster))?;
        Ok(ways)
    }

    /// Checks that both nodes and both pods reach everything.
    fn all_open(&self, cluster: &Cluster) -> Result<()> {
        let nodes = cluster.nodes.iter().map(|node| node.net.clone());
        for from in nodes.chain(self.pods.iter().map(Cluster::net_of)) {
            for address in [self.at(cluster, 1)?, self.at(cluster, 2)?].iter().flatten() {
                asks(&from, address)?;
            }
        }
        Ok(())
    }

    /// Addresses of service, pod and port for node number `node`, from 1.
    fn at(&self, cluster: &Cluster, node: usize) -> Result<[String; 3]> {
        let pod = self.pods.get(node - 1).context("no such pod")?.address()?;
        let port = format!("{}:{}", cluster.numbered(node)?.address()?, self.node_port);
        Ok([format!("{}:80", self.service), format!("{pod}:8080"), port])
    }

    /// Clients whose packets cross between the nodes on every route, in both directions.
    fn ask(&self, cluster: &Cluster) -> Result<Vec<Clients>> {
        let [service, first, first_port] = self.at(cluster, 1)?;
        let [_, second, second_port] = self.at(cluster, 2)?;
        let mut all = Vec::new();
        for (who, mut clients, targets) in [
            ("the first node", Clients::on(cluster.numbered(1)?)?, vec![&service, &second_port]),
            ("the second node", Clients::on(cluster.numbered(2)?)?, vec![&service, &first_port]),
            ("the first pod", Clients::in_pod(&self.pods[0])?, vec![&second]),
            ("the second pod", Clients::in_pod(&self.pods[1])?, vec![&first, &service]),
        ] {
            for address in targets {
                let name = format!("{who} asking {address}");
                clients.ask(Target { name, address: address.clone(), answer: ANSWER.to_owned() })?;
            }
            all.push(clients);
        }
        answered(&all)?;
        Ok(all)
    }
}

fn answered(clients: &[Clients]) -> Result<()> {
    clients.iter().try_for_each(|clients| clients.answered(ANSWERS))
}

/// Queries one server for one name, again and again.
struct Asking {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Result<(u32, u32)>>,
}

impl Asking {
    fn start(node: &Node, server: String, wanted: String) -> Self {
        let (net, ends) = (node.net.clone(), Arc::new(AtomicBool::new(false)));
        let end = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let (mut answers, mut lost, mut was_lost) = (0, 0, false);
            while !end.load(Ordering::Relaxed) {
                // One packet: nothing is retried. The one that a killed agent had just read is lost with it.
                let only = ["+time=2", "+tries=1"];
                match dig(&net, &server, "shop.default.svc.cluster.local", "A", &only) {
                    Ok(said) => {
                        ensure!(said.gist() == [wanted.as_str()], "after {answers} answers: {said:?}");
                        (answers, was_lost) = (answers + 1, false);
                    }
                    Err(error) if was_lost || lost == KILLS => return Err(error),
                    Err(_) => (lost, was_lost) = (lost + 1, true),
                }
            }
            Ok((answers, lost))
        });
        Self { ends, thread }
    }

    /// Numbers of answers and of lost queries.
    fn end(self) -> Result<(u32, u32)> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().expect("the thread that asks")
    }
}

/// Kills the agent of the second node: no client of its names or rules notices.
///
/// Seen red without `standby::keep`.
fn without_the_agent(cluster: &mut Cluster, ways: &Ways) -> Result<()> {
    let dns = service_address(cluster, 10)?.to_string();
    let named = |node: &Node| -> Result<()> {
        let said = dig(&node.net, &dns, "shop.default.svc.cluster.local", "A", &["+time=1"])?;
        ensure!(said.gist() == [format!("A {}", ways.service)], "{said:?}");
        Ok(())
    };
    let mut clients = ways.ask(cluster)?;
    let rules = ours(cluster, cluster.numbered(2)?)?;
    let wanted = format!("A {}", ways.service);
    let asking = Asking::start(cluster.numbered(2)?, dns.clone(), wanted);
    cluster.nodes[1].agent.kill()?;
    let away = if rounds(1, 100) >= 100 { 30 } else { 5 };
    holds("its rules stay", secs(away), || {
        ensure!(ours(cluster, cluster.numbered(2)?)? == rules, "rules changed");
        Ok(())
    })?;
    named(cluster.numbered(1)?).context("the other node's names")?;
    answered(&clients)?;
    cluster.nodes[1].agent.start()?;
    cluster.nodes[1].wait_agent()?;
    answered(&clients)?;
    // Killed again soon after: the standby has handed back, and takes over again.
    named(cluster.numbered(2)?)?;
    cluster.nodes[1].agent.kill()?;
    cluster.nodes[1].agent.start()?;
    cluster.nodes[1].wait_agent()?;
    answered(&clients)?;
    let (answers, lost) = asking.end()?;
    let mut requests = 0;
    for clients in &mut clients {
        requests += clients.end()?;
    }
    println!("agent away for {away} s: {requests} requests and {answers} names, {lost} lost with the agent");
    ensure!(ours(cluster, cluster.numbered(2)?)? == rules, "rules changed");
    Ok(())
}

/// Flushes all rules of the first node while it is queried: our rules are restored, for services and for
/// pods that reach outside of the cluster.
fn flushed(cluster: &Cluster, ways: &Ways) -> Result<()> {
    let node = cluster.numbered(1)?;
    let beyond = format!("https://{}/", cluster.listen(0));
    // Any answer will do: a pod has no certificate.
    let goes_beyond = || Cluster::net_of(&ways.pods[0]).run("curl", &["-sk", "-m", "2", &beyond]);
    goes_beyond().context("a pod and the reconciler, which stands beyond the cluster")?;
    let mut clients = ways.ask(cluster)?;
    let rules = ours(cluster, node)?;
    for table in ["nat", "filter"] {
        node.net.run("iptables", &["-w", "-t", table, "-F"])?;
        eventually(&format!("the rules of {table} are back"), secs(5), || {
            let missing: Vec<_> = rules.difference(&ours(cluster, node)?).cloned().collect();
            ensure!(missing.is_empty(), "{missing:#?} are missing");
            Ok(())
        })?;
        ensure!(ours(cluster, node)? == rules, "there are more than before: {:?}", ours(cluster, node)?);
        ways.all_open(cluster).with_context(|| format!("after the rules of {table} were back"))?;
        goes_beyond()?;
    }
    answered(&clients)?;
    for clients in &mut clients {
        let (requests, failed) = clients.end_anyhow()?;
        println!("rules flushed: {requests} requests, {failed} failed in between");
    }
    Ok(())
}

/// The links of both nodes lose a fifth of all frames: everything stays as it is, and changes still arrive.
fn with_loss(cluster: &Cluster, ways: &Ways) -> Result<()> {
    let rules = cluster.nodes.iter().map(|node| ours(cluster, node)).collect::<Result<Vec<_>>>()?;
    let lives = cluster.lives()?;
    let bad = cluster.nodes.iter().map(|node| BadLink::losing(node, LOSS)).collect::<Result<Vec<_>>>()?;
    let lasts = if rounds(1, 100) >= 100 { 30 } else { 5 };
    holds("rules stay, and nothing is started again", secs(lasts), || {
        for (node, rules) in cluster.nodes.iter().zip(&rules) {
            let now = ours(cluster, node)?;
            ensure!(now == *rules, "{}: {now:?}", node.name);
        }
        ensure!(cluster.lives()? == lives, "containers were touched");
        Ok(())
    })?;
    for node in &cluster.nodes {
        eventually("the service answers", secs(45), || asks(&node.net, &ways.at(cluster, 1)?[0]))?;
    }
    cluster.push(&[pod(cluster, "web-3", 1)?], "One more")?;
    let third = cluster.running("web-3", &["web"])?.address()?.to_owned();
    eventually("both nodes lead to it", secs(45), || {
        for node in &cluster.nodes {
            let leads = ours(cluster, node)?.iter().any(|rule| rule.contains(&format!(" {third}:8080")));
            ensure!(leads, "{} does not", node.name);
        }
        Ok(())
    })?;
    drop(bad);
    ways.all_open(cluster)?;
    ensure!(lives.iter().all(|life| cluster.lives().is_ok_and(|now| now.get(life.0) == Some(life.1))));
    match BadLink::slow(cluster.numbered(1)?, 100)? {
        Some(_slow) => ways.all_open(cluster),
        None => {
            println!("packets: no delay, this kernel has no netem");
            Ok(())
        }
    }
}

// Seen red with an agent that flushes `nat` when it starts, with checks of the rules every 60 s, and with links
// that lose everything.
#[test]
fn packets_go_on_without_the_agent_after_a_flush_and_over_a_bad_link() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let ways = Ways::open(cluster)?;
        let lives = cluster.lives()?;
        without_the_agent(cluster, &ways)?;
        flushed(cluster, &ways)?;
        ensure!(cluster.lives()? == lives, "containers were touched");
        with_loss(cluster, &ways)
    })
}
