//! A container to be made, in plain words: what the pure planner fills in and the real engine translates.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// A container to be made.
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
    /// Host name; only for a container with its own network or the host's.
    pub hostname: Option<String>,
    /// Its `resolv.conf`, if the engine makes one: on the host's network. The engine's own choice when none.
    pub resolver: Option<Resolver>,
    /// `uid[:gid]`.
    pub user: Option<String>,
    pub groups: Vec<String>,
    pub mounts: Vec<BindMount>,
    pub namespaces: Namespaces,
    pub limits: Limits,
    pub log: LogLimits,
    pub read_only_root: bool,
    pub privileged: bool,
    /// setuid programs give no rights.
    pub no_new_privileges: bool,
    pub capabilities_add: Vec<String>,
    pub capabilities_drop: Vec<String>,
    pub stdin: bool,
    pub tty: bool,
}

/// What a container's `resolv.conf` says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolver {
    pub nameservers: Vec<String>,
    pub searches: Vec<String>,
    /// Options, `name` or `name:value`.
    pub options: Vec<String>,
}

/// A directory or file of the host seen in the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindMount {
    /// On the host.
    pub source: PathBuf,
    /// In the container.
    pub target: String,
    pub read_only: bool,
}

/// Which namespaces a container has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Namespaces {
    /// Its own, with a network namespace that the engine makes nothing in: a pause container.
    #[default]
    Own,
    /// The host's network, the rest its own: the pause container of a hostNetwork pod.
    HostNetwork,
    /// Those of the pause container with this Docker id.
    Join {
        /// Docker id; empty in a plan made before the pause container exists.
        pause: String,
        /// Its processes too.
        pid: bool,
        host_network: bool,
    },
}

/// What a container may use; 0 is no limit.
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

/// How much of what a container writes is kept on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Bytes of one file.
    pub max_bytes: u64,
    /// Files, the one being written included.
    pub max_files: u32,
}

impl Default for LogLimits {
    /// 10 MiB × 5, as the kubelet.
    fn default() -> Self {
        Self { max_bytes: 10 << 20, max_files: 5 }
    }
}
