//! Tables for autoscalers: the arithmetic of metrics, windows and policies, and the controller on snapshots.

use jiff::SignedDuration;
use schema::kinds::autoscaler::{
    AverageValue, Behavior, HorizontalPodAutoscalerSpec, Metric, MetricTarget, MetricType, PolicyType,
    ResourceMetric, ResourceName, ScalingPolicy, ScalingRules, SelectPolicy, TargetType,
};
use schema::kinds::pod::PodPhase;
use schema::records::{Recommendation, ScaleChange};
use schema::testing::at;

use super::decide;
use super::model::{
    AutoscalerMemory, Basis, Decision, Input, Limit, PerResource, Pod, Sample, Tolerance, Tuning,
};

mod decisions;
mod metrics;
mod rates;
mod snapshots;

fn utilization(name: ResourceName, percent: u32) -> ResourceMetric {
    let target = MetricTarget {
        kind: TargetType::Utilization,
        average_utilization: Some(percent),
        average_value: None,
    };
    ResourceMetric { name, target }
}

fn average(name: ResourceName, value: &str) -> ResourceMetric {
    let value = AverageValue(value.to_owned());
    let target = MetricTarget {
        kind: TargetType::AverageValue,
        average_utilization: None,
        average_value: Some(value),
    };
    ResourceMetric { name, target }
}

/// A long-ready pod that requests one core and one GB and uses `used` thousandths of each.
fn pod(used: u64) -> Pod {
    Pod {
        name: "web".to_owned(),
        phase: PodPhase::Running,
        ready: Some(true),
        started: Some(at(-3600)),
        ready_since: Some(at(-3600)),
        is_deleted: false,
        requests: PerResource { cpu: Some(1000), memory: Some(1_000_000_000) },
        usage: Some(Sample {
            used: PerResource { cpu: Some(used), memory: Some(used * 1_000_000) },
            at: at(0),
            window: SignedDuration::from_secs(15),
        }),
    }
}

fn pods(used: &[u64]) -> Vec<Pod> {
    used.iter().map(|used| pod(*used)).collect()
}

fn missing() -> Pod {
    Pod { usage: None, ..pod(0) }
}

/// A pod that has been running for long without ever being ready.
fn unready(used: u64) -> Pod {
    Pod { ready: Some(false), ready_since: Some(at(-3590)), ..pod(used) }
}

fn spec(metrics: &[ResourceMetric], (min, max): (u32, u32)) -> HorizontalPodAutoscalerSpec {
    let metric =
        |resource: &ResourceMetric| Metric { kind: MetricType::Resource, resource: Some(resource.clone()) };
    HorizontalPodAutoscalerSpec {
        min_replicas: min,
        max_replicas: max,
        metrics: metrics.iter().map(metric).collect(),
        ..HorizontalPodAutoscalerSpec::default()
    }
}

fn policy(kind: PolicyType, value: u32, period_seconds: u32) -> ScalingPolicy {
    ScalingPolicy { kind, value, period_seconds }
}

fn rules(window: u32, select: SelectPolicy, policies: &[ScalingPolicy]) -> ScalingRules {
    ScalingRules {
        stabilization_window_seconds: Some(window),
        select_policy: Some(select),
        policies: policies.to_vec(),
        tolerance: None,
    }
}

/// The defaults of an empty `behavior`, with zero-length windows.
fn any_step() -> Behavior {
    let hundredfold = [policy(PolicyType::Percent, 10_000, 1)];
    let all = [policy(PolicyType::Percent, 100, 1)];
    Behavior {
        scale_up: Some(rules(0, SelectPolicy::Max, &hundredfold)),
        scale_down: Some(rules(0, SelectPolicy::Max, &all)),
    }
}

fn recommendations(all: &[(i64, u32)]) -> Option<Vec<Recommendation>> {
    Some(
        all.iter()
            .map(|(seconds, replicas)| Recommendation { at: at(*seconds), replicas: *replicas })
            .collect(),
    )
}

fn changes(all: &[(i64, u32)]) -> Vec<ScaleChange> {
    all.iter().map(|(seconds, change)| ScaleChange { at: at(*seconds), change: *change }).collect()
}

fn look(
    spec: &HorizontalPodAutoscalerSpec,
    current: u32,
    basis: Basis<'_>,
    memory: &AutoscalerMemory,
    seconds: i64,
) -> Decision {
    decide(&Input { spec, current, basis, memory, now: at(seconds), tuning: &Tuning::default() })
}
