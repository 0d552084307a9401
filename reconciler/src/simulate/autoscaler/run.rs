//! Runs a trace: a decision per step, or every 15 s under a load.

use jiff::{SignedDuration, Timestamp};
use schema::condition::ConditionStatus;
use schema::kinds::autoscaler::{HorizontalPodAutoscalerSpec, ResourceName};
use schema::kinds::pod::PodPhase;
use schema::quantity::{Cpu, Memory as Bytes};

use super::trace::{StepForm, Trace, total_usage};
use super::{Evaluation, Metric, Report};
use crate::controllers::autoscaler::{
    AutoscalerMemory, Basis, Decision, EVALUATION_SECONDS, Input, MetricResult, PerResource, Pod, Sample,
    Tuning, decide, resource_name,
};
use crate::simulate::trace::{TraceError, number, time};

/// Maximum number of evaluations of a load: a month of them.
const EVALUATIONS_MAX: i64 = 200_000;

/// Maximum number of pods in a trace, as in a manifest.
const REPLICAS_MAX: u32 = 10_000;

/// Runs `trace` for the autoscaler `spec`, which has its defaults filled in.
///
/// # Errors
/// Fails if the trace is invalid.
pub fn run(spec: &HorizontalPodAutoscalerSpec, trace: &Trace) -> Result<Report, TraceError> {
    let forms: Vec<StepForm> =
        trace.steps.iter().enumerate().map(|(index, step)| step.form(index)).collect::<Result<_, _>>()?;
    let mut looks =
        Evaluations { spec, tuning: trace.tuning()?, memory: trace.memory()?, entries: Vec::new() };
    let loads = forms.iter().filter(|form| matches!(form, StepForm::Load(_))).count();
    match loads {
        0 => looks.evaluate_steps(trace, &forms)?,
        all if all == forms.len() => looks.evaluate_load(trace, &forms)?,
        _ => {
            let why = "some steps have a load and some do not";
            return Err(TraceError::at("steps", why, "give load to all steps or to none"));
        }
    }
    Ok(Report { steps: looks.entries })
}

/// Decisions so far, and the resulting memory.
struct Evaluations<'a> {
    spec: &'a HorizontalPodAutoscalerSpec,
    tuning: Tuning,
    memory: AutoscalerMemory,
    entries: Vec<Evaluation>,
}

impl Evaluations<'_> {
    /// Evaluates steps that give pods or a recommendation.
    fn evaluate_steps(&mut self, trace: &Trace, forms: &[StepForm]) -> Result<(), TraceError> {
        let mut before = trace.replicas;
        for (index, (step, form)) in trace.steps.iter().zip(forms).enumerate() {
            let Some(current) = step.current.or(before) else {
                let place = format!("steps[{index}].current");
                let help = "give the number of pods, here or as `replicas` next to `steps`";
                return Err(TraceError::at(place, "it is missing", help));
            };
            let basis = match form {
                StepForm::Pods(pods) => Basis::Pods(pods),
                StepForm::Recommendation(replicas) => Basis::Fixed(*replicas),
                StepForm::Load(_) => continue,
            };
            before = Some(self.evaluate(step.at, current, basis));
        }
        Ok(())
    }

    /// Evaluates a load on the pods that the decisions result in.
    fn evaluate_load(&mut self, trace: &Trace, forms: &[StepForm]) -> Result<(), TraceError> {
        let (Some(first), Some(last)) = (trace.steps.first(), trace.steps.last()) else { return Ok(()) };
        let looks = ((last.at - first.at) / EVALUATION_SECONDS as f64).floor() as i64;
        if looks > EVALUATIONS_MAX {
            let place = format!("steps[{}].at", forms.len() - 1);
            let why = format!("that would be {looks} evaluations, one every {EVALUATION_SECONDS} s");
            return Err(TraceError::at(place, why, format!("end within {EVALUATIONS_MAX} of them")));
        }
        let replicas = trace.replicas.unwrap_or(self.spec.min_replicas);
        if replicas > REPLICAS_MAX {
            return Err(TraceError::at("replicas", "too many", format!("{REPLICAS_MAX} at most")));
        }
        let ready_after = trace.ready_after_seconds.unwrap_or_default();
        if !(0.0..=86_400.0).contains(&ready_after) {
            let why = format!("{ready_after} s is out of range");
            return Err(TraceError::at("readyAfterSeconds", why, "write seconds from 0 to 86400"));
        }
        let ready_after = SignedDuration::from_millis((ready_after * 1000.0).round() as i64);
        let requests = trace.requests.unwrap_or_default().per_resource();
        let window = SignedDuration::from_secs(EVALUATION_SECONDS);
        let mut fleet = Fleet::new(replicas, time(first.at), ready_after, requests, window);
        let mut load = PerResource::default();
        let mut coming = trace.steps.iter().zip(forms).peekable();
        for number in 0..=looks {
            let at = first.at + (number * EVALUATION_SECONDS) as f64;
            while let Some((_, form)) = coming.next_if(|(step, _)| step.at <= at) {
                if let StepForm::Load(now) = form {
                    load = *now;
                }
            }
            let now = time(at);
            let pods = fleet.pods(load, now);
            let desired = self.evaluate(at, fleet.count(), Basis::Pods(&pods));
            fleet.scale(desired, now);
        }
        Ok(())
    }

    /// Decides, and returns the new number of pods.
    fn evaluate(&mut self, at: f64, current: u32, basis: Basis<'_>) -> u32 {
        let now: Timestamp = time(at);
        let decision = decide(&Input {
            spec: self.spec,
            current,
            basis,
            memory: &self.memory,
            now,
            tuning: &self.tuning,
        });
        let first = self.spec.metrics.iter().find_map(|metric| metric.resource.as_ref());
        let load = match (basis, first) {
            (Basis::Pods(pods), Some(metric)) => Some(total_usage(pods, metric.name)),
            _ => None,
        };
        let Decision { desired, recommendation, limit, metrics, memory, reason } = decision;
        let conditions = memory.conditions.iter().map(|condition| {
            let status = match condition.status {
                ConditionStatus::True => "True",
                ConditionStatus::False => "False",
                ConditionStatus::Unknown => "Unknown",
            };
            (condition.kind.clone(), format!("{status}/{}", condition.reason))
        });
        self.entries.push(Evaluation {
            at: number(at),
            current,
            recommendation,
            desired,
            limit: limit.to_string(),
            metrics: metrics.iter().map(metric).collect(),
            conditions: conditions.collect(),
            reason,
            load,
        });
        self.memory = memory;
        desired
    }
}

