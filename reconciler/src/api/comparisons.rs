//! Comparisons of applied commits, for the page. They are made by a function that the daemon gives, and kept in memory.
//!
//! Reads no repository itself. Decides when a comparison is made: once for each pair of commits, which never change,
//! and again after a failure. Callers name commits of the history only, never a revision that somebody typed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use moka::sync::Cache;
use schema::control::lock;
use schema::meta::ObjectRef;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Maximum number of concurrent comparisons; each parses all manifests of two commits.
const COMPARISONS_MAX: usize = 2;
/// Maximum number of answers that are kept; each takes about a megabyte at most.
const ANSWERS_MAX: u64 = 32;
/// Longest wait of a visit. The comparison goes on without it.
const WAIT: Duration = Duration::from_secs(4);

/// Compares two commits. Blocking.
pub type Compare = Arc<dyn Fn(&CommitPair) -> Result<Comparison, ComparisonError> + Send + Sync>;

/// Two commits of a source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitPair {
    pub source: String,
    /// Commit to compare with; `None` for nothing.
    pub base: Option<String>,
    pub head: String,
}

/// Changes between two commits, as the page shows them. No value of a secret is among them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Commit that the head was compared with; `None` if it was compared with nothing.
    pub base: Option<String>,
    /// Numbers of changes, such as `2 to create, 1 to delete`.
    pub headline: String,
    /// Warnings and notes, warnings first.
    pub lines: Vec<ComparisonLine>,
    /// Changes in the order in which they were applied.
    pub changes: Vec<ObjectChange>,
    /// Number of changes beyond the limit of what is kept.
    pub left_out: usize,
    /// Command that prints all of it in a clone.
    pub command: String,
}

/// A remark on a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComparisonLine {
    pub is_warning: bool,
    pub text: String,
}

/// Change of an object between two commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectChange {
    /// `create`, `update`, `replace` or `delete`.
    pub action: String,
    pub object: ObjectRef,
    /// `file:line` of the object; its former place if it was removed.
    pub place: String,
    pub reason: String,
    /// Fields that differ; empty for a new or removed object.
    pub fields: Vec<FieldDifference>,
    /// Number of further fields.
    pub more_fields: usize,
}

/// Values of a field in two commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldDifference {
    /// Path, such as `spec.containers[0].image`.
    pub path: String,
    /// 1-based line of the file; 0 if it is unknown.
    pub line: u32,
    /// Set if both values are left out, because they may be secrets.
    pub is_hidden: bool,
    /// Value before, as JSON; `nothing` if it was absent.
    pub from: String,
    /// Value after.
    pub to: String,
}

/// Reason why there is no comparison.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ComparisonError {
    #[error("this reconciler has no mirror of the source")]
    NoMirror,
    #[error("the mirror of this reconciler does not have {0}")]
    Missing(String),
    #[error("the commits could not be compared: {0}")]
    Failed(String),
    #[error("the comparison takes longer; it appears here once it is made")]
    Unfinished,
}

/// Result of a comparison, shared by all visits.
pub(super) type Answer = Result<Arc<Comparison>, ComparisonError>;

/// Comparisons that were made, and the function that makes them.
pub struct Comparisons {
    compare: Compare,
    made: Cache<CommitPair, Arc<Comparison>>,
    under_way: Arc<Mutex<BTreeSet<CommitPair>>>,
    permits: Arc<Semaphore>,
}

impl Comparisons {
    pub fn new(compare: Compare) -> Self {
        let permits = Arc::new(Semaphore::new(COMPARISONS_MAX));
        Self { compare, made: Cache::new(ANSWERS_MAX), under_way: Arc::default(), permits }
    }

