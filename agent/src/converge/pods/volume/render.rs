//! Renders the volumes and mounts of a bound pod. Pure.

use std::path::{Path, PathBuf};

use schema::content_refs;
use schema::content_refs::BlobKind;
use schema::kinds::cluster::{PodSecurity, host_paths_overlap};
use schema::kinds::function::FUNCTION_LABEL;
use schema::kinds::pod::keyed::VolumeContent;
use schema::kinds::pod::{Container, EmptyDirVolume, HostPathType, MountPropagation, StorageMedium, Volume};

use super::spec::{AllowedDirectory, HostPathBounds, KeyedVolumeSpec, SubPath, VolumePrep};
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
        if let Some(VolumeContent { of, items, mode, is_optional, is_secret, .. }) = volume.keyed() {
            let items = items.to_vec();
            list.push(VolumePrep::Keyed(KeyedVolumeSpec {
                path,
                source: of,
                items,
                mode,
                is_optional,
                is_secret,
                group,
            }));
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
        None if volume.keyed().is_some_and(|keyed| keyed.is_secret) => {
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
        // The repository is the only writer of its content.
        let from_git = volume.repo.is_some() || volume.keyed().is_some();
        let sub_path = mount.sub_path.as_deref().filter(|p| !p.is_empty() && *p != ".");
        if let Some(path) = sub_path {
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
        let propagation = match mount.mount_propagation {
            None | Some(MountPropagation::None) => Propagation::None,
            Some(MountPropagation::HostToContainer) => Propagation::FromHost,
            // The agent's own mount of it leads nothing back to the node.
            Some(MountPropagation::Bidirectional) if sub_path.is_some() || bounds.is_some() => {
                return Err(format!(
                    "volume {} can't be mounted with mountPropagation Bidirectional together with subPath, or where \
                     podSecurity limits hostPath volumes; use HostToContainer",
                    mount.name
                ));
            }
            Some(MountPropagation::Bidirectional) => Propagation::Both,
        };
        let source = match sub_path.is_some() || bounds.is_some() {
            false => root,
            true => {
                let target = names::sub_path_dir(&at.node.state_dir, &pod.uid, &spec.name, attempt, index);
                let (path, create) = (sub_path.unwrap_or_default().to_owned(), !from_git);
                sub_paths.push(SubPath { root, bounds, path, target: target.clone(), create });
                target
            }
        };
        let read_only = mount.read_only || from_git;
        mounts.push(BindMount { source, target: mount.mount_path.clone(), read_only, propagation });
    }
    Ok((mounts, sub_paths))
}
