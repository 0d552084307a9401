//! Calls of functions and runs of workflows, and their input.

use std::io::Read as _;
use std::path::Path;

use super::error::CliError;

pub(super) mod invoke;
pub(super) mod run;

/// Input from `--data` or `--file`; `None` if neither is given.
fn given(data: Option<&String>, file: Option<&Path>) -> Result<Option<String>, CliError> {
    let Some(file) = file.filter(|_| data.is_none()) else { return Ok(data.cloned()) };
    let read = if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(file)
    };
    read.map(Some).map_err(|error| CliError::Usage(format!("cannot read {}: {error}", file.display())))
}
