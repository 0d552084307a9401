//! Runs a trace in either of its forms.

use schema::kinds::cluster::FunctionDefaults;
use schema::kinds::function::FunctionSpec;

use super::Report;
use super::closed_loop::follow_load;
use super::steps::follow_steps;
use super::trace::{Form, Trace};
use crate::controllers::functions::decider::Config;
use crate::simulate::trace::TraceError;

/// Runs `trace` for the function `spec`, with the defaults of the Cluster object for missing fields.
///
/// # Errors
/// Fails if the trace is invalid.
pub fn run(spec: &FunctionSpec, trace: &Trace) -> Result<Report, TraceError> {
    let spec = spec.with_defaults(&FunctionDefaults::default());
    let mut config = Config::of(&spec);
    trace.config.unwrap_or_default().apply("config", &mut config)?;
    match trace.form()? {
        Form::Steps { ready, steps } => Ok(Report::Steps { steps: follow_steps(config, ready, steps)? }),
        Form::Load(load) => Ok(Report::Load(follow_load(&spec, config, &load)?)),
    }
}
