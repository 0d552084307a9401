//! `minik8s logs`: streams the output of a container; the output of several pods line by line.

use std::collections::BTreeMap;

use futures::stream::{self, StreamExt};
use reqwest::Response;
use schema::kinds::Kind;
use schema::kinds::function::FUNCTION_LABEL;

use super::client::Client;
use super::error::CliError;
use super::output::{note, write_bytes};
use crate::args::{LogsArgs, Resource, ResourceKind};
use crate::view::{List, PodView, RunDetail};

mod jobs;
pub(super) mod results;

use jobs::{interrupted_error, print_stream};

/// Maximum number of pods followed concurrently: each holds a connection to its node.
const FOLLOWED_MAX: usize = 16;
/// Default `--tail` for each pod of a selector, as in kubectl.
const TAIL_OF_MANY: u64 = 10;
/// A longer line is printed in parts.
const LINE_BYTES_MAX: usize = 64 * 1024;

pub(super) async fn run(args: &LogsArgs) -> Result<(), CliError> {
    let client = Client::new(args.server.given())?;
    match args.pod.as_deref().map(str::parse::<Resource>) {
        Some(Ok(Resource { kind: ResourceKind::Object(Kind::Function), name: Some(name) })) => {
            return print_function_logs(&client, args, &name).await;
        }
        Some(Ok(Resource { kind: ResourceKind::Run, name: Some(name) })) => {
            return print_run_logs(&client, args, &name).await;
        }
        Some(Ok(Resource { kind: ResourceKind::Object(Kind::Job), name: Some(name) })) => {
            return jobs::run(&client, args, &name).await;
        }
        _ => {}
    }
    if args.stderr {
        return Err(CliError::Usage("--stderr is for jobs; write job/NAME".to_owned()));
    }
    if args.build || args.activation.is_some() {
        let why = "--build and --activation are for functions; write function/NAME";
        return Err(CliError::Usage(why.to_owned()));
    }
    match (&args.pod, &args.selector) {
        (Some(pod), _) => {
            let otherwise = "only pods, functions, runs and jobs have logs; write pod/NAME";
            let name = parse_name(pod, Kind::Pod, otherwise)?;
            let answer = open(&client, args, &name, args.tail).await?;
            print_one(&client, args, answer).await?;
        }
        (None, Some(selector)) => {
            let query = [("namespace", args.namespace.as_str()), ("selector", selector.as_str())];
            let List { items: pods } = client.get::<List<PodView>>(&["pods"], &query).await?;
            print_all(&client, args, &pods, selector.as_str()).await?;
        }
        (None, None) => {
            return Err(CliError::Usage("a pod is missing; write NAME or -l SELECTOR".to_owned()));
        }
    }
    if args.follow {
        note("minik8s: the container has ended, and so has its log; run this again once it has restarted");
    }
    Ok(())
}

/// Prints the logs of a function's replicas, or of its image's build.
async fn print_function_logs(client: &Client, args: &LogsArgs, name: &str) -> Result<(), CliError> {
    let namespace = args.namespace.as_str();
    if args.build {
        let answer = client.stream(&["functions", namespace, name, "build-log"], &[]).await?;
        return print_one(client, args, answer).await;
    }
    let selector = format!("{FUNCTION_LABEL}={name}");
    let query = [("namespace", namespace), ("selector", selector.as_str())];
    let List { items: pods } = client.get::<List<PodView>>(&["pods"], &query).await?;
    if pods.is_empty() {
        let message =
            format!("function {name} in namespace {namespace} has no replica now or does not exist");
        return Err(CliError::NotFound(message));
    }
    print_all(client, args, &pods, &selector).await
}

/// Prints the logs of the functions that a run called, as far as their replicas still exist.
async fn print_run_logs(client: &Client, args: &LogsArgs, name: &str) -> Result<(), CliError> {
    let Some((workflow, id)) = name.split_once('/') else {
        return Err(CliError::Usage(format!("write run/WORKFLOW/{name}; see 'minik8s get runs'")));
    };
    let run: RunDetail = client.get(&["runs", &args.namespace, workflow, id], &[]).await?;
    let mut logs: BTreeMap<&str, Option<Vec<u8>>> = BTreeMap::new();
    for call in &run.calls {
        if !logs.contains_key(call.function.as_str()) {
            logs.insert(&call.function, log_of_function(client, args, &call.function).await?);
        }
        let prefix = format!("[{}] ", call.state);
        let Some(log) = &logs[call.function.as_str()] else {
            note(&format!("minik8s: {}: function {} no longer has a replica", call.state, call.function));
            continue;
        };
        let mut lines = LineBuffer::new(args, prefix, Some(&call.activation));
        write_bytes(&lines.take(log))?;
        write_bytes(&lines.end())?;
    }
    Ok(())
}

