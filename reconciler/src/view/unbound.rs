//! Why a pod has no node: the one place to plug the scheduler's own explanation in.

use schema::records::PodInstance;
use schema::world::World;

/// Why the pod is not bound yet, in a sentence that says what to do where there is something to do.
pub fn unbound_reason(world: &World, pod: &PodInstance) -> String {
    if world.nodes.is_empty() {
        return "no node is registered; start minik8s-agent on a machine".to_owned();
    }
    if let Some(name) = &pod.spec.node_name
        && !world.nodes.contains_key(name)
    {
        return format!("node {name}, which spec.nodeName names, is not registered");
    }
    let wanted = |name: &&String| pod.spec.node_name.as_ref().is_none_or(|only| only == *name);
    let ready: Vec<&String> =
        world.nodes.keys().filter(wanted).filter(|name| world.node_is_ready(name)).collect();
    if ready.is_empty() {
        let silent: Vec<&str> = world.nodes.keys().filter(wanted).take(3).map(String::as_str).collect();
        return format!("no node is ready: no heartbeat of {}", silent.join(", "));
    }
    if !ready.iter().any(|name| world.subnets.contains_key(*name)) {
        return format!("node {} has no pod subnet yet", ready[0]);
    }
    "waiting for the scheduler".to_owned()
}
