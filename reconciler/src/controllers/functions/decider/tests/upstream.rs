//! The cases of knative/serving's `pkg/autoscaler/scaling/autoscaler_test.go`, under their upstream names.
//! The excess burst capacity is `floor(ready * target / 0.75 - burst - panic)`.

use super::*;

#[test]
fn the_table_of_single_decisions() {
    let plain = fixture(10.0, 100.0);
    let up = Config { max_scale_up_rate: 1.1, ..fixture(1.0, 1982.0) };
    let down = Config { max_scale_down_rate: 1.1, ..fixture(10.0, 1982.0) };
    let unreachable = Config { is_reachable: false, ..down };
    // Name, config, ready at creation, ready, stable, panic; desired, burst, panic.
    for (what, config, first, seen, wanted) in [
        ("NoDataAtZero", plain, 1, (1, 0.0, 0.0), (0, -87, false)),
        ("UnlimitedTBC", fixture(181.0, -1.0), 1, (1, 21.0, 26.0), (1, -1, false)),
        ("0TBC", fixture(10.0, 0.0), 1, (1, 50.0, 49.0), (5, 0, true)),
        ("StableModeNoChange", plain, 1, (1, 50.0, 50.0), (5, -137, true)),
        ("PanicStableLargerThanPanic", fixture(1.0, 100.0), 5, (5, 50.0, 30.0), (50, -124, true)),
        ("PanicStableLessThanPanic", fixture(1.0, 100.0), 5, (5, 20.0, 30.0), (30, -124, true)),
        ("StableModeNoChangeAlreadyScaled", plain, 1, (5, 50.0, 50.0), (5, -84, false)),
        ("StableModeIncreaseWithSmallScaleUpRate", up, 1, (2, 3.0, 3.1), (3, -1983, true)),
        ("StableModeDecreaseWithSmallScaleDownRate", down, 1, (100, 1.0, 1.0), (90, -650, false)),
        ("StableModeDecreaseNonReachable", unreachable, 1, (100, 1.0, 1.0), (1, -650, false)),
        ("PanicModeDoublePodCount", fixture(10.0, 84.0), 1, (1, 50.0, 100.0), (10, -171, true)),
        (
            "UseOnePodAsMinimumIfEndpointsNotFound",
            fixture(10.0, 81.0),
            1,
            (0, 1000.0, 888.0),
            (10, -969, true),
        ),
        ("Metrics", plain, 1, (1, 50.0, 50.0), (5, -137, true)),
        ("MetricsWithRPS", plain, 1, (1, 100.0, 99.0), (10, -186, true)),
        ("PanicThresholdUsesReadyDenominator", fixture(1.0, 0.0), 1, (1, 0.0, 3.0), (3, 0, true)),
    ] {
        check(what, &config, first, &[look(0.0, seen, wanted)]);
    }
}

#[test]
fn stable_mode() {
    let increase =
        [look(0.0, (1, 50.0, 10.0), (5, -98, false)), look(0.0, (1, 100.0, 10.0), (10, -98, false))];
    check("StableModeIncreaseWithConcurrencyDefault", &fixture(10.0, 101.0), 1, &increase);
    let increase =
        [look(0.0, (1, 50.0, 50.0), (5, -138, true)), look(0.0, (1, 100.0, 99.0), (10, -187, true))];
    check("StableModeIncreaseWithRPS", &fixture(10.0, 101.0), 1, &increase);
    let decrease =
        [look(0.0, (8, 100.0, 100.0), (10, -92, false)), look(0.0, (8, 50.0, 50.0), (5, -42, false))];
    check("StableModeDecrease", &fixture(10.0, 98.0), 1, &decrease);
    let to_zero = [look(0.0, (1, 1.0, 0.0), (1, -62, false)), look(0.0, (1, 0.0, 0.0), (0, -62, false))];
    check("StableModeNoTrafficScaleToZero", &fixture(10.0, 75.0), 1, &to_zero);
    let activation = Config { activation_scale: 2, ..fixture(10.0, 75.0) };
    let looks = [look(0.0, (1, 0.0, 0.0), (0, -62, false)), look(0.0, (1, 1.0, 0.0), (2, -62, false))];
    check("ActivationScale", &activation, 1, &looks);
}

