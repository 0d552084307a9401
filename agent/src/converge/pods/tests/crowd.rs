//! Many pods of a node at once, some of which can't be killed.

use std::sync::Mutex;

use schema::keys::Key;
use schema::kinds::pod::PodStatus;
use schema::records::Binding;
use schema::store::Store as _;
use schema::testing::pod_spec;
use tokio::time::Instant;

use super::binding;
use super::crash::Rig;

fn pods(count: usize) -> Vec<Binding> {
    let one = |n| {
        let mut spec = pod_spec(&["a"]);
        spec.termination_grace_period_seconds = 5;
        binding(&format!("p{n:02}"), spec)
    };
    (0..count).map(one).collect()
}

fn want(rig: &mut Rig, pods: &[Binding], wanted: bool) {
    for pod in pods {
        rig.want_pod(pod.clone(), wanted);
    }
}

fn all_run(rig: &Rig, pods: usize) -> bool {
    let running = rig.docker.running();
    running.len() == 2 * pods && running.values().all(|runs| *runs)
}

async fn status(rig: &Rig, pod: &Binding) -> Option<PodStatus> {
    let stored = rig.store.get(&Key::PodStatus("n1".into(), pod.pod.reference()).to_string()).await.unwrap();
    stored.map(|kv| schema::codec::decode(&kv.value).unwrap())
}

/// Runs the agent until the stored status of `pod` is as wanted.
pub(in crate::converge::pods) async fn until_status(
    rig: &Rig,
    pod: &Binding,
    what: &str,
    wanted: impl Fn(&PodStatus) -> bool,
) -> PodStatus {
    let found = Mutex::new(None);
    let look = |rig: &Rig| {
        let status = futures::FutureExt::now_or_never(status(rig, pod)).flatten();
        let status = status.filter(|status| wanted(status));
        let is_there = status.is_some();
        *found.lock().unwrap() = status;
        is_there
    };
    rig.agent_until(what, look).await;
    found.into_inner().unwrap().unwrap()
}

// Red with STOPS = 2: 75 s.
#[tokio::test(start_paused = true)]
async fn pods_that_ignore_the_signal_end_side_by_side() {
    let mut rig = Rig::new();
    let pods = pods(30);
    want(&mut rig, &pods, true);
    rig.agent_until("30 pods", |rig| all_run(rig, 30)).await;
    rig.docker.engine().all_stubborn = true;
    want(&mut rig, &pods, false);
    let began = Instant::now();
    rig.agent_until("none", Rig::empty).await;
    let took = began.elapsed().as_secs_f32();
    assert!((5.0..6.0).contains(&took), "{took} s for a grace period of 5 s");
}

// Red with a fixed message in `terminating`, and with CREATIONS taken before the obsolete pods are gone.
#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_killed_says_so_and_holds_nobody_up() {
    let mut rig = Rig::new();
    let old = pods(12);
    want(&mut rig, &old, true);
    rig.agent_until("12 pods", |rig| all_run(rig, 12)).await;
    let name =
        |pod: &Binding| crate::names::container_name("mk8s", "a", &pod.pod.reference(), &pod.pod.uid, 0);
    // More of them than the node creates at once.
    rig.docker.engine().hung = old[..5].iter().map(name).collect();
    rig.docker.engine().unkillable = old[5..6].iter().map(name).collect();
    want(&mut rig, &old, false);
    let new = binding("new", pod_spec(&["a"]));
    rig.want_pod(new.clone(), true);
    rig.agent_until("the others are gone, the new one runs", |rig| {
        let running = rig.docker.running();
        // Each of the six keeps its stuck container and its pause container.
        running.len() == 6 * 2 + 2 && running.keys().filter(|name| name.contains("_new_")).count() == 2
    })
    .await;
    let stuck = until_status(&rig, &old[5], "it says so", |s| s.message.contains("could not kill")).await;
    assert_eq!((stuck.reason.as_str(), stuck.is_ready()), ("Terminating", false));
    // The next version of a stuck pod reports the reason for its wait.
    let mut next = pod_spec(&["a"]);
    next.containers[0].image = "app:2".into();
    let next = binding("p05", next);
    rig.want_pod(next.clone(), true);
    let waits = until_status(&rig, &next, "the next one says so", |s| {
        s.reason == "WaitingForFormerPod" && s.message.contains("could not kill")
    })
    .await;
    assert_eq!(waits.uid, next.pod.uid);
    rig.docker.engine().unkillable.clear();
    rig.docker.engine().hung.clear();
}

/// With a transaction per status this took 107.
#[tokio::test(start_paused = true)]
async fn fifty_pods_that_start_at_once_are_reported_in_few_transactions() {
    let mut rig = Rig::new();
    let pods = pods(50);
    want(&mut rig, &pods, true);
    let before = rig.store.revision();
    until_status(&rig, &pods[49], "ready", PodStatus::is_ready).await;
    rig.agent_until("50 pods", |rig| all_run(rig, 50)).await;
    for pod in &pods {
        until_status(&rig, pod, "ready", PodStatus::is_ready).await;
    }
    let transactions = rig.store.revision() - before;
    println!("{transactions} transactions for the statuses of 50 pods");
    assert!(transactions <= 25, "{transactions} transactions");
}
