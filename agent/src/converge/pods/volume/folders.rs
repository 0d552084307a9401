//! Folders of pods on the node's disk: listing and removal.
//!
//! Every function blocks, is called on a blocking thread, and is safe to repeat.

use std::fs;
use std::path::Path;

use super::spec::VolumeError;
use crate::{mounts, names, trees};

/// Removes the `subPath` mounts of one start of one container.
pub fn remove_sub_paths(state_dir: &Path, uid: &str, container: &str, attempt: u32) {
    let folder = names::sub_path_dir(state_dir, uid, container, attempt, 0);
    let Some(parent) = folder.parent() else { return };
    let Ok(entries) = fs::read_dir(parent) else { return };
    let prefix = format!("{container}_{attempt}_");
    for path in entries.flatten().map(|e| e.path()) {
        let ours = path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(&prefix));
        // Leftovers go with the pod's folder.
        if ours && unmount_below(&path).is_ok() {
            let _ = fs::remove_dir(&path).or_else(|_| fs::remove_file(&path));
        }
    }
}

/// Removes a pod's folder, with everything mounted in it. Nothing is removed below a mount.
pub fn remove_pod(state_dir: &Path, uid: &str) -> Result<(), VolumeError> {
    if !is_uid(uid) {
        return Ok(());
    }
    let folder = names::pods_dir(state_dir).join(uid);
    if !folder.exists() {
        return Ok(());
    }
    unmount_below(&folder)?;
    remove_tree_of(state_dir, uid)
}

/// Removes a pod's folder if nothing is mounted in it.
pub(crate) fn remove_tree_of(state_dir: &Path, uid: &str) -> Result<(), VolumeError> {
    trees::remove(&names::pods_dir(state_dir), uid).map_err(|error| match error.is_mount() {
        true => VolumeError::StillMounted { path: error.path },
        false => VolumeError::Remove { path: error.path, source: error.source },
    })
}

/// Unmounts everything in a pod's folder, and leaves its files on disk.
pub fn unmount_pod(state_dir: &Path, uid: &str) -> Result<(), VolumeError> {
    if is_uid(uid) { unmount_below(&names::pods_dir(state_dir).join(uid)) } else { Ok(()) }
}

pub(crate) fn unmount_below(folder: &Path) -> Result<(), VolumeError> {
    let failed = |source| VolumeError::Remove { path: folder.to_owned(), source };
    // What is left is found below.
    let _ = mounts::detach(&mounts::at_or_below(folder).map_err(failed)?);
    match mounts::at_or_below(folder).map_err(failed)?.into_iter().next() {
        Some(path) => Err(VolumeError::StillMounted { path }),
        None => Ok(()),
    }
}

/// Returns the uids that have a folder. Folders that no pod made are left out: they are not ours to remove.
pub fn folders(state_dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(names::pods_dir(state_dir)) else { return Vec::new() };
    let folders = entries.flatten().filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.filter_map(|e| e.file_name().into_string().ok()).filter(|name| is_uid(name)).collect()
}

/// True if the name does not lead elsewhere on the disk.
fn is_uid(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '.'])
}
