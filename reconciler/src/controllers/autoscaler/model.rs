//! What a decision is made of, and what it is. Plain values: a snapshot becomes them, and so does a recorded load.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use schema::condition::Condition;
use schema::kinds::horizontal_pod_autoscaler::{HorizontalPodAutoscalerSpec, ResourceName};
use schema::kinds::pod::PodPhase;
use schema::records::{Recommendation, ScaleChange};

/// What the whole cluster has in common: the arguments of Kubernetes' controller, with its defaults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuning {
    /// A ratio of use to target this near to 1 changes nothing; its edges are inside.
    pub tolerance: f64,
    /// As long after its start, a pod's CPU counts only once a sample of it is all of a time in which it was ready.
    pub cpu_initialization_period: SignedDuration,
    /// A pod whose readiness last changed this soon after its start was never ready.
    pub initial_readiness_delay: SignedDuration,
    /// How long a higher recommendation holds a lower one up, without `behavior`.
    pub downscale_stabilization: SignedDuration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            tolerance: 0.1,
            cpu_initialization_period: SignedDuration::from_mins(5),
            initial_readiness_delay: SignedDuration::from_secs(30),
            downscale_stabilization: SignedDuration::from_mins(5),
        }
    }
}

/// One value for each resource: thousandths of a core, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PerResource<T> {
    pub cpu: T,
    pub memory: T,
}

impl<T: Copy> PerResource<T> {
    /// That of one resource.
    pub fn of(&self, resource: ResourceName) -> T {
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
    /// Condition `Ready`; none while there is no such condition.
    pub ready: Option<bool>,
    pub started: Option<Timestamp>,
    /// When `Ready` last changed.
    pub ready_since: Option<Timestamp>,
    /// It is being taken away.
    pub is_deleted: bool,
    /// What all its containers request together; none when one of them requests nothing.
    pub requests: PerResource<Option<u64>>,
    /// What it uses; none while nothing was measured.
    pub usage: Option<Sample>,
}

/// What a pod uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub used: PerResource<Option<u64>>,
    pub at: Timestamp,
    pub window: SignedDuration,
}

/// What asks for a number of pods.
#[derive(Debug, Clone, Copy)]
pub enum Basis<'a> {
    /// What the pods use, by the metrics of the spec.
    Pods(&'a [Pod]),
    /// This number: windows and policies alone are of interest.
    Given(u32),
}

/// What the last decisions left behind.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AutoscalerMemory {
    /// What metrics asked for, the oldest first; none before the first look.
    pub recommendations: Option<Vec<Recommendation>>,
    /// Pods that were added, the oldest first.
    pub scale_ups: Vec<ScaleChange>,
    /// Pods that were removed, the oldest first.
    pub scale_downs: Vec<ScaleChange>,
    /// `AbleToScale`, `ScalingActive`, `ScalingLimited`. A decision that does not come to one leaves it as it was.
    pub conditions: Vec<Condition>,
}

/// All that a decision is made of.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// What the autoscaler should do, defaults filled in.
    pub spec: &'a HorizontalPodAutoscalerSpec,
    /// Pods that the target should have by now.
    pub current: u32,
    /// What asks for another number.
    pub basis: Basis<'a>,
    /// What was before.
    pub memory: &'a AutoscalerMemory,
    pub now: Timestamp,
    /// What the whole cluster has in common.
    pub tuning: &'a Tuning,
}

/// What was decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Pods that the target should have.
    pub desired: u32,
    /// What the metrics ask for, before windows and policies; none where they were not asked, or could not say.
    pub recommendation: Option<u32>,
    /// What keeps `desired` from the recommendation.
    pub limit: Limit,
    /// Each metric of the spec.
    pub metrics: Vec<MetricResult>,
    /// What to go on with.
    pub memory: AutoscalerMemory,
    /// Why the number changes, or does not.
    pub reason: String,
}

/// What one metric says.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricResult {
    pub name: ResourceName,
    /// What it asks for.
    pub outcome: Result<Proposal, String>,
}

/// What one metric asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proposal {
    /// Pods.
    pub desired: u32,
    /// Whole per cent of the requests, for a target of that type.
    pub utilization: Option<u32>,
    /// What the pods that count use on average: thousandths of a core, or bytes.
    pub average: u64,
}

/// What keeps the number of pods from what the metrics ask for: the reasons of Kubernetes' conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Nothing.
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
    /// A sentence for a person.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::DesiredWithinRange => "the wanted number is within the range",
            Self::TooManyReplicas => "the wanted number is above maxReplicas",
            Self::TooFewReplicas => "the wanted number is below minReplicas",
            Self::ScaleUpLimit => "policies let no more pods be added for now",
            Self::ScaleDownLimit => "policies let no more pods be removed for now",
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
