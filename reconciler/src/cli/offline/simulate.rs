//! `minik8s simulate hpa`: what an autoscaler would have done with a recorded load. Asks no server.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use schema::kinds::Resource;
use schema::kinds::horizontal_pod_autoscaler::HorizontalPodAutoscalerSpec;
use schema::manifest::load_file;
use schema::violation::Severity;

use crate::args::{SimulateArgs, SimulateFormat, SimulateHpaArgs, Simulated};
use crate::cli::error::CliError;
use crate::cli::print::output::{
    Layout, Screen, column, complain_each, cuttable, json, note, plain, write_out,
};
use crate::diagnostics::visible;
use crate::simulate::hpa::{Entry, Report, Trace, run as simulate};
use crate::view::human_duration;

/// Largest file that is read.
const BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Longest bar of the chart.
const BAR_MAX: u64 = 20;

/// 0, or 2 when FILE or TRACE can't be used.
pub(in crate::cli) fn run(args: &SimulateArgs) -> Result<ExitCode, CliError> {
    let Simulated::Hpa(args) = &args.what;
    let spec = match autoscaler(&args.file)? {
        Ok(spec) => spec,
        Err(code) => return Ok(code),
    };
    let text = read(&args.trace)?;
    let of_trace = |error| CliError::Usage(format!("{}: {error}", args.trace.display()));
    let trace = Trace::read(&text).map_err(of_trace)?;
    let report = simulate(&spec, &trace).map_err(of_trace)?;
    write_out(&printed(&report, args)?)?;
    Ok(ExitCode::SUCCESS)
}

fn printed(report: &Report, args: &SimulateHpaArgs) -> Result<String, CliError> {
    match args.output {
        SimulateFormat::Json => json(report),
        SimulateFormat::Text => Ok(chart(&report.steps, Screen::stdout())),
    }
}

/// The one autoscaler of a file; an exit code where the file has errors, which are printed.
fn autoscaler(file: &Path) -> Result<Result<Arc<HorizontalPodAutoscalerSpec>, ExitCode>, CliError> {
    let text = read(file)?;
    let shown = file.display().to_string();
    let loaded = load_file(&shown, text.as_bytes());
    if loaded.has_errors() {
        let errors = loaded.violations.iter().filter(|violation| violation.severity == Severity::Error);
        errors.for_each(|violation| complain_each(&visible(&violation.to_string())));
        return Ok(Err(ExitCode::from(2)));
    }
    for violation in &loaded.violations {
        note(&visible(&violation.to_string()));
    }
    let found = loaded.documents.iter().filter_map(|document| match &document.object.resource {
        Resource::HorizontalPodAutoscaler(spec) => Some((&document.reference, spec)),
        _ => None,
    });
    let found: Vec<_> = found.collect();
    match found.as_slice() {
        [(_, spec)] => Ok(Ok(Arc::clone(spec))),
        [] => Err(CliError::Usage(format!(
            "{shown} holds no HorizontalPodAutoscaler; name the file of one, see 'minik8s explain hpa'"
        ))),
        several => {
            let names: Vec<String> = several.iter().map(|(reference, _)| reference.to_string()).collect();
            let names = names.join(", ");
            Err(CliError::Usage(format!("{shown} holds several autoscalers: {names}; leave one in it")))
        }
    }
}

fn read(path: &Path) -> Result<String, CliError> {
    let usage = |why: String| CliError::Usage(format!("{}: {why}", path.display()));
    let unreadable = |error: std::io::Error| usage(format!("{error}; name a file that can be read"));
    let file = File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(usage("it is a folder; name a file".to_owned()));
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(usage(format!("it is larger than {} MiB; make it shorter", BYTES_MAX >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| usage("it is no text in UTF-8; name a text file".to_owned()))
}

/// A line per look: what the pods use, and how many there are.
fn chart(entries: &[Entry], screen: Screen) -> String {
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
    plain(&columns, &rows.collect::<Vec<_>>(), screen, &mut Layout::default())
}

fn when(entry: &Entry) -> String {
    match entry.at.as_i64() {
        Some(seconds) if seconds >= 0 => human_duration(seconds),
        _ => format!("{}s", entry.at),
    }
}

fn used(entry: &Entry) -> String {
    let one = |metric: &crate::simulate::hpa::Metric| match (metric.utilization, &metric.average_value) {
        (Some(percent), _) => format!("{} {percent}%", metric.name),
        (None, Some(average)) => format!("{} {average}", metric.name),
        (None, None) => format!("{} ?", metric.name),
    };
    entry.metrics.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// A bar as long as `value` is of `most`; the smallest value has one, too.
fn bar(mark: char, value: u64, most: u64) -> String {
    let length = (u128::from(value) * u128::from(BAR_MAX)).div_ceil(u128::from(most.max(1)));
    std::iter::repeat_n(mark, usize::try_from(length).unwrap_or_default()).collect()
}
