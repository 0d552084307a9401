//! Upstream's decision tests, and properties of every decision.

use jiff::{SignedDuration, Timestamp};

use super::*;

mod properties;
mod upstream;

/// The config of Knative's `newTestAutoscaler`: rates of 10, and a target of 75 % of a replica's capacity.
fn fixture(target: f64, target_burst_capacity: f64) -> Config {
    Config {
        target,
        total_per_replica: target / 0.75,
        panic_threshold: 2.0,
        max_scale_up_rate: 10.0,
        max_scale_down_rate: 10.0,
        target_burst_capacity,
        stable_window: SignedDuration::from_secs(60),
        scale_down_delay: SignedDuration::ZERO,
        activation_scale: 0,
        is_reachable: true,
    }
}

fn at(seconds: f64) -> Timestamp {
    Timestamp::from_millisecond((seconds * 1000.0) as i64).unwrap()
}

fn seen(ready: u32, stable: f64, panic: f64) -> Observation {
    Observation { ready: Some(ready), stable: Some(stable), panic: Some(panic) }
}

/// A row of the trace, in the order of its columns.
struct Look {
    at: f64,
    seen: (u32, f64, f64),
    /// Desired, excess burst capacity, panic.
    wanted: (u32, i64, bool),
}

fn look(at: f64, seen: (u32, f64, f64), wanted: (u32, i64, bool)) -> Look {
    Look { at, seen, wanted }
}

/// Decides on every row with a decider created while `first` replicas are ready; returns its memory.
fn check(what: &str, config: &Config, first: u32, looks: &[Look]) -> ScalerMemory {
    check_from(what, config, ScalerMemory::initial(first, at(looks[0].at)), looks)
}

fn check_from(what: &str, config: &Config, mut memory: ScalerMemory, looks: &[Look]) -> ScalerMemory {
    for (number, look) in looks.iter().enumerate() {
        let (ready, stable, panic) = look.seen;
        let (decision, after) = decide(config, &memory, seen(ready, stable, panic), at(look.at));
        let Decision { desired, panic, excess_burst_capacity } = decision.unwrap();
        assert_eq!((desired, excess_burst_capacity, panic), look.wanted, "{what}, look {number}");
        memory = after;
    }
    memory
}

#[test]
fn the_memory_goes_through_a_record_as_it_is() {
    let config = Config { scale_down_delay: SignedDuration::from_secs(30), ..fixture(1.0, 0.0) };
    let looks = [look(0.0, (1, 9.0, 9.0), (9, 0, true)), look(2.0, (9, 1.0, 1.0), (9, 0, true))];
    let memory = check("panic with a delay", &config, 0, &looks);
    let text = serde_json::to_string(&memory).unwrap();
    assert_eq!(
        text,
        r#"{"mode":{"panic":{"surgedAt":"1970-01-01T00:00:00Z","most":9}},"peaks":[{"tick":1,"replicas":9}]}"#
    );
    assert_eq!(serde_json::from_str::<ScalerMemory>(&text).unwrap(), memory);
    assert_eq!(serde_json::from_str::<ScalerMemory>("{}").unwrap(), ScalerMemory::default());
    assert_eq!(serde_json::to_string(&ScalerMemory::initial(1, at(0.0))).unwrap(), r#"{"mode":"stable"}"#);
}

#[test]
fn a_function_is_decided_on_by_its_concurrency_and_knatives_defaults() {
    let function = FunctionSpec { concurrency: 100, ..FunctionSpec::default() };
    let config = Config::for_function(&function);
    assert_eq!((config.target, config.total_per_replica, config.target_burst_capacity), (70.0, 100.0, 211.0));
    assert_eq!((config.max_scale_up_rate, config.max_scale_down_rate), (1000.0, 2.0));
    let looks = [
        // 10 * 100 - 211 - 100 = 689; at most halved.
        look(0.0, (10, 140.0, 100.0), (5, 689, false)),
        // 2000 / 70 = 28.6; 29 / 10 is a surge.
        look(2.0, (10, 140.0, 2000.0), (29, -1211, true)),
    ];
    check("defaults", &config, 1, &looks);
}
