//! Disruption budgets: the pods that they cover, how many of these are healthy, and which may leave a drained node
//! now. Pure.
//!
//! Counts as Kubernetes' disruption controller (`pkg/controller/disruption`), and decides as its eviction API
//! (`pkg/registry/core/pod/storage/eviction.go`), with one difference: all budgets that cover a pod must allow its
//! eviction, where Kubernetes refuses a pod with two budgets.
//!
//! The nodes controller alone decides, and records its decision on the node: what may leave there counts as disrupted
//! until it has left, so neither a drain of another node nor another leader decides on the same allowance again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Snapshot;
use crate::codec::is_default;
use crate::kinds::disruption_budget::{PodDisruptionBudgetSpec, UnhealthyPodEvictionPolicy};
use crate::kinds::node::Taint;
use crate::kinds::pod::{PodPhase, PodStatus};
use crate::kinds::replica_set::IntOrPercent;
use crate::kinds::{Kind, Resource};
use crate::meta::{NamespacedName, ObjectRef};
use crate::records::{Drain, OwnerRef, PodInstance};

/// Numbers of a budget, named as in the status of Kubernetes' PodDisruptionBudget.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetStatus {
    /// Number of pods that the budget counts on.
    pub expected_pods: u32,
    /// Number of covered pods that are ready, without those that may leave their node.
    pub current_healthy: u32,
    /// Least number of healthy pods.
    pub desired_healthy: u32,
    /// Number of healthy pods that may leave now.
    pub disruptions_allowed: u32,
    /// Number of covered pods that have no workload, of a budget that counts the pods of workloads.
    #[serde(skip_serializing_if = "is_default")]
    pub unmanaged_pods: u32,
}

impl BudgetStatus {
    /// True if a running pod that is not ready may leave although no disruption is allowed.
    fn spares_unhealthy(&self, policy: UnhealthyPodEvictionPolicy) -> bool {
        policy == UnhealthyPodEvictionPolicy::AlwaysAllow
            || self.desired_healthy > 0 && self.current_healthy >= self.desired_healthy
    }

    fn disrupt(&mut self) {
        self.current_healthy = self.current_healthy.saturating_sub(1);
        self.disruptions_allowed = self.disruptions_allowed.saturating_sub(1);
    }

    /// Returns what is wrong with the budget, in Kubernetes' words; empty if nothing is.
    pub fn trouble(&self) -> &'static str {
        if self.unmanaged_pods == 0 {
            return "";
        }
        "selects pods without a workload, which only an integer minAvailable counts: set minAvailable to an integer"
    }
}

impl Snapshot {
    /// Iterates over the budgets of a namespace, by name.
    fn budgets_of(&self, namespace: &str) -> impl Iterator<Item = (&ObjectRef, &PodDisruptionBudgetSpec)> {
        let kind = Kind::PodDisruptionBudget;
        let first = ObjectRef { kind, namespace: namespace.to_owned(), name: String::new() };
        let all = self.objects.range(first.clone()..);
        let all = all.take_while(move |(id, _)| id.kind == kind && id.namespace == first.namespace);
        all.filter_map(|(id, object)| match &object.value.resource {
            Resource::PodDisruptionBudget(spec) => Some((id, &**spec)),
            _ => None,
        })
    }

    /// Returns the present numbers of a budget.
    pub fn budget_status(&self, namespace: &str, spec: &PodDisruptionBudgetSpec) -> BudgetStatus {
        self.count_budget(namespace, spec, |pod| !self.is_evicting(pod))
    }

