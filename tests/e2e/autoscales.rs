//! An autoscaler on real containers: a load brings pods up to the most that it may have, its end takes them down
//! again, and commits in between never reset the number.

use harness::{Change, Cluster, ClusterOptions, ContainerView, IMAGE, Result, ensure, eventually, secs};
use schema::keys::Key;
use schema::kinds::Kind;
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::{AutoscalerRecord, ScaleRecord};

/// Burns what it may, 100 millicores, until `/tmp/idle` is there.
fn workload() -> Change {
    let burn = "trap 'exit 0' TERM; while :; do [ -e /tmp/idle ] && sleep 0.2; done";
    let text = format!(
        "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {{name: burner}}\nspec:\n  replicas: 1\n  \
         selector: {{matchLabels: {{app: burner}}}}\n  template:\n    metadata: {{labels: {{app: burner}}}}\n    \
         spec:\n      terminationGracePeriodSeconds: 1\n      containers:\n      - name: main\n        \
         image: {IMAGE}\n        command: [sh, -c, {burn:?}]\n        resources: {{requests: {{cpu: 50m}}, \
         limits: {{cpu: 100m}}}}\n"
    );
    Change::write("burner.yaml", text)
}

fn autoscaler() -> Change {
    let text = "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: burner}\nspec:\n  \
                scaleTargetRef: {kind: ReplicaSet, name: burner}\n  minReplicas: 1\n  maxReplicas: 4\n  \
                metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, \
                averageUtilization: 50}}}]\n  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}\n";
    Change::write("hpa.yaml", text)
}

fn running(cluster: &Cluster) -> Result<Vec<ContainerView>> {
    let all = cluster.node().docker.containers(&cluster.slot().instance())?;
    Ok(all.into_iter().filter(|one| one.running && one.label("container") == "main").collect())
}

fn count(cluster: &Cluster, wanted: usize) -> Result<Vec<ContainerView>> {
    let running = running(cluster)?;
    ensure!(running.len() == wanted, "{} containers run, not {wanted}", running.len());
    Ok(running)
}

#[test]
fn a_load_brings_pods_and_its_end_takes_them_and_git_resets_nothing() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        cluster.push(&[workload(), autoscaler()], "Open")?;
        eventually("one container runs", secs(60), || count(cluster, 1))?;
        let burning = eventually("four containers run", secs(120), || count(cluster, 4))?;
        let target =
            ObjectRef { kind: Kind::ReplicaSet, namespace: "default".to_owned(), name: "burner".to_owned() };
        let scale: ScaleRecord = cluster.etcd.value(Key::Scale(target.clone()))?;
        ensure!(scale.replicas == 4, "{scale:?}");

        // Git still says one. A commit elsewhere, and one that touches the workload, leave the number alone.
        let other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\ndata: {a: b}\n";
        cluster.push(&[Change::write("other.yaml", other)], "Elsewhere")?;
        let same = count(cluster, 4)?;
        let ids = |all: &[ContainerView]| all.iter().map(|one| one.id.clone()).collect::<Vec<_>>();
        ensure!(ids(&same) == ids(&burning), "containers were replaced");

        for container in &burning {
            cluster.node().docker.exec(container, &["touch", "/tmp/idle"])?;
        }
        eventually("one container is left", secs(150), || count(cluster, 1))?;
        let record: AutoscalerRecord =
            cluster.etcd.value(Key::Autoscaler(NamespacedName::new("default", "burner")))?;
        ensure!(record.status.desired_replicas == 1, "{record:?}");

        cluster.push(&[Change::remove("hpa.yaml")], "Close")?;
        eventually("the number is Git's again", secs(30), || {
            ensure!(cluster.etcd.key(Key::Scale(target.clone()))?.is_none(), "it is still scaled");
            count(cluster, 1)
        })?;
        Ok(())
    })
}
