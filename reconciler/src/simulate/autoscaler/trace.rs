//! Format and validation of a recorded load.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schema::kinds::autoscaler::ResourceName;
use schema::kinds::pod::PodPhase;
use schema::quantity::{Cpu, Memory as Bytes};
use schema::records::{Recommendation, ScaleChange};
use serde::Deserialize;

use crate::controllers::autoscaler::{AutoscalerMemory, PerResource, Pod, Sample, Tolerance, Tuning};
use crate::simulate::trace;
use crate::simulate::trace::{SECONDS_MAX, TraceError, present, seconds, time};

/// Default age of a pod: longer than any start takes.
const LONG_AGO_SECONDS: f64 = 86_400.0;

/// Default window over which a sample is averaged: that of nodes.
const WINDOW_SECONDS: f64 = 15.0;

/// A recorded or hypothetical load.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Trace {
    controller: Option<Controller>,
    history: Option<History>,
    /// Initial number of pods, for steps without one.
    pub(super) replicas: Option<u32>,
    /// Seconds from the start of a new pod until it is ready, for steps of load.
    pub(super) ready_after_seconds: Option<f64>,
    /// Requests of each pod, for steps of load.
    pub(super) requests: Option<Amounts>,
    /// Steps in order of time.
    pub(super) steps: Vec<Step>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Controller {
    tolerance: Option<f64>,
    cpu_initialization_period_seconds: Option<f64>,
    initial_readiness_delay_seconds: Option<f64>,
    downscale_stabilization_seconds: Option<f64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct History {
    /// `null` if there was no evaluation yet.
    recommendations: Option<Vec<PastRecommendation>>,
    scale_ups: Option<Vec<PastChange>>,
    scale_downs: Option<Vec<PastChange>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct PastRecommendation {
    at: f64,
    replicas: u32,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct PastChange {
    at: f64,
    change: u32,
}

/// Amounts of CPU and memory.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Amounts {
    cpu: Option<Cpu>,
    memory: Option<Bytes>,
}

impl Amounts {
    pub(super) fn per_resource(self) -> PerResource<Option<u64>> {
        PerResource { cpu: self.cpu.map(|cpu| cpu.millis), memory: self.memory.map(|memory| memory.bytes) }
    }
}

/// A step: of pods, of a recommendation, or of load.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Step {
    pub(super) at: f64,
    pub(super) current: Option<u32>,
    pods: Option<Vec<TracedPod>>,
    /// Samples of pods that do not belong to the target; ignored.
    #[serde(default, rename = "strayUsage")]
    _stray_usage: Option<BTreeMap<String, serde_json::Value>>,
    recommendation: Option<u32>,
    load: Option<Amounts>,
}

/// Form of a step.
pub(super) enum StepForm {
    Pods(Vec<Pod>),
    Recommendation(u32),
    Load(PerResource<Option<u64>>),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TracedPod {
    name: String,
    phase: Option<PodPhase>,
    /// `null` if the pod has no such condition.
    #[serde(default, deserialize_with = "present")]
    ready: Option<Option<bool>>,
    #[serde(default, deserialize_with = "present")]
    started_seconds_ago: Option<Option<f64>>,
    #[serde(default, deserialize_with = "present")]
    ready_since_seconds_ago: Option<Option<f64>>,
    deletion: Option<bool>,
    requests: Option<Amounts>,
    usage: Option<Amounts>,
    usage_age_seconds: Option<f64>,
    usage_window_seconds: Option<f64>,
}

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    /// Fails if the text is not JSON or has unknown fields.
    pub fn read(text: &str) -> Result<Self, TraceError> {
        let trace: Self = trace::read(text, "simulate hpa")?;
        if trace.steps.is_empty() {
            return Err(TraceError::at("steps", "it is empty", "give at least one step"));
        }
        trace::check_order(trace.steps.iter().map(|step| step.at))?;
        Ok(trace)
    }

    pub(super) fn tuning(&self) -> Result<Tuning, TraceError> {
        let Controller {
            tolerance,
            cpu_initialization_period_seconds,
            initial_readiness_delay_seconds,
            downscale_stabilization_seconds,
        } = self.controller.clone().unwrap_or_default();
        let usual = Tuning::default();
        if let Some(tolerance) = tolerance.filter(|tolerance| !(0.0..1.0).contains(tolerance)) {
            let why = format!("{tolerance} is out of range");
            return Err(TraceError::at(
                "controller.tolerance",
                why,
                "write a share from 0 to 1, such as 0.1",
            ));
        }
        let or = |written: Option<f64>, field: &str, usual| match written {
            Some(written) => seconds(written, &format!("controller.{field}"), 0.0),
            None => Ok(usual),
        };
        Ok(Tuning {
            tolerance: tolerance.map_or(usual.tolerance, Tolerance::both),
            cpu_initialization_period: or(
                cpu_initialization_period_seconds,
                "cpuInitializationPeriodSeconds",
                usual.cpu_initialization_period,
            )?,
            initial_readiness_delay: or(
                initial_readiness_delay_seconds,
                "initialReadinessDelaySeconds",
                usual.initial_readiness_delay,
            )?,
            downscale_stabilization: or(
                downscale_stabilization_seconds,
                "downscaleStabilizationSeconds",
                usual.downscale_stabilization,
            )?,
        })
    }

    pub(super) fn memory(&self) -> Result<AutoscalerMemory, TraceError> {
        let History { recommendations, scale_ups, scale_downs } = self.history.clone().unwrap_or_default();
        let changes = |all: Option<Vec<PastChange>>, field: &str| {
            let all = all.unwrap_or_default().into_iter().enumerate().map(|(index, past)| {
                let at = past_time(past.at, &format!("history.{field}[{index}].at"))?;
                Ok(ScaleChange { at, change: past.change })
            });
            all.collect::<Result<Vec<_>, TraceError>>()
        };
        let recommendations = recommendations.map(|all| {
            let all = all.into_iter().enumerate().map(|(index, past)| {
                let at = past_time(past.at, &format!("history.recommendations[{index}].at"))?;
                Ok(Recommendation { at, replicas: past.replicas })
            });
            all.collect::<Result<Vec<_>, TraceError>>()
        });
        Ok(AutoscalerMemory {
            recommendations: recommendations.transpose()?,
            scale_ups: changes(scale_ups, "scaleUps")?,
            scale_downs: changes(scale_downs, "scaleDowns")?,
            conditions: Vec::new(),
        })
    }
}

impl Step {
    /// Determines the form of the step, at its place in the trace.
    pub(super) fn form(&self, index: usize) -> Result<StepForm, TraceError> {
        let place = format!("steps[{index}]");
        match (&self.pods, self.recommendation, self.load) {
            (Some(pods), None, None) => {
                let now = time(self.at);
                let pods = pods.iter().enumerate();
                let pods = pods.map(|(number, pod)| pod.at(now, &format!("{place}.pods[{number}]")));
                Ok(StepForm::Pods(pods.collect::<Result<_, _>>()?))
            }
            (None, Some(recommendation), None) => Ok(StepForm::Recommendation(recommendation)),
            (None, None, Some(load)) if self.current.is_none() => Ok(StepForm::Load(load.per_resource())),
            (None, None, Some(_)) => Err(TraceError::at(
                format!("{place}.current"),
                "a step with a load can't set the number of pods: it follows from the previous step",
                "give `replicas` next to `steps`",
            )),
            _ => Err(TraceError::at(
                place,
                "a step needs exactly one of pods, recommendation and load",
                "give each step one of them",
            )),
        }
    }
}

impl TracedPod {
    fn at(&self, now: Timestamp, place: &str) -> Result<Pod, TraceError> {
        let ago = |written: Option<f64>, field: &str| match written {
            Some(written) => {
                let ago = seconds(written, &format!("{place}.{field}"), -SECONDS_MAX)?;
                Ok(now.checked_sub(ago).ok())
            }
            None => Ok(None),
        };
        let started = ago(self.started_seconds_ago.unwrap_or(Some(LONG_AGO_SECONDS)), "startedSecondsAgo")?;
        let ready_since = match self.ready_since_seconds_ago {
            Some(written) => ago(written, "readySinceSecondsAgo")?,
            // Ready since it started.
            None => started,
        };
        let age = ago(Some(self.usage_age_seconds.unwrap_or_default()), "usageAgeSeconds")?;
        let window = self.usage_window_seconds.unwrap_or(WINDOW_SECONDS);
        let window = seconds(window, &format!("{place}.usageWindowSeconds"), 0.0)?;
        let sample = |usage: Amounts| Sample { used: usage.per_resource(), at: age.unwrap_or(now), window };
        Ok(Pod {
            name: self.name.clone(),
            phase: self.phase.unwrap_or(PodPhase::Running),
            ready: self.ready.unwrap_or(Some(true)),
            started,
            ready_since,
            is_deleted: self.deletion.unwrap_or_default(),
            requests: self.requests.unwrap_or_default().per_resource(),
            usage: self.usage.map(sample),
        })
    }
}

/// Usage of a resource by all pods.
pub(super) fn total_usage(pods: &[Pod], resource: ResourceName) -> u64 {
    pods.iter().filter_map(|pod| pod.usage?.used.get(resource)).sum()
}

fn past_time(at: f64, place: &str) -> Result<Timestamp, TraceError> {
    seconds(at, place, -SECONDS_MAX)?;
    if at > 0.0 {
        let why = format!("{at} is not before the first step");
        return Err(TraceError::at(place, why, "history is before 0, so its times are negative"));
    }
    Ok(time(at))
}
