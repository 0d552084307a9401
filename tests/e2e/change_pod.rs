//! Effects of changes on a running pod: none for a label, a new pod for image and env.
//!
//! Fails when the pod's uid includes the labels (`PodInstance::uid_of`): the label restarts it.

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, IMAGE_TWO, Result, ensure, eventually, secs};
use schema::keys::Key;
use schema::kinds::Kind;
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;
use schema::records::Binding;

#[test]
fn a_change_replaces_the_pod_or_leaves_it_alone() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        a_changed_variable_replaces_the_pod(cluster)?;
        a_changed_image_replaces_the_pod(cluster)?;
        a_changed_label_restarts_nothing_and_reaches_the_node(cluster)
    })
}

fn a_changed_label_restarts_nothing_and_reaches_the_node(cluster: &Cluster) -> Result<()> {
    cluster.push(&[Change::write("tagged.yaml", web("tagged").to_string())], "Open")?;
    let before = cluster.serving("tagged", "hello from tagged")?;

    let labelled = web("tagged").label("tier", "gold").to_string();
    let commit = cluster.push(&[Change::write("tagged.yaml", labelled)], "Label it")?;
    let binding = Key::Binding(cluster.node().name.clone(), NamespacedName::new("default", "tagged"));
    eventually("the label is in the binding", secs(20), || {
        let bound: Binding = cluster.etcd.value(&binding)?;
        ensure!(bound.pod.labels.get("tier").map(String::as_str) == Some("gold"), "{:?}", bound.pod.labels);
        Ok(())
    })?;
    let object: Object = cluster.etcd.value(Key::Object(ObjectRef {
        kind: Kind::Pod,
        namespace: "default".into(),
        name: "tagged".into(),
    }))?;
    ensure!(object.provenance.commit == commit && object.generation == 1, "{object:?}");

    // A second pod through the same agent: when it runs, the agent has read the label, too.
    cluster.push(&[Change::write("next.yaml", web("next").to_string())], "Another")?;
    cluster.serving("next", "hello from next")?;
    ensure!(cluster.pod("tagged")?.lives() == before.lives(), "the label restarted something");
    Ok(())
}

fn a_changed_image_replaces_the_pod(cluster: &Cluster) -> Result<()> {
    cluster.push(&[Change::write("shop.yaml", web("shop").to_string())], "Open")?;
    let before = cluster.serving("shop", "hello from shop")?;
    let version =
        |pod: &harness::PodView| cluster.node().docker.exec(pod.container("web")?, &["cat", "/version"]);
    ensure!(version(&before)?.trim() == "1");

    let commit = cluster
        .push(&[Change::write("shop.yaml", web("shop").image(IMAGE_TWO).to_string())], "Version two")?;
    let after = eventually("the pod runs version two", secs(30), || {
        let pod = cluster.running("shop", &["web"])?;
        ensure!(version(&pod)?.trim() == "2");
        Ok(pod)
    })?;
    ensure!(after.pause.id != before.pause.id, "the pod kept its pause container");
    ensure!(after.pause.label("uid") != before.pause.label("uid"));
    ensure!(after.container("web")?.label("commit") == commit);
    ensure!(cluster.containers()?.len() == 2, "the old pod left containers");
    Ok(())
}

fn a_changed_variable_replaces_the_pod(cluster: &Cluster) -> Result<()> {
    cluster.push(&[Change::write("shop.yaml", web("shop").to_string())], "Open")?;
    let before = cluster.serving("shop", "hello from shop")?;
    cluster.push(&[Change::write("shop.yaml", web("shop").greeting("good day").to_string())], "Greet")?;
    let after = cluster.serving("shop", "good day")?;
    ensure!(after.lives().keys().all(|id| !before.lives().contains_key(id)), "a container stayed");
    ensure!(cluster.containers()?.len() == 2, "the old pod left containers");
    Ok(())
}