fn metric(result: &MetricResult) -> Metric {
    let proposal = result.outcome.as_ref().ok();
    let quantity = |amount: u64| match result.name {
        ResourceName::Cpu => Cpu { millis: amount }.to_string(),
        ResourceName::Memory => Bytes { bytes: amount }.to_string(),
    };
    Metric {
        name: resource_name(result.name),
        utilization: proposal.and_then(|proposal| proposal.utilization),
        average_value: proposal.map(|proposal| quantity(proposal.average)),
        desired: proposal.map(|proposal| proposal.desired),
        error: result.outcome.as_ref().err().cloned(),
    }
}

// Closed loop: a load shared by the pods that are ready.

/// Age of the initial pods: longer than any start takes.
const LONG_AGO: SignedDuration = SignedDuration::from_hours(24);

/// Pods, the oldest first.
pub(super) struct Fleet {
    started: Vec<Timestamp>,
    ready_after: SignedDuration,
    requests: PerResource<Option<u64>>,
    /// Window over which a sample is averaged.
    window: SignedDuration,
}

impl Fleet {
    pub(super) fn new(
        replicas: u32,
        begin: Timestamp,
        ready_after: SignedDuration,
        requests: PerResource<Option<u64>>,
        window: SignedDuration,
    ) -> Self {
        let long_ago = begin.checked_sub(LONG_AGO).unwrap_or(begin);
        let started = (0..replicas).map(|_| long_ago).collect();
        Self { started, ready_after, requests, window }
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.started.len()).unwrap_or(u32::MAX)
    }

    /// Sets the number of pods; removes the newest first.
    pub(super) fn scale(&mut self, replicas: u32, now: Timestamp) {
        self.started.resize(replicas as usize, now);
    }

    /// The pods under a load.
    pub(super) fn pods(&self, load: PerResource<Option<u64>>, now: Timestamp) -> Vec<Pod> {
        let ready_at = |started: Timestamp| started.checked_add(self.ready_after).unwrap_or(Timestamp::MAX);
        let ready = self.started.iter().filter(|started| ready_at(**started) <= now).count() as u64;
        let share = |all: Option<u64>| all.map(|all| all.checked_div(ready).unwrap_or_default());
        let share = PerResource { cpu: share(load.cpu), memory: share(load.memory) };
        let idle = PerResource { cpu: load.cpu.and(Some(0)), memory: load.memory.and(Some(0)) };
        let pod = |(number, started): (usize, &Timestamp)| {
            let ready_at = ready_at(*started);
            let is_ready = ready_at <= now;
            let used = if is_ready { share } else { idle };
            Pod {
                name: format!("pod-{number}"),
                phase: PodPhase::Running,
                ready: Some(is_ready),
                started: Some(*started),
                ready_since: Some(if is_ready { ready_at } else { *started }),
                is_deleted: false,
                requests: self.requests,
                usage: Some(Sample { used, at: now, window: self.window }),
            }
        };
        self.started.iter().enumerate().map(pod).collect()
    }
}
