//! Tests of the pods loop without Docker.

pub(in crate::converge::pods) mod crash;
pub(in crate::converge::pods) mod crowd;
mod drain;
mod files;
mod finished;
mod floor;
mod links;
mod machine;
mod observe;
mod plan;
mod probing;
mod sidecars;
mod termination;
mod waiting;

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use schema::kinds::cluster::PodSecurity;
use schema::kinds::pod::PodSpec;
use schema::records::Binding;
use schema::testing::{instance, subnet};

use crate::converge::pods::facts::{
    Container, ExitStatus, NodeFacts, NodeMemory, Observed, PodFacts, State, Work,
};
use crate::desired::{DesiredState, StateOrigin};
use crate::names;

/// Time `seconds` after the tests' reference time.
fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_900_000_000 + seconds).unwrap()
}

pub(in crate::converge::pods) fn node() -> NodeFacts {
    NodeFacts {
        node: "n1".into(),
        node_ip: "192.0.2.1".parse().unwrap(),
        instance: "mk8s".into(),
        state_dir: PathBuf::from("/nonexistent/state"),
        pause_image: "pause:1".into(),
        mtu: 1500,
        container_limits: crate::converge::pods::facts::ContainerLimits::default(),
        cpu: schema::quantity::Cpu { millis: 8000 },
        memory: NodeMemory { bytes: 1 << 30, oom_score_min: -1000 },
        pod_security: PodSecurity::default(),
        pod_security_floor: Default::default(),
        dns: super::super::shared::node_network::NodeDns::default(),
    }
}

pub(in crate::converge::pods) fn binding(name: &str, spec: PodSpec) -> Binding {
    schema::testing::binding("n1", &instance(name, spec))
}

/// An empty node that wants these pods.
fn wants(bindings: &[Binding]) -> Observed {
    let pods = bindings.iter().map(|b| (b.pod.reference(), b.clone())).collect();
    Observed {
        node: node(),
        desired: DesiredState {
            known_from: StateOrigin::Etcd,
            subnet: Some(subnet("10.244.3.0/24")),
            pods,
            settled: true,
            ..DesiredState::default()
        },
        pods: BTreeMap::new(),
        links: None,
        listeners: BTreeMap::new(),
        finished: BTreeMap::new(),
        draining: BTreeMap::new(),
        last_reported: BTreeMap::new(),
        folders: std::collections::BTreeSet::new(),
        sweep_is_due: false,
        work: Work::default(),
    }
}

fn container(name: &str, attempt: u32, state: State) -> Container {
    Container {
        is_function: false,
        id: format!("{name}-{attempt}"),
        name: format!("mk8s_{name}_{attempt}"),
        container: name.into(),
        attempt,
        backoff: 0,
        sandbox: "POD-0".into(),
        hash: "h".into(),
        image: "app:1".into(),
        image_id: "sha256:1".into(),
        created_at: at(0),
        started_at: None,
        grace: 30,
        pid: 0,
        address: None,
        ports: Vec::new(),
        hook: None,
        sidecar: None,
        health: None,
        failing: None,
        files: Vec::new(),
        spec_hash: String::new(),
        state,
    }
}

fn running() -> State {
    State::Running { started_at: at(0) }
}

fn exited(code: i64, ran: i64, finished: i64) -> State {
    State::Exited(ExitStatus {
        code,
        oom_killed: false,
        error: String::new(),
        last_output: String::new(),
        started_at: Some(at(finished - ran)),
        finished_at: at(finished),
    })
}

/// The end of a container in which the kernel killed a process for its use of memory.
fn oom_killed(code: i64) -> State {
    match exited(code, 1, 5) {
        State::Exited(end) => State::Exited(ExitStatus { oom_killed: true, ..end }),
        other => other,
    }
}

fn pause(state: State, address: &str) -> Container {
    let address = Some(format!("{address}/24").parse().unwrap());
    Container { address, ..container(names::PAUSE, 0, state) }
}

fn facts(binding: &Binding, pauses: Vec<Container>, containers: Vec<Container>) -> PodFacts {
    let mut facts = PodFacts { pod: Some(binding.pod.reference()), pauses, ..PodFacts::default() };
    for one in containers {
        facts.containers.entry(one.container.clone()).or_default().push(one);
    }
    facts
}
