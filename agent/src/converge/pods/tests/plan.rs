//! Plans for whole nodes.

use schema::kinds::pod::{ContainerPort, PodPhase, Protocol, RestartPolicy};
use schema::records::Binding;
use schema::testing::{pod_spec, subnet};

use super::{at, binding, container, exited, facts, oom_killed, pause, running, wants};
use crate::converge::pods::facts::{Observed, RecentFailure, State};
use crate::converge::pods::plan::plan;
use crate::converge::pods::report::fold;
use crate::converge::pods::sandbox::allocate::ports_to_allocate;
use crate::converge::pods::status::statuses::Statuses;
use crate::converge::pods::status::wanted;
use crate::converge::pods::steps::{
    BringUp, ContainerAct, Decision, DecisionReason, PauseStep, PodTask, Target,
};
use crate::desired::StateOrigin;
use crate::worlds::netlink::{HostEnd, Listener};

pub(super) fn decide(observed: &Observed, binding: &Binding, now: i64) -> Decision {
    plan(observed, at(now)).pods.remove(&binding.pod.uid).expect("a decision per pod")
}

pub(super) fn up(decision: Decision) -> BringUp {
    match decision.task {
        Some(PodTask::Up(up)) => *up,
        other => panic!("{:?}: {other:?}", decision.why),
    }
}

pub(super) fn has(observed: &mut Observed, binding: &Binding, pod: crate::converge::pods::facts::PodFacts) {
    observed.pods.insert(binding.pod.uid.clone(), pod);
}

#[test]
fn a_new_pod_gets_the_next_address_and_both_containers_at_once() {
    let web = binding("web", pod_spec(&["a", "b"]));
    let other = binding("other", pod_spec(&["a"]));
    let mut observed = wants(&[web.clone(), other.clone()]);
    let old = facts(&other, vec![pause(running(), "10.244.3.7")], vec![container("a", 0, running())]);
    has(&mut observed, &other, old);
    let decision = decide(&observed, &web, 0);
    assert_eq!(decision.why, DecisionReason::New);
    let up = up(decision);
    assert_eq!(up.address.map(|a| a.to_string()).as_deref(), Some("10.244.3.8/24"));
    assert!(matches!(&up.pause, PauseStep::Create(new) if new.labels["minik8s.io/ip"] == "10.244.3.8/24"));
    let names: Vec<_> = up.containers.iter().map(|c| (c.container.as_str(), c.attempt)).collect();
    assert_eq!(names, [("a", 0), ("b", 0)]);
    assert_eq!(up.link.map(|l| l.gateway.to_string()).as_deref(), Some("10.244.3.1"));
    // The running pod is left alone.
    let decision = decide(&observed, &other, 0);
    assert!(decision.task.is_none() && decision.why == DecisionReason::UpToDate, "{decision:?}");
}

#[test]
fn addresses_wrap_around_and_spare_network_bridge_and_broadcast() {
    let pods: Vec<Binding> = (0..260).map(|n| binding(&format!("p{n:03}"), pod_spec(&["a"]))).collect();
    let mut observed = wants(&pods);
    observed.work.last_address = Some("10.244.3.254".parse().unwrap());
    let plan = plan(&observed, at(0));
    let mut given: Vec<String> = Vec::new();
    let mut without = 0;
    for decision in plan.pods.values() {
        match &decision.task {
            Some(PodTask::Up(up)) => given.push(up.address.unwrap().addr().to_string()),
            _ => {
                assert_eq!(decision.why, DecisionReason::NoFreeAddress);
                without += 1;
            }
        }
    }
    let distinct: std::collections::BTreeSet<_> = given.iter().collect();
    assert_eq!((given.len(), distinct.len(), without), (253, 253, 7));
    for reserved in ["10.244.3.0", "10.244.3.1", "10.244.3.255"] {
        assert!(!given.iter().any(|g| g == reserved), "{reserved}");
    }
}

