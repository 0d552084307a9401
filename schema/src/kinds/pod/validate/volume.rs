//! Checks of volumes and their mounts in containers.

use std::collections::BTreeSet;

use super::super::keyed::{FileSource, VolumeContent};
use super::super::volume::ProjectedSource;
use super::super::{
    Container, DownwardApiFile, MountPropagation, PodSpec, StorageMedium, Volume, VolumeMount,
};
use super::env;
use super::shared::{exactly_one, unique_label};
use crate::content_refs::normalize_path;
use crate::document::nearest;
use crate::violation::{Findings, Path, rules};

/// Checks the pod's volumes.
pub(super) fn validate(pod: &PodSpec, at: &Path<'_>, findings: &mut Findings) {
    let list = at.field("volumes");
    let mut names = BTreeSet::new();
    for (index, volume) in pod.volumes.iter().enumerate() {
        let here = list.index(index);
        unique_label(&volume.name, &here, &mut names, findings);
        source(pod, volume, &here, findings);
    }
}

fn source(pod: &PodSpec, volume: &Volume, at: &Path<'_>, findings: &mut Findings) {
    let mut set = Vec::new();
    set.extend(volume.empty_dir.as_ref().map(|_| "emptyDir"));
    set.extend(volume.host_path.as_ref().map(|_| "hostPath"));
    set.extend(volume.repo.as_ref().map(|_| "repo"));
    set.extend(volume.all_files().map(|(field, _)| field));
    // A volume without a source is an emptyDir, as in Kubernetes.
    if !set.is_empty() {
        exactly_one(&set, Volume::SOURCES, "a volume type", at, findings);
    }
    if let Some(limit) = volume.empty_dir.as_ref().and_then(|dir| dir.size_limit)
        && limit.bytes == 0
        && volume.empty_dir.as_ref().and_then(|dir| dir.medium) == Some(StorageMedium::Memory)
    {
        let here = at.field("emptyDir");
        findings.add(&rules::RESOURCES, &here.field("sizeLimit"), "Invalid value: `0`: nothing would fit");
    }
    if let Some(host_path) = &volume.host_path {
        let here = at.field("hostPath");
        absolute(&host_path.path, &here.field("path"), findings);
    }
    if let Some(repo) = &volume.repo {
        let here = at.field("repo");
        relative(&repo.path, &here.field("path"), findings);
    }
    if let Some(projected) = &volume.projected {
        let here = at.field("projected");
        let list = here.field("sources");
        for (index, source) in projected.sources.iter().enumerate() {
            let set: Vec<_> = source.all_files().map(|files| files.field()).collect();
            exactly_one(&set, ProjectedSource::FIELDS, "a volume type", &list.index(index), findings);
        }
    }
    for (field, volume_files) in volume.all_files() {
        let here = at.field(field);
        let mut paths = FilePaths { seen: BTreeSet::new(), is_projected: field == "projected" };
        for (index, source) in &volume_files.sources {
            let (list, item);
            let here = match index {
                None => here,
                Some(index) => {
                    list = here.field("sources");
                    item = list.index(*index);
                    item.field(source.field())
                }
            };
            files(pod, source, &mut paths, &here, findings);
        }
    }
}

fn files(
    pod: &PodSpec,
    source: &FileSource<'_>,
    paths: &mut FilePaths,
    at: &Path<'_>,
    findings: &mut Findings,
) {
    let list = at.field("items");
    match source {
        FileSource::Values(VolumeContent { of, items, at: [_, name], .. }) => {
            env::name_of(of, &at.field(name), findings);
            for (index, item) in items.iter().enumerate() {
                let here = list.index(index);
                env::key(&item.key, &here.field("key"), findings);
                paths.add(&item.path, &here.field("path"), findings);
            }
        }
        FileSource::Fields(items) => {
            for (index, item) in items.iter().enumerate() {
                let here = list.index(index);
                paths.add(&item.path, &here.field("path"), findings);
                field_of(pod, item, &here, findings);
            }
        }
    }
}

/// Checks the field of the pod in a file.
fn field_of(pod: &PodSpec, file: &DownwardApiFile, at: &Path<'_>, findings: &mut Findings) {
    let mut set = Vec::new();
    set.extend(file.field_ref.as_ref().map(|_| "fieldRef"));
    set.extend(file.resource_field_ref.as_ref().map(|_| "resourceFieldRef"));
    exactly_one(&set, &["fieldRef", "resourceFieldRef"], "a source", at, findings);
    if let Some(reference) = &file.field_ref {
        env::field(reference, true, &at.field("fieldRef"), findings);
    }
    if let Some(reference) = &file.resource_field_ref {
        let here = at.field("resourceFieldRef");
        if reference.container_name.as_deref().is_none_or(str::is_empty) {
            let message = "Required value: the files of a volume belong to no container";
            findings.add(&rules::REQUIRED, &here.field("containerName"), message);
        }
        env::resource(reference, Some(pod), &here, findings);
    }
}

