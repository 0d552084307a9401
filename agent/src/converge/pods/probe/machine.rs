//! One start of one container and its probes, as Kubernetes counts: results in, health out. Pure; who
//! asks and when it is now is not its business.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use schema::kinds::pod::{PROBE_SECONDS_MAX, Probe};
use serde::{Deserialize, Serialize};

/// Which of a container's probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeKind {
    /// The others wait until it succeeds; its failure restarts.
    Startup,
    /// Decides whether the container gets requests.
    Readiness,
    /// Its failure restarts.
    Liveness,
}

impl ProbeKind {
    /// In lower case, for the middle of a sentence.
    pub fn word(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Readiness => "readiness",
            Self::Liveness => "liveness",
        }
    }
}

/// As events begin with it.
impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        })
    }
}

/// A probe's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    pub initial_delay: Duration,
    pub period: Duration,
    pub timeout: Duration,
    pub success_threshold: u32,
    pub failure_threshold: u32,
}

impl Timing {
    /// The numbers of a probe; 0 is the default, as in Kubernetes. Longer than a day is a day, also in
    /// what was stored before validation knew a limit: timers end at some point.
    pub fn of(probe: &Probe) -> Self {
        let or = |number: u32, default| if number == 0 { default } else { number };
        let seconds = |number: u32| Duration::from_secs(u64::from(number.min(PROBE_SECONDS_MAX)));
        Self {
            initial_delay: seconds(probe.initial_delay_seconds),
            period: seconds(or(probe.period_seconds, 10)),
            timeout: seconds(or(probe.timeout_seconds, 1)),
            success_threshold: or(probe.success_threshold, 1),
            failure_threshold: or(probe.failure_threshold, 3),
        }
    }
}

/// What is known of a container that runs. Kept on the node's disk by container id, so that an agent
/// that was restarted goes on with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeHealth {
    /// Its startup probe succeeded, or it has none.
    pub started: bool,
    /// Started, and its readiness probe succeeds, or it has none.
    pub ready: bool,
    /// The probe whose failure ends this start of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<ProbeKind>,
}

impl ProbeHealth {
    /// What is known of a container that runs, with or without a startup and a readiness probe. What was
    /// known of it says nothing where there is no probe: it may be from before the container ran.
    pub fn known(former: Option<Self>, startup: bool, readiness: bool) -> Self {
        let former = former.unwrap_or_default();
        let started = former.started || !startup;
        let ready = started && (former.ready || !readiness) && former.failed.is_none();
        Self { started, ready, failed: former.failed }
    }
}

/// The probes of one start of one container.
#[derive(Debug, Clone)]
pub struct ProbeMachine {
    timings: BTreeMap<ProbeKind, Timing>,
    health: ProbeHealth,
    /// Per probe the last result, and how often in a row.
    runs: BTreeMap<ProbeKind, (bool, u32)>,
}

impl ProbeMachine {
    /// A container with these probes. `former` is what was last known of this very start: it stands
    /// until a probe says otherwise.
    pub fn new(timings: BTreeMap<ProbeKind, Timing>, former: Option<ProbeHealth>) -> Self {
        let has = |kind| timings.contains_key(&kind);
        let health = ProbeHealth::known(former, has(ProbeKind::Startup), has(ProbeKind::Readiness));
        Self { timings, health, runs: BTreeMap::new() }
    }

    /// What is known now.
    pub fn health(&self) -> ProbeHealth {
        self.health
    }

    /// Whose turn it is: none after a failure that restarts, startup alone before it succeeded.
    pub fn active(&self) -> Vec<ProbeKind> {
        let turn: &[ProbeKind] = match self.health {
            ProbeHealth { failed: Some(_), .. } => &[],
            ProbeHealth { started: false, .. } => &[ProbeKind::Startup],
            _ => &[ProbeKind::Readiness, ProbeKind::Liveness],
        };
        turn.iter().copied().filter(|kind| self.timings.contains_key(kind)).collect()
    }

    /// The numbers of a probe.
    pub fn timing(&self, kind: ProbeKind) -> Option<&Timing> {
        self.timings.get(&kind)
    }

    /// How long the first check of a probe waits in a container that started `age` ago. `spread`, from
    /// 0 to 1, is the part of a period that it waits on top: the checks of a node whose agent was
    /// restarted must not come all at once.
    pub fn first(&self, kind: ProbeKind, age: Duration, spread: f64) -> Duration {
        let Some(timing) = self.timings.get(&kind) else { return Duration::ZERO };
        timing.initial_delay.saturating_sub(age) + timing.period.mul_f64(spread.clamp(0.0, 1.0))
    }

    /// A check of a probe succeeded or failed. What is known changes only at a threshold.
    pub fn note(&mut self, kind: ProbeKind, success: bool) {
        if !self.active().contains(&kind) {
            return;
        }
        let Some(timing) = self.timings.get(&kind) else { return };
        let run = self.runs.entry(kind).or_insert((success, 0));
        if run.0 != success {
            *run = (success, 0);
        }
        run.1 = run.1.saturating_add(1);
        let threshold = if success { timing.success_threshold } else { timing.failure_threshold };
        if run.1 < threshold {
            return;
        }
        match (kind, success) {
            (ProbeKind::Readiness, _) => self.health.ready = success,
            (ProbeKind::Liveness, true) => {}
            (ProbeKind::Startup, true) => {
                self.health.started = true;
                self.health.ready = !self.timings.contains_key(&ProbeKind::Readiness);
            }
            (ProbeKind::Startup | ProbeKind::Liveness, false) => {
                self.health.failed = Some(kind);
                self.health.ready = false;
            }
        }
    }
}
