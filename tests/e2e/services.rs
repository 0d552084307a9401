//! A Service leads to its pods from everywhere: its own address and a port of the node, TCP and UDP,
//! also without endpoints, after another program flushed our chains, and while the agent is away.
//!
//! Fails without the jump from PREROUTING, with `Fingerprint` always 0, with the endpoints of the first
//! catalog kept for ever, when `removal` gets the network loop's chains only, with DROP for a service without
//! endpoints (curl exits with 28), and with UDP connections that are not ended.

use std::time::{Duration, Instant};

use harness::manifests::{sleeper, web};
use harness::{
    Change, Clients, Cluster, ClusterOptions, Context, NetWorld, PodView, Result, UDP_PORT, UdpClient,
    UdpServer, ensure, eventually, http_get, run, secs,
};
use schema::keys::Key;
use schema::meta::NamespacedName;
use schema::records::{RulesStatus, ServiceRecord};

const READY: &str =
    "    readinessProbe: {httpGet: {path: /index.html, port: 8080}, periodSeconds: 1, failureThreshold: 1}\n";

/// A service with these ports, each in braces, and further fields of its spec.
pub(crate) fn service(name: &str, selector: &str, ports: &str, more: &str) -> Change {
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  selector: {{{selector}}}\n  \
         ports: [{ports}]\n{more}"
    );
    Change::write(format!("{name}.yaml"), text)
}

fn pod(name: &str) -> Change {
    let text = web(name).greeting(name).label("group", "shop").container_fields(READY).to_string();
    Change::write(format!("pod-{name}.yaml"), text)
}

/// Record of the service as nodes get it.
pub(crate) fn record(cluster: &Cluster, name: &str) -> Result<ServiceRecord> {
    cluster.etcd.value(Key::Service(NamespacedName::new("default", name)))
}

/// Address of the service, once every node has programmed its present record with `endpoints` endpoints.
pub(crate) fn programmed(cluster: &Cluster, name: &str, endpoints: usize) -> Result<String> {
    eventually(&format!("service {name} is programmed on all nodes"), secs(90), || {
        let service = record(cluster, name)?;
        ensure!(service.endpoints.len() == endpoints, "{service:?}");
        let key = Key::Service(NamespacedName::new("default", name));
        let written = cluster.etcd.key(&key)?.context("no record")?.mod_revision;
        for node in &cluster.nodes {
            let rules: RulesStatus = cluster.etcd.value(Key::Rules(node.name.clone()))?;
            ensure!(
                rules.revision >= written && rules.error.is_empty(),
                "{}: {rules:?}, not {written}",
                node.name
            );
        }
        Ok(service.cluster_ip.context("no address")?.to_string())
    })
}

/// Answer that a client in the pod's network gets at this URL.
fn asked_by(pod: &PodView, url: &str) -> Result<String> {
    let said = NetWorld::of_process(pod.pause.pid).run("curl", &["-sS", "-f", "-m", "5", url])?;
    Ok(said.trim().to_owned())
}

fn asked_by_host(address: &str) -> Result<String> {
    let (code, body) = http_get(&format!("{address}:80"), "/")?;
    ensure!(code == 200, "{code} {body}");
    Ok(body.trim().to_owned())
}

/// Time within which an immediate refusal must arrive, curl's own time included: a client that waits for an answer
/// would take 5 s, one whose first packet is lost 1 s.
const REFUSED_MAX: Duration = Duration::from_secs(1);

/// Time within which a UDP client must follow a replaced endpoint.
const FOLLOWS_MAX: Duration = Duration::from_secs(2);

/// The value that chance alone exceeds once in 100,000 times, for one degree of freedom.
const CHI_LIMIT: f64 = 19.5;

