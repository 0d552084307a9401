//! A commit can't lift the restrictions on pods that forbid the rest of it.

use jiff::Timestamp;
use schema::kinds::cluster::{CLUSTER_NAME, PodSecurity};
use schema::records::{PodSecurityRecord, SettledRecord, SourceState};
use schema::store::memory::MemoryStore;

use super::kit::{Cluster, Files, Repo, merge_of, pod};
use crate::gitops::check::{CommitLimits, in_force_before};
use crate::gitops::offline::{LiveState, Request, compare};
use crate::gitops::review::{markdown, text};
use crate::last_known::{LastKnown, pod_security_records};

/// A Cluster object with these fields of podSecurity.
fn cluster(fields: &str) -> String {
    format!(
        "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {{name: {CLUSTER_NAME}}}\nspec:\n  podSecurity: {{{fields}}}\n"
    )
}

fn privileged(name: &str) -> String {
    pod(name, "one") + "    securityContext: {privileged: true}\n"
}

/// A repository whose applied commit forbids privileged pods.
fn strict() -> Repo {
    let files = [("cluster.yaml", cluster("forbidPrivileged: true")), ("web.yaml", pod("web", "one"))];
    Repo::new(Files::from(files.map(|(path, text)| (path.to_owned(), text))))
}

/// Commits the two halves of the attack at once: the restriction goes, and what it forbids comes.
fn attack(repo: &mut Repo, removes: bool) -> String {
    match removes {
        true => repo.remove("cluster.yaml"),
        false => repo.set("cluster.yaml", cluster("")),
    };
    repo.set("evil.yaml", privileged("evil"));
    repo.commit("Harmless\n\nMinik8s-Allow-Prune: true")
}

async fn is_refused(cluster: &Cluster, since: &str) {
    assert!(!cluster.names().await.contains(&"evil".to_owned()));
    let status = cluster.status().await;
    assert_eq!(status.state, SourceState::Degraded);
    let [refused] = &status.quarantined[..] else { panic!("{:?}", status.quarantined) };
    let violation = &refused.violations[0];
    let says = format!("the Cluster object in force since commit {}", &since[..12]);
    assert!(refused.file == "evil.yaml" && violation.message.contains(&says), "{violation:?}");
    assert!(violation.help.contains("the next one may use it"), "{violation:?}");
}

fn head(repo: &Repo) -> String {
    repo.git().refname_to_id("refs/heads/main").unwrap().to_string()
}

/// Seen red with the commit's own restrictions alone; would fail without the record in the status: then the second run of
/// the same commit applies the pod.
#[tokio::test]
async fn a_commit_that_lifts_a_restriction_is_still_bound_by_it_and_the_next_is_not() {
    for removes in [false, true] {
        let mut repo = strict();
        let first = head(&repo);
        let mut cluster = Cluster::new(&repo).await;
        cluster.settle().await;
        attack(&mut repo, removes);
        cluster.settle().await;
        is_refused(&cluster, &first).await;
        cluster.restart();
        cluster.settle().await;
        is_refused(&cluster, &first).await;
        let names = cluster.names().await;
        assert!(names.contains(&CLUSTER_NAME.to_owned()));
        // A refused file holds removals, so a removed Cluster object stays until a commit without that file.
        if removes {
            repo.remove("evil.yaml").commit("The removal alone");
            cluster.settle().await;
            repo.set("evil.yaml", privileged("evil"));
        }
        repo.commit("The next");
        cluster.settle().await;
        assert!(cluster.names().await.contains(&"evil".to_owned()), "removes: {removes}");
        assert_eq!(cluster.status().await.state, SourceState::Synced);
        assert_eq!(cluster.status().await.replaced_pod_security, []);
    }
}

/// Would fail with the record written after the objects.
#[tokio::test]
async fn a_crash_between_any_two_writes_lifts_nothing() {
    for (writes, lost) in (0..4).flat_map(|writes| [(writes, false), (writes, true)]) {
        let mut repo = strict();
        let first = head(&repo);
        let mut cluster = Cluster::new(&repo).await;
        cluster.settle().await;
        attack(&mut repo, false);
        cluster.crash_after(writes, lost);
        cluster.run().await;
        cluster.heal();
        cluster.restart();
        cluster.settle().await;
        is_refused(&cluster, &first).await;
    }
}

/// Would fail with the restrictions of etcd alone.
#[tokio::test]
async fn an_empty_etcd_lifts_nothing_that_is_last_known() {
    let mut repo = strict();
    let first = head(&repo);
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    for lost_after in [false, true] {
        if lost_after {
            cluster.settle().await;
        }
        let mut whole = cluster.reflect().await.clone();
        whole.put(&schema::keys::Key::Settled("n1".into()), &SettledRecord::default(), 1);
        let known = LastKnown::from_snapshot(&whole, Timestamp::UNIX_EPOCH).unwrap();
        let known = LastKnown::from_disk(&known.to_disk());
        if !lost_after {
            attack(&mut repo, false);
        }
        cluster = Cluster::with(repo.config(), &repo.state(), MemoryStore::new()).await;
        cluster.knows(known);
        cluster.settle().await;
        is_refused(&cluster, &first).await;
        // The process that fills etcd may end in between: the rest is told by etcd.
        cluster.restart();
        cluster.settle().await;
        is_refused(&cluster, &first).await;
    }
}

