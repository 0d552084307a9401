//! Messages that targets should have, from small worlds.

mod commits;

use schema::condition::ConditionStatus;
use schema::keys::Key;
use schema::kinds::cluster::NotificationEvent;
use schema::kinds::job::{JobPhase, JobSpec, JobStatus};
use schema::kinds::node::NodeSpec;
use schema::kinds::{Kind, Resource};
use schema::meta::{NamespacedName, ObjectRef};
use schema::records::{
    Attempt, ChangeCounts, DiskSpace, EtcdMember, HeldPrune, JobDependencyState, JobOrder, JobReport,
    MessageState, NodeConditions, NodeUsage, OutboxEntry, Quarantine, Revision, Rollout, RolloutFailure,
    SentMessage, SourceError, SourceErrorKind, SourceState, SourceStatus, Verdict,
};
use schema::snapshot::Table;
use schema::testing::{COMMIT, at, node_record, object_of, revision, source_status, versioned};

use super::*;

const C2: &str = "2222222222222222222222222222222222222222";
const C3: &str = "3333333333333333333333333333333333333333";
const HOUR: i64 = 3_600;

/// A cluster, and the only target.
struct World {
    snapshot: Snapshot,
    etcd: UpkeepState,
    scope: TargetScope,
}

impl World {
    /// The forge of source `main`.
    fn forge() -> Self {
        Self::with(TargetScope::Commits { source: "main".to_owned() })
    }

    /// A chat that gets these events.
    fn chat(events: &[NotificationEvent]) -> Self {
        Self::with(TargetScope::Events(events.to_vec()))
    }

    fn with(scope: TargetScope) -> Self {
        Self { snapshot: Snapshot::default(), etcd: UpkeepState::default(), scope }
    }

    fn put<T: serde::Serialize>(&mut self, key: &Key, value: &T) {
        let revision = self.snapshot.revision + 1;
        self.snapshot.put(key, value, revision);
    }

    fn apply(&mut self, revision: &Revision) {
        self.put(&Key::Revision(revision.source.clone(), revision.sequence), revision);
    }

    fn source(&mut self, status: &SourceStatus) {
        self.put(&Key::Source(status.name.clone()), status);
    }

    fn wanted(&self, second: i64) -> BTreeMap<String, Message> {
        let scopes = BTreeMap::from([("ops".to_owned(), self.scope.clone())]);
        let all = wanted(&self.snapshot, &self.etcd, &scopes, at(second));
        all.into_iter().map(|((_, subject), message)| (subject, message)).collect()
    }

    /// Subject, state and title of each message.
    fn news(&self, second: i64) -> Vec<String> {
        let line = |(subject, message): (String, Message)| {
            format!("{subject}: {}: {}", message.state.as_str(), message.title)
        };
        self.wanted(second).into_iter().map(line).collect()
    }

    /// Sends all that the target should have, and removes the other entries.
    fn send(&mut self, second: i64) {
        let wanted = self.wanted(second);
        self.snapshot.outbox = Table::new();
        for (subject, message) in wanted {
            let sent = SentMessage { message: message.clone(), id: "1".to_owned(), at: at(second) };
            let entry = OutboxEntry { sent: Some(sent), ..entry(&subject, message, at(second)) };
            self.put(&Key::Outbox("ops".to_owned(), subject), &entry);
        }
    }
}

fn entry(subject: &str, wanted: Message, since: Timestamp) -> OutboxEntry {
    OutboxEntry {
        target: "ops".to_owned(),
        subject: subject.to_owned(),
        settings: String::new(),
        wanted,
        sequence: 1,
        since,
        sent: None,
        attempt: None,
        failures: 0,
        retry_at: None,
        paused_until: None,
        error: None,
    }
}

fn bad(why: &str) -> Verdict {
    Verdict::Bad { why: why.to_owned() }
}

fn decided(sequence: u64, commit: &str, verdict: Verdict, second: i64) -> Revision {
    Revision { verdict, decided_at: Some(at(second)), ..revision(sequence, commit) }
}

fn failing(kind: SourceErrorKind, observed: &str) -> SourceStatus {
    SourceStatus {
        observed_commit: Some(observed.to_owned()),
        error: Some(SourceError { kind, message: format!("{kind:?} of {observed}"), since: at(0) }),
        ..source_status(SourceState::Failed)
    }
}

