//! Flags of `top`.

use clap::{Args, ValueEnum};

use super::{NamespaceArgs, OutputArgs, ServerArgs};

/// Whose usage.
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

/// What comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SortBy {
    /// The most CPU.
    Cpu,
    /// The most memory.
    Memory,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Of pods, of nodes, or of the calls of functions
    #[arg(value_name = "KIND")]
    pub kind: TopKind,
    /// The most first; by default in the order of their names
    #[arg(long, value_name = "WHAT")]
    pub sort_by: Option<SortBy>,
    /// Each container of the pods
    #[arg(long)]
    pub containers: bool,
    /// Leave the header of the table out
    #[arg(long)]
    pub no_headers: bool,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}
