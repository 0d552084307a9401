//! Metrics of the process itself, with the names that all Prometheus clients use.

use procfs::process::Process;
use procfs::{Current as _, Uptime};
use std::time::{SystemTime, UNIX_EPOCH};

use super::family::{FamilyInfo, StateFamily};

static CPU: FamilyInfo = FamilyInfo::counter("process_cpu_seconds", "CPU time of this process", &[]);
static MEMORY: FamilyInfo = FamilyInfo::gauge("process_resident_memory_bytes", "Memory of this process", &[]);
static FILES: FamilyInfo = FamilyInfo::gauge("process_open_fds", "Open files of this process", &[]);
static STARTED: FamilyInfo =
    FamilyInfo::gauge("process_start_time_seconds", "Start of this process as Unix time", &[]);

/// The families of [`process_families`].
pub(super) static INFOS: [&FamilyInfo; 4] = [&CPU, &MEMORY, &FILES, &STARTED];

/// Returns CPU time, memory, open files and start of this process. Leaves out what `/proc` does not tell.
pub fn process_families() -> Vec<StateFamily> {
    let Ok(process) = Process::myself() else { return Vec::new() };
    let mut families = Vec::new();
    if let Ok(stat) = process.stat() {
        let ticks = procfs::ticks_per_second() as f64;
        families.push(StateFamily::single(&CPU, (stat.utime + stat.stime) as f64 / ticks));
        families.push(StateFamily::single(&MEMORY, (stat.rss * procfs::page_size()) as f64));
        if let Ok(uptime) = Uptime::current() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            let started = now - uptime.uptime + stat.starttime as f64 / ticks;
            families.push(StateFamily::single(&STARTED, started.round()));
        }
    }
    families.extend(process.fd_count().ok().map(|count| StateFamily::single(&FILES, count as f64)));
    families
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_files() {
        let families = process_families();
        assert_eq!(families.len(), INFOS.len(), "{families:?}");
        let values = || families.iter().flat_map(|family| &family.samples).map(|(_, value)| *value);
        assert!(values().all(|value| value >= 0.0), "{families:?}");
    }
}
