//! Whole decisions: several metrics, bounds before metrics, conditions and reasons.

use schema::condition::Condition;
use schema::kinds::autoscaler::SCALING_DISABLED;
use schema::quantity::Share;

use super::*;

/// Formats conditions as `AbleToScale=True/ReadyForNewScale …`.
fn words(conditions: &[Condition]) -> String {
    let word =
        |condition: &Condition| format!("{}={:?}/{}", condition.kind, condition.status, condition.reason);
    conditions.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn seen_before() -> AutoscalerMemory {
    AutoscalerMemory { recommendations: recommendations(&[]), ..AutoscalerMemory::default() }
}

#[test]
fn of_several_metrics_the_most_counts_and_a_failing_one_keeps_it_from_shrinking() {
    let both = [utilization(ResourceName::Cpu, 50), utilization(ResourceName::Memory, 50)];
    let spec = spec(&both, (1, 20));
    let used = |cpu: u64, memory: Option<u64>| {
        let mut pod = pod(cpu);
        pod.usage.as_mut().unwrap().used.memory = memory.map(|share| share * 1_000_000);
        vec![pod; 4]
    };
    let decided = |pods: &[Pod]| look(&spec, 4, Basis::Pods(pods), &seen_before(), 0);
    let grows = decided(&used(200, Some(1000)));
    assert_eq!((grows.desired, grows.recommendation), (8, Some(8)));
    assert_eq!(grows.reason, "memory resource utilization (percentage of request) above target");
    let desired: Vec<_> = grows.metrics.iter().map(|one| one.outcome.as_ref().unwrap().desired).collect();
    assert_eq!(desired, [2, 8]);
    assert_eq!(decided(&used(200, Some(100))).desired, 2);

    // Seen red with `>= current` left out of `recommended`.
    let held = decided(&used(200, None));
    assert_eq!((held.desired, held.recommendation), (4, None));
    let active = "ScalingActive=False/FailedGetResourceMetric";
    assert_eq!(words(&held.memory.conditions), format!("AbleToScale=True/SucceededGetScale {active}"));
    assert!(held.metrics[1].outcome.is_err() && held.reason.starts_with("memory: no usable memory sample"));
    let grows = decided(&used(1000, None));
    assert_eq!((grows.desired, grows.recommendation), (8, Some(8)));
    assert!(words(&grows.memory.conditions).contains("ScalingActive=True/ValidMetricFound"));
}

/// `isWithin` of Kubernetes' `replica_calculator.go`, with the tolerances that `tolerancesForHpa` of `horizontal.go` takes
/// from `behavior`.
#[test]
fn each_direction_has_its_own_tolerance() {
    let share = |thousandths: Option<u64>| {
        let tolerance = thousandths.map(|thousandths| Share { thousandths });
        Some(ScalingRules {
            tolerance,
            ..rules(0, SelectPolicy::Max, &[policy(PolicyType::Percent, 100, 1)])
        })
    };
    for (up, down, used, wanted) in [
        (None, None, 550, 10),
        (Some(50), None, 550, 11),
        (Some(50), None, 525, 10),
        (Some(50), None, 455, 10),
        (Some(300), None, 650, 10),
        (Some(300), None, 700, 14),
        (None, Some(50), 450, 9),
        (None, Some(50), 550, 10),
        (None, Some(400), 310, 10),
        (None, Some(400), 290, 6),
        (Some(0), Some(0), 500, 10),
        (Some(0), Some(0), 510, 11),
    ] {
        let behavior = Behavior { scale_up: share(up), scale_down: share(down) };
        let spec = HorizontalPodAutoscalerSpec {
            behavior: Some(behavior),
            ..spec(&[utilization(ResourceName::Cpu, 50)], (1, 20))
        };
        let decided = look(&spec, 10, Basis::Pods(&vec![pod(used); 10]), &seen_before(), 0);
        assert_eq!(decided.desired, wanted, "{used}m with {up:?} up and {down:?} down");
    }
}

#[test]
fn a_target_of_no_pods_is_left_alone() {
    let decision = look(
        &spec(&[utilization(ResourceName::Cpu, 50)], (3, 5)),
        0,
        Basis::Fixed(4),
        &AutoscalerMemory::default(),
        0,
    );
    assert_eq!((decision.desired, decision.recommendation), (0, None));
    let disabled = format!("AbleToScale=True/SucceededGetScale ScalingActive=False/{SCALING_DISABLED}");
    assert_eq!(words(&decision.memory.conditions), disabled);
}

#[test]
fn bounds_come_before_metrics() {
    let spec = spec(&[utilization(ResourceName::Cpu, 50)], (3, 5));
    for (current, desired, limit) in [(2, 3, Limit::TooFewReplicas), (10, 5, Limit::TooManyReplicas)] {
        let decision = look(&spec, current, Basis::Pods(&[]), &AutoscalerMemory::default(), 0);
        assert_eq!((decision.desired, decision.recommendation, decision.limit), (desired, None, limit));
        assert_eq!(words(&decision.memory.conditions), "AbleToScale=True/SucceededRescale");
    }
}

#[test]
fn conditions_say_what_holds_it() {
    let at_target = |spec: &HorizontalPodAutoscalerSpec, current, used, memory: &AutoscalerMemory| {
        let pods = vec![pod(used); current as usize];
        look(spec, current, Basis::Pods(&pods), memory, 0)
    };
    let spec = spec(&[utilization(ResourceName::Cpu, 50)], (2, 5));
    let active = "ScalingActive=True/ValidMetricFound";
    for (current, used, before, able, limited) in [
        (3, 500, &[][..], "ReadyForNewScale", "False/DesiredWithinRange"),
        (3, 800, &[], "SucceededRescale", "True/TooManyReplicas"),
        (2, 4000, &[], "SucceededRescale", "True/ScaleUpLimit"),
        (3, 1, &[], "SucceededRescale", "True/TooFewReplicas"),
        (3, 100, &[(-10, 3)], "ScaleDownStabilized", "False/DesiredWithinRange"),
        (5, 4000, &[], "ReadyForNewScale", "True/TooManyReplicas"),
    ] {
        let spec = HorizontalPodAutoscalerSpec {
            max_replicas: if used == 4000 && current == 2 { 50 } else { 4.max(current) },
            ..spec.clone()
        };
        let memory =
            AutoscalerMemory { recommendations: recommendations(before), ..AutoscalerMemory::default() };
        let found = words(&at_target(&spec, current, used, &memory).memory.conditions);
        assert_eq!(
            found,
            format!("AbleToScale=True/{able} {active} ScalingLimited={limited}"),
            "{current} at {used}"
        );
    }
}

#[test]
fn a_condition_keeps_its_time_until_it_turns() {
    let spec = spec(&[utilization(ResourceName::Cpu, 50)], (1, 5));
    let first = look(&spec, 1, Basis::Pods(&[pod(500)]), &AutoscalerMemory::default(), 0);
    let second = look(&spec, 1, Basis::Pods(&[pod(500)]), &first.memory, 15);
    assert_eq!(first.memory.conditions, second.memory.conditions);
    let third = look(&spec, 1, Basis::Pods(&[]), &second.memory, 30);
    let active = |decision: &Decision| decision.memory.conditions[1].last_transition_time;
    assert_eq!((active(&second), active(&third)), (at(0), at(30)));
}
