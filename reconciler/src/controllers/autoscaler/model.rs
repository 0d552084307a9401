//! Inputs and outputs of an autoscaler's decision: plain values, built from a snapshot or from a recorded load.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use schema::condition::Condition;
use schema::kinds::autoscaler::{Behavior, HorizontalPodAutoscalerSpec, ResourceName, ScalingRules};
use schema::kinds::pod::PodPhase;
use schema::records::{Recommendation, ScaleChange};

/// Cluster-wide parameters: the arguments of Kubernetes' controller, with its defaults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuning {
    /// Tolerance of an autoscaler whose rules have none.
    pub tolerance: Tolerance,
    /// Time after a pod's start during which its CPU counts only if the pod is ready and was ready for the sample's
    /// whole window.
    pub cpu_initialization_period: SignedDuration,
    /// A pod that is not ready and whose readiness last changed this soon after its start was never ready.
    pub initial_readiness_delay: SignedDuration,
    /// Time for which a higher recommendation overrides a lower one, without `behavior`.
    pub downscale_stabilization: SignedDuration,
}

/// Largest distance from 1, inclusive, at which a ratio of use to target changes nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Distance above 1.
    pub up: f64,
    /// Distance below 1.
    pub down: f64,
}

impl Tolerance {
    /// Returns the same tolerance for both directions.
    pub fn both(tolerance: f64) -> Self {
        Self { up: tolerance, down: tolerance }
    }

    /// Replaces it, for each direction, by the one of the autoscaler's rules.
    #[must_use]
    pub fn with_rules(self, behavior: Option<&Behavior>) -> Self {
        let of = |rules: fn(&Behavior) -> &Option<ScalingRules>| {
            let tolerance = behavior.and_then(|behavior| rules(behavior).as_ref()?.tolerance);
            tolerance.map(|share| share.thousandths as f64 / 1000.0)
        };
        Self {
            up: of(|behavior| &behavior.scale_up).unwrap_or(self.up),
            down: of(|behavior| &behavior.scale_down).unwrap_or(self.down),
        }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            tolerance: Tolerance::both(0.1),
            cpu_initialization_period: SignedDuration::from_mins(5),
            initial_readiness_delay: SignedDuration::from_secs(30),
            downscale_stabilization: SignedDuration::from_mins(5),
        }
    }
}

/// A value for each resource: CPU in thousandths of a core, memory in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PerResource<T> {
    pub cpu: T,
    pub memory: T,
}

impl<T: Copy> PerResource<T> {
    /// Returns the value of one resource.
    pub fn get(&self, resource: ResourceName) -> T {
        match resource {
            ResourceName::Cpu => self.cpu,
            ResourceName::Memory => self.memory,
        }
    }
}

/// A pod of the target.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    pub name: String,
    pub phase: PodPhase,
    /// Status of the `Ready` condition; `None` if the pod has no such condition.
    pub ready: Option<bool>,
    pub started: Option<Timestamp>,
    /// Time of the last change of `Ready`.
    pub ready_since: Option<Timestamp>,
    /// Set while the pod is being deleted.
    pub is_deleted: bool,
    /// Sum of the requests of all containers; `None` if one of them requests nothing.
    pub requests: PerResource<Option<u64>>,
    /// Measured usage; `None` if there is no current sample.
    pub usage: Option<Sample>,
}

/// Usage of a pod over the window that ends at `at`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub used: PerResource<Option<u64>>,
    pub at: Timestamp,
    pub window: SignedDuration,
}

/// Basis of a recommendation.
#[derive(Debug, Clone, Copy)]
pub enum Basis<'a> {
    /// Usage of the pods, evaluated by the metrics of the spec.
    Pods(&'a [Pod]),
    /// A given recommendation: only bounds, windows and policies apply.
    Fixed(u32),
}

/// State carried over from earlier decisions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AutoscalerMemory {
    /// Recommendations of the metrics, oldest first; `None` before the first evaluation.
    pub recommendations: Option<Vec<Recommendation>>,
    /// Additions of pods, oldest first.
    pub scale_ups: Vec<ScaleChange>,
    /// Removals of pods, oldest first.
    pub scale_downs: Vec<ScaleChange>,
    /// `AbleToScale`, `ScalingActive`, `ScalingLimited`. A decision that does not reach a condition leaves it
    /// unchanged.
    pub conditions: Vec<Condition>,
}

/// Inputs of a decision.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The autoscaler's spec, with defaults filled in.
    pub spec: &'a HorizontalPodAutoscalerSpec,
    /// Number of pods that the target should have so far.
    pub current: u32,
    /// Basis of the recommendation.
    pub basis: Basis<'a>,
    /// State from earlier decisions.
    pub memory: &'a AutoscalerMemory,
    pub now: Timestamp,
    /// Cluster-wide parameters.
    pub tuning: &'a Tuning,
}

/// Outcome of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Number of pods that the target should have.
    pub desired: u32,
    /// Number that the metrics ask for, before windows and policies; `None` if they were not evaluated or gave no
    /// result.
    pub recommendation: Option<u32>,
    /// Limit that keeps `desired` from the recommendation.
    pub limit: Limit,
    /// Result of each metric of the spec.
    pub metrics: Vec<MetricResult>,
    /// State for the next decision.
    pub memory: AutoscalerMemory,
    /// Explains why the number changes or stays.
    pub reason: String,
}

/// Result of one metric.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricResult {
    pub name: ResourceName,
    /// Proposal of the metric, or the reason for having none.
    pub outcome: Result<Proposal, String>,
}

/// Number of pods that one metric asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proposal {
    pub desired: u32,
    /// Whole percent of the requests; `None` unless the target is of that type.
    pub utilization: Option<u32>,
    /// Average usage of the pods that count: thousandths of a core, or bytes.
    pub average: u64,
}

/// Limits that keep the number of pods from what the metrics ask for: the reasons of Kubernetes' conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// No limit applies.
    DesiredWithinRange,
    /// `maxReplicas`.
    TooManyReplicas,
    /// `minReplicas`.
    TooFewReplicas,
    /// A policy for adding pods.
    ScaleUpLimit,
    /// A policy for removing pods.
    ScaleDownLimit,
    /// A lower recommendation within the window.
    ScaleUpStabilized,
    /// A higher recommendation within the window.
    ScaleDownStabilized,
}

impl Limit {
    /// Returns an explanation for users.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::DesiredWithinRange => "the desired number is within the range",
            Self::TooManyReplicas => "the desired number is above maxReplicas",
            Self::TooFewReplicas => "the desired number is below minReplicas",
            Self::ScaleUpLimit => "policies do not allow adding more pods for now",
            Self::ScaleDownLimit => "policies do not allow removing more pods for now",
            Self::ScaleUpStabilized => "a lower recommendation is still within the window for adding pods",
            Self::ScaleDownStabilized => {
                "a higher recommendation is still within the window for removing pods"
            }
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
