//! Windows, policies and bounds, applied to given recommendations.

use super::Limit::*;
use super::*;

struct Case {
    current: u32,
    asked: u32,
    bounds: (u32, u32),
    behavior: Option<Behavior>,
    memory: AutoscalerMemory,
    wanted: (u32, Limit),
}

impl Case {
    fn new(current: u32, asked: u32, wanted: (u32, Limit)) -> Self {
        let memory =
            AutoscalerMemory { recommendations: recommendations(&[]), ..AutoscalerMemory::default() };
        Self { current, asked, bounds: (1, 1000), behavior: None, memory, wanted }
    }

    fn within(self, min: u32, max: u32) -> Self {
        Self { bounds: (min, max), ..self }
    }

    fn up(mut self, policies: &[ScalingPolicy]) -> Self {
        let behavior = self.behavior.get_or_insert_with(any_step);
        behavior.scale_up = Some(rules(0, SelectPolicy::Max, policies));
        self
    }

    fn down(mut self, policies: &[ScalingPolicy]) -> Self {
        let behavior = self.behavior.get_or_insert_with(any_step);
        behavior.scale_down = Some(rules(0, SelectPolicy::Max, policies));
        self
    }

    fn select(mut self, select: SelectPolicy) -> Self {
        let behavior = self.behavior.as_mut().unwrap();
        for rules in [&mut behavior.scale_up, &mut behavior.scale_down].into_iter().flatten() {
            rules.select_policy = Some(select);
        }
        self
    }

    fn windows(mut self, up: u32, down: u32) -> Self {
        let behavior = self.behavior.get_or_insert_with(any_step);
        behavior.scale_up.as_mut().unwrap().stabilization_window_seconds = Some(up);
        behavior.scale_down.as_mut().unwrap().stabilization_window_seconds = Some(down);
        self
    }

    fn asked_before(mut self, all: &[(i64, u32)]) -> Self {
        self.memory.recommendations = recommendations(all);
        self
    }

    fn added(mut self, all: &[(i64, u32)]) -> Self {
        self.memory.scale_ups = changes(all);
        self
    }

    fn removed(mut self, all: &[(i64, u32)]) -> Self {
        self.memory.scale_downs = changes(all);
        self
    }
}

fn check(cases: Vec<Case>) {
    for (number, case) in cases.into_iter().enumerate() {
        let Case { current, asked, bounds, behavior, memory, wanted } = case;
        let spec = HorizontalPodAutoscalerSpec { behavior, ..spec(&[], bounds) };
        let found = look(&spec, current, Basis::Fixed(asked), &memory, 0);
        assert_eq!((found.desired, found.limit), wanted, "case {number}: {current} pods, {asked} asked for");
    }
}

/// Seen red with a factor of three.
#[test]
fn without_behavior_a_look_at_most_doubles() {
    check(vec![
        Case::new(3, 1000, (6, ScaleUpLimit)),
        Case::new(1, 1000, (4, ScaleUpLimit)),
        Case::new(5, 7, (7, DesiredWithinRange)).within(3, 8),
        Case::new(5, 9, (8, TooManyReplicas)).within(3, 8),
        Case::new(3, 1, (2, TooFewReplicas)).within(2, 8),
        Case::new(20, 1000, (10, TooManyReplicas)).within(1, 10),
        Case::new(2, 1000, (5, TooFewReplicas)).within(5, 10),
    ]);
}

/// Seen red with `<=` in `is_within` of behavior.rs: a recommendation exactly as old as the window would count.
#[test]
fn without_behavior_the_highest_of_five_minutes_counts() {
    let case = |wanted| Case::new(5, 3, wanted);
    check(vec![
        case((3, DesiredWithinRange)),
        case((5, ScaleDownStabilized)).asked_before(&[(-299, 5)]),
        case((4, ScaleDownStabilized)).asked_before(&[(-300, 5), (-200, 4), (-100, 2)]),
        case((3, DesiredWithinRange)).asked_before(&[(-300, 5)]),
        // Scaling up has no window.
        Case::new(5, 7, (7, DesiredWithinRange)).asked_before(&[(-10, 2)]),
    ]);
}

