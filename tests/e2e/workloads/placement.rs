//! Placement by Kubernetes' rules: replicas that exclude each other, also while they are replaced; a pod and a daemon
//! set that choose nodes. And two workloads of older versions with the same labels.

use std::collections::{BTreeMap, BTreeSet};

use harness::{
    Change, Cluster, ClusterOptions, Context, IMAGE, Result, Timeline, Where, ensure, eventually,
    most_at_once, secs,
};
use schema::keys::{Key, prefix};
use schema::meta::NamespacedName;
use schema::records::ServiceRecord;

use super::{Workload, node_file, per_node};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
/// Keeps pods `app: web` apart. The line ends the list of containers: it is the pod's.
const APART: &str = "      affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
                     [{labelSelector: {matchLabels: {app: web}}, topologyKey: kubernetes.io/hostname}]}}\n";
/// Serves its pod's name.
const SERVES_NAME: &str = "trap 'exit 0' TERM; hostname > /tmp/index.html; httpd -f -p 8080 -h /tmp & wait";
/// Asks an address for many answers.
const ASK: &str = "for i in $(seq 60); do curl -sf -m 2 $0; done";

/// Spec of a pod that only sleeps on nodes that match the term, in one line.
fn sleeps_where(term: &str) -> String {
    format!(
        "{{terminationGracePeriodSeconds: 0, affinity: {{nodeAffinity: {{{REQUIRED}: {{nodeSelectorTerms: \
         [{{{term}}}]}}}}}}, containers: [{{name: main, image: \"{IMAGE}\", command: [sleep, \"100000\"]}}]}}"
    )
}

/// A pod for nodes with solid-state disks.
fn ssd() -> Change {
    let spec = sleeps_where("matchExpressions: [{key: disk, operator: In, values: [ssd]}]");
    Change::write("ssd.yaml", format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: ssd}}\nspec: {spec}\n"))
}

/// A daemon set for all nodes but one.
fn edge(without: &str) -> Change {
    let spec =
        sleeps_where(&format!("matchFields: [{{key: metadata.name, operator: NotIn, values: [{without}]}}]"));
    let text = format!(
        "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {{name: edge}}\nspec:\n  \
         selector: {{matchLabels: {{app: edge}}}}\n  template:\n    metadata: {{labels: {{app: edge}}}}\n    \
         spec: {spec}\n"
    );
    Change::write("edge.yaml", text)
}

/// A workload `app: redis` without a selector.
fn redis(version: &str, kind: &str, name: &str, replicas: usize, template: usize) -> Change {
    let text = format!(
        "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n  replicas: {replicas}\n  \
         template:\n    metadata: {{labels: {{app: redis}}}}\n    spec:\n      terminationGracePeriodSeconds: 2\n      \
         containers:\n      - name: main\n        image: {IMAGE}\n        command: [sh, -c, {SERVES_NAME:?}]\n        \
         env: [{{name: VERSION, value: \"{template}\"}}]\n        \
         readinessProbe: {{httpGet: {{path: /index.html, port: 8080}}, periodSeconds: 1}}\n"
    );
    Change::write(format!("{name}.yaml"), text)
}

fn follower(template: usize) -> Change {
    redis("v1", "ReplicationController", "follower", 2, template)
}

fn leader() -> Change {
    redis("apps/v1beta1", "Deployment", "leader", 1, 0)
}

/// Node and id of running containers `main`, by pod.
type Mains = BTreeMap<String, (String, String)>;

/// Running containers of a workload, or of the pod with that name.
fn mains(cluster: &Cluster, owner: &str) -> Result<Mains> {
    let mut found = BTreeMap::new();
    for node in &cluster.nodes {
        for container in node.docker.containers(&cluster.slot().instance())? {
            let pod = container.label("pod").to_owned();
            let is_owned =
                pod.strip_prefix(owner).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
            if container.running && container.label("container") == "main" && is_owned {
                found.insert(pod, (node.name.clone(), container.id.clone()));
            }
        }
    }
    Ok(found)
}

/// Waits until the owner has one running container on each of these nodes and no other.
fn runs_on(cluster: &Cluster, owner: &str, wanted: &[&str]) -> Result<()> {
    eventually(&format!("{owner} runs on {wanted:?}"), secs(45), || {
        let mains = mains(cluster, owner)?;
        let mut nodes: Vec<&str> = mains.values().map(|(node, _)| node.as_str()).collect();
        nodes.sort_unstable();
        ensure!(nodes == wanted, "{mains:?}");
        Ok(())
    })
}

