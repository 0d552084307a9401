//! Job: a batch job of a Slurm cluster.
//!
//! The words are those of sbatch(1). Everything that becomes a line of the script or a word of a command
//! is checked here, so that no value can become more than a value.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

mod descriptor;
pub(super) mod dialect;
mod login;
mod script;
pub mod slurm;
mod status;
mod validate;

pub use login::{DEFAULT_SSH_PORT, JumpHost, SlurmLogin};
pub use script::{Submission, output_pattern, script};
pub use status::{FailureClass, JobPhase, JobStatus};

use crate::codec::is_default;
use crate::quantity::Memory;

/// What to run.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct JobSpec {
    /// Where it is submitted, and as whom; what is left out is that of the Cluster's
    /// `slurm.login`, whose credential goes with none but its own host and user.
    #[serde(default, skip_serializing_if = "is_default")]
    pub login: SlurmLogin,
    /// Folder of the repository, from its root, that is uploaded; the job starts in it.
    pub files: Option<String>,
    /// Folder on the login host, absolute or below the home folder, in which each job gets a folder of its
    /// own; the nodes of the partition must see it, too. `minik8s-jobs` when none.
    pub work_dir: Option<String>,
    /// Partition, or several joined by commas (`--partition`); Slurm's default when none.
    pub partition: Option<String>,
    /// Account that is charged (`--account`).
    pub account: Option<String>,
    /// Quality of service (`--qos`).
    pub qos: Option<String>,
    /// Nodes (`--nodes`); as many as the tasks need when none.
    #[schemars(range(min = 1))]
    pub nodes: Option<u32>,
    /// Tasks in all (`--ntasks`).
    #[schemars(range(min = 1))]
    pub n_tasks: Option<u32>,
    /// Most tasks on one node (`--ntasks-per-node`).
    #[schemars(range(min = 1))]
    pub n_tasks_per_node: Option<u32>,
    /// Cores for each task (`--cpus-per-task`).
    #[schemars(range(min = 1))]
    pub cpus_per_task: Option<u32>,
    /// GPUs on each node (`--gres=gpu:N`); 0 is none.
    pub gpus_per_node: Option<u32>,
    /// Type of the GPUs (`--gres=gpu:TYPE:N`).
    pub gpu_type: Option<String>,
    /// Memory on each node (`--mem`), rounded up to whole mebibytes.
    pub memory: Option<Memory>,
    /// Time after which Slurm ends the job (`--time`): `MM`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM` or
    /// `D-HH:MM:SS`; the partition's default when none.
    pub time_limit: Option<String>,
    /// Runs the job once for each index (`--array`): `0-15`, `1,3,5-7`, `0-15:4`, `0-15%4` for at most 4
    /// at once.
    pub array: Option<String>,
    /// Another Job of the same namespace and login host that Slurm waits for (`--dependency`).
    pub dependency: Option<JobDependency>,
    /// Further options of sbatch, `--name=value` or `--name`; those that have a field here, or that would
    /// break the tracking of the job, are refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_options: Vec<String>,
    /// How often the job is submitted anew when its node failed or it was preempted.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(range(max = 5))]
    pub node_failure_retries: u32,
    /// How many seconds after the job's end its files are removed from the login host. What was fetched stays
    /// with the node, and nothing is submitted again. Until the manifest is removed or changed when none.
    pub ttl_seconds_after_finished: Option<u32>,
    /// Shell commands that run before `runCommands`, in order; the first that fails ends the job. They
    /// run within the job, so on a node of the partition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compile_commands: Vec<String>,
    /// Shell commands that are the job, in order; the first that fails ends it.
    pub run_commands: Vec<String>,
    /// File for standard output, below the job's folder (`--output`); Slurm's patterns such as `%j` may be
    /// used. `slurm-%j.out`, or `slurm-%A_%a.out` for an array, when none.
    pub output_file: Option<String>,
    /// File for standard error (`--error`); `outputFile` when none.
    pub error_file: Option<String>,
    /// Files and folders below the job's folder that are fetched at its end, besides standard output
    /// and error; `*` and `?` match within a name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
}

/// Another job that this one waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct JobDependency {
    /// Name of a Job of the same namespace.
    pub job: String,
    /// What is waited for.
    #[serde(default, rename = "type")]
    pub kind: DependencyType,
}

/// What of another job is waited for, in sbatch's words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DependencyType {
    /// Its end with exit code 0.
    #[default]
    AfterOk,
    /// Its end.
    AfterAny,
    /// Its end with another exit code, or its failure.
    AfterNotOk,
}

impl DependencyType {
    /// sbatch's word.
    pub fn as_str(self) -> &'static str {
        match self {
            DependencyType::AfterOk => "afterok",
            DependencyType::AfterAny => "afterany",
            DependencyType::AfterNotOk => "afternotok",
        }
    }

    /// Whether a job that ended so lets the other go on.
    pub fn is_met_by(self, ended: JobPhase) -> bool {
        match self {
            DependencyType::AfterOk => ended == JobPhase::Succeeded,
            DependencyType::AfterAny => true,
            DependencyType::AfterNotOk => ended != JobPhase::Succeeded,
        }
    }
}
