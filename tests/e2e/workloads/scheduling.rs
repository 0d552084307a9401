//! The scheduler follows pushes of the Cluster object and of Node objects while it runs: the nodes on which Docker
//! then runs new pods, and the message for a pod that fits nowhere.

use std::collections::BTreeMap;
use std::time::Instant;

use harness::{Change, Cluster, ClusterOptions, Context, IMAGE, Result, Where, ensure, eventually, secs};
use serde_json::Value;

use super::{cluster_file, node_file};

/// Equal pods that only sleep, with further lines of their spec.
fn set(name: &str, replicas: usize, spec: &str) -> Change {
    asking(name, replicas, spec, "")
}

/// Like `set`, with the requests of the container.
fn asking(name: &str, replicas: usize, spec: &str, requests: &str) -> Change {
    let text = format!(
        "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {{name: {name}}}\nspec:\n  replicas: {replicas}\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n    \
         spec:\n      terminationGracePeriodSeconds: 0\n{spec}      containers:\n      - name: main\n        \
         image: {IMAGE}\n        command: [sleep, \"100000\"]\n        resources: {{requests: {{{requests}}}}}\n"
    );
    Change::write(format!("{name}.yaml"), text)
}

fn pod(name: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n{more}  \
         containers:\n  - name: main\n    image: {IMAGE}\n    command: [sleep, \"100000\"]\n"
    )
}

/// Number of running containers per node, in node order, of pods whose name starts with `prefix`.
fn placed(cluster: &Cluster, prefix: &str) -> Result<Vec<usize>> {
    let mut counts = Vec::new();
    for node in &cluster.nodes {
        let all = node.docker.containers(&cluster.slot().instance())?;
        let own = |name: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('-'));
        let own = all.iter().filter(|c| c.running && c.label("container") == "main" && own(c.label("pod")));
        counts.push(own.count());
    }
    Ok(counts)
}

/// Waits until this number of pods runs.
fn run(cluster: &Cluster, prefix: &str, wanted: usize) -> Result<Vec<usize>> {
    eventually(&format!("{wanted} pods of {prefix} run"), secs(60), || {
        let placed = placed(cluster, prefix)?;
        ensure!(placed.iter().sum::<usize>() == wanted, "{placed:?}");
        Ok(placed)
    })
}

/// Waits until each node runs its number of pods.
fn land(cluster: &Cluster, prefix: &str, wanted: [usize; 3]) -> Result<()> {
    let placed = run(cluster, prefix, wanted.iter().sum())?;
    ensure!(placed == wanted, "pods of {prefix} are placed {placed:?}, not {wanted:?}");
    Ok(())
}

/// Node of each pod as predicted by the plan of the clone's HEAD.
fn expected_plan(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let (repo, server) = (cluster.repo.work().to_string_lossy().into_owned(), cluster.server(0));
    let plan = cluster.cli(&["plan", "--repo", &repo, "--server", &server, "-o", "json"])?;
    let plan: Value = serde_json::from_str(&plan.stdout).with_context(|| format!("{plan:?}"))?;
    let placements = plan["placements"].as_array().context("no placements")?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let all = placements.iter().map(|one| Some((text(&one["pod"])?, text(&one["node"])?)));
    all.collect::<Option<_>>().with_context(|| format!("{placements:?}"))
}

fn strategy(word: &str) -> Change {
    cluster_file(&format!("schedulerStrategy: {word}"))
}

