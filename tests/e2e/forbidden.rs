//! A pod that the Cluster object forbids is refused when it is pushed, and the pod's former version keeps running.
//! A commit that lifts a rule may not use that yet, the next one may.
//!
//! Fails when the check of links takes no `pod_security` from the Cluster object
//! (`reconciler/src/gitops/check/mod.rs`).

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Result, ensure};
use schema::records::{Quarantine, SourceState};

const RULES: &str = "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {name: cluster}\nspec:\n  \
                     podSecurity: {forbidPrivileged: true, forbidHostNetwork: true, forbidHostPaths: [/etc]}\n";

#[test]
fn a_pod_that_the_cluster_forbids_is_refused_and_its_former_version_goes_on() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let names = ["power", "network", "paths"];
        let mut files: Vec<_> =
            names.iter().map(|name| Change::write(format!("{name}.yaml"), web(name).to_string())).collect();
        files.push(Change::write("cluster.yaml", RULES));
        cluster.push(&files, "Three good pods")?;
        for name in names {
            cluster.serving(name, &format!("hello from {name}"))?;
        }
        let before = cluster.lives()?;

        let privileged =
            web("power").container_fields("    securityContext: {privileged: true}\n").to_string();
        let host_network = web("network").to_string().replace("spec:\n", "spec:\n  hostNetwork: true\n");
        let host_path =
            web("paths").to_string().replace("    emptyDir: {}", "    hostPath: {path: /etc/ssl}");
        let allowed = web("allowed").to_string();
        let files = [
            Change::write("power.yaml", privileged),
            Change::write("network.yaml", host_network),
            Change::write("paths.yaml", host_path),
            Change::write("allowed.yaml", allowed),
        ];
        cluster.push(&files, "Three forbidden, one allowed")?;
        let allowed = cluster.serving("allowed", "hello from allowed")?;
        let source = cluster.source_where("the source is degraded", |s| s.state == SourceState::Degraded)?;
        let said = cluster.cli(&["status"])?.ok()?;
        for name in names {
            let file = format!("{name}.yaml");
            let held = source.quarantined.iter().find(|held| held.file == file);
            ensure!(
                held.is_some_and(|held| format!("{held:?}").contains("forbidden-by-cluster")),
                "{held:?}"
            );
            ensure!(said.contains(&file) && said.contains("forbidden-by-cluster"), "no {file} in {said}");
            cluster.serving(name, &format!("hello from {name}"))?;
        }
        let mut now = cluster.lives()?;
        now.retain(|id, _| !allowed.lives().contains_key(id));
        ensure!(now == before, "a pod was touched: {now:?} is not {before:?}");

        // Once it is repaired, everything works as before.
        let mended = web("power").greeting("without power").to_string();
        cluster.push(&[Change::write("power.yaml", mended)], "Mend one")?;
        cluster.serving("power", "without power")?;

        // One commit can't both lift the rules and use that.
        let files = [
            Change::write("cluster.yaml", RULES.replace("forbidPrivileged: true, ", "")),
            Change::write(
                "evil.yaml",
                web("evil").container_fields("    securityContext: {privileged: true}\n").to_string(),
            ),
            Change::write("after.yaml", web("after").to_string()),
        ];
        cluster.push(&files, "Relax, and use it")?;
        cluster.serving("after", "hello from after")?;
        let source = cluster.source_where("the pod is refused", |s| {
            s.quarantined.iter().any(|held| held.file == "evil.yaml")
        })?;
        let said = format!("{:?}", source.quarantined);
        ensure!(said.contains("the Cluster object in force since commit"), "{said}");
        cluster.push(&[Change::write("next.yaml", web("next").to_string())], "The next commit")?;
        let is_applied = |held: &[Quarantine]| held.iter().all(|held| held.file != "evil.yaml");
        cluster.source_where("the next commit may use it", |s| is_applied(&s.quarantined)).map(|_| ())
    })
}
