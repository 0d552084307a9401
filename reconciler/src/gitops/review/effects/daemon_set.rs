//! Daemon sets: one pod on each node that fits.

use schema::kinds::Resource;
use schema::kinds::daemon_set::DaemonSetSpec;

use super::case::Case;
use super::effect::{Effect, NodesAct};
use super::workload::{containers, host_ports, template};

pub(crate) fn daemon_set(case: &Case<'_>) -> Vec<Effect> {
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
                effects.push(Effect::Says(format!("nodes with a pod {from} -> {to}")));
            }
        }
        _ => {}
    }
    let pod = |set: Option<&DaemonSetSpec>| set.map(|set| set.template.spec.clone());
    effects.extend(host_ports(pod(before).as_ref(), pod(after).as_ref()));
    effects
}
