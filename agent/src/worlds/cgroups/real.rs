//! Counters from the kernel's own files.

use std::fs;
use std::path::{Path, PathBuf};

use super::parse::{cpu_ns, machine_cpu_ns, machine_memory, place, working_set};
use super::{CgroupPaths, Cgroups, CgroupsError, Sample, Version};

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
        Ok(Sample { cpu_ns, memory_bytes })
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
        let (cpu, memory) = match place.version {
            Version::V1 => ("cpuacct.usage", "memory.usage_in_bytes"),
            Version::V2 => ("cpu.stat", "memory.current"),
        };
        let (path, text) = read(place.cpu.join(cpu))?;
        let cpu_ns = unclear(&path, cpu_ns(place.version, &text), "no CPU time")?;
        let (_, usage) = read(place.memory.join(memory))?;
        let (path, stat) = read(place.memory.join("memory.stat"))?;
        let memory_bytes =
            unclear(&path, working_set(place.version, &usage, &stat), "no inactive file cache")?;
        Ok(Sample { cpu_ns, memory_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(cgroups.read(&place).unwrap(), Sample { cpu_ns: 42_000, memory_bytes: 4000 });
        // Red without the check of the id: another process has the number now.
        assert!(matches!(cgroups.place(7, "def"), Err(CgroupsError::NoPlace { .. })));
        assert!(matches!(cgroups.place(8, "abc"), Err(CgroupsError::Read { .. })));
    }
}
