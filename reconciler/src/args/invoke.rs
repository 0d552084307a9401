//! Flags of `minik8s invoke`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{NamespaceArgs, ServerArgs};
use crate::config::parse_duration;

#[derive(Debug, Args)]
pub struct InvokeArgs {
    /// The function, NAME or NAMESPACE/NAME
    #[arg(value_name = "FUNCTION")]
    pub function: String,
    /// The JSON object that it is called with [default: {}]
    #[arg(short, long, value_name = "JSON", conflicts_with = "file")]
    pub data: Option<String>,
    /// A file with it; - is standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Longest time to wait for the answer
    #[arg(long, value_name = "DURATION", default_value = "11m", value_parser = parse_duration)]
    pub timeout: Duration,
    /// A node's address for calls [default: port 8081 of the host that --server names]
    #[arg(long, env = "MINIK8S_GATEWAY", value_name = "URL")]
    pub gateway: Option<String>,
    /// A file with the token of a function that requires one
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Say on standard error how long the phases of the call took, and its activation id
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}
