//! Pods that ended for good stay ended.

use std::sync::Arc;

use schema::kinds::pod::{PodPhase, PodSpec, PodStatus, RestartPolicy};
use schema::records::Binding;
use schema::snapshot::Snapshot;
use schema::testing::{pod_spec, versioned};

use super::super::status::statuses::FinishedBook;
use super::crash::Rig;
use super::{at, binding, container, exited, facts, node, wants};
use crate::converge::pods::facts::Observed;
use crate::converge::pods::plan::plan;
use crate::converge::pods::steps::{DecisionReason, PodTask};
use crate::names;

fn once(name: &str, policy: RestartPolicy) -> Binding {
    let mut spec = PodSpec { restart_policy: policy, ..pod_spec(&["job"]) };
    spec.containers[0].image = "init:1".into();
    binding(name, spec)
}

fn end(binding: &Binding) -> PodStatus {
    PodStatus { uid: binding.pod.uid.clone(), phase: PodPhase::Succeeded, ..PodStatus::default() }
}

#[test]
fn a_pod_that_ended_is_not_built_whatever_is_left_of_it() {
    let job = once("job", RestartPolicy::OnFailure);
    let mut observed = wants(std::slice::from_ref(&job));
    observed.finished.insert(job.pod.uid.clone(), Arc::new(end(&job)));
    let failed = facts(&job, vec![], vec![container("job", 3, exited(1, 5, 0))]);
    for left in [None, Some(failed)] {
        observed.pods = left.map(|facts| (job.pod.uid.clone(), facts)).into_iter().collect();
        let decision = plan(&observed, at(0)).pods.remove(&job.pod.uid).unwrap();
        assert!(decision.why == DecisionReason::Finished && decision.task.is_none(), "{decision:?}");
    }
}

// Seen red with `None` for the former status (no start time), and without the check of `finished` in `end`.
#[test]
fn how_a_pod_ended_is_in_the_plan_once() {
    let job = once("job", RestartPolicy::Never);
    let uid = &job.pod.uid;
    let mut observed = wants(std::slice::from_ref(&job));
    let runs = PodStatus { phase: PodPhase::Running, start_time: Some(at(1)), ..end(&job) };
    observed.last_reported.insert(job.pod.reference(), Arc::new(runs));
    observed.pods.insert(uid.clone(), facts(&job, vec![], vec![container("job", 0, exited(3, 5, 0))]));
    let decided = plan(&observed, at(9));
    let status = &decided.final_statuses[uid];
    assert_eq!((status.phase, status.start_time), (PodPhase::Failed, Some(at(1))));
    assert!(status.conditions.iter().all(|one| one.last_transition_time == at(9)), "{status:?}");
    // The status of another life of the pod does not count.
    let mut other = PodStatus::clone(&observed.last_reported[&job.pod.reference()]);
    other.uid = "another".into();
    observed.last_reported.insert(job.pod.reference(), Arc::new(other));
    assert_eq!(plan(&observed, at(9)).final_statuses[uid].start_time, None);
    observed.finished.insert(uid.clone(), Arc::new(status.clone()));
    assert!(plan(&observed, at(9)).final_statuses.is_empty());
}

