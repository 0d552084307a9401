//! The arguments of `minik8s results`.

use std::path::PathBuf;

use clap::Args;

use super::ServerArgs;

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
