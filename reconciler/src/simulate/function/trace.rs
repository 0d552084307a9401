//! Format and validation of a trace.

use serde::Deserialize;

use crate::controllers::functions::decider::{Config, WINDOW_MAX};
use crate::simulate::trace::{self, SECONDS_MAX, TraceError, present, seconds};

/// Longest cold start.
const COLD_START_SECONDS_MAX: f64 = 3_600.0;

/// Longest delay of a scale-down: Knative's.
const DELAY_SECONDS_MAX: f64 = 3_600.0;

/// Largest number of a config: beyond it replicas and calls are no longer counted exactly.
const AMOUNT_MAX: f64 = 1e9;

/// Recorded observations, or arriving calls.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Trace {
    pub(super) config: Option<ConfigFields>,
    /// Replicas that are ready at the start.
    ready: Option<u32>,
    /// Steps in order of time.
    steps: Option<Vec<Step>>,
    /// Seconds from the start of a replica until it takes calls.
    cold_start_seconds: Option<f64>,
    /// Seconds that each call runs.
    handling_seconds: Option<f64>,
    arrivals: Option<Vec<Arrival>>,
}

/// Parameters of the decider; missing ones keep their value.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ConfigFields {
    target: Option<f64>,
    total_per_pod: Option<f64>,
    panic_threshold: Option<f64>,
    max_scale_up_rate: Option<f64>,
    max_scale_down_rate: Option<f64>,
    target_burst_capacity: Option<f64>,
    stable_window_seconds: Option<f64>,
    scale_down_delay_seconds: Option<f64>,
    activation_scale: Option<u32>,
    reachable: Option<bool>,
}

/// Observations at a time.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Step {
    pub(super) at: f64,
    /// `null` if unknown; if missing, as in the previous step.
    #[serde(default, deserialize_with = "present")]
    pub(super) ready: Option<Option<u32>>,
    pub(super) stable_concurrency: Option<f64>,
    pub(super) panic_concurrency: Option<f64>,
    pub(super) config: Option<ConfigFields>,
}

/// Calls at even intervals.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Arrival {
    pub(super) at: f64,
    pub(super) per_second: f64,
    pub(super) for_seconds: f64,
}

/// Form of a trace.
pub(super) enum TraceForm<'a> {
    Steps { ready: Option<u32>, steps: &'a [Step] },
    Load(Load<'a>),
}

/// Arriving calls, each row validated separately.
#[derive(Clone, Copy)]
pub(super) struct Load<'a> {
    pub(super) cold_start_seconds: f64,
    pub(super) handling_seconds: f64,
    pub(super) arrivals: &'a [Arrival],
}

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    /// Fails if the text is not JSON or has unknown fields.
    pub fn read(text: &str) -> Result<Self, TraceError> {
        trace::read(text, "simulate function")
    }

    /// Determines which of the two forms the trace has.
    pub(super) fn form(&self) -> Result<TraceForm<'_>, TraceError> {
        let of_load = [
            ("coldStartSeconds", self.cold_start_seconds.is_some()),
            ("handlingSeconds", self.handling_seconds.is_some()),
            ("arrivals", self.arrivals.is_some()),
        ];
        let Some(steps) = &self.steps else {
            if self.arrivals.is_none() {
                let why = "it has neither steps nor arrivals";
                return Err(TraceError::at("the trace", why, "give one of the two"));
            }
            if self.ready.is_some() {
                let why = "it applies only to steps";
                let help = "leave it out: the function starts with the replicas of minScale";
                return Err(TraceError::at("ready", why, help));
            }
            return self.load().map(TraceForm::Load);
        };
        if let Some((field, _)) = of_load.iter().find(|(_, is_there)| *is_there) {
            let why = "it can't be combined with steps";
            return Err(TraceError::at(*field, why, "give steps, or arrivals with both times"));
        }
        if steps.is_empty() {
            return Err(TraceError::at("steps", "it is empty", "give at least one step"));
        }
        trace::check_order(steps.iter().map(|step| step.at))?;
        Ok(TraceForm::Steps { ready: self.ready, steps })
    }

    fn load(&self) -> Result<Load<'_>, TraceError> {
        let arrivals = self.arrivals.as_deref().unwrap_or_default();
        if arrivals.is_empty() {
            return Err(TraceError::at("arrivals", "it is empty", "give at least one"));
        }
        let time = |written: Option<f64>, field: &str, most: f64| match written {
            Some(written) if (0.0..=most).contains(&written) => Ok(written),
            Some(written) => {
                let why = format!("{written} is out of range");
                Err(TraceError::at(field, why, format!("write seconds from 0 to {most}")))
            }
            None => Err(TraceError::at(field, "it is missing", format!("write seconds from 0 to {most}"))),
        };
        let cold_start_seconds = time(self.cold_start_seconds, "coldStartSeconds", COLD_START_SECONDS_MAX)?;
        // The function's own timeout limits it further.
        let handling_seconds = time(self.handling_seconds, "handlingSeconds", SECONDS_MAX)?;
        for (index, arrival) in arrivals.iter().enumerate() {
            let place = |field: &str| format!("arrivals[{index}].{field}");
            seconds(arrival.at, &place("at"), -SECONDS_MAX)?;
            seconds(arrival.for_seconds, &place("forSeconds"), 0.0)?;
            if !(0.0..=AMOUNT_MAX).contains(&arrival.per_second) {
                let why = format!("{} is not a rate of calls", arrival.per_second);
                let help = format!("write a number from 0 to {AMOUNT_MAX}");
                return Err(TraceError::at(place("perSecond"), why, help));
            }
        }
        Ok(Load { cold_start_seconds, handling_seconds, arrivals })
    }
}