// Seen red with the task left in the plan by `keep_ends`.
#[tokio::test(start_paused = true)]
async fn nothing_of_a_pod_is_taken_away_before_its_end_is_on_the_disk() {
    let mut rig = Rig::new();
    let job = once("job", RestartPolicy::Never);
    // A folder occupies the path to which the file is first written.
    let file = names::finished_file(rig.state_dir(), &job.pod.uid);
    let in_the_way = file.with_extension("tmp");
    std::fs::create_dir_all(&in_the_way).unwrap();
    rig.want_pod(job, true);
    let ended = |rig: &Rig| rig.docker.running().iter().any(|(name, runs)| name.contains("_job_") && !runs);
    rig.agent_until("the end", |rig| ended(rig)).await;
    let began = tokio::time::Instant::now();
    rig.agent_until("a while", |_| began.elapsed() > std::time::Duration::from_secs(10)).await;
    assert!(rig.docker.running().values().any(|runs| *runs), "the pause container stays");
    std::fs::remove_dir(&in_the_way).unwrap();
    rig.agent_until("wound up", |rig| rig.docker.running().values().all(|runs| !runs)).await;
    assert!(file.is_file());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_ended_stays_so_when_its_containers_are_pruned() {
    let mut rig = Rig::new();
    let job = once("job", RestartPolicy::Never);
    rig.want_pod(job.clone(), true);
    // Fully ended: the pause container is gone.
    let ended =
        |rig: &Rig| rig.docker.running().len() == 1 && rig.docker.running().values().all(|runs| !runs);
    rig.agent_until("the end", ended).await;
    rig.docker.engine().containers.clear();
    rig.want_pod(binding("other", pod_spec(&["web"])), true);
    let others = |rig: &Rig| {
        let all = rig.docker.running();
        all.iter().any(|(name, runs)| name.contains("_web_other_") && *runs)
    };
    rig.agent_until("the other pod", others).await;
    let names: Vec<String> = rig.docker.running().into_keys().collect();
    assert!(!names.iter().any(|name| name.contains("_job_")), "{names:?}");
    // A pod removed and wanted again starts a new life.
    rig.want_pod(job.clone(), false);
    rig.agent_until("its folder gone", |rig| !rig.has_folder(&job.pod.uid)).await;
    rig.want_pod(job, true);
    rig.agent_until("once more", |rig| rig.docker.running().keys().any(|name| name.contains("_job_"))).await;
}

#[tokio::test]
async fn etcds_word_stands_in_for_a_lost_file_at_the_start_alone() {
    let (job, server) = (once("job", RestartPolicy::Never), once("server", RestartPolicy::Always));
    let state = tempfile::tempdir().unwrap();
    let facts = crate::converge::pods::facts::NodeFacts { state_dir: state.path().to_owned(), ..node() };
    let desired = wants(&[job.clone(), server.clone()]).desired;
    let said = |statuses: &[PodStatus]| {
        let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
        for (status, of) in statuses.iter().zip([&job, &server]) {
            snapshot.pod_status.insert(("n1".into(), of.pod.reference()), versioned(status.clone()));
        }
        snapshot
    };
    let both = said(&[end(&job), end(&server)]);
    let mut book = FinishedBook::default();
    let found = book.update(&facts, &desired, &both).await;
    assert_eq!(found.keys().collect::<Vec<_>>(), [&job.pod.uid]);
    // The entry goes with the pod, and a remaining status does not bring it back.
    assert!(book.update(&facts, &wants(&[]).desired, &both).await.is_empty());
    assert!(book.update(&facts, &desired, &both).await.is_empty());
    let terminating = PodStatus { reason: "Terminating".into(), ..end(&job) };
    assert!(FinishedBook::default().update(&facts, &desired, &said(&[terminating])).await.is_empty());
    // The next agent reads the kept end.
    book.keep(&facts, end(&job)).await.unwrap();
    let found = FinishedBook::default().update(&facts, &desired, &Snapshot::default()).await;
    assert_eq!(*found[&job.pod.uid], end(&job));
}

/// Classifies the plan for a wanted pod; a former pod of its name goes first.
fn does(observed: &mut Observed, pod: &Binding) -> &'static str {
    let decided = plan(observed, at(100));
    let decision = &decided.pods[&pod.pod.uid];
    match (&decision.why, &decision.task) {
        (DecisionReason::FormerPod, None) => {
            observed.pods.retain(|uid, _| {
                let taken_down = matches!(decided.pods[uid].task, Some(PodTask::Down(_)));
                assert!(taken_down && *uid != pod.pod.uid);
                false
            });
            does(observed, pod)
        }
        (DecisionReason::Finished, None) => "stays",
        (_, Some(PodTask::Up(_))) => "runs",
        other => panic!("{other:?}"),
    }
}

// The pod is removed and wanted again while no agent is running: the same manifest has the same uid. Seen red with
// `is_end_of` without the uid.
#[tokio::test]
async fn an_agent_that_comes_back_runs_another_instance_and_never_the_same_one_twice() {
    let all = [false, true];
    let rows = all.iter().flat_map(|file| all.map(|etcd| (*file, etcd)));
    let rows = rows.flat_map(|(file, etcd)| all.map(|docker| (file, etcd, docker)));
    for (in_file, in_etcd, in_docker) in rows {
        for (policy, code, same, expected) in [
            (RestartPolicy::Never, 0, true, "stays"),
            (RestartPolicy::Never, 1, true, "stays"),
            (RestartPolicy::OnFailure, 0, true, "stays"),
            (RestartPolicy::Never, 0, false, "runs"),
            (RestartPolicy::Never, 1, false, "runs"),
            (RestartPolicy::OnFailure, 0, false, "runs"),
        ] {
            let former = once("job", policy);
            let mut pod = former.clone();
            if !same {
                let mut spec = PodSpec::clone(&former.pod.spec);
                spec.containers[0].args = vec!["--again".into()];
                pod = binding("job", spec);
            }
            assert_eq!(pod.pod.uid == former.pod.uid, same);
            let phase = if code == 0 { PodPhase::Succeeded } else { PodPhase::Failed };
            let end = PodStatus { phase, ..end(&former) };
            let state = tempfile::tempdir().unwrap();
            let facts_of_node =
                crate::converge::pods::facts::NodeFacts { state_dir: state.path().to_owned(), ..node() };
            let mut snapshot = Snapshot { synced: true, ..Snapshot::default() };
            if in_file {
                FinishedBook::default().keep(&facts_of_node, end.clone()).await.unwrap();
            }
            if in_etcd {
                snapshot.pod_status.insert(("n1".into(), former.pod.reference()), versioned(end));
            }
            let mut observed = wants(std::slice::from_ref(&pod));
            if in_docker {
                let left = facts(&former, vec![], vec![container("job", 0, exited(code, 5, 0))]);
                observed.pods.insert(former.pod.uid.clone(), left);
            }
            let mut book = FinishedBook::default();
            observed.finished = book.update(&facts_of_node, &observed.desired, &snapshot).await;
            let is_known = in_file || in_etcd || in_docker;
            let expected = if is_known { expected } else { "runs" };
            let row = format!("{policy:?} {code} same={same} {in_file} {in_etcd} {in_docker}");
            assert_eq!(does(&mut observed, &pod), expected, "{row}");
        }
    }
    // A container that failed and will be restarted has not ended for good.
    let job = once("job", RestartPolicy::OnFailure);
    let mut observed = wants(std::slice::from_ref(&job));
    let failed = facts(&job, vec![], vec![container("job", 0, exited(1, 5, 0))]);
    observed.pods.insert(job.pod.uid.clone(), failed);
    assert_eq!(does(&mut observed, &job), "runs");
}
