//! Random worlds: whatever pods do, a rollout never exceeds its maximum number of pods, never removes more of them
//! than allowed by its own action, and always ends.

use std::collections::BTreeSet;

use proptest::prelude::*;
use schema::keys::Key;
use schema::meta::NamespacedName;

use super::field::{Fate, Field, replica_set, rolling, status};
use crate::controllers::scheduler;
use crate::controllers::testing::ApplyPlan as _;

/// An event between two plans.
#[derive(Debug, Clone)]
enum Act {
    Push {
        replicas: u32,
        image: u8,
    },
    /// Deletes the records of this many pods.
    Forget(usize),
    /// Makes a pod not ready.
    Break(usize),
    Run,
    Wait(i64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => (1u32..7, 0u8..4).prop_map(|(replicas, image)| Act::Push { replicas, image }),
        1 => (1usize..4).prop_map(Act::Forget),
        2 => (0usize..8).prop_map(Act::Break),
        8 => Just(Act::Run),
        1 => (1i64..90).prop_map(Act::Wait),
    ]
}

fn available(field: &Field) -> usize {
    let snapshot = field.snapshot();
    let ready = |id: &NamespacedName| {
        let Some(binding) = snapshot.binding_of(id) else { return false };
        let status = snapshot.pod_status.get(&(binding.value.node.clone(), id.clone()));
        status.is_some_and(|s| s.value.uid == binding.value.pod.uid && s.value.is_ready())
    };
    snapshot.pods.keys().filter(|id| ready(id)).count()
}

fn break_one(field: &mut Field, number: usize) {
    let bindings: Vec<_> =
        field.snapshot().bindings.iter().map(|(k, v)| (k.clone(), v.value.clone())).collect();
    let Some(((node, id), binding)) = bindings.get(number) else { return };
    let status = status(&binding.pod, Fate::Waits("CrashLoopBackOff"), field.now);
    let key = Key::PodStatus(node.clone(), id.clone());
    field.builder = std::mem::take(&mut field.builder).put(&key, &status);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Seen red with a `room` that leaves the old pods out, and with an `end_old` that leaves the least number out.
    #[test]
    fn a_rollout_keeps_its_bounds_and_ends(
        (surge, unavailable) in (0u32..3, 0u32..3).prop_filter("one of both", |(s, u)| s + u > 0),
        acts in prop::collection::vec(act(), 1..40),
    ) {
        let mut replicas = 4;
        let mut field = Field::new(rolling(replica_set(replicas, "web:0"), surge, unavailable));
        // Image 3 never works.
        field.fates.insert("web:3".to_owned(), Fate::Waits("ErrImagePull"));
        field.run(8);
        for (number, act) in acts.into_iter().enumerate() {
            match act {
                Act::Push { replicas: wanted, image } => {
                    replicas = wanted;
                    let set = rolling(replica_set(replicas, &format!("web:{image}")), surge, unavailable);
                    field.push(set, u32::try_from(number).unwrap() + 2);
                }
                Act::Forget(count) => {
                    let some: BTreeSet<String> = field.pods().into_keys().take(count).collect();
                    field.forget_pods(&some);
                }
                Act::Break(number) => break_one(&mut field, number),
                Act::Run => {}
                Act::Wait(seconds) => field.after(seconds),
            }
            let (before, had) = (available(&field), field.pods().len());
            field.plan();
            let (left, has) = (available(&field), field.pods().len());
            let most = (replicas + surge) as usize;
            prop_assert!(has <= most.max(had), "{has} pods of {replicas} + {surge}, had {had}");
            let least = (replicas - unavailable.min(replicas)) as usize;
            prop_assert!(left >= least.min(before), "{left} of {before} available are left of {replicas} - {unavailable}");
            field.bind();
            field.report();
            field.after(2);
        }
        field.run(20);
        field.after(60);
        field.run(30);
        prop_assert_eq!(field.pods().len(), replicas as usize);
        let images: BTreeSet<String> = field.images().into_iter().collect();
        prop_assert_eq!(images.len(), 1, "one template is left");
        let rollout = field.rollout();
        prop_assert!(rollout.complete || rollout.failure.is_some());
        prop_assert!(field.plan().writes.is_empty(), "it comes to rest");
    }
}

/// Runs with the scheduler itself. A node ends a pod one round after it lost its binding.
fn run_scheduled(field: &mut Field, rounds: usize) {
    for _ in 0..rounds {
        let before = field.snapshot().clone();
        field.plan();
        let plan = scheduler::bind(field.snapshot(), &field.last_known, None);
        field.builder = std::mem::take(&mut field.builder).after(&plan);
        for (node, pod) in before.pod_status.keys().filter(|place| !before.bindings.contains_key(*place)) {
            let key = Key::PodStatus(node.clone(), pod.clone());
            field.builder = std::mem::take(&mut field.builder).delete(&key);
        }
        field.report();
        field.after(2);
        let snapshot = field.snapshot();
        let nodes: BTreeSet<_> = snapshot.pod_status.keys().map(|(node, _)| node).collect();
        assert_eq!(nodes.len(), snapshot.pod_status.len(), "two pods on one node: {:?}", snapshot.pod_status);
    }
}

/// Three nodes for three pods: as in Kubernetes, `maxUnavailable` decides whether the rollout goes on. Seen red with
/// the pods whose binding goes in the same plan left out of `ending_pods`.
#[test]
fn the_scheduler_lets_pods_that_exclude_each_other_be_replaced_one_by_one() {
    let set = |image: &str, unavailable| {
        let mut set = rolling(replica_set(3, image), 1, unavailable);
        let affinity = r#"{"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[
            {"labelSelector":{"matchLabels":{"app":"web"}},"topologyKey":"kubernetes.io/hostname"}]}}"#;
        set.template.spec.affinity = Some(serde_json::from_str(affinity).unwrap());
        set
    };
    let mut field = Field::new(set("web:0", 1));
    run_scheduled(&mut field, 4);
    assert_eq!(available(&field), 3);
    field.push(set("web:1", 1), 2);
    run_scheduled(&mut field, 20);
    assert_eq!((field.images(), available(&field)), (vec!["web:1".to_owned(); 3], 3));
    field.push(set("web:2", 0), 3);
    run_scheduled(&mut field, 5);
    assert_eq!(available(&field), 3, "the new pod waits, and no old one goes for it");
    assert_eq!(field.pods().len(), 4);
}
