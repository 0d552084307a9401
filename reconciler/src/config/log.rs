//! Logging flags.

use clap::{Args, ValueEnum};

#[derive(Debug, Clone, Default, Args)]
pub struct LogArgs {
    /// Log format
    #[arg(long, env = "MINIK8S_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Log level: error, warn, info, debug, trace, or a filter as in RUST_LOG
    #[arg(long, env = "MINIK8S_LOG_LEVEL", value_name = "LEVEL")]
    pub log_level: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line per record, colored on a terminal.
    #[default]
    Text,
    /// A JSON object per line.
    Json,
}