#[test]
fn another_source_of_the_same_commit_is_bound_by_what_it_replaced() {
    let record = |since: &str, until: Option<&str>| PodSecurityRecord {
        policy: PodSecurity::default(),
        since: since.to_owned(),
        until: until.map(str::to_owned),
    };
    let records = [record("a", Some("b")), record("b", None)];
    assert_eq!(in_force_before(&records, "b"), [&records[0]]);
    assert_eq!(in_force_before(&records, "c"), [&records[1]]);
    assert_eq!(in_force_before(&[], "c"), Vec::<&PodSecurityRecord>::new());
}

/// The errors of a plan that name what was in force before.
fn refused(request: &Request<'_>) -> Vec<String> {
    let review = compare(request).unwrap();
    let errors = review.violations.into_iter().filter(|violation| violation.is_error());
    errors.map(|error| format!("{}: {}", error.file, error.message)).collect()
}

/// Would fail with the head's own restrictions in `compare`.
#[tokio::test]
async fn a_plan_refuses_what_the_push_would() {
    let mut repo = strict();
    let base = head(&repo);
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let head = attack(&mut repo, false);
    let path = repo.path();
    let between = refused(&merge_of(&path, &base, &head));
    assert!(between.len() == 1 && between[0].contains("in force since commit"), "{between:?}");
    for is_pushed in [false, true] {
        if is_pushed {
            cluster.settle().await;
        }
        let snapshot = cluster.reflect().await;
        let sources = snapshot.sources.values().map(|source| &source.value);
        let live = LiveState {
            limits: CommitLimits {
                pod_security: pod_security_records(&snapshot.objects, sources),
                ..CommitLimits::default()
            },
            objects: snapshot.objects.clone(),
            applied: Some(if is_pushed { head.clone() } else { base.clone() }),
            ..LiveState::default()
        };
        let request = Request { base: None, live: Some(live), ..merge_of(&path, &base, &head) };
        assert_eq!(refused(&request), between, "is pushed: {is_pushed}");
    }
}

/// Would fail without `refused` of the effects, and with the objects that the former settings forbid, too.
#[test]
fn tighter_restrictions_name_what_runs_and_would_be_refused() {
    let with =
        |name: &str, fields: &str| pod(name, "one").replace("spec:\n", &format!("spec:\n  {fields}\n"));
    let mut repo = Repo::new(Files::from(
        [
            ("cluster.yaml", cluster("forbidHostPaths: [/etc]")),
            ("path.yaml", with("path", "volumes: [{name: v, hostPath: {path: /srv}}]")),
            ("net.yaml", with("net", "hostNetwork: true")),
            ("web.yaml", pod("web", "one")),
        ]
        .map(|(path, text)| (path.to_owned(), text)),
    ));
    let base = head(&repo);
    let tight = repo.set("cluster.yaml", cluster("level: baseline")).commit("Tighter");
    let tighter =
        repo.set("cluster.yaml", cluster("level: baseline, forbidHostNetwork: true")).commit("Both");
    let path = repo.path();
    let effects = |base: &str, head: &str| -> Vec<String> {
        let review = compare(&merge_of(&path, base, head)).unwrap();
        let of_cluster = review.changes.iter().find(|change| change.name == CLUSTER_NAME).unwrap();
        of_cluster.effects.iter().skip(1).map(ToString::to_string).collect()
    };
    let later = "runs on, and a push that changes it is refused";
    let sets = "Forbidden: the Cluster object sets podSecurity.level: baseline";
    assert_eq!(
        effects(&base, &tight),
        [
            format!("Pod/default/net {later}: spec.hostNetwork: {sets}"),
            format!("Pod/default/path {later}: spec.volumes[0].hostPath: {sets}"),
        ]
    );
    assert_eq!(effects(&tight, &tighter), [""; 0], "both were refused before");
}

/// Would fail with the warning among the notes.
#[test]
fn warnings_head_each_form_of_a_plan() {
    let repo = strict();
    let (path, base) = (repo.path(), head(&repo));
    let mut review = compare(&merge_of(&path, &base, &base)).unwrap();
    review.warnings.push("the recipient changes \u{1b}[2J".to_owned());
    let shown = text(&review, false);
    assert!(shown.starts_with("warning: the recipient changes ") && !shown.contains('\u{1b}'), "{shown:?}");
    let shown = markdown(&review);
    let second = shown.lines().nth(1).unwrap();
    assert!(second.contains('⚠') && second.contains("the recipient changes"), "{shown}");
    assert!(review.json().unwrap().starts_with("{\n  \"warnings\": ["));
}
