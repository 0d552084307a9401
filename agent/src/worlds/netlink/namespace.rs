//! Network namespaces: a short-lived thread enters one and opens a socket there.
//!
//! A socket stays in the namespace it was opened in, so the agent's own threads never move.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::fcntl::{OFlag, open, openat};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{Mode, fstat};

/// A process that can't be confused with a later one of the same pid: once it has ended, every query through this
/// handle fails.
#[derive(Debug)]
pub(super) struct PinnedProcess(OwnedFd);

impl PinnedProcess {
    /// Opens the process that currently has this pid.
    pub(super) fn open(pid: i32) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self(open(Path::new(&format!("/proc/{pid}")), flags, Mode::empty())?))
    }

    /// True if the process is in the cgroup of this container. Docker puts the container's full id into cgroup
    /// names, with any driver and version of cgroups.
    pub(super) fn is_of_container(&self, id: &str) -> io::Result<bool> {
        let mut text = String::new();
        self.file("cgroup")?.read_to_string(&mut text)?;
        Ok(!id.is_empty() && text.contains(id))
    }

    /// Network namespace of the process.
    pub(super) fn network(&self) -> io::Result<NetworkNamespace> {
        self.file("ns/net").map(NetworkNamespace)
    }

    fn file(&self, name: &str) -> io::Result<File> {
        Ok(File::from(openat(&self.0, name, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?))
    }
}

/// An open network namespace, which lives at least as long as this.
#[derive(Debug)]
pub(super) struct NetworkNamespace(File);

impl NetworkNamespace {
    /// Opens the namespace of a process.
    #[cfg(test)]
    pub(super) fn of_process(pid: i32) -> io::Result<Self> {
        Self::at(Path::new(&format!("/proc/{pid}/ns/net")))
    }

    /// Opens the namespace at this path.
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    /// Creates a namespace without a name, which lives until its last process or handle is gone.
    pub(super) fn fresh() -> io::Result<Self> {
        let thread = std::thread::Builder::new().name("netns".into()).spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Self::at(Path::new("/proc/thread-self/ns/net"))
        })?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace panicked")))
    }

    /// True for the same namespace.
    pub(super) fn is(&self, other: &Self) -> io::Result<bool> {
        let mine = fstat(&self.0)?;
        let others = fstat(&other.0)?;
        Ok(mine.st_ino == others.st_ino && mine.st_dev == others.st_dev)
    }

    /// Duplicates the handle.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// The open file, to hand to the kernel.
    pub(super) fn file(&self) -> &File {
        &self.0
    }

    /// Runs `work` on a new thread inside the namespace. Takes 0.1 ms and blocks for it.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("netns".into()).spawn_scoped(scope, || {
                setns(self.0.as_fd(), CloneFlags::CLONE_NEWNET)?;
                work()
            })?;
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace panicked")))
        })
    }
}
