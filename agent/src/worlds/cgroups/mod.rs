//! What containers and the machine use, as the kernel counts it. A container's place is found from
//! `/proc/<pid>/cgroup`, never by guessing how its engine names it.

use std::path::PathBuf;

#[cfg(test)]
mod fake;
pub mod parse;
mod real;

#[cfg(test)]
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
    pub version: Version,
    pub cpu: PathBuf,
    pub memory: PathBuf,
}

/// Why nothing was counted.
#[derive(Debug, thiserror::Error)]
pub enum CgroupsError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot make sense of {path}: {why}")]
    Parse { path: PathBuf, why: String },
    #[error("no mounted cgroup counts process {pid}: {why}")]
    NoPlace { pid: i32, why: String },
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
