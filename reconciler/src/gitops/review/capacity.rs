//! Capacity check: room on the live nodes for everything wanted. Pure.

use schema::kinds::pod::{Container, PodSpec, ResourceRequirements};
use schema::quantity::{Cpu, Memory};

use super::effects::{NodeRoom, PlannedObjects};

#[derive(Default)]
struct Need {
    millis: u64,
    bytes: u64,
    pods: u64,
}

/// Describes each shortage in a sentence. Sums are compared: requests that fit in sum may still fit no node, but
/// requests that do not fit in sum never will.
pub(super) fn missing(planned: &PlannedObjects<'_>, nodes: &[NodeRoom]) -> Vec<String> {
    let mut need = Need::default();
    let mut lines = Vec::new();
    let defaults = planned.defaults();
    let largest = |of: fn(&NodeRoom) -> u64| nodes.iter().map(of).max().unwrap_or_default();
    let (largest_cpu, largest_memory) = (largest(|node| node.cpu.millis), largest(|node| node.memory.bytes));
    for (object, after) in planned.after() {
        let Some(pod) = after.resource.pod(&after.metadata) else { continue };
        let nodes_with_one = planned.count_nodes(pod.spec).filter(|_| pod.is_per_node);
        let count = nodes_with_one.unwrap_or_else(|| planned.count_after(object, pod.count));
        let (spec, count) = (pod.spec, u64::from(count));
        let (millis, bytes) = request(spec, &defaults.resources);
        if count > 0 && !nodes.is_empty() && (millis > largest_cpu || bytes > largest_memory) {
            lines.push(format!("{object}: a pod requests more than the largest node has"));
        }
        need.millis = need.millis.saturating_add(millis.saturating_mul(count));
        need.bytes = need.bytes.saturating_add(bytes.saturating_mul(count));
        need.pods = need.pods.saturating_add(count);
    }
    if nodes.is_empty() {
        if need.pods > 0 {
            lines.push(format!("no node is alive: {} pods would wait", need.pods));
        }
        return lines;
    }
    let sum = |of: fn(&NodeRoom) -> u64| nodes.iter().map(of).fold(0, u64::saturating_add);
    let (millis, bytes, pods) = (sum(|n| n.cpu.millis), sum(|n| n.memory.bytes), sum(|n| n.max_pods));
    if need.millis > millis {
        let (wanted, there) = (Cpu { millis: need.millis }, Cpu { millis });
        let short = Cpu { millis: need.millis - millis };
        lines.push(format!("CPU: {wanted} requested, live nodes have {there}; {short} missing"));
    }
    if need.bytes > bytes {
        let readable = |bytes| Memory { bytes }.readable();
        let (wanted, there, short) = (readable(need.bytes), readable(bytes), readable(need.bytes - bytes));
        lines.push(format!("memory: {wanted} requested, live nodes have {there}; {short} missing"));
    }
    if need.pods > pods {
        lines.push(format!(
            "pods: {} wanted, live nodes take {pods}; {} would wait",
            need.pods,
            need.pods - pods
        ));
    }
    lines
}

/// Returns the request of a pod.
fn request(spec: &PodSpec, defaults: &ResourceRequirements) -> (u64, u64) {
    let of = |c: &Container| {
        let resources = c.resources.or(defaults);
        (resources.requested_cpu().millis, resources.requested_memory().bytes)
    };
    (spec.total(|c| of(c).0), spec.total(|c| of(c).1))
}
