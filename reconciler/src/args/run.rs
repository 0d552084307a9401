//! Flags of `minik8s run`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{NamespaceArgs, ServerArgs};
use crate::config::parse_duration;

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The workflow, NAME or NAMESPACE/NAME
    #[arg(value_name = "WORKFLOW")]
    pub workflow: String,
    /// JSON input of the run [default: {}]
    #[arg(short, long, value_name = "JSON", conflicts_with = "file")]
    pub data: Option<String>,
    /// File that contains the input; - for standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Name of the run; a repeated request with the same name starts no second run [default: a new name]
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// Wait for the run to end and print its output; exit code 1 if it did not succeed
    #[arg(long)]
    pub wait: bool,
    /// Maximum time to wait
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_duration, requires = "wait")]
    pub timeout: Duration,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}
