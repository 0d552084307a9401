//! Metrics of the process itself: its version, and those that all Prometheus clients have, under their names.

use std::sync::LazyLock;

use jiff::Timestamp;
use procfs::process::Process;

use super::family::{FamilyInfo, StateFamily, unix_seconds};

static BUILD: FamilyInfo =
    FamilyInfo::gauge("minik8s_build_info", "Always 1; the label has the version", &["version"]);
static CPU: FamilyInfo = FamilyInfo::counter("process_cpu_seconds", "CPU time used by this process", &[]);
static MEMORY: FamilyInfo =
    FamilyInfo::gauge("process_resident_memory_bytes", "Resident memory of this process", &[]);
static FILES: FamilyInfo = FamilyInfo::gauge("process_open_fds", "Open files of this process", &[]);
static STARTED: FamilyInfo =
    FamilyInfo::gauge("process_start_time_seconds", "Start of this process as Unix time", &[]);

/// The families of [`build_info`] and [`process_families`].
pub(super) static INFOS: [&FamilyInfo; 5] = [&BUILD, &CPU, &MEMORY, &FILES, &STARTED];

/// Time of the first [`note_start`]. The kernel's time of start counts from the boot, whose time is in files that a
/// service with `ProcSubset=pid` cannot read.
static START: LazyLock<Timestamp> = LazyLock::new(Timestamp::now);

/// Takes the time of the process' start, if that has not been done.
pub(super) fn note_start() {
    LazyLock::force(&START);
}

/// Returns the family with a daemon's version.
pub fn build_info(version: &str) -> StateFamily {
    let mut family = StateFamily::new(&BUILD);
    family.add([version], 1.0);
    family
}

/// Returns CPU time, memory, open files and start of this process. Leaves out what `/proc` does not tell.
pub fn process_families() -> Vec<StateFamily> {
    let mut families = vec![StateFamily::single(&STARTED, unix_seconds(*START))];
    let Ok(process) = Process::myself() else { return families };
    if let Ok(stat) = process.stat() {
        let ticks = procfs::ticks_per_second() as f64;
        families.push(StateFamily::single(&CPU, (stat.utime + stat.stime) as f64 / ticks));
        families.push(StateFamily::single(&MEMORY, (stat.rss * procfs::page_size()) as f64));
    }
    families.extend(process.fd_count().ok().map(|count| StateFamily::single(&FILES, count as f64)));
    families
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_files_and_a_start() {
        let families = [process_families(), vec![build_info("1.2.3")]].concat();
        let value = |info: &FamilyInfo| {
            let family = families.iter().find(|family| family.info == info).unwrap();
            family.samples[0].1
        };
        assert_eq!(families.len(), INFOS.len(), "{families:?}");
        assert!(value(&MEMORY) > 0.0 && value(&FILES) > 0.0 && value(&CPU) >= 0.0, "{families:?}");
        assert!(value(&STARTED) > 0.0 && value(&STARTED) <= unix_seconds(Timestamp::now()), "{families:?}");
        assert!(process_families().contains(&families[0]), "the start stays the same");
    }
}
