//! `minik8s simulate workflow`: one run of a workflow, with mocks for functions.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use schema::kinds::Resource;
use schema::manifest::load_definition;
use schema::violation::visible;
use serde_json::{Map, Value as Json};

use super::shared::{ExpectedKind, object, print, read};
use crate::args::SimulateWorkflowArgs;
use crate::cli::error::CliError;
use crate::cli::output::{Layout, Screen, column, cuttable, format_rows, note};
use crate::diagnostics::inspect::{limits_around, with_definitions};
use crate::simulate::workflow::{
    BEGIN, FunctionLimits, Mocks, Report, Status, UnknownMock, cases, run as simulate,
};
use crate::view::human_duration;
use crate::workflows::machine::{HistoryEvent, RunContext};

/// Kind expected in FILE.
const WORKFLOW: ExpectedKind = ExpectedKind { kind: "Workflow", plural: "workflows", explain: "workflow" };

/// Exit code: 0 if the run succeeded, 1 if not, 2 for wrong usage.
pub(super) fn run(args: &SimulateWorkflowArgs) -> Result<ExitCode, CliError> {
    reject_cases(&args.file)?;
    let beside = RefCell::new(FunctionLimits::default());
    let load = |path: &str, bytes: &[u8]| {
        let loaded = with_definitions(&args.file, load_definition(path, bytes));
        *beside.borrow_mut() = FunctionLimits::from_documents(loaded.documents.iter());
        loaded
    };
    let found = object(&args.file, &WORKFLOW, load, |resource| match resource {
        Resource::Workflow(spec) => Some(Arc::clone(spec)),
        _ => None,
    })?;
    let Some((reference, spec)) = found else { return Ok(ExitCode::from(2)) };
    if spec.is_undefined() {
        let why = "its definitionPath is relative to the root of a Git repository, but FILE is not in one; \
                   run 'git init' there";
        return Err(CliError::Usage(format!("{}: {why}", args.file.display())));
    }
    let input = match &args.input {
        Some(text) => serde_json::from_str(text).map_err(|error| {
            CliError::Usage(format!("--input: {error}; give it JSON, for example '{{\"x\": 1}}'"))
        })?,
        None => spec.params.clone().unwrap_or_else(|| Json::Object(Map::new())),
    };
    let mocks = match &args.mocks {
        Some(file) => Mocks::read(&read(file)?)
            .map_err(|error| CliError::Usage(format!("{}: {error}", file.display())))?,
        None => Mocks::default(),
    };
    for UnknownMock { name, help } in mocks.unknown(&spec, &reference.namespace) {
        note(&format!("mock `{name}`: no Task of the workflow calls this function; {help}"));
    }
    let mut limits = beside.into_inner();
    if mocks.have_delays() && !limits.cover_all(&spec, &reference.namespace) {
        limits = limits_around(&args.file).unwrap_or(limits);
    }
    let context = RunContext {
        namespace: reference.namespace,
        workflow: reference.name,
        id: "simulated".to_owned(),
        input,
        started_at: BEGIN,
    };
    let report =
        simulate(context, &spec, &mocks, &limits).map_err(|error| CliError::Usage(error.to_string()))?;
    report.unused.iter().for_each(|unused| note(unused));
    if report.without_data > 0 {
        let count = report.without_data;
        note(&format!(
            "the first {count} events lack their inputs and outputs: the history would be too large"
        ));
    }
    print(args.output, &report, |report| text(report, Screen::stdout()))?;
    Ok(if report.status == Status::Succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Rejects a file of test cases, which only `validate` runs.
fn reject_cases(file: &Path) -> Result<(), CliError> {
    let shown = file.display().to_string();
    let Some(workflow) = cases::workflow_of(&shown, &read(file)?) else { return Ok(()) };
    let folder = file.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    Err(CliError::Usage(format!(
        "{shown} holds test cases of the workflow `{workflow}`, not a workflow; 'minik8s validate {}' runs them",
        folder.display()
    )))
}

/// Formats a line per event, then the outcome of the run.
fn text(report: &Report, screen: Screen) -> String {
    let rows = report.history.iter().map(|event| {
        let state = event.state.clone().unwrap_or_default();
        let after = event.timestamp.duration_since(BEGIN).as_secs();
        vec![human_duration(after), state, event.kind.clone().into_owned(), detail(event)]
    });
    let columns = [column("AFTER"), column("STATE"), column("EVENT"), cuttable("DETAIL")];
    let mut text = format_rows(&columns, &rows.collect::<Vec<_>>(), screen, &mut Layout::default());
    let _ = write!(text, "\n{}", report.status.as_str());
    if let Some(output) = &report.output {
        let _ = write!(text, " {}", visible(&output.to_string()));
    }
    let said = [&report.error, &report.cause].into_iter().flatten().filter(|said| !said.is_empty());
    let said: Vec<&str> = said.map(String::as_str).collect();
    if !said.is_empty() {
        let _ = write!(text, " {}", visible(&said.join(": ")));
    }
    text.push('\n');
    text
}

fn detail(event: &HistoryEvent) -> String {
    let detail = &event.detail;
    let mut parts = Vec::new();
    parts.extend(detail.index.map(|index| format!("item {index}")));
    parts.extend(detail.length.map(|length| format!("{length} items")));
    parts.extend(detail.function.clone());
    parts.extend(detail.attempt.filter(|attempt| *attempt > 1).map(|attempt| format!("attempt {attempt}")));
    let error = [&detail.error, &detail.cause].into_iter().flatten().filter(|said| !said.is_empty());
    parts.extend(error.cloned());
    parts.extend(detail.input.as_ref().or(detail.output.as_ref()).map(Json::to_string));
    parts.join(" ")
}
