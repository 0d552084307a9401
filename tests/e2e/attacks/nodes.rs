//! A node writes its own keys in etcd as it likes, and so does anyone who reaches etcd. Nobody connects to where such
//! a record points, and a service leads to no address that its node does not have.
//!
//! The stranger is keys and a certificate: a record, a heartbeat and the status of a pod, written as an agent would.

use std::net::{IpAddr, Ipv4Addr};

use harness::manifests::web;
use harness::{
    Change, Cluster, ClusterOptions, Context, Result, ensure, eventually, http_get, secs, service_address,
};
use schema::keys::Key;
use schema::kinds::pod::PodStatus;
use schema::meta::NamespacedName;
use schema::records::{Binding, Heartbeat, NodeRecord, Subnet};
use serde::Serialize;

use super::{SECRET, Trap};
use crate::services::{programmed, record, service};

/// A machine that no test reaches: an address for documentation (RFC 5737).
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);

/// A node that exists only in etcd.
struct Stranger {
    name: String,
    record: NodeRecord,
    range: Subnet,
}

fn put(cluster: &Cluster, key: &Key, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(value)?;
    cluster.etcd.etcdctl(&["put", &key.to_string(), &text]).map(drop)
}

fn lure() -> NamespacedName {
    NamespacedName::new("default", "lure")
}

impl Stranger {
    /// Registers the node, and waits for its range.
    fn join(cluster: &Cluster) -> Result<Self> {
        let name = format!("{}stranger", cluster.slot().instance());
        let own: NodeRecord = cluster.etcd.value(Key::Node(cluster.node().name.clone()))?;
        let record = NodeRecord {
            name: name.clone(),
            addresses: vec![ELSEWHERE.into()],
            api: format!("https://{ELSEWHERE}:7071"),
            calls: String::new(),
            vtep: None,
            pod_cidr: None,
            ..own
        };
        put(cluster, &Key::Node(name.clone()), &record)?;
        let beat = Heartbeat { since: record.registered_at };
        put(cluster, &Key::Heartbeat(name.clone()), &beat)?;
        let range = eventually("the stranger has a range", secs(30), || {
            cluster.etcd.value(Key::Subnet(name.clone()))
        })?;
        Ok(Self { name, record, range })
    }

    /// Says that the agent's API is there.
    fn publishes(&mut self, cluster: &Cluster, api: &str) -> Result<()> {
        api.clone_into(&mut self.record.api);
        put(cluster, &Key::Node(self.name.clone()), &self.record)
    }

    /// Says that its pod runs at this address, in the words of another pod's status.
    fn reports(&self, cluster: &Cluster, address: Ipv4Addr, like: &PodStatus) -> Result<()> {
        let binding: Binding = cluster.etcd.value(Key::Binding(self.name.clone(), lure()))?;
        let status = PodStatus {
            uid: binding.pod.uid,
            hash: binding.pod.hash,
            pod_ip: Some(address.to_string()),
            host_ip: Some(ELSEWHERE.to_string()),
            ..like.clone()
        };
        put(cluster, &Key::PodStatus(self.name.clone(), lure()), &status)
    }
}

/// The first IPv4 address of a node.
pub(super) fn ipv4_of(node: &NodeRecord) -> Result<Ipv4Addr> {
    let first = node.addresses.iter().find_map(|address| match address {
        IpAddr::V4(v4) => Some(*v4),
        IpAddr::V6(_) => None,
    });
    first.with_context(|| format!("node {} has no IPv4 address", node.name))
}

/// Address number `offset` of a node's range.
fn address_in(range: &Subnet, offset: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(range.cidr.network().to_bits() + offset)
}

#[test]
fn what_a_node_writes_of_itself_leads_nobody_elsewhere() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let mut stranger = Stranger::join(cluster)?;
        let files = [
            Change::write("lure.yaml", web("lure").label("of", "shop").on(&stranger.name).to_string()),
            Change::write("own.yaml", web("own").label("of", "shop").on(&cluster.node().name).to_string()),
            service("shop", "of: shop", "{port: 80, targetPort: 8080}", ""),
        ];
        cluster.push(&files, "A pod on each node")?;
        cluster.serving("own", "hello from own")?;
        programmed(cluster, "shop", 1)?;
        no_endpoint_beyond_its_range(cluster, &stranger)?;
        logs_come_from_the_node_alone(cluster, &mut stranger)
    })
}

/// Rules of the node that lead to this address.
fn rules_to(cluster: &Cluster, address: Ipv4Addr) -> Result<Vec<String>> {
    let (prefix, target) = (cluster.slot().chain_prefix(), format!("--to-destination {address}:"));
    let is_one = |rule: &String| rule.contains(&prefix) && rule.contains(&target);
    Ok(cluster.node().net.rules()?.into_iter().filter(is_one).collect())
}

