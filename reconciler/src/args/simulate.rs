//! Flags of `simulate`, and the fields of its traces.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Args)]
pub struct SimulateArgs {
    #[command(subcommand)]
    pub what: SimulateCommand,
}

#[derive(Debug, Subcommand)]
pub enum SimulateCommand {
    /// Simulate the pod count of an autoscaler under a recorded load
    #[command(after_help = SIMULATE_HPA_HELP)]
    Hpa(SimulateHpaArgs),
    /// Simulate the replicas of a function, their cost and the waiting time of callers
    #[command(after_help = SIMULATE_FUNCTION_HELP)]
    Function(SimulateFunctionArgs),
    /// Simulate a run of a workflow, with mocks for functions
    #[command(after_help = SIMULATE_WORKFLOW_HELP)]
    Workflow(SimulateWorkflowArgs),
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

const SIMULATE_FUNCTION_HELP: &str = r#"Examples: minik8s simulate function functions/hello.yaml --trace monday.json
          minik8s simulate function functions/hello.yaml --trace monday.json -o json

TRACE is JSON. Calls that arrive at even distances, met by the replicas that run at that time:

  {"coldStartSeconds": 0.7, "handlingSeconds": 0.05,
   "arrivals": [{"at": 0, "perSecond": 2, "forSeconds": 600},
                {"at": 60, "perSecond": 200, "forSeconds": 30}]}

The answer: replicas over time, calls that waited and how long, calls refused, replica-seconds.
Or the decider alone (Knative's KPA), by what it sees at each step; null is unknown:

  {"ready": 1,
   "steps": [{"at": 0, "stableConcurrency": 50, "panicConcurrency": 100},
             {"at": 2, "ready": 10, "stableConcurrency": 50, "panicConcurrency": null}]}

ready is how many replicas take calls when the decider is made, and at steps that do not say.
Beside both, and in a step from which on it holds, each value optional (target and totalPerPod
follow from FILE; these are those of concurrency 10, and Knative's defaults):

  "config": {"target": 7, "totalPerPod": 10, "panicThreshold": 2, "maxScaleUpRate": 1000,
             "maxScaleDownRate": 2, "targetBurstCapacity": 211, "stableWindowSeconds": 60,
             "scaleDownDelaySeconds": 0, "activationScale": 1, "reachable": true}

Exit code: 0, or 2 when FILE or TRACE can't be used."#;

const SIMULATE_WORKFLOW_HELP: &str = r#"Examples: minik8s simulate workflow workflows/order.yaml --input '{"id": 7}' --mocks mocks.json
          minik8s simulate order.asl.json --input '{"id": 7}' --mocks mocks.json -o json

FILE is a Workflow in any spelling that a repository may have, or a document of the Amazon States
Language alone, in JSON or YAML. MOCKS is JSON: what each function answers, by its name or by the
Resource that names it. A list is answered in its order, one for each call and attempt:

  {"price": {"return": {"total": 12}},
   "charge": [{"error": "CardDeclined", "cause": "no funds"}, {"return": {"paid": true}}],
   "arn:aws:lambda:eu-west-1:123456789012:function:notify": {"return": null, "afterSeconds": 30}}

Time is virtual: waits, retries and limits pass at once. A run begins at 2026-01-01T00:00:00Z.
An answer after the timeoutSeconds of the Function, if its manifest is in FILE or in the Git
repository around it, is the error States.Timeout, as in a real run. A mock that no Task uses, or
that the run did not need, is said on stderr.

The status is SUCCEEDED, FAILED, TIMED_OUT or ABORTED, as Step Functions has it; the phase of a real
run says the same as Succeeded, Failed, TimedOut or Aborted.

'minik8s validate' runs test cases, which a file beside the manifest holds: WORKFLOW.tests.yaml.

Exit code: 0 when the run succeeded, 1 when not, 2 when FILE, JSON or MOCKS can't be used or a
function has no mock."#;

/// Output format of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SimulateFormat {
    /// For people: a chart of load and pods, or a line for each event of a run.
    Text,
    /// For programs.
    Json,
}

#[derive(Debug, Args)]
pub struct SimulateHpaArgs {
    /// Manifest of the autoscaler, in any form that a repository accepts
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The recorded load, as JSON
    #[arg(long, value_name = "TRACE")]
    pub trace: PathBuf,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: SimulateFormat,
}

#[derive(Debug, Args)]
pub struct SimulateFunctionArgs {
    /// Manifest of the function, in any form that a repository accepts
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The calls, or the decider's inputs, as JSON
    #[arg(long, value_name = "TRACE")]
    pub trace: PathBuf,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: SimulateFormat,
}

#[derive(Debug, Args)]
pub struct SimulateWorkflowArgs {
    /// The workflow: a manifest or a bare state machine
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Input of the run; by default the workflow's params, else {}
    #[arg(long, value_name = "JSON")]
    pub input: Option<String>,
    /// Mocked answers of functions, as JSON
    #[arg(long, value_name = "MOCKS")]
    pub mocks: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: SimulateFormat,
}
