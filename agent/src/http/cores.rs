//! A thread with its own runtime for each core: a client's connection and the endpoint connections that it uses
//! stay on one core, so requests wake no other thread.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::{future, io};

use tokio::runtime::{Builder, Handle, RuntimeFlavor};

/// Upper bound on threads, so that a large machine does not keep hundreds of idle connections per endpoint.
const MAX_THREADS: usize = 8;

/// Returns the number of cores that serve connections; core numbers are below it.
pub fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS))
}

/// Threads shared by all servers of the process, for its lifetime: a client of one server may use a connection
/// whose task runs where another server's connection opened it.
#[derive(Debug, Default)]
pub(super) struct Cores {
    runtimes: Vec<Handle>,
    next: AtomicUsize,
}

impl Cores {
    /// Returns the threads of this process; `None` in a current-thread runtime, where a test may pause the clock.
    pub(super) fn of_process() -> Option<&'static Self> {
        static CORES: OnceLock<Cores> = OnceLock::new();
        (Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread)
            .then(|| CORES.get_or_init(Self::start))
    }

    fn start() -> Self {
        let started = (0..count()).map(start).filter_map(|started| {
            started.inspect_err(|error| tracing::warn!(%error, "cannot start a thread for connections")).ok()
        });
        Self { runtimes: started.collect(), next: AtomicUsize::new(0) }
    }

    /// Returns the core for the next connection: its number and its runtime.
    pub(super) fn next(&self) -> (usize, Handle) {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        match self.runtimes.len() {
            0 => (0, Handle::current()),
            threads => (turn % threads, self.runtimes[turn % threads].clone()),
        }
    }
}

fn start(number: usize) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let name = format!("connections-{number}");
    thread::Builder::new().name(name).spawn(move || runtime.block_on(future::pending::<()>()))?;
    Ok(handle)
}