#[test]
fn nothing_is_taken_down_while_nobody_knows_what_should_run() {
    let gone = binding("gone", pod_spec(&["a"]));
    let mut observed = wants(&[]);
    has(
        &mut observed,
        &gone,
        facts(&gone, vec![pause(running(), "10.244.3.2")], vec![container("a", 0, running())]),
    );
    observed.links = Some([("mk8sv123456789".to_owned(), HostEnd::default())].into());
    observed.folders = ["abc".to_owned()].into();
    // Seen red with a sweep while some state is unknown or unreadable.
    observed.sweep_is_due = true;
    observed.desired.known_from = StateOrigin::Unknown;
    let unknown = plan(&observed, at(0));
    assert!(schema::control::Plan::is_empty(&unknown), "{unknown:?}");
    observed.desired.known_from = StateOrigin::Etcd;
    observed.desired.unreadable.insert(gone.pod.reference(), "broken".into());
    let unreadable = plan(&observed, at(0));
    assert!(schema::control::Plan::is_empty(&unreadable), "{unreadable:?}");
    observed.desired.unreadable.clear();
    let known = plan(&observed, at(0));
    assert_eq!(
        (known.remove_links.as_slice(), known.sweep.is_some()),
        (&["mk8sv123456789".to_owned()][..], true)
    );
    let Some(PodTask::Down(down)) = &known.pods[&gone.pod.uid].task else { panic!("{known:?}") };
    assert_eq!(down.stop.len(), 1);
    assert_eq!(down.remove.last().map(|t| t.container.as_str()), Some("POD"));
    assert!(matches!(&known.pods["abc"].task, Some(PodTask::Down(down)) if down.folder));
}

#[test]
fn a_disk_that_was_lost_and_an_etcd_that_is_not_filled_again_take_nothing_down() {
    let (old, new) = (binding("web", pod_spec(&["a"])), binding("web", pod_spec(&["a", "b"])));
    let mut observed = wants(&[]);
    let there = facts(&old, vec![pause(running(), "10.244.3.2")], vec![container("a", 0, running())]);
    has(&mut observed, &old, there);
    observed.desired.settled = false;
    for subnet in [None, Some(subnet("10.244.3.0/24"))] {
        observed.desired.subnet = subnet;
        let decision = decide(&observed, &old, 0);
        assert!(decision.task.is_none() && decision.why == DecisionReason::Unsettled, "{decision:?}");
    }
    // A binding that wants another form of the name is a statement, not a gap.
    observed.desired.pods.insert(new.pod.reference(), new);
    assert!(matches!(decide(&observed, &old, 0).task, Some(PodTask::Down(_))));
}

#[test]
fn a_folder_that_could_not_be_removed_is_tried_again_later() {
    let mut observed = wants(&[]);
    observed.folders = ["abc".to_owned()].into();
    observed.work.recent_failures.insert(("abc".into(), String::new()), trouble(10));
    let decision = plan(&observed, at(5)).pods.remove("abc").unwrap();
    assert!(decision.task.is_none() && decision.next_at == Some(at(10)), "{decision:?}");
    let decision = plan(&observed, at(10)).pods.remove("abc").unwrap();
    assert!(decision.task.is_some(), "{decision:?}");
}

