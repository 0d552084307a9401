//! Number of pods that a single metric asks for.

use super::*;
use crate::controllers::autoscaler::replicas::proposal;

/// Number of replicas for a CPU target of `percent`.
fn asks(percent: u32, current: u32, pods: &[Pod]) -> u32 {
    let metric = utilization(ResourceName::Cpu, percent);
    proposal(&metric, pods, current, &Tuning::default()).unwrap().desired
}

/// Seen red with `<` in place of `<=` in `is_within`, and without rounding down to whole percent.
#[test]
fn the_edges_of_the_tolerance_are_inside() {
    for (used, wanted) in
        [(550, 10), (559, 10), (560, 12), (450, 10), (449, 9), (500, 10), (1000, 20), (10, 1)]
    {
        assert_eq!(asks(50, 10, &pods(&[used; 10])), wanted, "{used}m of 1000m each");
    }
    let wide = Tuning { tolerance: Tolerance::both(0.3), ..Tuning::default() };
    let metric = utilization(ResourceName::Cpu, 50);
    for (used, wanted) in [(650, 10), (660, 14), (350, 10), (340, 7)] {
        let found = proposal(&metric, &pods(&[used; 10]), 10, &wide).unwrap();
        assert_eq!(found.desired, wanted, "{used}");
    }
}

#[test]
fn it_is_the_ready_pods_that_are_multiplied() {
    // One pod at twice its target, in a workload that should have four.
    assert_eq!(asks(50, 4, &pods(&[1000])), 2);
    assert_eq!(asks(100, 4, &pods(&[4000, 9500, 3000, 7000])), 24);
}

/// Seen red with `missing_idle` and `full` swapped.
#[test]
fn a_pod_without_a_sample_slows_both_ways() {
    for (percent, current, used, gone, wanted) in [
        // Scaling down: assume that it uses its whole request.
        (100, 4, &[400, 95][..], 2, 3),
        // With a target above 100 %, assume that it uses the target.
        (200, 4, &[400, 400], 2, 3),
        // Scaling up: assume that it uses nothing, which lands exactly on the target here.
        (50, 2, &[1000], 1, 2),
        (50, 3, &[2000, 2000], 1, 8),
        // The assumption would flip the direction, from up to down or from down to up: no change.
        (50, 4, &[600], 3, 4),
        (50, 4, &[400], 3, 4),
        // At the target it does not count.
        (50, 2, &[500], 1, 2),
    ] {
        let mut all = pods(used);
        all.extend((0..gone).map(|_| missing()));
        assert_eq!(asks(percent, current, &all), wanted, "{percent} % of {used:?}, {gone} without a sample");
    }
}

/// Seen red with unready pods counted when scaling down, and not counted when scaling up.
#[test]
fn a_pod_that_is_not_ready_counts_when_growing_alone() {
    let all = [unready(300), pod(500), pod(700)];
    // 60 % of two pods is twice the target; 40 % of three is 4/3 of it.
    assert_eq!(asks(30, 3, &all), 4);
    // 60 % of two is above the target, 30 % of four below it: it stays at four and does not return to three.
    assert_eq!(asks(50, 4, &[pod(600), pod(600), unready(900), unready(900)]), 4);
    // Scaling down counts only the ready pods, which are at the target here.
    assert_eq!(asks(80, 3, &[unready(900), pod(760), pod(760)]), 3);
    assert_eq!(asks(80, 3, &[unready(900), pod(200), pod(200)]), 1);
    let pending = Pod { phase: PodPhase::Pending, ..pod(900) };
    assert_eq!(asks(30, 3, &[pending.clone(), pod(500), pod(700)]), 4);
    assert_eq!(asks(80, 3, &[pending, pod(200), pod(200)]), 1);
}

#[test]
fn pods_that_end_or_have_ended_are_left_out() {
    let deleted = Pod { is_deleted: true, ..pod(5000) };
    let failed = Pod { phase: PodPhase::Failed, ..pod(5000) };
    let succeeded = Pod { phase: PodPhase::Succeeded, usage: None, ..pod(0) };
    assert_eq!(asks(50, 2, &[deleted, failed, succeeded, pod(1000), pod(1000)]), 4);
}

