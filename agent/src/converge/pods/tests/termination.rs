//! The last status of a removed pod: not ready immediately, and finally how it ended.

use std::sync::Arc;

use futures::StreamExt as _;
use schema::condition::ConditionStatus;
use schema::keys::prefix;
use schema::kinds::pod::{ContainerState, PodPhase, PodStatus};
use schema::records::Binding;
use schema::snapshot::Snapshot;
use schema::store::{Store as _, WatchEvent};
use schema::testing::{pod_spec, versioned};

use super::crash::Rig;
use super::{at, binding, container, exited, facts, node, pause, running, wants};
use crate::converge::pods::facts::{Container, ExitStatus, Observed, RunningTask, State};
use crate::converge::pods::plan::plan;
use crate::converge::pods::report::{fold, has_final_reports};
use crate::converge::pods::status::statuses::{FINAL_REPORT_MAX, FinalReports, Statuses};
use crate::converge::pods::status::wanted;
use crate::worlds::docker::Exit;

/// The statuses that an agent reported of a running pod, and the node once the pod is no longer desired.
fn reported(web: &Binding, containers: Vec<Container>) -> (Statuses, Observed) {
    let mut observed = wants(std::slice::from_ref(web));
    observed.pods.insert(web.pod.uid.clone(), facts(web, vec![pause(running(), "10.244.3.2")], containers));
    let statuses = fold(&observed, &plan(&observed, at(10)), &Statuses::default(), at(10));
    observed.desired.pods.clear();
    (statuses, observed)
}

/// The statuses reported after an observation at that time.
fn say(observed: &mut Observed, own: &Statuses, now: i64) -> Statuses {
    observed.last_reported = own.pods.clone();
    fold(observed, &plan(observed, at(now)), own, at(now))
}

fn busy(web: &Binding, up: bool) -> RunningTask {
    let cancel = tokio_util::sync::CancellationToken::new();
    RunningTask { pod: web.pod.reference(), up, address: None, ports: Vec::new(), stops: Vec::new(), cancel }
}

/// Formats the phase and readiness, and for each container whether it runs, or its reason and exit code.
fn words(statuses: &Statuses, web: &Binding) -> String {
    let Some(status) = statuses.pods.get(&web.pod.reference()) else { return "gone".to_owned() };
    let mut words = format!("{} {:?} {}", status.reason, status.phase, status.is_ready());
    for one in &status.container_statuses {
        words += &match &one.state {
            ContainerState::Running(_) => " runs".to_owned(),
            ContainerState::Waiting(waiting) => format!(" {}", waiting.reason),
            ContainerState::Terminated(end) => format!(" {}:{}", end.reason, end.exit_code),
        };
        assert!(!one.ready && (!one.started || words.ends_with("runs")), "{one:?}");
    }
    words
}

// Seen red with the phase left unchanged: Running to the end, also in the two tests below and in the last one.
#[test]
fn a_pod_that_is_taken_away_says_how_its_containers_ended() {
    let web = binding("web", pod_spec(&["a", "b"]));
    let end = |code| match exited(code, 5, 20) {
        State::Exited(end) => end,
        _ => unreachable!(),
    };
    for (ends, last) in [
        (&[("a-0", 0), ("b-0", 0)][..], "Terminating Succeeded false Completed:0 Completed:0"),
        (&[("a-0", 0), ("b-0", 143)], "Terminating Failed false Completed:0 Error:143"),
        // Removed by hand, so the agent did not observe its end.
        (&[("a-0", 0)], "Terminating Failed false Completed:0 ContainerStatusUnknown:137"),
    ] {
        let (own, mut observed) =
            reported(&web, vec![container("a", 0, running()), container("b", 0, running())]);
        assert!(own.pods[&web.pod.reference()].is_ready());
        let own = say(&mut observed, &own, 20);
        assert_eq!(words(&own, &web), "Terminating Running false runs runs", "at once");
        let since = |statuses: &Statuses| {
            let status = &statuses.pods[&web.pod.reference()];
            let ready = status.conditions.iter().find(|one| one.kind == "Ready").unwrap();
            (ready.status == ConditionStatus::True, ready.last_transition_time)
        };
        assert_eq!(since(&own), (false, at(20)));
        // The containers are removed; the link and the folder are not yet.
        observed.pods.clear();
        observed.work.busy.insert(web.pod.uid.clone(), busy(&web, false));
        for (id, code) in ends {
            let of_pod = observed.work.exit_statuses.entry(web.pod.uid.clone()).or_default();
            of_pod.insert((*id).to_owned(), end(*code));
        }
        let done = say(&mut observed, &own, 21);
        assert_eq!((words(&done, &web).as_str(), since(&done)), (last, (false, at(20))));
        observed.work.busy.clear();
        assert_eq!(words(&say(&mut observed, &done, 22), &web), "gone");
        // If the loop did not observe the pod meanwhile, its end is reported all the same, and once.
        let late = say(&mut observed, &own, 22);
        assert_eq!(words(&late, &web), last);
        assert!(has_final_reports(&late, &observed));
        let gone = say(&mut observed, &late, 23);
        assert!(gone.pods.is_empty() && gone.complete && !has_final_reports(&gone, &observed));
    }
}

