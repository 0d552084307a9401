//! `minik8s simulate`: what a controller would have done with a recorded load, or a workflow with mocks. Asks no server.

use std::process::ExitCode;

use crate::args::{SimulateArgs, Simulated};
use crate::cli::error::CliError;

mod function;
mod hpa;
mod shared;
mod workflow;

/// 0, or 2 when FILE or TRACE can't be used; for a workflow 1 when its run fails.
pub(in crate::cli) fn run(args: &SimulateArgs) -> Result<ExitCode, CliError> {
    match &args.what {
        Simulated::Hpa(args) => hpa::run(args),
        Simulated::Function(args) => function::run(args),
        Simulated::Workflow(args) => workflow::run(args),
    }
}