// Seen red with a `removal_trouble` that accepts any trouble.
#[test]
fn what_could_not_be_made_is_taken_down_at_once() {
    let (old, new) = (binding("web", pod_spec(&["a"])), binding("web", pod_spec(&["a", "b"])));
    let mut observed = wants(std::slice::from_ref(&new));
    has(&mut observed, &old, facts(&old, vec![pause(State::Created, "10.244.3.2")], vec![]));
    let slot = (old.pod.uid.clone(), String::new());
    let said = |observed: &Observed| {
        let statuses = fold(observed, &plan(observed, at(5)), &Statuses::default(), at(5));
        statuses.pods[&new.pod.reference()].message.clone()
    };
    observed.work.recent_failures.insert(slot.clone(), trouble(60));
    assert!(decide(&observed, &old, 5).task.is_none());
    assert!(said(&observed).ends_with("which can't be removed: busy"), "{}", said(&observed));
    for reason in ["ContainerCreating", "CreateContainerConfigError"] {
        let trouble = RecentFailure { reason: reason.into(), ..trouble(60) };
        observed.work.recent_failures.insert(slot.clone(), trouble);
        assert!(matches!(decide(&observed, &old, 5).task, Some(PodTask::Down(_))), "{reason}");
        assert!(!said(&observed).contains("can't be removed"), "{reason}: {}", said(&observed));
        // The status of the former pod does not report it either.
        let mut observed = observed.clone();
        observed.desired.pods.clear();
        let statuses = fold(&observed, &plan(&observed, at(5)), &Statuses::default(), at(5));
        let status = &statuses.pods[&old.pod.reference()];
        assert!(!format!("{status:?}").contains("FailedKillPod"), "{reason}: {status:?}");
    }
}

fn trouble(retry_at: i64) -> RecentFailure {
    let (reason, message) = ("Terminating".into(), "busy".into());
    RecentFailure { reason, message, failures: 1, at: at(0), retry_at: at(retry_at) }
}

#[test]
fn another_uid_of_the_same_name_ends_before_the_new_one_begins() {
    let (old, new) = (binding("web", pod_spec(&["a"])), binding("web", pod_spec(&["a", "b"])));
    let mut observed = wants(std::slice::from_ref(&new));
    has(
        &mut observed,
        &old,
        facts(&old, vec![pause(running(), "10.244.3.2")], vec![container("a", 0, running())]),
    );
    assert_eq!(decide(&observed, &new, 0).why, DecisionReason::FormerPod);
    assert!(matches!(decide(&observed, &old, 0).task, Some(PodTask::Down(_))));
}

#[test]
fn a_dead_pause_container_rebuilds_the_pod_at_its_address() {
    let web = binding("web", pod_spec(&["a"]));
    let mut observed = wants(std::slice::from_ref(&web));
    let old = facts(
        &web,
        vec![pause(exited(137, 50, 90), "10.244.3.9")],
        vec![container("a", 0, exited(1, 1, 5)), container("a", 1, running())],
    );
    has(&mut observed, &web, old);
    let decision = decide(&observed, &web, 100);
    assert_eq!(decision.why, DecisionReason::PauseGone);
    let up = up(decision);
    assert_eq!(up.address.map(|a| a.to_string()).as_deref(), Some("10.244.3.9/24"));
    assert_eq!(up.down.stop.iter().map(|t| t.id.as_str()).collect::<Vec<_>>(), ["a-1"]);
    assert_eq!(up.down.remove.iter().map(|t| t.id.as_str()).collect::<Vec<_>>(), ["POD-0"]);
    assert_eq!(up.containers[0].attempt, 2);
    assert_eq!(up.obsolete.iter().map(|t| t.id.as_str()).collect::<Vec<_>>(), ["a-0"]);
}

#[test]
fn a_restart_keeps_exactly_the_last_dead_start() {
    let web = binding("web", pod_spec(&["a"]));
    let mut observed = wants(std::slice::from_ref(&web));
    let starts = (0..4).map(|n| container("a", n, exited(1, 1, 10 + i64::from(n)))).collect();
    has(&mut observed, &web, facts(&web, vec![pause(running(), "10.244.3.2")], starts));
    let up = up(decide(&observed, &web, 500));
    assert_eq!(up.containers[0].attempt, 4);
    assert!(matches!(up.pause, PauseStep::Runs(_)));
    let removed: Vec<_> = up.obsolete.iter().map(|t| t.id.as_str()).collect();
    assert_eq!(removed, ["a-2", "a-1", "a-0"]);
}

