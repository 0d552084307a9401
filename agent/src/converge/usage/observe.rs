//! Measures running containers: Docker's listing, the kernel's counters, the files in volumes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use schema::control::LoopError;
use schema::meta::NamespacedName;
use schema::records::DiskSpace;
use tokio::time::Instant;

use super::UsageLoop;
use super::plan::{ContainerSample, Observed, PreviousSample, VolumeSizes};
use crate::names;
use crate::worlds::cgroups::{CgroupPaths, Cgroups, CgroupsError, LinkTraffic, Sample};
use crate::worlds::docker::{DockerError, EngineState, ListedContainer};

/// Interval between walks through the volumes of a pod.
const WALK_INTERVAL: Duration = Duration::from_secs(60);

/// Delay before a failed inspect is retried: a container on which Docker hangs costs time.
const OPAQUE_INTERVAL: Duration = Duration::from_secs(300);

/// Counters of one sample: all blocking reads together.
struct Counts {
    machine: Result<Sample, CgroupsError>,
    containers: BTreeMap<String, Result<Sample, CgroupsError>>,
    traffic: Result<LinkTraffic, CgroupsError>,
}

impl UsageLoop {
    pub(super) async fn gather(&mut self) -> Result<Observed, LoopError> {
        let rows = self.deps.docker.list(&self.deps.instance).await;
        let rows = rows.map_err(|error| LoopError::new("cannot list the containers", error))?;
        let uids = rows.iter().map(|row| label(row, names::UID)).collect();
        let rows: Vec<ListedContainer> = rows.into_iter().filter(is_app_and_runs).collect();
        self.find_cgroups(&rows).await?;
        self.walk(&rows).await;
        let at = Instant::now();
        let counts = self.count().await?;
        let machine =
            counts.machine.map_err(|error| LoopError::new("cannot read the machine's usage", error))?;
        let mut containers = BTreeMap::new();
        for row in &rows {
            let (Some((_, started_at)), Some(counted)) =
                (self.known.get(&row.id), counts.containers.get(&row.id))
            else {
                continue;
            };
            match counted {
                Ok(sample) => {
                    containers.insert(row.id.clone(), container_sample(row, *started_at, *sample));
                }
                // Ended since the listing.
                Err(error) => {
                    tracing::debug!(container_id = row.id, %error, "usage not counted");
                    self.known.remove(&row.id);
                }
            }
        }
        let cpu = containers.iter().map(|(id, counted)| (id.clone(), counted.sample.cpu_ns)).collect();
        let now = PreviousSample { machine: machine.cpu_ns, containers: cpu };
        let former = self.former.replace((now, at)).map(|(former, then)| (former, at.duration_since(then)));
        let traffic = counts.traffic.unwrap_or_else(|error| {
            tracing::debug!(%error, "traffic of the machine's links not counted");
            LinkTraffic::default()
        });
        let volumes = self.walked.iter().map(|(uid, (_, volumes))| (uid.clone(), volumes.clone())).collect();
        let disk = self.deps.disk.usage(&self.deps.state_dir).await.ok();
        let disk =
            disk.map(|disk| DiskSpace { total_bytes: disk.total_bytes(), free_bytes: disk.free_bytes });
        Ok(Observed { machine, running: rows.len(), containers, uids, traffic, volumes, disk, former })
    }

