//! `minik8s status`: the cluster on one page.

use std::fmt::Write;

use jiff::Timestamp;

use super::client::Client;
use super::error::CliError;
use super::output::{Screen, json, write_out, yaml};
use crate::args::{Format, StatusArgs};
use crate::diagnostics::visible;
use crate::plural::plural;
use crate::view::{ClusterStatus, SourceView, age, short};

pub(super) async fn run(args: &StatusArgs) -> Result<(), CliError> {
    let format = args.output.output;
    if format == Format::Name {
        return Err(CliError::Usage("status has no names; write -o table, json or yaml".to_owned()));
    }
    let client = Client::new(&args.server.server)?;
    let status: ClusterStatus = client.get(&["status"], &[]).await?;
    match format {
        Format::Json => write_out(&json(&status)?),
        Format::Yaml => write_out(&yaml(&status)?),
        _ => write_out(&page(&status, Screen::stdout(), Timestamp::now())),
    }
}

pub(super) fn page(status: &ClusterStatus, screen: Screen, now: Timestamp) -> String {
    let mut lines = Vec::new();
    for source in &status.sources {
        source_lines(&mut lines, source, screen);
    }
    if status.sources.is_empty() {
        push(&mut lines, "source   none yet");
    }
    let pods = &status.pods;
    let kinds: Vec<String> =
        pods.by_status.iter().map(|(word, n)| format!("{n} {}", screen.paint(word))).collect();
    let kinds = if kinds.is_empty() { String::new() } else { format!(": {}", kinds.join(", ")) };
    lines.push(format!("pods     {}/{} ready{kinds}", pods.ready, pods.total));
    pods.waiting.iter().for_each(|pod| push(&mut lines, &format!("         {pod}")));
    let nodes = &status.nodes;
    let silent = if nodes.not_ready.is_empty() {
        String::new()
    } else {
        format!("; no heartbeat of {}", nodes.not_ready.join(", "))
    };
    push(&mut lines, &format!("nodes    {}/{} ready{silent}", nodes.ready, nodes.total));
    let leader = match &status.leader {
        Some(leader) => {
            let since = leader.since.map(|then| format!(", for {}", age(then, now))).unwrap_or_default();
            format!("leader   {}{since}", leader.id)
        }
        None => "leader   none: nothing new is applied until a reconciler leads".to_owned(),
    };
    push(&mut lines, &leader);
    if let Some(error) = &status.etcd_error {
        push(&mut lines, &format!("etcd     {error}; this page is as of revision {}", status.revision));
    }
    for bad in &status.malformed {
        push(&mut lines, &format!("etcd     {} can't be read: {}", bad.key, bad.why));
    }
    let mut text = String::new();
    for line in lines {
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Adds a line, with control characters made visible.
fn push(lines: &mut Vec<String>, line: &str) {
    lines.push(visible(line).into_owned());
}

fn source_lines(lines: &mut Vec<String>, source: &SourceView, screen: Screen) {
    let status = &source.status;
    let word = screen.paint(&format!("{:?}", status.state));
    let at = match &status.applied_commit {
        None => "no commit applied yet".to_owned(),
        Some(commit) => {
            let by = if source.author.is_empty() { String::new() } else { format!(" by {}", source.author) };
            format!("{}{by}, {} ago", short(commit), source.age)
        }
    };
    lines.push(format!("source   {}: {word} at {}", visible(&status.name), visible(&at)));
    let path = if status.path.is_empty() { String::new() } else { format!(", folder {}", status.path) };
    let objects = plural(status.objects, "object");
    push(lines, &format!("         {objects} of {}, {}{path}", status.url, status.reference));
    if status.observed_commit != status.applied_commit
        && let Some(observed) = &status.observed_commit
    {
        push(lines, &format!("         newest commit {} is not applied", short(observed)));
    }
    source.problems.iter().for_each(|problem| push(lines, &format!("         {problem}")));
}