#[test]
fn a_made_container_is_started_and_a_second_running_start_ends() {
    let web = binding("web", pod_spec(&["a", "b"]));
    let mut observed = wants(std::slice::from_ref(&web));
    let starts =
        vec![container("a", 0, running()), container("a", 1, running()), container("b", 0, State::Created)];
    has(&mut observed, &web, facts(&web, vec![pause(running(), "10.244.3.2")], starts));
    let up = up(decide(&observed, &web, 5));
    assert_eq!(up.down.stop.iter().map(|t| t.id.as_str()).collect::<Vec<_>>(), ["a-0"]);
    assert!(matches!(&up.containers[0].act, ContainerAct::Start(id) if id == "b-0"));
    assert_eq!(up.containers.len(), 1);
}

#[test]
fn init_containers_take_turns() {
    let mut with_init = pod_spec(&["a"]);
    with_init.init_containers = pod_spec(&["one", "two"]).containers;
    let web = binding("web", with_init);
    let mut observed = wants(std::slice::from_ref(&web));
    let names = |observed: &Observed| -> Vec<String> {
        let decision = decide(observed, &web, 50);
        let up = decision.task.map(|task| match task {
            PodTask::Up(up) => up.containers.into_iter().map(|c| c.container).collect(),
            PodTask::Down(down) => panic!("{down:?}"),
        });
        up.unwrap_or_default()
    };
    let pauses = || vec![pause(running(), "10.244.3.2")];
    assert_eq!(names(&observed), ["one"]);
    let done = |name: &str| container(name, 0, exited(0, 1, 5));
    for (there, next) in [
        (vec![container("one", 0, running())], vec![]),
        (vec![done("one")], vec!["two"]),
        (vec![done("one"), done("two")], vec!["a"]),
        (vec![container("a", 0, running())], vec![]),
        (vec![done("one"), container("two", 0, exited(1, 1, 5))], vec!["two"]),
        (vec![done("one"), container("two", 0, oom_killed(0))], vec!["two"]),
    ] {
        has(&mut observed, &web, facts(&web, pauses(), there));
        assert_eq!(names(&observed), next);
    }
}

#[test]
fn an_init_container_with_a_child_killed_for_memory_fails_the_pod_whatever_its_code() {
    let mut never = pod_spec(&["a"]);
    never.restart_policy = RestartPolicy::Never;
    never.init_containers = pod_spec(&["one"]).containers;
    let job = binding("job", never);
    let mut observed = wants(std::slice::from_ref(&job));
    let killed = container("one", 0, oom_killed(0));
    has(&mut observed, &job, facts(&job, vec![pause(running(), "10.244.3.2")], vec![killed]));
    let decision = decide(&observed, &job, 50);
    assert!(matches!(decision.task, Some(PodTask::Down(_))), "{decision:?}");
    let seen = wanted::WantedPod {
        node: &observed.node,
        binding: &job,
        facts: &observed.pods[&job.pod.uid],
        decision: &decision,
        lacks_image: false,
    };
    let status = wanted::wanted_status(seen, None, at(50));
    assert_eq!(status.phase, PodPhase::Failed);
    assert!(!status.init_container_statuses[0].ready);
    let ready = status.conditions.iter().find(|condition| condition.kind == "Ready").unwrap();
    assert_eq!(ready.message, "init container one ended with code 0 (OOMKilled)");
}

#[test]
fn a_finished_pod_is_not_rebuilt_when_its_pause_container_is_gone() {
    let mut never = pod_spec(&["a"]);
    never.restart_policy = RestartPolicy::Never;
    let job = binding("job", never);
    let mut observed = wants(std::slice::from_ref(&job));
    has(&mut observed, &job, facts(&job, vec![], vec![container("a", 0, exited(1, 1, 5))]));
    let decision = decide(&observed, &job, 50);
    assert!(decision.task.is_none() && decision.why == DecisionReason::Finished, "{decision:?}");
    has(&mut observed, &job, facts(&job, vec![], vec![container("a", 0, running())]));
    let decision = decide(&observed, &job, 50);
    assert!(matches!(&decision.task, Some(PodTask::Down(down)) if down.stop.len() == 1 && !down.folder));
}

