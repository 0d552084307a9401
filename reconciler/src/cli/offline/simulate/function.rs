//! `minik8s simulate function`: the decisions of a function's decider, or the cost of a load.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use schema::kinds::Resource;
use serde_json::Number;

use super::shared::{ExpectedKind, bar, manifest, print, trace};
use crate::args::SimulateFunctionArgs;
use crate::cli::error::CliError;
use crate::cli::output::{Layout, Screen, column, format_rows};
use crate::simulate::function::{LoadReport, ReplicaChange, Report, StepDecision, Trace, run as simulate};

/// Kind expected in FILE.
const FUNCTION: ExpectedKind = ExpectedKind { kind: "Function", plural: "functions", explain: "function" };

pub(super) fn run(args: &SimulateFunctionArgs) -> Result<ExitCode, CliError> {
    let found = manifest(&args.file, &FUNCTION, |resource| match resource {
        Resource::Function(spec) => Some(Arc::clone(spec)),
        _ => None,
    })?;
    let Some(spec) = found else { return Ok(ExitCode::from(2)) };
    let report = trace(&args.trace, |text| Trace::read(text).and_then(|trace| simulate(&spec, &trace)))?;
    print(args.output, &report, |report| match report {
        Report::Steps { steps } => decisions(steps, Screen::stdout()),
        Report::Load(load) => format!("{}\n{}", replicas(&load.replicas, Screen::stdout()), summary(load)),
    })
}

/// Formats a line per decision.
fn decisions(steps: &[StepDecision], screen: Screen) -> String {
    let most = steps.iter().map(|step| step.desired).max().unwrap_or_default();
    let known = |value: Option<String>| value.unwrap_or_else(|| "?".to_owned());
    let average = |value: Option<f64>| known(value.map(|value| value.to_string()));
    let rows = steps.iter().map(|step| {
        let of_decision = |text: String| if step.valid { text } else { "?".to_owned() };
        vec![
            when(&step.at),
            known(step.ready.map(|ready| ready.to_string())),
            average(step.averages.0),
            average(step.averages.1),
            mode(step.panic),
            of_decision(step.excess_burst_capacity.to_string()),
            of_decision(step.desired.to_string()),
            bar('#', step.desired.into(), most.into()),
        ]
    });
    let columns = ["AT", "READY", "STABLE", "PANIC", "MODE", "EXCESS", "DESIRED", "REPLICAS"].map(column);
    format_rows(&columns, &rows.collect::<Vec<_>>(), screen, &mut Layout::default())
}

/// Formats a line per change.
fn replicas(changes: &[ReplicaChange], screen: Screen) -> String {
    let most = changes.iter().map(|change| change.wanted.max(change.ready)).max().unwrap_or_default();
    let rows = changes.iter().map(|change| {
        vec![
            when(&change.at),
            change.in_flight.to_string(),
            change.waiting.to_string(),
            mode(change.panic),
            change.wanted.to_string(),
            change.ready.to_string(),
            bar('#', change.ready.into(), most.into()),
        ]
    });
    let columns = ["AT", "IN-FLIGHT", "WAITING", "MODE", "WANTED", "READY", "REPLICAS"].map(column);
    format_rows(&columns, &rows.collect::<Vec<_>>(), screen, &mut Layout::default())
}

/// Summary: calls answered and lost, waiting times, and the cost in replica-seconds.
fn summary(report: &LoadReport) -> String {
    let calls = &report.calls;
    let mut text = format!("{} of {} calls answered", calls.answered, calls.arrived);
    let losses = [
        (calls.refused, "refused because the queue was full"),
        (calls.timed_out, "given up after coldStartTimeoutSeconds"),
    ];
    for (count, why) in losses.into_iter().filter(|(count, _)| *count > 0) {
        _ = write!(text, ", {count} {why}");
    }
    _ = match &report.wait_seconds {
        None => write!(text, "\nno call waited for a replica"),
        Some(waits) => write!(
            text,
            "\n{} waited for a replica: half of them up to {}s, 95 % up to {}s, the longest {}s",
            calls.waited, waits.p50, waits.p95, waits.max
        ),
    };
    _ = writeln!(
        text,
        "\n{} replica-seconds until {}, {} replicas at most",
        report.replica_seconds,
        when(&report.ends_at),
        report.most_replicas
    );
    text
}

fn mode(panic: bool) -> String {
    if panic { "panic" } else { "stable" }.to_owned()
}

fn when(at: &Number) -> String {
    format!("{at}s")
}
