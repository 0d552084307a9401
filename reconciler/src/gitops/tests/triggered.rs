//! Commits start the runs that triggers name, once each, even if the process that applies them crashes.

use schema::codec::decode;
use schema::keys::prefix;
use schema::store::Store as _;
use serde_json::{Value, json};

use super::kit::{Cluster, Repo, pods};

const FLOW: &str = "apiVersion: minik8s.io/v1\nkind: Workflow\nmetadata: {name: import}\nspec:\n  triggers: \
                    [{name: data, onCommit: {paths: [/data/]}}]\n  startAt: a\n  states: {a: {type: Succeed}}\n";

/// Requested runs: id and input.
async fn asked(cluster: &Cluster) -> Vec<(String, Value)> {
    let items = cluster.store.list(prefix::RUN_REQUESTS).await.unwrap().items;
    let input = |value: &[u8]| decode::<Value>(value).unwrap()["input"]["inline"].clone();
    items.iter().map(|item| (item.key[prefix::RUN_REQUESTS.len()..].to_owned(), input(&item.value))).collect()
}

fn run_of(commit: &str) -> String {
    format!("default/import/data.{}", &commit[..12])
}

// Seen red with requests created after the revision (a run is missing after a crash), and without patterns (20 runs).
#[tokio::test]
async fn of_twenty_pushes_five_touch_the_paths_and_start_a_run_each() {
    let mut repo = Repo::new(pods(["a"]));
    repo.set("data/0", "before the trigger").set("import.yaml", FLOW);
    repo.commit("The trigger, and what it names");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    assert_eq!(asked(&cluster).await, [], "what was there at first is no change");
    let mut wanted = Vec::new();
    for number in 1..=20 {
        let is_data = number % 4 == 0;
        let path = if is_data { format!("data/{number}") } else { format!("other/data/{number}") };
        repo.set(&path, number.to_string());
        let commit = repo.commit(&format!("Push {number}"));
        if is_data {
            wanted.push((run_of(&commit), path, commit));
        }
        // Some are applied one by one, some together, and some just as the process dies.
        match number % 7 {
            1 | 2 => {}
            3 => {
                for writes in 0..3 {
                    cluster.crash_after(writes, writes % 2 == 0);
                    cluster.run().await;
                    cluster.heal();
                    cluster.restart();
                }
                cluster.settle().await;
            }
            _ => cluster.settle().await,
        }
    }
    cluster.settle().await;
    let mut wanted: Vec<_> = wanted
        .into_iter()
        .map(|(run, path, commit)| {
            let author = "Ada <ada@example.org>";
            let number = path.trim_start_matches("data/").to_owned();
            let subject = format!("Push {number}");
            (run, json!({"trigger": "data", "commit": commit, "author": author, "subject": subject, "paths": [path]}))
        })
        .collect();
    wanted.sort_by(|(one, _), (other, _)| one.cmp(other));
    assert_eq!(wanted.len(), 5);
    assert_eq!(asked(&cluster).await, wanted);
}

#[tokio::test]
async fn the_commit_that_brings_a_trigger_counts_and_one_that_takes_it_does_not() {
    let mut repo = Repo::new(pods(["a"]));
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    repo.set("import.yaml", FLOW).set("data/1", "1");
    let first = repo.commit("Both at once");
    cluster.settle().await;
    repo.remove("import.yaml").set("data/2", "2");
    repo.commit("No longer");
    cluster.settle().await;
    let runs: Vec<String> = asked(&cluster).await.into_iter().map(|(run, _)| run).collect();
    assert_eq!(runs, [run_of(&first)]);
}

#[tokio::test]
async fn after_a_loss_of_etcd_no_commit_of_before_starts_anything() {
    let mut repo = Repo::new(pods(["a"]));
    repo.set("import.yaml", FLOW);
    repo.commit("The trigger");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    repo.set("data/1", "1");
    repo.commit("Data");
    cluster.settle().await;
    assert_eq!(asked(&cluster).await.len(), 1);
    let store = schema::store::memory::MemoryStore::new();
    let mut cluster = Cluster::with(repo.config(), &repo.state(), store).await;
    cluster.settle().await;
    assert_eq!(asked(&cluster).await, []);
    repo.set("data/2", "2");
    let next = repo.commit("More data");
    cluster.settle().await;
    assert_eq!(asked(&cluster).await[0].0, run_of(&next));
}
