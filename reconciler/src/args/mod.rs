//! The command line as typed: every subcommand and flag, with help and an example each.

mod calls;
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

mod offline;
mod resource;
mod secrets;
mod simulate;
mod trust;
mod up;
mod views;

pub use calls::InvokeArgs;
pub use calls::ResultsArgs;
pub use calls::RunArgs;
pub use offline::{
    BareKind, ExplainArgs, FindCommentArgs, PlanArgs, PlanFormat, ReportFormat, SchemaArgs, ValidateArgs,
};
pub use resource::{Resource, ResourceKind, Resources};
pub use secrets::{
    LineInFile, RecipientsChange, SealArgs, SecretFormat, SecretPlace, SecretSelector, SecretsArgs,
    SecretsCommand,
};
pub use simulate::{
    SimulateArgs, SimulateCommand, SimulateFormat, SimulateFunctionArgs, SimulateHpaArgs,
    SimulateWorkflowArgs,
};
pub use trust::{
    JoinArgs, NodeAddArgs, NodeArgs, NodeCommand, TokenArgs, TokenCommand, TokenCreateArgs, UiArgs,
    UserAddArgs, UserArgs, UserCommand, UserListArgs, UserRemoveArgs,
};
pub use up::{DefragArgs, DownArgs, EtcdArgs, EtcdCommand, EtcdLogin, LifetimeArgs, UpArgs};
pub use up::{EnableArgs, EtcdUsersArgs, TrustArgs, TrustCommand, TrustRemoveArgs, TrustRequestArgs};
pub use views::{HistoryArgs, SortBy, TopArgs, TopKind, TreeArgs};

