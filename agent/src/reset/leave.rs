//! Removes a node that leaves for good from etcd, so that its pods run elsewhere and its range is free. Done last:
//! a pod that is no longer bound to this node starts on another one, and must not run here by then.

use std::time::Duration;

use anyhow::{Context as _, bail};
use schema::keys::{Key, prefix};
use schema::store::{Guard, Op, Store, TXN_OPS_MAX, TxnOutcome};
use tokio::time::sleep;

use super::files::ResetOutcome;
use crate::converge::node::HEARTBEAT_TTL;

/// Longest life of the heartbeat of an agent that was just stopped, with time for etcd to end its lease.
const HEARTBEAT_MAX: Duration = HEARTBEAT_TTL.saturating_add(Duration::from_secs(5));

/// Interval at which the heartbeat is polled.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Deletes every key of the node. A second run finds nothing.
pub(super) async fn leave(store: &dyn Store, node: &str, removed: &mut ResetOutcome) -> anyhow::Result<()> {
    wait_for_heartbeat_end(store, node).await?;
    let mut keys = Vec::new();
    for prefix in [format!("{}{node}/", prefix::STATUS), prefix::bindings_of(node)] {
        let listed = store.list(&prefix).await.context("cannot list this node's keys in etcd")?;
        keys.extend(listed.items.into_iter().map(|pair| pair.key));
    }
    let mut there = Vec::new();
    let own = [Key::Node, Key::Subnet, Key::Usage, Key::Rules, Key::Demand].map(|key| key(node.to_owned()));
    for key in own {
        let key = key.to_string();
        let found = store.get(&key).await.context("cannot read this node's keys in etcd")?;
        there.extend(found.map(|pair| pair.key));
    }
    if there.is_empty() && keys.is_empty() {
        removed.remarks.push(format!("etcd has no keys of node {node}; use --node to name another"));
    }
    for ops in steps(node, there, keys) {
        let count = ops.len();
        // An agent of this name that starts meanwhile keeps the remaining keys.
        let guard = Guard::Absent(Key::Heartbeat(node.to_owned()).to_string());
        let done = store.txn(vec![guard], ops).await.context("cannot remove this node from etcd")?;
        match done {
            TxnOutcome::Committed(_) => removed.done(format!("{count} keys of node {node} in etcd")),
            TxnOutcome::Conflict => bail!("an agent of node {node} was started; stop it and run this again"),
        }
    }
    Ok(())
}

async fn wait_for_heartbeat_end(store: &dyn Store, node: &str) -> anyhow::Result<()> {
    let key = Key::Heartbeat(node.to_owned()).to_string();
    let silent = async {
        while store.get(&key).await?.is_some() {
            sleep(LOOK_EVERY).await;
        }
        Ok::<(), schema::store::StoreError>(())
    };
    match tokio::time::timeout(HEARTBEAT_MAX, silent).await {
        Ok(looked) => looked.context("cannot read this node's heartbeat"),
        Err(_) => {
            bail!("an agent of node {node} is alive; stop it, or name the node that leaves with --node")
        }
    }
}

/// Deletions by transaction: the node's record first, so that nothing more is placed on it; its range last, when
/// nothing has an address of it.
fn steps(node: &str, own: Vec<String>, below: Vec<String>) -> Vec<Vec<Op>> {
    let subnet = Key::Subnet(node.to_owned()).to_string();
    let (last, first): (Vec<String>, Vec<String>) = own.into_iter().partition(|key| *key == subnet);
    let ops: Vec<Op> = first.into_iter().chain(below).chain(last).map(Op::delete).collect();
    ops.chunks(TXN_OPS_MAX).map(<[Op]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use schema::store::memory::MemoryStore;
    use tokio::time::Instant;

    use super::*;

    async fn filled(pods: usize) -> MemoryStore {
        let store = MemoryStore::new();
        for node in ["n1", "n10"] {
            let mut keys: Vec<String> =
                ["nodes/", "subnets/"].iter().map(|kind| format!("/minik8s/{kind}{node}")).collect();
            keys.extend(
                ["usage/N", "rules/N", "demand/N", "bindings/N/settled"]
                    .map(|key| format!("/minik8s/{}", key.replace('N', node))),
            );
            for pod in 0..pods {
                keys.push(format!("/minik8s/bindings/{node}/default/p{pod}"));
                keys.push(format!("/minik8s/status/{node}/pods/default/p{pod}"));
            }
            for key in keys {
                let _ = store.txn(vec![], vec![Op::put(key, "{}")]).await.unwrap();
            }
        }
        store
    }

    async fn left(store: &MemoryStore) -> Vec<String> {
        store.list("/minik8s/").await.unwrap().items.into_iter().map(|pair| pair.key).collect()
    }

    // Seen red with a prefix that ends before the slash.
    #[tokio::test]
    async fn all_of_the_node_goes_and_nothing_of_others() {
        let store = filled(110).await;
        let mut removed = ResetOutcome::default();
        leave(&store, "n1", &mut removed).await.unwrap();
        let left = left(&store).await;
        assert!(left.len() == 226 && left.iter().all(|key| key.contains("n10")), "{left:?}");
        assert_eq!(removed.lines, ["120 keys of node n1 in etcd", "106 keys of node n1 in etcd"]);
        let mut again = ResetOutcome::default();
        leave(&store, "n1", &mut again).await.unwrap();
        assert!(again.lines.is_empty());
        assert_eq!(again.remarks, ["etcd has no keys of node n1; use --node to name another"]);
        assert!(removed.remarks.is_empty());
    }

    #[test]
    fn the_record_goes_first_and_the_range_last() {
        let own = ["/minik8s/nodes/n", "/minik8s/subnets/n"].map(str::to_owned).to_vec();
        let all: Vec<Op> = steps("n", own, vec!["/minik8s/bindings/n/settled".to_owned()]).concat();
        let wanted = ["/minik8s/nodes/n", "/minik8s/bindings/n/settled", "/minik8s/subnets/n"];
        assert_eq!(all, wanted.map(Op::delete));
    }

    // Seen red without the wait.
    #[tokio::test(start_paused = true)]
    async fn a_node_whose_agent_is_alive_keeps_all() {
        let store = filled(1).await;
        let _ = store.txn(vec![], vec![Op::put("/minik8s/heartbeats/n1", "{}")]).await.unwrap();
        let (before, begun) = (left(&store).await, Instant::now());
        let refused = leave(&store, "n1", &mut ResetOutcome::default()).await.unwrap_err();
        assert!(refused.to_string().contains("stop it"), "{refused}");
        assert!(begun.elapsed() >= HEARTBEAT_TTL, "one that was just stopped is waited for");
        assert_eq!(left(&store).await, before);
    }
}