#[test]
fn a_finished_pod_gives_its_namespaces_and_address_back_and_keeps_its_containers() {
    let mut never = pod_spec(&["a"]);
    never.restart_policy = RestartPolicy::Never;
    never.init_containers = pod_spec(&["one", "two"]).containers;
    let job = binding("job", never);
    let mut observed = wants(std::slice::from_ref(&job));
    let done = |name: &str, code| container(name, 0, exited(code, 1, 5));
    for there in [
        vec![done("one", 0), done("two", 0), done("a", 1)],
        // A failed init container ends the pod; the successful one before it does not run again.
        vec![done("one", 0), done("two", 1)],
    ] {
        has(&mut observed, &job, facts(&job, vec![pause(running(), "10.244.3.2")], there.clone()));
        let decision = decide(&observed, &job, 50);
        let Some(PodTask::Down(down)) = &decision.task else { panic!("{decision:?}") };
        assert_eq!(down.remove.iter().map(|t| t.id.as_str()).collect::<Vec<_>>(), ["POD-0"]);
        assert!(down.stop.is_empty() && down.link.is_some() && down.unmount && !down.folder, "{down:?}");
        has(&mut observed, &job, facts(&job, vec![], there));
        let decision = decide(&observed, &job, 50);
        assert!(decision.task.is_none() && decision.why == DecisionReason::Finished, "{decision:?}");
    }
}

#[test]
fn a_dead_start_that_can_not_be_removed_keeps_nothing_else_of_a_finished_pod() {
    let mut once = pod_spec(&["a"]);
    once.restart_policy = RestartPolicy::OnFailure;
    let job = binding("job", once);
    let mut observed = wants(std::slice::from_ref(&job));
    let start = |n: u32| container("a", n, exited(i64::from(n < 2), 1, 5));
    let ids = |list: &[Target]| list.iter().map(|t| t.id.clone()).collect::<Vec<_>>();
    for (pauses, removed) in [(vec![pause(running(), "10.244.3.2")], vec!["POD-0"]), (vec![], vec![])] {
        has(&mut observed, &job, facts(&job, pauses, vec![start(0), start(1), start(2)]));
        let decision = decide(&observed, &job, 50);
        let Some(PodTask::Down(down)) = &decision.task else { panic!("{decision:?}") };
        assert_eq!(ids(&down.remove), removed);
        assert_eq!(ids(&down.obsolete), ["a-0"]);
    }
    observed.work.removal_failures.insert("a-0".into(), trouble(60));
    let decision = decide(&observed, &job, 50);
    assert!(decision.task.is_none() && decision.next_at == Some(at(60)), "{decision:?}");
}

#[test]
fn a_pause_container_that_ends_at_once_is_not_made_anew_in_a_loop() {
    let mut host = pod_spec(&["a"]);
    host.host_network = true;
    let web = binding("web", host);
    let mut observed = wants(std::slice::from_ref(&web));
    let dead = |ran| vec![pause(exited(137, ran, 90), "10.244.3.9")];
    has(&mut observed, &web, facts(&web, dead(1), vec![]));
    let decision = decide(&observed, &web, 91);
    assert!(decision.task.is_none() && decision.next_at == Some(at(94)), "{decision:?}");
    assert_eq!(decision.waiting["a"].reason, "ContainerCreating");
    assert!(decide(&observed, &web, 94).task.is_some());
    // A pause container that ran for a while, or whose start is in the future, is replaced immediately.
    assert!(decide(&observed, &web, 80).task.is_some());
    has(&mut observed, &web, facts(&web, dead(60), vec![]));
    assert!(decide(&observed, &web, 91).task.is_some());
}

