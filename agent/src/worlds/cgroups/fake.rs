//! Counters set by a test.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

use schema::control::lock;

use super::{CgroupPaths, Cgroups, CgroupsError, LinkTraffic, Sample, Version};

/// Counters in memory, by container id; the machine's have the empty id.
#[derive(Debug, Default)]
pub struct FakeCgroups {
    samples: Mutex<BTreeMap<String, Sample>>,
    traffic: Mutex<LinkTraffic>,
}

impl FakeCgroups {
    /// Sets the counters of the container, or of the machine.
    pub fn set(&self, id: &str, cpu_ns: u64, memory_bytes: u64) {
        self.put(id, Sample { cpu_ns, memory_bytes, io: None });
    }

    /// Sets all counters of the container.
    pub fn put(&self, id: &str, sample: Sample) {
        lock(&self.samples).insert(id.to_owned(), sample);
    }

    /// Sets the counters of the machine's links.
    pub fn set_traffic(&self, traffic: LinkTraffic) {
        *lock(&self.traffic) = traffic;
    }

    /// Removes the container's counters.
    pub fn end(&self, id: &str) {
        lock(&self.samples).remove(id);
    }

    fn get(&self, id: &str) -> Result<Sample, CgroupsError> {
        let samples = lock(&self.samples);
        let gone = || CgroupsError::Read { path: id.into(), source: std::io::ErrorKind::NotFound.into() };
        samples.get(id).copied().ok_or_else(gone)
    }
}

impl Cgroups for FakeCgroups {
    fn machine(&self) -> Result<Sample, CgroupsError> {
        self.get("")
    }

    fn place(&self, _pid: i32, id: &str) -> Result<CgroupPaths, CgroupsError> {
        let (version, folder) = (Version::V2, PathBuf::from(id));
        let io = Some(folder.clone());
        self.get(id).map(|_| CgroupPaths { version, cpu: folder.clone(), memory: folder, io })
    }

    fn read(&self, place: &CgroupPaths) -> Result<Sample, CgroupsError> {
        self.get(&place.memory.to_string_lossy())
    }

    fn traffic(&self) -> Result<LinkTraffic, CgroupsError> {
        Ok(lock(&self.traffic).clone())
    }
}