/// Runs a fleet of Docker hosts from a Git repository.
///
/// The repository defines what runs: push to change it. The commands below start the
/// daemons or inspect the cluster; none of them changes the desired state.
#[derive(Debug, Parser)]
#[command(name = "minik8s", version, styles = Styles::plain(), disable_help_subcommand = true)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run everything on this machine: etcd, the reconciler and the agent
    #[command(after_help = "Example: minik8s up --repo /srv/git/cluster.git")]
    Up(Box<UpArgs>),
    /// Run the reconciler
    #[command(after_help = "Example: minik8s serve --repo https://git.example.org/cluster.git --branch main")]
    Serve(Box<ServeArgs>),
    /// Remove everything that `up` created on this machine
    #[command(after_help = "Example: minik8s down")]
    Down(DownArgs),
    /// Show what a revision would change, as a plan for reviewers
    #[command(after_help = "Examples: minik8s plan --base origin/main --head HEAD\n          \
                            minik8s plan --head HEAD --server\n\n\
                            Exit code: 0 no changes, 2 changes, 1 error.")]
    Plan(PlanArgs),
    /// For CI: read a forge's list of comments (JSON) and print the id of the account's newest plan,
    /// if any
    #[command(hide = true, after_help = "Example: minik8s find-comment --by ada < comments.json")]
    FindComment(FindCommentArgs),
    /// Show the cluster on one page
    #[command(after_help = "Example: minik8s status")]
    Status(StatusArgs),
    /// List pods, nodes, objects of any kind, sources, revisions, requests, notifications or events
    #[command(
        after_help = "Examples: minik8s get pods -A\n          minik8s get pod web -o yaml\n          \
                            minik8s get functions,workflows\n          minik8s get nodes -w"
    )]
    Get(GetArgs),
    /// Show one pod, node or object in full, with the reasons for its state
    #[command(
        after_help = "Examples: minik8s describe pod/web\n          minik8s describe run/order/ID\n          \
                            minik8s describe trigger nightly\n          minik8s describe workflow order -o mermaid"
    )]
    Describe(DescribeArgs),
    /// List the applied commits, newest first
    #[command(
        after_help = "Examples: minik8s history --limit 5\n          minik8s history 1a2b3c4 --timeline"
    )]
    History(HistoryArgs),
    /// Show the sources, their objects and what runs for them
    #[command(
        after_help = "Examples: minik8s tree\n          minik8s tree replicaset/web\n          minik8s tree -n shop -l app=web"
    )]
    Tree(TreeArgs),
    /// List the events of the last hour
    #[command(after_help = "Example: minik8s events -A -w")]
    Events(EventsArgs),
    /// Print the logs of a container
    #[command(after_help = "Examples: minik8s logs -f --tail 20 pod/web -c app\n          \
                            minik8s logs --previous --since 10m --timestamps web\n          \
                            minik8s logs -l app=web --grep error --since 1h\n          \
                            minik8s logs run/order/ID")]
    Logs(LogsArgs),
    /// Show the usage of pods or nodes next to their requests, or the calls of functions
    #[command(
        after_help = "Examples: minik8s top pods -A --sort-by cpu\n          minik8s top pods --containers\n          \
                            minik8s top nodes\n          minik8s top functions\n\n\
                            CPU is the mean of the last 15 seconds, memory the working set, as the kubelet counts it.\n\
                            CPU% and MEM% are shares of the node. -o wide shows what emptyDir volumes hold."
    )]
    Top(TopArgs),
    /// Wait until a commit is applied, or until everything in it is running
    #[command(
        after_help = "Example: git push && minik8s wait --for healthy --commit $(git rev-parse HEAD)\n\n\
                            Exit code: 0 reached, 1 failed or timed out."
    )]
    Wait(WaitArgs),
    /// Fetch the repository now instead of at the next poll
    #[command(after_help = "Example: minik8s sync --wait")]
    Sync(SyncArgs),
    /// Maintain etcd
    #[command(after_help = "Example: minik8s etcd defrag")]
    Etcd(EtcdArgs),
    /// Create a token, with which one node or one reconciler joins the cluster
    #[command(after_help = "Examples: minik8s token create --node web-2\n          \
                            minik8s token create --reconciler r2 --ttl 10m")]
    Token(TokenArgs),
    /// Make a machine a node of the cluster, over SSH
    #[command(after_help = "Example: minik8s node add root@10.0.0.7")]
    Node(NodeArgs),
    /// Make this machine a reconciler of a cluster, with the command that 'token create' printed
    #[command(after_help = "Example: minik8s join https://10.0.0.5:7070 --name r2 --token ID.SECRET.PIN\n\n\
                            Then start it with 'minik8s serve'. A node joins with 'minik8s-agent join'.")]
    Join(JoinArgs),
    /// Let a person view the cluster from elsewhere, or no longer
    #[command(after_help = "Examples: minik8s user add ada -o ada.json\n          \
                            minik8s user list\n          minik8s user remove ada")]
    User(UserArgs),
    /// Show the web page to a browser on this machine
    #[command(after_help = "Examples: minik8s ui\n          minik8s ui --listen 127.0.0.1:8080\n\n\
                            The URL that it prints is for you only: whoever has it sees what you see.")]
    Ui(UiArgs),
    /// Maintain the trust between machines
    #[command(
        after_help = "Examples: minik8s trust rotate\n          minik8s trust remove reconciler-r2\n          \
                            minik8s trust etcd-users --node web-1 --node web-2"
    )]
    Trust(TrustArgs),
    /// Call a function
    #[command(after_help = "Examples: minik8s invoke hello -d '{\"name\": \"Ada\"}'\n          \
                            minik8s invoke shop/price -f order.json --gateway https://node-web-2@10.0.0.7:8081\n\n\
                            Exit code: 0 answered, 1 the function failed, 2 the call was refused, 3 it did not run: \
                            no gateway or replica took it in time, or too many were waiting; 4 it may have run: the answer was lost.")]
    Invoke(InvokeArgs),
    /// Run a workflow once
    #[command(after_help = "Examples: minik8s run sum -d '{\"x\": 1, \"y\": 2}' --wait\n          \
                            minik8s run shop/order -f order.json --id order-4711\n\n\
                            This does not change desired state: the workflow stays as the repository defines it.\n\
                            Exit code: 0 accepted, or with --wait succeeded; 1 it did not succeed; 2 wrong usage.")]
    Run(RunArgs),
    /// List or download the result files of a Slurm job
    #[command(
        after_help = "Examples: minik8s results job/matrix\n          minik8s results matrix -n shop -d out\n\n\
                            The results include the job's standard output and error; \
                            'minik8s logs job/NAME' prints those, also while the job runs."
    )]
    Results(ResultsArgs),
    /// Check manifests the way a push would
    #[command(
        after_help = "Examples: minik8s validate\n          minik8s validate apps -o github\n          \
                            minik8s validate apps/web.yaml jobs\n          \
                            minik8s validate --kind workflow-definition order.asl.json\n\n\
                            Paths in the output are relative to the Git repository around PATH, if there is one.\n\
                            Exit code: 0 no errors, 1 errors (with --strict also warnings), 2 PATH can't be read."
    )]
    Validate(ValidateArgs),
    /// Create and maintain the encrypted secrets of a repository, offline
    #[command(
        after_help = "Examples: minik8s secrets init --node node-1=age1…\n          minik8s secrets seal db --from db.env"
    )]
    Secrets(SecretsArgs),
    /// Replay a recorded load through a controller, or run a workflow with mocks; offline
    #[command(
        after_help = "Examples: minik8s simulate hpa apps/web-hpa.yaml --trace monday.json\n          \
                            minik8s simulate function functions/hello.yaml --trace monday.json\n          \
                            minik8s simulate workflow workflows/order.yaml --input '{\"id\": 7}' --mocks mocks.json"
    )]
    Simulate(SimulateArgs),
    /// Print the JSON Schema of a kind's manifest, for editors
    #[command(
        after_help = "Examples: minik8s schema pod > pod.json\n          minik8s schema > manifest.json\n          \
                            minik8s schema --list"
    )]
    Schema(SchemaArgs),
    /// Document a kind or a field, and the fields in it
    #[command(
        after_help = "Examples: minik8s explain pod.spec.containers\n          minik8s explain hpa --recursive"
    )]
    Explain(ExplainArgs),
    /// Not supported: change the repository instead
    #[command(
        hide = true,
        aliases = ["delete", "edit", "create", "patch", "replace", "scale", "label", "annotate", "rollout"],
        after_help = "Example, which only prints this advice: minik8s apply"
    )]
    Apply(RejectedArgs),
    /// Print the versions of this program and of the reconciler
    #[command(after_help = "Example: minik8s version")]
    Version(VersionArgs),
    /// Print completions for a shell
    #[command(after_help = "Example: minik8s completion bash > /etc/bash_completion.d/minik8s")]
    Completion(CompletionArgs),
}