#[test]
fn a_port_of_a_pod_on_the_hosts_network_is_the_containers_own() {
    let mut host = pod_spec(&["a"]);
    host.host_network = true;
    host.containers[0].ports =
        vec![ContainerPort { container_port: 8080, host_port: Some(0), ..ContainerPort::default() }];
    let web = binding("web", host);
    let up = up(decide(&wants(std::slice::from_ref(&web)), &web, 0));
    assert_eq!(up.ports.iter().map(|p| p.host_port).collect::<Vec<_>>(), [8080]);
    assert!(up.link.is_none() && up.address.is_none());
}

// Seen red with a `Pool::ports` that skips only held ports: a free port was 20000.
#[test]
fn host_ports_are_free_ones_and_never_given_twice() {
    let with = |ports: &[u16]| {
        let mut spec = pod_spec(&["a"]);
        spec.containers[0].ports = ports
            .iter()
            .map(|p| ContainerPort { container_port: 80, host_port: Some(*p), ..ContainerPort::default() })
            .collect();
        spec
    };
    let (mut one, mut two, mut three) =
        (binding("one", with(&[0, 20_001])), binding("two", with(&[0])), binding("three", with(&[20_000])));
    // In the order of the plan, which is by uid: pods with a port come last.
    for (binding, letter) in [(&mut one, "a"), (&mut two, "b"), (&mut three, "c")] {
        binding.pod.uid = letter.repeat(32);
    }
    let observed = wants(&[one.clone(), two.clone(), three.clone()]);
    let mut plan = plan(&observed, at(0));
    let mut ports: Vec<u16> = Vec::new();
    for binding in [&one, &two, &three] {
        let decision = plan.pods.remove(&binding.pod.uid).unwrap();
        match decision.task {
            Some(PodTask::Up(up)) => ports.extend(up.ports.iter().map(|p| p.host_port)),
            _ => panic!("{:?}", decision.why),
        }
    }
    let distinct: std::collections::BTreeSet<_> = ports.iter().collect();
    assert_eq!(distinct.len(), ports.len(), "{ports:?}");
    assert_eq!(ports, [20_001, 20_002, 20_003, 20_000]);
}

#[test]
fn a_port_that_two_pods_name_is_one_pods() {
    let (mut one, mut other) =
        (binding("one", with_port(8080, false)), binding("other", with_port(8080, false)));
    (one.pod.uid, other.pod.uid) = ("a".repeat(32), "b".repeat(32));
    let observed = wants(&[one.clone(), other.clone()]);
    assert_eq!(up(decide(&observed, &one, 0)).ports[0].host_port, 8080);
    let DecisionReason::PortTaken(taken) = decide(&observed, &other, 0).why else {
        panic!("it has one port")
    };
    assert_eq!(taken.to_string(), "host port 8080/TCP is used by pod default/one on this node");
}

// Red when plan.rs takes all of `work.pulling`, and when it takes none.
#[test]
fn a_pull_that_no_wanted_pod_needs_is_given_up() {
    let web = binding("web", pod_spec(&["a"]));
    let mut observed = wants(std::slice::from_ref(&web));
    let (wanted, gone) = ((web.pod.uid, "a".to_owned()), ("gone".to_owned(), "a".to_owned()));
    for slot in [&wanted, &gone] {
        observed.work.pulling.insert(slot.clone(), crate::converge::pods::facts::PullInProgress::default());
    }
    assert_eq!(plan(&observed, at(0)).cancel_pulls, [gone]);
    // While the desired state is unknown, no pull is cancelled.
    observed.desired.settled = false;
    assert!(plan(&observed, at(0)).cancel_pulls.is_empty());
}

#[test]
fn a_container_that_waits_for_its_image_says_how_far_it_is() {
    let web = binding("web", pod_spec(&["a"]));
    let mut observed = wants(std::slice::from_ref(&web));
    let pulling = crate::converge::pods::facts::PullInProgress {
        progress: "12 of 40 MiB, 3 of 7 layers".into(),
        ..Default::default()
    };
    observed.work.pulling.insert((web.pod.uid.clone(), "a".into()), pulling);
    let plan = plan(&observed, at(0));
    let waiting = &plan.pods[&web.pod.uid].waiting["a"];
    assert_eq!(waiting.reason, "ContainerCreating");
    assert_eq!(waiting.message, "pulling image app:1: 12 of 40 MiB, 3 of 7 layers");
}

