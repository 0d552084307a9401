//! Runs a trace: a decision per step, or every 15 s under a load.

use jiff::{SignedDuration, Timestamp};
use schema::condition::ConditionStatus;
use schema::kinds::horizontal_pod_autoscaler::{HorizontalPodAutoscalerSpec, ResourceName};
use schema::quantity::{Cpu, Memory as Bytes};

use super::load::Fleet;
use super::trace::{StepForm, Trace, load_of};
use super::{Entry, Metric, Report};
use crate::controllers::autoscaler::{
    AutoscalerMemory, Basis, Decision, Input, LOOK_SECONDS, MetricResult, PerResource, Tuning, decide, word,
};
use crate::simulate::trace::{TraceError, number, time};

/// Maximum number of evaluations of a load: a month of them.
const LOOKS_MAX: i64 = 200_000;

/// Maximum number of pods in a trace, as in a manifest.
const REPLICAS_MAX: u32 = 10_000;

/// Runs `trace` for the autoscaler `spec`, which has its defaults filled in.
///
/// # Errors
/// Fails if the trace is invalid.
pub fn run(spec: &HorizontalPodAutoscalerSpec, trace: &Trace) -> Result<Report, TraceError> {
    let forms: Vec<StepForm> =
        trace.steps.iter().enumerate().map(|(index, step)| step.form(index)).collect::<Result<_, _>>()?;
    let mut looks = Looks { spec, tuning: trace.tuning()?, memory: trace.memory()?, entries: Vec::new() };
    let loads = forms.iter().filter(|form| matches!(form, StepForm::Load(_))).count();
    match loads {
        0 => looks.follow(trace, &forms)?,
        all if all == forms.len() => looks.follow_load(trace, &forms)?,
        _ => {
            let why = "some steps are of load and some are not";
            return Err(TraceError::at("steps", why, "give load to all steps or to none"));
        }
    }
    Ok(Report { steps: looks.entries })
}

/// Decisions so far, and the resulting memory.
struct Looks<'a> {
    spec: &'a HorizontalPodAutoscalerSpec,
    tuning: Tuning,
    memory: AutoscalerMemory,
    entries: Vec<Entry>,
}

impl Looks<'_> {
    /// Evaluates steps that give pods or a recommendation.
    fn follow(&mut self, trace: &Trace, forms: &[StepForm]) -> Result<(), TraceError> {
        let mut before = trace.replicas;
        for (index, (step, form)) in trace.steps.iter().zip(forms).enumerate() {
            let Some(current) = step.current.or(before) else {
                let place = format!("steps[{index}].current");
                let help = "say how many pods there are, here or as `replicas` beside `steps`";
                return Err(TraceError::at(place, "it is missing", help));
            };
            let basis = match form {
                StepForm::Pods(pods) => Basis::Pods(pods),
                StepForm::Recommendation(replicas) => Basis::Given(*replicas),
                StepForm::Load(_) => continue,
            };
            before = Some(self.look(step.at, current, basis));
        }
        Ok(())
    }

    /// Evaluates a load on the pods that the decisions result in.
    fn follow_load(&mut self, trace: &Trace, forms: &[StepForm]) -> Result<(), TraceError> {
        let (Some(first), Some(last)) = (trace.steps.first(), trace.steps.last()) else { return Ok(()) };
        let looks = ((last.at - first.at) / LOOK_SECONDS as f64).floor() as i64;
        if looks > LOOKS_MAX {
            let place = format!("steps[{}].at", forms.len() - 1);
            let why = format!("that would be {looks} looks, one every {LOOK_SECONDS} s");
            return Err(TraceError::at(place, why, format!("end within {LOOKS_MAX} of them")));
        }
        let replicas = trace.replicas.unwrap_or(self.spec.min_replicas);
        if replicas > REPLICAS_MAX {
            return Err(TraceError::at("replicas", "there are too many", format!("{REPLICAS_MAX} at most")));
        }
        let ready_after = trace.ready_after_seconds.unwrap_or_default();
        if !(0.0..=86_400.0).contains(&ready_after) {
            let why = format!("{ready_after} s is not a time that a pod takes");
            return Err(TraceError::at("readyAfterSeconds", why, "write seconds from 0 to 86400"));
        }
        let ready_after = SignedDuration::from_millis((ready_after * 1000.0).round() as i64);
        let requests = trace.requests.unwrap_or_default().of();
        let window = SignedDuration::from_secs(LOOK_SECONDS);
        let mut fleet = Fleet::new(replicas, time(first.at), ready_after, requests, window);
        let mut load = PerResource::default();
        let mut coming = trace.steps.iter().zip(forms).peekable();
        for number in 0..=looks {
            let at = first.at + (number * LOOK_SECONDS) as f64;
            while let Some((_, form)) = coming.next_if(|(step, _)| step.at <= at) {
                if let StepForm::Load(now) = form {
                    load = *now;
                }
            }
            let now = time(at);
            let pods = fleet.pods(load, now);
            let desired = self.look(at, fleet.count(), Basis::Pods(&pods));
            fleet.scale(desired, now);
        }
        Ok(())
    }

    /// Decides, and returns the new number of pods.
    fn look(&mut self, at: f64, current: u32, basis: Basis<'_>) -> u32 {
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
            (Basis::Pods(pods), Some(metric)) => Some(load_of(pods, metric.name)),
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
        self.entries.push(Entry {
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
        name: word(result.name),
        utilization: proposal.and_then(|proposal| proposal.utilization),
        average_value: proposal.map(|proposal| quantity(proposal.average)),
        desired: proposal.map(|proposal| proposal.desired),
        error: result.outcome.as_ref().err().cloned(),
    }
}
