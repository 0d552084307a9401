//! `minik8s explain` and `minik8s schema`: reference of manifest fields. Offline.

use schema::explain::{self, ExplainError};
use schema::kinds::Kind;
use schema::manifest::json_schema;

use crate::args::{ExplainArgs, SchemaArgs};
use crate::cli::error::CliError;
use crate::cli::print::output::write_out;

pub(in crate::cli) fn run(args: &ExplainArgs) -> Result<(), CliError> {
    let text = explain::explain(&args.path, args.recursive).map_err(|error| unknown(&error))?;
    write_out(&text)
}

/// Prints the JSON Schema of one kind or of all kinds, or lists the kinds.
pub(in crate::cli) fn schema(args: &SchemaArgs) -> Result<(), CliError> {
    if args.list {
        let lines =
            Kind::ALL.map(|kind| format!("{:<26}{}\n", kind.as_str(), json_schema::description(kind)));
        return write_out(&lines.concat());
    }
    let schema = match &args.kind {
        Some(word) => json_schema::of(explain::kind_named(word).map_err(|error| unknown(&error))?),
        None => json_schema::any(),
    };
    write_out(&json_schema::text(&schema))
}

fn unknown(error: &ExplainError) -> CliError {
    CliError::NotFound(error.to_string())
}
