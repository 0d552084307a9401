//! A thread for each core, with a runtime of its own: a connection and the connections to endpoints that it uses stay on
//! one core, so that requests wake no other thread.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::runtime::{Builder, Handle, RuntimeFlavor};
use tokio_util::sync::{CancellationToken, DropGuard};

/// More threads than this would not make a proxy quicker.
const MOST: usize = 8;

/// How many threads [`Cores`] has at most.
pub fn count() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(MOST)
}

/// The threads; they end when this is dropped.
#[derive(Debug)]
pub(super) struct Cores {
    runtimes: Vec<Handle>,
    next: AtomicUsize,
    _ends: DropGuard,
}

impl Cores {
    /// Starts the threads. None within a runtime of one thread, where there is nothing to spread and a test may hold the
    /// clock.
    ///
    /// # Errors
    /// The kernel's, if it gives no more threads or files.
    pub(super) fn start() -> io::Result<Self> {
        let end = CancellationToken::new();
        let wanted = match Handle::current().runtime_flavor() {
            RuntimeFlavor::CurrentThread => 0,
            _ => count(),
        };
        let mut runtimes = Vec::new();
        for number in 0..wanted {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtimes.push(runtime.handle().clone());
            let end = end.clone();
            let name = format!("connections-{number}");
            thread::Builder::new().name(name).spawn(move || runtime.block_on(end.cancelled()))?;
        }
        Ok(Self { runtimes, next: AtomicUsize::new(0), _ends: end.drop_guard() })
    }

    /// The core for the next connection: its number, below [`count`], and its runtime.
    pub(super) fn next(&self) -> (usize, Handle) {
        if self.runtimes.is_empty() {
            return (0, Handle::current());
        }
        let core = self.next.fetch_add(1, Ordering::Relaxed) % self.runtimes.len();
        (core, self.runtimes[core].clone())
    }
}
