//! The tasks of a daemon: all are critical, all stop together, and the wait for them is bounded.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt as _};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

/// Time for tasks to finish their current work; longer work survives an abort.
const DRAIN: Duration = Duration::from_secs(10);

/// Error of a task that ended before shutdown.
#[derive(Debug, thiserror::Error)]
#[error("{name} ended: {why}")]
pub struct TaskEnded {
    /// Name of the task.
    pub name: String,
    /// Error or panic message of the task, or a note that it had none.
    pub why: String,
}

/// Reason for a daemon's end other than a signal.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A critical task ended before shutdown.
    #[error(transparent)]
    TaskEnded(#[from] TaskEnded),
    /// No signal handler could be installed.
    #[error("cannot listen for SIGTERM and SIGINT")]
    ListenForSignals(#[source] std::io::Error),
}

/// Result of a task: `()` or a `Result` whose error is kept.
pub trait TaskResult: Send + 'static {
    /// Returns the error, in one line.
    fn error(self) -> Option<String>;
}

impl TaskResult for () {
    fn error(self) -> Option<String> {
        None
    }
}

impl<E> TaskResult for Result<(), E>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
{
    fn error(self) -> Option<String> {
        self.err().map(|error| super::error_chain(error.into().as_ref()))
    }
}

/// The tasks of a daemon.
#[derive(Debug)]
pub(super) struct Tasks {
    set: JoinSet<Option<String>>,
    names: BTreeMap<Id, String>,
    token: CancellationToken,
    drain: Duration,
}

impl Tasks {
    pub(super) fn new() -> Self {
        Self { set: JoinSet::new(), names: BTreeMap::new(), token: CancellationToken::new(), drain: DRAIN }
    }

    /// Returns a token that is cancelled at shutdown; every task must obey it.
    pub(super) fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Starts a task that must run until shutdown. If it ends, fails or panics before, the
    /// process ends.
    pub(super) fn spawn_critical<F, E>(&mut self, name: impl Into<String>, future: F)
    where
        F: Future<Output = E> + Send + 'static,
        E: TaskResult,
    {
        let handle = self.set.spawn(async move { future.await.error() });
        self.names.insert(handle.id(), name.into());
    }

    /// Runs until SIGTERM, SIGINT or the unexpected end of a task; then cancels the token, waits
    /// for the tasks within the drain deadline (a second signal ends the wait), aborts the rest.
    ///
    /// # Errors
    /// [`RunError::TaskEnded`] names the task that ended first, also when it panicked while
    /// draining.
    pub(super) async fn run_until_signal(self) -> Result<(), RunError> {
        let listen = |kind| signal(kind).map_err(RunError::ListenForSignals);
        let both = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        let signals = stream::unfold(both, |(mut terminate, mut interrupt)| async {
            let name = tokio::select! {
                // Both cancel-safe: a signal that no `recv` has returned is returned by the next.
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            Some((name, (terminate, interrupt)))
        });
        Ok(self.run_until(signals).await?)
    }

    /// Like [`Tasks::run_until_signal`], with the signals as a stream of names.
    ///
    /// # Errors
    /// [`TaskEnded`] names the task that ended first.
    pub(super) async fn run_until(
        mut self,
        signals: impl Stream<Item = &'static str> + Send,
    ) -> Result<(), TaskEnded> {
        let mut signals = pin!(signals.fuse());
        let first = tokio::select! {
            // Tasks that end because the token was cancelled did not end unexpectedly.
            biased;
            // Cancel-safe: the token stays cancelled.
            () = self.token.cancelled() => None,
            // Cancel-safe: an item not returned stays in the stream.
            Some(signal) = signals.next() => {
                tracing::info!(signal, "signal received, stopping");
                None
            }
            // Cancel-safe: a task not returned stays in the set.
            Some(ended) = self.set.join_next_with_id() => {
                let (name, why) = self.ended(ended);
                let why = why.unwrap_or_else(|| "it returned before shutdown".to_owned());
                Some(TaskEnded { name, why })
            }
        };
        if let Some(ended) = &first {
            tracing::error!(task = ended.name, error = ended.why, "critical task ended, stopping");
        }
        self.token.cancel();
        let later = self.drain(signals).await;
        first.or(later).map_or(Ok(()), Err)
    }

    /// Waits for all tasks within the deadline; returns the first panic or error among them.
    async fn drain(&mut self, mut signals: impl Stream<Item = &'static str> + Unpin) -> Option<TaskEnded> {
        let deadline = Instant::now() + self.drain;
        let mut trouble = None;
        while !self.set.is_empty() {
            let ended = tokio::select! {
                // Cancel-safe: a task not returned stays in the set.
                ended = timeout_at(deadline, self.set.join_next_with_id()) => ended.ok().flatten(),
                // Cancel-safe: an item not returned stays in the stream.
                Some(signal) = signals.next() => {
                    tracing::warn!(signal, "second signal received, stopping at once");
                    None
                }
            };
            let Some(ended) = ended else { break };
            let (name, why) = self.ended(ended);
            trouble = trouble.or(why.map(|why| TaskEnded { name, why }));
        }
        if !self.set.is_empty() {
            let tasks: Vec<&String> = self.names.values().collect();
            tracing::warn!(?tasks, waited = ?self.drain, "tasks aborted at shutdown");
            // Every operation survives an abort: the next start observes the current state and continues.
            self.set.shutdown().await;
        }
        trouble
    }

    /// Returns the name of a task that ended, and its error.
    fn ended(&mut self, ended: Result<(Id, Option<String>), JoinError>) -> (String, Option<String>) {
        let (id, why) = match ended {
            Ok((id, why)) => (id, why),
            Err(error) => (error.id(), Some(panic_text(error))),
        };
        (self.names.remove(&id).unwrap_or_else(|| "a task".to_owned()), why)
    }
}

fn panic_text(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "it was aborted".to_owned() };
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    format!("it panicked: {}", text.unwrap_or_else(|| "without a message".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures::stream;

    use super::*;

    /// A signal that never comes.
    fn never() -> impl Stream<Item = &'static str> + Send {
        stream::pending()
    }

    fn at_once() -> impl Stream<Item = &'static str> + Send {
        stream::iter(["SIGTERM"]).chain(stream::pending())
    }