    /// Returns the numbers of a budget, of whose healthy pods only those that `counts` count.
    fn count_budget(
        &self,
        namespace: &str,
        spec: &PodDisruptionBudgetSpec,
        counts: impl Fn(&PodInstance) -> bool,
    ) -> BudgetStatus {
        let of_namespace = self.pods.range(NamespacedName::new(namespace, "")..);
        let of_namespace = of_namespace.take_while(|(id, _)| id.namespace == namespace);
        let covered: Vec<&PodInstance> =
            of_namespace.map(|(_, pod)| &pod.value).filter(|pod| spec.covers(&pod.labels)).collect();
        let healthy = covered.iter().filter(|pod| counts(pod) && self.is_healthy(pod)).count();
        let mut status = BudgetStatus { current_healthy: count(healthy), ..BudgetStatus::default() };
        if let (None, Some(IntOrPercent::Number(least))) = (&spec.max_unavailable, &spec.min_available) {
            (status.expected_pods, status.desired_healthy) = (count(covered.len()), *least);
        } else {
            let (scale, unmanaged) = self.scale_of(&covered);
            (status.expected_pods, status.unmanaged_pods) = (scale, unmanaged);
            let share = |amount: &Option<IntOrPercent>| amount.as_ref()?.resolve(scale, true);
            let missing = share(&spec.max_unavailable).map(|missing| scale.saturating_sub(missing));
            status.desired_healthy = missing.or_else(|| share(&spec.min_available)).unwrap_or(scale);
        }
        // A budget that expects no pods does not know its workloads yet.
        if status.expected_pods > 0 {
            status.disruptions_allowed = status.current_healthy.saturating_sub(status.desired_healthy);
        }
        status
    }

    /// Returns the desired number of pods of all workloads that these pods belong to, 0 if one is not known; and how
    /// many of the pods have no workload.
    fn scale_of(&self, pods: &[&PodInstance]) -> (u32, u32) {
        let (mut scales, mut unmanaged) = (BTreeMap::new(), 0);
        for pod in pods {
            let OwnerRef { kind, name } = pod.owner.clone();
            let owner = ObjectRef { kind, namespace: pod.namespace.clone(), name };
            match self.rollouts.get(&owner).map(|rollout| rollout.value.status.desired_replicas) {
                // A pod has a rollout for its copies.
                Some(desired) => scales.insert(owner, desired.saturating_add((kind == Kind::Pod).into())),
                None if pod.is_bare() => {
                    unmanaged += 1;
                    continue;
                }
                None => return (0, unmanaged),
            };
        }
        (scales.into_values().fold(0, u32::saturating_add), unmanaged)
    }

    /// Returns the report of a live node on this very pod.
    fn live_status(&self, pod: &PodInstance) -> Option<&PodStatus> {
        let id = pod.reference();
        let node = &self.binding_of(&id)?.value.node;
        let status = &self.pod_status.get(&(node.clone(), id))?.value;
        (status.uid == pod.uid && self.node_is_ready(node)).then_some(status)
    }

    fn is_healthy(&self, pod: &PodInstance) -> bool {
        self.live_status(pod).is_some_and(|status| status.is_ready() && !status.is_terminating())
    }

    /// True if budgets cover the pod and have allowed it to leave its node.
    fn is_evicting(&self, pod: &PodInstance) -> bool {
        let id = pod.reference();
        self.binding_of(&id).is_some_and(|binding| self.may_leave(&binding.value.node, &id))
    }

    fn may_leave(&self, node: &str, pod: &NamespacedName) -> bool {
        let drain = self.conditions_of(node).and_then(|conditions| conditions.drain.as_ref());
        matches!(drain, Some(Drain::Draining { evicting, .. }) if evicting.contains(pod))
    }

    /// True if only a drain drives the pod from its node, and a budget covers it.
    fn is_budgeted(&self, node: &str, pod: &PodInstance) -> bool {
        let elapsed = |taint: &Taint| super::elapsed_seconds(self.conditions_of(node), taint);
        self.node_spec(node).is_some_and(|spec| spec.only_drains(&pod.spec, elapsed))
            && self.budgets_of(&pod.namespace).any(|(_, budget)| budget.covers(&pod.labels))
    }

