//! Calls served by simulated replicas.

use super::*;

fn load(fields: &str, trace: &Value) -> LoadReport {
    match report(fields, trace) {
        Report::Load(load) => load,
        Report::Steps { .. } => panic!("{trace}"),
    }
}

fn arrivals(cold_start: f64, handling: f64, rows: &[(f64, f64, f64)]) -> Value {
    let row = |(at, per_second, seconds): &(f64, f64, f64)| json!({"at": at, "perSecond": per_second, "forSeconds": seconds});
    let rows: Vec<Value> = rows.iter().map(row).collect();
    json!({"coldStartSeconds": cold_start, "handlingSeconds": handling, "arrivals": rows})
}

/// Seconds, wanted, ready.
fn sizes(report: &LoadReport) -> Vec<(f64, u32, u32)> {
    let size = |change: &ReplicaChange| (change.at.as_f64().unwrap(), change.wanted, change.ready);
    report.replicas.iter().map(size).collect()
}

#[test]
fn one_call_wakes_one_replica_which_goes_30_seconds_after_its_end() {
    let report = load("concurrency: 10", &arrivals(0.75, 0.5, &[(3.25, 1.0, 1.0)]));
    assert_eq!(sizes(&report), [(3.0, 0, 0), (3.25, 1, 0), (4.0, 1, 1), (34.5, 0, 0)]);
    assert_eq!(
        serde_json::to_value(&report).unwrap()["calls"],
        json!({"arrived": 1, "answered": 1, "waited": 1, "refused": 0, "timedOut": 0})
    );
    let waits = report.wait_seconds.unwrap();
    assert_eq!([waits.p50, waits.p95, waits.max].map(|wait| wait.as_f64()), [Some(0.75); 3]);
    // From 3.25 to 34.5.
    assert_eq!((report.replica_seconds.as_f64(), report.most_replicas), (Some(31.25), 1));
    assert_eq!(report.ends_at.as_f64(), Some(34.5));
}

#[test]
fn the_time_to_zero_is_the_manifests_also_beyond_the_stable_window() {
    for seconds in [5, 90] {
        let fields = format!("scaleToZeroAfterSeconds: {seconds}");
        let report = load(&fields, &arrivals(1.0, 0.5, &[(0.0, 1.0, 1.0)]));
        assert_eq!(report.ends_at.as_f64(), Some(1.5 + f64::from(seconds)));
    }
}

#[test]
fn from_zero_to_a_load_and_back_to_zero() {
    // 100 calls per second of 0.5 s each: 50 concurrent calls, at least 5 replicas of 10, 8 at 70 %.
    let rows = [(0.0, 1.0, 20.0), (20.0, 100.0, 100.0), (400.0, 1.0, 1.0)];
    let report = load("concurrency: 10, maxScale: 20", &arrivals(1.0, 0.5, &rows));
    let calls = report.calls;
    assert_eq!((calls.arrived, calls.answered, calls.refused, calls.timed_out), (10_021, 10_021, 0, 0));
    let at = |seconds: f64| *sizes(&report).iter().rev().find(|(at, ..)| *at <= seconds).unwrap();
    assert_eq!((at(19.0).1, at(19.0).2), (1, 1));
    assert_eq!((at(119.0).1, at(119.0).2), (8, 8), "{:?}", sizes(&report));
    assert!(report.replicas.iter().any(|change| change.panic));
    // The load ends at 120.49, 0.5 s after its last call arrived.
    assert_eq!(at(399.0), (150.49, 0, 0));
    // After such a long sleep the windows are empty: one call wakes one replica.
    assert_eq!(
        sizes(&report).iter().rev().take(3).copied().collect::<Vec<_>>(),
        [(431.5, 0, 0), (401.0, 1, 1), (400.0, 1, 0)]
    );
    assert_eq!(report.ends_at.as_f64(), Some(431.5));
}

#[test]
fn replica_seconds_are_the_area_under_the_replicas() {
    let rows = [(0.0, 37.0, 10.0), (5.0, 200.0, 5.0), (60.0, 3.0, 30.0)];
    let report = load("concurrency: 4, maxScale: 50", &arrivals(0.0, 0.05, &rows));
    let area = ready_seconds(&report);
    // Calls are so short that draining adds little, and replicas start immediately.
    let found = report.replica_seconds.as_f64().unwrap();
    assert!((found - area).abs() < 0.5, "{found} but {area}");
    assert!(report.most_replicas > 2);
}

#[test]
fn a_full_queue_refuses_and_a_long_wait_gives_up() {
    // 100 simultaneous calls to a function with concurrency 1: one wakes it, and all wait.
    let burst = arrivals(2.0, 1.0, &[(0.0, 1_000_000.0, 0.0001)]);
    let report = load("queueLength: 30, maxScale: 1, timeoutSeconds: 5", &burst);
    assert_eq!((report.calls.refused, report.calls.answered, report.calls.waited), (70, 30, 30));
    assert_eq!(report.wait_seconds.unwrap().max.as_f64(), Some(31.0), "a cold start and 29 calls before it");
    let report = load("queueLength: 30, maxScale: 1, coldStartTimeoutSeconds: 10", &burst);
    // One call is taken at 2, 3, … 10 s; then the others have waited too long.
    assert_eq!((report.calls.answered, report.calls.timed_out, report.calls.refused), (9, 21, 70));
}

