//! From a bound pod to the containers to be made. Pure: the same pod, address and attempt give the same.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ipnet::Ipv4Net;
use schema::files::{self, BlobKind};
use schema::kinds::pod::{
    Container, EmptyDirVolume, HostPathType, HostPortStatus, PodSpec, PullPolicy, SecretKeyRef,
    SecurityContext, StorageMedium, Volume,
};
use schema::records::{Binding, PodInstance};

use super::dns;
use super::env::{FieldContext, expand, variables};
use super::facts::NodeFacts;
use super::hush::secrets_of;
use super::names;
use super::probes;
use crate::worlds::docker::{BindMount, Limits, Namespaces, NewContainer};

/// A volume to be made or checked before containers start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumePrep {
    /// A directory of the pod's own.
    EmptyDir {
        /// Where.
        path: PathBuf,
        /// A tmpfs of this many bytes; half of the memory when 0.
        tmpfs_bytes: Option<u64>,
        /// Group that owns it.
        group: Option<u32>,
    },
    /// Something of the node's.
    HostPath {
        /// Where.
        path: PathBuf,
        /// What must be there, or is made.
        kind: HostPathType,
    },
    /// A secret's keys as files in a tmpfs.
    Secret {
        /// Where.
        path: PathBuf,
        /// Its name.
        name: String,
        /// Group that may read them, too.
        group: Option<u32>,
    },
}

impl VolumePrep {
    /// Where it is.
    pub fn path(&self) -> &Path {
        match self {
            Self::EmptyDir { path, .. } | Self::HostPath { path, .. } | Self::Secret { path, .. } => path,
        }
    }
}

/// A value that takes the place of `marker` when the container is made: no plan holds a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretValue {
    /// What stands for it in variables, command and arguments.
    pub marker: String,
    /// Name of the secret.
    pub name: String,
    /// Its key.
    pub key: String,
}

impl SecretValue {
    /// No program takes a NUL in a variable or argument, so nothing else reads like a marker.
    pub fn of(reference: &SecretKeyRef) -> Self {
        let (name, key) = (reference.name.clone(), reference.key.clone());
        Self { marker: format!("\0{name}\0{key}\0"), name, key }
    }
}

/// A `subPath`: resolved within the volume and mounted at a place of its own, so that no symbolic
/// link in the volume leads out of it, now or later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubPath {
    /// The volume.
    pub root: PathBuf,
    /// The path in it.
    pub path: String,
    /// Where it is mounted on the node.
    pub target: PathBuf,
    /// A folder is made where nothing is.
    pub create: bool,
}

/// A container to be made, with what must be looked up or done first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The container.
    pub new: NewContainer,
    /// Paths within volumes.
    pub sub_paths: Vec<SubPath>,
    /// Its image's user must not be root.
    pub check_non_root: bool,
    /// Its image's user with this group.
    pub group_of_image_user: Option<i64>,
    /// Its image is never fetched.
    pub never_pull: bool,
    /// Secrets in its variables.
    pub secrets: Vec<SecretValue>,
}

/// The pod, its node and what was given to it.
#[derive(Debug, Clone, Copy)]
pub struct Placement<'a> {
    /// The node.
    pub node: &'a NodeFacts,
    /// The pod.
    pub binding: &'a Binding,
    /// Its address; none on the host's network.
    pub address: Option<Ipv4Net>,
    /// Its host ports.
    pub ports: &'a [HostPortStatus],
}

