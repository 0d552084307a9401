//! Metrics of a daemon, in Prometheus' text format 0.0.4.
//!
//! A family is either counted (counters and histograms, kept here and in each daemon's `metrics.rs`) or read from
//! state at each scrape ([`StateFamily`]), so that there is no second truth about the state. Names, help and labels
//! of all families are in one place each, from which `docs/metrics.md` is generated.
//!
//! Labels are bounded: kinds, namespaces, workloads, nodes, classes of status codes, and words of an enum; a pod only
//! where resources are measured. Never a uid, a path or a commit.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, prometheus_text,
};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;

mod family;
mod loops;
mod process;
mod store;

pub use family::{
    CALL_BUCKETS, CODE_CLASSES, FamilyInfo, FamilyType, LONG_BUCKETS, SHORT_BUCKETS, StateFamily, code_class,
    code_class_index, unix_seconds,
};
pub use loops::loop_families;
pub use process::{build_info, process_families};
pub use store::{MeteredStore, StoreMetrics};

use self::family::LabelSet;

/// Content type of an answer with metrics.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Counters and histograms of a daemon.
#[derive(Debug)]
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

    /// Creates the counters with these values of the labels at 0: Prometheus sees no increase in the event that creates a
    /// series.
    pub fn at_zero<const N: usize>(self, all: impl IntoIterator<Item = [&'static str; N]>) -> Self {
        all.into_iter().for_each(|values| self.add(&values, 0));
        self
    }

    /// Returns the counter with these values of the labels, at 0 if it is new. It counts without a lookup.
    pub fn one(&self, values: &[&str]) -> Counter {
        self.family.get_or_create_owned(&self.info.labelled(values))
    }

    /// Removes a counter.
    pub fn remove(&self, values: &[&str]) {
        self.family.remove(&self.info.labelled(values));
    }
}

/// Histograms of one family. Clones count together.
#[derive(Debug, Clone)]
pub struct Histograms {
    info: &'static FamilyInfo,
    family: Family<LabelSet, Histogram, Buckets>,
}

impl Histograms {
    /// Adds a duration. `values` are those of the labels, in order.
    pub fn observe(&self, values: &[&str], took: Duration) {
        self.family.get_or_create(&self.info.labelled(values)).observe(took);
    }

    /// Returns the histogram with these values of the labels, empty if it is new. It counts without a lookup.
    pub fn one(&self, values: &[&str]) -> Histogram {
        self.family.get_or_create_owned(&self.info.labelled(values))
    }

    /// Removes a histogram.
    pub fn remove(&self, values: &[&str]) {
        self.family.remove(&self.info.labelled(values));
    }
}

/// Durations by buckets. All cores add to it at the same time, so it has no lock, unlike that of prometheus-client. Clones
/// count together.
#[derive(Debug, Clone)]
pub struct Histogram(Arc<Durations>);

#[derive(Debug)]
struct Durations {
    /// Upper bounds of the buckets, in seconds.
    bounds: &'static [f64],
    /// Number of durations in each bucket, and beyond the last one.
    counts: Vec<AtomicU64>,
    sum_ns: AtomicU64,
}

impl Histogram {
    /// Adds a duration.
    pub fn observe(&self, took: Duration) {
        let Durations { bounds, counts, sum_ns } = &*self.0;
        let seconds = took.as_secs_f64();
        if let Some(count) = counts.get(bounds.partition_point(|bound| *bound < seconds)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        sum_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let Durations { bounds, counts, sum_ns } = &*self.0;
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        let counts = counts.iter().map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        // Not counted apart, so that it is that of the last bucket while others add durations.
        let count: u64 = buckets.iter().map(|(_, count)| count).sum();
        let sum = Duration::from_nanos(sum_ns.load(Ordering::Relaxed)).as_secs_f64();
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

/// Constructor of the histograms of a family, from the upper bounds of its buckets.
#[derive(Debug, Clone)]
struct Buckets(&'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        let counts = (0..=self.0.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram(Arc::new(Durations { bounds: self.0, counts, sum_ns: AtomicU64::new(0) }))
    }
}

impl Default for MetricSet {
    fn default() -> Self {
        // A daemon makes its metrics when it starts.
        process::note_start();
        Self { registry: Registry::default(), infos: Vec::new() }
    }
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

    /// Adds a family of histograms.
    pub fn histograms(&mut self, info: &'static FamilyInfo) -> Histograms {
        debug_assert_eq!(info.kind, FamilyType::Histogram);
        let family = Family::<LabelSet, Histogram, Buckets>::new_with_constructor(Buckets(info.buckets));
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
        state_registry.register_collector(Box::new(StateCollector(state)));
        // Writing to a string cannot fail.
        let _ = prometheus_text::encode(&mut text, &self.registry);
        let _ = prometheus_text::encode(&mut text, &state_registry);
        text
    }
}

#[derive(Debug)]
struct StateCollector(Vec<StateFamily>);

impl Collector for StateCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|family| family.encode(&mut encoder))
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
    static WAITS: FamilyInfo = FamilyInfo::histogram("test_wait_seconds", "Waits", &[], &[0.01, 0.02]);
    static PODS: FamilyInfo = FamilyInfo::gauge("test_pods", "Pods", &["namespace"]);
    static EMPTY: FamilyInfo = FamilyInfo::gauge("test_empty", "Nothing", &[]);

    #[test]
    fn a_set_is_written_in_the_format_of_prometheus() {
        let mut set = MetricSet::default();
        let (calls, waits) = (set.counters(&CALLS), set.histograms(&WAITS));
        calls.inc(&["2xx"]);
        calls.one(&["2xx"]).inc_by(2);
        for millis in [20, 21, 1000] {
            waits.observe(&[], Duration::from_millis(millis));
        }
        let mut pods = StateFamily::new(&PODS);
        pods.add(["a\"\n\\"], 3.0);
        let text = set.text(vec![pods, StateFamily::new(&EMPTY)]);
        for line in [
            "# HELP test_calls_total Calls.",
            "# TYPE test_calls_total counter",
            "test_calls_total{code=\"2xx\"} 3",
            "# TYPE test_wait_seconds histogram",
            "test_wait_seconds_bucket{le=\"0.01\"} 0",
            "test_wait_seconds_bucket{le=\"0.02\"} 1",
            "test_wait_seconds_bucket{le=\"+Inf\"} 3",
            "test_wait_seconds_sum 1.041",
            "test_wait_seconds_count 3",
            "# TYPE test_pods gauge",
            "test_pods{namespace=\"a\\\"\\n\\\\\"} 3.0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in:\n{text}");
        }
        assert!(!text.contains("test_empty"), "{text}");
    }
}
