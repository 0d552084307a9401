//! Renaming a file changes nothing that runs.
//!
//! Fails when a moved object gets the commit of its move (`gitops/plan.rs`, `moved`).

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Result, ensure};
use schema::keys::Key;
use schema::kinds::Kind;
use schema::meta::{NamespacedName, ObjectRef};
use schema::object::Object;

#[test]
fn a_renamed_file_restarts_nothing_and_status_follows_it() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let first = cluster.push(&[Change::write("a.yaml", web("shop").to_string())], "Open")?;
        let before = cluster.serving("shop", "hello from shop")?;
        let object = || -> Result<Object> {
            cluster.etcd.value(Key::Object(ObjectRef {
                kind: Kind::Pod,
                namespace: "default".into(),
                name: "shop".into(),
            }))
        };
        let binding = Key::Binding(cluster.node().name.clone(), NamespacedName::new("default", "shop"));
        let bound = cluster.etcd.key(&binding)?;
        ensure!(object()?.provenance.file == "a.yaml");

        let moved = [
            Change::rename("a.yaml", "shop/web/pod.yaml"),
            Change::write("next.yaml", web("next").to_string()),
        ];
        cluster.push(&moved, "Tidy up")?;
        cluster.serving("next", "hello from next")?;
        ensure!(object()?.provenance.file == "shop/web/pod.yaml", "{:?}", object()?.provenance);
        ensure!(object()?.provenance.commit == first, "a rename is no change of the object");
        ensure!(cluster.etcd.key(&binding)? == bound, "the binding was written again");
        ensure!(cluster.pod("shop")?.lives() == before.lives(), "the rename restarted something");
        Ok(())
    })
}
