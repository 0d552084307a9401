//! A replica set on three nodes behind a service: clients notice neither rolling updates nor scaling nor commits
//! whose template does not work, and what people and crashes take away comes back.
//!
//! `MINIK8S_ROUNDS` says how often (2 updates and 4 scalings by default; 5 and 20 in a soak).

use std::collections::BTreeSet;

use harness::{
    Change, Clients, Cluster, ClusterOptions, Context, IMAGE, Result, Target, Where, ensure, eventually,
    rounds, secs,
};
use schema::keys::{Key, prefix};
use schema::kinds::Kind;
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::{PodInstance, Rollout, ServiceRecord, SourceStatus};

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: shop}\nspec:\n  \
                       selector: {app: shop}\n  ports: [{port: 80, targetPort: 8080}]\n";
/// What is asked between two changes, so that each is met by requests.
const ANSWERS: u64 = 20;
const SERVES: &str = "trap 'exit 0' TERM; echo open > /tmp/index.html; httpd -f -p 8080 -h /tmp & wait";

/// What its pods run.
struct Template<'a> {
    image: &'a str,
    command: &'a str,
    version: usize,
}

impl Template<'_> {
    fn good(version: usize) -> Self {
        Self { image: IMAGE, command: SERVES, version }
    }

    /// As a Deployment of Kubernetes, with `replicas` pods.
    fn push(&self, replicas: usize) -> Change {
        let Self { image, command, version } = self;
        let text = format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: shop}}\nspec:\n  replicas: {replicas}\n  \
             progressDeadlineSeconds: 12\n  selector: {{matchLabels: {{app: shop}}}}\n  template:\n    \
             metadata: {{labels: {{app: shop}}}}\n    spec:\n      terminationGracePeriodSeconds: 2\n      \
             containers:\n      - name: web\n        image: {image}\n        command: [sh, -c, {command:?}]\n        \
             env: [{{name: VERSION, value: \"{version}\"}}]\n        \
             readinessProbe: {{httpGet: {{path: /index.html, port: 8080}}, periodSeconds: 1}}\n        \
             lifecycle: {{preStop: {{exec: {{command: [sleep, \"1\"]}}}}}}\n"
        );
        Change::write("shop.yaml", text)
    }
}

fn workload() -> ObjectRef {
    ObjectRef { kind: Kind::ReplicaSet, namespace: "default".to_owned(), name: "shop".to_owned() }
}

fn rollout(cluster: &Cluster) -> Result<Rollout> {
    cluster.etcd.value(Key::Rollout(workload()))
}