pub(super) fn with_port(host_port: u16, host_network: bool) -> schema::kinds::pod::PodSpec {
    let mut spec = pod_spec(&["a"]);
    spec.host_network = host_network;
    let port = ContainerPort { container_port: 8080, host_port: Some(host_port), ..ContainerPort::default() };
    spec.containers[0].ports = vec![port];
    spec
}

pub(super) fn listener(process: &str) -> Listener {
    Listener { process: Some(process.into()), loopback: false }
}

#[test]
fn what_listens_on_the_loopback_alone_hinders_no_forwarded_port() {
    let (pod, host) = (binding("pod", with_port(8080, false)), binding("host", with_port(8080, true)));
    let mut observed = wants(std::slice::from_ref(&pod));
    observed.listeners.insert((Protocol::Tcp, 8080), Listener { loopback: true, ..listener("resolver") });
    assert_eq!(up(decide(&observed, &pod, 0)).ports[0].host_port, 8080);
    let mut observed = Observed { desired: wants(std::slice::from_ref(&host)).desired, ..observed };
    assert!(matches!(decide(&observed, &host, 0).why, DecisionReason::PortTaken(_)), "it can't bind it");
    observed.listeners.clear();
    assert!(decide(&observed, &host, 0).task.is_some());
}

#[test]
fn a_pod_that_does_not_get_all_its_ports_holds_none_and_no_address() {
    let mut both = with_port(8080, false);
    both.containers[0].ports.push(ContainerPort {
        container_port: 81,
        host_port: Some(9090),
        ..ContainerPort::default()
    });
    // In the order of the plan, which is by uid.
    let (mut greedy, mut modest) = (binding("greedy", both), binding("modest", with_port(8080, false)));
    (greedy.pod.uid, modest.pod.uid) = ("a".repeat(32), "b".repeat(32));
    let mut observed = wants(&[greedy.clone(), modest.clone()]);
    observed.listeners.insert((Protocol::Tcp, 9090), Listener::default());
    assert!(matches!(decide(&observed, &greedy, 0).why, DecisionReason::PortTaken(_)));
    let given = up(decide(&observed, &modest, 0));
    assert_eq!(given.ports[0].host_port, 8080);
    assert_eq!(given.address.map(|a| a.to_string()).as_deref(), Some("10.244.3.2/24"));
}

// Red when `Pool::holder` forgets `listening`, and when `listens` is always false.
#[test]
fn what_listens_on_the_node_itself_has_its_port() {
    let (fixed, free) = (binding("fixed", with_port(8080, false)), binding("free", with_port(0, false)));
    let host = binding("host", with_port(8080, true));
    let mut observed = wants(&[fixed.clone(), free.clone()]);
    observed.listeners.insert((Protocol::Tcp, 8080), listener("nginx (process 7)"));
    observed.listeners.insert((Protocol::Tcp, 20_000), Listener::default());
    observed.listeners.insert((Protocol::Udp, 20_001), Listener::default());
    assert_eq!(up(decide(&observed, &free, 0)).ports[0].host_port, 20_001, "UDP is another port");
    let decision = decide(&observed, &fixed, 0);
    assert!(decision.task.is_none());
    assert_eq!(decision.next_at, Some(at(2)), "it is tried again");
    let waiting = &decision.waiting["a"];
    assert_eq!(waiting.reason, "HostPortConflict");
    assert!(
        waiting.message.contains("8080/TCP") && waiting.message.contains("nginx (process 7)"),
        "{waiting:?}"
    );
    observed.listeners.clear();
    assert_eq!(up(decide(&observed, &fixed, 2)).ports[0].host_port, 8080);

    // A pod on the host's network whose pause container is gone is itself the listener, so it is recreated.
    let mut observed = wants(std::slice::from_ref(&host));
    observed.listeners.insert((Protocol::Tcp, 8080), listener("web (process 9)"));
    assert!(matches!(decide(&observed, &host, 0).why, DecisionReason::PortTaken(_)));
    has(&mut observed, &host, facts(&host, vec![], vec![container("a", 0, running())]));
    assert_eq!(up(decide(&observed, &host, 0)).ports[0].host_port, 8080);
}