#[test]
fn rate_limits() {
    let up = [
        look(0.0, (1, 1000.0, 1001.0), (10, -1049, true)),
        look(0.0, (10, 1000.0, 1001.0), (100, -929, true)),
    ];
    check("RateLimitScaleUp", &fixture(10.0, 61.0), 1, &up);
    let down = [look(0.0, (100, 1.0, 1.0), (10, 1271, false)), look(0.0, (10, 1.0, 1.0), (1, 71, false))];
    check("RateLimitScaleDown", &fixture(10.0, 61.0), 1, &down);
    let memory =
        check("UpdateTarget", &fixture(10.0, 77.0), 1, &[look(0.0, (1, 100.0, 101.0), (10, -165, true))]);
    let updated = Config { is_reachable: false, ..fixture(1.0, 71.0) };
    let looks = [look(0.0, (10, 100.0, 101.0), (100, -159, true))];
    check_from("UpdateTarget, after it", &updated, memory, &looks);
}

#[test]
fn panic_follows_a_surge_and_ends_after_a_window_without_one() {
    let surged = |memory: &ScalerMemory| match memory.mode {
        Mode::Panic { surged_at, .. } => Some(surged_at),
        Mode::Stable | Mode::Unseen => None,
    };
    let slow = [
        look(0.0, (10, 11.0, 25.0), (25, -110, true)),
        look(30.0, (40, 30.0, 41.0), (41, -86, true)),
        look(62.0, (55, 50.0, 56.0), (50, -81, false)),
    ];
    let config = fixture(1.0, 98.0);
    let memory = check("UnpanicAfterSlowIncrease", &config, 1, &slow[..2]);
    assert_eq!(surged(&memory), Some(at(0.0)), "without a surge its time stays");
    assert_eq!(surged(&check("UnpanicAfterSlowIncrease", &config, 1, &slow)), None);

    let extended =
        [look(0.0, (10, 11.0, 25.0), (25, -110, true)), look(30.0, (40, 30.0, 80.0), (80, -125, true))];
    let memory = check("ExtendPanicWindow", &config, 1, &extended);
    assert_eq!(surged(&memory), Some(at(30.0)));

    let exponential = [
        look(0.0, (1, 6.0, 6.0), (6, -106, true)),
        look(0.0, (6, 36.0, 36.0), (36, -129, true)),
        look(1.0, (36, 216.0, 216.0), (216, -269, true)),
        look(1.0, (216, 1296.0, 1296.0), (1296, -1109, true)),
        look(2.0, (1296, 1296.0, 1296.0), (1296, 331, true)),
    ];
    check("PanicModeExponentialTrackAndStabilize", &fixture(1.0, 101.0), 1, &exponential);

    let dropped = [
        look(0.0, (1, 100.0, 100.0), (10, -180, true)),
        look(0.0, (10, 100.0, 1000.0), (100, -960, true)),
        look(30.0, (10, 1.0, 1.0), (100, 39, true)),
        // Panic ends after the window, not at its end.
        look(60.0, (10, 1.0, 1.0), (100, 39, true)),
        look(61.0, (10, 1.0, 1.0), (1, 39, false)),
    ];
    check("PanicThenUnPanicScaleDown", &fixture(10.0, 93.0), 1, &dropped);
}

#[test]
fn a_decider_that_is_made_over_more_than_one_replica_starts_in_panic() {
    for (ready, mode) in
        [(0, Mode::Stable), (1, Mode::Stable), (2, Mode::Panic { surged_at: at(7.0), most: 2 })]
    {
        assert_eq!(ScalerMemory::initial(ready, at(7.0)).mode, mode, "StartInPanicMode");
    }
    // The same with an empty memory and no load: zero load is not read as a full stable window.
    let config = fixture(100.0, 11.0);
    let looks = [
        look(7.0, (4, 0.0, 0.0), (4, 522, true)),
        look(67.0, (4, 0.0, 0.0), (4, 522, true)),
        look(67.5, (4, 0.0, 0.0), (0, 522, false)),
    ];
    check_from("restart", &config, ScalerMemory::default(), &looks);
}

