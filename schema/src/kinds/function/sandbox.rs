//! Confinement of function replicas on their nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::Memory;

/// Confinement of replicas; strict by default. Not configurable: no capabilities, no new privileges, no host
/// network, `/tmp` without executables and devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct Sandbox {
    /// User id of the process; not 0, which is root.
    #[schemars(range(min = 1, max = 2147483647))]
    pub run_as_user: u32,
    /// Makes the root file system read-only, except for `/tmp`.
    pub read_only_root_filesystem: bool,
    /// Size of `/tmp`, which is in memory and counts toward the memory limit.
    pub tmp_size_limit: Memory,
    /// Maximum number of processes and threads.
    #[schemars(range(min = 8, max = 32768))]
    pub pids_limit: u32,
    /// Maximum number of open files.
    #[schemars(range(min = 64, max = 1048576))]
    pub open_files_limit: u32,
}

impl Default for Sandbox {
    /// User and sizes are those of distroless images, Knative's secure pod defaults and OpenWhisk; the pids limit
    /// is stricter (OpenWhisk: 1024).
    fn default() -> Self {
        Self {
            run_as_user: 65532,
            read_only_root_filesystem: true,
            tmp_size_limit: Memory { bytes: 64 << 20 },
            pids_limit: 256,
            open_files_limit: 1024,
        }
    }
}
