//! A whole cluster whose agents have exactly the etcd rights of `schema::keys::node_role`: pods and
//! a service on two nodes work, and one agent's user is refused access to foreign keys. The stories of a function on
//! three nodes (`functions/calls.rs`) and of a Slurm job (`jobs/mod.rs`) run with these rights, too.
//!
//! Seen red with `readwrite /minik8s/rules/ --prefix` in the role; the story of the function without `demand/` in it.

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Context, Result, Where, bail, ensure, eventually, secs};
use schema::keys::{Key, prefix};
use schema::meta::NamespacedName;
use schema::records::NodeUsage;

use crate::services::{programmed, service};

#[test]
fn agents_with_the_role_of_their_node_do_all_their_work_and_are_refused_elsewhere() -> Result<()> {
    let options =
        ClusterOptions { place: Where::Namespaces(2), etcd_roles: true, ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let mut changes = vec![service("shop", "of: shop", "{port: 80, targetPort: 8080}", "")];
        for number in 1..=2 {
            let name = format!("p{number}");
            let pod = web(&name).greeting(&name).label("of", "shop").on(&cluster.numbered(number)?.name);
            changes.push(Change::write(format!("{name}.yaml"), pod.to_string()));
        }
        cluster.push(&changes, "Open")?;
        let pods = [cluster.running("p1", &["web"])?, cluster.running("p2", &["web"])?];
        let address = programmed(cluster, "shop", 2)?;
        for (from, what) in [
            (cluster.numbered(1)?.net.clone(), "the first node"),
            (cluster.numbered(2)?.net.clone(), "the second node"),
            (Cluster::net_of(&pods[0]), "a pod of the first node"),
            (Cluster::net_of(&pods[1]), "a pod of the second node"),
        ] {
            // Until each endpoint has answered, one of them over the tunnel.
            for wanted in ["p1", "p2"] {
                eventually(&format!("{wanted} answers {what}"), secs(20), || {
                    let said = from.run("curl", &["-sSf", "-m", "5", &format!("http://{address}/")])?;
                    ensure!(said.trim() == wanted, "{said}");
                    Ok(())
                })?;
            }
        }
        for node in &cluster.nodes {
            eventually("the node says what it uses", secs(60), || {
                cluster.etcd.value::<NodeUsage>(Key::Usage(node.name.clone()))
            })?;
            let events = format!("{}{}/", prefix::EVENTS, node.name);
            eventually("the node reports what happened", secs(20), || {
                ensure!(!cluster.etcd.list(&events)?.is_empty());
                Ok(())
            })?;
        }
        refused_at_what_is_not_its_own(cluster)?;

        // The removal is complete: the drain has read what all nodes have programmed.
        cluster.push(&[Change::remove("p1.yaml")], "Close one")?;
        cluster.gone("p1")?;
        programmed(cluster, "shop", 1)?;
        let status = Key::PodStatus(cluster.node().name.clone(), NamespacedName::new("default", "p1"));
        eventually("its status is gone", secs(20), || {
            ensure!(cluster.etcd.key(&status)?.is_none());
            Ok(())
        })?;
        Ok(())
    })
}

/// Tries writes of the second node, the reconciler and another reporter as the first node's user.
fn refused_at_what_is_not_its_own(cluster: &Cluster) -> Result<()> {
    let (own, other) = (cluster.numbered(1)?.name.clone(), cluster.numbered(2)?.name.clone());
    let user = format!("{own}:secret-of-{own}");
    let etcdctl = |args: &[&str]| cluster.etcd.etcdctl(Some(&user), args);
    let pod = NamespacedName::new("default", "p2");

    // A permitted write shows that the user is logged in.
    let event = |node: &str| Key::Event(node.to_owned(), "default".to_owned(), "0-0".to_owned()).to_string();
    etcdctl(&["put", &event(&own), "{}"])?;
    etcdctl(&["del", &event(&own)])?;
    etcdctl(&["get", &Key::Programmed.to_string()])?;
    eventually("the settings can be read", secs(20), || {
        ensure!(etcdctl(&["get", &Key::Settings.to_string()])?.contains("cluster.local"));
        Ok(())
    })?;

    let not_its_own = [
        Key::Leader.to_string(),
        Key::Source("main".to_owned()).to_string(),
        format!("{}Pod/default/p1", prefix::OBJECTS),
        Key::Pod(NamespacedName::new("default", "p1")).to_string(),
        Key::Binding(own.clone(), NamespacedName::new("default", "p1")).to_string(),
        Key::Settled(own.clone()).to_string(),
        Key::Settings.to_string(),
        Key::Programmed.to_string(),
        Key::Service(NamespacedName::new("default", "shop")).to_string(),
        Key::Subnet(own.clone()).to_string(),
        Key::Node(other.clone()).to_string(),
        Key::Heartbeat(other.clone()).to_string(),
        Key::PodStatus(other.clone(), pod.clone()).to_string(),
        Key::Rules(other.clone()).to_string(),
        Key::Usage(other.clone()).to_string(),
        Key::Demand(other.clone()).to_string(),
        Key::NodeImage(other.clone(), "0".to_owned()).to_string(),
        Key::JobReport(other.clone(), pod.clone()).to_string(),
        Key::Job(own.clone(), pod.clone()).to_string(),
        Key::Build(own, "0".to_owned()).to_string(),
        Key::Function(pod.clone()).to_string(),
        event(&other),
        Key::Request("forged".to_owned()).to_string(),
        Key::Answer("forged".to_owned()).to_string(),
    ];
    for key in &not_its_own {
        refused(etcdctl(&["put", key, "{}"])).with_context(|| format!("put {key}"))?;
        refused(etcdctl(&["del", key])).with_context(|| format!("del {key}"))?;
        ensure!(cluster.etcd.key(key)?.is_none_or(|there| there.value != "{}"), "{key} was written");
    }
    let foreign =
        [Key::Rules(other.clone()), Key::Binding(other.clone(), pod.clone()), Key::PodStatus(other, pod)];
    for key in foreign {
        refused(etcdctl(&["get", &key.to_string()])).with_context(|| format!("get {key}"))?;
    }
    Ok(())
}

fn refused(said: Result<String>) -> Result<()> {
    match said {
        Ok(said) => bail!("it was let: {said}"),
        Err(error) if format!("{error:#}").contains("permission denied") => Ok(()),
        Err(error) => Err(error),
    }
}