#[test]
fn the_first_sight_counts_as_a_recommendation_of_the_present_size() {
    let spec = spec(&[], (1, 10));
    let memory = AutoscalerMemory::default();
    let first = look(&spec, 5, Basis::Fixed(3), &memory, 0);
    assert_eq!(first.memory.recommendations.as_ref().map(Vec::len), Some(2));
    assert_eq!((first.desired, first.limit), (5, ScaleDownStabilized));
    let later = look(&spec, 5, Basis::Fixed(3), &first.memory, 299);
    assert_eq!((later.desired, later.limit), (5, ScaleDownStabilized));
    let out = look(&spec, 5, Basis::Fixed(3), &later.memory, 300);
    assert_eq!((out.desired, out.limit), (3, DesiredWithinRange));
    assert_eq!(out.memory.recommendations.unwrap().len(), 1, "equal ones are one, and the old one is gone");
}

#[test]
fn windows_hold_the_most_cautious_recommendation() {
    check(vec![
        Case::new(100, 3, (5, ScaleDownStabilized)).windows(0, 180).asked_before(&[(-120, 4), (-60, 5)]),
        Case::new(1, 7, (4, ScaleUpStabilized)).windows(300, 0).asked_before(&[(-120, 4), (-60, 5)]),
        Case::new(100, 3, (3, DesiredWithinRange)).windows(300, 0).asked_before(&[(-120, 1), (-60, 2)]),
        Case::new(1, 3, (3, DesiredWithinRange)).windows(0, 300).asked_before(&[(-120, 4), (-60, 5)]),
        Case::new(100, 3, (3, DesiredWithinRange)).windows(0, 60).asked_before(&[(-600, 10), (-60, 9)]),
        // Windows in both directions: the number stays.
        Case::new(2, 1, (2, ScaleDownStabilized)).windows(300, 300).asked_before(&[(-180, 3)]),
        Case::new(2, 3, (2, ScaleUpStabilized)).windows(300, 300).asked_before(&[(-180, 1)]),
    ]);
}

/// Seen red with the current number in place of the number at the start of the period.
#[test]
fn policies_count_from_the_start_of_their_period() {
    use PolicyType::{Percent, Pods};
    let pods = |value, seconds| policy(Pods, value, seconds);
    let percent = |value, seconds| policy(Percent, value, seconds);
    check(vec![
        Case::new(10, 50, (40, ScaleUpLimit)).up(&[pods(30, 60)]),
        Case::new(10, 50, (30, ScaleUpLimit)).up(&[percent(200, 60)]),
        Case::new(10, 500, (110, ScaleUpLimit)).up(&[pods(100, 60), percent(100, 60)]),
        Case::new(10, 50, (50, DesiredWithinRange)).up(&[pods(100, 60)]),
        Case::new(100, 500, (200, TooManyReplicas)).within(1, 200).up(&[pods(300, 60)]),
        // 15 were added within the period.
        Case::new(100, 500, (235, ScaleUpLimit)).up(&[pods(150, 120)]).added(&[
            (-119, 1),
            (-60, 5),
            (-30, 9),
        ]),
        Case::new(100, 500, (255, ScaleUpLimit)).up(&[percent(200, 120)]).added(&[
            (-119, 1),
            (-60, 5),
            (-30, 9),
        ]),
        // A change exactly as old as the period no longer counts.
        Case::new(100, 500, (236, ScaleUpLimit)).up(&[pods(150, 120)]).added(&[
            (-120, 1),
            (-60, 5),
            (-30, 9),
        ]),
        // More pods were added than the current policy allows: it adds no more, but removes none either.
        Case::new(100, 500, (100, ScaleUpLimit)).up(&[pods(5, 120)]).added(&[(-60, 15)]),
        Case::new(6, 24, (16, ScaleUpLimit)).up(&[percent(300, 300)]).added(&[(-60, 4)]).removed(&[(-60, 2)]),
        Case::new(100, 2, (80, ScaleDownLimit)).down(&[pods(20, 60), percent(1, 60)]),
        Case::new(100, 2, (98, ScaleDownLimit)).down(&[pods(2, 60), percent(1, 60)]),
        Case::new(10, 2, (5, TooFewReplicas)).within(5, 1000).down(&[percent(100, 60)]),
        Case::new(100, 2, (100, ScaleDownLimit)).down(&[pods(5, 120)]).removed(&[(-60, 15)]),
        Case::new(100, 1, (56, ScaleDownLimit)).down(&[percent(50, 120)]).removed(&[(-60, 12)]),
        Case::new(10, 1, (6, ScaleDownLimit))
            .down(&[percent(50, 180)])
            .added(&[(-60, 2)])
            .removed(&[(-60, 4)]),
        Case::new(10, 5, (5, DesiredWithinRange)).down(&[percent(1000, 120)]).removed(&[(-60, 30)]),
    ]);
}

