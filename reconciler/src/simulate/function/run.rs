//! Follows a trace in the form that it has.

use schema::kinds::cluster::FunctionDefaults;
use schema::kinds::function::FunctionSpec;

use super::Report;
use super::closed_loop::follow_load;
use super::steps::follow_steps;
use super::trace::{Form, Trace};
use crate::controllers::functions::decider::Config;
use crate::simulate::trace::TraceError;

/// Follows `trace` for the function `spec`. What that leaves open is as the Cluster object leaves it by default.
///
/// # Errors
/// The trace can't be followed.
pub fn run(spec: &FunctionSpec, trace: &Trace) -> Result<Report, TraceError> {
    let spec = spec.with_defaults(&FunctionDefaults::default());
    let mut config = Config::of(&spec);
    trace.config.unwrap_or_default().apply("config", &mut config)?;
    match trace.form()? {
        Form::Steps { ready, steps } => Ok(Report::Steps { steps: follow_steps(config, ready, steps)? }),
        Form::Load(load) => Ok(Report::Load(follow_load(&spec, config, &load)?)),
    }
}