#[test]
fn a_service_answers_pods_hosts_and_clients_beyond() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let node_port = 30_000 + (cluster.slot().port(0) - 17_000);
        let http = format!("{{port: 80, targetPort: 8080, nodePort: {node_port}}}");
        let plain = "{port: 80, targetPort: 8080}";
        cluster.push(
            &[
                pod("one"),
                pod("two"),
                service("shop", "group: shop", &http, "  type: NodePort\n"),
                service("solo", "app: one", plain, ""),
                service("lonely", "app: nobody", plain, ""),
                service("sticky", "group: shop", plain, "  sessionAffinity: ClientIP\n"),
            ],
            "Open",
        )?;
        let one = cluster.running("one", &["web"])?;
        let shop = programmed(cluster, "shop", 2)?;
        let (solo, lonely) = (programmed(cluster, "solo", 1)?, programmed(cluster, "lonely", 0)?);
        let sticky = programmed(cluster, "sticky", 2)?;

        // From a pod of the same node, from the pod behind it, from the host, from outside.
        ensure!(["one", "two"].contains(&asked_by(&one, &format!("http://{shop}/"))?.as_str()));
        ensure!(asked_by(&one, &format!("http://{solo}/"))? == "one", "the pod reaches itself");
        ensure!(asked_by_host(&solo)? == "one");
        let beyond = Clients::beyond(cluster.slot())?;
        let url = format!("http://{}:{node_port}/", beyond.machine_address());
        let outside = beyond.world();
        let said = outside.run("curl", &["-sSf", "-m", "5", &url])?;
        ensure!(["one", "two"].contains(&said.trim()), "{said}");

        // Without endpoints: refused (7) immediately, not timed out (28) and not retried.
        let url = format!("http://{lonely}/");
        for world in [NetWorld::of_machine(), NetWorld::of_process(one.pause.pid), outside] {
            let start = Instant::now();
            let refused =
                world.run("curl", &["-sS", "--connect-timeout", "5", "-m", "10", &url]).unwrap_err();
            let took = start.elapsed();
            ensure!(format!("{refused:#}").contains("exit code 7:"), "{refused:#} in {world:?}");
            ensure!(took < REFUSED_MAX, "refused after {took:?} in {world:?}");
        }

        // An even share for each; a client with affinity stays.
        let mut ones = 0_u32;
        for _ in 0..200 {
            ones += u32::from(asked_by_host(&shop)? == "one");
        }
        let chi = 2.0 * (f64::from(ones) - 100.0).powi(2) / 100.0;
        ensure!(chi < CHI_LIMIT, "{ones} of 200 went to one");
        let first = asked_by_host(&sticky)?;
        for _ in 0..20 {
            ensure!(asked_by_host(&sticky)? == first);
        }

        // A pod that is not ready gets no requests.
        let docker = &cluster.node().docker;
        docker.exec(one.container("web")?, &["mv", "/data/index.html", "/data/away"])?;
        programmed(cluster, "shop", 1)?;
        for _ in 0..20 {
            ensure!(asked_by_host(&shop)? == "two");
        }
        docker.exec(one.container("web")?, &["mv", "/data/away", "/data/index.html"])?;
        programmed(cluster, "shop", 2)?;
        healed_and_gone(cluster, &solo)
    })
}

/// Our chains are flushed, the agent is killed and restarted, and at the end nothing is left.
fn healed_and_gone(cluster: &mut Cluster, solo: &str) -> Result<()> {
    let prefix = cluster.slot().chain_prefix();
    let ours = || -> Result<Vec<String>> {
        let rules = NetWorld::of_machine().rules()?;
        Ok(rules.into_iter().filter(|rule| rule.contains(&prefix)).collect())
    };
    let whole = ours()?;
    let of_one = whole.iter().find_map(|rule| {
        rule.strip_prefix("nat: :")?.split(' ').next().filter(|name| name.contains("-SVC-"))
    });
    let of_one = of_one.context("no chain of a service")?.to_owned();
    for chain in [format!("{prefix}SERVICES"), of_one] {
        run("iptables", &["-w", "-t", "nat", "-F", &chain])?;
        eventually(&format!("{chain} is healed"), secs(10), || {
            let now = ours()?;
            ensure!(now == whole, "{now:?}");
            Ok(())
        })?;
    }
    cluster.node_mut().agent.kill()?;
    ensure!(asked_by_host(solo)? == "one", "rules stay without the agent");
    cluster.start_agent()?;
    programmed(cluster, "shop", 2)?;
    ensure!(ours()? == whole, "a restarted agent adopts what is there");
    ensure!(asked_by_host(solo)? == "one");
    cluster.node_mut().agent.kill()?;
    let said = cluster.node().reset()?;
    ensure!(said.code == 0, "{}", said.stderr);
    let left = ours()?;
    ensure!(left.is_empty(), "{left:?} are left");
    Ok(())
}

#[test]
fn a_udp_client_follows_a_replaced_endpoint() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let pod = |name: &str| {
            let text = sleeper(name).replace("metadata:\n", "metadata:\n  labels: {app: names}\n");
            Change::write(format!("{name}.yaml"), text)
        };
        let ports = &format!("{{port: 53, targetPort: {UDP_PORT}, protocol: UDP}}");
        cluster.push(&[pod("first"), service("names", "app: names", ports, "")], "Open")?;
        let address = programmed(cluster, "names", 1)?;
        let client = UdpClient::within(&NetWorld::of_machine())?;
        let says = |name: &str| {
            eventually(&format!("{name} answers"), secs(45), || {
                let said = client.asks(&format!("{address}:53"))?;
                ensure!(said == name, "{said:?}");
                Ok(())
            })
        };
        let first = UdpServer::serve(&cluster.running("first", &["main"])?, "first")?;
        says("first")?;
        cluster.push(&[Change::remove("first.yaml"), pod("second")], "Replace")?;
        let _second = UdpServer::serve(&cluster.running("second", &["main"])?, "second")?;
        says("second")?;
        drop(first);

        // Another pod that runs and answers but is not an endpoint yet: it becomes the only one in one step.
        let third = sleeper("third").replace("metadata:\n", "metadata:\n  labels: {app: spare}\n");
        cluster.push(&[Change::write("third.yaml", third)], "A spare one")?;
        let third = cluster.running("third", &["main"])?;
        let _third = UdpServer::serve(&third, "third")?;
        let wanted = third.address()?.to_owned();
        says("second")?;
        cluster.push(&[service("names", "app: spare", ports, "")], "Replace at once")?;
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
        says("third")?;
        let took = since.elapsed();
        println!("a UDP client followed {took:?} after the record");
        ensure!(took <= FOLLOWS_MAX, "a UDP client followed {took:?} after the record only");
        Ok(())
    })
}