#[test]
fn percent_rounds_up_for_growing_and_off_for_shrinking() {
    let percent = |value| [policy(PolicyType::Percent, value, 15)];
    check(vec![
        Case::new(1, 9, (2, ScaleUpLimit)).up(&percent(10)),
        Case::new(10, 90, (11, ScaleUpLimit)).up(&percent(10)),
        Case::new(11, 90, (13, ScaleUpLimit)).up(&percent(10)),
        Case::new(3, 1, (2, ScaleDownLimit)).down(&percent(10)),
        Case::new(10, 1, (9, ScaleDownLimit)).down(&percent(10)),
        Case::new(11, 1, (9, ScaleDownLimit)).down(&percent(10)),
    ]);
}

#[test]
fn the_policy_that_changes_least_may_be_chosen_or_none_at_all() {
    let both = [policy(PolicyType::Pods, 4, 15), policy(PolicyType::Percent, 100, 15)];
    let least = |case: Case| case.up(&both).down(&both).select(SelectPolicy::Min);
    let none = |case: Case| case.up(&both).down(&both).select(SelectPolicy::Disabled);
    check(vec![
        least(Case::new(10, 90, (14, ScaleUpLimit))),
        least(Case::new(2, 90, (4, ScaleUpLimit))),
        least(Case::new(10, 1, (6, ScaleDownLimit))),
        none(Case::new(10, 90, (10, ScaleUpLimit))),
        none(Case::new(10, 1, (10, ScaleDownLimit))),
        none(Case::new(10, 10, (10, DesiredWithinRange))),
    ]);
}

/// Seen red without `retain` in `remembered`.
#[test]
fn what_no_window_asks_for_is_forgotten() {
    let behavior = Some(Behavior {
        scale_up: Some(rules(0, SelectPolicy::Max, &[policy(PolicyType::Pods, 1, 30)])),
        scale_down: Some(rules(60, SelectPolicy::Max, &[policy(PolicyType::Pods, 1, 45)])),
    });
    let spec = HorizontalPodAutoscalerSpec { behavior, ..spec(&[], (1, 10)) };
    let mut memory = AutoscalerMemory::default();
    let mut current = 1;
    for step in 0..200 {
        let asked = if step % 8 < 4 { 10 } else { 1 };
        let decision = look(&spec, current, Basis::Fixed(asked), &memory, step * 15);
        assert!(decision.desired.abs_diff(current) <= 2, "step {step}");
        (current, memory) = (decision.desired, decision.memory);
        let kept = (
            memory.recommendations.as_ref().unwrap().len(),
            memory.scale_ups.len(),
            memory.scale_downs.len(),
        );
        assert!(kept.0 <= 4 && kept.1 <= 3 && kept.2 <= 3, "step {step}: {kept:?}");
    }
}
