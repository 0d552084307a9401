//! Measures the budgets of the design: `cargo test -p minik8s-reconciler --lib numbers -- --ignored --nocapture`.
//!
//! Times are printed, never asserted; only counts are: a timed test that fails proves nothing.

use std::time::Instant;

use super::kit::{Cluster, Files, Repo, pod};
use crate::gitops::check::CommitLimits;

const FILES: usize = 10_000;

fn fleet() -> Files {
    (0..FILES).map(|n| (format!("apps/{}/p{n}.yaml", n / 100), pod(&format!("p{n}"), "one"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures; run by hand"]
async fn ten_thousand_files() {
    let mut repo = Repo::new(fleet());
    let mut cluster = Cluster::new(&repo).await;

    let begun = Instant::now();
    let ran = cluster.run().await;
    println!("first sync of {} objects: {:?}", ran.steps, begun.elapsed());
    assert_eq!(ran.steps, FILES);
    cluster.settle().await;

    let before = cluster.store.revision();
    let mut polls = Vec::new();
    for _ in 0..20 {
        let begun = Instant::now();
        cluster.step().await;
        polls.push(begun.elapsed());
    }
    polls.sort();
    println!(
        "unchanged poll: p50 {:?}, max {:?}, writes {}",
        polls[10],
        polls[19],
        cluster.store.revision() - before
    );
    assert_eq!(cluster.store.revision(), before);

    let mut changes = Vec::new();
    for n in 0..70 {
        repo.set("apps/7/p700.yaml", pod("p700", &format!("image{n}")));
        repo.commit("One");
        cluster.reflect().await;
        let begun = Instant::now();
        let ran = cluster.step().await;
        changes.push(begun.elapsed());
        assert_eq!(ran.steps, 1);
        cluster.settle().await;
    }
    changes.sort();
    println!("one changed file: p50 {:?}, p95 {:?}, max {:?}", changes[35], changes[66], changes[69]);
    let mirror = repo.mirror();
    let packs = std::fs::read_dir(mirror.join("objects/pack")).unwrap().count();
    println!("files in the mirror's pack folder: {packs}");

    cluster.restart();
    let begun = Instant::now();
    cluster.step().await;
    println!("first run of a fresh process, nothing changed: {:?}", begun.elapsed());
}

/// Prints the time of each part when one file changed.
#[test]
#[ignore = "measures; run by hand"]
fn one_changed_file_by_parts() {
    use std::sync::Arc;

    use crate::git::{self, Listing, Mirror};
    use crate::gitops::load;

    let mut repo = Repo::new(fleet());
    let mirror = Mirror::new(Arc::new(repo.config()), &repo.state());
    let go_on = Arc::new(git::Transfer::default());
    let timed = |what: &str, begun: Instant| println!("{what}: {:?}", begun.elapsed());
    let (mut listing, mut manifests) = (Listing::default(), load::Manifests::new());
    for round in 0..4 {
        println!("round {round}");
        let begun = Instant::now();
        mirror.ls_remote().unwrap();
        timed("  ls-remote", begun);
        let begun = Instant::now();
        let head = mirror.fetch(&go_on).unwrap();
        timed("  fetch", begun);
        let begun = Instant::now();
        let git = mirror.open().unwrap();
        timed("  open", begun);
        let begun = Instant::now();
        let next = git::list(&git, head, "", &listing).unwrap().unwrap();
        timed("  list", begun);
        let begun = Instant::now();
        let (parsed, count) = load::update(&git, &listing.files, &next.files, &manifests).unwrap();
        timed(&format!("  parse {count}"), begun);
        (listing, manifests) = (next, parsed);
        repo.set("apps/7/p700.yaml", pod("p700", &format!("image{round}")));
        repo.commit("One");
    }
}

/// Prints the time of a full plan when one object differs.
#[test]
#[ignore = "measures; run by hand"]
fn a_plan_of_ten_thousand_by_parts() {
    use super::proofs::{applied, situation};
    use crate::gitops::check::{Documents, finish, fit, homes_of_absent};
    use crate::gitops::plan::plan;

    let none = schema::snapshot::Table::new();
    let first = situation(&fleet(), &none);
    let live = applied(&none, &plan(&first).steps);
    let next = crate::gitops::plan::PlanInput { live, ..first };
    for _ in 0..3 {
        let begun = Instant::now();
        let in_question = homes_of_absent("main", &next.manifests, &next.live).len();
        println!("commits in question ({in_question}): {:?}", begun.elapsed());
        let begun = Instant::now();
        let documents = Documents::from_manifests("main", &next.manifests, &next.live);
        let wanted = finish(&documents, fit(&documents, "main", &next.live, &CommitLimits::default(), ""))
            .wanted
            .len();
        println!("check ({wanted}): {:?}", begun.elapsed());
        let begun = Instant::now();
        let steps = plan(&next).steps.len();
        println!("plan ({steps}): {:?}", begun.elapsed());
    }
}
