//! Baseline of a held prune while commits continue.

use super::kit::{Cluster, Repo, pod, pods};

/// Two pods, one of them removed, and a broken file that holds the removal.
async fn held_back() -> (Repo, Cluster) {
    let mut repo = Repo::new(pods(["a", "stays"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    repo.remove("a.yaml").set("x.yaml", "kind: Pod\n").commit("One broken, one removed");
    cluster.settle().await;
    let held = cluster.status().await.held_prune.expect("nothing is removed beside a broken file");
    assert_eq!((held.deletes, held.owned), (1, 2));
    (repo, cluster)
}

// Seen red with every removal counted against the objects present when it was first held.
#[tokio::test]
async fn what_came_since_may_go_again() {
    let (mut repo, mut cluster) = held_back().await;
    repo.set("b.yaml", pod("b", "one")).set("c.yaml", pod("c", "one")).commit("Two more");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "b", "c", "stays"]);
    repo.remove("b.yaml").remove("c.yaml").remove("x.yaml").set("a.yaml", pod("a", "one")).commit("And back");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "stays"]);
    assert_eq!(cluster.status().await.held_prune, None);
}

/// Replaces too many of the pods that were added while a prune was held.
fn replace_many(repo: &mut Repo) {
    for name in many("m", 20) {
        repo.remove(&format!("{name}.yaml"));
    }
    repo.remove("x.yaml").set("a.yaml", pod("a", "one"));
    repo.files.extend(pods(many("n", 100)));
    repo.commit("Others in their place");
}

fn many(letter: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{letter}{n}")).collect()
}

// Seen red with a baseline that is written only at the end of the run.
#[tokio::test]
async fn a_run_that_ends_early_does_not_forget_what_it_measured_against() {
    for writes in 1..=3 {
        let (mut repo, mut cluster) = held_back().await;
        repo.files.extend(pods(many("m", 30)));
        repo.commit("Many more");
        cluster.settle().await;
        replace_many(&mut repo);
        cluster.crash_after(writes, false);
        cluster.run().await;
        cluster.heal();
        cluster.restart();
        cluster.settle().await;
        assert_eq!(cluster.names().await.len(), 132, "after {writes} writes");
        assert!(cluster.status().await.held_prune.is_some());
    }
}

// Seen red with only the objects present at the first hold considered, and with that baseline kept.
#[tokio::test]
async fn too_much_of_what_came_since_is_held_whatever_comes_with_it() {
    let (mut repo, mut cluster) = held_back().await;
    repo.files.extend(pods(many("m", 30)));
    repo.commit("Many more");
    cluster.settle().await;
    replace_many(&mut repo);
    for _ in 0..3 {
        cluster.settle().await;
        let held = cluster.status().await.held_prune.expect("20 of 32");
        assert!(held.why.contains("20 of 32 objects"), "{}", held.why);
        assert_eq!((held.deletes, held.owned, cluster.names().await.len()), (20, 32, 132));
        cluster.restart();
    }
    repo.commit("Yes\n\nMinik8s-Allow-Prune: true\n");
    cluster.settle().await;
    assert_eq!(cluster.names().await.len(), 112);
}
