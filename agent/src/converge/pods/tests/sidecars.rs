//! Sidecars: init containers that stay. Tables of Kubernetes, and the loop on a scripted engine.

use std::time::Duration;

use schema::kinds::pod::RestartPolicy::{self, Always, Never, OnFailure};
use schema::kinds::pod::{ContainerState, PodPhase, PodSpec, PodStatus};
use schema::records::Binding;
use serde_json::{Value, json};

use super::crash::Rig;
use super::plan::{decide, up};
use super::{at, binding, container, exited, facts, pause, running, wants};
use crate::converge::pods::facts::{Container, Observed, State};
use crate::converge::pods::plan::plan;
use crate::converge::pods::probe::machine::{ProbeHealth, ProbeKind};
use crate::converge::pods::report::fold;
use crate::converge::pods::status::statuses::Statuses;
use crate::converge::pods::steps::{DecisionReason, PodTask, TakeDown, Target};
use crate::names;
use crate::worlds::docker::{Exit, FakeExec};
use crate::worlds::prober::FakeAnswer;

/// A pod of these init containers and main containers. `+` marks a sidecar, and `*` one with a startup and a liveness
/// probe.
fn pod(policy: RestartPolicy, init: &str, main: &str) -> Binding {
    let probe = || json!({"tcpSocket": {"port": 80}});
    let one = |text: &str| {
        let mut one = json!({"name": text.trim_matches(['+', '*']), "image": "app:1"});
        if text.starts_with('+') {
            one["restartPolicy"] = json!("Always");
        }
        if text.ends_with('*') {
            (one["startupProbe"], one["livenessProbe"]) = (probe(), probe());
        }
        one
    };
    let all = |text: &str| text.split_whitespace().map(one).collect::<Vec<Value>>();
    let spec = json!({"restartPolicy": policy, "initContainers": all(init), "containers": all(main)});
    binding("web", serde_json::from_value(spec).unwrap())
}

/// The containers of a pod in a few words: `name` runs and has started, `name:starting`, `name:sick` and
/// `name:unstarted` run without the success of the startup probe, or failed liveness or startup probe, `name:made` was
/// only created, `name:CODE` ended.
fn seen(web: &Binding, there: &str) -> Observed {
    let well = ProbeHealth { started: true, ready: true, ..ProbeHealth::default() };
    let one = |text: &str| -> Container {
        let (name, word) = text.split_once(':').unwrap_or((text, ""));
        let (state, health) = match word {
            "" => (running(), well),
            "starting" => (running(), ProbeHealth::default()),
            "sick" => (running(), ProbeHealth { failed: Some(ProbeKind::Liveness), ready: false, ..well }),
            "unstarted" => {
                (running(), ProbeHealth { failed: Some(ProbeKind::Startup), ..ProbeHealth::default() })
            }
            "made" => (State::Created, well),
            code => (exited(code.parse().unwrap(), 5, 9), well),
        };
        let place =
            web.pod.spec.init_containers.iter().position(|init| init.name == name && init.is_sidecar());
        let sidecar = place.map(|place| u32::try_from(place).unwrap());
        let health = (word != "starting").then_some(health);
        Container { health, sidecar, ..container(name, 0, state) }
    };
    let there = there.split_whitespace().map(one).collect();
    let mut observed = wants(std::slice::from_ref(web));
    let there = facts(web, vec![pause(running(), "10.244.3.2")], there);
    observed.pods.insert(web.pod.uid.clone(), there);
    observed
}

fn listed(targets: &[Target]) -> String {
    targets.iter().map(|target| target.container.as_str()).collect::<Vec<_>>().join(" ")
}

/// Returns the containers that the plan starts, and those that it stops because they failed a probe.
fn does(observed: &Observed, web: &Binding) -> (String, String) {
    let decision = decide(observed, web, 50);
    let kills: Vec<Target> = decision.kills.iter().map(|kill| kill.target.clone()).collect();
    let steps = match decision.task {
        Some(PodTask::Up(up)) => up.containers,
        Some(PodTask::Down(down)) => panic!("{down:?}"),
        None => Vec::new(),
    };
    let starts: Vec<_> = steps.iter().map(|step| step.container.as_str()).collect();
    (starts.join(" "), listed(&kills))
}

