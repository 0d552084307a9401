//! `minik8s plan --server`: changes that an unpushed commit would make to the applied state.

use harness::manifests::sleeper;
use harness::{Change, Cluster, ClusterOptions, Context, Outcome, Result, ensure, eventually, secs};
use serde_json::Value;

/// The plan of the clone's HEAD against the first reconciler.
fn plan(cluster: &Cluster, more: &[&str]) -> Result<Outcome> {
    let (repo, server) = (cluster.repo.work().to_string_lossy().into_owned(), cluster.server(0));
    let mut args = vec!["plan", "--repo", &repo, "--server", &server];
    args.extend(more);
    cluster.cli(&args)
}

/// A pod that requests more than any machine has.
const HUGE: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: huge\nspec:\n  containers:\n  - name: main\n    \
                    image: huge:1\n    resources:\n      requests: {cpu: \"5000\", memory: 90Ti}\n";

#[test]
fn a_plan_against_the_server_says_what_is_applied_what_changes_and_what_has_no_room() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let web = sleeper("web");
        let applied = cluster.push(&[Change::write("web.yaml", web.clone())], "Open")?;
        cluster.running("web", &["main"])?;

        let short = &applied[..12];
        // Nothing to do: HEAD is applied.
        let same = plan(cluster, &[])?;
        ensure!(same.code == 0 && same.stdout.contains("no changes"), "{same:?}");
        ensure!(same.stdout.contains(&format!("plan {short} -> {short}")), "{same:?}");

        // A change that would restart the pod, and a pod that no node can take.
        let longer = web.replace("100000", "200000");
        cluster
            .repo
            .propose(&[Change::write("web.yaml", longer), Change::write("huge.yaml", HUGE)], "Propose")?;
        let changed = plan(cluster, &[])?;
        ensure!(changed.code == 2, "{changed:?}");
        for part in [
            format!("plan {short} -> "),
            "replace Pod default/web".to_owned(),
            "create Pod default/huge".to_owned(),
            "no room: Pod/default/huge: a pod requests more than the largest node has".to_owned(),
            "no room: CPU: ".to_owned(),
            "no room: memory: ".to_owned(),
            "new and moved pods, as the nodes are now:\n    default/huge: no node: 0/1 nodes".to_owned(),
            format!("    default/web -> {}\n", cluster.node().name),
        ] {
            ensure!(changed.stdout.contains(&part), "no {part:?} in {}", changed.stdout);
        }
        let json: Value = serde_json::from_str(&plan(cluster, &["-o", "json"])?.stdout)?;
        ensure!(json["base"].as_str() == Some(&applied), "{json}");
        ensure!(json["summary"]["create"] == 1 && json["summary"]["replace"] == 1, "{json}");
        let hash = json["hash"].as_str().context("no hash")?.to_owned();

        // A plan changes nothing; after the push, exactly the plan is carried out.
        let source = cluster.source_where("the first commit stands", |_| true)?;
        ensure!(source.applied_commit.as_deref() == Some(applied.as_str()), "{source:?}");
        let commit = cluster.push(&[], "Merge")?;
        eventually("the history has the hash of the plan", secs(20), || {
            let history: Value = serde_json::from_str(&cluster.cli(&["history", "-o", "json"])?.ok()?)?;
            let newest = &history["items"][0];
            ensure!(
                newest["commit"] == commit.as_str() && newest["plan"]["hash"] == hash.as_str(),
                "{newest}"
            );
            Ok(())
        })?;

        // A file that can't be applied is an error, whatever else there is.
        let bad = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {contaners: []}\n";
        cluster.repo.propose(&[Change::write("bad.yaml", bad)], "Propose")?;
        let broken = plan(cluster, &[])?;
        ensure!(broken.code == 1 && broken.stdout.contains("bad.yaml"), "{broken:?}");
        let nobody = plan(cluster, &["--source", "nobody"])?;
        ensure!(nobody.code == 1 && nobody.stderr.contains("it has main"), "{nobody:?}");
        Ok(())
    })
}
