//! Nodes whose clocks are an hour ahead and an hour behind: they count as live and as lost when the right one would,
//! their pods are restarted, drained and scaled as usual, and no age of an object is off by an hour.

use harness::{
    Change, Cluster, ClusterOptions, Context as _, Daemon, IMAGE, Result, Where, bail, ensure, eventually,
    secs,
};

use crate::workloads::{Runs, Workload, per_node};

const CLUSTER: &str = "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {name: cluster}\n\
                       spec: {nodes: {evictAfterSeconds: 5}}\n";

/// Node number, name of its workload, and offset of its clock.
const WRONG: [(usize, &str, &str); 2] = [(2, "ahead", "+1h"), (3, "behind", "-1h")];

/// Library that changes the clock of a process (package libfaketime).
fn faketime() -> Result<String> {
    for folder in std::fs::read_dir("/usr/lib")? {
        let file = folder?.path().join("faketime/libfaketimeMT.so.1");
        if file.exists() {
            return Ok(file.to_string_lossy().into_owned());
        }
    }
    bail!("libfaketime is not installed")
}

/// Changes a daemon's clock from its next start on: `+1h`, `-10m`.
pub(crate) fn set_clock(daemon: &mut Daemon, offset: &str) -> Result<()> {
    daemon.set_env("LD_PRELOAD", &faketime()?);
    daemon.set_env("FAKETIME", offset);
    daemon.set_env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    daemon.set_env("NO_FAKE_STAT", "1");
    Ok(())
}

/// A workload on one node that uses twice the memory it requests, and its autoscaler.
fn greedy(name: &str, node: &str) -> Change {
    let hold = "x=$(head -c 8000000 /dev/zero | tr '\\0' a); trap 'exit 0' TERM; sleep 1000 & wait $!";
    let labels = format!("{{app: {name}}}");
    let text = format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: 1\n  \
         selector: {{matchLabels: {labels}}}\n  template:\n    metadata: {{labels: {labels}}}\n    spec:\n      \
         nodeSelector: {{kubernetes.io/hostname: {node}}}\n      terminationGracePeriodSeconds: 1\n      \
         containers:\n      - name: web\n        image: {IMAGE}\n        command: [sh, -c, {hold:?}]\n        \
         env: [{{name: VERSION, value: \"0\"}}]\n        resources: {{requests: {{memory: 4Mi}}}}\n\
         ---\napiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {{name: {name}}}\nspec:\n  \
         scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}\n  minReplicas: 1\n  \
         maxReplicas: 2\n  metrics:\n  - type: Resource\n    \
         resource: {{name: memory, target: {{type: Utilization, averageUtilization: 50}}}}\n"
    );
    Change::write(format!("{name}.yaml"), text)
}

fn count(cluster: &Cluster, workload: &Workload, wanted: usize) -> Result<Vec<Runs>> {
    eventually(&format!("{wanted} pods of {} run", workload.name), secs(90), || {
        let running = workload.running(cluster)?;
        ensure!(running.len() == wanted, "{running:?}");
        Ok(running)
    })
}

/// Checks that no age on this page is of ten minutes or more.
fn is_recent(page: &str) -> Result<()> {
    let words = page.split(|c: char| c.is_whitespace() || "()".contains(c));
    for word in words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit() || c == '-')) {
        let is_hours =
            word.ends_with('h') || word.split_once('h').is_some_and(|(_, rest)| rest.ends_with('m'));
        let is_long = word.split_once('m').is_some_and(|(minutes, _)| minutes.len() > 1);
        ensure!(!is_hours && !is_long, "{word} in:\n{page}");
    }
    Ok(())
}

#[test]
fn nodes_whose_clocks_are_wrong_are_treated_as_others() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    let mut cluster = Cluster::prepare(options)?;
    for (number, _, offset) in WRONG {
        set_clock(&mut cluster.nodes[number - 1].agent, offset)?;
    }
    cluster.run_story(|cluster| {
        cluster.start_all()?;
        let (mut shop, greedy_ones) =
            (Workload::new("shop", 3), WRONG.map(|(_, name, _)| Workload::new(name, 1)));
        let mut files = vec![Change::write("cluster.yaml", CLUSTER), shop.file(), shop.service()];
        for (number, name, _) in WRONG {
            files.push(greedy(name, &cluster.numbered(number)?.name));
        }
        cluster.push(&files, "Open")?;
        let first = count(cluster, &shop, 3)?;
        ensure!(per_node(&first).len() == 3, "{first:?}");
        shop.serves(cluster)?;

        // Containers that end are restarted, by the same pods.
        for (number, ..) in WRONG {
            let node = cluster.numbered(number)?;
            for container in node.docker.containers(&cluster.slot().instance())? {
                if container.label("container") == "web" && container.label("pod").starts_with("shop-") {
                    node.docker.run(&["kill", &container.id])?;
                }
            }
        }
        let restarted = eventually("the killed ones run again", secs(60), || {
            let now = shop.running(cluster)?;
            let changed = now.iter().filter(|runs| !first.contains(runs)).count();
            ensure!(now.len() == 3 && changed == WRONG.len(), "{now:?}");
            Ok(now)
        })?;
        ensure!(restarted.iter().zip(&first).all(|(now, then)| now.pod == then.pod), "{restarted:?}");
        shop.serves(cluster)?;

        // Their reports of usage count.
        for (workload, (_, name, _)) in greedy_ones.iter().zip(WRONG) {
            let page = || cluster.cli(&["describe", &format!("hpa/{name}")]).map(|said| said.stdout);
            count(cluster, workload, 2).with_context(|| page().unwrap_or_default())?;
        }
        // Replaced pods are drained and end.
        cluster.push(&[shop.roll()], "Next version")?;
        shop.serves(cluster)?;
        // Events have the time of the node that reports them, as in Kubernetes.
        for what in ["pods", "nodes", "all"] {
            is_recent(&cluster.cli(&["get", what])?.ok()?)?;
        }
        let nodes = cluster.cli(&["get", "nodes"])?.ok()?;
        ensure!(nodes.matches(" Ready ").count() == 3, "{nodes}");
        let events = cluster.cli(&["events", "-A"])?.ok()?;
        ensure!(!events.contains("Evicted") && !events.contains("HeartbeatExpired"), "{events}");

        for (number, ..) in WRONG {
            let lost = cluster.numbered(number)?.name.clone();
            cluster.nodes[number - 1].agent.kill()?;
            eventually("the pods of the lost node run elsewhere", secs(60), || {
                let running = shop.running(cluster)?;
                ensure!(running.iter().filter(|runs| runs.node != lost).count() == 3, "{running:?}");
                Ok(())
            })?;
            cluster.nodes[number - 1].agent.start()?;
            shop.serves(cluster)?;
        }
        Ok(())
    })
}