// Seen red with a `Strategy::of` that always spreads.
#[test]
fn a_pushed_strategy_holds_for_the_next_pods_and_moves_no_other() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        // Without a setting in Git: spread.
        cluster.push(&[set("spread", 3, "")], "Open")?;
        land(cluster, "spread", [1, 1, 1])?;
        let before = cluster.lives()?;
        // All on one node. A strategy and its pods may come in one commit.
        cluster.push(&[strategy("max-pods"), set("max", 3, "")], "Fill a node before the next")?;
        let max = run(cluster, "max", 3)?;
        let full = max.iter().position(|pods| *pods == 3).with_context(|| format!("{max:?}"))?;
        // One after another, so that the node whose turn it was is known; the full node, too, which spread would
        // leave alone because it has the most pods.
        cluster.push(&[strategy("round-robin")], "In turn")?;
        for (turn, name) in ["turn-a", "turn-b", "turn-c"].into_iter().enumerate() {
            cluster.push(&[Change::write(format!("{name}.yaml"), pod(name, ""))], "Next")?;
            let turns = run(cluster, "turn", turn + 1)?;
            ensure!(turns.iter().all(|pods| *pods <= 1), "{turns:?}");
            // The full node was the last to get pods.
            ensure!((turns[full] == 1) == (turn == 2), "{turns:?}, and {full} is the full one");
        }
        // Nothing on the full node, although it has no pod of this owner.
        cluster.push(&[strategy("min-pods"), set("min", 3, "")], "Fewest pods")?;
        let min = run(cluster, "min", 3)?;
        ensure!(min[full] == 0, "{min:?}, and {full} is the full one");
        // Nothing where most memory is requested, although that node has no pod of this owner.
        let big = (full + 1) % 3;
        let there = format!("      nodeName: {}\n", cluster.nodes[big].name);
        cluster.push(&[asking("big", 1, &there, "memory: 64Mi")], "Memory on one node")?;
        run(cluster, "big", 1)?;
        cluster.push(&[strategy("min-memory"), asking("small", 3, "", "memory: 16Mi")], "Least memory")?;
        let small = run(cluster, "small", 3)?;
        ensure!(
            small[big] == 0 && small.iter().all(|pods| *pods <= 2),
            "{small:?}, and {big} is the big one"
        );
        // At random, with a kept seed, so that anyone can repeat the draw. A plan predicts it before the push.
        let lot = [strategy("random"), set("lot", 2, "")];
        cluster.repo.propose(&lot, "By lot")?;
        let expected_plan = expected_plan(cluster)?;
        cluster.push(&[], "Merge")?;
        run(cluster, "lot", 2)?;
        let mut drawn = BTreeMap::new();
        for node in &cluster.nodes {
            let all = node.docker.containers(&cluster.slot().instance())?;
            let lots = all.iter().filter(|one| one.label("pod").starts_with("lot-"));
            drawn.extend(lots.map(|one| (one.label("pod").to_owned(), node.name.clone())));
        }
        ensure!(expected_plan == drawn, "the plan says {expected_plan:?}, and it is {drawn:?}");
        let reasons: Vec<String> = cluster
            .etcd
            .list("/minik8s/bindings/")?
            .into_iter()
            .filter(|found| found.key.contains("/lot-"))
            .map(|found| found.value)
            .collect();
        ensure!(
            reasons.len() == 2 && reasons.iter().all(|why| why.contains("was drawn with the seed")),
            "{reasons:?}"
        );
        let after = cluster.lives()?;
        let kept: BTreeMap<_, _> = after.into_iter().filter(|(id, _)| before.contains_key(id)).collect();
        ensure!(kept == before, "{kept:?}, not {before:?}");
        Ok(())
    })
}

// Seen red with a taint filter that ignores the taint's value.
#[test]
fn node_objects_say_who_gets_which_pods_and_a_pod_without_a_place_says_why() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let names: Vec<String> = cluster.nodes.iter().map(|node| node.name.clone()).collect();
        let gpu = "      tolerations: [{key: dedicated, operator: Equal, value: gpu, effect: NoSchedule}]\n      \
                   nodeSelector: {disk: fast}\n";
        let files = [
            node_file(&names[1], "disk: ssd", ""),
            node_file(&names[2], "disk: fast", "taints: [{key: dedicated, value: gpu, effect: NoSchedule}]"),
            set("ssd", 2, "      nodeSelector: {disk: ssd}\n"),
            set("gpu", 2, gpu),
            set("any", 4, ""),
            set(
                "brief",
                2,
                "      tolerations: [{key: repair, operator: Exists, effect: NoExecute, tolerationSeconds: 10}]\n",
            ),
        ];
        cluster.push(&files, "Open")?;
        land(cluster, "brief", [1, 1, 0])?;
        land(cluster, "ssd", [0, 2, 0])?;
        land(cluster, "gpu", [0, 0, 2])?;
        land(cluster, "any", [2, 2, 0])?;

        // A pod that fits nowhere reports how many nodes failed which filter.
        let files = [
            Change::write("tape-0.yaml", pod("tape-0", "  nodeSelector: {disk: tape}\n")),
            Change::write("huge.yaml", pod("huge-0", "") + "    resources: {requests: {cpu: \"900\"}}\n"),
        ];
        cluster.push(&files, "Two that fit nowhere")?;
        for (name, wanted) in [
            ("tape-0", "2 without the labels of nodeSelector (disk=tape)"),
            ("huge-0", "2 not enough cpu (wants 900, at most free "),
        ] {
            let page = eventually("it says why", secs(20), || {
                let page = cluster.cli(&["describe", &format!("pod/{name}")])?.ok()?;
                ensure!(page.split_whitespace().collect::<Vec<_>>().join(" ").contains(wanted), "{page}");
                Ok(page.split_whitespace().collect::<Vec<_>>().join(" "))
            })?;
            let taint = "1 with the taint dedicated=gpu:NoSchedule that the pod does not tolerate";
            ensure!(page.contains("0/3 nodes fit") && page.contains(taint), "{page}");
        }
        // A pushed label gives one pod a node; a taint evicts the pods that do not tolerate it.
        let files = [
            node_file(&names[0], "disk: tape", ""),
            node_file(&names[1], "disk: ssd", "taints: [{key: repair, effect: NoExecute}]"),
        ];
        cluster.push(&files, "Another label, another taint")?;
        let tainted = Instant::now();
        land(cluster, "tape", [1, 0, 0])?;
        eventually("the node is empty but for what fits nowhere else", secs(60), || {
            let any = placed(cluster, "any")?;
            ensure!(any == [4, 0, 0], "{any:?}");
            Ok(())
        })?;
        // A pod that tolerates it for a while leaves after that time.
        eventually("the node is left", secs(60), || {
            let brief = placed(cluster, "brief")?;
            ensure!(brief == [2, 0, 0], "{brief:?}");
            Ok(())
        })?;
        ensure!(tainted.elapsed() >= secs(10), "gone after {:?}", tainted.elapsed());
        Ok(())
    })
}