/// Waits until the pods of both workloads answer through the service, and no other, none of them a `former` one of the
/// follower; returns those of the follower and those of the leader.
fn answering(cluster: &Cluster, former: &Mains) -> Result<(Mains, Mains)> {
    eventually("three pods answer through the service", secs(45), || {
        let (followers, leaders) = (mains(cluster, "follower")?, mains(cluster, "leader")?);
        ensure!(followers.len() == 2 && leaders.len() == 1, "{followers:?}, {leaders:?}");
        ensure!(followers.keys().all(|pod| !former.contains_key(pod)), "{followers:?} of {former:?}");
        let record: ServiceRecord =
            cluster.etcd.value(Key::Service(NamespacedName::new("default", "redis")))?;
        ensure!(record.endpoints.len() == 3, "{:?}", record.endpoints);
        let url = format!("http://{}/", record.cluster_ip.context("no address")?);
        let said = cluster.node().net.run("sh", &["-c", ASK, &url])?;
        let answers: BTreeSet<&str> = said.lines().collect();
        let pods: BTreeSet<&str> = followers.keys().chain(leaders.keys()).map(String::as_str).collect();
        ensure!(answers == pods, "{answers:?} of {pods:?}");
        Ok((followers, leaders))
    })
}

/// Waits until a pod of the workload waits because of those on all nodes.
fn fourth_waits(cluster: &Cluster, web: &Workload) -> Result<()> {
    eventually("the fourth pod says why it waits", secs(20), || {
        let running = web.running(cluster)?;
        ensure!(running.len() == 3, "{running:?}");
        let mut waiting = Vec::new();
        for found in cluster.etcd.list(prefix::PODS)? {
            if let Ok(Key::Pod(pod)) = found.key.parse()
                && web.owns(&pod.name)
                && running.iter().all(|runs| runs.pod != pod.name)
            {
                waiting.push(pod.name);
            }
        }
        let [waiting] = waiting.as_slice() else { harness::bail!("{waiting:?} wait") };
        let page = cluster.cli(&["describe", &format!("pod/{waiting}")])?.ok()?;
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(page.contains("Pending"), "{page}");
        ensure!(page.contains("0/3 nodes fit: 3 node(s) didn't match pod anti-affinity rules"), "{page}");
        Ok(())
    })
}

#[test]
fn pods_run_where_their_affinity_allows_and_each_workload_keeps_its_own() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let timeline = Timeline::begin(cluster)?;
        let names: Vec<String> = cluster.nodes.iter().map(|node| node.name.clone()).collect();
        let mut web = Workload::new("web", 3);
        web.more = "  strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}\n".to_owned();
        web.container = APART;
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: redis}\nspec:\n  selector: {app: redis}\n  \
                       ports: [{port: 80, targetPort: 8080}]\n";
        let files = [
            node_file(&names[1], "disk: ssd", ""),
            web.file(),
            ssd(),
            edge(&names[0]),
            follower(0),
            leader(),
            Change::write("redis.yaml", service),
        ];
        cluster.push(&files, "Open")?;
        let running = web.serves(cluster)?;
        ensure!(per_node(&running).len() == 3, "{running:?}");
        runs_on(cluster, "ssd", &[&names[1]])?;
        runs_on(cluster, "edge", &[&names[1], &names[2]])?;
        let (followers, leaders) = answering(cluster, &Mains::new())?;

        cluster.push(&[web.scale(4)], "One more than nodes")?;
        fourth_waits(cluster, &web)?;

        web.replicas = 3;
        let commit = cluster.push(&[web.roll(), follower(1)], "Three again, and two changed templates")?;
        let running = web.serves(cluster)?;
        ensure!(per_node(&running).len() == 3, "{running:?}");
        let (_, same) = answering(cluster, &followers)?;
        ensure!(same == leaders, "the leader was touched: {same:?}, not {leaders:?}");
        cluster.cli(&["wait", "--for", "healthy", "--commit", &commit, "--timeout", "30s"])?.ok()?;
        let moments = timeline.moments()?;
        for name in &names {
            let there = web.moments(&moments).into_iter().filter(|moment| moment.node == *name);
            let most = most_at_once(there);
            ensure!(most == 1, "{most} pods of web were on {name} at once: {:#?}", web.moments(&moments));
        }
        runs_on(cluster, "ssd", &[&names[1]])?;
        runs_on(cluster, "edge", &[&names[1], &names[2]])
    })
}