#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// The reconciler's API: unix:///PATH, https://HOST:PORT with the certificate in MINIK8S_CONFIG, or http:// on
    /// loopback [default: this machine's socket, or the first server in MINIK8S_CONFIG]
    #[arg(long, env = "MINIK8S_SERVER", value_name = "URL")]
    pub server: Option<String>,
}

impl ServerArgs {
    /// The address as given, or `None` for the default.
    pub fn given(&self) -> Option<&str> {
        self.server.as_deref()
    }
}

#[derive(Debug, Clone, Args)]
pub struct NamespaceArgs {
    /// The namespace
    #[arg(short, long, value_name = "NS", default_value = "default")]
    pub namespace: String,
    /// Include all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
}

impl NamespaceArgs {
    /// The selected namespace, or `None` for all.
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
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Format,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Refresh every second
    #[arg(short, long)]
    pub watch: bool,
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct GetArgs {
    #[arg(value_name = "KIND", help = ResourceKind::help())]
    pub resources: Resources,
    /// Only objects with these names
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Only objects with these labels: app=web,tier!=back,env in (a,b),new,!old
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub selector: Option<Selector>,
    /// Omit the table header
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
    /// KIND/NAME, or KIND followed by NAME: an object of any kind, a run, a trigger or a revision
    #[arg(value_name = "KIND[/NAME]")]
    pub resource: Resource,
    /// The name, if not given with the kind
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// The namespace
    #[arg(short, long, value_name = "NS", default_value = "default")]
    pub namespace: String,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: PageFormat,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PageFormat {
    /// A page.
    Text,
    /// The states of a workflow, as a flowchart for Markdown
    Mermaid,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Keep printing new events
    #[arg(short, long)]
    pub watch: bool,
    /// Only events of this object: KIND/NAME or NAME
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
    /// Logs of every pod with these labels, each line with its pod: key=value,…
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<Selector>,
    /// The container; not needed when there is only one
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// Print the log of the newest build of a function's image
    #[arg(long)]
    pub build: bool,
    /// Print a job's standard error, if it has its own file
    #[arg(long)]
    pub stderr: bool,
    /// Only output of the call with this activation id
    #[arg(long, value_name = "ID")]
    pub activation: Option<String>,
    /// Only lines that contain this text
    #[arg(long, value_name = "TEXT")]
    pub grep: Option<String>,
    /// Keep printing new output
    #[arg(short, long)]
    pub follow: bool,
    /// Start with this many of the last lines
    #[arg(long, value_name = "N")]
    pub tail: Option<u64>,
    /// Only output newer than an age (90s, 10m, 1h30m) or a time (2030-01-31T12:00:00Z)
    #[arg(long, value_name = "TIME")]
    pub since: Option<Since>,
    /// Prefix each line with the time it was written
    #[arg(long)]
    pub timestamps: bool,
    /// Print the output before the last restart
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
    /// The commit is fully applied: no file quarantined, no prune held.
    Synced,
    /// Synced, and everything in the commit is running and ready: pods without a readinessProbe for 1 s, after a
    /// restart for 10 s; services with an endpoint, programmed on every node; hosts whose paths have a backend.
    Healthy,
}

#[derive(Debug, Args)]
pub struct WaitArgs {
    /// Condition to wait for
    #[arg(long = "for", value_name = "GOAL")]
    pub goal: Goal,
    /// Commit id, at least 7 digits; by default the newest one known to the reconciler
    #[arg(long, value_name = "SHA")]
    pub commit: Option<String>,
    /// Maximum time to wait: 500ms, 60s, 5m
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub timeout: Duration,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct SyncArgs {
    /// Only this source; by default every source of the reconciler
    #[arg(value_name = "SOURCE")]
    pub source: Option<String>,
    /// Wait for the sync to finish, then print the applied commit
    #[arg(long)]
    pub wait: bool,
    /// Maximum time to wait: 500ms, 60s, 5m
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub timeout: Duration,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct RejectedArgs {
    /// Arguments of the rejected command
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub words: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct VersionArgs {
    /// Print only the version of this program, without contacting the reconciler
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

/// Parses the command line. On failure returns the exit code: 0 for help and version, 2 for wrong usage, but 1 for
/// `plan`, whose 2 means that something changes.
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

/// Moves flags that precede the subcommand behind it, where clap expects them: `minik8s -n shop get pods`.
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
        // Move the subcommand in front of the flags that preceded it.
        arguments[1..=at].rotate_right(1);
    }
    arguments
}

/// Turns `minik8s help get` into `minik8s get --help`. clap's own `help` would appear in every list of subcommands.
fn help_as_flag(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_some_and(|word| word == "help") {
        arguments.remove(1);
        arguments.truncate(2);
        arguments.push("--help".into());
    }
    arguments
}

/// Turns `minik8s simulate FILE` into `minik8s simulate workflow FILE`, because only workflows need no trace.
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

/// Command name for messages: `minik8s wait` if the first argument is that subcommand, else `minik8s`.
fn command_of(arguments: &[OsString]) -> String {
    let first = arguments.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    let known =
        <Cli as CommandFactory>::command().get_subcommands().any(|command| command.get_name() == first);
    if known { format!("minik8s {first}") } else { "minik8s".to_owned() }
}

#[cfg(test)]
mod tests;
