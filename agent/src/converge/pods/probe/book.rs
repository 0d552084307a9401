//! The health of containers, by Docker's id and for one life of each, and its copy on the node's disk.
//!
//! The pods loop sees what is new only after it was written: what it acts on, the next agent knows too. With a
//! disk that takes nothing it sees it all the same, and the write is tried again until it works.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;
use schema::control::{DiskRecord, Fsync, Nudge, lock};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::machine::ProbeHealth;

/// Before a write that failed is tried again; doubled up to the other.
const RETRY: Duration = Duration::from_secs(1);

/// Longest wait for that.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// What is known of one life of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunHealth {
    /// When that life began; none if Docker does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(flatten)]
    pub health: ProbeHealth,
}

impl RunHealth {
    /// What it says of the life that began then.
    pub fn of(&self, started_at: Option<Timestamp>) -> Option<ProbeHealth> {
        is_same_life(self.started_at, started_at).then_some(self.health)
    }
}

/// Both may be the start of the same life of a container.
pub fn is_same_life(one: Option<Timestamp>, other: Option<Timestamp>) -> bool {
    one.is_none() || other.is_none() || one == other
}

/// By Docker's id.
pub type HealthOf = BTreeMap<String, RunHealth>;

/// What a failing probe said, by Docker's id.
pub type FailingOf = BTreeMap<String, String>;

/// The shared book; clones are the same one.
#[derive(Debug, Clone)]
pub struct HealthBook(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    record: DiskRecord,
    pages: Mutex<Pages>,
    changed: Notify,
    nudge: Nudge,
}

#[derive(Debug, Default)]
struct Pages {
    newest: HealthOf,
    /// What the pods loop sees: what was written, or could not be.
    kept: HealthOf,
    /// What a probe said that failed last and keeps a container from being ready; in memory alone.
    failing: FailingOf,
}

impl HealthBook {
    /// Reads what a former agent kept; what can't be read is not known. Blocks on the disk.
    pub fn open(state_dir: &Path, nudge: Nudge) -> Self {
        // Without fsync: what a power failure loses ended with it.
        let record = DiskRecord::new(state_dir.join("agent/probes.json")).fsync(Fsync::None);
        let kept: HealthOf = record.read_or_warn("the former results of probes").unwrap_or_default();
        let pages = Mutex::new(Pages { newest: kept.clone(), kept, failing: FailingOf::new() });
        Self(Arc::new(Inner { record, pages, changed: Notify::new(), nudge }))
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        lock(&self.0.pages)
    }

    /// What was written, or could not be.
    pub fn kept(&self) -> HealthOf {
        self.pages().kept.clone()
    }

    /// Takes down what is known of the life of a container that began then.
    pub fn set(&self, id: &str, started_at: Option<Timestamp>, health: ProbeHealth) {
        let known = RunHealth { started_at, health };
        let mut pages = self.pages();
        if pages.newest.get(id) != Some(&known) {
            pages.newest.insert(id.to_owned(), known);
            self.0.changed.notify_one();
        }
    }

    /// What failing probes said last.
    pub fn failing(&self) -> FailingOf {
        self.pages().failing.clone()
    }

    /// Takes down what a failing probe said, or that it fails no more. The first failure wakes the loop.
    pub fn set_failing(&self, id: &str, said: Option<String>) {
        let first = {
            let mut pages = self.pages();
            match said {
                Some(said) => pages.failing.insert(id.to_owned(), said).is_none(),
                None => {
                    pages.failing.remove(id);
                    false
                }
            }
        };
        if first {
            self.0.nudge.nudge();
        }
    }

    /// Forgets containers that are no more.
    pub fn keep_only(&self, there: &BTreeSet<&str>) {
        let mut pages = self.pages();
        let before = pages.newest.len();
        pages.newest.retain(|id, _| there.contains(id.as_str()));
        pages.failing.retain(|id, _| there.contains(id.as_str()));
        if pages.newest.len() != before {
            self.0.changed.notify_one();
        }
    }

    /// Writes what changed, shows it, and wakes the pods loop, until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut failures = 0;
        // Cancel-safe: what is not written yet is found out again by the next checks.
        while shutdown.run_until_cancelled(self.news(failures)).await.is_some() {
            let newest = self.pages().newest.clone();
            let (record, pages) = (self.0.record.clone(), newest.clone());
            let written = tokio::task::spawn_blocking(move || record.write(&pages)).await;
            failures = match written {
                Ok(Err(error)) => {
                    let path = self.0.record.path().display();
                    tracing::warn!(%path, %error, "could not save the results of probes; retrying");
                    failures.saturating_add(1)
                }
                _ => 0,
            };
            let is_news = {
                let mut pages = self.pages();
                // Who is gone is no news.
                let is_news = newest.iter().any(|(id, health)| pages.kept.get(id) != Some(health));
                pages.kept = newest;
                is_news
            };
            if is_news {
                self.0.nudge.nudge();
            }
        }
    }

    /// Something changed, or it is time to write again what could not be written.
    async fn news(&self, failures: u32) {
        let wait = match failures {
            0 => Duration::MAX,
            some => RETRY.saturating_mul(1 << some.saturating_sub(1).min(10)).min(RETRY_MAX),
        };
        // Over either way.
        let _ = tokio::time::timeout(wait, self.0.changed.notified()).await;
    }
}
