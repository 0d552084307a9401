//! Families of metrics: what describes them, and those that are read from state.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// Upper bounds of buckets, in seconds, for requests, queries and writes of packet rules.
pub const SHORT_BUCKETS: &[f64] =
    &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 2.5, 10.0];

/// Upper bounds of buckets, in seconds, for calls of functions: up to their longest timeout, and few, because each
/// function has a histogram.
pub const CALL_BUCKETS: &[f64] = &[0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];

/// Upper bounds of buckets, in seconds, for pulls and builds.
pub const LONG_BUCKETS: &[f64] = &[0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0];

/// Type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FamilyType {
    /// Grows, and begins at 0 with the process. Its name ends in `_total`, which is appended when it is written.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Durations in seconds, by buckets.
    Histogram,
}

/// Name, meaning and labels of a family of metrics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FamilyInfo {
    /// Name without `_total`: `minik8s_pods`. Ends with the unit, if there is one: `_seconds`, `_bytes`.
    pub name: &'static str,
    /// Meaning, in one sentence without a period.
    pub help: &'static str,
    /// Counter, gauge or histogram.
    pub kind: FamilyType,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// Upper bounds of a histogram's buckets, in seconds; empty for others.
    pub buckets: &'static [f64],
}

impl FamilyInfo {
    /// Describes a counter.
    pub const fn counter(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Self {
        Self { name, help, kind: FamilyType::Counter, labels, buckets: &[] }
    }

    /// Describes a gauge.
    pub const fn gauge(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Self {
        Self { name, help, kind: FamilyType::Gauge, labels, buckets: &[] }
    }

    /// Describes a histogram of durations.
    pub const fn histogram(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
        buckets: &'static [f64],
    ) -> Self {
        Self { name, help, kind: FamilyType::Histogram, labels, buckets }
    }

    /// Returns the name as Prometheus shows it.
    pub fn full_name(&self) -> String {
        let suffix = if self.kind == FamilyType::Counter { "_total" } else { "" };
        format!("{}{suffix}", self.name)
    }

    /// Pairs the names of the labels with values.
    pub(super) fn labelled(&self, values: &[&str]) -> LabelSet {
        debug_assert_eq!(self.labels.len(), values.len(), "labels of {}", self.name);
        let values = values.iter().map(|value| (*value).to_owned());
        self.labels.iter().copied().zip(values).collect()
    }
}

pub(super) type LabelSet = Vec<(&'static str, String)>;

/// A family that is read from state at each scrape.
#[derive(Debug, Clone, PartialEq)]
pub struct StateFamily {
    /// Name, meaning and labels.
    pub info: &'static FamilyInfo,
    /// Values of the labels, in the order of `info.labels`, and the sample. No two samples have the same labels.
    pub samples: Vec<(Vec<Cow<'static, str>>, f64)>,
}

impl StateFamily {
    /// Creates a family without samples.
    pub fn new(info: &'static FamilyInfo) -> Self {
        Self { info, samples: Vec::new() }
    }

    /// Creates a family of one sample without labels.
    pub fn single(info: &'static FamilyInfo, value: f64) -> Self {
        Self { info, samples: vec![(Vec::new(), value)] }
    }

    /// Adds a sample.
    pub fn add<const N: usize>(&mut self, values: [&str; N], value: f64) {
        debug_assert_eq!(self.info.labels.len(), N, "labels of {}", self.info.name);
        self.samples.push((values.into_iter().map(|value| Cow::Owned(value.to_owned())).collect(), value));
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.samples.is_empty() {
            return Ok(());
        }
        let FamilyInfo { name, help, kind, labels, .. } = *self.info;
        let is_counter = kind == FamilyType::Counter;
        let kind = if is_counter { MetricType::Counter } else { MetricType::Gauge };
        let mut family = encoder.encode_descriptor(name, &format!("{help}."), None, kind)?;
        for (values, value) in &self.samples {
            let set: Vec<(&str, &str)> =
                labels.iter().copied().zip(values.iter().map(AsRef::as_ref)).collect();
            let mut sample = family.encode_family(&set)?;
            if is_counter {
                sample.encode_counter::<NoLabelSet, f64, f64>(value, None)?;
            } else {
                sample.encode_gauge(value)?;
            }
        }
        Ok(())
    }
}

// Values of samples and labels.

/// Converts a time to Unix time in seconds.
pub fn unix_seconds(at: Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1000.0
}

/// Classes of status codes.
pub const CODE_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Returns the place of a status code's class in [`CODE_CLASSES`]. A number that is no status code belongs to the last
/// one.
pub fn code_class_index(status: u16) -> usize {
    match status {
        100..=599 => usize::from(status / 100) - 1,
        _ => CODE_CLASSES.len() - 1,
    }
}

/// Returns the class of a status code: `2xx`.
pub fn code_class(status: u16) -> &'static str {
    CODE_CLASSES[code_class_index(status)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_class() {
        for (status, class) in
            [(0, "5xx"), (99, "5xx"), (100, "1xx"), (204, "2xx"), (399, "3xx"), (404, "4xx"), (599, "5xx")]
        {
            assert_eq!(code_class(status), class, "{status}");
        }
        assert_eq!([600, u16::MAX].map(code_class), ["5xx"; 2]);
    }
}
