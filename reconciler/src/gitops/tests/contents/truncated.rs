//! Files cut off within a commit.

use schema::records::SourceStatus;

use crate::gitops::offline::compare;
use crate::gitops::tests::kit::{Cluster, Repo, merge_of, pod, pods};

const FILE: &str = "all.yaml";

/// Three pods in one file, the first with a second image, and three pods in separate files.
async fn three_in_one() -> (Repo, Cluster, String) {
    let mut repo = Repo::new(pods(["x", "y", "z"]));
    let text = |image| [pod("a", image), pod("b", "one"), pod("c", "one")].join("---\n");
    repo.set(FILE, text("one")).commit("Three in one file");
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    // From here on the three objects come from different commits.
    repo.set(FILE, text("two")).commit("One of them");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "b", "c", "x", "y", "z"]);
    (repo, cluster, text("two"))
}

fn quarantined(status: &SourceStatus) -> Vec<&str> {
    status.quarantined.iter().map(|file| file.file.as_str()).collect()
}

// Seen red with nothing marked, and with a base that may contain quarantined files.
#[tokio::test]
async fn a_file_truncated_within_a_valid_document_removes_nothing_however_many_commits_follow() {
    let (mut repo, mut cluster, text) = three_in_one().await;
    // Two letters of the second image are left.
    let end = text.rfind("---\n").unwrap();
    let cut = &text[..end - 2];
    assert!(cut.contains("name: b\n") && cut.ends_with("image: on"), "{cut}");
    repo.set(FILE, cut).commit("Half a push");
    cluster.settle().await;
    for image in ["two", "three"] {
        let status = cluster.status().await;
        assert_eq!(quarantined(&status), [FILE]);
        assert!(status.quarantined[0].violations.iter().any(|v| v.rule == "file-truncated"), "{status:?}");
        assert_eq!(cluster.names().await, ["a", "b", "c", "x", "y", "z"]);
        repo.set("x.yaml", pod("x", image)).commit("Another");
        cluster.settle().await;
        cluster.restart();
        cluster.settle().await;
    }
    assert_eq!(cluster.names().await, ["a", "b", "c", "x", "y", "z"]);
    // The cut is intended.
    repo.set(FILE, format!("{cut}\n# so\n")).commit("To end there");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "b", "x", "y", "z"]);
}

// Seen red with only the commits of the missing objects inspected.
#[tokio::test]
async fn a_file_that_is_cut_while_another_is_broken_removes_nothing_once_that_is_mended() {
    let (mut repo, mut cluster, text) = three_in_one().await;
    repo.set("broken.yaml", "kind: Pod\n").commit("Another file is broken");
    cluster.settle().await;
    // From here on no commit is applied completely.
    let text = text.replace("image: two", "image: three");
    repo.set(FILE, &*text).commit("A change beside it");
    cluster.settle().await;
    repo.set(FILE, &text[..text.rfind("---\n").unwrap() - 2]).commit("Half a push");
    cluster.settle().await;
    repo.remove("broken.yaml").commit("Mended");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "b", "c", "x", "y", "z"]);
    assert_eq!(quarantined(&cluster.status().await), [FILE]);
}

#[tokio::test]
async fn the_last_documents_of_a_file_are_taken_out_like_any() {
    let (mut repo, mut cluster, text) = three_in_one().await;
    repo.set(FILE, &text[..text.rfind("---\n").unwrap()]).commit("Without c");
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "b", "x", "y", "z"]);
    // Moved to its own file, while the document before it loses another field.
    let text = [pod("a", "two"), pod("b", "one") + "  restartPolicy: Never\n", pod("c", "one")].join("---\n");
    repo.set(FILE, &*text).commit("All three");
    cluster.settle().await;
    repo.set(FILE, &text[..text.find("  restartPolicy").unwrap()])
        .set("c.yaml", pod("c", "one"))
        .commit("Moved");
    cluster.settle().await;
    let status = cluster.status().await;
    assert_eq!(quarantined(&status), [""; 0]);
    assert_eq!(cluster.names().await, ["a", "b", "c", "x", "y", "z"]);
}

#[tokio::test]
async fn the_plan_says_it_before_the_merge() {
    let (mut repo, _, text) = three_in_one().await;
    let base = repo.git().refname_to_id("refs/heads/main").unwrap().to_string();
    let head = repo.set(FILE, &text[..text.rfind("---\n").unwrap() - 2]).commit("Half a push");
    let review = compare(&merge_of(&repo.path(), &base, &head)).unwrap();
    assert_eq!((review.summary.delete, review.summary.quarantined), (0, 1));
    let reported = review.violations.iter().find(|violation| violation.rule == "file-truncated").unwrap();
    assert!(
        reported.message.contains("Pod/default/c is missing, and all.yaml is its previous version"),
        "{reported:?}"
    );
}
