//! A file that can't be read keeps its pods; the rest of the commit is applied; the status says where the fault is.
//!
//! Fails without the hold on quarantined files in `reconciler/src/gitops/prune.rs`: `wiki` is removed.

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Result, ensure};
use schema::records::SourceState;

#[test]
fn a_broken_file_keeps_its_pods_and_holds_up_no_other() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let files = [
            Change::write("apps/shop.yaml", web("shop").to_string()),
            Change::write("apps/blog.yaml", web("blog").to_string()),
        ];
        cluster.push(&files, "Two pods")?;
        let shop = cluster.serving("shop", "hello from shop")?;
        cluster.serving("blog", "hello from blog")?;

        // One file broken, another changed, a third new, all in one commit.
        let text = web("shop").to_string().replace("containers:", "containers: [");
        let files = [
            Change::write("apps/shop.yaml", text),
            Change::write("apps/blog.yaml", web("blog").greeting("news").to_string()),
            Change::write("apps/wiki.yaml", web("wiki").to_string()),
        ];
        let broken = cluster.push(&files, "Break one")?;
        cluster.serving("blog", "news")?;
        cluster.serving("wiki", "hello from wiki")?;
        ensure!(cluster.pod("shop")?.lives() == shop.lives(), "the broken file's pod was touched");

        let source = cluster.source_where("the source is degraded", |s| s.state == SourceState::Degraded)?;
        ensure!(source.quarantined.len() == 1, "{:?}", source.quarantined);
        let quarantine = &source.quarantined[0];
        ensure!(quarantine.file == "apps/shop.yaml" && quarantine.commit == broken, "{quarantine:?}");
        ensure!(quarantine.author.contains("Ada Tester"), "{}", quarantine.author);
        let said = cluster.cli(&["status"])?.ok()?;
        ensure!(said.contains("apps/shop.yaml:") && said.contains(&broken[..7]), "{said}");
        ensure!(said.contains("Degraded"), "{said}");

        // A file with valid YAML but an unknown field is reported with that field's own line.
        let text = web("shop").to_string().replace("    env:", "    enviroment: []\n    env:");
        let line = 1 + text.lines().position(|line| line.contains("enviroment")).unwrap_or_default();
        cluster.push(&[Change::write("apps/shop.yaml", text)], "Misspell")?;
        let place = format!("apps/shop.yaml:{line}");
        let said = cluster.cli(&["status"])?.ok()?;
        ensure!(said.contains(&place) && said.contains("enviroment"), "no {place} in {said}");

        // Nothing is pruned while a file is broken, not even objects of another file.
        cluster.push(&[Change::remove("apps/wiki.yaml")], "Remove another")?;
        ensure!(cluster.pod("wiki").is_ok(), "pruned beside a quarantined file");
        ensure!(cluster.pod("shop")?.lives() == shop.lives());

        // Repaired: the pod follows, and so does the held removal.
        cluster.push(&[Change::write("apps/shop.yaml", web("shop").greeting("open").to_string())], "Mend")?;
        cluster.serving("shop", "open")?;
        cluster.gone("wiki")?;
        cluster.source_where("the source is synced", |s| s.state == SourceState::Synced).map(|_| ())
    })
}
