//! `minik8s simulate`: what a controller would have done with a recorded load. Asks no server.

use std::process::ExitCode;

use crate::args::{SimulateArgs, Simulated};
use crate::cli::error::CliError;

mod function;
mod hpa;
mod shared;

/// 0, or 2 when FILE or TRACE can't be used.
pub(in crate::cli) fn run(args: &SimulateArgs) -> Result<ExitCode, CliError> {
    match &args.what {
        Simulated::Hpa(args) => hpa::run(args),
        Simulated::Function(args) => function::run(args),
    }
}
