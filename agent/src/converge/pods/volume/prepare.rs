//! Creates folders, tmpfs and the files of secrets and objects, and checks host paths.
//!
//! Every function blocks, is called on a blocking thread, and is safe to repeat.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::unistd::{Gid, chown};
use schema::kinds::pod::HostPathType;

use super::spec::{FilesSource, FilesVolumeSpec, HostPathBounds, VolumeError, VolumeFile, VolumePrep};
use super::sub_path::{create_host_path, descriptor_path, open_host_path};
use crate::mounts;

/// Creates or checks one volume.
pub fn prepare(volume: &VolumePrep) -> Result<(), VolumeError> {
    match volume {
        VolumePrep::EmptyDir { path, tmpfs_bytes, group, no_exec } => {
            let tmpfs = tmpfs_bytes.map(|bytes| (bytes, *no_exec));
            empty_dir(path, tmpfs, *group)
        }
        VolumePrep::HostPath { path, kind, bounds } => host_path(path, *kind, bounds.as_ref()),
        // Created only with its files; see [`write_files`].
        VolumePrep::Files(_) => Ok(()),
    }
}

/// Returns the files of a volume, by their paths in it. `values` are those of its secrets and objects, in order; those
/// of an absent one are empty.
pub fn volume_files(
    volume: &FilesVolumeSpec,
    values: Vec<BTreeMap<String, Vec<u8>>>,
) -> Result<BTreeMap<String, VolumeFile>, VolumeError> {
    let (mut files, mut values, mode) = (BTreeMap::new(), values.into_iter(), volume.mode);
    let mut bytes = 0;
    let mut add = |path: String, file: VolumeFile| {
        // A tmpfs counts whole pages.
        bytes += file.value.len().next_multiple_of(4096);
        files.insert(path, file);
        let most = FILES_BYTES_MAX / 1024 / 1024;
        let too_large = || VolumeError::TooLarge { path: volume.path.clone(), most };
        (bytes <= FILES_BYTES_MAX).then_some(()).ok_or_else(too_large)
    };
    for source in &volume.sources {
        match source {
            FilesSource::Fields(fields) => {
                let fields = fields.clone().map_err(VolumeError::NoField)?;
                fields.into_iter().try_for_each(|(path, file)| add(path, file))?;
            }
            FilesSource::Values { items, .. } if items.is_empty() => {
                let all = values.next().unwrap_or_default().into_iter();
                all.map(|(key, value)| (key, VolumeFile { value, mode }))
                    .try_for_each(|(key, file)| add(key, file))?;
            }
            FilesSource::Values { of, items, is_optional } => {
                let values = values.next().unwrap_or_default();
                for item in items {
                    match values.get(&item.key).cloned() {
                        Some(value) => {
                            add(item.path.clone(), VolumeFile { value, mode: item.mode.unwrap_or(mode) })?;
                        }
                        None if *is_optional => {}
                        None => return Err(VolumeError::NoKey { of: of.clone(), key: item.key.clone() }),
                    }
                }
            }
        }
    }
    Ok(files)
}

/// Writes files, into a tmpfs if there is a secret among them. Correct files are left alone, and none is removed: other
/// content means another pod.
pub fn write_files(
    volume: &FilesVolumeSpec,
    files: &BTreeMap<String, VolumeFile>,
) -> Result<(), VolumeError> {
    let FilesVolumeSpec { path, group, is_secret, .. } = volume;
    let failed = |source| VolumeError::Make { path: path.to_owned(), source };
    fs::create_dir_all(path).map_err(failed)?;
    if *is_secret && !mounts::at_or_below(path).map_err(failed)?.iter().any(|m| m == path) {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let options = format!("size={FILES_BYTES_MAX},mode=0755");
        let mounted = |options: &str| mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(options));
        // Kernels before 6.4 don't know `noswap` and reject it.
        mounted(&format!("{options},noswap"))
            .or_else(|_| mounted(&options))
            .map_err(|e| VolumeError::Mount { path: path.to_owned(), source: e.into() })?;
    }
    for (at, file) in files {
        write_file(path, at, file, *group).map_err(failed)?;
    }
    Ok(())
}

