//! CPU, memory, disk and network use of containers and the machine, as counted by the kernel. A container's cgroup is
//! found from `/proc/<pid>/cgroup`, never guessed from the engine's naming.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::metrics::Traffic;

#[cfg(test)]
mod fake;
pub mod parse;
mod real;

#[cfg(test)]
pub use fake::FakeCgroups;
pub use real::RealCgroups;

/// Counters at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// CPU time used so far, in nanoseconds.
    pub cpu_ns: u64,
    /// Memory in use in bytes, without the page cache that is not in active use.
    pub memory_bytes: u64,
    /// Bytes read from and written to disks so far; `None` if the kernel does not count them here.
    pub io: Option<Traffic>,
}

/// Traffic of the machine's links.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkTraffic {
    /// Bytes received and transmitted so far by each link.
    pub links: BTreeMap<String, Traffic>,
    /// Link of the default route.
    pub uplink: Option<String>,
}

/// Version of the cgroup hierarchy that the kernel counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A separate hierarchy per controller.
    V1,
    /// A single hierarchy.
    V2,
}

/// The cgroups that count a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupPaths {
    pub version: Version,
    pub cpu: PathBuf,
    pub memory: PathBuf,
    /// `None` on a v1 machine without the controller `blkio`.
    pub io: Option<PathBuf>,
}

/// Failure to read counters.
#[derive(Debug, thiserror::Error)]
pub enum CgroupsError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot parse {path}: {why}")]
    Parse { path: PathBuf, why: String },
    #[error("no mounted cgroup counts process {pid}: {why}")]
    NoPlace { pid: i32, why: String },
}

/// The kernel's counters. Calls read a few small files and may block for that long.
pub trait Cgroups: Send + Sync + 'static {
    /// Counters of the whole machine.
    fn machine(&self) -> Result<Sample, CgroupsError>;
    /// Finds the cgroups of the container with this id and first process.
    fn place(&self, pid: i32, id: &str) -> Result<CgroupPaths, CgroupsError>;
    /// Counters of a container.
    fn read(&self, place: &CgroupPaths) -> Result<Sample, CgroupsError>;
    /// Counters of the machine's links.
    fn traffic(&self) -> Result<LinkTraffic, CgroupsError>;
}
