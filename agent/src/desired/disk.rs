//! Desired state on disk: `<state>/agent/desired/<ns>_<pod>.json` and `<state>/agent/subnet.json`.
//!
//! Every file is replaced as a whole (temporary file, fsync, rename). The marker `complete` means that the folder
//! once held a full list from etcd; without it the folder proves no removal.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use schema::codec::{content_hash, encode};
use schema::control::disk_record::{DiskRecord, Fsync, sync_folder};
use schema::meta::NamespacedName;
use schema::records::{Binding, Subnet};

use super::{DesiredState, StateOrigin};

const FOLDER: &str = "desired";
const MARKER: &str = "complete";
const SETTLED: &str = "settled";
const SUBNET: &str = "subnet.json";

/// Failure to read or write the desired state on disk.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    #[error("cannot use the folder {path}: {source}")]
    Folder { path: PathBuf, source: io::Error },
    #[error("cannot write {path}: {source}; free space there or make it writable")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot remove {path}: {source}")]
    Remove { path: PathBuf, source: io::Error },
    #[error("cannot encode the binding of {pod}: {message}")]
    Encode { pod: String, message: String },
}

/// The folder, and its content as known to this process.
#[derive(Debug)]
pub struct DesiredDisk {
    agent_dir: PathBuf,
    complete: bool,
    settled: bool,
    subnet: Option<Subnet>,
    /// Content of each file; `None` if it can't be read.
    files: BTreeMap<NamespacedName, Option<Binding>>,
}

/// Reads the node's range from disk.
pub fn known_subnet(agent_dir: &Path) -> Option<Subnet> {
    DiskRecord::new(agent_dir.join(SUBNET)).read_or_warn("the node's range")
}

