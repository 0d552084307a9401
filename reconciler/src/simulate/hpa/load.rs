//! Closed loop: a load shared by the pods that are ready.

use jiff::{SignedDuration, Timestamp};
use schema::kinds::pod::PodPhase;

use crate::controllers::autoscaler::{PerResource, Pod, Sample};

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