/// Logs of all replicas of a function; `None` without replicas.
async fn log_of_function(
    client: &Client,
    args: &LogsArgs,
    function: &str,
) -> Result<Option<Vec<u8>>, CliError> {
    let (namespace, name) = function.split_once('/').unwrap_or((&args.namespace, function));
    let selector = format!("{FUNCTION_LABEL}={name}");
    let query = [("namespace", namespace), ("selector", selector.as_str())];
    let List { items: pods } = client.get::<List<PodView>>(&["pods"], &query).await?;
    let mut all = None;
    for pod in &pods {
        let log = all.get_or_insert_with(Vec::new);
        // A replica that does not run yet has no log.
        let stamped: &[(&str, &str)] = if args.timestamps { &[("timestamps", "true")] } else { &[] };
        let Ok(answer) = client.stream(&["logs", namespace, &pod.name], stamped).await else { continue };
        let mut chunks = answer.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            log.extend_from_slice(&chunk.map_err(|error| interrupted_error(client, &error))?);
        }
    }
    Ok(all)
}

async fn open(client: &Client, args: &LogsArgs, pod: &str, tail: Option<u64>) -> Result<Response, CliError> {
    let flag = |given: bool| given.then(|| "true".to_owned());
    let all = [
        ("container", args.container.clone()),
        ("tail", tail.map(|lines| lines.to_string())),
        ("follow", flag(args.follow)),
        ("previous", flag(args.previous)),
        ("since", args.since.map(|since| since.to_string())),
        ("timestamps", flag(args.timestamps)),
    ];
    let query: Vec<_> = all.iter().filter_map(|(key, value)| Some((*key, value.as_deref()?))).collect();
    client.stream(&["logs", &args.namespace, pod], &query).await
}

