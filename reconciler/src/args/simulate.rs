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

TRACE is JSON. A load that rises and falls, on the pods that run at that time, evaluated every 15 s:

  {"replicas": 1, "readyAfterSeconds": 10, "requests": {"cpu": "500m"},
   "steps": [{"at": 0, "load": {"cpu": "200m"}}, {"at": 60, "load": {"cpu": "2300m"}},
             {"at": 600, "load": {"cpu": "200m"}}, {"at": 1200, "load": {"cpu": "200m"}}]}

Steps may also list the pods, or only the recommendation from their usage (windows and policies alone):

  {"at": 0, "current": 1, "pods": [{"name": "web-1", "requests": {"cpu": "500m"}, "usage": {"cpu": "1"}}]}
  {"at": 15, "current": 2, "recommendation": 8}

A pod may have phase, ready, startedSecondsAgo, readySinceSecondsAgo, deletion, usageAgeSeconds and
usageWindowSeconds; without any of them it has long been ready. Next to steps:

  "controller": {"tolerance": 0.1, "cpuInitializationPeriodSeconds": 300,
                 "initialReadinessDelaySeconds": 30, "downscaleStabilizationSeconds": 300}
  "history": {"recommendations": [{"at": -60, "replicas": 4}], "scaleUps": [{"at": -30, "change": 2}],
              "scaleDowns": []}

Exit code: 0, or 2 when FILE or TRACE can't be used."#;

const SIMULATE_FUNCTION_HELP: &str = r#"Examples: minik8s simulate function functions/hello.yaml --trace monday.json
          minik8s simulate function functions/hello.yaml --trace monday.json -o json

TRACE is JSON. Calls that arrive at even intervals, handled by the replicas that run at that time:

  {"coldStartSeconds": 0.7, "handlingSeconds": 0.05,
   "arrivals": [{"at": 0, "perSecond": 2, "forSeconds": 600},
                {"at": 60, "perSecond": 200, "forSeconds": 30}]}

The output: replicas over time, calls that waited and how long, calls refused, replica-seconds.
Or the decider alone (Knative's KPA), with its inputs at each step; null means unknown:

  {"ready": 1,
   "steps": [{"at": 0, "stableConcurrency": 50, "panicConcurrency": 100},
             {"at": 2, "ready": 10, "stableConcurrency": 50, "panicConcurrency": null}]}

ready is the number of replicas that take calls at the start, and at steps without their own.
Next to both, or in a step from which it applies, with each value optional (target and totalPerPod
follow from FILE; these are for concurrency 10, and Knative's defaults):

  "config": {"target": 7, "totalPerPod": 10, "panicThreshold": 2, "maxScaleUpRate": 1000,
             "maxScaleDownRate": 2, "targetBurstCapacity": 211, "stableWindowSeconds": 60,
             "scaleDownDelaySeconds": 0, "activationScale": 1, "reachable": true}

Exit code: 0, or 2 when FILE or TRACE can't be used."#;

const SIMULATE_WORKFLOW_HELP: &str = r#"Examples: minik8s simulate workflow workflows/order.yaml --input '{"id": 7}' --mocks mocks.json
          minik8s simulate order.asl.json --input '{"id": 7}' --mocks mocks.json -o json

FILE is a Workflow in any form that a repository accepts, or a bare document in the Amazon States
Language, in JSON or YAML. MOCKS is JSON: the answers of each function, by its name or by the
Resource that names it. A list is used in order, one answer for each call and attempt:

  {"price": {"return": {"total": 12}},
   "charge": [{"error": "CardDeclined", "cause": "no funds"}, {"return": {"paid": true}}],
   "arn:aws:lambda:eu-west-1:123456789012:function:notify": {"return": null, "afterSeconds": 30}}

Time is virtual: waits, retries and limits pass immediately. A run begins at 2026-01-01T00:00:00Z.
An answer after the timeoutSeconds of the Function, if its manifest is in FILE or in the Git
repository around it, is the error States.Timeout, as in a real run. A mock that no Task uses, or
that the run did not need, is reported on stderr.

The status is SUCCEEDED, FAILED, TIMED_OUT or ABORTED, as in Step Functions; the phase of a real run
is Succeeded, Failed, TimedOut or Aborted.

'minik8s validate' runs the test cases in a file next to the manifest: WORKFLOW.tests.yaml.

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