    /// True if a pod that a drain drives out must stay on its node, because its budgets have not allowed it to leave.
    pub fn awaits_budget(&self, node: &str, pod: &PodInstance) -> bool {
        self.is_budgeted(node, pod) && !self.may_leave(node, &pod.reference())
    }
}

/// Evictions from drained nodes of pods that budgets cover.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evictions {
    /// Pods that may leave now, by node.
    pub allowed: BTreeMap<String, BTreeSet<NamespacedName>>,
    /// Pods that must wait, in the order in which they were tried.
    pub refused: Vec<RefusedEviction>,
}

/// A pod that must stay on a drained node for the time being.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedEviction {
    /// The drained node.
    pub node: String,
    /// The pod.
    pub pod: NamespacedName,
    /// Name of the budget.
    pub budget: String,
    /// Numbers of the budget.
    pub status: BudgetStatus,
}

impl fmt::Display for RefusedEviction {
    /// Formats in the words of Kubernetes' eviction API.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, budget, status, .. } = self;
        write!(f, "cannot evict pod {pod} as it would violate the pod's disruption budget: ")?;
        match status {
            BudgetStatus { expected_pods: 0, .. } if !status.trouble().is_empty() => {
                write!(f, "the disruption budget {budget} {}", status.trouble())
            }
            BudgetStatus { desired_healthy, current_healthy, .. } => write!(
                f,
                "the disruption budget {budget} needs {desired_healthy} healthy pods and has {current_healthy} \
                 currently"
            ),
        }
    }
}

impl Evictions {
    /// Decides on every pod that a budget covers and a drain drives out. Earlier decisions stand as long as the budgets
    /// allow them; then come the others, by node and name.
    pub fn of(snapshot: &Snapshot) -> Self {
        let mut decided = Self::default();
        let mut leaving = Vec::new();
        for node in snapshot.nodes.keys().filter(|node| snapshot.is_draining(node)) {
            for (id, binding) in snapshot.bindings_of(node) {
                let pod = snapshot.pods.get(id).map(|pod| &pod.value);
                if let Some(pod) = pod.filter(|pod| pod.uid == binding.value.pod.uid)
                    && snapshot.is_budgeted(node, pod)
                {
                    leaving.push((!snapshot.may_leave(node, id), node, id, pod));
                }
            }
        }
        leaving.sort_by_key(|(is_new, node, id, _)| (*is_new, *node, *id));
        let mut statuses: BTreeMap<&ObjectRef, BudgetStatus> = BTreeMap::new();
        for (_, node, id, pod) in leaving {
            let budgets = snapshot.budgets_of(&pod.namespace).filter(|(_, spec)| spec.covers(&pod.labels));
            let budgets: Vec<_> = budgets.collect();
            for (budget, spec) in &budgets {
                let count = || snapshot.count_budget(&pod.namespace, spec, |_| true);
                statuses.entry(budget).or_insert_with(count);
            }
            let (is_healthy, is_free) = (snapshot.is_healthy(pod), serves_nobody(snapshot, pod));
            let refuses = |(budget, spec): &&(&ObjectRef, &PodDisruptionBudgetSpec)| {
                let status = &statuses[budget];
                let policy = spec.unhealthy_pod_eviction_policy;
                status.disruptions_allowed == 0 && (is_healthy || !status.spares_unhealthy(policy))
            };
            if let Some((budget, _)) = budgets.iter().find(refuses).filter(|_| !is_free) {
                let (node, pod, status) = (node.clone(), id.clone(), statuses[budget].clone());
                decided.refused.push(RefusedEviction { node, pod, budget: budget.name.clone(), status });
                continue;
            }
            decided.allowed.entry(node.clone()).or_default().insert(id.clone());
            // A pod that is not ready does not count as healthy in the first place.
            for (budget, _) in budgets.iter().filter(|_| is_healthy) {
                statuses.entry(budget).and_modify(BudgetStatus::disrupt);
            }
        }
        decided
    }
}