/// The pause container.
pub fn pause(at: Placement<'_>) -> NewContainer {
    let pod = &at.binding.pod;
    let mut labels = labels(at, names::PAUSE, 0, 0);
    if let Some(address) = at.address {
        labels.insert(names::IP.to_owned(), address.to_string());
    }
    if !at.ports.is_empty() {
        let ports = serde_json::to_string(at.ports).unwrap_or_default();
        labels.insert(names::PORTS.to_owned(), ports);
    }
    if !pod.files.is_empty() {
        let digests: Vec<&str> = pod.files.values().map(|blob| blob.digest.as_str()).collect();
        labels.insert(names::FILES.to_owned(), digests.join(","));
    }
    let hostname = host_name(pod);
    let own_names = dns::own_names(pod, &hostname, &at.node.dns);
    let extra_hosts = at.address.map(|a| format!("{own_names}:{}", a.addr())).into_iter().collect();
    NewContainer {
        name: names::container_name(&at.node.instance, names::PAUSE, &pod.reference(), &pod.uid, 0),
        image: at.node.pause_image.clone(),
        labels,
        // A pod on the host's network has the host's name.
        hostname: (!pod.spec.host_network).then_some(hostname),
        namespaces: if pod.spec.host_network { Namespaces::HostNetwork } else { Namespaces::Own },
        log: at.node.container_limits.log,
        extra_hosts,
        resolver: Some(dns::resolver(pod, &at.node.dns)),
        ..NewContainer::default()
    }
}

/// Volumes that the pod's containers mount.
pub fn volumes(at: Placement<'_>) -> Vec<VolumePrep> {
    let pod = &at.binding.pod;
    let group = pod.spec.security_context.as_ref().and_then(|s| s.fs_group);
    let group = group.and_then(|g| u32::try_from(g).ok());
    let mut list = Vec::new();
    for volume in &pod.spec.volumes {
        let path = own_path(at, volume);
        if let Some(secret) = &volume.secret {
            list.push(VolumePrep::Secret { path, name: secret.secret_name.clone(), group });
        } else if let Some(empty_dir) = &volume.empty_dir {
            list.push(VolumePrep::EmptyDir { path, tmpfs_bytes: tmpfs_bytes(empty_dir), group });
        } else if let Some(host_path) = &volume.host_path {
            list.push(VolumePrep::HostPath { path, kind: host_path.kind.unwrap_or(HostPathType::Unset) });
        }
    }
    list
}

fn tmpfs_bytes(empty_dir: &EmptyDirVolume) -> Option<u64> {
    (empty_dir.medium == Some(StorageMedium::Memory))
        .then(|| empty_dir.size_limit.map(|size| size.bytes).unwrap_or_default())
}

/// Where the files of a volume are, and whether it is a single file.
fn volume_path(at: Placement<'_>, volume: &Volume) -> Result<(PathBuf, bool), String> {
    let Some(repo) = &volume.repo else { return Ok((own_path(at, volume), false)) };
    let Some((path, blob)) = files::of_path(&at.binding.pod.files, &repo.path) else {
        return Err(format!(
            "the pod does not bring {} of the repository along; see 'minik8s describe' of its owner",
            repo.path
        ));
    };
    let folder = names::blobs_dir(&at.node.state_dir).join(&blob.digest);
    Ok(match blob.kind {
        BlobKind::Folder => (folder, false),
        BlobKind::File | BlobKind::Secret => (folder.join(files::file_name(path)), true),
    })
}

fn own_path(at: Placement<'_>, volume: &Volume) -> PathBuf {
    let (state_dir, uid) = (&at.node.state_dir, &at.binding.pod.uid);
    match &volume.host_path {
        Some(host_path) => PathBuf::from(&host_path.path),
        None if volume.secret.is_some() => names::secret_dir(state_dir, uid, &volume.name),
        None => names::volume_dir(state_dir, uid, &volume.name),
    }
}

