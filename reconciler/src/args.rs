//! The command line as typed: every subcommand and flag, with help and an example each.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::styling::Styles;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::config::{ServeArgs, parse_duration};
use crate::view::Selector;
use schema::since::Since;

mod invoke;
mod offline;
mod resource;
mod results;
mod run;
mod secrets;
mod simulate;
mod top;
mod up;

pub use invoke::InvokeArgs;
pub use offline::{BareKind, ExplainArgs, ReportFormat, SchemaArgs, ValidateArgs};
pub use resource::{Resource, ResourceKind, Resources};
pub use results::ResultsArgs;
pub use run::RunArgs;
pub use secrets::{RecipientsChange, SealArgs, SecretFormat, SecretsArgs, SecretsCommand, WhichSecret};
pub use simulate::{
    SimulateArgs, SimulateFormat, SimulateFunctionArgs, SimulateHpaArgs, SimulateWorkflowArgs, Simulated,
};
pub use top::{SortBy, TopArgs, TopKind};
pub use up::{DownArgs, EtcdLogin, UpArgs};

/// The default address of the reconciler's API.
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
    /// What a revision would change: the plan that a reviewer reads
    #[command(after_help = "Examples: minik8s plan --base origin/main --head HEAD\n          \
                            minik8s plan --head HEAD --server http://127.0.0.1:7070\n\n\
                            Exit code: 0 nothing changes, 2 something does, 1 error.")]
    Plan(PlanArgs),
    /// For CI: reads a forge's list of comments (JSON) and prints the id of the account's newest plan,
    /// if it is there
    #[command(hide = true, after_help = "Example: minik8s find-comment --by ada < comments.json")]
    FindComment(FindCommentArgs),
    /// The cluster on one page
    #[command(after_help = "Example: minik8s status")]
    Status(StatusArgs),
    /// List pods, nodes, objects of any kind, sources, revisions, requests or events
    #[command(
        after_help = "Examples: minik8s get pods -A\n          minik8s get pod web -o yaml\n          \
                            minik8s get functions,workflows\n          minik8s get nodes -w"
    )]
    Get(GetArgs),
    /// One pod, node or object in full, with why it is as it is
    #[command(
        after_help = "Examples: minik8s describe pod/web\n          minik8s describe run/order/ID\n          \
                            minik8s describe trigger nightly\n          minik8s describe workflow order -o mermaid"
    )]
    Describe(DescribeArgs),
    /// The commits that were applied, the newest first
    #[command(after_help = "Example: minik8s history --limit 5")]
    History(HistoryArgs),
    /// What happened in the last hour
    #[command(after_help = "Example: minik8s events -A -w")]
    Events(EventsArgs),
    /// What a container wrote
    #[command(after_help = "Examples: minik8s logs -f --tail 20 pod/web -c app\n          \
                            minik8s logs --previous --since 10m --timestamps web\n          \
                            minik8s logs run/order/ID")]
    Logs(LogsArgs),
    /// What pods or nodes use, beside what they asked for, and the calls of functions
    #[command(
        after_help = "Examples: minik8s top pods -A --sort-by cpu\n          minik8s top pods --containers\n          \
                            minik8s top nodes\n          minik8s top functions\n\n\
                            CPU is the mean of the last 15 seconds, memory the working set, as the kubelet counts it.\n\
                            CPU% and MEM% are shares of the node. -o wide shows what emptyDir volumes hold."
    )]
    Top(TopArgs),
    /// Wait until a commit is applied, or all that it wants is running
    #[command(
        after_help = "Example: git push && minik8s wait --for healthy --commit $(git rev-parse HEAD)\n\n\
                            Exit code: 0 reached, 1 failed or timed out."
    )]
    Wait(WaitArgs),
    /// Look at the repository now instead of at the next poll
    #[command(after_help = "Example: minik8s sync --wait")]
    Sync(SyncArgs),
    /// Call a function
    #[command(after_help = "Examples: minik8s invoke hello -d '{\"name\": \"Ada\"}'\n          \
                            minik8s invoke shop/price -f order.json --gateway http://10.0.0.7:8081\n\n\
                            Exit code: 0 answered, 1 the function failed, 2 the call was refused, 3 it did not run: \
                            no gateway or replica took it in time, or too many wait; 4 it may have run: the answer was lost.")]
    Invoke(InvokeArgs),
    /// Run a workflow once
    #[command(after_help = "Examples: minik8s run sum -d '{\"x\": 1, \"y\": 2}' --wait\n          \
                            minik8s run shop/order -f order.json --id order-4711\n\n\
                            It changes nothing that should be: the workflow stays as the repository has it.\n\
                            Exit code: 0 asked for, or with --wait succeeded; 1 it did not succeed; 2 wrong usage.")]
    Run(RunArgs),
    /// List or write the files that a Slurm job left
    #[command(
        after_help = "Examples: minik8s results job/matrix\n          minik8s results matrix -n shop -d out\n\n\
                            What the job wrote to standard output and error is among them; \
                            'minik8s logs job/NAME' prints that, also while the job runs."
    )]
    Results(ResultsArgs),
    /// Check manifests as a push of them would be checked
    #[command(
        after_help = "Examples: minik8s validate\n          minik8s validate apps -o github\n          \
                            minik8s validate apps/web.yaml jobs\n          \
                            minik8s validate --kind workflow-definition order.asl.json\n\n\
                            Paths in the output are relative to the Git repository around PATH, if there is one.\n\
                            Exit code: 0 no errors, 1 errors (with --strict also warnings), 2 PATH can't be read."
    )]
    Validate(ValidateArgs),
    /// Make and keep the encrypted secrets of a repository, offline
    #[command(
        after_help = "Examples: minik8s secrets init --node node-1=age1…\n          minik8s secrets seal db --from db.env"
    )]
    Secrets(SecretsArgs),
    /// What a controller would have done with a recorded load, or a run of a workflow with mocks; offline
    #[command(
        after_help = "Examples: minik8s simulate hpa apps/web-hpa.yaml --trace monday.json\n          \
                            minik8s simulate function functions/hello.yaml --trace monday.json\n          \
                            minik8s simulate workflow workflows/order.yaml --input '{\"id\": 7}' --mocks mocks.json"
    )]
    Simulate(SimulateArgs),
    /// The JSON Schema of a kind's manifest, for editors
    #[command(
        after_help = "Examples: minik8s schema pod > pod.json\n          minik8s schema > manifest.json\n          \
                            minik8s schema --list"
    )]
    Schema(SchemaArgs),
    /// What a kind or a field is, and the fields in it
    #[command(
        after_help = "Examples: minik8s explain pod.spec.containers\n          minik8s explain hpa --recursive"
    )]
    Explain(ExplainArgs),
    /// Not supported: change the repository instead
    #[command(
        hide = true,
        aliases = ["delete", "edit", "create", "patch", "replace", "scale", "label", "annotate", "rollout"],
        after_help = "Example, which only says so: minik8s apply"
    )]
    Apply(ByHandArgs),
    /// Versions of this program and of the reconciler
    #[command(after_help = "Example: minik8s version")]
    Version(VersionArgs),
    /// Completions for a shell
    #[command(after_help = "Example: minik8s completion bash > /etc/bash_completion.d/minik8s")]
    Completion(CompletionArgs),
}

