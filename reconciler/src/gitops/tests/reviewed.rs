//! Reviewed plans compared with applied ones, and plans between revisions of a repository.

use git2::Oid;
use schema::kinds::Kind;
use schema::meta::ObjectRef;
use schema::records::PlanRecord;
use schema::store::{Op, Store as _};

use super::kit::{Cluster, Repo, merge_of, pod, pods};
use crate::gitops::offline::{OfflineError, Request, compare};
use crate::gitops::review::{Review, short_hash};

/// A repository of these pods, its first commit, and a cluster that applied it.
async fn applied<const N: usize>(names: [&str; N]) -> (Repo, String, Cluster) {
    let repo = Repo::new(pods(names));
    let base = repo.git().refname_to_id("refs/heads/main").unwrap().to_string();
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    (repo, base, cluster)
}

/// Commits a proposal on a separate branch; `main` stays.
fn propose(repo: &mut Repo, base: &str) -> String {
    let head = repo.commit_on(Some(Oid::from_str(base).unwrap()), "Propose");
    repo.git().reference("refs/heads/main", Oid::from_str(base).unwrap(), true, "test").unwrap();
    head
}

fn reviewed(repo: &Repo, base: &str, head: &str) -> Result<Review, OfflineError> {
    reviewed_as(repo, base, head, false)
}

fn reviewed_as(repo: &Repo, base: &str, head: &str, strict: bool) -> Result<Review, OfflineError> {
    let path = repo.path();
    compare(&Request { strict, ..merge_of(&path, base, head) })
}

async fn record(cluster: &Cluster) -> PlanRecord {
    let status = cluster.status().await;
    let key = format!("/minik8s/revisions/main/{:020}", status.revision);
    let found = match cluster.store.get(&key).await.unwrap() {
        Some(found) => found,
        None => {
            let all = cluster.store.list("/minik8s/revisions/main/").await.unwrap().items;
            all.into_iter().max_by_key(|item| item.mod_revision).unwrap()
        }
    };
    let revision: schema::records::Revision = schema::codec::decode(&found.value).unwrap();
    revision.plan.expect("every revision has a plan")
}

/// Squashes `repo.files`, reviewed with this hash, onto `main`.
fn squash(repo: &mut Repo, hash: &str) -> String {
    repo.commit(&format!("Squashed\n\nMinik8s-Plan: {}\n", short_hash(hash)))
}

#[tokio::test]
async fn a_trailer_binds_a_change_to_its_review() {
    let (mut repo, base, mut cluster) = applied(["a", "b", "c"]).await;
    repo.set("a.yaml", pod("a", "two"));
    let head = propose(&mut repo, &base);
    let hash = reviewed(&repo, &base, &head).unwrap().hash;
    squash(&mut repo, &hash);
    cluster.settle().await;
    assert_eq!(record(&cluster).await.matches, Some(true));

    repo.set("a.yaml", pod("a", "three"));
    repo.commit("Straight to main");
    cluster.settle().await;
    assert_eq!(record(&cluster).await.matches, None);

    repo.set("a.yaml", pod("a", "four"));
    squash(&mut repo, &hash);
    cluster.settle().await;
    let found = record(&cluster).await;
    assert_eq!(found.matches, Some(false));
    assert!(found.why.contains("another base or head"), "{}", found.why);

    // An object is deleted by hand at the moment of the merge.
    let base = repo.git().refname_to_id("refs/heads/main").unwrap().to_string();
    repo.set("a.yaml", pod("a", "five"));
    let head = propose(&mut repo, &base);
    let hash = reviewed(&repo, &base, &head).unwrap().hash;
    squash(&mut repo, &hash);
    let gone = ObjectRef { kind: Kind::Pod, namespace: "default".into(), name: "c".into() };
    let _ = cluster.store.txn(vec![], vec![Op::delete(schema::keys::Key::Object(gone))]).await.unwrap();
    cluster.settle().await;
    assert_eq!(record(&cluster).await.matches, Some(false));

    // Two proposals, reviewed one by one and applied together.
    for image in ["six", "seven"] {
        let base = repo.git().refname_to_id("refs/heads/main").unwrap().to_string();
        repo.set("a.yaml", pod("a", image));
        let head = propose(&mut repo, &base);
        let hash = reviewed(&repo, &base, &head).unwrap().hash;
        squash(&mut repo, &hash);
    }
    cluster.settle().await;
    let found = record(&cluster).await;
    assert_eq!(
        (found.matches, found.why.as_str()),
        (None, "several commits were applied at once, or history was rewritten")
    );
}

/// Process that finishes a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    Restarted,
    LeadsAgain,
    Same,
}