    /// Returns what differs between two commits: as an earlier visit found it, or after a comparison.
    ///
    /// # Errors
    /// Any [`ComparisonError`]; `Unfinished` while another visit compares them, and after 4 s, while the comparison
    /// goes on.
    pub(super) async fn get(&self, pair: &CommitPair) -> Answer {
        if let Some(made) = self.made.get(pair) {
            return Ok(made);
        }
        let Some(entry) = UnderWay::begin(&self.under_way, pair) else {
            return Err(ComparisonError::Unfinished);
        };
        let answer = timeout(WAIT, self.make(entry)).await;
        answer.unwrap_or(Err(ComparisonError::Unfinished))
    }

    async fn make(&self, entry: UnderWay) -> Answer {
        let failed = |why: &str| ComparisonError::Failed(why.to_owned());
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|error| failed(&error.to_string()))?;
        let (compare, made) = (Arc::clone(&self.compare), self.made.clone());
        let task = tokio::task::spawn_blocking(move || {
            let answer = compare(&entry.pair).map(Arc::new);
            if let Ok(comparison) = &answer {
                made.insert(entry.pair.clone(), Arc::clone(comparison));
            }
            drop(permit);
            answer
        });
        task.await.unwrap_or_else(|_| Err(failed("the comparison ended unexpectedly")))
    }
}

/// A pair of commits that is being compared, or waits for its turn.
struct UnderWay {
    all: Arc<Mutex<BTreeSet<CommitPair>>>,
    pair: CommitPair,
}

impl UnderWay {
    /// Returns `None` if the pair is under way already.
    fn begin(all: &Arc<Mutex<BTreeSet<CommitPair>>>, pair: &CommitPair) -> Option<Self> {
        let is_new = lock(all).insert(pair.clone());
        is_new.then(|| Self { all: Arc::clone(all), pair: pair.clone() })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        lock(&self.all).remove(&self.pair);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    fn pair(head: &str) -> CommitPair {
        CommitPair { source: "main".to_owned(), base: None, head: head.to_owned() }
    }

    #[tokio::test]
    async fn an_answer_is_kept_and_a_failure_is_tried_again() {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let comparisons =
            Comparisons::new(Arc::new(move |_: &CommitPair| match counted.fetch_add(1, Ordering::Relaxed) {
                0 => Err(ComparisonError::NoMirror),
                1 => panic!("a comparison that panics is tried again, too"),
                _ => Ok(Comparison::default()),
            }));
        let first = pair("first");
        assert_eq!(comparisons.get(&first).await, Err(ComparisonError::NoMirror));
        assert!(matches!(comparisons.get(&first).await, Err(ComparisonError::Failed(_))));
        for _ in 0..3 {
            assert!(comparisons.get(&first).await.is_ok());
        }
        assert_eq!(runs.load(Ordering::Relaxed), 3);
        for number in 0..3 * ANSWERS_MAX {
            let _ = comparisons.get(&pair(&number.to_string())).await;
        }
        comparisons.made.run_pending_tasks();
        assert_eq!(comparisons.made.entry_count(), ANSWERS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_comparison_goes_on_without_its_visits_and_is_made_once() {
        let (go, wait) = mpsc::channel::<()>();
        let (runs, wait) = (Arc::new(AtomicUsize::new(0)), Mutex::new(wait));
        let counted = Arc::clone(&runs);
        let comparisons = Comparisons::new(Arc::new(move |_: &CommitPair| {
            counted.fetch_add(1, Ordering::Relaxed);
            let _ = lock(&wait).recv();
            Ok(Comparison::default())
        }));
        let slow = pair("slow");
        let visits = async { tokio::join!(comparisons.get(&slow), comparisons.get(&slow)) };
        let (found, ()) = tokio::join!(visits, tokio::time::advance(2 * WAIT));
        assert_eq!(found, (Err(ComparisonError::Unfinished), Err(ComparisonError::Unfinished)));
        // More than one is needed only if more than one is being made.
        for _ in 0..3 {
            go.send(()).unwrap();
        }
        while comparisons.get(&slow).await.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    }
}