/// True if the pod may leave whatever its budgets say: it has not started, has ended, or is being removed.
fn serves_nobody(snapshot: &Snapshot, pod: &PodInstance) -> bool {
    let id = pod.reference();
    let place = snapshot.binding_of(&id).map(|binding| (binding.value.node.clone(), id));
    let reported = place.and_then(|place| snapshot.pod_status.get(&place)).map(|status| &status.value);
    reported.filter(|status| status.uid == pod.uid).is_none_or(|status| {
        let is_up = matches!(status.phase, PodPhase::Running | PodPhase::Unknown);
        !is_up || status.is_terminating()
    })
}

/// Converts to the number type of records, saturating.
fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::condition::ConditionStatus;
    use crate::keys::Key;
    use crate::kinds::node::NodeSpec;
    use crate::kinds::pod::PodSpec;
    use crate::object::Object;
    use crate::records::NodeConditions;
    use crate::testing::{SnapshotBuilder, at, condition, instance, object_of, pod_ref, pod_spec, replica};

    /// A budget for `app: web`, besides the given fields.
    fn budget(name: &str, fields: &Json) -> Object {
        let mut spec = json!({"selector": {"matchLabels": {"app": "web"}}});
        fields.as_object().unwrap().iter().for_each(|(key, value)| spec[key] = value.clone());
        object_of(name, serde_json::from_value::<PodDisruptionBudgetSpec>(spec).unwrap())
    }

    /// A pod `app: web`; of the replica set if that has a name.
    fn web(set: &str, name: &str) -> PodInstance {
        let pod = if set.is_empty() {
            instance(name, pod_spec(&["app"]))
        } else {
            replica(set, name, pod_spec(&["app"]))
        };
        PodInstance { labels: [("app".to_owned(), "web".to_owned())].into(), ..pod }
    }

    fn status(pod: &PodInstance, phase: PodPhase, ready: bool) -> PodStatus {
        let conditions = vec![condition("Ready", ready, at(0))];
        PodStatus { uid: pod.uid.clone(), phase, conditions, ..PodStatus::default() }
    }

    /// Runs the pod on the node.
    fn runs(builder: SnapshotBuilder, node: &str, pod: &PodInstance, ready: bool) -> SnapshotBuilder {
        let key = Key::PodStatus(node.into(), pod.reference());
        builder.pod(pod).bound(node, pod).put(&key, &status(pod, PodPhase::Running, ready))
    }

    /// Records that the replica set should have this many pods.
    fn scaled(builder: SnapshotBuilder, set: &str, replicas: u32) -> SnapshotBuilder {
        let (kind, namespace, name) = (Kind::ReplicaSet, "default".to_owned(), set.to_owned());
        let rollout = json!({"objectHash": "", "commit": "c", "wanted": "a", "startedAt": at(0),
            "progressedAt": at(0), "best": {"updated": 0, "available": 0, "old": 0},
            "status": {"desiredReplicas": replicas}});
        builder.put(&Key::Rollout(ObjectRef { kind, namespace, name }), &rollout)
    }

    fn drains(builder: SnapshotBuilder, node: &str) -> SnapshotBuilder {
        builder.node_object(node, NodeSpec { drain: true, ..NodeSpec::default() })
    }

    /// Records what may leave, as the nodes controller does.
    fn decided(builder: SnapshotBuilder, node: &str) -> SnapshotBuilder {
        let evicting = Evictions::of(&builder.snapshot).allowed.remove(node).unwrap_or_default();
        let drain = Some(Drain::Draining { left: 1, evicting });
        let conditions = NodeConditions { drain, ..NodeConditions::new(ConditionStatus::True, at(0)) };
        builder.put(&Key::NodeConditions(node.into()), &conditions)
    }

    /// Allowed disruptions, healthy, desired and expected pods, as in Kubernetes' `VerifyPdbStatus`.
    fn numbers(snapshot: &Snapshot, budget: &Object) -> [u32; 4] {
        let Resource::PodDisruptionBudget(spec) = &budget.resource else { panic!("a budget") };
        let status = snapshot.budget_status("default", spec);
        let BudgetStatus { expected_pods, current_healthy, desired_healthy, disruptions_allowed, .. } =
            status;
        [disruptions_allowed, current_healthy, desired_healthy, expected_pods]
    }

    /// `node/pod` of all that may leave.
    fn allowed(builder: &SnapshotBuilder) -> Vec<String> {
        let allowed = Evictions::of(&builder.snapshot).allowed;
        allowed
            .iter()
            .flat_map(|(node, pods)| pods.iter().map(move |pod| format!("{node}/{}", pod.name)))
            .collect()
    }

    /// Tables of Kubernetes' pkg/controller/disruption/disruption_test.go: `TestNoSelector`, `TestUnavailable`,
    /// `TestIntegerMaxUnavailable` and `TestPercentageMaxUnavailable` with scaling, `TestNakedPod`, `TestReplicaSet`,
    /// `TestScaleResource`, `TestMultipleControllers`, `TestReplicationController` and `TestTwoControllers`. Seen red
    /// with percentages rounded down, and with a scale of the pods that exist.
    #[test]
    fn budgets_count_as_in_kubernetes() {
        type Row = (Json, &'static [(&'static str, u32)], &'static [(&'static str, u32, u32)], [u32; 4]);
        let (min, max) = (
            |amount: Json| json!({"minAvailable": amount}),
            |amount: Json| json!({"maxUnavailable": amount}),
        );
        // The budget; scales of replica sets; ready and other pods of each, of none if it has no name.
        let rows: Vec<Row> = vec![
            (json!({"minAvailable": 3, "selector": {}}), &[], &[], [0, 0, 3, 0]),
            (json!({"minAvailable": 3, "selector": {}}), &[], &[("", 1, 0)], [0, 1, 3, 1]),
            (min(json!(3)), &[], &[("", 3, 0)], [0, 3, 3, 3]),
            (min(json!(3)), &[], &[("", 4, 0)], [1, 4, 3, 4]),
            (min(json!(3)), &[], &[("", 3, 1)], [0, 3, 3, 4]),
            (max(json!(1)), &[], &[], [0, 0, 0, 0]),
            (max(json!(1)), &[], &[("", 1, 0)], [0, 1, 0, 0]),
            (max(json!(2)), &[("a", 7)], &[("a", 1, 0)], [0, 1, 5, 7]),
            (max(json!(2)), &[("a", 5)], &[("a", 1, 0)], [0, 1, 3, 5]),
            (max(json!("30%")), &[("a", 7)], &[("a", 1, 0)], [0, 1, 4, 7]),
            (max(json!("30%")), &[("a", 3)], &[("a", 1, 0)], [0, 1, 2, 3]),
            (min(json!("28%")), &[], &[("", 1, 0)], [0, 1, 0, 0]),
            (min(json!("28%")), &[], &[("unknown", 1, 0)], [0, 1, 0, 0]),
            (min(json!("20%")), &[("a", 10)], &[("a", 1, 0)], [0, 1, 2, 10]),
            (max(json!(5)), &[("a", 10)], &[("a", 4, 0)], [0, 4, 5, 10]),
            (min(json!("1%")), &[("a", 1)], &[("a", 2, 0)], [1, 2, 1, 1]),
            (min(json!("34%")), &[("a", 3)], &[], [0, 0, 0, 0]),
            (min(json!("34%")), &[("a", 3)], &[("a", 2, 0)], [0, 2, 2, 3]),
            (min(json!("34%")), &[("a", 3)], &[("a", 3, 0)], [1, 3, 2, 3]),
            (min(json!("34%")), &[("a", 3)], &[("a", 3, 0), ("", 1, 0)], [2, 4, 2, 3]),
            (min(json!("28%")), &[("a", 11)], &[("a", 4, 6)], [0, 4, 4, 11]),
            (min(json!("28%")), &[("a", 11), ("b", 11)], &[("a", 5, 6)], [1, 5, 4, 11]),
            (min(json!("28%")), &[("a", 11), ("b", 11)], &[("a", 5, 6), ("b", 1, 7)], [0, 6, 7, 22]),
            (min(json!("28%")), &[("a", 11), ("b", 11)], &[("a", 5, 6), ("b", 4, 7)], [2, 9, 7, 22]),
        ];
        for (fields, sets, pods, expected) in rows {
            let budget = budget("web", &fields);
            let mut builder = SnapshotBuilder::new().nodes(1).object(&budget);
            for (set, replicas) in sets {
                builder = scaled(builder, set, *replicas);
            }
            for (set, ready, unready) in pods {
                for number in 0..ready + unready {
                    let pod = web(set, &format!("{set}x{number}"));
                    builder = runs(builder, "n1", &pod, number < *ready);
                }
            }
            assert_eq!(numbers(&builder.snapshot, &budget), expected, "{fields} {sets:?} {pods:?}");
        }
    }

    /// Kubernetes' pkg/registry/core/pod/storage/eviction_test.go: `TestEviction` and `TestEvictionIgnorePDB`. Seen red
    /// without `serves_nobody`, and without the policy.
    #[test]
    fn a_pod_that_is_not_ready_may_leave_as_in_kubernetes() {
        use PodPhase::{Failed, Pending, Running, Succeeded};
        let (min, always) = (
            |least: u32| json!({"minAvailable": least}),
            |least: u32| json!({"minAvailable": least, "unhealthyPodEvictionPolicy": "AlwaysAllow"}),
        );
        let terminating = PodStatus::TERMINATING;
        for (fields, phase, ready, reason, others, leaves) in [
            // No disruption allowed, and one.
            (min(1), Running, true, "", 0, false),
            (min(1), Running, true, "", 1, true),
            (min(2), Running, true, "", 1, false),
            (min(0), Running, true, "", 0, true),
            // Of these, no pod serves anybody.
            (min(1), Pending, false, "", 0, true),
            (min(1), Succeeded, false, "", 0, true),
            (min(1), Failed, false, "", 0, true),
            (min(1), Running, false, terminating, 0, true),
            // The budget is met without it; it is not; it expects nothing.
            (min(2), Running, false, "", 2, true),
            (min(2), Running, false, "", 1, false),
            (min(0), Running, false, "", 0, false),
            (always(2), Running, false, "", 2, true),
            (always(2), Running, false, "", 1, true),
            (always(2), Running, true, "", 1, false),
        ] {
            let pod = web("", "t");
            let reported = PodStatus { reason: reason.to_owned(), ..status(&pod, phase, ready) };
            let mut builder = SnapshotBuilder::new().nodes(2).object(&budget("web", &fields));
            builder = drains(runs(builder, "n1", &pod, true), "n1");
            builder = builder.put(&Key::PodStatus("n1".into(), pod.reference()), &reported);
            for number in 0..others {
                builder = runs(builder, "n2", &web("", &format!("other{number}")), true);
            }
            let case = format!("{fields} {phase:?} {ready} {reason} {others}");
            assert_eq!(allowed(&builder), if leaves { vec!["n1/t"] } else { vec![] }, "{case}");
            assert!(builder.snapshot.awaits_budget("n1", &pod), "{case}: it is not recorded yet");
            assert_eq!(decided(builder, "n1").snapshot.awaits_budget("n1", &pod), !leaves, "{case}");
        }
    }

    // Seen red without the order of decisions, and with a budget that does not count what may leave.
    #[test]
    fn two_drains_share_what_a_budget_allows_and_decisions_stand() {
        let one = budget("web", &json!({"maxUnavailable": 1}));
        let mut builder = scaled(SnapshotBuilder::new().nodes(3).object(&one), "a", 3);
        let pods: Vec<_> = (0..3).map(|number| web("a", &format!("a-0badcafe-{number}"))).collect();
        for (number, pod) in pods.iter().enumerate() {
            builder = runs(builder, &format!("n{}", number + 1), pod, true);
        }
        builder = decided(drains(builder, "n2"), "n2");
        assert_eq!(allowed(&builder), ["n2/a-0badcafe-1"]);
        assert_eq!(numbers(&builder.snapshot, &one), [0, 2, 2, 3], "it counts as disrupted already");
        // A pod that would be earlier in the order does not take its place.
        builder = drains(builder, "n1");
        assert_eq!(allowed(&builder), ["n2/a-0badcafe-1"]);
        let refused = Evictions::of(&builder.snapshot).refused;
        assert_eq!(
            refused.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [
                "cannot evict pod default/a-0badcafe-0 as it would violate the pod's disruption budget: the disruption \
              budget web needs 2 healthy pods and has 2 currently"
            ]
        );
        // It has left, and its successor is not ready yet.
        let gone = builder.delete(&Key::Pod(pods[1].reference()));
        assert_eq!(allowed(&gone), [""; 0]);
        let next = web("a", "a-0badcafe-3");
        assert_eq!(allowed(&runs(gone.clone(), "n3", &next, false)), [""; 0]);
        assert_eq!(allowed(&runs(gone, "n3", &next, true)), ["n1/a-0badcafe-0"]);
    }

    // Seen red with any budget instead of all.
    #[test]
    fn all_budgets_of_a_pod_must_allow_and_a_taint_asks_none() {
        let (open, closed) =
            (budget("a", &json!({"minAvailable": 0})), budget("b", &json!({"minAvailable": 1})));
        let pod = web("", "web");
        let builder = drains(runs(SnapshotBuilder::new().nodes(1).object(&open), "n1", &pod, true), "n1");
        assert_eq!(allowed(&builder), ["n1/web"]);
        let builder = builder.object(&closed);
        assert_eq!(allowed(&builder), [""; 0]);
        assert_eq!(Evictions::of(&builder.snapshot).refused[0].budget, "b");
        let other = Object {
            metadata: crate::meta::ObjectMeta { namespace: "x".into(), ..closed.metadata },
            ..closed
        };
        let elsewhere = builder.delete(&Key::Object(budget("b", &json!({})).reference())).object(&other);
        assert_eq!(allowed(&elsewhere), ["n1/web"], "a budget covers pods of its own namespace");
        let taints = serde_json::from_value(json!([{"key": "k", "effect": "NoExecute"}])).unwrap();
        let tainted = elsewhere.node_object("n1", NodeSpec { drain: true, taints, ..NodeSpec::default() });
        assert!(!tainted.snapshot.awaits_budget("n1", &pod) && allowed(&tainted).is_empty());
        let named = PodInstance {
            spec: PodSpec { node_name: Some("n1".into()), ..(*pod.spec).clone() }.into(),
            ..pod
        };
        assert!(!builder_with(&named).awaits_budget("n1", &named), "it stays anyway");
    }

    fn builder_with(pod: &PodInstance) -> Snapshot {
        let builder = SnapshotBuilder::new().nodes(1).object(&budget("b", &json!({"minAvailable": 1})));
        drains(runs(builder, "n1", pod, true), "n1").snapshot
    }

    #[test]
    fn pods_without_a_workload_are_named_as_the_reason() {
        let builder = SnapshotBuilder::new().nodes(1).object(&budget("web", &json!({"maxUnavailable": 1})));
        let builder = drains(runs(builder, "n1", &web("", "web"), true), "n1");
        let refused = Evictions::of(&builder.snapshot).refused;
        assert_eq!(refused[0].pod, pod_ref("web"));
        assert!(refused[0].to_string().ends_with("set minAvailable to an integer"), "{}", refused[0]);
    }
}
