//! Effects of pods, replica sets and autoscalers.

use schema::kinds::Resource;
use schema::kinds::autoscaler::{HorizontalPodAutoscalerSpec, ScaleTargetKind};
use schema::kinds::daemon_set::DaemonSetSpec;
use schema::kinds::pod::PodSpec;
use schema::kinds::replica_set::ReplicaSetSpec;

use super::case::EffectCase;
use super::effect::{Effect, NodesAct, Port, appear_and_go};

pub(crate) fn pod(case: &EffectCase<'_>) -> Vec<Effect> {
    let (before, after) = case.specs(|resource| match resource {
        Resource::Pod(spec) => Some(&**spec),
        _ => None,
    });
    // With its copies, if any.
    let pods = case.planned.count_before(case.object, 1);
    let mut effects = match (before, after) {
        (None, Some(after)) => vec![Effect::Start { pods: 1, containers: containers(after) }],
        (Some(before), None) => vec![Effect::Stop { pods, containers: containers(before) }],
        (Some(before), Some(after)) if before != after || case.files_differ() => {
            vec![Effect::Restart { pods, containers: containers(after), because: case.because() }]
        }
        _ => Vec::new(),
    };
    effects.extend(host_ports(before, after));
    effects
}

pub(crate) fn replica_set(case: &EffectCase<'_>) -> Vec<Effect> {
    let (before, after) = case.specs(|resource| match resource {
        Resource::ReplicaSet(spec) => Some(&**spec),
        _ => None,
    });
    let names = |set: &ReplicaSetSpec| containers(&set.template.spec);
    let mut effects = Vec::new();
    let has = |set: &ReplicaSetSpec| case.planned.count_before(case.object, set.replicas);
    let will_have = |set: &ReplicaSetSpec| case.planned.count_after(case.object, set.replicas);
    match (before, after) {
        (None, Some(after)) => {
            effects.push(Effect::Start { pods: will_have(after), containers: names(after) });
        }
        (Some(before), None) => effects.push(Effect::Stop { pods: has(before), containers: names(before) }),
        (Some(before), Some(after)) => {
            let (from, to) = (has(before), will_have(after));
            if before.template != after.template || case.files_differ() {
                let pods = from.min(to);
                effects.push(Effect::Restart { pods, containers: names(after), because: template(case) });
            }
            if from != to {
                effects.push(Effect::Replicas { from, to });
            }
        }
        (None, None) => {}
    }
    let is_changed = before.zip(after).is_some_and(|(before, after)| before.replicas != after.replicas);
    if case.planned.is_scaled(case.object) && (is_changed || !effects.is_empty()) {
        effects.push(Effect::Sentence("its autoscaler sets the number of pods, not `replicas`".to_owned()));
    }
    let pod = |set: Option<&'_ ReplicaSetSpec>| {
        set.filter(|set| set.replicas > 0).map(|set| set.template.spec.clone())
    };
    effects.extend(host_ports(pod(before).as_ref(), pod(after).as_ref()));
    effects
}

/// Returns the changed fields without those outside of the template, which restart no pods.
pub(super) fn template(case: &EffectCase<'_>) -> Vec<String> {
    let mut because = case.because();
    because.retain(|path| !path.starts_with("spec.") || path.starts_with("spec.template"));
    because
}

pub(crate) fn autoscaler(case: &EffectCase<'_>) -> Vec<Effect> {
    let target = |hpa: &HorizontalPodAutoscalerSpec| {
        format!(
            "{} {}/{}",
            hpa.scale_target_ref.kind.kind(),
            case.object.namespace,
            hpa.scale_target_ref.name
        )
    };
    let range =
        |hpa: &HorizontalPodAutoscalerSpec| format!("{} to {} pods", hpa.min_replicas, hpa.max_replicas);
    let says = match case.specs(|resource| match resource {
        Resource::HorizontalPodAutoscaler(spec) => Some(&**spec),
        _ => None,
    }) {
        (None, Some(after)) => vec![format!("scales {} by its usage: {}", target(after), range(after))],
        (Some(before), None) => {
            let after = match before.scale_target_ref.kind {
                ScaleTargetKind::Pod => "its copies are removed",
                ScaleTargetKind::ReplicaSet => "it returns to its own replicas",
            };
            vec![format!("{} is no longer scaled: {after}", target(before))]
        }
        (Some(before), Some(after)) => {
            let mut says = Vec::new();
            if target(before) != target(after) {
                says.push(format!("scales {} instead of {}", target(after), target(before)));
            }
            if range(before) != range(after) {
                says.push(format!(
                    "{} may have {} instead of {}",
                    target(after),
                    range(after),
                    range(before)
                ));
            }
            says
        }
        (None, None) => Vec::new(),
    };
    says.into_iter().map(Effect::Sentence).collect()
}

pub(super) fn containers(pod: &PodSpec) -> Vec<String> {
    pod.side_by_side().map(|container| container.name.clone()).collect()
}

pub(super) fn host_ports(before: Option<&PodSpec>, after: Option<&PodSpec>) -> Vec<Effect> {
    let ports = |pod: Option<&PodSpec>| -> Vec<Port> {
        let containers = pod.into_iter().flat_map(PodSpec::side_by_side);
        let ports = containers.flat_map(|container| &container.ports);
        let host = |port: &schema::kinds::pod::ContainerPort| {
            let place = match port.host_address() {
                Some(address) => format!("{address} host port").into(),
                None => "host port".into(),
            };
            Some(Port { place, number: port.host_port?, protocol: port.protocol })
        };
        ports.filter_map(host).collect()
    };
    appear_and_go(ports(before), ports(after), Effect::PortCloses, Effect::PortOpens)
}

// Daemon sets: one pod on each node that fits.

pub(crate) fn daemon_set(case: &EffectCase<'_>) -> Vec<Effect> {
    let (before, after) = case.specs(|resource| match resource {
        Resource::DaemonSet(spec) => Some(&**spec),
        _ => None,
    });
    let will_have = |set: &DaemonSetSpec| case.planned.count_nodes(&set.template.spec);
    let has = |set: &DaemonSetSpec| case.planned.running(case.object).or_else(|| will_have(set));
    let on_nodes = |act: NodesAct, nodes: Option<u32>, set: &DaemonSetSpec, because: Vec<String>| {
        let containers = containers(&set.template.spec);
        Effect::OnNodes { act, nodes, containers, because }
    };
    let mut effects = Vec::new();
    match (before, after) {
        (None, Some(after)) => {
            effects.push(on_nodes(NodesAct::Starts, will_have(after), after, Vec::new()));
        }
        (Some(before), None) => {
            effects.push(on_nodes(NodesAct::Stops, has(before), before, Vec::new()));
        }
        (Some(before), Some(after)) if before.template != after.template || case.files_differ() => {
            let (from, to) = (has(before), will_have(after));
            let stay = from.zip(to).map(|(from, to)| from.min(to));
            effects.push(on_nodes(NodesAct::Restarts, stay, after, template(case)));
            if let Some((from, to)) = from.zip(to).filter(|(from, to)| from != to) {
                effects.push(Effect::Sentence(format!("nodes with a pod {from} -> {to}")));
            }
        }
        _ => {}
    }
    let pod = |set: Option<&DaemonSetSpec>| set.map(|set| set.template.spec.clone());
    effects.extend(host_ports(pod(before).as_ref(), pod(after).as_ref()));
    effects
}