fn no_endpoint_beyond_its_range(cluster: &Cluster, stranger: &Stranger) -> Result<()> {
    let node = cluster.node().name.clone();
    let own: PodStatus =
        cluster.etcd.value(Key::PodStatus(node.clone(), NamespacedName::new("default", "own")))?;
    let honest_range: Subnet = cluster.etcd.value(Key::Subnet(node.clone()))?;
    let machine: NodeRecord = cluster.etcd.value(Key::Node(node))?;
    for forged in [
        ELSEWHERE,
        Ipv4Addr::new(169, 254, 169, 254),
        Ipv4Addr::LOCALHOST,
        ipv4_of(&machine)?,
        service_address(cluster, 10)?,
        // A pod of another node, and the stranger's own bridge.
        address_in(&honest_range, 200),
        stranger.range.bridge(),
    ] {
        stranger.reports(cluster, forged, &own)?;
        eventually(&format!("the pod at {forged} is left out"), secs(20), || {
            let record = record(cluster, "shop")?;
            let is_named = |why: &str| why.contains(&forged.to_string()) && why.contains(&stranger.name);
            ensure!(record.left_out.iter().any(|one| one.pod == "lure" && is_named(&one.why)), "{record:?}");
            Ok(())
        })?;
        programmed(cluster, "shop", 1)?;
        let rules = rules_to(cluster, forged)?;
        ensure!(rules.is_empty(), "{rules:#?}");
    }
    let page = cluster.cli(&["describe", "service/shop"])?.ok()?;
    ensure!(page.contains("lure") && page.contains("which is not in that node's range"), "{page}");
    // An address of its range is its own to give.
    let honest = address_in(&stranger.range, 9);
    stranger.reports(cluster, honest, &own)?;
    programmed(cluster, "shop", 2)?;
    ensure!(!rules_to(cluster, honest)?.is_empty(), "no rule leads to {honest}");
    Ok(())
}

/// Publishes an address and checks that the reconciler asks nobody there for the log.
fn is_not_asked(cluster: &Cluster, stranger: &mut Stranger, published: &str, trap: &Trap) -> Result<()> {
    stranger.publishes(cluster, published)?;
    eventually(&format!("the reconciler knows {published}"), secs(20), || {
        let (code, body) = http_get(&cluster.api(0), "/v1/logs/default/lure")?;
        ensure!(code == 502 && body.contains(&format!("`{published}`")), "{code} {body}");
        Ok(())
    })?;
    ensure!(trap.callers() == 0, "{published} was asked");
    Ok(())
}

fn logs_come_from_the_node_alone(cluster: &Cluster, stranger: &mut Stranger) -> Result<()> {
    let trap = Trap::set()?;
    let own: NodeRecord = cluster.etcd.value(Key::Node(cluster.node().name.clone()))?;
    let (machine, port) = (ipv4_of(&own)?, trap.port);
    for published in [
        "https://x/?".to_owned(),
        format!("https://127.0.0.1:{port}"),
        format!("https://127.0.0.1:{port}/?"),
        format!("https://localhost:{port}"),
        format!("https://{ELSEWHERE}@127.0.0.1:{port}"),
        format!("https://{machine}:{port}"),
        "https://169.254.169.254:80".to_owned(),
    ] {
        is_not_asked(cluster, stranger, &published, &trap)?;
    }
    let said = cluster.cli(&["logs", "lure"])?;
    ensure!(said.code != 0 && said.stderr.contains("does not connect to node"), "{said:?}");
    // Whatever addresses it claims, loopback is not for a node that the reconciler does not know to be here.
    stranger.record.addresses.clone_from(&own.addresses);
    is_not_asked(cluster, stranger, &format!("https://127.0.0.1:{port}"), &trap)?;

    // At an address that it claims it is asked, and answers with the way to somewhere else.
    let location = format!("http://127.0.0.1:{port}/");
    let pki = cluster.trust.node(&stranger.name)?;
    let redirecting =
        Trap::answering_as(&pki, format!("HTTP/1.0 302 Found\r\nLocation: {location}\r\n\r\n"))?;
    stranger.publishes(cluster, &format!("https://{machine}:{}", redirecting.port))?;
    eventually("the stranger is asked", secs(20), || {
        let said = cluster.cli(&["logs", "lure"])?;
        ensure!(redirecting.callers() > 0, "{said:?}");
        ensure!(said.code != 0 && !said.stdout.contains(SECRET), "{said:?}");
        Ok(())
    })?;
    ensure!(trap.callers() == 0, "its redirect was followed");

    // Somebody else with a certificate of the cluster answers in its place.
    let line = "a line of the log";
    let log = format!("HTTP/1.0 200 OK\r\n\r\n{line}\n");
    for other in [cluster.trust.node("other")?, cluster.trust.user()?] {
        let imposter = Trap::answering_as(&other, log.clone())?;
        stranger.publishes(cluster, &format!("https://{machine}:{}", imposter.port))?;
        eventually("the imposter is asked", secs(20), || {
            let said = cluster.cli(&["logs", "lure"])?;
            ensure!(imposter.callers() > 0, "{said:?}");
            ensure!(said.code != 0 && !said.stdout.contains(line), "{said:?}");
            Ok(())
        })?;
    }

    let honest = Trap::answering_as(&pki, log)?;
    stranger.publishes(cluster, &format!("https://{machine}:{}", honest.port))?;
    eventually("the log is shown", secs(20), || {
        let said = cluster.cli(&["logs", "lure"])?;
        ensure!(said.stdout.contains(line), "{said:?}");
        Ok(())
    })
}
