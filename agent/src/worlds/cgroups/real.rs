//! Counters from the kernel's own files.

use std::fs;
use std::path::{Path, PathBuf};

use super::parse::{cpu_ns, io, link_traffic, machine_cpu_ns, machine_memory, place, uplink, working_set};
use super::{CgroupPaths, Cgroups, CgroupsError, LinkTraffic, Sample, Version};

/// Cgroups of this machine's kernel.
#[derive(Debug, Clone)]
pub struct RealCgroups {
    proc: PathBuf,
}

impl RealCgroups {
    /// Creates a reader of this machine's `/proc`.
    pub fn new() -> Self {
        Self { proc: "/proc".into() }
    }

    fn proc(&self, file: &str) -> Result<(PathBuf, String), CgroupsError> {
        read(self.proc.join(file))
    }
}

impl Default for RealCgroups {
    fn default() -> Self {
        Self::new()
    }
}

fn read(path: PathBuf) -> Result<(PathBuf, String), CgroupsError> {
    match fs::read_to_string(&path) {
        Ok(text) => Ok((path, text)),
        Err(source) => Err(CgroupsError::Read { path, source }),
    }
}

fn unclear<T>(path: &Path, number: Option<T>, why: &str) -> Result<T, CgroupsError> {
    number.ok_or_else(|| CgroupsError::Parse { path: path.to_owned(), why: why.to_owned() })
}

impl Cgroups for RealCgroups {
    fn machine(&self) -> Result<Sample, CgroupsError> {
        let (path, stat) = self.proc("stat")?;
        let cpu_ns = unclear(&path, machine_cpu_ns(&stat), "no line for all processors")?;
        let (path, meminfo) = self.proc("meminfo")?;
        let memory_bytes = unclear(&path, machine_memory(&meminfo), "no MemTotal and MemFree")?;
        Ok(Sample { cpu_ns, memory_bytes, io: None })
    }

    fn place(&self, pid: i32, id: &str) -> Result<CgroupPaths, CgroupsError> {
        let (_, cgroup) = self.proc(&format!("{pid}/cgroup"))?;
        let (_, mountinfo) = self.proc("self/mountinfo")?;
        let found = place(&cgroup, &mountinfo).map_err(|why| CgroupsError::NoPlace { pid, why })?;
        // The pid may have been reused; every cgroup driver puts the container id into the path.
        if found.memory.to_string_lossy().contains(id) {
            return Ok(found);
        }
        let why = format!("{} does not belong to container {id}", found.memory.display());
        Err(CgroupsError::NoPlace { pid, why })
    }

    fn read(&self, place: &CgroupPaths) -> Result<Sample, CgroupsError> {
        let (cpu, memory, disks) = match place.version {
            Version::V1 => ("cpuacct.usage", "memory.usage_in_bytes", "blkio.throttle.io_service_bytes"),
            Version::V2 => ("cpu.stat", "memory.current", "io.stat"),
        };
        let (path, text) = read(place.cpu.join(cpu))?;
        let cpu_ns = unclear(&path, cpu_ns(place.version, &text), "no CPU time")?;
        let (_, usage) = read(place.memory.join(memory))?;
        let (path, stat) = read(place.memory.join("memory.stat"))?;
        let memory_bytes =
            unclear(&path, working_set(place.version, &usage, &stat), "no inactive file cache")?;
        // Without the controller there is no such file.
        let disks = place.io.as_ref().and_then(|folder| fs::read_to_string(folder.join(disks)).ok());
        Ok(Sample { cpu_ns, memory_bytes, io: disks.as_deref().map(io) })
    }

    fn traffic(&self) -> Result<LinkTraffic, CgroupsError> {
        let (path, dev) = self.proc("net/dev")?;
        let links = link_traffic(&dev).map_err(|why| CgroupsError::Parse { path, why })?;
        let uplink = self.proc("net/route").ok().and_then(|(_, route)| uplink(&route));
        Ok(LinkTraffic { links, uplink })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Traffic;

    /// A machine as a folder: v2 is not available on every machine that runs the tests.
    #[test]
    fn a_container_on_v2_is_found_from_its_process_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let (proc, group) = (dir.path().join("proc"), dir.path().join("cg/system.slice/docker-abc.scope"));
        for folder in [proc.join("7"), proc.join("self"), group.clone()] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(proc.join("7/cgroup"), "0::/system.slice/docker-abc.scope\n").unwrap();
        let mounts = format!("29 23 0:26 / {}/cg rw - cgroup2 cgroup2 rw\n", dir.path().display());
        fs::write(proc.join("self/mountinfo"), mounts).unwrap();
        fs::write(group.join("cpu.stat"), "usage_usec 42\n").unwrap();
        fs::write(group.join("memory.current"), "4096\n").unwrap();
        fs::write(group.join("memory.stat"), "anon 1\ninactive_file 96\n").unwrap();
        let cgroups = RealCgroups { proc };
        let place = cgroups.place(7, "abc").unwrap();
        let mut sample = Sample { cpu_ns: 42_000, memory_bytes: 4000, io: None };
        assert_eq!(cgroups.read(&place).unwrap(), sample);
        fs::write(group.join("io.stat"), "8:0 rbytes=5 wbytes=6 rios=1 wios=1 dbytes=0 dios=0\n").unwrap();
        sample.io = Some(Traffic { input: 5, output: 6 });
        assert_eq!(cgroups.read(&place).unwrap(), sample);
        // Red without the check of the id: another process has the number now.
        assert!(matches!(cgroups.place(7, "def"), Err(CgroupsError::NoPlace { .. })));
        assert!(matches!(cgroups.place(8, "abc"), Err(CgroupsError::Read { .. })));
    }
}