#[test]
fn sockets_are_looked_at_only_when_a_port_is_to_be_given() {
    let (fixed, plain) = (binding("fixed", with_port(8080, false)), binding("plain", pod_spec(&["a"])));
    let mut observed = wants(&[fixed.clone(), plain]);
    let asked = |observed: &Observed| ports_to_allocate(&observed.desired, &observed.pods);
    assert_eq!(asked(&observed), Some([(Protocol::Tcp, 8080)].into()));
    has(&mut observed, &fixed, facts(&fixed, vec![pause(running(), "10.244.3.2")], vec![]));
    assert_eq!(asked(&observed), None);
}

// Red without `at_home` in status.rs.
#[test]
fn containers_of_a_pod_without_its_pause_container_run_and_are_not_ready() {
    let web = binding("web", pod_spec(&["a"]));
    let mut observed = wants(std::slice::from_ref(&web));
    let status = |observed: &Observed| {
        let decision = decide(observed, &web, 0);
        let (node, facts) = (&observed.node, &observed.pods[&web.pod.uid]);
        wanted::wanted_status(
            wanted::WantedPod { node, binding: &web, facts, decision: &decision, lacks_image: false },
            None,
            at(1),
        )
    };
    let one = || vec![container("a", 0, running())];
    has(&mut observed, &web, facts(&web, vec![pause(running(), "10.244.3.2")], one()));
    assert!(status(&observed).is_ready());
    // First removed by hand, then recreated while the old start is being stopped.
    let anew =
        crate::converge::pods::facts::Container { id: "POD-1".into(), ..pause(running(), "10.244.3.2") };
    for pauses in [vec![], vec![anew]] {
        has(&mut observed, &web, facts(&web, pauses, one()));
        let status = status(&observed);
        assert_eq!((status.phase, status.is_ready()), (PodPhase::Running, false));
        assert!(status.message.starts_with("Pod sandbox changed"), "{status:?}");
    }
}

// Seen red with the pause container's start preferred: it moves with each new one.
#[test]
fn a_pod_has_started_once_however_often_its_pause_container_is_made_anew() {
    let web = binding("web", pod_spec(&["a"]));
    let mut observed = wants(std::slice::from_ref(&web));
    let reported = |observed: &Observed, own: &Statuses| fold(observed, &plan(observed, at(50)), own, at(50));
    let start = |own: &Statuses| own.pods[&web.pod.reference()].start_time;
    has(&mut observed, &web, facts(&web, vec![pause(running(), "10.244.3.2")], vec![]));
    let own = reported(&observed, &Statuses::default());
    assert_eq!(start(&own), Some(at(0)));
    let anew = crate::converge::pods::facts::Container {
        id: "POD-1".into(),
        ..pause(State::Running { started_at: at(40) }, "10.244.3.2")
    };
    for pauses in [vec![], vec![anew]] {
        observed.last_reported = own.pods.clone();
        has(&mut observed, &web, facts(&web, pauses, vec![]));
        assert_eq!(start(&reported(&observed, &own)), Some(at(0)));
    }
    // A pod removed and wanted again starts a new life.
    let mut gone = (*own.pods[&web.pod.reference()]).clone();
    gone.reason = "Terminating".into();
    observed.last_reported = [(web.pod.reference(), gone.into())].into();
    assert_eq!(start(&reported(&observed, &own)), Some(at(40)));
}
