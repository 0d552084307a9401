//! Metrics of a daemon, in Prometheus' text format 0.0.4.
//!
//! A family is either counted (counters and histograms, kept here and in each daemon's `metrics.rs`) or read from
//! state at each scrape ([`StateFamily`]), so that there is no second truth about the state. Names, help and labels
//! of all families are in one place each, from which `docs/metrics.md` is generated.
//!
//! Labels are bounded: kinds, namespaces, workloads, nodes, classes of status codes, and words of an enum; a pod only
//! where resources are measured. Never a uid, a path or a commit.

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, prometheus_text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

mod family;
mod loops;
mod process;
mod store;

pub use family::{FamilyInfo, FamilyType, StateFamily};
pub use loops::loop_families;
pub use process::process_families;
pub use store::{MeteredStore, StoreMetrics};

use self::family::LabelSet;
use crate::mutex::lock;

/// Content type of an answer with metrics.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds, in seconds, of the buckets of durations from a millisecond to a minute.
pub const DURATION_BUCKETS: [f64; 12] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

/// Counters and histograms of a daemon.
#[derive(Debug, Default)]
pub struct MetricSet {
    registry: Registry,
    infos: Vec<&'static FamilyInfo>,
}

/// Counters of one family. Clones count together.
#[derive(Debug, Clone)]
pub struct Counters {
    info: &'static FamilyInfo,
    family: Family<LabelSet, Counter>,
}

impl Counters {
    /// Adds one. `values` are those of the labels, in order.
    pub fn inc(&self, values: &[&str]) {
        self.add(values, 1);
    }

    /// Adds `count`.
    pub fn add(&self, values: &[&str], count: u64) {
        self.family.get_or_create(&self.info.labelled(values)).inc_by(count);
    }

    /// Returns one counter of the family, for paths where a lookup each time is too slow.
    pub fn one(&self, values: &[&str]) -> Counter {
        self.family.get_or_create_owned(&self.info.labelled(values))
    }
}

/// Histograms of one family. Clones count together.
#[derive(Debug, Clone)]
pub struct Histograms {
    info: &'static FamilyInfo,
    family: Family<LabelSet, Histogram>,
}

impl Histograms {
    /// Adds a duration. `values` are those of the labels, in order.
    pub fn observe(&self, values: &[&str], took: Duration) {
        self.family.get_or_create(&self.info.labelled(values)).observe(took.as_secs_f64());
    }

    /// Returns one histogram of the family, for paths where a lookup each time is too slow.
    pub fn one(&self, values: &[&str]) -> Histogram {
        self.family.get_or_create_owned(&self.info.labelled(values))
    }
}

fn duration_histogram() -> Histogram {
    Histogram::new(DURATION_BUCKETS)
}

impl MetricSet {
    /// Adds a family of counters. One without labels is there from the beginning, at 0.
    pub fn counters(&mut self, info: &'static FamilyInfo) -> Counters {
        debug_assert_eq!(info.kind, FamilyType::Counter);
        let family = Family::<LabelSet, Counter>::default();
        self.registry.register(info.name, info.help, family.clone());
        self.infos.push(info);
        let counters = Counters { info, family };
        if info.labels.is_empty() {
            counters.add(&[], 0);
        }
        counters
    }

    /// Adds a family of histograms with the buckets of [`DURATION_BUCKETS`].
    pub fn histograms(&mut self, info: &'static FamilyInfo) -> Histograms {
        debug_assert_eq!(info.kind, FamilyType::Histogram);
        let family =
            Family::<LabelSet, Histogram>::new_with_constructor(duration_histogram as fn() -> Histogram);
        self.registry.register(info.name, info.help, family.clone());
        self.infos.push(info);
        Histograms { info, family }
    }

    /// Returns the descriptions of the families, in the order in which they were added.
    pub fn infos(&self) -> &[&'static FamilyInfo] {
        &self.infos
    }

    /// Writes the set and what was read from state as text.
    pub fn text(&self, state: Vec<StateFamily>) -> String {
        let mut text = String::new();
        let mut state_registry = Registry::default();
        state_registry.register_collector(Box::new(StateCollector(Mutex::new(state))));
        // Writing to a string cannot fail.
        let _ = prometheus_text::encode(&mut text, &self.registry);
        let _ = prometheus_text::encode(&mut text, &state_registry);
        text
    }
}

#[derive(Debug)]
struct StateCollector(Mutex<Vec<StateFamily>>);

impl Collector for StateCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        lock(&self.0).iter().try_for_each(|family| family.encode(&mut encoder))
    }
}

/// The families of every daemon that are read from state, for `docs/metrics.md`.
pub fn common_families() -> Vec<&'static FamilyInfo> {
    loops::INFOS.into_iter().chain(process::INFOS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    static CALLS: FamilyInfo = FamilyInfo::counter("test_calls", "Calls", &["code"]);
    static WAITS: FamilyInfo = FamilyInfo::histogram("test_wait_seconds", "Waits", &[]);
    static PODS: FamilyInfo = FamilyInfo::gauge("test_pods", "Pods", &["namespace"]);
    static EMPTY: FamilyInfo = FamilyInfo::gauge("test_empty", "Nothing", &[]);

    #[test]
    fn a_set_is_written_in_the_format_of_prometheus() {
        let mut set = MetricSet::default();
        let (calls, waits) = (set.counters(&CALLS), set.histograms(&WAITS));
        calls.inc(&["2xx"]);
        calls.one(&["2xx"]).inc_by(2);
        waits.observe(&[], Duration::from_millis(20));
        let mut pods = StateFamily::new(&PODS);
        pods.add(["a\"\n\\"], 3.0);
        let text = set.text(vec![pods, StateFamily::new(&EMPTY)]);
        for line in [
            "# HELP test_calls_total Calls.",
            "# TYPE test_calls_total counter",
            "test_calls_total{code=\"2xx\"} 3",
            "# TYPE test_wait_seconds histogram",
            "test_wait_seconds_bucket{le=\"0.05\"} 1",
            "test_wait_seconds_bucket{le=\"+Inf\"} 1",
            "test_wait_seconds_count 1",
            "# TYPE test_pods gauge",
            "test_pods{namespace=\"a\\\"\\n\\\\\"} 3.0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in:\n{text}");
        }
        assert!(!text.contains("test_empty"), "{text}");
    }
}
