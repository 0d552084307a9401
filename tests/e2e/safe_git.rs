//! Whatever happens to the repository, nothing is deleted; once it is repaired, the
//! cluster follows it again.
//!
//! Each story fails without its hold in `reconciler/src/gitops/prune.rs`: empty and everything,
//! unrelated history, budget.

use std::collections::BTreeMap;

use harness::manifests::{sleeper, web};
use harness::{Change, Cluster, ClusterOptions, RepoAccess, Result, ensure, eventually, secs};
use schema::keys::prefix;
use schema::records::{SourceErrorKind, SourceState, SourceStatus};

/// Opens two served pods below `apps/`, and returns their containers.
fn open(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let files = [
        Change::write("apps/shop.yaml", web("shop").to_string()),
        Change::write("apps/blog.yaml", web("blog").to_string()),
    ];
    cluster.push(&files, "Two pods")?;
    cluster.serving("shop", "hello from shop")?;
    cluster.serving("blog", "hello from blog")?;
    cluster.lives()
}

/// Waits until the source reports the trouble, then checks that nothing was touched. The report
/// is written after the plan of the same run is applied, so a deletion would have happened by then.
fn untouched(
    cluster: &Cluster,
    before: &BTreeMap<String, String>,
    trouble: impl Fn(&SourceStatus) -> bool,
) -> Result<()> {
    cluster.source_where("the source reports the trouble", trouble)?;
    ensure!(cluster.etcd.list(prefix::OBJECTS)?.len() == 2, "{:?}", cluster.etcd.list(prefix::OBJECTS)?);
    ensure!(cluster.lives()? == *before, "containers changed");
    Ok(())
}

/// Checks that a push works again, and that the old containers were not affected.
fn well_again(cluster: &Cluster, before: &BTreeMap<String, String>, greeting: &str) -> Result<()> {
    cluster
        .push(&[Change::write("apps/probe.yaml", web("probe").greeting(greeting).to_string())], greeting)?;
    let probe = cluster.serving("probe", greeting)?;
    let mut now = cluster.lives()?;
    now.retain(|id, _| !probe.lives().contains_key(id));
    ensure!(now == *before, "containers changed");
    cluster.push(&[Change::remove("apps/probe.yaml")], "Probe away")?;
    cluster.gone("probe")
}

fn failed_with(kind: SourceErrorKind) -> impl Fn(&SourceStatus) -> bool {
    move |source| source.state == SourceState::Failed && source.error.as_ref().is_some_and(|e| e.kind == kind)
}

#[test]
fn an_emptied_repository_deletes_nothing() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let before = open(cluster)?;
        let empty = cluster.repo.push(&[Change::remove("apps")], "Remove everything")?;
        untouched(cluster, &before, |source| {
            let said = source.held_prune.is_some()
                || source.error.as_ref().is_some_and(|e| e.kind == SourceErrorKind::Empty);
            source.observed_commit.as_deref() == Some(empty.as_str()) && said
        })?;
        cluster.repo.push_commit("HEAD~1")?;
        well_again(cluster, &before, "back")
    })
}

#[test]
fn unrelated_history_deletes_nothing_until_a_commit_says_so() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let before = open(cluster)?;
        // It keeps one of the two, so the history holds the removal, not its size.
        let other = [
            Change::write("apps/shop.yaml", web("shop").to_string()),
            Change::write("other.yaml", web("other").to_string()),
        ];
        let moved = cluster.repo.push_unrelated(&other, "Another world")?;
        cluster.source_where("the removals wait", |source| {
            source.observed_commit.as_deref() == Some(moved.as_str()) && source.held_prune.is_some()
        })?;
        let other = cluster.serving("other", "hello from other")?;
        let mut now = cluster.lives()?;
        now.retain(|id, _| !other.lives().contains_key(id));
        ensure!(now == before, "containers changed");
        let said = cluster.cli(&["status"])?.ok()?;
        ensure!(said.contains("Minik8s-Allow-Prune"), "status does not say how to go on: {said}");

        cluster.repo.push(&[], "Mean it\n\nMinik8s-Allow-Prune: true")?;
        cluster.gone("blog")?;
        ensure!(cluster.pod("other")?.lives() == other.lives());
        ensure!(cluster.pod("shop").is_ok());
        Ok(())
    })
}

#[test]
fn an_unreachable_remote_and_a_deleted_branch_delete_nothing() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let before = open(cluster)?;
        cluster.repo.reachable(false)?;
        untouched(cluster, &before, failed_with(SourceErrorKind::RemoteUnreachable))?;
        cluster.repo.reachable(true)?;
        well_again(cluster, &before, "reached")?;

        cluster.repo.delete_branch()?;
        untouched(cluster, &before, failed_with(SourceErrorKind::NoCommit))?;
        well_again(cluster, &before, "branched")
    })
}

#[test]
fn a_deleted_path_deletes_nothing() -> Result<()> {
    Cluster::run(ClusterOptions { path: "apps", ..ClusterOptions::default() }, |cluster| {
        let before = open(cluster)?;
        let elsewhere = [
            Change::rename("apps/shop.yaml", "services/shop.yaml"),
            Change::rename("apps/blog.yaml", "services/blog.yaml"),
            Change::remove("apps"),
        ];
        cluster.repo.push(&elsewhere, "Move the folder")?;
        untouched(cluster, &before, failed_with(SourceErrorKind::PathNotFound))?;
        cluster.repo.push_commit("HEAD~1")?;
        well_again(cluster, &before, "back")
    })
}

#[test]
fn cut_authentication_deletes_nothing() -> Result<()> {
    let options = ClusterOptions { repo: RepoAccess::HttpToken, ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let before = open(cluster)?;
        let forge = cluster.forge.as_ref().expect("the repository is served over HTTP");
        forge.set_token("another");
        untouched(cluster, &before, failed_with(SourceErrorKind::AuthenticationFailed))?;
        let status = cluster.cli(&["status"])?.ok()?;
        ensure!(!status.contains("let-me-in"), "the token is in the status: {status}");
        forge.set_token("let-me-in");
        well_again(cluster, &before, "let in")
    })
}

#[test]
fn a_commit_that_removes_most_objects_waits_for_its_release() -> Result<()> {
    // No agent: only the content of etcd matters, and thirteen pods would just take time.
    Cluster::prepare(ClusterOptions::default())?.run_story(eleven_of_thirteen)
}

fn eleven_of_thirteen(cluster: &mut Cluster) -> Result<()> {
    cluster.start_etcd()?;
    cluster.reconcilers[0].start()?;
    let write = |i: u8| Change::write(format!("p{i}.yaml"), sleeper(&format!("p{i}")));
    cluster.push(&(0..13).map(write).collect::<Vec<_>>(), "Thirteen")?;
    let count = || Ok::<_, harness::Error>(cluster.etcd.list(prefix::OBJECTS)?.len());
    ensure!(count()? == 13);

    let most: Vec<_> = (0..11).map(|i| Change::remove(format!("p{i}.yaml"))).collect();
    let commit = cluster.repo.push(&most, "Remove eleven")?;
    let source = cluster.source_where("the removals wait", |source| {
        source.observed_commit.as_deref() == Some(commit.as_str()) && source.held_prune.is_some()
    })?;
    ensure!(source.held_prune.is_some_and(|held| held.deletes == 11 && held.owned == 13));
    ensure!(count()? == 13);

    cluster.repo.push(&[], "Mean it\n\nMinik8s-Allow-Prune: true")?;
    eventually("two objects are left", secs(20), || {
        ensure!(count()? == 2, "{}", count()?);
        Ok(())
    })
}