/// One container of the pod; the error says what in the manifest can't be done.
pub fn container(
    at: Placement<'_>,
    spec: &Container,
    attempt: u32,
    backoff: u32,
) -> Result<Rendered, String> {
    let pod = &at.binding.pod;
    let context = FieldContext {
        pod,
        node: &at.node.node,
        host_ip: at.node.node_ip.to_string(),
        pod_ip: at.address.map_or_else(|| at.node.node_ip.to_string(), |a| a.addr().to_string()),
    };
    let env = variables(&spec.env, &context)?;
    let known: BTreeMap<String, String> = env.iter().cloned().collect();
    let expanded = |list: &[String]| list.iter().map(|text| expand(text, &known)).collect();
    let (mounts, sub_paths) = mounts(at, spec, attempt)?;
    let mut new = NewContainer {
        name: names::container_name(&at.node.instance, &spec.name, &pod.reference(), &pod.uid, attempt),
        image: spec.image.clone(),
        labels: labels(at, &spec.name, attempt, backoff),
        command: expanded(&spec.command),
        args: expanded(&spec.args),
        env: env.into_iter().map(|(name, value)| format!("{name}={value}")).collect(),
        working_dir: spec.working_dir.clone(),
        mounts,
        namespaces: Namespaces::Join {
            pause: String::new(),
            pid: pod.spec.share_process_namespace,
            host_network: pod.spec.host_network,
        },
        limits: Limits { pids: at.node.container_limits.pids, ..limits(spec) },
        log: at.node.container_limits.log,
        stdin: spec.stdin,
        tty: spec.tty,
        // On the host's network a container shares nothing with its pause container.
        resolver: pod.spec.host_network.then(|| dns::resolver(pod, &at.node.dns)),
        ..NewContainer::default()
    };
    let host = at.address.map_or(at.node.node_ip, |address| address.addr().into());
    if let Some(hook) = probes::render::pre_stop(spec, host) {
        let hook = serde_json::to_string(&hook).map_err(|e| format!("its preStop hook: {e}"))?;
        new.labels.insert(names::PRE_STOP.to_owned(), hook);
    }
    let user = user(&pod.spec, spec)?;
    new.user = user.text;
    secure(&mut new, &pod.spec, spec.security_context.as_deref());
    Ok(Rendered {
        new,
        sub_paths,
        check_non_root: user.check_non_root,
        group_of_image_user: user.group_only,
        never_pull: spec.effective_pull_policy() == PullPolicy::Never,
        secrets: secrets_of(spec),
    })
}

