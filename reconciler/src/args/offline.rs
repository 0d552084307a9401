//! Flags of the commands that ask no server: `validate`, `schema`, `explain`; `simulate` has a file of its own.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// How violations are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// For people: each with the line it speaks of.
    Text,
    /// For programs.
    Json,
    /// Workflow commands, which GitHub, Gitea and Forgejo show beside the lines of a pull request.
    Github,
}

/// What files without an envelope are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BareKind {
    /// State machines in the Amazon States Language, JSON or YAML.
    WorkflowDefinition,
}

#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// Folders, read as their commit would be, and single files
    #[arg(value_name = "PATH", default_value = ".")]
    pub paths: Vec<PathBuf>,
    /// The kind of documents that have no `kind`
    #[arg(long, value_name = "KIND")]
    pub kind: Option<BareKind>,
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: ReportFormat,
    /// Fail on warnings too
    #[arg(long)]
    pub strict: bool,
}

#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// The kind, or its short name; without it one schema that takes a manifest of any kind
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
    /// All fields below it, as a tree
    #[arg(short, long)]
    pub recursive: bool,
}
