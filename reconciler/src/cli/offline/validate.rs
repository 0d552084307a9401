//! `minik8s validate`: reads folders and files and prints their violations. Offline.

use std::io;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

use schema::explain;
use schema::explain::ExplainError;
use schema::kinds::Kind;
use schema::manifest::json_schema;
use schema::violation::{Severity, visible};

use crate::args::{BareKind, ExplainArgs, ReportFormat, SchemaArgs, ValidateArgs};
use crate::cli::error::CliError;
use crate::cli::output::{Screen, note, print_error, write_out};
use crate::diagnostics::excerpt::{Lines, Style};
use crate::diagnostics::inspect::{Inspection, inspect_definitions};
use crate::diagnostics::json::JsonReport;
use crate::diagnostics::report::is_truncation_note;
use crate::diagnostics::{excerpt, inspect, json};
use crate::simulate::workflow::cases;

/// Exit code: 0 without errors, 1 with errors, 2 if a path can't be read.
pub(in crate::cli) fn run(args: &ValidateArgs) -> ExitCode {
    let inspected = match args.kind {
        None => inspect(&args.paths),
        Some(BareKind::WorkflowDefinition) => inspect_definitions(&args.paths),
    };
    let inspection = match inspected {
        Ok(inspection) => inspection,
        Err(error) => {
            print_error(&format!("{error}; see 'minik8s validate --help'"));
            return ExitCode::from(2);
        }
    };
    for file in &inspection.not_manifests {
        let text = inspection.text(file).unwrap_or_default();
        let why = match cases::workflow_of(file, &text) {
            Some(workflow) => {
                format!(
                    "it holds test cases; to run them, validate the folder or file of the workflow `{workflow}`"
                )
            }
            None => "no document in it has a `kind`; it is not a manifest and is ignored".to_owned(),
        };
        note(&format!("{file}: {why}"));
    }
    // Messages are written one by one, because a text of all of them could be large.
    let mut out = BufWriter::new(io::stdout().lock());
    let written = match args.output {
        ReportFormat::Text => write_text(&mut out, &inspection),
        ReportFormat::Json => write_json(&mut out, &inspection),
        ReportFormat::Github => write_github(&mut out, &inspection),
    };
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            print_error(&format!("cannot write the output: {error}"));
            return ExitCode::FAILURE;
        }
        _ => {}
    }
    let report = &inspection.report;
    let fails = !report.is_ok() || (args.strict && report.count(Severity::Warning) > 0);
    if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn write_text(out: &mut impl Write, inspection: &Inspection) -> io::Result<()> {
    let screen = Screen::stdout();
    let mut style = Style { colour: screen.color, ..Style::default() };
    style.width = screen.width.map_or(style.width, usize::from);
    let mut after_note = false;
    for of_file in inspection.report.violations.chunk_by(|one, next| one.file == next.file) {
        let has_lines = of_file.iter().any(|violation| violation.line > 0);
        let source =
            if has_lines { inspection.text(&of_file[0].file).unwrap_or_default() } else { String::new() };
        let lines = Lines::of(&source);
        let (more, shown): (Vec<_>, Vec<_>) =
            of_file.iter().partition(|violation| is_truncation_note(violation));
        for violation in shown.into_iter().chain(more) {
            // Notes may be numerous and report no problem: one line each is enough.
            if violation.severity == Severity::Note {
                writeln!(out, "{}", visible(&violation.to_string()))?;
                after_note = true;
                continue;
            }
            if std::mem::take(&mut after_note) {
                writeln!(out)?;
            }
            let excerpt = lines.excerpt(violation.line, violation.column);
            writeln!(out, "{}", excerpt::render(violation, excerpt.as_ref(), style))?;
        }
    }
    if after_note {
        writeln!(out)?;
    }
    writeln!(out, "{}", inspection.report.summary())
}

fn write_json(out: &mut impl Write, inspection: &Inspection) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &JsonReport::from(&inspection.report))?;
    writeln!(out)
}

fn write_github(out: &mut impl Write, inspection: &Inspection) -> io::Result<()> {
    for violation in &inspection.report.violations {
        out.write_all(json::annotation(violation).as_bytes())?;
    }
    writeln!(out, "{}", inspection.report.summary())
}

// `minik8s explain` and `minik8s schema`: reference of manifest fields. Offline.

pub(in crate::cli) fn explain(args: &ExplainArgs) -> Result<(), CliError> {
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
        Some(word) => json_schema::for_kind(explain::kind_named(word).map_err(|error| unknown(&error))?),
        None => json_schema::for_any_kind(),
    };
    write_out(&json_schema::text(&schema))
}

fn unknown(error: &ExplainError) -> CliError {
    CliError::NotFound(error.to_string())
}
