//! Flags of the offline commands `validate`, `schema` and `explain`; `simulate` has its own file.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Output format of violations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// For people: each violation with its source line.
    Text,
    /// For programs.
    Json,
    /// Workflow commands, which GitHub, Gitea and Forgejo show next to the lines of a pull request.
    Github,
}

/// Kind of the files without an envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BareKind {
    /// State machines in the Amazon States Language, JSON or YAML.
    WorkflowDefinition,
}

#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// Folders, read as if committed, and single files
    #[arg(value_name = "PATH", default_value = ".")]
    pub paths: Vec<PathBuf>,
    /// The kind of documents that have no `kind`
    #[arg(long, value_name = "KIND")]
    pub kind: Option<BareKind>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: ReportFormat,
    /// Fail on warnings too
    #[arg(long)]
    pub strict: bool,
}

#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// The kind or its short name; without it, one schema that accepts a manifest of any kind
    #[arg(value_name = "KIND")]
    pub kind: Option<String>,
    /// Only list the kinds
    #[arg(long, conflicts_with = "kind")]
    pub list: bool,
}

#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// A kind, and a path of fields in it: pod.spec.containers
    #[arg(value_name = "KIND[.FIELD]...")]
    pub path: String,
    /// Show every field below it, as a tree
    #[arg(short, long)]
    pub recursive: bool,
}