    /// A well-behaved task.
    fn add_patient(tasks: &mut Tasks, name: &str) {
        let token = tasks.token();
        tasks.spawn_critical(name, async move { token.cancelled().await });
    }

    #[tokio::test(start_paused = true)]
    async fn a_signal_lets_every_task_end_what_it_is_at() {
        let mut tasks = Tasks::new();
        let done = Arc::new(AtomicBool::new(false));
        let (token, flag) = (tasks.token(), Arc::clone(&done));
        tasks.spawn_critical("slow", async move {
            token.cancelled().await;
            tokio::time::sleep(Duration::from_secs(5)).await;
            flag.store(true, Ordering::SeqCst);
        });
        add_patient(&mut tasks, "patient");
        tasks.run_until(at_once()).await.unwrap();
        assert!(done.load(Ordering::SeqCst));
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_heeds_nothing_is_aborted_at_the_deadline() {
        let mut tasks = Tasks { drain: Duration::from_secs(3), ..Tasks::new() };
        tasks.spawn_critical("deaf", std::future::pending::<()>());
        let started = Instant::now();
        tasks.run_until(at_once()).await.unwrap();
        assert_eq!(started.elapsed().as_secs(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_ends_the_wait() {
        let mut tasks = Tasks::new();
        tasks.spawn_critical("deaf", std::future::pending::<()>());
        let started = Instant::now();
        tasks.run_until(stream::iter(["SIGINT", "SIGINT"])).await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(1));
    }

    #[tokio::test]
    async fn a_critical_task_that_returns_ends_all_and_is_named() {
        let mut tasks = Tasks::new();
        add_patient(&mut tasks, "patient");
        tasks.spawn_critical("api", async {});
        let ended = tasks.run_until(never()).await.unwrap_err();
        assert_eq!(ended.to_string(), "api ended: it returned before shutdown");
    }

    #[tokio::test]
    async fn the_error_of_a_critical_task_is_reported_with_its_cause() {
        let mut tasks = Tasks::new();
        add_patient(&mut tasks, "patient");
        let cause = std::io::Error::other("address in use");
        tasks.spawn_critical("api", async {
            Err::<(), _>(super::super::LoopError::new("cannot listen", cause))
        });
        let ended = tasks.run_until(never()).await.unwrap_err();
        assert_eq!(ended.to_string(), "api ended: cannot listen: address in use");
    }

    #[tokio::test]
    async fn a_panic_is_not_swallowed() {
        let mut tasks = Tasks::new();
        add_patient(&mut tasks, "patient");
        let prefixes: Vec<String> = Vec::new();
        tasks.spawn_critical("reflector", async move { assert!(!prefixes.is_empty(), "no such prefix") });
        let ended = tasks.run_until(never()).await.unwrap_err();
        assert_eq!(ended.to_string(), "reflector ended: it panicked: no such prefix");
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_while_draining_is_reported() {
        let mut tasks = Tasks::new();
        let token = tasks.token();
        tasks.spawn_critical("late", async move {
            token.cancelled().await;
            assert!(!token.is_cancelled(), "while stopping");
        });
        let ended = tasks.run_until(at_once()).await.unwrap_err();
        assert_eq!(ended.to_string(), "late ended: it panicked: while stopping");
    }
}