    /// Finds the cgroup of each container, once for each.
    async fn find_cgroups(&mut self, rows: &[ListedContainer]) -> Result<(), LoopError> {
        let here: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
        self.known.retain(|id, _| here.contains(id.as_str()));
        let now = Instant::now();
        self.uninspectable.retain(|id, until| here.contains(id.as_str()) && *until > now);
        for row in rows {
            if self.known.contains_key(&row.id) || self.uninspectable.contains_key(&row.id) {
                continue;
            }
            let details = match self.deps.docker.inspect(&row.id).await {
                Ok(details) => details,
                Err(DockerError::NotFound { .. }) => continue,
                Err(error @ DockerError::Unreachable { .. }) => {
                    return Err(LoopError::new("cannot inspect a container", error));
                }
                // A container that can't be inspected hides no other.
                Err(error) => {
                    tracing::warn!(container_id = row.id, %error, "usage of a container not measured");
                    self.uninspectable.insert(row.id.clone(), Instant::now() + OPAQUE_INTERVAL);
                    continue;
                }
            };
            // Reads three small files of /proc, once in a container's life.
            match self.deps.cgroups.place(details.pid, &row.id) {
                Ok(place) => {
                    self.known.insert(row.id.clone(), (place, details.started_at));
                    self.has_warned = false;
                }
                // One warning, not one for each container every 15 s.
                Err(error @ CgroupsError::NoPlace { .. }) if !self.has_warned => {
                    self.has_warned = true;
                    tracing::warn!(container_id = row.id, %error, "usage of containers not measured: their cgroups were not found");
                }
                Err(error) => tracing::debug!(container_id = row.id, %error, "usage not counted yet"),
            }
        }
        Ok(())
    }

    async fn count(&self) -> Result<Counts, LoopError> {
        let cgroups: Arc<dyn Cgroups> = Arc::clone(&self.deps.cgroups);
        let places: Vec<(String, CgroupPaths)> =
            self.known.iter().map(|(id, (place, _))| (id.clone(), place.clone())).collect();
        let count = move || Counts {
            machine: cgroups.machine(),
            containers: places.into_iter().map(|(id, place)| (id, cgroups.read(&place))).collect(),
            traffic: cgroups.traffic(),
        };
        let counted = tokio::task::spawn_blocking(count).await;
        counted.map_err(|error| LoopError::new("cannot read the kernel's counters", error))
    }

    /// Walks through the volumes of the pods that are due.
    async fn walk(&mut self, rows: &[ListedContainer]) {
        let uids: BTreeSet<String> = rows.iter().map(|row| label(row, names::UID)).collect();
        self.walked.retain(|uid, _| uids.contains(uid));
        let now = Instant::now();
        let fresh = |(at, _): &(Instant, VolumeSizes)| now.duration_since(*at) < WALK_INTERVAL;
        let due: Vec<(String, PathBuf)> = uids
            .into_iter()
            .filter(|uid| !self.walked.get(uid).is_some_and(fresh))
            .map(|uid| (uid.clone(), names::volume_dir(&self.deps.state_dir, &uid, "")))
            .collect();
        if due.is_empty() {
            return;
        }
        let walk = move || -> Vec<(String, VolumeSizes)> {
            due.into_iter().map(|(uid, folder)| (uid, volumes(&folder))).collect()
        };
        // Fails only when the runtime shuts down.
        for (uid, volumes) in tokio::task::spawn_blocking(walk).await.unwrap_or_default() {
            self.walked.insert(uid, (now, volumes));
        }
    }
}

/// True for a running container of a user; the pause container is ours.
fn is_app_and_runs(row: &ListedContainer) -> bool {
    let container = label(row, names::CONTAINER);
    row.state == EngineState::Running && !container.is_empty() && container != names::PAUSE
}

fn label(row: &ListedContainer, key: &str) -> String {
    row.labels.get(key).cloned().unwrap_or_default()
}

fn container_sample(row: &ListedContainer, started_at: Option<Timestamp>, sample: Sample) -> ContainerSample {
    ContainerSample {
        pod: NamespacedName::new(label(row, names::NAMESPACE), label(row, names::POD)),
        uid: label(row, names::UID),
        container: label(row, names::CONTAINER),
        started_at,
        sample,
    }
}

// Sizes of the volumes of a pod: blocks on disk, as `du` counts them.

/// Maximum number of files and folders counted in one volume: 50,000 take about 0.1 s, once a minute.
const ENTRIES_MAX: usize = 50_000;

/// Maximum number of bytes in the paths of pending folders: a container may make each of them as long as a path can
/// be.
const PATHS_BYTES_MAX: usize = 4 << 20;

/// The kernel counts blocks of 512 bytes, whatever the file system's are.
const BLOCK_BYTES: u64 = 512;