#[test]
fn an_end_that_becomes_known_mends_the_phase_that_was_reported_without_it() {
    let web = binding("web", pod_spec(&["a", "b"]));
    let (own, mut observed) =
        reported(&web, vec![container("a", 0, running()), container("b", 0, running())]);
    observed.pods.clear();
    observed.work.busy.insert(web.pod.uid.clone(), busy(&web, false));
    let mut own = say(&mut observed, &own, 20);
    for (id, phase) in [("", "Failed"), ("a-0", "Failed"), ("b-0", "Succeeded"), ("", "Succeeded")] {
        if let (false, State::Exited(end)) = (id.is_empty(), exited(0, 5, 20)) {
            observed.work.exit_statuses.entry(web.pod.uid.clone()).or_default().insert(id.to_owned(), end);
        }
        own = say(&mut observed, &own, 21);
        let words = words(&own, &web);
        assert!(words.starts_with(&format!("Terminating {phase} false")), "{id}: {words}");
    }
}

// Seen red without `is_made` (Failed shortly before it runs).
#[test]
fn its_end_is_reported_when_nothing_of_it_runs() {
    let web = binding("web", pod_spec(&["a", "b"]));
    let b = |state| container("b", 0, state);
    for (containers, is_made, expected) in [
        (vec![container("a", 0, exited(143, 5, 20)), b(running())], false, "Running false Error:143 runs"),
        (
            vec![container("a", 0, exited(143, 5, 20)), b(exited(0, 5, 20))],
            false,
            "Failed false Error:143 Completed:0",
        ),
        (
            vec![container("a", 0, exited(0, 5, 20)), b(State::Removing)],
            false,
            "Failed false Completed:0 ContainerStatusUnknown:137",
        ),
        // Interrupted while being recreated.
        (
            vec![container("a", 0, running()), container("b", 1, State::Created)],
            true,
            "Running false runs runs",
        ),
        (vec![container("a", 0, State::Removing)], true, "Running false runs runs"),
    ] {
        let (own, mut observed) =
            reported(&web, vec![container("a", 0, running()), container("b", 0, running())]);
        observed.pods.insert(web.pod.uid.clone(), facts(&web, vec![], containers));
        if is_made {
            observed.work.busy.insert(web.pod.uid.clone(), busy(&web, true));
        }
        assert_eq!(words(&say(&mut observed, &own, 21), &web), format!("Terminating {expected}"));
    }
    // A container that never started, and one that had ended before.
    let (own, mut observed) = reported(&web, vec![container("a", 0, State::Created)]);
    assert_eq!(own.pods[&web.pod.reference()].phase, PodPhase::Pending);
    let last = "Terminating Failed false ContainerCreating ContainerCreating";
    assert_eq!(words(&say(&mut observed, &own, 21), &web), last);
    let mut crashed = container("a", 1, exited(3, 5, 9));
    crashed.backoff = 1;
    let (own, mut observed) = reported(&web, vec![crashed, b(running())]);
    assert_eq!(words(&say(&mut observed, &own, 21), &web), "Terminating Running false Error:3 runs");
}

#[tokio::test(start_paused = true)]
async fn the_last_word_stands_until_it_is_written_or_a_moment_has_passed() {
    let web = binding("web", pod_spec(&["a"]));
    let (own, mut observed) = reported(&web, vec![container("a", 0, running())]);
    observed.pods.clear();
    observed.work.busy.insert(web.pod.uid.clone(), busy(&web, false));
    let last = say(&mut observed, &own, 20);
    observed.work.busy.clear();
    let mut snapshot = Snapshot::default();
    let kept = |words: &mut FinalReports, own: &Statuses, observed: &mut Observed, snapshot: &Snapshot| {
        let mut next = say(observed, own, 21);
        assert!(next.pods.is_empty());
        words.keep(&mut next, own, snapshot, "n1");
        next
    };
    let mut words = FinalReports::default();
    let again = kept(&mut words, &last, &mut observed, &snapshot);
    assert!(again == last && has_final_reports(&again, &observed));
    tokio::time::advance(FINAL_REPORT_MAX / 2).await;
    assert_eq!(kept(&mut words, &again, &mut observed, &snapshot), last);
    tokio::time::advance(FINAL_REPORT_MAX / 2).await;
    assert!(kept(&mut words, &again, &mut observed, &snapshot).pods.is_empty(), "etcd may be away for long");
    let value = PodStatus::clone(&last.pods[&web.pod.reference()]);
    snapshot.pod_status.insert(("n1".into(), web.pod.reference()), versioned(value));
    assert!(kept(&mut FinalReports::default(), &last, &mut observed, &snapshot).pods.is_empty(), "written");
}