fn taken_down(observed: &Observed, web: &Binding) -> TakeDown {
    match decide(observed, web, 50).task {
        Some(PodTask::Down(down)) => down,
        other => panic!("{other:?}"),
    }
}

/// `TestComputePodActionsWithRestartableInitContainers` in pkg/kubelet/kuberuntime/kuberuntime_manager_test.go of
/// Kubernetes, without changed definitions, which here are another pod. A container that failed a probe is stopped
/// first and started by a later plan.
#[test]
fn sidecars_start_in_order_and_are_kept_running() {
    let base = |policy| pod(policy, "+s1 +s2* +s3*", "a b c");
    for (policy, there, starts, kills) in [
        (Always, "s1 s2 s3", "a b c", ""),
        (Always, "", "s1", ""),
        (Always, "s1 s2 s3:made", "s3", ""),
        (Always, "s1", "s2", ""),
        (Always, "s1 s2", "s3", ""),
        (Always, "s1 s2 s3:sick", "a b c", "s3"),
        (Always, "s1 s2:starting", "", ""),
        (Always, "s1 s2 s3:unstarted", "", "s3"),
        (Always, "s1:0 s2 s3:0", "s1 s3", ""),
        (Always, "s1:0 s2 s3", "s1 a b c", ""),
        (Never, "s1 s2 s3:137", "s3", ""),
        (Never, "s1 s2 s3:137 a b c", "s3", ""),
        // Some of them were removed by hand.
        (Always, "s3", "s1 s2 a b c", ""),
    ] {
        let web = base(policy);
        assert_eq!(does(&seen(&web, there), &web), (starts.into(), kills.into()), "{policy:?} {there}");
    }
    // All main containers have ended.
    let web = base(Never);
    let down = taken_down(&seen(&web, "s1 s2 s3:1 a:0 b:0 c:0"), &web);
    assert_eq!((listed(&down.stop), listed(&down.stop_last)), (String::new(), "s2 s1".into()));
}

#[test]
fn init_containers_take_turns_with_sidecars_and_run_once() {
    for (policy, there, starts) in [
        (Always, "", "one"),
        (Always, "one:0", "s"),
        (Always, "one:0 s", "two"),
        // Restarted while a later one runs, which is not held up.
        (Always, "one:0 s:1 two", "s"),
        (Never, "one:0 s:0 two", "s"),
        (Always, "one:0 s:1 two:0", "s a"),
        (Always, "one:0 s two:1", "two"),
        // What is left of those that have had their turn does not matter, nor that the sidecar was restarted.
        (Always, "s two:0", "a"),
        (Always, "s a", ""),
        (OnFailure, "s:0 a", "s"),
    ] {
        let web = pod(policy, "one +s two", "a");
        assert_eq!(does(&seen(&web, there), &web), (starts.into(), String::new()), "{policy:?} {there}");
    }
    // An init container that failed for good ends the pod, once the sidecar has ended.
    let web = pod(Never, "one +s two", "a");
    let failed = seen(&web, "one:0 s two:1");
    assert_eq!(listed(&taken_down(&failed, &web).stop_last), "s");
    assert_eq!(status(&failed, &web).phase, PodPhase::Pending);
    let over = seen(&web, "one:0 s:143 two:1");
    assert_eq!(status(&over, &web).phase, PodPhase::Failed);
    let ready = status(&over, &web).conditions.into_iter().find(|one| one.kind == "Ready").unwrap();
    assert_eq!(ready.message, "init container two ended with code 1 (Error)");
}

#[test]
fn a_new_sandbox_starts_from_the_first_init_container() {
    for policy in [Always, OnFailure, Never] {
        let web = pod(policy, "one +s1 +s2", "a");
        let mut observed = seen(&web, "one:0 s1 s2 a:1");
        let finished = policy == Never;
        if let Some(facts) = observed.pods.get_mut(&web.pod.uid) {
            facts.pauses.clear();
        }
        let decision = decide(&observed, &web, 50);
        assert_eq!(decision.why == DecisionReason::Finished, finished);
        let down = if finished { taken_down(&observed, &web) } else { up(decision.clone()).down };
        assert_eq!((listed(&down.stop), listed(&down.stop_last)), (String::new(), "s2 s1".into()));
        if !finished {
            let starts: Vec<_> = up(decision).containers.into_iter().map(|step| step.container).collect();
            assert_eq!(starts, ["one"], "{policy:?}");
        }
    }
}

