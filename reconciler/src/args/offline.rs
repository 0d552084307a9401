//! Flags of the commands that read manifests: `validate`, `schema`, `explain` and `plan`; `simulate` has its own file.

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

// Flags of `minik8s plan`.

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlanFormat {
    /// For a terminal.
    Text,
    /// For a comment on a pull request.
    Markdown,
    /// For programs.
    Json,
    /// The Markdown as `{"body": …}`, as GitHub, GitLab and Gitea accept a comment
    Comment,
}

#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Revision to compare with and merge into: a commit, branch or tag; not needed with --server
    #[arg(long, value_name = "REV", required_unless_present = "server")]
    pub base: Option<String>,
    /// Revision to plan; HEAD with --server
    #[arg(long, value_name = "REV", required_unless_present = "server")]
    pub head: Option<String>,
    /// The local repository, or a folder in it; only its objects are read, never its files
    #[arg(long, value_name = "PATH", default_value = ".")]
    pub repo: String,
    /// Folder of the repository that the source reads
    #[arg(long, value_name = "DIR")]
    pub path: Option<String>,
    /// Name of the source
    #[arg(long, value_name = "NAME")]
    pub source: Option<String>,
    /// Plan as a strict source does: one file that can't be applied blocks the whole commit
    #[arg(long)]
    pub strict: bool,
    /// Compare with the state that a reconciler has applied, instead of a base; without URL the reconciler that
    /// 'minik8s status' queries
    #[arg(long, value_name = "URL")]
    pub server: Option<Option<String>>,
    /// Replace the current state with the head, as a force push does, instead of merging
    #[arg(long)]
    pub in_place: bool,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: PlanFormat,
}

#[derive(Debug, Args)]
pub struct FindCommentArgs {
    /// Account whose newest comment to find
    #[arg(long, value_name = "LOGIN", required_unless_present = "whoami")]
    pub by: Option<String>,
    /// Print the account in the forge's response instead
    #[arg(long, conflicts_with = "by")]
    pub whoami: bool,
}
