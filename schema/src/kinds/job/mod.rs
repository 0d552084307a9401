//! Job: a batch job of a Slurm cluster.
//!
//! The terms are those of sbatch(1). Everything that becomes a line of the script or a word of a command is checked
//! here, so that no value can become more than a value.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

pub(crate) mod descriptor;
mod login;
mod script;
pub mod status;
mod validate;

pub use login::{DEFAULT_SSH_PORT, JumpHost, SlurmLogin};
pub use script::{Submission, output_pattern, script};
pub use status::{FailureClass, JobPhase, JobStatus};

use crate::codec::is_default;
use crate::quantity::Memory;

/// Commands and resources of a batch job.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct JobSpec {
    /// Login for submitting the job. Missing fields are taken from the Cluster's `slurm.login`, whose credential is
    /// used only with its own host and user.
    #[serde(default, skip_serializing_if = "is_default")]
    pub login: SlurmLogin,
    /// Folder of the repository, from its root, to upload; the job starts in it.
    pub files: Option<String>,
    /// Folder on the login host, absolute or below the home folder, in which each job gets its own folder. The
    /// nodes of the partition must have access to it. Defaults to `minik8s-jobs`.
    pub work_dir: Option<String>,
    /// Partition, or several joined by commas (`--partition`); defaults to Slurm's own.
    pub partition: Option<String>,
    /// Account to charge (`--account`).
    pub account: Option<String>,
    /// Quality of service (`--qos`).
    pub qos: Option<String>,
    /// Number of nodes (`--nodes`); defaults to as many as the tasks need.
    #[schemars(range(min = 1))]
    pub nodes: Option<u32>,
    /// Total number of tasks (`--ntasks`).
    #[schemars(range(min = 1))]
    pub n_tasks: Option<u32>,
    /// Maximum number of tasks per node (`--ntasks-per-node`).
    #[schemars(range(min = 1))]
    pub n_tasks_per_node: Option<u32>,
    /// Cores per task (`--cpus-per-task`).
    #[schemars(range(min = 1))]
    pub cpus_per_task: Option<u32>,
    /// GPUs per node (`--gres=gpu:N`); 0 means none.
    pub gpus_per_node: Option<u32>,
    /// Type of the GPUs (`--gres=gpu:TYPE:N`).
    pub gpu_type: Option<String>,
    /// Memory per node (`--mem`), rounded up to whole mebibytes.
    pub memory: Option<Memory>,
    /// Time after which Slurm ends the job (`--time`): `MM`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`,
    /// `D-HH:MM:SS` or `UNLIMITED`. Defaults to that of the partition.
    pub time_limit: Option<String>,
    /// Runs the job once for each index (`--array`): `0-15`, `1,3,5-7`, `0-15:4`, or `0-15%4` for at most 4 at a
    /// time.
    pub array: Option<String>,
    /// Another Job in the same namespace and on the same login host that Slurm waits for (`--dependency`).
    pub dependency: Option<JobDependency>,
    /// Further options of sbatch, `--name=value` or `--name`. Options that have a field here, or that would break
    /// the tracking of the job, are rejected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_options: Vec<String>,
    /// Maximum number of resubmissions after a node failure or preemption.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(range(max = 5))]
    pub node_failure_retries: u32,
    /// Seconds after the end of the job until its files are removed from the login host. Fetched files stay on the
    /// node, and nothing is resubmitted. By default the files stay until the manifest is removed or changed.
    pub ttl_seconds_after_finished: Option<u32>,
    /// Shell commands that run before `runCommands`, in order; the first failure ends the job. They are part of the
    /// job, so they run on a node of the partition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compile_commands: Vec<String>,
    /// Shell commands of the job, in order; the first failure ends it.
    pub run_commands: Vec<String>,
    /// File for standard output, below the job's folder (`--output`). Slurm's patterns such as `%j` are supported.
    /// Defaults to `slurm-%j.out`, or to `slurm-%A_%a.out` for an array.
    pub output_file: Option<String>,
    /// File for standard error (`--error`); defaults to `outputFile`.
    pub error_file: Option<String>,
    /// Files and folders below the job's folder to fetch at its end, in addition to standard output and error; `*`
    /// and `?` match within a name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
}

/// Dependency on another job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct JobDependency {
    /// Name of a Job in the same namespace.
    pub job: String,
    /// Event to wait for.
    #[serde(default, rename = "type")]
    pub kind: DependencyType,
}

/// Event of another job to wait for, in sbatch's terms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DependencyType {
    /// End with exit code 0.
    #[default]
    AfterOk,
    /// Any end.
    AfterAny,
    /// End with another exit code, or failure.
    AfterNotOk,
}

impl DependencyType {
    /// Returns sbatch's term.
    pub fn as_str(self) -> &'static str {
        match self {
            DependencyType::AfterOk => "afterok",
            DependencyType::AfterAny => "afterany",
            DependencyType::AfterNotOk => "afternotok",
        }
    }

    /// True if a job that ended in this phase meets the dependency.
    pub fn is_met_by(self, ended: JobPhase) -> bool {
        match self {
            DependencyType::AfterOk => ended == JobPhase::Succeeded,
            DependencyType::AfterAny => true,
            DependencyType::AfterNotOk => ended != JobPhase::Succeeded,
        }
    }
}
