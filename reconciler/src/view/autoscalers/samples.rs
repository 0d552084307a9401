//! Samples of autoscalers over the last hour, and the lines that a chart draws of them.
//!
//! Each reconciler keeps its own in memory, whether it leads or not: after a restart they begin anew.

use std::collections::{BTreeMap, VecDeque};

use jiff::{SignedDuration, Timestamp};
use schema::kinds::Resource;
use schema::kinds::autoscaler::{
    AverageValue, HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus, ResourceMetric, ResourceName,
};
use schema::meta::NamespacedName;
use schema::object::Object;
use schema::quantity::{Cpu, Memory};
use schema::snapshot::Snapshot;

use super::{current_usage, resource_name, status};
use crate::view::pods::index::pod_counts;

/// Time that the charts show.
const SPAN: SignedDuration = SignedDuration::from_secs(3600);
/// Maximum number of samples of an autoscaler: one each 15 s for [`SPAN`].
const SAMPLES_MAX: usize = 240;
/// Maximum number of autoscalers with samples: with two metrics each, they take 35 MB.
const AUTOSCALERS_MAX: usize = 1000;
/// Longest time between two samples that a line connects: three may be missing.
const GAP: SignedDuration = SignedDuration::from_secs(60);

/// Samples of all autoscalers.
#[derive(Debug, Default)]
pub struct AutoscalerSamples {
    rings: BTreeMap<NamespacedName, VecDeque<Sample>>,
    /// Revision of the snapshot that was sampled last.
    revision: i64,
}

/// State of an autoscaler at one time.
#[derive(Debug)]
struct Sample {
    at: Timestamp,
    /// Number of the target's pods.
    pods: u32,
    /// Number of pods that the autoscaler decided on; `None` before its first evaluation.
    desired: Option<u32>,
    metrics: Vec<MetricSample>,
}

/// Usage by one metric, and its target.
#[derive(Debug)]
struct MetricSample {
    resource: ResourceName,
    unit: Unit,
    /// `None` if the usage could not be read.
    value: Option<u64>,
    target: u64,
}

/// Unit of a chart's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Pods,
    /// Percentage of the requests.
    Percent,
    /// Thousandths of a core.
    Cpu,
    /// Bytes.
    Memory,
}

impl Unit {
    /// Formats a value with its unit: `3`, `63%`, `250m`, `128Mi`.
    pub fn format(self, value: u64) -> String {
        match self {
            Self::Pods => value.to_string(),
            Self::Percent => format!("{value}%"),
            Self::Cpu => Cpu { millis: value }.to_string(),
            Self::Memory => Memory { bytes: value }.readable(),
        }
    }
}

/// The last hour of an autoscaler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutoscalerHistory {
    /// Beginning of the time shown.
    pub from: Timestamp,
    /// End of the time shown.
    pub to: Timestamp,
    /// Time of the first sample shown.
    pub first: Timestamp,
    /// Times between two samples without any, which no line crosses.
    pub gaps: Vec<(Timestamp, Timestamp)>,
    pub charts: Vec<SampleChart>,
}

/// Values in one unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleChart {
    pub name: String,
    pub unit: Unit,
    /// Measured value.
    pub actual: SampleLine,
    /// Value that the autoscaler aims at.
    pub wanted: SampleLine,
}

/// Values of one quantity over time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleLine {
    pub name: String,
    /// Runs of values without a gap, each of at least one, by time.
    pub pieces: Vec<Vec<SamplePoint>>,
    /// Present value; `None` if it is not known.
    pub newest: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplePoint {
    pub at: Timestamp,
    pub value: u64,
}

impl SampleLine {
    pub fn lowest(&self) -> Option<u64> {
        self.pieces.iter().flatten().map(|point| point.value).min()
    }

    pub fn highest(&self) -> Option<u64> {
        self.pieces.iter().flatten().map(|point| point.value).max()
    }
}

impl AutoscalerSamples {
    /// Adds a sample of each autoscaler, and drops those of autoscalers that are gone.
    pub fn record(&mut self, snapshot: &Snapshot, now: Timestamp) {
        // Nodes write their usage every 15 s: while the snapshot stays the same, etcd does not answer.
        if !snapshot.synced || snapshot.revision == self.revision {
            return;
        }
        self.revision = snapshot.revision;
        let scalers: BTreeMap<_, _> = snapshot.objects.values().filter_map(|it| scaler(&it.value)).collect();
        self.rings.retain(|id, _| scalers.contains_key(id));
        if scalers.is_empty() {
            return;
        }
        let pods = pod_counts(snapshot);
        for (id, (object, spec)) in scalers {
            if self.rings.len() >= AUTOSCALERS_MAX && !self.rings.contains_key(&id) {
                continue;
            }
            let target = spec.target(&object.metadata);
            let count = pods.get(&(target.kind, target.namespace.as_str(), target.name.as_str()));
            let status = status(snapshot, &id);
            let metrics = spec.metrics.iter().filter_map(|metric| metric.resource.as_ref());
            let mut measured: Vec<MetricSample> = Vec::new();
            // A spec may name a metric any number of times.
            for found in metrics.filter_map(|metric| MetricSample::of(metric, status)) {
                if !measured.iter().any(|one| (one.resource, one.unit) == (found.resource, found.unit)) {
                    measured.push(found);
                }
            }
            let sample = Sample {
                at: now,
                pods: count.copied().unwrap_or_default(),
                desired: status.map(|status| status.desired_replicas),
                metrics: measured,
            };
            add(self.rings.entry(id).or_default(), sample);
        }
    }

