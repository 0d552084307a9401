//! `minik8s simulate hpa`: the decisions of an autoscaler under a recorded load.

use std::process::ExitCode;
use std::sync::Arc;

use schema::kinds::Resource;

use super::shared::{ExpectedKind, bar, manifest, print, trace};
use crate::args::SimulateHpaArgs;
use crate::cli::error::CliError;
use crate::cli::output::{Layout, Screen, column, cuttable, format_rows};
use crate::simulate::autoscaler::{Evaluation, Metric, Trace, run as simulate};
use crate::view::human_duration;

/// Kind expected in FILE.
const AUTOSCALER: ExpectedKind =
    ExpectedKind { kind: "HorizontalPodAutoscaler", plural: "autoscalers", explain: "hpa" };

pub(super) fn run(args: &SimulateHpaArgs) -> Result<ExitCode, CliError> {
    let found = manifest(&args.file, &AUTOSCALER, |resource| match resource {
        Resource::HorizontalPodAutoscaler(spec) => Some(Arc::clone(spec)),
        _ => None,
    })?;
    let Some(spec) = found else { return Ok(ExitCode::from(2)) };
    let report = trace(&args.trace, |text| Trace::read(text).and_then(|trace| simulate(&spec, &trace)))?;
    print(args.output, &report, |report| chart(&report.steps, Screen::stdout()))
}

/// Formats a line per evaluation: the usage and the number of pods.
fn chart(entries: &[Evaluation], screen: Screen) -> String {
    let most_load = entries.iter().filter_map(|entry| entry.load).max().unwrap_or_default();
    let most_pods = entries.iter().map(|entry| entry.current.max(entry.desired)).max().unwrap_or_default();
    let rows = entries.iter().map(|entry| {
        let change = match entry.desired == entry.current {
            true => entry.current.to_string(),
            false => format!("{} -> {}", entry.current, entry.desired),
        };
        let asked = entry.recommendation.map(|asked| asked.to_string()).unwrap_or_default();
        vec![
            when(entry),
            used(entry),
            bar('=', entry.load.unwrap_or_default(), most_load),
            asked,
            change,
            bar('#', entry.desired.into(), most_pods.into()),
            entry.reason.clone(),
        ]
    });
    let columns = [
        column("AT"),
        column("USE"),
        column("LOAD"),
        column("ASKED"),
        column("REPLICAS"),
        column("PODS"),
        cuttable("WHY"),
    ];
    format_rows(&columns, &rows.collect::<Vec<_>>(), screen, &mut Layout::default())
}

fn when(entry: &Evaluation) -> String {
    match entry.at.as_i64() {
        Some(seconds) if seconds >= 0 => human_duration(seconds),
        _ => format!("{}s", entry.at),
    }
}

fn used(entry: &Evaluation) -> String {
    let one = |metric: &Metric| match (metric.utilization, &metric.average_value) {
        (Some(percent), _) => format!("{} {percent}%", metric.name),
        (None, Some(average)) => format!("{} {average}", metric.name),
        (None, None) => format!("{} ?", metric.name),
    };
    entry.metrics.iter().map(one).collect::<Vec<_>>().join(", ")
}