/// Writes one file. It gets its name only when owner and mode are right, so that a crash leaves none that
/// its readers can't read. Not a `DiskRecord`, which is for its owner only and whose draft a pod could take for a
/// key.
fn write_file(folder: &Path, at: &str, file: &VolumeFile, group: Option<u32>) -> io::Result<()> {
    let (at, value) = (folder.join(at), &file.value);
    if let Some(parent) = at.parent() {
        fs::create_dir_all(parent)?;
    }
    let mode = file.mode | if group.is_some() { 0o440 } else { 0 };
    let is_right = |there: &fs::Metadata| {
        there.is_file() && there.mode() & 0o7777 == mode && group.is_none_or(|group| there.gid() == group)
    };
    if fs::symlink_metadata(&at).is_ok_and(|there| is_right(&there))
        && fs::read(&at).is_ok_and(|there| there == *value)
    {
        return Ok(());
    }
    // No key begins with two dots.
    let fresh = folder.join("..new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o400).open(&fresh)?;
    file.write_all(value)?;
    if let Some(group) = group {
        chown(&fresh, None, Some(Gid::from_raw(group)))?;
    }
    fs::set_permissions(&fresh, fs::Permissions::from_mode(mode))?;
    fs::rename(&fresh, &at)
}

/// Maximum size of a volume: several times that of a secret, because each key takes pages of its own and may become
/// several files.
const FILES_BYTES_MAX: usize = 8 * 1024 * 1024;

fn empty_dir(path: &Path, tmpfs: Option<(u64, bool)>, group: Option<u32>) -> Result<(), VolumeError> {
    let failed = |source| VolumeError::Make { path: path.to_owned(), source };
    // With a group, new files get it too.
    let mode = if group.is_some() { 0o2777 } else { 0o777 };
    // Mode and group are set once: changes made by the pod survive the restart of a container.
    if !path.try_exists().map_err(failed)? {
        // Renamed last, so that an existing folder has its mode; no volume's name begins with a dot.
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let new = path.with_file_name(format!(".{name}.new"));
        fs::create_dir_all(&new).map_err(failed)?;
        if let Some(group) = group {
            chown(&new, None, Some(Gid::from_raw(group))).map_err(|e| failed(e.into()))?;
        }
        fs::set_permissions(&new, fs::Permissions::from_mode(mode)).map_err(failed)?;
        fs::rename(&new, path).map_err(failed)?;
    }
    if let Some((bytes, no_exec)) = tmpfs
        && !mounts::at_or_below(path).map_err(failed)?.iter().any(|m| m == path)
    {
        let size = if bytes == 0 { String::new() } else { format!("size={bytes},") };
        let owner = group.map(|group| format!(",gid={group}")).unwrap_or_default();
        let options = format!("{size}mode={mode:o}{owner}");
        let mut flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        flags.set(MsFlags::MS_NOEXEC, no_exec);
        mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(options.as_str()))
            .map_err(|e| VolumeError::Mount { path: path.to_owned(), source: e.into() })?;
    }
    Ok(())
}

fn host_path(path: &Path, kind: HostPathType, bounds: Option<&HostPathBounds>) -> Result<(), VolumeError> {
    let mut there = file_type(path, bounds)?;
    let creates = [HostPathType::Unset, HostPathType::DirectoryOrCreate, HostPathType::FileOrCreate];
    if there.is_none() && creates.contains(&kind) {
        // Docker rejects a bind whose source is absent; Kubernetes creates a folder then.
        let is_file = kind == HostPathType::FileOrCreate;
        let failed = |source| VolumeError::Make { path: path.to_owned(), source };
        match bounds {
            Some(bounds) => create_host_path(path, bounds, is_file)?,
            None if is_file => {
                fs::OpenOptions::new().create_new(true).write(true).open(path).map(drop).map_err(failed)?;
            }
            None => fs::create_dir_all(path).map_err(failed)?,
        }
        there = file_type(path, bounds)?;
    }
    let (is_right, wanted): (fn(&fs::FileType) -> bool, _) = match kind {
        HostPathType::Unset => return Ok(()),
        HostPathType::DirectoryOrCreate => (fs::FileType::is_dir, "a directory"),
        HostPathType::FileOrCreate => (fs::FileType::is_file, "a file"),
        HostPathType::Directory => (fs::FileType::is_dir, "an existing directory"),
        HostPathType::File => (fs::FileType::is_file, "an existing file"),
        HostPathType::Socket => (FileTypeExt::is_socket, "an existing socket"),
        HostPathType::CharDevice => (FileTypeExt::is_char_device, "a character device"),
        HostPathType::BlockDevice => (FileTypeExt::is_block_device, "a block device"),
    };
    match there.as_ref().is_some_and(is_right) {
        true => Ok(()),
        false => Err(VolumeError::NotThere { path: path.to_owned(), wanted }),
    }
}

/// Returns the type of what is at a hostPath; `None` if nothing is there.
fn file_type(path: &Path, bounds: Option<&HostPathBounds>) -> Result<Option<fs::FileType>, VolumeError> {
    let Some(bounds) = bounds else { return Ok(fs::metadata(path).map(|there| there.file_type()).ok()) };
    match open_host_path(path, bounds) {
        Ok(opened) => Ok(fs::metadata(descriptor_path(&opened)).map(|there| there.file_type()).ok()),
        Err(VolumeError::OutOfBounds { source, .. } | VolumeError::Unresolved { source, .. })
            if source.kind() == io::ErrorKind::NotFound =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
