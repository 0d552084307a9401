//! Families of metrics: what describes them, and those that are read from state.

use std::borrow::Cow;
use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// Type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FamilyType {
    /// Grows, and begins at 0 with the process. Its name ends in `_total`, which is appended when it is written.
    Counter,
    /// Any number.
    Gauge,
    /// Durations in seconds, by buckets.
    Histogram,
}

/// Name, meaning and labels of a family of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FamilyInfo {
    /// Name without `_total`: `minik8s_pods`. Ends with the unit, if there is one: `_seconds`, `_bytes`.
    pub name: &'static str,
    /// One sentence without a period.
    pub help: &'static str,
    /// Type.
    pub kind: FamilyType,
    /// Names of its labels.
    pub labels: &'static [&'static str],
}

impl FamilyInfo {
    /// Describes a counter.
    pub const fn counter(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Self {
        Self { name, help, kind: FamilyType::Counter, labels }
    }

    /// Describes a gauge.
    pub const fn gauge(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Self {
        Self { name, help, kind: FamilyType::Gauge, labels }
    }

    /// Describes a histogram of durations.
    pub const fn histogram(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Self {
        Self { name, help, kind: FamilyType::Histogram, labels }
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
        let FamilyInfo { name, help, kind, labels } = *self.info;
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