/// Returns the size of each volume in a pod's folder of volumes. Unreadable files count as nothing.
pub(super) fn volumes(folder: &Path) -> VolumeSizes {
    let mut found = VolumeSizes::default();
    let Ok(entries) = fs::read_dir(folder) else { return found };
    for entry in entries.flatten() {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let Some(name) = entry.file_name().to_str().filter(|_| is_folder).map(str::to_owned) else {
            continue;
        };
        let (bytes, whole) = size(&entry.path(), ENTRIES_MAX);
        if !whole {
            found.at_least.push(name.clone());
        }
        found.bytes.insert(name, bytes);
    }
    found.at_least.sort();
    found
}

/// Returns the bytes below `root`, and whether everything was counted. Never leaves its file system, and follows no
/// link: a container may put anything there.
fn size(root: &Path, entries_max: usize) -> (u64, bool) {
    let Ok(own) = fs::symlink_metadata(root) else { return (0, true) };
    let (mut bytes, mut left) = (0_u64, entries_max);
    let mut linked = BTreeSet::new();
    let mut folders: Vec<PathBuf> = vec![root.to_owned()];
    let (mut paths_bytes, mut whole) = (root.as_os_str().len(), true);
    while let Some(folder) = folders.pop() {
        paths_bytes -= folder.as_os_str().len();
        match fs::symlink_metadata(&folder) {
            Ok(there) if there.is_dir() => {}
            // Nested folders, deeper than the kernel accepts in a path.
            Err(error) if error.raw_os_error() == Some(nix::libc::ENAMETOOLONG) => {
                whole = false;
                continue;
            }
            // Removed since, or replaced by a link, which `read_dir` would follow.
            _ => continue,
        }
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            if left == 0 {
                return (bytes, false);
            }
            left -= 1;
            let Ok(facts) = entry.metadata() else { continue };
            if facts.dev() != own.dev() || facts.nlink() > 1 && !facts.is_dir() && !linked.insert(facts.ino())
            {
                continue;
            }
            bytes = bytes.saturating_add(facts.blocks().saturating_mul(BLOCK_BYTES));
            if facts.is_dir() {
                let folder = entry.path();
                paths_bytes += folder.as_os_str().len();
                folders.push(folder);
                if paths_bytes > PATHS_BYTES_MAX {
                    return (bytes, false);
                }
            }
        }
    }
    (bytes, whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red when links are followed, and when hard links are counted twice.
    #[test]
    fn files_are_counted_once_and_links_lead_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("volumes/data");
        fs::create_dir_all(data.join("deep")).unwrap();
        fs::write(dir.path().join("outside"), vec![1; 3 << 20]).unwrap();
        fs::write(data.join("deep/file"), vec![1; 1 << 20]).unwrap();
        fs::hard_link(data.join("deep/file"), data.join("again")).unwrap();
        std::os::unix::fs::symlink(dir.path(), data.join("up")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("outside"), data.join("file")).unwrap();
        let found = volumes(&dir.path().join("volumes"));
        let bytes = found.bytes["data"];
        assert!((1 << 20..(1 << 20) + 65_536).contains(&bytes), "{bytes}");
        assert!(found.at_least.is_empty());
        assert_eq!(volumes(&dir.path().join("nothing")), VolumeSizes::default());
    }

    #[test]
    fn a_volume_of_very_many_files_is_counted_in_part_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..10 {
            fs::write(dir.path().join(number.to_string()), "x").unwrap();
        }
        assert!(!size(dir.path(), 9).1);
        assert!(size(dir.path(), 10).1);
    }

    // Seen red with a `size` that skips folders that it can't open.
    #[test]
    fn a_volume_deeper_than_a_path_may_be_is_counted_in_part_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("data")).unwrap();
        crate::trees::tests::nest(&dir.path().join("data"), 5000);
        let (bytes, whole) = size(dir.path(), ENTRIES_MAX);
        assert!(bytes > 0 && !whole);
        crate::trees::remove(dir.path(), "data").unwrap();
    }
}
