//! `minik8s results`: the result files of a Slurm job.

use std::fs;
use std::io::Write as _;
use std::path::{Component, Path};

use futures::StreamExt as _;
use schema::kinds::Kind;
use schema::quantity::Memory;
use schema::records::{JobReport, ResultFile};

use super::parse_name;
use crate::args::ResultsArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::cli::output::{note, write_lines};
use crate::view::{JobDetail, root_cause};

pub(in crate::cli) async fn run(args: &ResultsArgs) -> Result<(), CliError> {
    let client = Client::new(args.server.given())?;
    let name = parse_name(&args.job, Kind::Job, "only jobs have results; write job/NAME")?;
    let path = ["jobs", args.namespace.as_str(), name.as_str()];
    let detail: JobDetail = client.get(&path, &[]).await?;
    if let Some(left) = detail.report.as_ref().and_then(unfetched) {
        note(&left);
    }
    let results = detail.report.map(|report| report.results).unwrap_or_default();
    if results.is_empty() {
        note(&format!("no results: the job is {}", detail.row.phase));
    }
    let Some(dir) = &args.dir else {
        return write_lines(&results.iter().map(|result| line(result) + "\n").collect::<String>());
    };
    for result in &results {
        save(&client, &path, result, dir).await?;
    }
    Ok(())
}

/// Note on files that were not fetched, with their location.
pub(in crate::cli) fn unfetched(report: &JobReport) -> Option<String> {
    let JobReport { unfetched, login, folder, .. } = report;
    let others = unfetched.count.saturating_sub(unfetched.paths.len() as u64);
    let more = if others > 0 { format!(" and {others} more") } else { String::new() };
    (!unfetched.is_empty()).then(|| {
        format!(
            "{} files exceed what is kept of a job and were not fetched: {}{more}; they stay in {folder} on \
             {login} until the job is removed or its ttlSecondsAfterFinished has passed",
            unfetched.count,
            unfetched.paths.join(", ")
        )
    })
}

/// Formats a result as one line.
pub(in crate::cli) fn line(result: &ResultFile) -> String {
    if !result.unreadable.is_empty() {
        return format!("{} (not fetched: {})", result.path, result.unreadable);
    }
    let cut = if result.is_truncated { ", only its beginning is kept" } else { "" };
    format!("{} ({}{cut})", result.path, Memory { bytes: result.size }.readable())
}

async fn save(client: &Client, job: &[&str], result: &ResultFile, dir: &Path) -> Result<(), CliError> {
    // The path comes from the login host and must not lead out of the folder.
    let path = Path::new(&result.path);
    if !path.components().all(|part| matches!(part, Component::Normal(_))) {
        note(&format!("minik8s: {}: skipped, it points outside the folder", result.path));
        return Ok(());
    }
    if !result.unreadable.is_empty() {
        note(&format!("minik8s: {}: skipped, it could not be fetched: {}", result.path, result.unreadable));
        return Ok(());
    }
    let file = dir.join(path);
    let failed =
        |error: std::io::Error| CliError::NotReached(format!("cannot write {}: {error}", file.display()));
    fs::create_dir_all(file.parent().unwrap_or(dir)).map_err(failed)?;
    let answer = client.stream(&[job, &["results", &result.digest]].concat(), &[]).await?;
    let mut out = fs::File::create(&file).map_err(failed)?;
    let mut chunks = answer.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let broken =
            |error: reqwest::Error| client.unreachable(format!("{}: {}", result.path, root_cause(&error)));
        out.write_all(&chunk.map_err(broken)?).map_err(failed)?;
    }
    let cut = if result.is_truncated { " (only its beginning: it was too large)" } else { "" };
    note(&format!("wrote {}{cut}", file.display()));
    Ok(())
}
