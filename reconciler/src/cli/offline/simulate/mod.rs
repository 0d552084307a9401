//! `minik8s simulate`: a controller under a recorded load, or a workflow with mocks. Offline.

mod autoscaler;
use std::process::ExitCode;

use crate::args::{SimulateArgs, SimulateCommand};
use crate::cli::error::CliError;

mod function;
mod shared;
mod workflow;

/// Exit code: 0, or 2 if FILE or TRACE can't be used; 1 if the run of a workflow fails.
pub(in crate::cli) fn run(args: &SimulateArgs) -> Result<ExitCode, CliError> {
    match &args.what {
        SimulateCommand::Hpa(args) => autoscaler::run(args),
        SimulateCommand::Function(args) => function::run(args),
        SimulateCommand::Workflow(args) => workflow::run(args),
    }
}