fn status(observed: &Observed, web: &Binding) -> PodStatus {
    let statuses = fold(observed, &plan(observed, at(50)), &Statuses::default(), at(50));
    PodStatus::clone(&statuses.pods[&web.pod.reference()])
}

/// `TestPodPhaseWithRestartAlwaysRestartableInitContainers` and its twin for `Never` in
/// pkg/kubelet/kubelet_pods_test.go of Kubernetes.
#[test]
fn the_phase_is_that_of_the_main_containers_and_readiness_is_that_of_all() {
    use PodPhase::{Failed, Pending, Running, Succeeded};
    for (policy, there, phase, unready) in [
        (Always, "", Pending, "x a b"),
        (Always, "x", Pending, "a b"),
        (Always, "x:1", Pending, "x a b"),
        (Never, "x:1", Pending, "x a b"),
        (Always, "x a", Pending, "b"),
        (Always, "x a b", Running, ""),
        (Always, "x:starting a b", Running, "x"),
        (Always, "x:1 a b", Running, "x"),
        (Never, "x:1 a b", Running, "x"),
        (Never, "x a:0 b", Running, "a"),
        (Never, "x a:0 b:0", Running, "a b"),
        (Never, "x:1 a:0 b:0", Succeeded, "x a b"),
        (Never, "x:0 a:1 b:0", Failed, "x a b"),
        (OnFailure, "x:1 a:0 b:0", Succeeded, "x a b"),
    ] {
        let web = pod(policy, "+x*", "a b");
        let status = status(&seen(&web, there), &web);
        assert_eq!(status.phase, phase, "{policy:?} {there}");
        assert_eq!(status.is_ready(), unready.is_empty(), "{policy:?} {there}");
        let all = status.init_container_statuses.iter().chain(&status.container_statuses);
        let found: Vec<_> = all.filter(|one| !one.ready).map(|one| one.name.as_str()).collect();
        assert_eq!(found.join(" "), unready, "{policy:?} {there}");
    }
    let starting = pod(Always, "+x*", "a");
    let initialized = |there| {
        let status = status(&seen(&starting, there), &starting);
        status.conditions.into_iter().find(|one| one.kind == "Initialized").unwrap()
    };
    assert_eq!(initialized("x:starting").message, "containers with incomplete status: [x]");
    assert_eq!(initialized("x").message, "");
}

#[test]
fn the_end_of_a_removed_pod_is_that_of_its_main_containers() {
    let web = pod(Always, "+s1 init +s2", "a");
    let mut observed = seen(&web, "s1 s2 init:0 a");
    observed.desired.pods.clear();
    let down = taken_down(&observed, &web);
    assert_eq!((listed(&down.stop), listed(&down.stop_last)), ("a".into(), "s2 s1".into()));
    let mut ended = seen(&web, "s1:137 s2:1 init:0 a:0");
    ended.desired.pods.clear();
    assert_eq!(status(&ended, &web).phase, PodPhase::Succeeded);
}

fn is_there(rig: &Rig, container: &str) -> bool {
    rig.docker.running().keys().any(|name| name.starts_with(&format!("mk8s_{container}_")))
}

/// Two sidecars, the first with a hook, and a main container.
fn with_hook() -> Binding {
    let hook = json!({"preStop": {"exec": {"command": ["bye"]}}});
    let spec = json!({"terminationGracePeriodSeconds": 10, "initContainers": [
        {"name": "s1", "image": "app:1", "restartPolicy": "Always", "lifecycle": hook},
        {"name": "s2", "image": "app:1", "restartPolicy": "Always"},
    ], "containers": [{"name": "a", "image": "app:1"}]});
    binding("web", serde_json::from_value(spec).unwrap())
}

