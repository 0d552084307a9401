//! Renders the volumes and mounts of a bound pod. Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schema::content_refs;
use schema::content_refs::BlobKind;
use schema::kinds::cluster::{PodSecurity, host_paths_overlap};
use schema::kinds::function::FUNCTION_LABEL;
use schema::kinds::pod::keyed::{FileSource, VolumeContent, VolumeFiles};
use schema::kinds::pod::{
    Container, DownwardApiFile, EmptyDirVolume, HostPathType, MountPropagation, StorageMedium, Volume,
};

use super::spec::{
    AllowedDirectory, FilesSource, FilesVolumeSpec, HostPathBounds, SubPath, VolumeFile, VolumePrep,
};
use crate::converge::pods::container::env::{field_value, resource_value};
use crate::converge::pods::container::rendered::FieldValues;
use crate::converge::pods::facts::Placement;
use crate::names;
use crate::worlds::docker::{BindMount, Propagation};

/// Returns the volumes that the pod's containers mount.
pub fn volumes(at: Placement<'_>) -> Vec<VolumePrep> {
    let pod = &at.binding.pod;
    let group = pod.spec.security_context.as_ref().and_then(|s| s.fs_group);
    let group = group.and_then(|g| u32::try_from(g).ok());
    let mut list = Vec::new();
    for volume in &pod.spec.volumes {
        let path = own_path(at, volume);
        if let Some(files) = volume.files() {
            let (mode, is_secret) = (files.mode, files.has_secret());
            let sources = files_from(at, files);
            list.push(VolumePrep::Files(FilesVolumeSpec { path, sources, mode, is_secret, group }));
        } else if let Some(empty_dir) = &volume.empty_dir {
            let (tmpfs_bytes, no_exec) = (tmpfs_bytes(empty_dir), pod.labels.contains_key(FUNCTION_LABEL));
            list.push(VolumePrep::EmptyDir { path, tmpfs_bytes, group, no_exec });
        } else if let Some(host_path) = &volume.host_path {
            let kind = host_path.kind.unwrap_or(HostPathType::Unset);
            list.push(VolumePrep::HostPath { path, kind, bounds: bounds(at, volume) });
        }
    }
    list
}

fn files_from(at: Placement<'_>, files: VolumeFiles<'_>) -> Vec<FilesSource> {
    let mode = files.mode;
    let sources = files.sources.into_iter().map(|(_, source)| match source {
        FileSource::Values(VolumeContent { of, items, is_optional, .. }) => {
            FilesSource::Values { of, items: items.to_vec(), is_optional }
        }
        FileSource::Fields(items) => {
            let place = FieldValues::of(at);
            let file = |item: &DownwardApiFile| {
                let value = content(at, item, &place).map_err(|why| format!("file {}: {why}", item.path))?;
                let mode = item.mode.unwrap_or(mode);
                Ok((item.path.clone(), VolumeFile { value: value.into_bytes(), mode }))
            };
            FilesSource::Fields(items.iter().map(file).collect::<Result<BTreeMap<_, _>, String>>())
        }
    });
    sources.collect()
}

/// Returns the content of a file of the downward API.
fn content(at: Placement<'_>, file: &DownwardApiFile, place: &FieldValues) -> Result<String, String> {
    let pod = &at.binding.pod;
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(field), _) => field_value(field, pod, place),
        (None, Some(amount)) => resource_value(amount, None, pod, place),
        (None, None) => Ok(String::new()),
    }
}

fn tmpfs_bytes(empty_dir: &EmptyDirVolume) -> Option<u64> {
    (empty_dir.medium == Some(StorageMedium::Memory))
        .then(|| empty_dir.size_limit.map(|size| size.bytes).unwrap_or_default())
}

/// Returns the bounds of a hostPath volume: those of the cluster and of the node together. A policy that forbids the path
/// as it is written is newer than the pod, which goes on without it.
fn bounds(at: Placement<'_>, volume: &Volume) -> Option<HostPathBounds> {
    let path = &volume.host_path.as_ref()?.path;
    let policies = [&at.node.pod_security, &*at.node.pod_security_floor];
    let newer =
        |policy: &PodSecurity| policy.forbid_host_paths.iter().any(|one| host_paths_overlap(path, one));
    let forbidden =
        policies.iter().filter(|policy| !newer(policy)).flat_map(|policy| &policy.forbid_host_paths);
    let (allowed, forbidden) = (allowed_directory(policies, path), forbidden.cloned().collect::<Vec<_>>());
    (allowed.is_some() || !forbidden.is_empty()).then_some(HostPathBounds { allowed, forbidden })
}

