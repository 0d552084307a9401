//! Runtime of a daemon: its table of loops and followers, and other tasks. All are critical: when one ends before
//! shutdown, the process ends.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::Stream;
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::process::report_to_service_manager;
use super::row::run_with_wakers;
use super::shutdown::{RunError, TaskEnded, TaskResult, Tasks};
use super::{LastRun, LastRunReader, Loop, Pulse, Row, lock};

/// The tasks of a daemon, and the runs of its loops.
#[derive(Debug)]
pub struct Runtime {
    tasks: Tasks,
    runs: LoopRuns,
    /// Held by every loop until it ends, and by the tasks that work for one.
    working: mpsc::Sender<()>,
    all_ended: Option<mpsc::Receiver<()>>,
}

impl Default for Runtime {
    fn default() -> Self {
        Self::new()
    }
}

impl Runtime {
    /// Creates a runtime without tasks.
    pub fn new() -> Self {
        let (working, all_ended) = mpsc::channel(1);
        Self { tasks: Tasks::new(), runs: LoopRuns::default(), working, all_ended: Some(all_ended) }
    }

    /// Returns a token that is cancelled at shutdown.
    pub fn token(&self) -> CancellationToken {
        self.tasks.token()
    }

    /// Returns the last run of each loop.
    pub fn runs(&self) -> LoopRuns {
        self.runs.clone()
    }

    /// Runs a loop and keeps its last run under its name.
    pub fn drive<L: Loop>(&mut self, row: Row, the_loop: L) -> LastRunReader {
        self.drive_as(the_loop.name(), row, the_loop)
    }

    /// Runs a loop that may exist several times, under a given name.
    pub fn drive_as<L: Loop>(&mut self, name: impl Into<String>, row: Row, the_loop: L) -> LastRunReader {
        let name = name.into();
        let (sender, last_run) = watch::channel(None);
        self.runs.add(name.clone(), last_run.clone(), row.driver.pulse.clone());
        let (working, token) = (self.working.clone(), self.token());
        self.tasks.spawn_critical(name, async move {
            row.run(the_loop, token, sender).await;
            drop(working);
        });
        last_run
    }

    /// Runs a step that reads, derives and publishes: immediately, and on the row's schedule.
    pub fn follow(&mut self, name: &'static str, row: Row, mut step: impl FnMut() + Send + 'static) {
        self.follow_async(name, row, move || {
            step();
            std::future::ready(())
        });
    }

    /// Like [`Runtime::follow`], for a step that takes long or blocks. A panic is logged, and the next step tries
    /// again.
    pub fn follow_blocking(&mut self, name: &'static str, row: Row, step: impl Fn() + Send + Sync + 'static) {
        let step = Arc::new(step);
        self.follow_async(name, row, move || {
            let step = Arc::clone(&step);
            async move {
                if let Err(error) = tokio::task::spawn_blocking(move || step()).await {
                    tracing::error!(name, %error, "step failed; the next change tries again");
                }
            }
        });
    }

    /// Like [`Runtime::follow`], for an asynchronous step. Shutdown waits for a step in progress.
    pub fn follow_async<F: Future<Output = ()> + Send>(
        &mut self,
        name: &'static str,
        row: Row,
        mut step: impl FnMut() -> F + Send + 'static,
    ) {
        let Row { driver, rest, first_at_change, last_at_end, nudged, wakers: wakes, nudge } = row;
        let token = self.token();
        let steps = async move {
            // Held so that a row without wakers is not mistaken for one whose waker ended.
            let _nudge = nudge;
            let mut waits_first = first_at_change;
            let next = async |rest: Duration| {
                sleep(rest).await;
                // Either way the wait is over.
                let _ = timeout(driver.interval, nudged.wait()).await;
            };
            loop {
                if !std::mem::take(&mut waits_first) {
                    step().await;
                }
                // Cancel-safe: a step is never cut off, and nothing is held between two steps.
                if token.run_until_cancelled(next(rest)).await.is_none() {
                    break;
                }
            }
            if last_at_end {
                step().await;
            }
        };
        self.tasks.spawn_critical(name, run_with_wakers(wakes, steps));
    }

    /// Runs a task that must last until shutdown.
    pub fn task<F, E>(&mut self, name: impl Into<String>, future: F)
    where
        F: Future<Output = E> + Send + 'static,
        E: TaskResult,
    {
        self.tasks.spawn_critical(name, future);
    }

    /// Runs a task that must last until shutdown, and that counts as a loop in [`Runtime::all_loops_ended`].
    pub fn task_like_loop<F, E>(&mut self, name: impl Into<String>, future: F)
    where
        F: Future<Output = E> + Send + 'static,
        E: TaskResult,
    {
        let working = self.working.clone();
        self.task(name, async move {
            let ended = future.await;
            drop(working);
            ended
        });
    }

    /// Runs a task that shutdown may cut off anywhere.
    pub fn task_until_shutdown(
        &mut self,
        name: impl Into<String>,
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        let token = self.token();
        self.tasks.spawn_critical(name, async move {
            // Cancel-safe by the contract of this function.
            token.run_until_cancelled(future).await;
        });
    }

