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
    /// JSON object to call the function with [default: {}]
    #[arg(short, long, value_name = "JSON", conflicts_with = "file")]
    pub data: Option<String>,
    /// File that contains the JSON object; - for standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Maximum time to wait for the answer
    #[arg(long, value_name = "DURATION", default_value = "11m", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Address of a node's gateway: http://ADDR:PORT, or https://node-NAME@ADDR:PORT to call with your certificate
    /// [default: port 8081 of this machine, else a ready node]
    #[arg(long, env = "MINIK8S_GATEWAY", value_name = "URL")]
    pub gateway: Option<String>,
    /// File with the token, for functions that require one
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Print the duration of each phase of the call, and the activation id, to standard error
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

// Flags of `minik8s run`.

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

// The arguments of `minik8s results`.

#[derive(Debug, Clone, Args)]
pub struct ResultsArgs {
    /// The job: job/NAME or NAME
    #[arg(value_name = "JOB")]
    pub job: String,
    /// Write the files into this folder, creating it if missing
    #[arg(short, long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The namespace
    #[arg(short, long, value_name = "NS", default_value = "default")]
    pub namespace: String,
    #[command(flatten)]
    pub server: ServerArgs,
}
