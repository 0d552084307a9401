//! The command line as typed: every subcommand and flag, with help and an example each.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::styling::Styles;
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::cli::down::DownArgs;
use crate::cli::up::UpArgs;
use crate::config::{ServeArgs, parse_duration};

mod resource;

pub use resource::{Resource, ResourceKind};

/// Where the reconciler's API is when nobody says otherwise.
pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7070";

/// Runs a fleet of Docker hosts from a Git repository.
///
/// What runs is what the repository says: push to change it. The commands below start the
/// daemons or look at the cluster; none changes what should run.
#[derive(Debug, Parser)]
#[command(name = "minik8s", version, styles = Styles::plain(), disable_help_subcommand = true)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run all of it on this machine: etcd, reconciler and agent
    #[command(after_help = "Example: minik8s up --repo /srv/git/cluster.git")]
    Up(Box<UpArgs>),
    /// Run the reconciler
    #[command(after_help = "Example: minik8s serve --repo https://git.example.org/cluster.git --branch main")]
    Serve(Box<ServeArgs>),
    /// Remove everything that `up` made on this machine
    #[command(after_help = "Example: minik8s down")]
    Down(DownArgs),
    /// The cluster on one page
    #[command(after_help = "Example: minik8s status")]
    Status(StatusArgs),
    /// List pods, nodes, sources, revisions or events
    #[command(
        after_help = "Examples: minik8s get pods -A\n          minik8s get pod web -o yaml\n          \
                            minik8s get nodes -w"
    )]
    Get(GetArgs),
    /// One pod or node in full, with why it is as it is
    #[command(after_help = "Example: minik8s describe pod/web")]
    Describe(DescribeArgs),
    /// The commits that were applied, the newest first
    #[command(after_help = "Example: minik8s history --limit 5")]
    History(HistoryArgs),
    /// What happened in the last hour
    #[command(after_help = "Example: minik8s events -A -w")]
    Events(EventsArgs),
    /// What a container wrote
    #[command(after_help = "Example: minik8s logs -f --tail 20 pod/web -c app")]
    Logs(LogsArgs),
    /// Wait until a commit is applied, or all that it wants is running
    #[command(
        after_help = "Example: git push && minik8s wait --for healthy --commit $(git rev-parse HEAD)\n\n\
                            Exit code: 0 reached, 1 failed or timed out."
    )]
    Wait(WaitArgs),
    /// Look at the repository now instead of at the next poll
    #[command(after_help = "Example: minik8s sync --wait")]
    Sync(SyncArgs),
    /// Versions of this program and of the reconciler
    #[command(after_help = "Example: minik8s version")]
    Version(VersionArgs),
    /// Completions for a shell
    #[command(after_help = "Example: minik8s completion bash > /etc/bash_completion.d/minik8s")]
    Completion(CompletionArgs),
}

/// Where the reconciler's API is.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// The reconciler's API
    #[arg(long, env = "MINIK8S_SERVER", value_name = "URL", default_value = DEFAULT_SERVER)]
    pub server: String,
}

/// Which namespaces.
#[derive(Debug, Clone, Args)]
pub struct NamespaceArgs {
    /// The namespace
    #[arg(short, long, value_name = "NS", default_value = "default")]
    pub namespace: String,
    /// All namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
}

impl NamespaceArgs {
    /// The one namespace, or none for all.
    pub fn selected(&self) -> Option<&str> {
        (!self.all_namespaces).then_some(self.namespace.as_str())
    }
}

/// How it is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table.
    Table,
    /// A table with more columns.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// `kind/name`, one per line.
    Name,
}

/// How it is printed.
#[derive(Debug, Clone, Copy, Args)]
pub struct OutputArgs {
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Format,
}

/// Flags of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: OutputArgs,
}

