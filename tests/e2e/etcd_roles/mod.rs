//! A whole cluster whose agents have exactly the etcd rights of `schema::keys::node_role`, as all stories' have: pods and
//! a service on two nodes work. Then each key of the contract is tried by each kind of client.
//!
//! Seen red with `readwrite /minik8s/rules/ --prefix` in the role; the story of the function without `demand/` in it.

mod matrix;

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Result, Where, ensure, eventually, secs};
use schema::keys::{Key, prefix};
use schema::meta::NamespacedName;
use schema::records::NodeUsage;

use crate::services::{programmed, service};

#[test]
fn agents_do_all_their_work_with_the_role_of_their_node_and_each_client_may_what_the_contract_says()
-> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(2), ..ClusterOptions::default() };
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

        // The removal is complete: the drain has read what all nodes have programmed.
        cluster.push(&[Change::remove("p1.yaml")], "Close one")?;
        cluster.gone("p1")?;
        programmed(cluster, "shop", 1)?;
        let status = Key::PodStatus(cluster.node().name.clone(), NamespacedName::new("default", "p1"));
        eventually("its status is gone", secs(20), || {
            ensure!(cluster.etcd.key(&status)?.is_none());
            Ok(())
        })?;

        // The matrix overwrites the keys of all.
        cluster.reconcilers[0].kill()?;
        cluster.nodes.iter_mut().try_for_each(|node| node.agent.kill())?;
        matrix::is_what_the_contract_says(cluster)
    })
}