/// Paths of a volume's files that are written in the manifest.
struct FilePaths {
    seen: BTreeSet<String>,
    is_projected: bool,
}

impl FilePaths {
    fn add(&mut self, path: &str, at: &Path<'_>, findings: &mut Findings) {
        relative(path, at, findings);
        if path.starts_with("..") && !has_parent_step(path) {
            let message = format!("Invalid value: `{path}`: must not start with '..'");
            findings.add(&rules::INVALID_PATH, at, message);
        }
        let normal = normalize_path(path);
        let is_below =
            |one: &str, other: &str| other.strip_prefix(one).is_some_and(|rest| rest.starts_with('/'));
        if self.seen.iter().any(|other| is_below(&normal, other) || is_below(other, &normal)) {
            let message =
                format!("Invalid value: `{path}`: another item is a file where this one needs a folder");
            findings.add(&rules::INVALID_PATH, at, message);
        }
        if !self.seen.insert(normal) {
            let why = if self.is_projected { "conflicting duplicate paths" } else { "must be unique" };
            findings.add(&rules::DUPLICATE_NAME, at, format!("Invalid value: `{path}`: {why}"));
        }
    }
}

/// Checks a container's mounts against the pod's volumes.
pub(super) fn mounts(pod: &PodSpec, container: &Container, at: &Path<'_>, findings: &mut Findings) {
    let mut places = BTreeSet::new();
    for (index, mount) in container.volume_mounts.iter().enumerate() {
        let here = at.index(index);
        reference(pod, mount, &here, findings);
        let place = here.field("mountPath");
        let path = &mount.mount_path;
        if path.contains(':') {
            findings.add(
                &rules::INVALID_PATH,
                &place,
                format!("Invalid value: `{path}`: must not contain ':'"),
            );
        } else if path == "/" {
            findings.add(
                &rules::INVALID_PATH,
                &place,
                "Invalid value: `/`: the container's root can't be a volume",
            );
        } else {
            absolute(path, &place, findings);
        }
        // `/data` and `/data/` are the same place.
        if !places.insert(path.trim_end_matches('/')) {
            findings.add(&rules::DUPLICATE_NAME, &place, format!("Invalid value: `{path}`: must be unique"));
        }
        if let Some(sub_path) = mount.sub_path.as_deref().filter(|path| !path.is_empty()) {
            relative(sub_path, &here.field("subPath"), findings);
        }
        if let Some(expression) = mount.sub_path_expr.as_deref().filter(|path| !path.is_empty()) {
            let here = here.field("subPathExpr");
            relative(expression, &here, findings);
            if mount.sub_path.as_ref().is_some_and(|path| !path.is_empty()) {
                let message =
                    format!("Invalid value: `{expression}`: subPathExpr and subPath are mutually exclusive");
                findings.add(&rules::EXCLUSIVE, &here, message).on_key();
            }
        }
        let is_privileged =
            container.security_context.as_ref().is_some_and(|own| own.privileged == Some(true));
        if mount.mount_propagation == Some(MountPropagation::Bidirectional) && !is_privileged {
            let message =
                "Forbidden: Bidirectional mount propagation is available only to privileged containers";
            findings.add(&rules::SECURITY, &here.field("mountPropagation"), message);
        }
    }
}

fn reference(pod: &PodSpec, mount: &VolumeMount, at: &Path<'_>, findings: &mut Findings) {
    if pod.volumes.iter().any(|volume| volume.name == mount.name) {
        return;
    }
    let names: Vec<&str> = pod.volumes.iter().map(|volume| volume.name.as_str()).collect();
    let help = match names.as_slice() {
        [] => "the pod has no volumes; add it under spec.volumes".to_owned(),
        names => format!("the pod's volumes: {}", nearest::list(names.iter().copied())),
    };
    findings.add(&rules::NOT_FOUND, &at.field("name"), format!("Not found: `{}`", mount.name)).help(help);
}

/// Checks for an absolute path without `..`.
fn absolute(path: &str, at: &Path<'_>, findings: &mut Findings) {
    if !path.starts_with('/') {
        findings.add(&rules::INVALID_PATH, at, format!("Invalid value: `{path}`: must be an absolute path"));
    } else if has_parent_step(path) {
        findings.add(&rules::INVALID_PATH, at, format!("Invalid value: `{path}`: must not contain '..'"));
    }
}

/// Checks for a relative path without `..`.
fn relative(path: &str, at: &Path<'_>, findings: &mut Findings) {
    if path.is_empty() {
        findings.add(&rules::INVALID_PATH, at, "Required value: the path is empty");
    } else if path.starts_with('/') {
        findings.add(&rules::INVALID_PATH, at, format!("Invalid value: `{path}`: must be a relative path"));
    } else if has_parent_step(path) {
        findings.add(&rules::INVALID_PATH, at, format!("Invalid value: `{path}`: must not contain '..'"));
    }
}

fn has_parent_step(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}