/// Seen red without the first period, and with the second inverted.
#[test]
fn a_young_pod_counts_once_its_sample_is_of_a_time_in_which_it_was_ready() {
    let tuning = Tuning::default();
    let counts = |pod: Pod| proposal(&utilization(ResourceName::Cpu, 50), &[pod], 1, &tuning).is_ok();
    let young = |ready: bool, since: i64, window: i64| {
        let mut young =
            Pod { started: Some(at(-120)), ready: Some(ready), ready_since: Some(at(since)), ..pod(1000) };
        young.usage.as_mut().unwrap().window = SignedDuration::from_secs(window);
        young
    };
    for (ready, since, window, wanted) in
        [(true, -60, 60, true), (true, -60, 61, false), (true, -60, 15, true), (false, -60, 15, false)]
    {
        assert_eq!(counts(young(ready, since, window)), wanted, "{ready} since {since}, window {window}");
    }
    // After initialization, a pod that was ready once counts; a pod that never was does not.
    let old = |since: i64| Pod { ready: Some(false), ready_since: Some(at(since)), ..pod(1000) };
    for (since, wanted) in [(-3600 + 29, false), (-3600 + 30, true), (-10, true)] {
        assert_eq!(counts(old(since)), wanted, "not ready since {since}");
    }
    // The initialization period ends exactly after five minutes.
    let aged = |seconds: i64| Pod {
        started: Some(at(-seconds)),
        ready: Some(false),
        ready_since: Some(at(-1)),
        ..pod(1)
    };
    assert!(!counts(aged(299)) && counts(aged(300)));
    for unknown in [Pod { ready: None, ..pod(1) }, Pod { started: None, ..pod(1) }] {
        assert!(!counts(unknown));
    }
}

#[test]
fn memory_counts_pods_that_are_not_ready_in_full() {
    let metric = utilization(ResourceName::Memory, 50);
    let found = proposal(&metric, &[unready(1000), pod(1000)], 2, &Tuning::default()).unwrap();
    assert_eq!((found.desired, found.utilization, found.average), (4, Some(100), 1_000_000_000));
}

#[test]
fn an_amount_per_pod_needs_no_requests() {
    let bare = |used: u64| Pod { requests: PerResource::default(), ..pod(used) };
    let asks = |value: &str, pods: &[Pod]| {
        let metric = average(ResourceName::Cpu, value);
        proposal(&metric, pods, 3, &Tuning::default()).map(|found| (found.desired, found.average))
    };
    assert_eq!(asks("500m", &[bare(1000), bare(1000), bare(1000)]), Ok((6, 1000)));
    assert_eq!(asks("500m", &[bare(550), bare(550)]), Ok((3, 550)), "within the tolerance it stays as it is");
    // When scaling down, a pod without a sample counts as exactly at the target.
    let missing = Pod { usage: None, ..bare(0) };
    assert_eq!(asks("1", &[bare(100), bare(100), missing.clone()]), Ok((2, 100)));
    // More pods than the workload should have: their low usage must not raise the number.
    let metric = average(ResourceName::Cpu, "1");
    let found = proposal(&metric, &[bare(500), missing.clone(), missing], 1, &Tuning::default());
    assert_eq!(found.unwrap().desired, 1);
}

#[test]
fn what_cannot_be_known_says_why() {
    let why =
        |metric: &ResourceMetric, pods: &[Pod]| proposal(metric, pods, 1, &Tuning::default()).unwrap_err();
    let cpu = utilization(ResourceName::Cpu, 50);
    assert_eq!(why(&cpu, &[]), "the target has no pods yet");
    let nothing = "no usable cpu sample of a pod yet: 1 not ready, 1 without a sample";
    assert_eq!(why(&cpu, &[missing(), unready(1)]), nothing);
    let bare = Pod { name: "web-1".to_owned(), requests: PerResource::default(), ..pod(1) };
    let lacks = "missing request for cpu: a container of pod web-1 has none; set resources.requests.cpu";
    assert_eq!(why(&cpu, &[pod(1), bare.clone()]), lacks);
    // An ignored pod may lack requests.
    assert_eq!(asks(50, 1, &[pod(500), Pod { phase: PodPhase::Failed, ..bare.clone() }]), 1);
    let zero = Pod { requests: PerResource { cpu: Some(0), memory: None }, ..bare };
    assert_eq!(why(&cpu, &[zero]), "the pods request nothing, so utilization is undefined");
}
