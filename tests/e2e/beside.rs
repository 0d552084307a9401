//! Files of other programs beside manifests hold up nothing; a kustomization that would change manifests holds just
//! these, and says so once.

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Result, ensure, holds, secs};
use schema::records::{SourceState, SourceStatus};

const OVERLAY: &str = "prod/kustomization.yaml";

fn pod(greeting: &str) -> Change {
    Change::write("base/pod.yaml", web("shop").greeting(greeting).to_string())
}

/// Checks that neither the source, nor its status, nor a check of the clone has an error.
fn without_errors(cluster: &Cluster) -> Result<()> {
    let synced = |source: &SourceStatus| source.state == SourceState::Synced && source.quarantined.is_empty();
    cluster.source_where("the source is synced", synced)?;
    let status = cluster.cli(&["status"])?.ok()?;
    ensure!(!status.contains("error["), "{status}");
    let work = cluster.repo.work().to_string_lossy().into_owned();
    let report = cluster.cli(&["validate", &work])?.ok()?;
    ensure!(!report.contains("error["), "{report}");
    Ok(())
}

#[test]
fn files_of_other_programs_hold_up_nothing_and_an_overlay_holds_just_what_it_changes() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let files = [
            pod("open"),
            Change::write("base/kustomization.yaml", "resources: [pod.yaml]\n"),
            Change::write("Chart.yaml", "apiVersion: v2\nname: shop\nversion: 0.1.0\nappVersion: v1.27\n"),
            Change::write("compose.yaml", "services:\n  db:\n    image: postgres:17\n"),
            Change::write(
                "tsconfig.json",
                "{\n  // strict\n  \"compilerOptions\": {\"strict\": true,},\n}\n",
            ),
        ];
        cluster.push(&files, "A pod among other files")?;
        let before = cluster.serving("shop", "open")?;
        ensure!(cluster.containers()?.len() == 2, "{:?}", cluster.containers()?);
        without_errors(cluster)?;

        let overlay = Change::write(OVERLAY, "resources: [../base]\nnamespace: shop\n");
        cluster.push(&[overlay, pod("news")], "An overlay")?;
        cluster.source_where("the source is degraded", |source| source.state == SourceState::Degraded)?;
        holds("the pod runs on unchanged, and nothing in shop", secs(2), || {
            ensure!(cluster.pod("shop")?.lives() == before.lives(), "the pod was touched");
            let containers = cluster.containers()?;
            ensure!(containers.iter().all(|one| one.label("namespace") == "default"), "{containers:?}");
            Ok(())
        })?;
        let status = cluster.cli(&["status"])?.ok()?;
        let named = status.lines().filter(|line| line.trim_start().starts_with(OVERLAY)).count();
        ensure!(named == 1, "{named} lines for {OVERLAY} in {status}");

        cluster.push(&[Change::write(".minik8signore", "prod/\n")], "Leave the overlay out")?;
        let after = cluster.serving("shop", "news")?;
        ensure!(after.container("web")?.id != before.container("web")?.id, "it is the same container");
        without_errors(cluster)
    })
}