fn labels(at: Placement<'_>, container: &str, attempt: u32, backoff: u32) -> BTreeMap<String, String> {
    let pod = &at.binding.pod;
    let grace = pod.spec.termination_grace_period_seconds;
    [
        (names::INSTANCE, at.node.instance.clone()),
        (names::NODE, at.node.node.clone()),
        (names::NAMESPACE, pod.namespace.clone()),
        (names::POD, pod.name.clone()),
        (names::UID, pod.uid.clone()),
        (names::HASH, pod.hash.clone()),
        (names::CONTAINER, container.to_owned()),
        (names::ATTEMPT, attempt.to_string()),
        (names::BACKOFF, backoff.to_string()),
        (names::COMMIT, pod.commit.clone()),
        (names::OWNER, format!("{}/{}", pod.owner.kind, pod.owner.name)),
        (names::GRACE, grace.to_string()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

/// At most 63 characters of a host name.
fn host_name(pod: &PodInstance) -> String {
    let name = pod.spec.hostname.as_deref().unwrap_or(&pod.name);
    let name: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '.' { c } else { '-' })
        .take(63)
        .collect();
    name.trim_matches(['-', '.']).to_owned()
}

fn mounts(
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
        // The repository is the only writer of what comes from it.
        let from_git = volume.repo.is_some() || volume.secret.is_some();
        let source = match mount.sub_path.as_deref().filter(|p| !p.is_empty() && *p != ".") {
            None => root,
            Some(path) => {
                if is_file {
                    return Err(format!(
                        "volume {} is a single file, so it has no subPath {path}; take subPath out",
                        mount.name
                    ));
                }
                let way_out = Path::new(path).is_absolute() || path.split('/').any(|part| part == "..");
                if way_out {
                    return Err(format!("subPath {path} leads out of volume {}", mount.name));
                }
                let target = names::sub_path_dir(&at.node.state_dir, &pod.uid, &spec.name, attempt, index);
                sub_paths.push(SubPath {
                    root,
                    path: path.to_owned(),
                    target: target.clone(),
                    create: !from_git,
                });
                target
            }
        };
        let read_only = mount.read_only || from_git;
        mounts.push(BindMount { source, target: mount.mount_path.clone(), read_only });
    }
    Ok((mounts, sub_paths))
}

/// Requests become shares (1024 a core), limits become quota and memory, by the kubelet's arithmetic
/// (`MilliCPUToShares` and `MilliCPUToQuota` in pkg/kubelet/cm/helpers_linux.go). A container that requests
/// nothing gets the least: with the engine's 1024 it would take from those that asked for less than a core.
fn limits(spec: &Container) -> Limits {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let requested = spec.resources.requested_cpu().millis;
    let limit = &spec.resources.limits;
    Limits {
        cpu_shares: number((requested.saturating_mul(1024) / 1000).clamp(2, 262_144)),
        // Thousandths of 100 ms; the kernel takes no less than 1 ms, and a limit of 0 is none.
        cpu_quota_us: match limit.cpu.map_or(0, |cpu| cpu.millis) {
            0 => 0,
            millis => number(millis.saturating_mul(100).max(1000)),
        },
        memory_bytes: limit.memory.map(|memory| number(memory.bytes)).unwrap_or_default(),
        pids: 0,
    }
}

struct User {
    text: Option<String>,
    check_non_root: bool,
    group_only: Option<i64>,
}

fn user(pod: &PodSpec, spec: &Container) -> Result<User, String> {
    let own = spec.security_context.as_ref();
    let all = pod.security_context.as_ref();
    let user = own.and_then(|s| s.run_as_user).or_else(|| all.and_then(|s| s.run_as_user));
    let group = own.and_then(|s| s.run_as_group).or_else(|| all.and_then(|s| s.run_as_group));
    let non_root = own.and_then(|s| s.run_as_non_root).or_else(|| all.and_then(|s| s.run_as_non_root));
    let non_root = non_root.unwrap_or(false);
    if non_root && user == Some(0) {
        return Err("runAsNonRoot is set and runAsUser is 0; change one of them".to_owned());
    }
    let text = user.map(|user| group.map_or_else(|| user.to_string(), |group| format!("{user}:{group}")));
    Ok(User {
        check_non_root: non_root && user.is_none(),
        group_only: group.filter(|_| user.is_none()),
        text,
    })
}

/// Whether an image's `user`, without its group, may run where `runAsNonRoot` is set; the error says why not.
pub(super) fn is_no_root(image: &str, user: &str) -> Result<(), String> {
    // The engine takes `00` and `+0` for the number, too.
    match user.parse::<u32>() {
        Err(_) if !matches!(user, "" | "root") => Err(format!(
            "runAsNonRoot is set and image {image} names its user ({user}), which may be root; set runAsUser to a number"
        )),
        Ok(0) | Err(_) => Err(format!("runAsNonRoot is set and image {image} runs as root; set runAsUser")),
        Ok(_) => Ok(()),
    }
}

fn secure(new: &mut NewContainer, pod: &PodSpec, own: Option<&SecurityContext>) {
    if let Some(all) = &pod.security_context {
        new.groups = all.supplemental_groups.iter().chain(&all.fs_group).map(i64::to_string).collect();
    }
    let Some(own) = own else { return };
    new.read_only_root = own.read_only_root_filesystem.unwrap_or(false);
    new.privileged = own.privileged.unwrap_or(false);
    new.no_new_privileges = own.allow_privilege_escalation == Some(false);
    if let Some(capabilities) = &own.capabilities {
        new.capabilities_add.clone_from(&capabilities.add);
        new.capabilities_drop.clone_from(&capabilities.drop);
    }
}
