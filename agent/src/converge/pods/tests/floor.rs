//! The node's own restrictions on the pods that it creates.

use std::collections::BTreeMap;
use std::sync::Arc;

use schema::kinds::cluster::{PodSecurity, PodSecurityLevel};
use schema::kinds::pod::{Container as ContainerSpec, PodSpec};
use schema::testing::pod_spec;

use super::plan::{decide, has, up};
use super::{at, binding, container, exited, facts, node, pause, running, wants};
use crate::converge::pods::facts::{Container, NodeFacts};
use crate::converge::pods::plan::plan;
use crate::converge::pods::steps::{PauseStep, PodTask};

/// Would fail with a check in `plan_wanted`, which keeps containers of a running pod from being restarted; and without
/// one.
#[test]
fn what_the_node_forbids_is_not_created_and_what_runs_is_left_alone() {
    let mut spec = pod_spec(&["a", "b"]);
    spec.host_network = true;
    let bound = binding("web", spec);
    let mut observed = wants(std::slice::from_ref(&bound));
    let created = up(decide(&observed, &bound, 0));
    let PauseStep::Create(new) = created.pause else { panic!("no restrictions by default") };
    let spec_hash = new.labels["minik8s.io/spec"].clone();
    let policy = PodSecurity { forbid_host_network: true, ..PodSecurity::default() };
    observed.node.pod_security_floor = Arc::new(policy);
    let decision = decide(&observed, &bound, 0);
    assert!(decision.task.is_none(), "{decision:?}");
    let waiting = &decision.waiting["a"];
    let why = "spec.hostNetwork: Forbidden: this node (--pod-security) sets podSecurity.forbidHostNetwork";
    assert_eq!((waiting.reason.as_str(), waiting.message.as_str()), ("CreateContainerConfigError", why));
    // Created before the restriction: all of it goes on, and a container that ended is started again.
    let runs = vec![container("a", 0, running()), container("b", 0, exited(1, 60, 60))];
    let pauses = vec![Container { spec_hash, ..pause(running(), "10.244.3.2") }];
    has(&mut observed, &bound, facts(&bound, pauses, runs));
    let decision = decide(&observed, &bound, 600);
    assert!(matches!(&decision.task, Some(PodTask::Up(up)) if up.down.stop.is_empty()), "{decision:?}");
    // Without its pause container it would have to be built again: what still runs of it is not stopped.
    has(&mut observed, &bound, facts(&bound, vec![], vec![container("a", 0, running())]));
    assert!(decide(&observed, &bound, 0).task.is_none());
}

#[test]
fn a_forbidden_spec_that_etcd_gives_to_a_pod_that_runs_is_not_created() {
    let mut spec = pod_spec(&["a", "b"]);
    spec.containers[0].liveness_probe = serde_json::from_str(r#"{"tcpSocket": {"port": 80}}"#).unwrap();
    let bound = binding("web", spec);
    let mut observed = wants(std::slice::from_ref(&bound));
    let policy = PodSecurity { level: PodSecurityLevel::Baseline, ..PodSecurity::default() };
    observed.node.pod_security_floor = Arc::new(policy);
    let PauseStep::Create(new) = up(decide(&observed, &bound, 0)).pause else { panic!("not created") };
    let spec_hash = new.labels["minik8s.io/spec"].clone();
    // What the node admitted is restarted and probed.
    let runs = vec![container("a", 0, running()), container("b", 0, exited(1, 60, 60))];
    let pauses = vec![Container { spec_hash, ..pause(running(), "10.244.3.2") }];
    has(&mut observed, &bound, facts(&bound, pauses, runs));
    let restarted = plan(&observed, at(600));
    assert_eq!(restarted.probes.keys().collect::<Vec<_>>(), ["a-0"]);
    assert_eq!(up(decide(&observed, &bound, 600)).containers.len(), 1);

    let privileged = r#"{"name": "evil", "image": "i", "securityContext": {"privileged": true}}"#;
    let privileged = || -> ContainerSpec { serde_json::from_str(privileged).unwrap() };
    let host = r#"{"tcpSocket": {"port": 2379, "host": "127.0.0.1"}}"#;
    type Change<'a> = (&'a str, &'a dyn Fn(&mut PodSpec));
    let changes: [Change<'_>; 4] = [
        ("containers[2].securityContext.privileged", &|spec| spec.containers.push(privileged())),
        ("containers[0].securityContext.privileged", &|spec| spec.containers = vec![privileged()]),
        ("initContainers[0].securityContext.privileged", &|spec| spec.init_containers.push(privileged())),
        ("containers[0].livenessProbe.tcpSocket.host", &|spec| {
            spec.containers[0].liveness_probe = serde_json::from_str(host).unwrap();
        }),
    ];
    for (at_field, change) in changes {
        // The hash that etcd names is that of the admitted spec.
        let mut changed = bound.clone();
        change(Arc::make_mut(&mut changed.pod.spec));
        observed.desired.pods.insert(changed.pod.reference(), changed);
        let mut plan = plan(&observed, at(600));
        assert!(plan.probes.is_empty(), "{at_field}: {:?}", plan.probes);
        let decision = plan.pods.remove(&bound.pod.uid).unwrap();
        assert!(decision.task.is_none() && decision.pulls.is_empty(), "{at_field}: {decision:?}");
        for waiting in decision.waiting.values() {
            assert_eq!(waiting.reason, "CreateContainerConfigError");
            assert!(waiting.message.contains(at_field), "{}", waiting.message);
        }
        assert!(!decision.waiting.is_empty(), "{at_field}");
    }
    // The link of what runs is still kept in repair.
    observed.links = Some(BTreeMap::new());
    let task = up(decide(&observed, &bound, 600));
    assert!(task.link.is_some() && task.containers.is_empty(), "{task:?}");
    assert!(task.down.stop.is_empty() && task.down.remove.is_empty(), "{task:?}");
    // A spec that the node allows is created, as before.
    let mut changed = bound.clone();
    Arc::make_mut(&mut changed.pod.spec).containers[1].image = "app:2".to_owned();
    observed.desired.pods.insert(changed.pod.reference(), changed.clone());
    assert_eq!(up(decide(&observed, &changed, 600)).containers.len(), 1);
}

#[test]
fn a_node_that_asks_for_the_strictest_level_runs_functions() {
    let function = schema::kinds::function::FunctionSpec::default();
    let mut bound = binding("f", function.pod("minik8s.local/function:0", "default/f"));
    let policy = PodSecurity { level: PodSecurityLevel::Restricted, ..PodSecurity::default() };
    let node = NodeFacts { pod_security_floor: Arc::new(policy), ..node() };
    assert!(
        node.forbids(&bound.pod, None).is_some(),
        "as a pod of its own it names no profile of system calls"
    );
    bound.pod.owner.kind = schema::kinds::Kind::Function;
    assert_eq!(node.forbids(&bound.pod, None), None);
}
