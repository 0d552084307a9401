//! Flags of `top`.

use clap::{Args, ValueEnum};

use super::{NamespaceArgs, OutputArgs, ServerArgs};

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