// Verdicts.

#[test]
fn a_chat_gets_final_verdicts_and_the_former_stays_while_a_commit_is_open_or_superseded() {
    let mut world = World::chat(&[NotificationEvent::Verdict]);
    world.source(&source_status(SourceState::Synced));
    world.apply(&revision(1, COMMIT));
    assert_eq!(world.news(40), [""; 0]);
    world.apply(&decided(1, COMMIT, Verdict::Good, 50));
    let good = "verdict.main: success: source main: commit 111111111111 is good";
    assert_eq!(world.news(50), [good]);
    assert_eq!(world.news(50 + HOUR), [""; 0], "old news for a new target");
    world.apply(&decided(2, C2, Verdict::Superseded, 70));
    world.apply(&revision(3, C3));
    assert_eq!(world.news(90), [good]);
    world.apply(&decided(3, C3, bad("Pod/default/web: it ends"), 100));
    let found = world.wanted(9 * HOUR).remove("verdict.main").unwrap();
    assert_eq!(found.title, "source main: commit 333333333333 is bad");
    assert_eq!(found.text, "Change 3, by Ada <ada@example.org>\nPod/default/web: it ends");
    assert_eq!(found.page, "/history/main/3");
}

fn quarantined(file: &str) -> SourceStatus {
    let file = Quarantine {
        file: file.to_owned(),
        commit: C2.to_owned(),
        author: "Ada <ada@example.org>".to_owned(),
        violations: Vec::new(),
        violations_total: 1,
    };
    SourceStatus { quarantined: vec![file], ..source_status(SourceState::Degraded) }
}

#[test]
fn files_in_quarantine_are_one_message_and_their_verdict_is_sent_where_they_are_not() {
    let degraded = Verdict::Degraded { why: "1 file could not be applied: a.yaml".to_owned() };
    let counts = ChangeCounts { quarantined: 1, ..ChangeCounts::default() };
    let revision = Revision { counts, ..decided(2, C2, degraded, 70) };
    let file = "quarantine.main: failure: source main: 1 file in quarantine";
    let verdict = "verdict.main: failure: source main: commit 222222222222 is applied in part";
    let cases: [(&[NotificationEvent], &[&str]); 4] = [
        (&[], &[file]),
        (&[NotificationEvent::Verdict], &[verdict]),
        (&[NotificationEvent::Quarantine, NotificationEvent::Verdict], &[file]),
        (&[NotificationEvent::Node], &[]),
    ];
    for (events, found) in cases {
        let mut world = World::chat(events);
        world.apply(&revision);
        world.source(&quarantined("a.yaml"));
        assert_eq!(world.news(80), found, "{events:?}");
    }
}

#[test]
fn a_strict_source_that_refuses_a_commit_is_one_message() {
    let mut world = World::chat(&[]);
    world.source(&SourceStatus {
        error: failing(SourceErrorKind::Refused, C2).error,
        ..quarantined("a.yaml")
    });
    assert_eq!(world.news(0), ["source.main: failure: source main: its newest commit is refused"]);
}

// Problems.

#[test]
fn the_end_of_a_problem_that_may_have_been_sent_is_sent_and_another_problem_is_forgotten() {
    let mut world = World::chat(&[]);
    world.source(&quarantined("a.yaml"));
    let (subject, problem) = world.wanted(10).pop_first().unwrap();
    let mut waiting = entry(&subject, problem.clone(), at(10));
    world.put(&Key::Outbox("ops".to_owned(), subject.clone()), &waiting);
    world.source(&source_status(SourceState::Synced));
    assert_eq!(world.news(20), [""; 0], "it was not sent");
    let over = "quarantine.main: success: source main: no file is in quarantine any more";
    let attempt = |message| Some(Attempt { message, id: "1".to_owned(), began_at: at(20) });
    waiting.attempt = attempt(problem);
    world.put(&Key::Outbox("ops".to_owned(), subject.clone()), &waiting);
    assert_eq!(world.news(30), [over], "it may have been sent");
    // Its end was tried, too, in place of the problem.
    waiting.wanted = world.wanted(30).pop_first().unwrap().1;
    waiting.attempt = attempt(waiting.wanted.clone());
    world.put(&Key::Outbox("ops".to_owned(), subject), &waiting);
    assert_eq!(world.news(9 * HOUR), [over]);
    world.send(30);
    assert_eq!(world.news(29 + HOUR), [over], "it is not said again, and stays");
    assert_eq!(world.news(30 + HOUR), [""; 0]);
}