    /// Returns the last hour of an autoscaler; `None` without samples.
    pub fn history(&self, id: &NamespacedName, now: Timestamp) -> Option<AutoscalerHistory> {
        let ring = self.rings.get(id)?;
        let newest = ring.back()?;
        // The charts end at the newest sample, so that they change only with it, unless it is overdue.
        let is_current = now.duration_since(newest.at) <= GAP;
        let to = if is_current { newest.at } else { now };
        let from = to.checked_sub(SPAN).unwrap_or(Timestamp::MIN);
        let samples: Vec<&Sample> = ring.iter().filter(|sample| sample.at >= from).collect();
        let first = samples.first()?.at;
        let ends = samples.iter().map(|sample| sample.at).chain((!is_current).then_some(to));
        let ends: Vec<Timestamp> = ends.collect();
        let pairs = ends.windows(2).map(|pair| (pair[0], pair[1]));
        let gaps = pairs.filter(|(before, after)| after.duration_since(*before) > GAP).collect();
        let line = |name: String, value: &dyn Fn(&Sample) -> Option<u64>| SampleLine {
            name,
            pieces: pieces(&samples, value),
            newest: value(newest).filter(|_| is_current),
        };
        let mut charts = vec![SampleChart {
            name: "Pods".to_owned(),
            unit: Unit::Pods,
            actual: line("current pods".to_owned(), &|sample| Some(sample.pods.into())),
            wanted: line("wanted pods".to_owned(), &|sample| sample.desired.map(u64::from)),
        }];
        for metric in &newest.metrics {
            let name = metric.name();
            if charts.iter().any(|chart| chart.name == name) {
                continue;
            }
            charts.push(SampleChart {
                unit: metric.unit,
                actual: line(name.clone(), &|sample| metric.of_sample(sample)?.value),
                wanted: line(format!("target of {name}"), &|sample| {
                    metric.of_sample(sample).map(|found| found.target)
                }),
                name,
            });
        }
        Some(AutoscalerHistory { from, to, first, gaps, charts })
    }
}

/// Returns the name, object and spec of an autoscaler.
fn scaler(object: &Object) -> Option<(NamespacedName, (&Object, &HorizontalPodAutoscalerSpec))> {
    match &object.resource {
        Resource::HorizontalPodAutoscaler(spec) => {
            let id = NamespacedName::new(&object.metadata.namespace, &object.metadata.name);
            Some((id, (object, spec.as_ref())))
        }
        _ => None,
    }
}

/// Adds the newest sample to a ring.
fn add(ring: &mut VecDeque<Sample>, sample: Sample) {
    // A clock that was set back draws no line backwards.
    while ring.back().is_some_and(|last| last.at >= sample.at) {
        ring.pop_back();
    }
    let is_old = |first: &Sample| sample.at.duration_since(first.at) > SPAN;
    while ring.len() >= SAMPLES_MAX || ring.front().is_some_and(is_old) {
        ring.pop_front();
    }
    ring.push_back(sample);
}

/// Returns the known values, in a new piece after each gap and after each sample without a value.
fn pieces(samples: &[&Sample], value: &dyn Fn(&Sample) -> Option<u64>) -> Vec<Vec<SamplePoint>> {
    let mut pieces: Vec<Vec<SamplePoint>> = Vec::new();
    let mut last: Option<Timestamp> = None;
    for sample in samples.iter().copied() {
        let Some(value) = value(sample) else {
            last = None;
            continue;
        };
        let point = SamplePoint { at: sample.at, value };
        let is_connected = last.is_some_and(|last| sample.at.duration_since(last) <= GAP);
        match pieces.last_mut().filter(|_| is_connected) {
            Some(piece) => piece.push(point),
            None => pieces.push(vec![point]),
        }
        last = Some(sample.at);
    }
    pieces
}

impl MetricSample {
    /// Returns the usage and the target of a metric; `None` if its target cannot be read.
    fn of(metric: &ResourceMetric, status: Option<&HorizontalPodAutoscalerStatus>) -> Option<Self> {
        let resource = metric.name;
        let current = current_usage(metric, status);
        let (unit, value, target) = match (metric.target.average_utilization, &metric.target.average_value) {
            (Some(target), _) => {
                let value = current.and_then(|current| current.average_utilization);
                (Unit::Percent, value.map(u64::from), u64::from(target))
            }
            (None, Some(target)) => {
                let unit = match resource {
                    ResourceName::Cpu => Unit::Cpu,
                    ResourceName::Memory => Unit::Memory,
                };
                let amount = |text: &String| AverageValue(text.clone()).amount(resource).ok();
                let value = current.and_then(|current| amount(&current.average_value));
                (unit, value, target.amount(resource).ok()?)
            }
            (None, None) => return None,
        };
        Some(Self { resource, unit, value, target })
    }

    /// Returns the same metric in another sample.
    fn of_sample<'a>(&self, sample: &'a Sample) -> Option<&'a Self> {
        sample.metrics.iter().find(|metric| metric.resource == self.resource && metric.unit == self.unit)
    }

    fn name(&self) -> String {
        let name = resource_name(self.resource);
        if self.unit == Unit::Percent { format!("{name} utilization") } else { format!("{name} per pod") }
    }
}
