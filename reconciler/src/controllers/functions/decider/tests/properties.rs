//! Properties of every decision.

use proptest::prelude::*;

use super::*;

/// Seconds since the previous observation, ready replicas and both averages, each sometimes unknown.
fn any_look() -> impl Strategy<Value = (f64, Observation)> {
    let average = || proptest::option::weighted(0.9, 0.0..2_000.0);
    let ready = proptest::option::weighted(0.9, 0_u32..50);
    (0.0..40.0, ready, average(), average())
        .prop_map(|(later, ready, stable, panic)| (later, Observation { ready, stable, panic }))
}

fn any_config() -> impl Strategy<Value = Config> {
    let rates = (1.0..20.0, 1.0..20.0, 1.0..10.0);
    (0.5..50.0, rates, prop_oneof![Just(0_i64), 1_i64..100], 0_u32..5, any::<bool>()).prop_map(
        |(target, (up, down, panic_threshold), delay, activation_scale, is_reachable)| Config {
            max_scale_up_rate: up,
            max_scale_down_rate: down,
            panic_threshold,
            scale_down_delay: SignedDuration::from_secs(delay),
            activation_scale,
            is_reachable,
            ..fixture(target, 100.0)
        },
    )
}

fn looks() -> impl Strategy<Value = Vec<(f64, Observation)>> {
    prop::collection::vec(any_look(), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Seen red without `most`, and with `most` left at 0 by a second surge.
    #[test]
    fn in_panic_no_decision_is_smaller_than_the_one_before(config in any_config(), looks in looks()) {
        // A delay would raise decisions to those from before the panic.
        let config = Config { scale_down_delay: SignedDuration::ZERO, ..config };
        let (mut memory, mut now, mut before) = (ScalerMemory::default(), 0.0, None);
        for (later, seen) in looks {
            now += later;
            let (decision, after) = decide(&config, &memory, seen, at(now));
            memory = after;
            let Some(decision) = decision else { continue };
            if let (true, Some(before)) = (decision.panic, before) {
                prop_assert!(decision.desired >= before, "{} after {before}", decision.desired);
            }
            before = decision.panic.then_some(decision.desired);
        }
    }

    /// Seen red with an unknown average counted as 0.
    #[test]
    fn looks_without_data_change_nothing(config in any_config(), looks in looks()) {
        let decisions = |looks: &mut dyn Iterator<Item = &(f64, Observation)>| {
            let mut memory = ScalerMemory::default();
            looks.filter_map(|(now, seen)| {
                let decision;
                (decision, memory) = decide(&config, &memory, *seen, at(*now));
                decision
            }).collect::<Vec<_>>()
        };
        let mut now = 0.0;
        let looks: Vec<_> = looks.into_iter().map(|(later, seen)| { now += later; (now, seen) }).collect();
        let is_whole = |look: &&(f64, Observation)| {
            look.1.ready.is_some() && look.1.stable.is_some() && look.1.panic.is_some()
        };
        prop_assert_eq!(decisions(&mut looks.iter()), decisions(&mut looks.iter().filter(is_whole)));
    }

    /// Seen red without the limit on growth, and without the limit on shrinking.
    #[test]
    fn a_decision_by_the_stable_window_is_within_the_rates(config in any_config(), (_, seen) in any_look()) {
        let config = Config { scale_down_delay: SignedDuration::ZERO, panic_threshold: 1e12, ..config };
        let memory = ScalerMemory::initial(0, at(0.0));
        let (Some(decision), _) = decide(&config, &memory, seen, at(0.0)) else { return Ok(()) };
        let ready = f64::from(seen.ready.unwrap_or_default().max(1));
        let (desired, least_activated) = (f64::from(decision.desired), f64::from(config.activation_scale));
        prop_assert!(desired <= (ready * config.max_scale_up_rate).ceil().max(least_activated));
        if config.is_reachable {
            prop_assert!(desired >= (ready / config.max_scale_down_rate).floor());
        }
    }

    /// Seen red with the smallest decision of the delay in place of the largest.
    #[test]
    fn a_delay_holds_the_largest_of_its_decisions(config in any_config(), looks in looks()) {
        let plain = Config { scale_down_delay: SignedDuration::ZERO, ..config };
        let ticks = (config.scale_down_delay.as_secs() + 1) / 2;
        let (mut delayed, mut undelayed, mut now) = (ScalerMemory::default(), ScalerMemory::default(), 0.0);
        let mut free_ones: Vec<(i64, u32)> = Vec::new();
        for (later, seen) in looks {
            now += later;
            let (held, free);
            (held, delayed) = decide(&config, &delayed, seen, at(now));
            (free, undelayed) = decide(&plain, &undelayed, seen, at(now));
            let (Some(held), Some(free)) = (held, free) else { continue };
            let tick = (now / 2.0).floor() as i64;
            free_ones.push((tick, free.desired));
            let recent = free_ones.iter().filter(|(past, _)| tick - past < ticks).map(|(_, desired)| *desired);
            let is_delayed = config.is_reachable && config.scale_down_delay > SignedDuration::ZERO;
            let wanted = if is_delayed { recent.max().unwrap_or_default() } else { free.desired };
            prop_assert_eq!(held.desired, wanted);
            prop_assert!(delayed.peaks.len() <= 50, "{}", delayed.peaks.len());
        }
    }
}
