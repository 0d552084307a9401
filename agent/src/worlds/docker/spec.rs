//! Specification of a new container: filled in by the pure planner, translated by the real engine.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// A container to create.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewContainer {
    pub name: String,
    pub image: String,
    pub labels: BTreeMap<String, String>,
    /// Replaces ENTRYPOINT when not empty.
    pub command: Vec<String>,
    /// Replaces CMD when not empty, or when `command` is given.
    pub args: Vec<String>,
    /// `NAME=value`.
    pub env: Vec<String>,
    pub working_dir: Option<String>,
    /// Hostname; only for a container with its own network or the host's.
    pub hostname: Option<String>,
    /// `resolv.conf` on the host's network, where the engine writes it; `None` is the engine's default.
    pub resolver: Option<Resolver>,
    /// `uid[:gid]`.
    pub user: Option<String>,
    pub groups: Vec<String>,
    pub mounts: Vec<BindMount>,
    pub namespaces: Namespaces,
    /// Set to use the host's PID namespace, whatever `namespaces` says.
    pub host_pid: bool,
    /// Set to use the host's IPC namespace, whatever `namespaces` says.
    pub host_ipc: bool,
    pub limits: Limits,
    /// Number of NVIDIA GPUs that the container sees.
    pub gpus: u64,
    /// Precedence when the machine is out of memory, from -1000 (never killed) to 1000 (first).
    pub oom_score_adj: i64,
    pub log: LogLimits,
    pub read_only_root: bool,
    pub privileged: bool,
    /// Set if setuid programs gain no privileges.
    pub no_new_privileges: bool,
    pub capabilities_add: Vec<String>,
    pub capabilities_drop: Vec<String>,
    pub stdin: bool,
    pub tty: bool,
}

/// Content of a container's `resolv.conf`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolver {
    pub nameservers: Vec<String>,
    pub searches: Vec<String>,
    /// Options, `name` or `name:value`.
    pub options: Vec<String>,
}

/// A directory or file of the host mounted into the container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BindMount {
    /// Path on the host.
    pub source: PathBuf,
    /// Path in the container.
    pub target: String,
    pub read_only: bool,
    pub propagation: Propagation,
}

/// Mounts below a bind mount that appear later on the other side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Propagation {
    #[default]
    None,
    /// Mounts of the host appear in the container.
    FromHost,
    /// Mounts of either side appear on the other.
    Both,
}

/// Namespaces of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Namespaces {
    /// Own namespaces, with a network namespace that the engine leaves empty: a pause container.
    #[default]
    Own,
    /// The host's network, own other namespaces: the pause container of a hostNetwork pod.
    HostNetwork,
    /// Namespaces of a pause container.
    Join {
        /// Docker id of the pause container; empty in a plan made before it exists.
        pause: String,
        /// Set to join the PID namespace, too.
        pid: bool,
        host_network: bool,
    },
}

/// Resource limits of a container; 0 is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Relative weight of CPU, 1024 per core.
    pub cpu_shares: i64,
    /// Microseconds of CPU per 100 ms.
    pub cpu_quota_us: i64,
    /// Bytes of memory, swap included.
    pub memory_bytes: i64,
    pub pids: i64,
    /// Open files of each process; 0 is the engine's default.
    pub open_files: i64,
}

/// Limits on the log of a container on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Maximum bytes of a file.
    pub max_bytes: u64,
    /// Maximum number of files, including the current one.
    pub max_files: u32,
}

impl Default for LogLimits {
    /// 10 MiB × 5, as the kubelet.
    fn default() -> Self {
        Self { max_bytes: 10 << 20, max_files: 5 }
    }
}