impl Step {
    /// Checks the averages.
    pub(super) fn check(&self, index: usize) -> Result<(), TraceError> {
        let averages =
            [("stableConcurrency", self.stable_concurrency), ("panicConcurrency", self.panic_concurrency)];
        for (field, written) in averages {
            if let Some(written) = written.filter(|written| !(0.0..=AMOUNT_MAX).contains(written)) {
                let place = format!("steps[{index}].{field}");
                let why = format!("{written} is not a number of calls");
                let help = format!("write one from 0 to {AMOUNT_MAX}, or null if unknown");
                return Err(TraceError::at(place, why, help));
            }
        }
        Ok(())
    }
}

impl ConfigFields {
    /// Applies the given parameters to `config`.
    pub(super) fn apply(&self, place: &str, config: &mut Config) -> Result<(), TraceError> {
        let is_above_0 = |value: f64| value > 0.0;
        let is_rate = |value: f64| value >= 1.0;
        let is_burst = |value: f64| value >= 0.0 || value == -1.0;
        // Field, given value, target, check, help.
        type Row<'a> = (&'static str, Option<f64>, &'a mut f64, fn(f64) -> bool, &'static str);
        let above_0 = "write a number above 0";
        let rows: [Row<'_>; 6] = [
            ("target", self.target, &mut config.target, is_above_0, above_0),
            (
                "totalPerPod",
                self.total_per_pod,
                &mut config.total_per_replica,
                |v| v >= 0.0,
                "write 0 or more",
            ),
            ("panicThreshold", self.panic_threshold, &mut config.panic_threshold, is_above_0, above_0),
            (
                "maxScaleUpRate",
                self.max_scale_up_rate,
                &mut config.max_scale_up_rate,
                is_rate,
                "write 1 or more",
            ),
            (
                "maxScaleDownRate",
                self.max_scale_down_rate,
                &mut config.max_scale_down_rate,
                is_rate,
                "write 1 or more",
            ),
            (
                "targetBurstCapacity",
                self.target_burst_capacity,
                &mut config.target_burst_capacity,
                is_burst,
                "write 0 or more, or -1 for any burst",
            ),
        ];
        for (field, written, into, is_allowed, help) in rows {
            let Some(written) = written else { continue };
            if !is_allowed(written) || written > AMOUNT_MAX {
                let why = format!("{written} is out of range");
                let help = format!("{help}, {AMOUNT_MAX} at most");
                return Err(TraceError::at(format!("{place}.{field}"), why, help));
            }
            *into = written;
        }
        let window_max = WINDOW_MAX.as_secs_f64();
        let times = [
            ("stableWindowSeconds", self.stable_window_seconds, &mut config.stable_window, window_max),
            (
                "scaleDownDelaySeconds",
                self.scale_down_delay_seconds,
                &mut config.scale_down_delay,
                DELAY_SECONDS_MAX,
            ),
        ];
        for (field, written, into, most) in times {
            let Some(written) = written else { continue };
            let place = format!("{place}.{field}");
            if written > most {
                let help = format!("write seconds from 0 to {most}");
                return Err(TraceError::at(place, format!("{written} is too long"), help));
            }
            *into = seconds(written, &place, 0.0)?;
        }
        config.activation_scale = self.activation_scale.unwrap_or(config.activation_scale);
        config.is_reachable = self.reachable.unwrap_or(config.is_reachable);
        Ok(())
    }
}