#[test]
fn without_data_there_is_no_decision() {
    let config = fixture(10.0, 100.0);
    let memory = ScalerMemory::initial(3, at(0.0));
    let all = seen(3, 1000.0, 888.0);
    for (what, seen) in [
        ("NoDataNoAutoscale", Observation { stable: None, panic: None, ..all }),
        ("no stable average", Observation { stable: None, ..all }),
        ("no panic average", Observation { panic: None, ..all }),
        ("CantCountPods", Observation { ready: None, ..all }),
        ("no number", Observation { stable: Some(f64::NAN), ..all }),
    ] {
        assert_eq!(decide(&config, &memory, seen, at(99.0)), (None, memory.clone()), "{what}");
        assert_eq!(
            decide(&config, &ScalerMemory::default(), seen, at(99.0)),
            (None, ScalerMemory::default()),
            "{what}"
        );
    }
}

/// Upstream's config: replicas are never ready, and windows have no length.
fn with_delay(seconds: i64) -> Config {
    Config {
        target: 10.0,
        total_per_replica: 0.0,
        panic_threshold: 100.0,
        target_burst_capacity: 0.0,
        stable_window: SignedDuration::ZERO,
        scale_down_delay: SignedDuration::from_secs(seconds),
        ..fixture(10.0, 0.0)
    }
}

#[test]
fn a_delay_holds_the_largest_decision_of_its_buckets() {
    let look = |at: f64, calls: f64, desired: u32| look(at, (0, calls, calls), (desired, 0, false));
    let looks = [
        look(2.0, 40.0, 4),
        look(300.0, 0.0, 4),
        look(302.0, 0.0, 0),
        // Scaling down gradually.
        look(540.0, 40.0, 4),
        look(600.0, 30.0, 4),
        look(660.0, 0.0, 4),
        look(840.0, 0.0, 3),
        look(900.0, 0.0, 0),
    ];
    check("ScaleDownDelay", &with_delay(300), 0, &looks);
    // A window of 5 buckets; `max/timewindow_test.go` and `max/window_test.go`.
    let looks = [
        look(0.0, 60.0, 6),
        look(1.5, 50.0, 6),
        look(2.0, 80.0, 8),
        look(11.9, 10.0, 8),
        look(12.0, 10.0, 1),
    ];
    check("within one bucket the larger", &with_delay(10), 0, &looks);
    let values = [5, 8, 5, 7, 5, 5, 1, 4, 4, 4, 4, 9, 3, 4, 2, 1, 0].map(|value| f64::from(value) * 10.0);
    let largest = [5, 8, 8, 8, 8, 8, 7, 7, 5, 5, 4, 9, 9, 9, 9, 9, 4];
    let looks: Vec<Look> = (0_u32..)
        .zip(values)
        .zip(largest)
        .map(|((n, calls), desired)| look(f64::from(n * 2), calls, desired))
        .collect();
    check("windowing out 8", &with_delay(10), 0, &looks);
}

#[test]
fn without_a_delay_and_where_nobody_can_call_it_shrinks_at_once() {
    let scaled = look(2.0, (0, 40.0, 40.0), (4, 0, false));
    let memory = check(
        "ScaleDownDelayNotReachable",
        &with_delay(300),
        0,
        &[scaled, look(60.0, (0, 0.0, 0.0), (4, 0, false))],
    );
    let unreachable = Config { is_reachable: false, ..with_delay(300) };
    check_from("then unreachable", &unreachable, memory, &[look(2.0, (0, 0.0, 0.0), (0, 0, false))]);
    let looks = [look(0.0, (0, 40.0, 40.0), (4, 0, false)), look(0.5, (0, 20.0, 20.0), (2, 0, false))];
    let memory = check("ScaleDownDelayZero", &with_delay(0), 0, &looks);
    assert_eq!(memory.peaks, []);
}