// Seen red with `may_be_rest` always false, and without a check of the fence.
#[tokio::test]
async fn the_rest_of_a_commit_is_not_called_another_plan() {
    // Before the removal; after every write but the revision; and for a removal alone.
    for (writes, is_removal) in [(1, false), (2, false), (1, true)] {
        for by in [Rest::Restarted, Rest::LeadsAgain, Rest::Same] {
            let (mut repo, base, mut cluster) = applied(["a", "b", "c"]).await;
            repo.remove("b.yaml");
            if !is_removal {
                repo.set("a.yaml", pod("a", "two")).set("d.yaml", pod("d", "one"));
            }
            let head = propose(&mut repo, &base);
            let hash = reviewed(&repo, &base, &head).unwrap().hash;
            squash(&mut repo, &hash);
            let mut other = Cluster::with(repo.config(), &repo.state(), cluster.store.clone()).await;
            let first = if by == Rest::Same { &mut cluster } else { &mut other };
            first.crash_after(writes, false);
            first.run().await;
            assert_ne!(first.names().await, ["a", "b", "c"], "something was written before the end");
            first.heal();
            match by {
                Rest::Restarted => cluster.restart(),
                Rest::LeadsAgain => cluster.lead_again().await,
                Rest::Same => {}
            }
            cluster.settle().await;
            let record = record(&cluster).await;
            // The process that began the commit knows the whole plan.
            let expected = if by == Rest::Same { Some(true) } else { None };
            assert_eq!(record.matches, expected, "{by:?} after {writes} writes: {record:?}");
            assert!(by == Rest::Same || record.why.contains("applied before"), "{}", record.why);
        }
    }
}

#[test]
fn a_strict_source_is_planned_strictly() {
    let mut repo = Repo::new(pods(["a", "b"]));
    let base = repo.git().refname_to_id("refs/heads/main").unwrap().to_string();
    repo.set("a.yaml", pod("a", "two")).set("b.yaml", pod("b", "two").replace("image", "imgae"));
    repo.set("c.yaml", pod("c", "one"));
    let head = propose(&mut repo, &base);
    assert_eq!(reviewed_as(&repo, &base, &head, false).unwrap().changes.len(), 2);
    let strict = reviewed_as(&repo, &base, &head, true).unwrap();
    assert_eq!((strict.changes.len(), strict.summary.create, strict.summary.quarantined), (0, 0, 1));
    assert!(strict.has_errors());
    let said = |note: &String| note.contains("strict") && note.contains("none of it would be applied");
    assert!(strict.notes.iter().any(said), "{:?}", strict.notes);
    // Without faults, strict or not makes no difference.
    repo.set("b.yaml", pod("b", "two"));
    let head = propose(&mut repo, &base);
    let plain = reviewed_as(&repo, &base, &head, false).unwrap();
    assert_eq!(reviewed_as(&repo, &base, &head, true).unwrap(), plain);
}

#[test]
fn every_file_of_the_base_that_can_not_be_applied_is_named() {
    let mut repo = Repo::new(pods(["a"]));
    for number in 0..7 {
        repo.set(&format!("x{number}.yaml"), pod(&format!("x{number}"), "one").replace("image", "imgae"));
    }
    // A fault only because of a missing dependency.
    let lost =
        pod("lost", "one").replace("  name: lost\nspec", "  name: lost\n  dependsOn: [Pod/nope]\nspec");
    repo.set("lost.yaml", lost);
    let base = repo.commit("Break them");
    repo.set("a.yaml", pod("a", "two"));
    let head = propose(&mut repo, &base);
    let review = reviewed(&repo, &base, &head).unwrap();
    for file in (0..7).map(|number| format!("x{number}.yaml")).chain(["lost.yaml".to_owned()]) {
        let named = review.notes.iter().any(|note| note.contains("the base") && note.contains(&file));
        assert!(named, "{file}: {:?}", review.notes);
    }
}

#[test]
fn a_base_that_has_moved_on_is_merged_in_memory_and_nothing_is_written() {
    let mut repo = Repo::new(pods(["a", "b"]));
    let first = repo.git().refname_to_id("refs/heads/main").unwrap().to_string();
    repo.set("b.yaml", pod("b", "two"));
    let head = propose(&mut repo, &first);
    repo.files = pods(["a", "b", "c"]);
    let base = repo.commit("Meanwhile");
    let objects = || walk(&repo.path().join("objects"));
    let before = objects();
    let review = reviewed(&repo, &base, &head).unwrap();
    assert_eq!((review.summary.replace, review.summary.delete, review.changes.len()), (1, 0, 1));
    assert!(review.notes[0].contains("has moved on"), "{:?}", review.notes);
    assert_eq!(objects(), before, "the merge is written nowhere");
    assert_eq!(reviewed(&repo, &base, &head).unwrap(), review);
}

fn walk(dir: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(dir).unwrap().flatten();
    entries.map(|entry| if entry.path().is_dir() { walk(&entry.path()) } else { 1 }).sum()
}