/// Versions of the containers that Docker runs on all nodes, by name of their pod.
fn running(cluster: &Cluster) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for node in &cluster.nodes {
        for container in node.docker.containers(&cluster.slot().instance())? {
            let version = container.env.iter().find_map(|pair| pair.strip_prefix("VERSION="));
            if let Some(version) = version.filter(|_| container.running) {
                found.push((container.label("pod").to_owned(), version.to_owned()));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Waits until exactly `replicas` pods run, all of this version, and all are behind the service.
fn serves(cluster: &Cluster, replicas: usize, version: usize) -> Result<()> {
    eventually(&format!("{replicas} pods of version {version} run and serve"), secs(120), || {
        let running = running(cluster)?;
        ensure!(running.len() == replicas, "{running:?}");
        ensure!(running.iter().all(|(_, v)| *v == version.to_string()), "{running:?}");
        let record: ServiceRecord =
            cluster.etcd.value(Key::Service(NamespacedName::new("default", "shop")))?;
        ensure!(record.endpoints.len() == replicas, "{:?}", record.endpoints);
        Ok(())
    })
}

#[test]
fn nobody_notices_rollouts_scalings_and_commits_that_do_not_work() -> Result<()> {
    let (updates, scalings) = (rounds(2, 5), rounds(4, 20));
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        cluster.push(&[Change::write("service.yaml", SERVICE), Template::good(0).push(4)], "Open")?;
        serves(cluster, 4, 0)?;
        let nodes: BTreeSet<String> = cluster
            .etcd
            .list(prefix::BINDINGS)?
            .iter()
            .filter_map(|found| found.key.parse().ok())
            .filter_map(|key| if let Key::Binding(node, _) = key { Some(node) } else { None })
            .collect();
        ensure!(nodes.len() == 3, "the pods are on {nodes:?} alone");
        let record: ServiceRecord =
            cluster.etcd.value(Key::Service(NamespacedName::new("default", "shop")))?;
        let address = record.cluster_ip.context("no address")?;
        let mut clients: Vec<Clients> = cluster.nodes.iter().map(Clients::on).collect::<Result<_>>()?;
        for (client, node) in clients.iter_mut().zip(&cluster.nodes) {
            let url = format!("http://{address}/");
            eventually("the service answers", secs(20), || node.net.run("curl", &["-sf", "-m", "2", &url]))?;
            let (name, answer) = (format!("client on {}", node.name), "open".to_owned());
            client.ask(Target { name, address: format!("{address}:80"), answer })?;
        }
        let answered = |clients: &[Clients]| clients.iter().try_for_each(|client| client.answered(ANSWERS));

        for version in 1..=updates {
            cluster.push(&[Template::good(version).push(4)], "Roll")?;
            serves(cluster, 4, version)?;
            answered(&clients)?;
        }
        for round in 0..scalings {
            let replicas = [7, 2, 5, 4][round % 4];
            cluster.push(&[Template::good(updates).push(replicas)], "Scale")?;
            serves(cluster, replicas, updates)?;
            answered(&clients)?;
        }
        for (what, image, command, reason) in [
            ("an image that does not exist", "127.0.0.1:9/absent:1", SERVES, "Image"),
            ("one that ends", IMAGE, "echo no config >&2; exit 3", "CrashLoopBackOff"),
            ("one that is never ready", IMAGE, "sleep 1000", "NotReady"),
        ] {
            let commit = cluster.push(&[Template { image, command, version: 90 }.push(4)], what)?;
            let failure = eventually(&format!("{what} fails"), secs(90), || {
                rollout(cluster)?.failure.context("it has not failed")
            })?;
            println!("{what}: {}: {}", failure.reason, failure.message);
            ensure!(failure.reason.contains(reason), "{failure:?}");
            serves(cluster, 4, updates)?;
            answered(&clients)?;
            let waited =
                cluster.cli(&["wait", "--for", "healthy", "--commit", &commit, "--timeout", "60s"])?;
            ensure!(waited.code != 0, "{waited:?}");
        }
        cluster.push(&[Template::good(99).push(4)], "Mend")?;
        serves(cluster, 4, 99)?;
        for client in &mut clients {
            println!("rollouts: {} requests, none failed", client.end()?);
        }
        Ok(())
    })
}

#[test]
fn what_is_taken_away_during_a_rollout_comes_back_and_nothing_runs_twice() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        cluster.push(&[Change::write("service.yaml", SERVICE), Template::good(0).push(6)], "Open")?;
        serves(cluster, 6, 0)?;
        cluster.push(&[Template::good(1).push(6)], "Roll")?;
        for node in &cluster.nodes {
            let all = node.docker.containers(&cluster.slot().instance())?;
            for container in all.iter().step_by(3) {
                // It may be gone by itself by now.
                let _ = node.docker.run(&["rm", "-f", &container.id]);
            }
        }
        for pod in cluster.etcd.list(prefix::PODS)?.iter().step_by(3) {
            cluster.etcd.etcdctl(None, &["del", &pod.key])?;
        }
        serves(cluster, 6, 1)?;
        // Pods are named after their template, each once.
        let hash = Rollout::short(&rollout(cluster)?.wanted).to_owned();
        for (pod, _) in running(cluster)? {
            ensure!(PodInstance::workload_in_name(&pod) == Some("shop") && pod.contains(&hash), "{pod}");
        }
        // A commit elsewhere while a bad template is rolled out neither ends nor absolves that.
        let bad = Template { image: "127.0.0.1:9/absent:1", command: SERVES, version: 9 };
        cluster.push(&[bad.push(6)], "Break")?;
        let other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\ndata: {a: b}\n";
        cluster.push(&[Change::write("other.yaml", other)], "Elsewhere")?;
        eventually("the template fails", secs(90), || rollout(cluster)?.failure.context("not yet"))?;
        serves(cluster, 6, 1)?;
        let source: SourceStatus = cluster.etcd.value(Key::Source("main".to_owned()))?;
        ensure!(source.error.is_none(), "{source:?}");
        // Its removal takes all that is its own along.
        cluster.push(&[Change::remove("shop.yaml")], "Close")?;
        eventually("all pods are gone", secs(60), || {
            let running = running(cluster)?;
            ensure!(running.is_empty(), "{running:?}");
            for prefix in [prefix::PODS, prefix::ROLLOUTS, prefix::TEMPLATES] {
                let left = cluster.etcd.list(prefix)?;
                ensure!(left.is_empty(), "{left:?}");
            }
            Ok(())
        })
    })
}
