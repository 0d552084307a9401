//! Decides whom to knock at through the tunnel, and what is known after that. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use schema::control::Plan;

use crate::worlds::netlink::Offload;

/// So many nodes are asked at once: one that is away, or lets no TCP in, says nothing of the tunnel.
const ASKED_MAX: usize = 3;

/// The wait after a trial that nobody answered: the other nodes may be about to start.
const RETRY_FIRST: Duration = Duration::from_secs(10);

/// With so many of these the last wait is five minutes, and nobody is expected to answer any more.
const TRIALS_MAX: u32 = 6;

/// What is known of a link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// The link's number.
    pub(super) index: Option<u32>,
    /// It is decided.
    pub(super) is_settled: bool,
    /// Of these nodes nobody answered, so often.
    pub(super) silent: BTreeSet<SocketAddr>,
    pub(super) trials: u32,
    pub(super) not_before: Option<Instant>,
}

/// The link, and who could answer behind it.
#[derive(Debug, Clone)]
pub struct Observed {
    pub(super) offload: Offload,
    /// It is off by a trial of an agent that ended before it was over.
    pub(super) is_left_off: bool,
    pub(super) peers: BTreeMap<SocketAddr, String>,
    pub(super) history: History,
    pub(super) now: Instant,
}

/// Whom to ask; nobody: nothing to find out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trial(pub(super) BTreeMap<SocketAddr, String>);

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The offload is on again: a trial was not brought to its end.
    Recover,
    /// These are asked.
    Ask(Trial),
}

impl Plan for Step {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Ask(trial) if trial.0.is_empty())
    }
}

/// What a trial showed.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing was tried.
    Untried,
    /// What an earlier trial left off is on again.
    Recovered,
    /// TCP gets through as it is.
    Sound,
    /// It reaches this node only with the kernel's checksums, which are computed from now on.
    Computed(String),
    /// Nobody answered, with whosever checksums.
    Silence,
    /// The kernel does not let them be set.
    Refused(String),
}

/// What to do now. Total and pure.
pub fn plan(seen: &Observed) -> Step {
    match seen.is_left_off {
        true => Step::Recover,
        false => Step::Ask(whom_to_ask(seen)),
    }
}

fn whom_to_ask(seen: &Observed) -> Trial {
    let history = &seen.history;
    let is_new = history.index != Some(seen.offload.index);
    if !seen.offload.is_on || (history.is_settled && !is_new) {
        return Trial::default();
    }
    // Those who were silent once are asked last.
    let (silent, others): (Vec<_>, Vec<_>) =
        seen.peers.iter().partition(|(at, _)| history.silent.contains(at));
    let waits = history.not_before.is_some_and(|at| seen.now < at) || history.trials >= TRIALS_MAX;
    if !is_new && waits && others.is_empty() {
        return Trial::default();
    }
    let asked = others.into_iter().chain(silent).take(ASKED_MAX);
    Trial(asked.map(|(at, node)| (*at, node.clone())).collect())
}

impl History {
    /// With what a trial of this link showed.
    pub(super) fn after(&self, index: u32, asked: &Trial, verdict: &Verdict, now: Instant) -> Self {
        let mut next = match self.index == Some(index) {
            true => self.clone(),
            false => Self { index: Some(index), ..Self::default() },
        };
        match verdict {
            Verdict::Untried | Verdict::Recovered => {}
            Verdict::Sound | Verdict::Computed(_) | Verdict::Refused(_) => next.is_settled = true,
            Verdict::Silence => {
                if !asked.0.keys().all(|at| next.silent.contains(at)) {
                    next.trials = 0;
                }
                next.silent.extend(asked.0.keys());
                next.not_before = Some(now + RETRY_FIRST * 2_u32.pow(next.trials.min(TRIALS_MAX)));
                next.trials += 1;
            }
        }
        next
    }
}