#[test]
fn a_conflict_and_an_unknown_revision_are_reported() {
    let mut repo = Repo::new(pods(["a", "b"]));
    let first = repo.git().refname_to_id("refs/heads/main").unwrap().to_string();
    repo.set("b.yaml", pod("b", "two"));
    let head = propose(&mut repo, &first);
    repo.set("b.yaml", pod("b", "three"));
    let base = repo.commit("Meanwhile");
    let error = reviewed(&repo, &base, &head).unwrap_err().to_string();
    assert!(error.contains("both change b.yaml"), "{error}");
    let error = reviewed(&repo, "nope", &head).unwrap_err().to_string();
    assert!(error.contains("no revision nope"), "{error}");
}

// Seen red with the head merged into the commit that it replaces.
#[test]
fn what_a_push_by_force_changes_is_planned_in_place() {
    let mut repo = Repo::new(pods(["a", "b"]));
    let first = repo.git().refname_to_id("refs/heads/main").unwrap().to_string();
    repo.set("b.yaml", pod("b", "two")).set("c.yaml", pod("c", "one"));
    let base = repo.commit("Newer");
    let path = repo.path();
    let request = merge_of(&path, &base, &first);
    let merged = compare(&request).unwrap();
    assert!(merged.changes.is_empty() && merged.notes[0].contains("--in-place"), "{:?}", merged.notes);
    let review = compare(&Request { in_place: true, ..request }).unwrap();
    assert_eq!((review.summary.replace, review.summary.delete), (1, 1));
}

#[test]
fn the_error_of_a_shallow_clone_says_what_to_fetch() {
    let mut repo = Repo::new(pods(["a", "b"]));
    let first = repo.git().refname_to_id("refs/heads/main").unwrap().to_string();
    repo.set("b.yaml", pod("b", "two"));
    let head = propose(&mut repo, &first);
    repo.files = pods(["a", "b", "c"]);
    let base = repo.commit("Meanwhile");
    // A clone by CI whose history is cut off above both commits.
    std::fs::write(repo.path().join("shallow"), format!("{base}\n{head}\n")).unwrap();
    let error = reviewed(&repo, &base, &head).unwrap_err().to_string();
    assert!(error.contains("fetch-depth: 0"), "{error}");
}

#[test]
fn all_lines_of_changed_fields_are_found() {
    let mut repo = Repo::new(pods(["a", "b"]));
    let base = repo.git().refname_to_id("refs/heads/main").unwrap().to_string();
    repo.set("a.yaml", format!("# one more line\n{}", pod("a", "two")));
    let head = repo.commit("Change");
    let review = reviewed(&repo, &base, &head).unwrap();
    let field = &review.changes[0].fields[0];
    assert_eq!((field.path.as_str(), field.line), ("spec.containers[0].image", Some(9)));
}

/// Seen red with the first characters of the files compared.
#[tokio::test]
async fn a_changed_recipient_of_secrets_heads_the_plan() {
    let file = "secrets/.identity/cluster.pub";
    let mut repo = Repo::new(pods(["a"]));
    let tip = |repo: &Repo| repo.git().refname_to_id("refs/heads/main").unwrap().to_string();
    let warned = |repo: &Repo, base: &str, head: &str| reviewed(repo, base, head).unwrap().warnings;
    let mut commits = vec![tip(&repo)];
    let padded = format!("age1x{}", " ".repeat(100));
    for text in ["age1x\n", "age1mallory\n", &padded, &format!("{padded}\nage1mallory\n")] {
        repo.set(file, text);
        commits.push(repo.commit("A recipient"));
    }
    assert_eq!(warned(&repo, &commits[0], &commits[1]), [""; 0], "the first replaces nothing");
    let [warning] = &warned(&repo, &commits[1], &commits[2])[..] else { panic!("one warning") };
    assert!(warning.starts_with(&format!("{file} changes from age1x to age1mallory: ")), "{warning}");
    assert_eq!(warned(&repo, &commits[3], &commits[4]).len(), 1);
    repo.remove(file);
    let gone = repo.commit("Gone");
    assert!(warned(&repo, &commits[4], &gone)[0].contains("to nothing"));
    assert_eq!(warned(&repo, &commits[4], &commits[4]), [""; 0]);
    repo.set("secrets/recipients.txt", "# node-1\nage1x\n");
    let listed = repo.commit("A list");
    assert_eq!(warned(&repo, &gone, &listed), [""; 0], "the first replaces nothing");
    repo.set("secrets/recipients.txt", "# node-1\nage1x\n# node-2\nage1mallory\n");
    let longer = repo.commit("One more");
    assert!(warned(&repo, &listed, &longer)[0].starts_with("secrets/recipients.txt changes: "));
}
