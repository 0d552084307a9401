//! Drains of nodes whose pods a disruption budget covers: one pod goes at a time, whoever leads; and a budget that
//! can't be met holds the drain until Git removes it.

use std::collections::BTreeSet;

use harness::{
    Change, Cluster, ClusterOptions, Context, Happened, Moment, Result, Timeline, Where, ensure, eventually,
    holds, secs,
};
use schema::keys::Key;
use schema::meta::NamespacedName;
use schema::records::ServiceRecord;

use super::{Workload, node_file, per_node};

/// Serves two seconds after its start.
const SERVES_LATE: &str = "trap 'exit 0' TERM; sleep 2 & wait $!; echo open > /tmp/index.html; \
                           httpd -f -p 8080 -h /tmp & wait";
/// Time after its start from which a pod counts as serving. Shorter than its sleep, because Docker reports a start
/// after it.
const SERVES_AFTER_NANOS: i64 = 1_500_000_000;

/// A disruption budget for the pods `app: web`.
fn budget(name: &str, fields: &str) -> Change {
    let text = format!(
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {{name: {name}}}\nspec:\n  {fields}\n  \
         selector: {{matchLabels: {{app: web}}}}\n"
    );
    Change::write(budget_path(name), text)
}

fn budget_path(name: &str) -> String {
    format!("budget-{name}.yaml")
}

/// Page of a node, each gap one space.
fn page(cluster: &Cluster, node: &str) -> Result<String> {
    let page = cluster.cli(&["describe", &format!("node/{node}")])?.ok()?;
    Ok(page.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Waits until the node is shown as drained.
fn drained(cluster: &Cluster, node: &str) -> Result<()> {
    eventually("the node is shown as drained", secs(60), || {
        let page = page(cluster, node)?;
        ensure!(page.contains("drained") && !page.contains("draining"), "{page}");
        Ok(())
    })
}

/// Least number of containers that served at the same time, from when `all` of them first did. One serves until its
/// SIGTERM.
fn least_serving(moments: &[&Moment], all: usize) -> Option<usize> {
    let step = |moment: &&Moment| match moment.happened {
        Happened::Began => (moment.at_nanos + SERVES_AFTER_NANOS, moment.id.clone(), true),
        Happened::Signalled | Happened::Ended => (moment.at_nanos, moment.id.clone(), false),
    };
    let mut steps: Vec<(i64, String, bool)> = moments.iter().map(step).collect();
    steps.sort_unstable();
    let (mut serving, mut gone, mut least) = (BTreeSet::new(), BTreeSet::new(), None);
    for (_, id, serves) in steps {
        if !serves {
            serving.remove(&id);
            gone.insert(id);
        } else if !gone.contains(&id) {
            serving.insert(id);
        }
        if least.is_some() || serving.len() == all {
            least = least.min(Some(serving.len())).or(Some(serving.len()));
        }
    }
    least
}

/// Least number of endpoints that the service had after a revision of etcd.
fn least_endpoints(cluster: &Cluster, since: i64) -> Result<Option<usize>> {
    let key = Key::Service(NamespacedName::new("default", "web")).to_string();
    let mut least = None;
    for change in cluster.etcd.changes(&key, since)? {
        let record: ServiceRecord = serde_json::from_str(&change.value.context("the service was removed")?)?;
        let endpoints = record.endpoints.len();
        least = Some(least.map_or(endpoints, |least: usize| least.min(endpoints)));
    }
    Ok(least)
}

#[test]
fn of_two_drained_nodes_one_pod_goes_at_a_time_whoever_leads() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let timeline = Timeline::begin(cluster)?;
        let mut web = Workload::new("web", 4);
        web.command = SERVES_LATE;
        web.more = "  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 3}}\n".to_owned();
        cluster.push(&[web.service(), web.file(), budget("web", "maxUnavailable: 1")], "Open")?;
        let before = web.serves(cluster)?;
        ensure!(per_node(&before).len() == 3, "{before:?}");
        let names: Vec<String> = cluster.nodes.iter().map(|node| node.name.clone()).collect();

        let since = cluster.etcd.revision()?;
        let drains = [node_file(&names[0], "", "drain: true"), node_file(&names[1], "", "drain: true")];
        cluster.push(&drains, "Drain two nodes")?;
        eventually("the first pod leaves", secs(30), || {
            let moments = timeline.moments()?;
            let mut own = web.moments(&moments).into_iter();
            ensure!(own.any(|moment| moment.happened == Happened::Signalled), "none has got SIGTERM");
            Ok(())
        })?;
        cluster.reconcilers[0].kill()?;
        let mut running = web.running(cluster)?.into_iter();
        let is_left = running.any(|runs| runs.node != names[2] && before.contains(&runs));
        ensure!(is_left, "the leader was killed when all had left");
        cluster.reconcilers[0].start()?;
        cluster.wait_reconciler(0)?;

        drained(cluster, &names[0])?;
        drained(cluster, &names[1])?;
        let after = web.serves(cluster)?;
        ensure!(per_node(&after).get(names[2].as_str()) == Some(&4), "{after:?}");
        let moments = timeline.moments()?;
        let served = least_serving(&web.moments(&moments), 4);
        let endpoints = least_endpoints(cluster, since)?;
        println!("budgets: at least {served:?} of 4 pods served, at least {endpoints:?} were endpoints");
        ensure!(served.is_some_and(|least| least >= 3), "{:#?}", web.moments(&moments));
        ensure!(endpoints.is_some_and(|least| least >= 3), "{endpoints:?}");
        Ok(())
    })
}

#[test]
fn a_drain_waits_for_a_budget_that_cannot_be_met_until_git_removes_it() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(2), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let web = Workload::new("web", 2);
        let files = [web.file(), budget("web", "maxUnavailable: 1"), budget("greedy", "minAvailable: 9")];
        cluster.push(&files, "Open")?;
        let before = web.serves(cluster)?;
        ensure!(per_node(&before).len() == 2, "{before:?}");
        let node = cluster.numbered(2)?.name.clone();
        let stays = before.iter().find(|runs| runs.node == node).context("no pod on the node")?;

        cluster.push(&[node_file(&node, "", "drain: true")], "Drain")?;
        eventually("the node says for which budget it waits", secs(20), || {
            let page = page(cluster, &node)?;
            ensure!(page.contains("draining, 1 pod left"), "{page}");
            ensure!(page.contains("as it would violate the pod's disruption budget"), "{page}");
            ensure!(page.contains("the disruption budget greedy needs 9 healthy pods"), "{page}");
            Ok(())
        })?;
        eventually("an event says so", secs(20), || {
            let events = cluster.cli(&["events"])?.ok()?;
            ensure!(events.contains("EvictionRefused"), "{events}");
            Ok(())
        })?;
        // Its successor may run beside it.
        holds("the pod stays", secs(3), || {
            let running = web.running(cluster)?;
            ensure!(running.contains(stays), "{running:?}");
            Ok(())
        })?;

        cluster.push(&[Change::remove(budget_path("greedy"))], "Remove the budget")?;
        drained(cluster, &node)?;
        let after = web.serves(cluster)?;
        ensure!(!per_node(&after).contains_key(node.as_str()), "{after:?}");
        Ok(())
    })
}