/// pkg/kubelet/kuberuntime/kuberuntime_termination_order_test.go of Kubernetes: after the main containers, in reverse
/// order, in what is left of the grace period.
#[tokio::test(start_paused = true)]
async fn sidecars_end_last_in_reverse_order_within_one_grace_period() {
    for (stubborn, graces) in [
        (&[][..], [("a", 10), ("s2", 10), ("s1", 10)]),
        // The hook runs at once, whoever takes his time.
        (&["s2"], [("a", 10), ("s2", 10), ("s1", 2)]),
        (&["a"], [("a", 10), ("s2", 2), ("s1", 2)]),
        (&["a", "s2"], [("a", 10), ("s2", 2), ("s1", 2)]),
    ] {
        let mut rig = Rig::new();
        rig.docker.engine().execs.insert("bye".into(), FakeExec::default());
        rig.want_pod(with_hook(), true);
        rig.agent_until("complete", Rig::complete).await;
        for container in stubborn {
            let begin = format!("mk8s_{container}_");
            let name = rig.docker.running().into_keys().find(|name| name.starts_with(&begin)).unwrap();
            rig.docker.engine().stubborn.insert(name);
        }
        rig.docker.engine().calls.clear();
        // The binding is gone and the agent is new, so only labels hold the order.
        rig.want_pod(with_hook(), false);
        let began = tokio::time::Instant::now();
        rig.agent_until("gone", Rig::empty).await;
        assert!(began.elapsed() < Duration::from_secs(13), "{:?}", began.elapsed());
        let engine = rig.docker.engine();
        let calls: Vec<&str> = engine.calls.iter().map(|call| call.0.as_str()).collect();
        let place = |begin: &str| calls.iter().position(|call| call.starts_with(begin)).unwrap();
        if stubborn.is_empty() {
            assert!(place("stop mk8s_a_") < place("stop mk8s_s2_"), "{calls:?}");
            assert!(place("stop mk8s_s2_") < place("stop mk8s_s1_"), "{calls:?}");
        } else {
            assert!(place("exec mk8s_s1_") < place("stop mk8s_s2_"), "{calls:?}");
        }
        for (container, grace) in graces {
            let begin = format!("mk8s_{container}_");
            let found = engine.graces.iter().find(|(name, _)| name.starts_with(&begin)).unwrap().1;
            assert_eq!(found.as_secs_f64().round(), f64::from(grace), "{container} of {stubborn:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_container_waits_for_the_startup_probe_and_the_sidecar_is_restarted() {
    let mut rig = Rig::new();
    rig.prober.net().answers.insert("10.244.3.2:90".into(), FakeAnswer::Refused);
    let probe = json!({"tcpSocket": {"port": 90}, "periodSeconds": 1, "failureThreshold": 1000});
    let spec = json!({"restartPolicy": "Never", "initContainers": [
        {"name": "proxy", "image": "app:1", "restartPolicy": "Always", "startupProbe": probe},
        {"name": "init", "image": "init:1"},
    ], "containers": [{"name": "a", "image": "app:1"}]});
    let web = binding("web", serde_json::from_value::<PodSpec>(spec).unwrap());
    rig.want_pod(web, true);
    let began = tokio::time::Instant::now();
    rig.agent_until("waits", |rig| is_there(rig, "proxy") && began.elapsed() > Duration::from_secs(20)).await;
    assert!(!is_there(&rig, "init") && !is_there(&rig, "a"), "{:?}", rig.docker.running());
    rig.prober.net().answers.clear();
    rig.agent_until("complete", Rig::complete).await;
    let proxy = rig.docker.running().into_keys().find(|name| name.starts_with("mk8s_proxy_")).unwrap();
    rig.docker.end(&proxy, Exit { code: 0, oom_killed: false });
    let again = |rig: &Rig| rig.docker.running().iter().any(|(name, runs)| *runs && name.ends_with("_1"));
    rig.agent_until("restarted", again).await;
    assert_eq!(rig.calls_of("create mk8s_init_"), 1, "a completed init container runs once");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_done_stops_its_sidecars_and_says_how_the_main_containers_ended() {
    let mut rig = Rig::new();
    let spec = json!({"restartPolicy": "Never",
        "initContainers": [{"name": "s", "image": "app:1", "restartPolicy": "Always"}],
        "containers": [{"name": "job", "image": "init:1"}]});
    let job = binding("job", serde_json::from_value::<PodSpec>(spec).unwrap());
    rig.want_pod(job.clone(), true);
    let file = names::finished_file(rig.state_dir(), &job.pod.uid);
    rig.agent_until("wound up", |rig| file.is_file() && rig.docker.running().values().all(|runs| !runs))
        .await;
    let end: PodStatus = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(end.phase, PodPhase::Succeeded);
    let sidecar = &end.init_container_statuses[0].state;
    assert!(matches!(sidecar, ContainerState::Terminated(end) if end.exit_code == 143), "{sidecar:?}");
}