/// Flags of `get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// What to list: pods (po), nodes (no), sources (src), revisions (rev), events (ev); or KIND/NAME
    #[arg(value_name = "KIND")]
    pub resource: Resource,
    /// Only the one of this name
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Print again whenever something changes
    #[arg(short, long)]
    pub watch: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub namespace: NamespaceArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: OutputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerArgs,
}

/// Flags of `describe`.
#[derive(Debug, Args)]
pub struct DescribeArgs {
    /// KIND/NAME, or KIND followed by NAME; kinds: pod, node
    #[arg(value_name = "KIND[/NAME]")]
    pub resource: Resource,
    /// The name, if not given with the kind
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// The namespace
    #[arg(short, long, value_name = "NS", default_value = "default")]
    pub namespace: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerArgs,
}

/// Flags of `history`.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Only of this source
    #[arg(long, value_name = "SOURCE")]
    pub source: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: OutputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerArgs,
}

/// Flags of `events`.
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Go on printing new ones
    #[arg(short, long)]
    pub watch: bool,
    /// Only of this object: KIND/NAME or NAME
    #[arg(long = "for", value_name = "OBJECT")]
    pub object: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub namespace: NamespaceArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: OutputArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerArgs,
}

/// Flags of `logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The pod: NAME or pod/NAME
    #[arg(value_name = "POD")]
    pub pod: String,
    /// The container; not needed when there is only one
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// Go on printing what it writes
    #[arg(short, long)]
    pub follow: bool,
    /// Begin with so many of the last lines
    #[arg(long, value_name = "N")]
    pub tail: Option<u64>,
    /// The container before its last restart
    #[arg(short, long)]
    pub previous: bool,
    /// The namespace
    #[arg(short, long, value_name = "NS", default_value = "default")]
    pub namespace: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerArgs,
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Goal {
    /// The commit is applied.
    Synced,
    /// And all that it wants is running and ready.
    Healthy,
}

/// Flags of `wait`.
#[derive(Debug, Args)]
pub struct WaitArgs {
    /// What to wait for
    #[arg(long = "for", value_name = "GOAL")]
    pub goal: Goal,
    /// The commit, 7 digits at least; by default the newest that the reconciler has seen
    #[arg(long, value_name = "SHA")]
    pub commit: Option<String>,
    /// How long at most: 500ms, 60s, 5m
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub timeout: Duration,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerArgs,
}

/// Flags of `sync`.
#[derive(Debug, Args)]
pub struct SyncArgs {
    /// Wait until it is done, and print the commit that is applied then
    #[arg(long)]
    pub wait: bool,
    /// How long at most: 500ms, 60s, 5m
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub timeout: Duration,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerArgs,
}

/// Flags of `version`.
#[derive(Debug, Args)]
pub struct VersionArgs {
    /// Only of this program; asks no server
    #[arg(long)]
    pub client: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerArgs,
}

/// Flags of `completion`.
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// Reads the command line. Help and version go to stdout with code 0; wrong usage is one line on
/// stderr with code 2.
pub fn parse<I, T>(arguments: I) -> Result<Cli, ExitCode>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    Cli::try_parse_from(arguments).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Nobody is left to tell if stdout is closed.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => {
            eprintln!("minik8s: {}", one_line(&error.render().to_string()));
            ExitCode::from(2)
        }
    })
}

/// clap's message without its usage block, as one line.
fn one_line(message: &str) -> String {
    let useful = message.split("\n\nUsage:").next().unwrap_or(message);
    let mut line = String::new();
    for part in useful.lines().map(str::trim).filter(|p| !p.is_empty() && !p.starts_with("For more info")) {
        let (separator, part) = match part.strip_prefix("tip: ") {
            Some(tip) => ("; ", tip),
            None => (" ", part),
        };
        if !line.is_empty() {
            line.push_str(separator);
        }
        line.push_str(part);
    }
    let line = line.strip_prefix("error: ").unwrap_or(&line).to_owned();
    if line.contains("; ") { line } else { format!("{line}; see 'minik8s --help'") }
}

#[cfg(test)]
mod tests;
