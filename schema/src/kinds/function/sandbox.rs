//! What a replica of a function may do to its node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::Memory;

/// Strict by default. Not to be changed: no capabilities, no new privileges, no host network, `/tmp`
/// without executables and devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub struct Sandbox {
    /// User id of the process; not 0, which is root.
    #[schemars(range(min = 1, max = 2147483647))]
    pub run_as_user: u32,
    /// Only `/tmp` can be written.
    pub read_only_root_filesystem: bool,
    /// Size of `/tmp`, which lies in memory and counts for the memory limit.
    pub tmp_size_limit: Memory,
    /// Maximum number of processes and threads.
    #[schemars(range(min = 8, max = 32768))]
    pub pids_limit: u32,
    /// Most open files.
    #[schemars(range(min = 64, max = 1048576))]
    pub open_files_limit: u32,
}

impl Default for Sandbox {
    /// User and sizes as distroless images, Knative's secure pod defaults and OpenWhisk have them;
    /// stricter in pids (OpenWhisk: 1024).
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