#[test]
fn the_scale_of_the_manifest_bounds_it() {
    let rows = [(0.0, 200.0, 20.0)];
    let report = load("minScale: 2, maxScale: 5", &arrivals(0.5, 1.0, &rows));
    assert_eq!(report.replicas[0].ready, 2, "they have long been there");
    assert!(report.replicas.iter().all(|change| (2..=5).contains(&change.wanted)));
    assert_eq!(report.replicas.last().map(|change| change.wanted), Some(2), "and stay");
    assert!(report.calls.refused > 0);
}

// Seen red with a memory that outlives the sleep.
#[test]
fn a_function_that_was_asleep_has_forgotten_its_panic() {
    // In panic until at least 62 s. With a target of 10 calls, the rest of the window is below the target.
    let rows = [(0.0, 100.0, 2.5), (35.0, 1.0, 1.0)];
    let fields = "concurrency: 200, targetUtilizationPercentage: 5, maxScale: 30";
    let report = load(fields, &arrivals(0.5, 1.0, &rows));
    assert!(report.replicas.iter().any(|change| change.panic) && report.most_replicas > 4);
    let after: Vec<_> = sizes(&report).into_iter().filter(|(at, ..)| *at > 30.0).collect();
    assert_eq!(after, [(33.49, 0, 0), (35.0, 1, 0), (35.5, 1, 1), (66.5, 0, 0)]);
}

// Seen red with windows that restart with each sleep, and with a second decision that waits for the next tick.
#[test]
fn the_calls_before_its_sleep_still_count_as_it_wakes() {
    // Ten concurrent calls for 20 s in one replica that could take 100: 200 call-seconds, and a target of 1 call.
    let fields = "concurrency: 100, targetUtilizationPercentage: 1, maxScale: 30";
    let report = load(fields, &arrivals(0.0, 0.5, &[(0.0, 20.0, 20.0), (55.0, 1.0, 1.0)]));
    let woken: Vec<_> =
        sizes(&report).into_iter().filter(|(at, _, ready)| *at > 50.0 && *ready > 0).collect();
    // 200 / 60 is 3.3 calls at 55 s; each second that leaves the window takes 10 call-seconds with it.
    assert_eq!(woken, [(55.0, 4, 4), (64.0, 3, 3), (70.0, 2, 2), (76.0, 1, 1)]);
    assert_eq!(sizes(&report).last(), Some(&(85.5, 0, 0)));
}

// Seen red with windows that begin with the first call.
#[test]
fn a_load_finds_a_function_that_slept_as_one_that_has_no_past() {
    let from = |second: f64, rows: &[(f64, f64, f64)]| {
        let report = load("concurrency: 10, maxScale: 30", &arrivals(0.5, 0.5, rows));
        let since = |at: f64| ((at - second) * 1000.0).round() as i64;
        let found = sizes(&report).into_iter().filter(|(at, ..)| *at >= second);
        found.map(|(at, wanted, ready)| (since(at), wanted, ready)).collect::<Vec<_>>()
    };
    let slept = from(200.0, &[(0.0, 1.0, 1.0), (200.0, 100.0, 30.0)]);
    assert_eq!(from(0.0, &[(0.0, 100.0, 30.0)]), slept);
}

/// Total ready time of all replicas in seconds.
fn ready_seconds(report: &LoadReport) -> f64 {
    let sizes = sizes(report);
    sizes.windows(2).map(|two| (two[1].0 - two[0].0) * f64::from(two[0].2)).sum()
}

#[test]
fn a_replica_that_goes_ends_its_calls_first() {
    // A surge of long calls, and then few: replicas are removed while calls run.
    let rows = [(0.0, 40.0, 4.0), (4.0, 0.5, 200.0)];
    let trace = arrivals(0.0, 20.0, &rows);
    let report = load("concurrency: 10, maxScale: 30", &trace);
    assert_eq!(report.calls.answered, report.calls.arrived);
    assert!(report.calls.refused + report.calls.timed_out == 0 && report.most_replicas > 10);
    // Starting is instant here, so any extra replica time is that of draining replicas.
    let (all, ready) = (report.replica_seconds.as_f64().unwrap(), ready_seconds(&report));
    assert!(all > ready + 1.0, "{all} but {ready}");
    assert_eq!(load("concurrency: 10, maxScale: 30", &trace), report, "and twice the same");
}

#[test]
fn a_day_of_calls_takes_no_long() {
    let report = load("concurrency: 100", &arrivals(1.0, 0.1, &[(0.0, 10.0, 86_400.0)]));
    assert_eq!(report.calls.answered, 864_000);
    assert_eq!(report.calls.waited, 10, "those of the cold start");
}