#[test]
fn the_problems_of_a_source_that_was_removed_end_with_it() {
    let mut world = World::chat(&[]);
    world.source(&quarantined("a.yaml"));
    world.send(0);
    world.snapshot.sources = Table::new();
    assert_eq!(world.news(1), ["quarantine.main: success: source main is no longer followed"]);
}

// Would fail with a message for each time that a forge is restarted.
#[test]
fn a_remote_is_a_problem_once_it_was_away_for_three_minutes() {
    let mut world = World::chat(&[]);
    world.source(&failing(SourceErrorKind::RemoteUnreachable, COMMIT));
    let away = "source.main: failure: source main: its repository does not answer";
    assert_eq!(world.news(179), [""; 0]);
    assert_eq!(world.news(180), [away]);
    assert_eq!(world.news(-1), [away], "the clock was set back");
    // No all-clear comes between two problems.
    world.source(&failing(SourceErrorKind::AuthenticationFailed, COMMIT));
    world.send(0);
    world.source(&failing(SourceErrorKind::RemoteUnreachable, COMMIT));
    assert_eq!(world.news(1), [away]);
}

#[test]
fn a_failure_that_each_poll_words_differently_is_sent_once_and_that_of_the_next_commit_anew() {
    let mut world = World::chat(&[]);
    let away = |why: &str| {
        let mut status = failing(SourceErrorKind::RemoteUnreachable, COMMIT);
        status.error.as_mut().unwrap().message = why.to_owned();
        status
    };
    world.source(&away("connection refused"));
    world.send(200);
    let sent = world.wanted(200);
    assert_eq!(sent.len(), 1);
    world.source(&away("no route to host"));
    assert_eq!(world.wanted(201), sent);
    world.source(&failing(SourceErrorKind::SignatureInvalid, C2));
    world.send(202);
    let sent = world.wanted(202);
    world.source(&failing(SourceErrorKind::SignatureInvalid, C3));
    assert_ne!(world.wanted(203), sent);
}

#[test]
fn a_held_prune_is_sent_with_its_reason_and_objects() {
    let mut world = World::chat(&[NotificationEvent::Prune]);
    let object = |number: usize| ObjectRef {
        kind: Kind::Pod,
        namespace: "default".to_owned(),
        name: format!("p{number}"),
    };
    let held = HeldPrune {
        commit: C2.to_owned(),
        why: "it is too many".to_owned(),
        deletes: 30,
        owned: 40,
        since: 0,
        objects: (10..30).map(object).collect(),
    };
    world.source(&SourceStatus { held_prune: Some(held), ..source_status(SourceState::Degraded) });
    let found = world.wanted(0).remove("prune.main").unwrap();
    assert_eq!(found.title, "source main: 30 removals held back");
    assert!(found.text.starts_with("it is too many\nPod/default/p10, "), "{}", found.text);
    assert!(found.text.ends_with("Pod/default/p19, and 20 more"), "{}", found.text);
}

// Would fail with a message for each node.
#[test]
fn nodes_that_are_not_ready_are_one_message_without_those_that_git_drains() {
    let mut world = World::chat(&[]);
    for (name, ready) in [
        ("n1", ConditionStatus::True),
        ("n2", ConditionStatus::Unknown),
        ("n3", ConditionStatus::Unknown),
        ("n4", ConditionStatus::False),
    ] {
        world.put(&Key::Node(name.to_owned()), &node_record(name));
        world.put(&Key::NodeConditions(name.to_owned()), &NodeConditions::new(ready, at(0)));
    }
    let drained = object_of("n3", NodeSpec { drain: true, ..NodeSpec::default() });
    world.put(&Key::Object(drained.reference()), &drained);
    let found = world.wanted(0).remove("nodes").unwrap();
    assert_eq!((found.title.as_str(), found.state), ("2 nodes are not ready", MessageState::Failure));
    assert_eq!(
        found.text,
        "n2: no heartbeat: its agent is stopped or can't reach etcd\nn4: it waits for a range of pod addresses"
    );
    world.send(0);
    for name in ["n2", "n4"] {
        let ready = NodeConditions::new(ConditionStatus::True, at(5));
        world.put(&Key::NodeConditions(name.to_owned()), &ready);
    }
    assert_eq!(world.news(9), ["nodes: success: all nodes are ready"]);
}

