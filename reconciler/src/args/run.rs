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
    /// The JSON that it is run with [default: {}]
    #[arg(short, long, value_name = "JSON", conflicts_with = "file")]
    pub data: Option<String>,
    /// A file with it; - is standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Name of the run; asking again with the same name starts no second run [default: a new name]
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// Wait for the end of the run and print its output; ends with 1 if it did not succeed
    #[arg(long)]
    pub wait: bool,
    /// Longest time to wait
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_duration, requires = "wait")]
    pub timeout: Duration,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}
