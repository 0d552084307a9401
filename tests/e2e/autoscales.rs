//! An autoscaler on real containers: load raises the pods to their maximum, its end lowers them again, and commits
//! in between never reset the number. `MINIK8S_ROUNDS` is the number of rounds (one by default, 20 in a soak).

use std::collections::BTreeSet;
use std::time::Instant;

use harness::{
    Change, Cluster, ClusterOptions, ContainerView, Context as _, IMAGE, Result, Where, ensure, eventually,
    rounds, secs,
};
use schema::keys::Key;
use schema::kinds::Kind;
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::{AutoscalerRecord, ScaleRecord, ServiceRecord};

const SAMPLE_IMAGE: &str = "minik8s-sample/busybox:1";

/// The sample's load, whose pods use the resources requested over HTTP, and its autoscaler of 1 to 4 pods. It counts
/// memory, too, which a pod gets however busy the machine is; in a soak, whose many rounds would take too long otherwise,
/// memory alone, and it scales down immediately.
fn load() -> String {
    let sample = include_str!("../../sample-repo/apps/load.yaml").replace(SAMPLE_IMAGE, IMAGE);
    let (cpu, memory) = ("        name: cpu\n", "        name: memory\n");
    if is_soak() {
        let by_memory = sample.replace(cpu, memory);
        return by_memory.replace("stabilizationWindowSeconds: 15", "stabilizationWindowSeconds: 0");
    }
    let metric = "        target: {type: Utilization, averageUtilization: 50}\n";
    let second = format!("{metric}    - type: Resource\n      resource:\n{memory}{metric}");
    sample.replace(metric, &second)
}

fn is_soak() -> bool {
    rounds(0, 1) > 0
}

fn running(cluster: &Cluster) -> Result<Vec<ContainerView>> {
    let all = cluster.containers()?;
    Ok(all.into_iter().filter(|one| one.running && one.label("container") == "load").collect())
}

fn count(cluster: &Cluster, wanted: usize) -> Result<Vec<ContainerView>> {
    let running = running(cluster)?;
    ensure!(running.len() == wanted, "{} containers run, not {wanted}", running.len());
    Ok(running)
}

/// Sets the pod's usage, for example `cpu=300`.
fn ask(cluster: &Cluster, container: &ContainerView, what: &str) -> Result<String> {
    let pod = cluster.pod(container.label("pod"))?;
    let url = format!("http://{}:8080/cgi-bin/load?{what}", pod.address()?);
    cluster.node().net.run("curl", &["-sf", "-m", "2", &url])
}

/// Pods that answer 100 requests to the Service's address.
fn answering(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let record: ServiceRecord = cluster.etcd.value(Key::Service(NamespacedName::new("default", "load")))?;
    let url = format!("http://{}/", record.cluster_ip.context("no address")?);
    let ask = "for i in $(seq 100); do curl -sf -m 2 $0; done";
    let said = cluster.node().net.run("sh", &["-c", ask, &url])?;
    Ok(said.lines().map(str::to_owned).collect())
}

/// Puts load on the pod until there are four: by CPU until there are more than one, then by memory, because a busy machine
/// gives it too little CPU for four.
fn grow(cluster: &Cluster, container: &ContainerView) -> Result<Vec<ContainerView>> {
    let asked = Instant::now();
    if !is_soak() {
        eventually("it is asked for more", secs(20), || ask(cluster, container, "cpu=400"))?;
        eventually("a second container runs", secs(120), || {
            ensure!(running(cluster)?.len() > 1, "one container runs");
            Ok(())
        })?;
        println!("a second container ran {:.1?} after the load began", asked.elapsed());
    }
    eventually("it is asked for more", secs(20), || ask(cluster, container, "memory=60"))?;
    let all = eventually("four containers run", secs(120), || count(cluster, 4))?;
    println!("four containers ran {:.1?} after the load began", asked.elapsed());
    Ok(all)
}

/// Removes the load from all pods.
fn rest(cluster: &Cluster) -> Result<()> {
    running(cluster)?.iter().try_for_each(|one| ask(cluster, one, "cpu=0&memory=0").map(drop))
}

#[test]
fn a_load_brings_pods_and_its_end_takes_them_and_git_resets_nothing() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        cluster.push(&[Change::write("load.yaml", load())], "Open")?;
        let mut first = eventually("one container runs", secs(60), || count(cluster, 1))?;
        let target =
            ObjectRef { kind: Kind::ReplicaSet, namespace: "default".to_owned(), name: "load".to_owned() };
        for round in 0..rounds(1, 20) {
            let all = grow(cluster, &first[0])?;
            let at = |container: &ContainerView| {
                let pod = cluster.pod(container.label("pod"))?;
                cluster.node_of(&pod).map(|node| node.name.clone())
            };
            let nodes = all.iter().map(at).collect::<Result<BTreeSet<_>>>()?;
            ensure!(nodes.len() == 3, "all of them are on {nodes:?}");
            let names: BTreeSet<_> = all.iter().map(|container| container.label("pod").to_owned()).collect();
            eventually("all are reached through the Service", secs(30), || {
                let answering = answering(cluster)?;
                ensure!(answering == names, "{answering:?} of {names:?}");
                Ok(())
            })?;
            let scale: ScaleRecord = cluster.etcd.value(Key::Scale(target.clone()))?;
            ensure!(scale.replicas == 4, "{scale:?}");

            // Git still says one. A commit elsewhere leaves the number alone, and so does a commit that writes the
            // same manifests differently.
            let other = format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: other}}\ndata: {{a: \"{round}\"}}\n"
            );
            let same = format!("# {round}\n{}", load());
            let files = [Change::write("other.yaml", other), Change::write("load.yaml", same)];
            cluster.push(&files, "Elsewhere")?;
            let same = count(cluster, 4)?;
            let ids = |all: &[ContainerView]| all.iter().map(|one| one.id.clone()).collect::<BTreeSet<_>>();
            ensure!(ids(&same) == ids(&all), "containers were replaced");
            let (repo, server) = (cluster.repo.work().to_string_lossy().into_owned(), cluster.server(0));
            let plan = cluster.cli(&["plan", "--repo", &repo, "--server", &server])?;
            ensure!(plan.code == 0, "drift is reported: {plan:?}");

            rest(cluster)?;
            // Not always the same pod: one that was briefly not ready goes before the others.
            first = eventually("one container is left", secs(150), || count(cluster, 1))?;
        }
        let record: AutoscalerRecord =
            cluster.etcd.value(Key::Autoscaler(NamespacedName::new("default", "load")))?;
        ensure!(record.status.desired_replicas == 1, "{record:?}");

        // In a soak, also with the default of Kubernetes: the highest recommendation of the last five minutes holds.
        if is_soak() {
            let text = load();
            let (default, _) = text.split_once("  behavior:").context("no behavior")?;
            cluster.push(&[Change::write("load.yaml", default)], "The default window")?;
            grow(cluster, &first[0])?;
            rest(cluster)?;
            let idle = Instant::now();
            eventually("one container is left", secs(420), || count(cluster, 1))?;
            println!("shrank {:.0?} after the load had gone", idle.elapsed());
            ensure!(idle.elapsed() >= secs(285), "it did not wait for its window");
        }

        let text = load();
        let (without, _) = text.rsplit_once("---").context("the autoscaler is the last document")?;
        cluster.push(&[Change::write("load.yaml", without)], "Close")?;
        eventually("the number is Git's again", secs(30), || {
            ensure!(cluster.etcd.key(Key::Scale(target.clone()))?.is_none(), "it is still scaled");
            count(cluster, 1)
        })?;
        Ok(())
    })
}