fn rollout(commit: &str, failure: Option<&str>, complete: bool) -> Rollout {
    let failure = failure.map(|message| RolloutFailure {
        at: at(50),
        reason: "ErrImagePull".to_owned(),
        message: message.to_owned(),
    });
    let rollout = serde_json::json!({"objectHash": "h", "commit": commit, "wanted": "b", "complete": complete,
        "startedAt": at(40), "progressedAt": at(40), "best": {"updated": 0, "available": 0, "old": 0}, "status": {}});
    Rollout { failure, ..serde_json::from_value(rollout).unwrap() }
}

/// Puts a ReplicaSet that the commit set, and its rollout.
fn put_rollout(world: &mut World, rollout: &Rollout) {
    let template = serde_json::json!({"metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "app", "image": "x"}]}});
    let spec = serde_json::json!({"selector": {"matchLabels": {"app": "web"}}, "template": template});
    let object = object_of("web", Resource::from_json(Kind::ReplicaSet, spec).unwrap());
    world.put(&Key::Object(object.reference()), &object);
    world.put(&Key::Rollout(object.reference()), rollout);
}

#[test]
fn a_failed_rollout_is_left_to_the_verdict_on_its_commit_where_that_is_sent() {
    let rollouts = |world: &World| {
        world.wanted(9 * HOUR).into_keys().filter(|subject| subject.starts_with("rollout")).count()
    };
    let both = [NotificationEvent::Rollout, NotificationEvent::Verdict];
    for (events, verdict, newer_at, found) in [
        (&both[..], decided(1, COMMIT, bad("web"), 60), None, 0),
        // The verdict follows.
        (&both[..], revision(1, COMMIT), None, 0),
        // A newer commit's verdict came first, so that on this one is not sent.
        (&both[..], decided(1, COMMIT, bad("web"), 60), Some(59), 1),
        (&both[..], decided(1, COMMIT, bad("web"), 60), Some(61), 0),
        (&both[..], decided(1, COMMIT, Verdict::Superseded, 60), None, 1),
        (&both[..1], decided(1, COMMIT, bad("web"), 60), None, 1),
    ] {
        let mut world = World::chat(events);
        world.source(&source_status(SourceState::Synced));
        world.apply(&verdict);
        if let Some(second) = newer_at {
            world.apply(&decided(2, C2, Verdict::Good, second));
        }
        put_rollout(&mut world, &rollout(COMMIT, Some("no such image"), false));
        assert_eq!(rollouts(&world), found, "{events:?} {verdict:?} {newer_at:?}");
    }
}

#[test]
fn a_failed_rollout_that_is_tried_again_is_not_over_before_it_is_complete() {
    let mut world = World::chat(&[NotificationEvent::Rollout]);
    put_rollout(&mut world, &rollout(COMMIT, Some("no such image"), false));
    let failed = "rollout.ReplicaSet.default.web: failure: the rollout of ReplicaSet/default/web has failed: ErrImagePull";
    assert_eq!(world.news(60), [failed]);
    world.send(60);
    put_rollout(&mut world, &rollout(C2, None, false));
    assert_eq!(world.news(70), [failed]);
    put_rollout(&mut world, &rollout(C2, None, true));
    let over =
        "rollout.ReplicaSet.default.web: success: ReplicaSet/default/web no longer has a failed rollout";
    assert_eq!(world.news(80), [over]);
}

fn put_job(world: &mut World, phase: JobPhase, number: u64, ended: i64) {
    let id = NamespacedName::new("default", "matrix");
    let order = JobOrder {
        uid: "u".to_owned(),
        hash: "h".to_owned(),
        spec: JobSpec::default(),
        files: Default::default(),
        created_at: at(0),
        dependency: JobDependencyState::None,
        reached: true,
        former: Vec::new(),
        deleting: false,
    };
    let status = JobStatus { phase, slurm_id: Some(number), ..JobStatus::default() };
    let (uid, login, since) = ("u".to_owned(), "ada@login:22".to_owned(), at(ended));
    let report = JobReport { uid, login, since, status, ..JobReport::default() };
    let key = ("n1".to_owned(), id);
    world.snapshot.jobs.insert(key.clone(), versioned(order));
    world.snapshot.job_reports.insert(key, versioned(report));
}

#[test]
fn a_job_is_sent_once_it_ended_and_again_at_the_end_of_its_next_run() {
    let mut world = World::chat(&[]);
    put_job(&mut world, JobPhase::Running, 7, 0);
    assert_eq!(world.news(0), [""; 0]);
    put_job(&mut world, JobPhase::Succeeded, 7, 10);
    let found = world.wanted(20).remove("job.default.matrix").unwrap();
    assert_eq!(
        (found.title.as_str(), found.text.as_str()),
        ("Job/default/matrix has succeeded", "job 7 at ada@login:22")
    );
    assert_eq!(world.news(10 + HOUR), [""; 0], "old news for a new target");
    world.send(20);
    assert_eq!(world.news(20 + HOUR), [""; 0], "its entry makes room");
    put_job(&mut world, JobPhase::Running, 8, 30);
    assert_eq!(world.wanted(30).remove("job.default.matrix"), Some(found.clone()));
    put_job(&mut world, JobPhase::Succeeded, 8, 40);
    assert_ne!(world.wanted(40).remove("job.default.matrix"), Some(found));
}

#[test]
fn etcd_is_nearly_full_from_80_percent_on_until_it_is_below_70() {
    let mut world = World::chat(&[]);
    let full_to = |percent: u64, alarms: &[&str]| EtcdMember {
        name: "a".to_owned(),
        size_bytes: percent,
        quota_bytes: Some(100),
        alarms: alarms.iter().map(|alarm| (*alarm).to_owned()).collect(),
        ..EtcdMember::default()
    };
    let mut states = Vec::new();
    for (second, member) in [79, 80, 70, 69, 79].into_iter().map(|percent| full_to(percent, &[])).enumerate()
    {
        let second = i64::try_from(second).unwrap();
        world.etcd.members = vec![member];
        world.send(second);
        states.push(world.wanted(second).remove("etcd").map(|message| message.state));
    }
    let (failure, success) = (Some(MessageState::Failure), Some(MessageState::Success));
    assert_eq!(states, [None, failure, failure, success, success]);
    world.etcd.members = vec![full_to(1, &["NOSPACE"])];
    let full = ["etcd: failure: etcd is at its quota and refuses writes: nothing new is applied"];
    assert_eq!(world.news(6), full);
    // A process that has just begun to lead has not read it yet.
    world.send(6);
    world.etcd.members.clear();
    assert_eq!(world.news(7), full);
}

fn put_disk(world: &mut World, node: &str, free: u64) {
    let usage = NodeUsage {
        at: at(0),
        window_seconds: 15,
        cpu: 0,
        memory: 0,
        disk: Some(DiskSpace { total_bytes: 100, free_bytes: free }),
        pods: BTreeMap::new(),
        left_out: String::new(),
    };
    world.put(&Key::Node(node.to_owned()), &node_record(node));
    world.put(&Key::Usage(node.to_owned()), &usage);
}

#[test]
fn a_disk_is_nearly_full_below_10_percent_until_15_are_free() {
    let mut world = World::chat(&[]);
    for (first, second, named) in [(10, 10, ""), (9, 14, "n1"), (14, 9, "n1\nn2"), (15, 14, "n2")] {
        put_disk(&mut world, "n1", first);
        put_disk(&mut world, "n2", second);
        world.send(0);
        let text = world.wanted(0).remove("disks").map(|message| message.text).unwrap_or_default();
        assert_eq!(text, named, "{first} and {second} % free");
    }
    put_disk(&mut world, "n2", 15);
    assert_eq!(world.news(1), ["disks: success: no node's disk is nearly full any more"]);
}

#[test]
fn what_a_target_does_not_get_any_more_is_forgotten() {
    let mut world = World::chat(&[]);
    world.source(&quarantined("a.yaml"));
    world.send(0);
    world.scope = TargetScope::Events(vec![NotificationEvent::Node]);
    assert_eq!(world.news(1), [""; 0]);
}
