//! Probe state machine for one start of a container, counting as Kubernetes does: results in, health out. Pure: no
//! I/O, no clock.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use schema::kinds::pod::{PROBE_SECONDS_MAX, Probe};
use schema::meta::NamespacedName;
use serde::{Deserialize, Serialize};

use crate::worlds::prober::HttpRequest;

/// Kind of a container's probe. The postStart hook is one that succeeds or fails once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeKind {
    /// Hook for which all probes wait until it succeeds; its failure restarts the container.
    #[serde(rename = "postStart")]
    PostStart,
    /// The other probes wait until it succeeds; its failure restarts the container.
    Startup,
    /// Decides whether the container gets requests.
    Readiness,
    /// Failure restarts the container.
    Liveness,
}

impl ProbeKind {
    /// Returns the name in lower case, for the middle of a sentence.
    pub fn word(self) -> &'static str {
        match self {
            Self::PostStart => "postStart",
            Self::Startup => "startup",
            Self::Readiness => "readiness",
            Self::Liveness => "liveness",
        }
    }

    /// Returns the name with what it is, as in "failed its startup probe".
    pub fn title(self) -> String {
        format!("{} {}", self.word(), if self == Self::PostStart { "hook" } else { "probe" })
    }
}

/// Capitalized, for the beginning of an event message.
impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PostStart => "PostStart",
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        })
    }
}

/// Timing and thresholds of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    pub initial_delay: Duration,
    pub period: Duration,
    pub timeout: Duration,
    pub success_threshold: u32,
    pub failure_threshold: u32,
}

impl Timing {
    /// Reads the numbers of a probe; 0 means the default, as in Kubernetes. More than a day becomes a day, even in
    /// objects stored before validation had a limit, because timers have a maximum.
    pub fn from_probe(probe: &Probe) -> Self {
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

    /// Timing of a postStart hook: it runs at once and without a time limit, as in Kubernetes, and decides at its first
    /// end. If the engine could not run it, it is tried again after the period.
    pub const HOOK: Self = Self {
        initial_delay: Duration::ZERO,
        period: Duration::from_secs(1),
        timeout: Duration::from_secs(PROBE_SECONDS_MAX as u64),
        success_threshold: 1,
        failure_threshold: 1,
    };
}

/// Health of a running container. Kept on the node's disk by container id, so that a restarted agent continues with
/// it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeHealth {
    /// True once the postStart hook succeeded. A hook that was running when the agent ended left no result: the next
    /// agent runs it again, because it can't know how it ended. So a hook runs at least once, as in Kubernetes.
    #[serde(default, rename = "hookDone", skip_serializing_if = "std::ops::Not::not")]
    pub hook_done: bool,
    /// True if the postStart hook and the startup probe succeeded, or there is none.
    pub started: bool,
    /// True if the container is started and its readiness probe succeeds or there is none.
    pub ready: bool,
    /// The probe whose failure ends this start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<ProbeKind>,
}

impl ProbeHealth {
    /// Returns the health of a running container that has these probes. Without a probe the former result is ignored:
    /// it may be from before the container ran.
    pub fn resumed(former: Option<Self>, has: impl Fn(ProbeKind) -> bool) -> Self {
        let former = former.unwrap_or_default();
        let waits_for_hook = has(ProbeKind::PostStart) && !former.hook_done;
        let started = (former.started || !has(ProbeKind::Startup)) && !waits_for_hook;
        let ready = started && (former.ready || !has(ProbeKind::Readiness)) && former.failed.is_none();
        Self { hook_done: former.hook_done, started, ready, failed: former.failed }
    }
}

/// Probe state of one start of a container.
#[derive(Debug, Clone)]
pub struct ProbeMachine {
    timings: BTreeMap<ProbeKind, Timing>,
    health: ProbeHealth,
    /// Last result of each probe, and the number of times in a row.
    runs: BTreeMap<ProbeKind, (bool, u32)>,
}

impl ProbeMachine {
    /// Creates the state of a container with these probes. `former` is the last known health of this very start: it
    /// holds until a probe result changes it.
    pub fn new(timings: BTreeMap<ProbeKind, Timing>, former: Option<ProbeHealth>) -> Self {
        let health = ProbeHealth::resumed(former, |kind| timings.contains_key(&kind));
        Self { timings, health, runs: BTreeMap::new() }
    }

    pub fn health(&self) -> ProbeHealth {
        self.health
    }

    /// Returns the probes to run now: none after a failure that restarts, only the postStart hook until it succeeds,
    /// then only the startup probe until it succeeds.
    pub fn active(&self) -> Vec<ProbeKind> {
        let has_hook = self.timings.contains_key(&ProbeKind::PostStart);
        let turn: &[ProbeKind] = match self.health {
            ProbeHealth { failed: Some(_), .. } => &[],
            ProbeHealth { hook_done: false, .. } if has_hook => &[ProbeKind::PostStart],
            ProbeHealth { started: false, .. } => &[ProbeKind::Startup],
            _ => &[ProbeKind::Readiness, ProbeKind::Liveness],
        };
        turn.iter().copied().filter(|kind| self.timings.contains_key(kind)).collect()
    }

    pub fn timing(&self, kind: ProbeKind) -> Option<&Timing> {
        self.timings.get(&kind)
    }

    /// Returns the delay before the first check of a probe in a container that started `age` ago. `spread`, from 0
    /// to 1, is the fraction of a period added on top: the checks of a node whose agent restarted must not all run
    /// at the same time.
    pub fn first_delay(&self, kind: ProbeKind, age: Duration, spread: f64) -> Duration {
        let Some(timing) = self.timings.get(&kind) else { return Duration::ZERO };
        timing.initial_delay.saturating_sub(age) + timing.period.mul_f64(spread.clamp(0.0, 1.0))
    }

    /// Records that a check of a probe succeeded or failed. Health changes only at a threshold.
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
            (ProbeKind::PostStart, true) => {
                let former = ProbeHealth { hook_done: true, ..self.health };
                self.health = ProbeHealth::resumed(Some(former), |kind| self.timings.contains_key(&kind));
            }
            (ProbeKind::Startup, true) => {
                self.health.started = true;
                self.health.ready = !self.timings.contains_key(&ProbeKind::Readiness);
            }
            (ProbeKind::PostStart | ProbeKind::Startup | ProbeKind::Liveness, false) => {
                self.health.failed = Some(kind);
                self.health.ready = false;
            }
        }
    }
}

// Probe targets: the checks of a container with their actions and timing.

/// An action to perform on a container. As JSON it is the label of a container with a preStop hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    Exec(Vec<String>),
    HttpGet(HttpRequest),
    TcpSocket { host: String, port: u16 },
    Grpc { address: SocketAddr, service: String },
    Sleep { seconds: u32 },
}

impl Action {
    /// True if the action runs in the container and does not use the network.
    pub fn is_exec(&self) -> bool {
        matches!(self, Self::Exec(_))
    }
}

/// A probe that is ready to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub action: Action,
    pub timing: Timing,
}

/// A start of a container that has probes or a postStart hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeTarget {
    pub pod: NamespacedName,
    pub container: String,
    /// Time of the start; `None` if Docker does not report it.
    pub started_at: Option<Timestamp>,
    pub checks: BTreeMap<ProbeKind, Check>,
    pub former: Option<ProbeHealth>,
}

/// Probe targets by Docker id.
pub type Targets = BTreeMap<String, ProbeTarget>;
