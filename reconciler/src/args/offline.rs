//! Flags of the commands that ask no server: `validate`, `simulate`, `schema`, `explain`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

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

#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// Folders, read as their commit would be, and single files
    #[arg(value_name = "PATH", default_value = ".")]
    pub paths: Vec<PathBuf>,
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

#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// Whose decisions.
    #[command(subcommand)]
    pub what: Simulated,
}

#[derive(Debug, Subcommand)]
pub enum Simulated {
    /// How many pods an autoscaler would have wanted
    #[command(after_help = SIMULATE_HPA_HELP)]
    Hpa(SimulateHpaArgs),
}

const SIMULATE_HPA_HELP: &str = r#"Examples: minik8s simulate hpa apps/web-hpa.yaml --trace monday.json
          minik8s simulate hpa apps/web-hpa.yaml --trace monday.json -o json

TRACE is JSON. A load that rises and falls, met by whatever pods there are, one look every 15 s:

  {"replicas": 1, "readyAfterSeconds": 10, "requests": {"cpu": "500m"},
   "steps": [{"at": 0, "load": {"cpu": "200m"}}, {"at": 60, "load": {"cpu": "2300m"}},
             {"at": 600, "load": {"cpu": "200m"}}, {"at": 1200, "load": {"cpu": "200m"}}]}

Steps may also say which pods there were, or only what their use asked for (windows and policies alone):

  {"at": 0, "current": 1, "pods": [{"name": "web-1", "requests": {"cpu": "500m"}, "usage": {"cpu": "1"}}]}
  {"at": 15, "current": 2, "recommendation": 8}

A pod may have phase, ready, startedSecondsAgo, readySinceSecondsAgo, deletion, usageAgeSeconds and
usageWindowSeconds; one that names none of them is ready and has long been. Beside steps:

  "controller": {"tolerance": 0.1, "cpuInitializationPeriodSeconds": 300,
                 "initialReadinessDelaySeconds": 30, "downscaleStabilizationSeconds": 300}
  "history": {"recommendations": [{"at": -60, "replicas": 4}], "scaleUps": [{"at": -30, "change": 2}],
              "scaleDowns": []}

Exit code: 0, or 2 when FILE or TRACE can't be used."#;

/// How a simulation is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SimulateFormat {
    /// For people: a chart of load and pods.
    Text,
    /// For programs.
    Json,
}

#[derive(Debug, Args)]
pub struct SimulateHpaArgs {
    /// The manifest of the autoscaler, in any spelling that a repository may have
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The recorded load, as JSON
    #[arg(long, value_name = "TRACE")]
    pub trace: PathBuf,
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: SimulateFormat,
}
