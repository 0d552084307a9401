//! What containers and the machine use, as the kernel counts it: one small trait, the real files of
//! cgroup v1 and v2, and a scripted one.
//!
//! A container's place is found from `/proc/<pid>/cgroup`, never by guessing how its engine names it.

use std::path::PathBuf;

mod fake;
pub mod parse;
mod real;

pub use fake::FakeCgroups;
pub use real::RealCgroups;

/// What was counted at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// CPU time used so far, in nanoseconds.
    pub cpu_ns: u64,
    /// Memory in use in bytes, without the page cache that is not in active use.
    pub memory_bytes: u64,
}

/// Which cgroup hierarchy the kernel counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy per controller.
    V1,
    /// One for all.
    V2,
}

/// Where one container is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// How the files there are called.
    pub version: Version,
    /// Folder of its CPU time.
    pub cpu: PathBuf,
    /// Folder of its memory.
    pub memory: PathBuf,
}

/// Why nothing was counted.
#[derive(Debug, thiserror::Error)]
pub enum CgroupsError {
    /// A file can't be read: the container has ended, or the kernel does not count.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file says something else than the kernel documents.
    #[error("cannot make sense of {path}: {why}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is missing.
        why: String,
    },
    /// The process is not that container's, or not counted where this process can see it.
    #[error("process {pid} is counted nowhere that is mounted here: {why}")]
    NoPlace {
        /// The process.
        pid: i32,
        /// Why.
        why: String,
    },
}

/// The kernel's counters. Calls read a few small files and may block for that long.
pub trait Cgroups: Send + Sync + 'static {
    /// The whole machine.
    fn machine(&self) -> Result<Sample, CgroupsError>;
    /// Where the container with this id and first process is counted.
    fn place(&self, pid: i32, id: &str) -> Result<Place, CgroupsError>;
    /// What is counted there.
    fn read(&self, place: &Place) -> Result<Sample, CgroupsError>;
}