    /// Tells the service manager that started this process, if any, that it is ready, and that no loop hangs.
    pub fn report_to_service_manager(&mut self) {
        let runs = self.runs();
        let hung = move |limit| runs.hung(Instant::now(), limit);
        self.task("service manager", report_to_service_manager(hung, self.token()));
    }

    /// Returns a future that ends once every loop has ended. Only the first call gets a future that waits.
    pub fn all_loops_ended(&mut self) -> impl Future<Output = ()> + Send + 'static {
        let all_ended = self.all_ended.take();
        async move {
            if let Some(mut all_ended) = all_ended {
                // Nothing is ever sent: `recv` returns `None` when the last loop has dropped its sender.
                let _ = all_ended.recv().await;
            }
        }
    }

    /// Runs until SIGTERM, SIGINT or the unexpected end of a task. All tasks then get 10 s to end; a second signal
    /// ends the wait, and the remaining tasks are aborted.
    ///
    /// # Errors
    /// [`RunError::TaskEnded`] names the task that ended first, also when it panicked while stopping.
    pub async fn run_until_signal(self) -> Result<(), RunError> {
        drop(self.working);
        self.tasks.run_until_signal().await
    }

    /// Like [`Runtime::run_until_signal`], with the signals as a stream of names.
    ///
    /// # Errors
    /// [`TaskEnded`] names the task that ended first.
    pub async fn run_until(self, signals: impl Stream<Item = &'static str> + Send) -> Result<(), TaskEnded> {
        drop(self.working);
        self.tasks.run_until(signals).await
    }
}

#[cfg(test)]
#[path = "runtime_tests.rs"]
mod tests;

// The last run of every loop of a daemon, served by `GET /v1/loops`.

/// The loops of a daemon in the order of its table. Clones share one table.
#[derive(Debug, Clone, Default)]
pub struct LoopRuns(Arc<Mutex<Vec<LoopEntry>>>);

#[derive(Debug)]
struct LoopEntry {
    name: String,
    last_run: LastRunReader,
    pulse: Pulse,
}

/// A loop and its last run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoopStatus {
    /// Name of the loop; `gitops/<source>` where there is one for each source.
    pub name: String,
    /// Start of the last run; `None` before the first has ended.
    pub started_at: Option<Timestamp>,
    /// Duration of the last run in milliseconds.
    pub took_ms: u64,
    /// True if its plan had steps.
    pub did_something: bool,
    /// Error of the last run, if it failed.
    pub error: Option<String>,
    /// Reason why there was nothing to decide on.
    pub not_ready: Option<String>,
    /// Runs since the start of the process.
    pub runs: u64,
    /// Failed runs since the start of the process.
    pub failures: u64,
    /// Milliseconds that all runs since the start of the process took.
    pub busy_ms: u64,
    /// End of the last run that did not fail.
    pub last_success_at: Option<Timestamp>,
}

impl LoopRuns {
    /// Adds a loop.
    pub fn add(&self, name: impl Into<String>, last_run: LastRunReader, pulse: Pulse) {
        lock(&self.0).push(LoopEntry { name: name.into(), last_run, pulse });
    }

    /// Returns the names of the loops that hang, with `limit` as the longest run of loops without a longer one of their
    /// own.
    pub fn hung(&self, now: Instant, limit: Duration) -> Vec<String> {
        let loops = lock(&self.0);
        loops.iter().filter(|entry| entry.pulse.hangs(now, limit)).map(|entry| entry.name.clone()).collect()
    }

    /// Returns the status of every loop.
    pub fn statuses(&self) -> Vec<LoopStatus> {
        lock(&self.0).iter().map(|entry| status(&entry.name, entry.last_run.borrow().as_ref())).collect()
    }

    /// Returns the newest run of any loop whose name begins with `prefix`.
    pub fn newest(&self, prefix: &str) -> Option<LastRun> {
        let loops = lock(&self.0);
        let runs = loops.iter().filter(|entry| entry.name.starts_with(prefix));
        runs.filter_map(|entry| entry.last_run.borrow().clone()).max_by_key(|run| run.started_at)
    }
}

fn status(name: &str, last: Option<&LastRun>) -> LoopStatus {
    LoopStatus {
        name: name.to_owned(),
        started_at: last.map(|run| run.started_at),
        took_ms: last.map_or(0, LastRun::took_ms),
        did_something: last.is_some_and(|run| run.did_something),
        error: last.and_then(|run| run.error.clone()),
        not_ready: last.and_then(|run| run.not_ready.clone()),
        runs: last.map_or(0, |run| run.runs),
        failures: last.map_or(0, |run| run.failures),
        busy_ms: last.map_or(0, |run| u64::try_from(run.busy.as_millis()).unwrap_or(u64::MAX)),
        last_success_at: last.and_then(|run| run.last_success_at),
    }
}