#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// The reconciler's API
    #[arg(long, env = "MINIK8S_SERVER", value_name = "URL", default_value = DEFAULT_SERVER)]
    pub server: String,
}

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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table.
    Table,
    /// A table with more columns.
    Wide,
    /// JSON.
    Json,
    Yaml,
    /// `kind/name`, one per line.
    Name,
}

#[derive(Debug, Clone, Copy, Args)]
pub struct OutputArgs {
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlanFormat {
    /// For a terminal.
    Text,
    /// For a comment on a pull request.
    Markdown,
    /// For programs.
    Json,
    /// The Markdown as `{"body": …}`, as GitHub, GitLab and Gitea take a comment
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
    /// Against what this reconciler has applied now, instead of a base
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// The head takes the place of what is there, as after a push by force; else it is merged into it
    #[arg(long)]
    pub in_place: bool,
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: PlanFormat,
}

#[derive(Debug, Args)]
pub struct FindCommentArgs {
    /// The account whose newest comment is looked for
    #[arg(long, value_name = "LOGIN", required_unless_present = "whoami")]
    pub by: Option<String>,
    /// Print the account in the forge's answer instead
    #[arg(long, conflicts_with = "by")]
    pub whoami: bool,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct GetArgs {
    #[arg(value_name = "KIND", help = ResourceKind::help())]
    pub resources: Resources,
    /// Only those of these names
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Only those with these labels: app=web,tier!=back,env in (a,b),new,!old
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub selector: Option<Selector>,
    /// Leave the header of the table out
    #[arg(long)]
    pub no_headers: bool,
    /// Print again whenever something changes
    #[arg(short, long)]
    pub watch: bool,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct DescribeArgs {
    /// KIND/NAME, or KIND followed by NAME; any kind that 'get' knows and that Git can have, node or revision
    #[arg(value_name = "KIND[/NAME]")]
    pub resource: Resource,
    /// The name, if not given with the kind
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// The namespace
    #[arg(short, long, value_name = "NS", default_value = "default")]
    pub namespace: String,
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: PageFormat,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PageFormat {
    /// A page.
    Text,
    /// Of a workflow: its states as a flowchart for Markdown
    Mermaid,
}

#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Only of this source
    #[arg(long, value_name = "SOURCE")]
    pub source: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Go on printing new ones
    #[arg(short, long)]
    pub watch: bool,
    /// Only of this object: KIND/NAME or NAME
    #[arg(long = "for", value_name = "OBJECT")]
    pub object: Option<String>,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The pod: NAME or pod/NAME; function/NAME for all of its replicas; job/NAME; or run/WORKFLOW/ID for the functions of
    /// a run
    #[arg(value_name = "POD", required_unless_present = "selector", conflicts_with = "selector")]
    pub pod: Option<String>,
    /// All pods with these labels, each line with its pod: key=value,…
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<Selector>,
    /// The container; not needed when there is only one
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// What the newest build of a function's image said
    #[arg(long)]
    pub build: bool,
    /// What a job wrote to standard error, if that has a file of its own
    #[arg(long)]
    pub stderr: bool,
    /// Only what the call with this activation id wrote
    #[arg(long, value_name = "ID")]
    pub activation: Option<String>,
    /// Go on printing what it writes
    #[arg(short, long)]
    pub follow: bool,
    /// Begin with this many of the last lines
    #[arg(long, value_name = "N")]
    pub tail: Option<u64>,
    /// Begin with what is not older: an age (90s, 10m, 1h30m) or a time (2030-01-31T12:00:00Z)
    #[arg(long, value_name = "TIME")]
    pub since: Option<Since>,
    /// Begin each line with when it was written
    #[arg(long)]
    pub timestamps: bool,
    /// What it wrote before its last restart
    #[arg(short, long)]
    pub previous: bool,
    /// The namespace
    #[arg(short, long, value_name = "NS", default_value = "default")]
    pub namespace: String,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Goal {
    /// The commit is applied whole: no file quarantined, no removal held.
    Synced,
    /// And all that it wants is running and ready: pods without a readinessProbe for 1 s, after a restart for
    /// 10 s; services with an endpoint, programmed on every node; hosts whose paths lead somewhere.
    Healthy,
}

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
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct SyncArgs {
    /// Only this source; by default all of the reconciler that is asked
    #[arg(value_name = "SOURCE")]
    pub source: Option<String>,
    /// Wait until it is done, and print the commit that is applied then
    #[arg(long)]
    pub wait: bool,
    /// How long at most: 500ms, 60s, 5m
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub timeout: Duration,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct ByHandArgs {
    /// Whatever was written
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub words: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct VersionArgs {
    /// Only of this program; asks no server
    #[arg(long)]
    pub client: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// Help and version end with code 0. Wrong usage ends with 2, but `plan` with 1: its 2 means that something changes.
pub fn parse<I, T>(arguments: I) -> Result<Cli, ExitCode>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let arguments = simulate_workflow(help_as_flag(flags_last(arguments)));
    Cli::try_parse_from(&arguments).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => {
            let command = command_of(&arguments);
            eprintln!("minik8s: {}", one_line(&error.render().to_string(), &command));
            ExitCode::from(if command == "minik8s plan" { 1 } else { 2 })
        }
    })
}

/// Moves flags in front of the subcommand behind it, where clap looks for them: `minik8s -n shop get pods`.
fn flags_last<I, T>(arguments: I) -> Vec<OsString>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString>,
{
    const WITH_VALUE: [&str; 5] = ["--server", "-n", "--namespace", "-o", "--output"];
    const WITHOUT: [&str; 2] = ["-A", "--all-namespaces"];
    let mut arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let mut at = 1;
    while let Some(word) = arguments.get(at).and_then(|word| word.to_str()) {
        let (flag, value) = word.split_once('=').map_or((word, None), |(flag, value)| (flag, Some(value)));
        at += match (WITH_VALUE.contains(&flag), WITHOUT.contains(&word)) {
            (true, _) if value.is_some() => 1,
            (true, _) => 2,
            (false, true) => 1,
            (false, false) => break,
        };
    }
    if at > 1 && at < arguments.len() {
        // The subcommand goes in front of the flags that stood before it.
        arguments[1..=at].rotate_right(1);
    }
    arguments
}

/// `minik8s help get` means `--help`. A subcommand of clap's would stand in every list of subcommands.
fn help_as_flag(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_some_and(|word| word == "help") {
        arguments.remove(1);
        arguments.truncate(2);
        arguments.push("--help".into());
    }
    arguments
}

/// `minik8s simulate FILE` is `minik8s simulate workflow FILE`: only a workflow needs no trace.
fn simulate_workflow(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let word = |at: usize| arguments.get(at).and_then(|word| word.to_str());
    let is_file = |word: &str| !word.starts_with('-') && word.contains(['.', '/']);
    if word(1) == Some("simulate") && word(2).is_some_and(is_file) {
        arguments.insert(2, "workflow".into());
    }
    arguments
}

/// clap's message without its usage block, as one line that points to the help of `command`.
fn one_line(message: &str, command: &str) -> String {
    let useful = message.split("\n\nUsage:").next().unwrap_or(message);
    let mut line = String::new();
    for part in useful.lines().map(str::trim).filter(|p| !p.is_empty() && !p.starts_with("For more info")) {
        // A mistyped flag is not meant as a value.
        if part.starts_with("tip: to pass '-") {
            continue;
        }
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
    if line.contains("; ") { line } else { format!("{line}; see '{command} --help'") }
}

/// `minik8s wait` when `wait` was meant, else `minik8s`.
fn command_of(arguments: &[OsString]) -> String {
    let first = arguments.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    let known =
        <Cli as CommandFactory>::command().get_subcommands().any(|command| command.get_name() == first);
    if known { format!("minik8s {first}") } else { "minik8s".to_owned() }
}

#[cfg(test)]
mod tests;
