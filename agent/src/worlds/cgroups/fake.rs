//! Counters set by a test.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

use schema::control::lock;

use super::{CgroupPaths, Cgroups, CgroupsError, Sample, Version};

/// Counters in memory, by container id; the machine's have the empty id.
#[derive(Debug, Default)]
pub struct FakeCgroups(Mutex<BTreeMap<String, Sample>>);

impl FakeCgroups {
    /// Sets the counters of the container, or of the machine.
    pub fn set(&self, id: &str, cpu_ns: u64, memory_bytes: u64) {
        let mut samples = lock(&self.0);
        samples.insert(id.to_owned(), Sample { cpu_ns, memory_bytes });
    }

    /// Removes the container's counters.
    pub fn end(&self, id: &str) {
        lock(&self.0).remove(id);
    }

    fn get(&self, id: &str) -> Result<Sample, CgroupsError> {
        let samples = lock(&self.0);
        let gone = || CgroupsError::Read { path: id.into(), source: std::io::ErrorKind::NotFound.into() };
        samples.get(id).copied().ok_or_else(gone)
    }
}

impl Cgroups for FakeCgroups {
    fn machine(&self) -> Result<Sample, CgroupsError> {
        self.get("")
    }

    fn place(&self, _pid: i32, id: &str) -> Result<CgroupPaths, CgroupsError> {
        let folder = PathBuf::from(id);
        self.get(id).map(|_| CgroupPaths { version: Version::V2, cpu: folder.clone(), memory: folder })
    }

    fn read(&self, place: &CgroupPaths) -> Result<Sample, CgroupsError> {
        self.get(&place.memory.to_string_lossy())
    }
}