fn allowed_directory(policies: [&PodSecurity; 2], path: &str) -> Option<AllowedDirectory> {
    let mut allowed: Vec<_> = policies.iter().filter_map(|policy| policy.allowed_directory(path)).collect();
    // The outermost first: the longer the path from a directory, the higher it is.
    allowed.sort_by_key(|(_, path)| std::cmp::Reverse(path.len()));
    let mut allowed = allowed.into_iter();
    let (directory, path) = allowed.next()?;
    let inner = allowed.next().map(|(_, path)| path).filter(|inner| !inner.is_empty() && *inner != path);
    let (narrower, path) = match inner {
        Some(inner) => (path.strip_suffix(&format!("/{inner}")).map(str::to_owned), inner),
        None => (None, path),
    };
    Some(AllowedDirectory { directory: directory.into(), narrower, path })
}

/// Returns the path of a volume's files, and whether it is a single file.
fn volume_path(at: Placement<'_>, volume: &Volume) -> Result<(PathBuf, bool), String> {
    let Some(repo) = &volume.repo else { return Ok((own_path(at, volume), false)) };
    let Some((path, blob)) = content_refs::find_path(&at.binding.pod.files, &repo.path) else {
        return Err(format!(
            "the pod does not include {} of the repository; see 'minik8s describe' of its owner",
            repo.path
        ));
    };
    let folder = names::blobs_dir(&at.node.state_dir).join(&blob.digest);
    Ok(match blob.kind {
        BlobKind::Folder | BlobKind::Object => (folder, false),
        BlobKind::File | BlobKind::Secret => (folder.join(content_refs::file_name(path)), true),
    })
}

fn own_path(at: Placement<'_>, volume: &Volume) -> PathBuf {
    let (state_dir, uid) = (&at.node.state_dir, &at.binding.pod.uid);
    match &volume.host_path {
        Some(host_path) => PathBuf::from(&host_path.path),
        None if volume.files().is_some_and(|files| files.has_secret()) => {
            names::secret_dir(state_dir, uid, &volume.name)
        }
        None => names::volume_dir(state_dir, uid, &volume.name),
    }
}

pub(crate) fn mounts(
    at: Placement<'_>,
    spec: &Container,
    attempt: u32,
) -> Result<(Vec<BindMount>, Vec<SubPath>), String> {
    let pod = &at.binding.pod;
    let (mut mounts, mut sub_paths) = (Vec::new(), Vec::new());
    for (index, mount) in spec.volume_mounts.iter().enumerate() {
        let volume = pod.spec.volumes.iter().find(|v| v.name == mount.name);
        let volume = volume.ok_or_else(|| format!("there is no volume {}", mount.name))?;
        let (root, is_file) = volume_path(at, volume)?;
        // Only the repository and the agent write these.
        let from_git = volume.repo.is_some() || volume.files().is_some();
        let expression = mount.sub_path_expr.as_deref().filter(|p| !p.is_empty());
        let sub_path = mount.sub_path.as_deref().filter(|p| !p.is_empty() && *p != ".");
        if let Some(path) = sub_path.or(expression) {
            if is_file {
                return Err(format!(
                    "volume {} is a single file, so it has no subPath {path}; remove subPath",
                    mount.name
                ));
            }
            let way_out = Path::new(path).is_absolute() || path.split('/').any(|part| part == "..");
            if way_out {
                return Err(format!("subPath {path} points outside volume {}", mount.name));
            }
        }
        let bounds = bounds(at, volume);
        let is_own_mount = sub_path.is_some() || expression.is_some() || bounds.is_some();
        let propagation = match mount.mount_propagation {
            None | Some(MountPropagation::None) => Propagation::None,
            // The agent's own mount of it is private.
            Some(_) if is_own_mount => {
                return Err(format!(
                    "volume {} can't be mounted with mountPropagation together with subPath, or where podSecurity limits \
                     hostPath volumes; remove mountPropagation",
                    mount.name
                ));
            }
            Some(MountPropagation::HostToContainer) => Propagation::FromHost,
            Some(MountPropagation::Bidirectional) => Propagation::Both,
        };
        let source = match is_own_mount {
            false => root,
            true => {
                let target = names::sub_path_dir(&at.node.state_dir, &pod.uid, &spec.name, attempt, index);
                let (path, create) = (sub_path.unwrap_or_default().to_owned(), !from_git);
                let expression = expression.map(str::to_owned);
                sub_paths.push(SubPath { root, bounds, path, expression, target: target.clone(), create });
                target
            }
        };
        let read_only = mount.read_only || from_git;
        mounts.push(BindMount { source, target: mount.mount_path.clone(), read_only, propagation });
    }
    Ok((mounts, sub_paths))
}