/// Prints the logs in sequence, or interleaved by line when followed. A pod without a log does not hide the others'.
async fn print_all(
    client: &Client,
    args: &LogsArgs,
    pods: &[PodView],
    selector: &str,
) -> Result<(), CliError> {
    if pods.is_empty() {
        let namespace = &args.namespace;
        return Err(CliError::NotFound(format!("no pod in namespace {namespace} matches {selector}")));
    }
    if args.follow && pods.len() > FOLLOWED_MAX {
        let count = pods.len();
        let why = format!("{count} pods match {selector}, but at most {FOLLOWED_MAX} can be followed");
        return Err(CliError::Usage(why));
    }
    let is_chosen = args.since.is_some() || args.activation.is_some() || args.grep.is_some();
    let tail = args.tail.or((!is_chosen).then_some(TAIL_OF_MANY));
    let (mut opened, mut first_error) = (Vec::new(), None);
    for pod in pods {
        match open(client, args, &pod.name, tail).await {
            Ok(answer) if args.follow => {
                opened.push(print_lines(client, args, format!("[{}] ", pod.name), answer));
            }
            Ok(answer) => print_lines(client, args, format!("[{}] ", pod.name), answer).await?,
            Err(error @ CliError::Refused { .. }) => {
                note(&format!("minik8s: {}: {error}", pod.name));
                first_error.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    let mut running = stream::iter(opened).buffer_unordered(FOLLOWED_MAX);
    while let Some(ended) = running.next().await {
        ended?;
    }
    first_error
        .map_or(Ok(()), |_| Err(CliError::NotReached("some logs can't be shown, see above".to_owned())))
}

/// Prints the log of one container.
async fn print_one(client: &Client, args: &LogsArgs, answer: Response) -> Result<(), CliError> {
    match args.grep {
        Some(_) => print_lines(client, args, String::new(), answer).await,
        None => print_stream(client, answer).await,
    }
}

/// Prints whole lines, so that lines of several pods do not mix, each after `prefix`.
async fn print_lines(
    client: &Client,
    args: &LogsArgs,
    prefix: String,
    answer: Response,
) -> Result<(), CliError> {
    let mut chunks = answer.bytes_stream();
    let mut lines = LineBuffer::new(args, prefix, args.activation.as_deref());
    while let Some(chunk) = chunks.next().await {
        write_bytes(&lines.take(&chunk.map_err(|error| interrupted_error(client, &error))?))?;
    }
    write_bytes(&lines.end())
}

/// Splits a stream into lines and buffers the incomplete last line.
struct LineBuffer {
    prefix: String,
    /// Prefix that selects lines, after the timestamp if they have one.
    line_prefix: Option<String>,
    /// Text that selects lines.
    grep: Option<String>,
    /// Set if each line begins with its timestamp and a space.
    has_timestamps: bool,
    rest: Vec<u8>,
}

impl LineBuffer {
    /// Creates an empty buffer for the lines of this call, if one is given, that have the text asked for.
    fn new(args: &LogsArgs, prefix: String, activation: Option<&str>) -> Self {
        let line_prefix = activation.map(|id| format!("[{id}] "));
        let grep = args.grep.clone();
        Self { prefix, line_prefix, grep, has_timestamps: args.timestamps, rest: Vec::new() }
    }

    /// Returns the lines that `bytes` completes.
    fn take(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(part);
            if part.ends_with(b"\n") || self.rest.len() >= LINE_BYTES_MAX {
                out.extend(self.end());
            }
        }
        out
    }

    /// Returns the buffered line, even if incomplete.
    fn end(&mut self) -> Vec<u8> {
        let mut line = std::mem::take(&mut self.rest);
        if line.is_empty() || !self.counts(&line) {
            return Vec::new();
        }
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        [self.prefix.as_bytes(), &line].concat()
    }

    fn counts(&self, line: &[u8]) -> bool {
        let text = match self.has_timestamps {
            true => line.splitn(2, |byte| *byte == b' ').nth(1).unwrap_or_default(),
            false => line,
        };
        let has = |wanted: &String| {
            wanted.is_empty() || text.windows(wanted.len()).any(|part| part == wanted.as_bytes())
        };
        self.line_prefix.as_ref().is_none_or(|only| text.starts_with(only.as_bytes()))
            && self.grep.as_ref().is_none_or(has)
    }
}

/// Parses `NAME` or `KIND/NAME`; `otherwise` is the error for another kind.
fn parse_name(text: &str, kind: Kind, otherwise: &str) -> Result<String, CliError> {
    if !text.contains('/') {
        return Ok(text.to_owned());
    }
    match text.parse::<Resource>() {
        Ok(Resource { kind: ResourceKind::Object(found), name: Some(name) }) if found == kind => Ok(name),
        Ok(_) => Err(CliError::Usage(format!("{text}: {otherwise}"))),
        Err(why) => Err(CliError::Usage(format!("{text}: {why}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Seen red with the rest of a chunk written immediately.
    #[test]
    fn lines_of_several_pods_are_whole_whatever_the_chunks_are() {
        let mut lines = LineBuffer {
            prefix: "[a] ".to_owned(),
            line_prefix: None,
            grep: None,
            has_timestamps: false,
            rest: Vec::new(),
        };
        let mut reported = Vec::new();
        for chunk in ["on", "e\ntwo", "\n", "\nthr", "ee"] {
            reported.push(String::from_utf8(lines.take(chunk.as_bytes())).unwrap());
        }
        reported.push(String::from_utf8(lines.end()).unwrap());
        assert_eq!(reported, ["", "[a] one\n", "[a] two\n", "[a] \n", "", "[a] three\n"]);
        assert!(lines.end().is_empty());
    }

    // Seen red with the time taken for the beginning of the line, and without `only`.
    #[test]
    fn lines_of_one_call_are_chosen_also_behind_their_time() {
        let chosen = |stamped, grep: Option<&str>, text: &str| {
            let only = Some("[a1] ".to_owned());
            let mut lines = LineBuffer {
                prefix: "[p] ".to_owned(),
                line_prefix: only,
                grep: grep.map(str::to_owned),
                has_timestamps: stamped,
                rest: Vec::new(),
            };
            String::from_utf8([lines.take(text.as_bytes()), lines.end()].concat()).unwrap()
        };
        assert_eq!(
            chosen(false, None, "[a1] one\n[a2] two\nsays [a1] three\n[a1] end"),
            "[p] [a1] one\n[p] [a1] end\n"
        );
        let stamped = "2026-01-01T00:00:00.5Z [a1] one\n2026-01-01T00:00:01.5Z [a2] two\n\
                       2026-01-01T00:00:02.5Z says [a1] three\n2026-01-01T00:00:03.5Z \n";
        assert_eq!(chosen(true, None, stamped), "[p] 2026-01-01T00:00:00.5Z [a1] one\n");
        assert_eq!(chosen(false, Some("nd"), "[a1] one\n[a1] end\n[a2] end\n"), "[p] [a1] end\n");
        assert_eq!(chosen(true, Some("2026"), stamped), "", "the time is no part of the line");
    }
}