impl DesiredDisk {
    pub(super) fn open(agent_dir: &Path) -> Result<(Self, DesiredState), DiskError> {
        let folder = agent_dir.join(FOLDER);
        let in_folder = |source| DiskError::Folder { path: folder.clone(), source };
        fs::create_dir_all(&folder).map_err(in_folder)?;
        let mut complete = folder.join(MARKER).exists();
        let settled = folder.join(SETTLED).exists();
        let mut found = DesiredState { settled, subnet: known_subnet(agent_dir), ..DesiredState::default() };
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&folder).map_err(in_folder)? {
            let path = entry.map_err(in_folder)?.path();
            let Some((pod, shortened)) = parse_file_name(&path) else { continue };
            match read(&path).and_then(|binding| named(binding, &path)) {
                Ok(binding) => {
                    let pod = binding.pod.reference();
                    files.insert(pod.clone(), Some(binding.clone()));
                    found.pods.insert(pod, binding);
                }
                Err(why) => {
                    // The pod of a shortened name is unknown, so the folder no longer proves removals.
                    complete &= !shortened;
                    tracing::warn!(path = %path.display(), error = %why, "desired state not read; its pod is kept as it is");
                    files.insert(pod.clone(), None);
                    found.unreadable.insert(pod, format!("{}: {why}", path.display()));
                }
            }
        }
        if complete {
            found.known_from = StateOrigin::Disk;
        }
        let disk =
            Self { agent_dir: agent_dir.to_owned(), complete, settled, subnet: found.subnet.clone(), files };
        Ok((disk, found))
    }

    /// Makes the folder hold exactly `desired`; files of unreadable pods stay unchanged.
    pub(super) fn store(&mut self, desired: &DesiredState) -> Result<(), DiskError> {
        let touched = self.store_pods(desired)?;
        self.store_subnet(desired.subnet.as_ref())?;
        self.store_markers(desired.settled, touched)
    }

    fn store_pods(&mut self, desired: &DesiredState) -> Result<bool, DiskError> {
        let (pods, keep) = (&desired.pods, &desired.unreadable);
        let folder = self.agent_dir.join(FOLDER);
        let mut touched = false;
        for (pod, binding) in pods {
            if self.files.get(pod).is_some_and(|known| known.as_ref() == Some(binding)) {
                continue;
            }
            let bytes = encode(binding)
                .map_err(|e| DiskError::Encode { pod: pod.to_string(), message: e.to_string() })?;
            replace(&folder.join(file_name(pod)), &bytes, Fsync::Content)?;
            self.files.insert(pod.clone(), Some(binding.clone()));
            touched = true;
        }
        let gone: Vec<NamespacedName> = self
            .files
            .keys()
            .filter(|pod| !pods.contains_key(*pod) && !keep.contains_key(*pod))
            .cloned()
            .collect();
        for pod in gone {
            remove(&folder.join(file_name(&pod)))?;
            self.files.remove(&pod);
            touched = true;
        }
        Ok(touched)
    }

    fn store_subnet(&mut self, subnet: Option<&Subnet>) -> Result<(), DiskError> {
        if subnet == self.subnet.as_ref() {
            return Ok(());
        }
        if let Some(subnet) = subnet {
            let bytes = encode(subnet)
                .map_err(|e| DiskError::Encode { pod: SUBNET.to_owned(), message: e.to_string() })?;
            replace(&self.agent_dir.join(SUBNET), &bytes, Fsync::All)?;
        }
        self.subnet = subnet.cloned();
        Ok(())
    }

    /// Writes the markers, after the files that they vouch for. A complete folder stays complete: while etcd is not
    /// settled nothing leaves it.
    fn store_markers(&mut self, settled: bool, touched: bool) -> Result<(), DiskError> {
        let folder = self.agent_dir.join(FOLDER);
        if touched {
            let failed = |source| DiskError::Folder { path: folder.clone(), source };
            sync_folder(&folder).map_err(failed)?;
        }
        for (marker, wanted, there) in
            [(MARKER, true, &mut self.complete), (SETTLED, settled, &mut self.settled)]
        {
            if wanted && !*there {
                replace(&folder.join(marker), b"", Fsync::All)?;
                *there = true;
            }
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<Binding, String> {
    let read = DiskRecord::new(path).read().map_err(|error| error.to_string())?;
    read.ok_or_else(|| "it is gone".to_owned())
}

fn named(binding: Binding, path: &Path) -> Result<Binding, String> {
    let said = binding.pod.reference();
    let fits = path.file_name().is_some_and(|name| name == file_name(&said).as_str());
    if fits { Ok(binding) } else { Err(format!("it is for {said}")) }
}

fn replace(path: &Path, bytes: &[u8], fsync: Fsync) -> Result<(), DiskError> {
    let failed = |source| DiskError::Write { path: path.to_owned(), source };
    DiskRecord::new(path).fsync(fsync).write_bytes(bytes).map_err(failed)
}

fn remove(path: &Path) -> Result<(), DiskError> {
    let failed = |source| DiskError::Remove { path: path.to_owned(), source };
    DiskRecord::new(path).remove().map_err(failed)
}

/// Longest file name that is written in full; the usual limit of a file system is 255 bytes.
const NAME_MAX: usize = 200;

/// File name of a pod: `<ns>_<pod>.json`. A `_` or `%` of the namespace is escaped, so that the first `_`
/// separates. A name too long for a file ends in `~` and a hash.
fn file_name(pod: &NamespacedName) -> String {
    let namespace = pod.namespace.replace('%', "%25").replace('_', "%5F");
    let stem = format!("{namespace}_{}", pod.name);
    if stem.len() <= NAME_MAX {
        return format!("{stem}.json");
    }
    let head: String = stem.chars().take(NAME_MAX / 2).collect();
    format!("{head}~{}.json", &content_hash(&stem)[..32])
}

/// Parses the pod from a file name; true if the name was shortened and gives only a part of it.
fn parse_file_name(path: &Path) -> Option<(NamespacedName, bool)> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".json")?;
    let (namespace, name) = stem.split_once('_')?;
    let pod = NamespacedName::new(namespace.replace("%5F", "_").replace("%25", "%"), name);
    Some((pod, stem.contains('~')))
}