#[test]
fn the_engines_words_about_a_start_are_shown_only_if_they_were() {
    let web = binding("web", pod_spec(&["a"]));
    let error = "exec: hunter2: not found";
    let end = ExitStatus {
        code: 127,
        oom_killed: false,
        error: error.to_owned(),
        last_output: String::new(),
        started_at: None,
        finished_at: at(9),
    };
    let message = |statuses: &Statuses| match &statuses.pods[&web.pod.reference()].container_statuses[0].state
    {
        ContainerState::Terminated(end) => end.message.clone(),
        other => panic!("{other:?}"),
    };
    // Reported before by an agent that knew the container to hold no secret.
    let (own, mut observed) = reported(&web, vec![container("a", 0, State::Exited(end.clone()))]);
    assert_eq!(message(&say(&mut observed, &own, 21)), error);
    let (own, mut observed) = reported(&web, vec![container("a", 0, running())]);
    let there = facts(&web, vec![], vec![container("a", 0, State::Exited(end))]);
    observed.pods.insert(web.pod.uid.clone(), there);
    assert!(!message(&say(&mut observed, &own, 21)).contains("hunter2"));
}

#[test]
fn a_pod_that_is_wanted_again_is_not_taken_for_ended() {
    let web = binding("web", pod_spec(&["a"]));
    let (own, mut observed) = reported(&web, vec![container("a", 0, exited(143, 5, 9))]);
    let left = say(&mut observed, &own, 20);
    let status = &left.pods[&web.pod.reference()];
    assert!(status.phase == PodPhase::Failed && !status.has_ended() && status.is_terminating());
    let nothing = crate::converge::pods::facts::PodFacts::default();
    observed.desired.pods.insert(web.pod.reference(), web.clone());
    observed.pods.clear();
    let decision = &plan(&observed, at(21)).pods[&web.pod.uid];
    let seen =
        wanted::WantedPod { node: &node(), binding: &web, facts: &nothing, decision, lacks_image: false };
    let again = wanted::wanted_status(seen, Some(status), at(21));
    assert!(again.phase == PodPhase::Pending && !again.is_terminating(), "{again:?}");
}

// Seen red without `note_end`: 137, and no reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_value_of_the_key_is_the_end_and_then_it_goes() {
    let mut rig = Rig::new();
    let web = binding("web", pod_spec(&["a", "b"]));
    rig.want_pod(web.clone(), true);
    let asked = std::cell::Cell::new(false);
    let stored = |rig: &Rig| {
        let listing = futures::executor::block_on(rig.store.list(prefix::STATUS)).unwrap();
        listing.items.first().map(|kv| schema::codec::decode::<PodStatus>(&kv.value).unwrap())
    };
    rig.agent_until("gone", |rig| {
        let reported = stored(rig);
        if !asked.get() && reported.as_ref().is_some_and(PodStatus::is_ready) {
            let b = rig.docker.running().into_keys().find(|name| name.starts_with("mk8s_b_")).unwrap();
            rig.docker.end(&b, Exit { code: 0, oom_killed: false });
            rig.unwant_all();
            asked.set(true);
        }
        asked.get() && rig.empty() && reported.is_none()
    })
    .await;
    let mut events = Vec::new();
    let mut watch = rig.store.watch(prefix::STATUS, 1).await.unwrap();
    while !matches!(events.last(), Some(WatchEvent::Delete { .. })) {
        events.extend(watch.next().await.unwrap().unwrap().events);
    }
    let last = events.iter().rev().find_map(|event| match event {
        WatchEvent::Put(put) => Some(schema::codec::decode::<PodStatus>(&put.value).unwrap()),
        WatchEvent::Delete { .. } => None,
    });
    let pods = [(web.pod.reference(), Arc::new(last.unwrap()))].into();
    let last = Statuses { pods, complete: true, is_listed: true };
    assert_eq!(words(&last, &web), "Terminating Failed false Error:143 Completed:0");
}
