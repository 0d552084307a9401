//! Folds what was seen and decided into `status/<node>/pods/…`, for pods that are wanted or still there.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use schema::kinds::pod::PodStatus;
use schema::meta::PodRef;
use schema::world::World;

use super::facts::{Observed, PodFacts};
use super::status;
use super::steps::{PodsPlan, Why};
use crate::desired::Source;

/// What the status keys of this node should hold.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Statuses {
    /// By pod.
    pub pods: BTreeMap<PodRef, Arc<PodStatus>>,
    /// Keys of other pods are to be removed: everything of this node is known.
    pub complete: bool,
}

/// The statuses after this run. `former` are those of the run before.
pub fn fold(
    observed: &Observed,
    plan: &PodsPlan,
    former: &Statuses,
    world: &World,
    now: Timestamp,
) -> Statuses {
    let node = &observed.node;
    let nothing = PodFacts::default();
    let last = |pod: &PodRef, uid: &str| {
        let key = (node.node.clone(), pod.clone());
        let own = former.pods.get(pod).map(|s| (**s).clone());
        let stored = || world.pod_status.get(&key).map(|s| s.value.clone());
        own.or_else(stored).filter(|status| status.uid == uid)
    };
    let mut statuses = Statuses { complete: observed.desired.source == Source::Etcd, ..Statuses::default() };
    for (uid, facts) in &observed.pods {
        let Some(pod) = &facts.pod else { continue };
        let stays = |why: &Why| matches!(why, Why::Unreadable | Why::Unsettled);
        let stays = plan.pods.get(uid).is_none_or(|d| stays(&d.why));
        if observed.desired.source == Source::Unknown || stays {
            // Nothing is known of it, so nothing new is said of it.
            if let Some(status) = last(pod, uid) {
                statuses.pods.insert(pod.clone(), Arc::new(status));
            }
            continue;
        }
        let status = status::leaving(node, uid, last(pod, uid).as_ref(), facts, now);
        statuses.pods.insert(pod.clone(), Arc::new(status));
    }
    // Containers are gone, folder or link not yet.
    for (uid, busy) in &observed.memory.busy {
        if !observed.pods.contains_key(uid)
            && let Some(former) = last(&busy.pod, uid)
        {
            let status = status::leaving(node, uid, Some(&former), &nothing, now);
            statuses.pods.insert(busy.pod.clone(), Arc::new(status));
        }
    }
    for (pod, binding) in &observed.desired.pods {
        let uid = &binding.pod.uid;
        let Some(decision) = plan.pods.get(uid) else { continue };
        let facts = observed.pods.get(uid).unwrap_or(&nothing);
        let seen = status::Seen { node, binding, facts, decision };
        let status = status::wanted(seen, last(pod, uid).as_ref(), now);
        statuses.pods.insert(pod.clone(), Arc::new(status));
    }
    statuses
}
