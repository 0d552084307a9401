//! Flags of `top`, `tree` and `history`.

use clap::{Args, ValueEnum};

use super::{NamespaceArgs, OutputArgs, Resource, ServerArgs};
use crate::view::Selector;

/// Resource whose usage is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TopKind {
    /// Each pod.
    #[value(alias = "pod", alias = "po")]
    Pods,
    /// Each node.
    #[value(alias = "node", alias = "no")]
    Nodes,
    /// Each function: its calls.
    #[value(alias = "function", alias = "fn")]
    Functions,
}

/// Sort key; the highest usage comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SortBy {
    /// CPU usage.
    Cpu,
    /// Memory usage.
    Memory,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Usage of pods or nodes, or the calls of functions
    #[arg(value_name = "KIND")]
    pub kind: TopKind,
    /// Sort by this usage, highest first; by default sorted by name
    #[arg(long, value_name = "WHAT")]
    pub sort_by: Option<SortBy>,
    /// Show each container of the pods
    #[arg(long)]
    pub containers: bool,
    /// Refresh every 2 seconds
    #[arg(short, long)]
    pub watch: bool,
    /// Omit the table header
    #[arg(long)]
    pub no_headers: bool,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct TreeArgs {
    /// Only this object or pod: KIND/NAME
    #[arg(value_name = "KIND/NAME")]
    pub object: Option<Resource>,
    /// Only objects with these labels: key=value,…
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<Selector>,
    /// Only objects of this namespace; the namespace of KIND/NAME is `default` unless it is given
    #[arg(short, long, value_name = "NS")]
    pub namespace: Option<String>,
    /// Refresh every second
    #[arg(short, long)]
    pub watch: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Only this commit: the beginning of its id, SOURCE/NUMBER, or HEAD for the newest one
    #[arg(value_name = "COMMIT")]
    pub commit: Option<String>,
    /// Show how long each step of the commit took, from the push to healthy pods; by default of the newest commit
    #[arg(long)]
    pub timeline: bool,
    /// Only commits of this source
    #[arg(long, value_name = "SOURCE")]
    pub source: Option<String>,
    /// Maximum number of commits
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}
