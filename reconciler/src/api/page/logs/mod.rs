//! The logs of a pod: of one container, or of several side by side. Their last lines, and new ones as they are written.
//!
//! Lines are read with their times, so that a tab that comes back continues each log after the last line that it has.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::response::sse::Event;
use bytes::Bytes;
use futures::future::join_all;
use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use schema::kinds::Kind;
use schema::meta::{NamespacedName, ObjectRef};
use schema::snapshot::Snapshot;
use schema::violation::visible;
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::parts::{Page, Part, TemplateHelpers};
use crate::api::app::ApiState;
use crate::api::error::ApiError;
use crate::api::kinds::object_not_found;
use crate::api::kinds::results::{escape_html, percent_encode};
use crate::api::logs::{LogQuery, LogStream, open};
use crate::view;

mod lines;

use lines::{Lines, marks, parse_marks};

/// Container of an address that shows all of a pod, side by side. No container has this name.
const ALL: &str = "*";
/// Number of logs that are shown side by side; each holds a connection to the node.
const COLUMNS_MAX: usize = 6;
/// Lines of a container read at first, unless a text or a start selects the lines.
const LINES_FIRST: u64 = 500;
/// Most bytes of the lines shown at first, as HTML, of all columns; the newest are kept.
const HTML_MAX: usize = 1 << 20;
/// Longest time to read the lines shown at first. With the node's time to answer, less than a request may take.
const READ_MAX: Duration = Duration::from_secs(4);
/// Time for which lines are collected into one event.
const GATHER: Duration = Duration::from_millis(250);
/// Number of lines after which an event collects no more.
const EVENT_LINES_MAX: usize = 200;
/// Interval at which a log that cannot be read is tried again while others are followed.
const RETRY_EVERY: Duration = Duration::from_secs(3);

/// Container, run and lines that are shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LogsQuery {
    /// Name of a container; empty for the first, `*` for all.
    container: String,
    /// Text that lines must contain.
    grep: String,
    /// An age or a time; empty for the last lines.
    since: String,
    /// `on` for the run before the last restart.
    previous: String,
}

/// A pod's log, as named by the address of its page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogAddress {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) query: LogsQuery,
}

impl LogAddress {
    /// Returns true for the log of an ended run, which gets no more lines.
    pub(super) fn is_previous(&self) -> bool {
        !self.query.previous.is_empty()
    }

    fn id(&self) -> NamespacedName {
        NamespacedName::new(&self.namespace, &self.pod)
    }

    /// Returns the addresses of the logs that are shown, at least one: of the container that this one names, of all of
    /// these, or of the first.
    fn columns(&self, containers: &[String]) -> Vec<Self> {
        let names: Vec<String> = match self.query.container.as_str() {
            ALL if !containers.is_empty() => containers.iter().take(COLUMNS_MAX).cloned().collect(),
            ALL | "" => vec![containers.first().cloned().unwrap_or_default()],
            name => vec![name.to_owned()],
        };
        let column =
            |container| Self { query: LogsQuery { container, ..self.query.clone() }, ..self.clone() };
        names.into_iter().map(column).collect()
    }

    fn log_query(&self, follow: bool, after: Option<Timestamp>) -> LogQuery {
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let since = after.map(|time| time.to_string()).or_else(|| given(&self.query.since));
        LogQuery {
            container: given(&self.query.container),
            follow,
            tail: (since.is_none() && self.query.grep.is_empty()).then_some(LINES_FIRST),
            previous: self.is_previous(),
            since,
            timestamps: true,
        }
    }

    /// Opens the log of one container, from this time on if there is one.
    async fn open(
        &self,
        app: &ApiState,
        follow: bool,
        after: Option<Timestamp>,
    ) -> Result<LogStream, ApiError> {
        let query = self.log_query(follow, after);
        open(app, self.namespace.clone(), self.pod.clone(), &query).await
    }

    /// Returns the address of the whole log of one container as text.
    fn download(&self) -> String {
        let Self { namespace, pod, query } = self;
        let container = match query.container.as_str() {
            "" => String::new(),
            name => format!("&container={}", percent_encode(name)),
        };
        format!("/v1/logs/{namespace}/{pod}?timestamps=true&previous={}{container}", self.is_previous())
    }
}

/// Renders the page, and returns it with the marks of its last lines.
pub(super) async fn page(
    app: &ApiState,
    snapshot: &Snapshot,
    address: &LogAddress,
) -> Result<(Page, String), ApiError> {
    let id = address.id();
    let Some(containers) = containers(snapshot, &id) else { return Err(object_not_found(Kind::Pod, &id)) };
    let addresses = address.columns(&containers);
    let mut reads = Vec::with_capacity(addresses.len());
    for (at, column) in addresses.iter().enumerate() {
        reads.push(Column::read(app, at, column, HTML_MAX / addresses.len()));
    }
    let (columns, lines): (Vec<Column>, Vec<Lines>) = join_all(reads).await.into_iter().unzip();
    let mark = marks(&lines);
    let mut query = address.query.clone();
    let (mut others, mut download) = (String::new(), String::new());
    match addresses.as_slice() {
        [only] => {
            query.container.clone_from(&only.query.container);
            download = only.download();
        }
        // Each has a link of its own.
        several => others = containers.get(several.len()..).unwrap_or_default().join(", "),
    }
    let object = ObjectRef { kind: Kind::Pod, namespace: id.namespace, name: id.name }.to_string();
    let title = format!("Log of {}/{}", address.namespace, address.pod);
    let action = format!("/logs/{}/{}", address.namespace, address.pod);
    let is_all = columns.len() > 1;
    let filter = FilterTemplate { object, action, download, containers, is_all, query };
    let parts = vec![Part::new("filter", &filter), Part::new("log", &LogTemplate { columns, others })];
    Ok((Page { title, parts }, mark))
}

/// The log of one container on the page.
struct Column {
    id: String,
    container: String,
    download: String,
    /// Lines as HTML.
    lines: String,
    /// Reason why there is no log, as HTML; empty if there is one.
    problem: String,
}

impl Column {
    /// Reads the log for the page, with at most this many bytes of HTML.
    async fn read(app: &ApiState, at: usize, address: &LogAddress, html_max: usize) -> (Self, Lines) {
        let mut lines = Lines::new(&address.query.grep, None);
        let (html, problem) = match address.open(app, false, None).await {
            Ok(stream) => (newest(stream, &mut lines, html_max).await, String::new()),
            // The page says why there is no log yet, and its stream tries again.
            Err(error) => (String::new(), problem_html(&error)),
        };
        let (id, container) = (column_id(at), address.query.container.clone());
        (Self { id, container, download: address.download(), lines: html, problem }, lines)
    }
}

/// Returns the id of the element with the lines of a column.
fn column_id(at: usize) -> String {
    format!("lines-{at}")
}

/// Formats the reason why there is no log.
fn problem_html(error: &ApiError) -> String {
    let shown = |text: &str| escape_html(&visible(text));
    format!("{} <span class=\"quiet\">{}</span>", shown(&error.to_string()), shown(&error.help()))
}

/// Reads a log to its end, within limits, and returns the newest lines as HTML.
async fn newest(mut stream: LogStream, lines: &mut Lines, html_max: usize) -> String {
    let deadline = Instant::now() + READ_MAX;
    let (mut shown, mut bytes) = (VecDeque::<String>::new(), 0);
    loop {
        let (new, is_end) = match timeout_at(deadline, stream.next()).await {
            Ok(Some(Ok(chunk))) => (lines.take(&chunk), false),
            Ok(None) => (lines.end().into_iter().collect(), true),
            // The stream of the tab continues after the last whole line.
            Ok(Some(Err(_))) | Err(_) => break,
        };
        for line in new {
            bytes += line.len();
            shown.push_back(line);
        }
        while bytes > html_max {
            let Some(oldest) = shown.pop_front() else { break };
            bytes -= oldest.len();
        }
        if is_end {
            break;
        }
    }
    shown.into_iter().collect()
}

/// Returns the names of a pod's containers, the main ones first; `None` if there is no such pod.
fn containers(snapshot: &Snapshot, pod: &NamespacedName) -> Option<Vec<String>> {
    let detail = view::pod(snapshot, pod, Vec::new(), Timestamp::UNIX_EPOCH)?;
    if let Some(spec) = &detail.spec {
        let all = spec.containers.iter().chain(&spec.init_containers);
        return Some(all.map(|container| container.name.clone()).collect());
    }
    let all = detail.container_statuses.iter().chain(&detail.init_container_statuses);
    Some(all.map(|container| container.name.clone()).collect())
}

/// Index of a column, and the next bytes of its log; no bytes at its end.
type Chunk = (usize, Option<reqwest::Result<Bytes>>);

/// A tab that follows the logs of its columns.
pub(super) struct Follower {
    columns: Vec<Lines>,
    /// Chunks of all columns.
    chunks: SelectAll<BoxStream<'static, Chunk>>,
    /// Columns whose logs cannot be read yet, until the tab knows.
    problems: Vec<serde_json::Value>,
    /// True once the tab gets no more events.
    is_over: bool,
}

impl Follower {
    /// Follows each log after the line with its mark; after none, it begins like the page. An error if no log can be
    /// read.
    pub(super) async fn open(
        app: &Arc<ApiState>,
        address: &LogAddress,
        marks: &str,
    ) -> Result<Self, ApiError> {
        if address.is_previous() {
            let why = "the log of an ended run gets no new lines";
            return Err(ApiError::bad_request(why, "leave out `previous` to follow the current run"));
        }
        let containers = containers(&*app.snapshot()?, &address.id()).unwrap_or_default();
        let addresses = address.columns(&containers);
        let afters = parse_marks(marks, addresses.len());
        let mut opening = Vec::with_capacity(addresses.len());
        for (column, after) in addresses.iter().zip(&afters) {
            opening.push(column.open(app, true, *after));
        }
        let opened = join_all(opening).await;
        let has_any = opened.iter().any(Result::is_ok);
        let (mut columns, mut chunks, mut problems) = (Vec::new(), SelectAll::new(), Vec::new());
        for (at, ((column, after), opened)) in addresses.into_iter().zip(afters).zip(opened).enumerate() {
            columns.push(Lines::new(&column.query.grep, after));
            let log = match opened {
                Ok(log) => log,
                Err(error) if !has_any => return Err(error),
                Err(error) => {
                    let problem = problem_html(&error);
                    problems.push(serde_json::json!({"id": column_id(at), "html": "", "problem": problem}));
                    open_later(Arc::clone(app), column, after)
                }
            };
            chunks.push(with_end(at, log));
        }
        Ok(Self { columns, chunks, problems, is_over: false })
    }

    /// Waits for new lines. The event `end` follows the last lines of all logs. `None` after it, and after a log that
    /// broke: the tab's next stream continues there.
    pub(super) async fn event(mut self) -> Option<(Event, Self)> {
        if !self.problems.is_empty() {
            let problems = std::mem::take(&mut self.problems);
            return Some((self.lines_event(problems), self));
        }
        while let Some((column, lines)) = self.read().await {
            // A busy log becomes a few large events.
            let mut count = lines.len();
            let mut new: BTreeMap<usize, Vec<String>> = BTreeMap::from([(column, lines)]);
            let gathered = async {
                while count < EVENT_LINES_MAX {
                    let Some((column, lines)) = self.read().await else { break };
                    count += lines.len();
                    new.entry(column).or_default().extend(lines);
                }
            };
            let _ = timeout(GATHER, gathered).await;
            new.retain(|_, lines| !lines.is_empty());
            if !new.is_empty() {
                let parts = new.iter();
                let parts = parts.map(
                    |(column, lines)| serde_json::json!({"id": column_id(*column), "html": lines.concat()}),
                );
                return Some((self.lines_event(parts.collect()), self));
            }
        }
        if self.is_over {
            return None;
        }
        self.is_over = true;
        // A browser drops an event without data.
        Some((Event::default().event("end").data("{}"), self))
    }

    /// Waits for the next bytes of a log, and returns its column with the lines that they complete; at the end of the
    /// log, its rest is a line. `None` once all logs have ended or one is broken.
    async fn read(&mut self) -> Option<(usize, Vec<String>)> {
        if self.is_over {
            return None;
        }
        let (column, chunk) = self.chunks.next().await?;
        let lines = &mut self.columns[column];
        match chunk {
            Some(Ok(bytes)) => Some((column, lines.take(&bytes))),
            None => Some((column, lines.end().into_iter().collect())),
            Some(Err(_)) => {
                self.is_over = true;
                None
            }
        }
    }

    /// Returns an event with these parts of columns, and the marks of all.
    fn lines_event(&self, parts: Vec<serde_json::Value>) -> Event {
        let data = serde_json::Value::from(parts).to_string();
        Event::default().event("lines").id(marks(&self.columns)).data(data)
    }
}

/// Returns the chunks of a column's log, and its end.
fn with_end(column: usize, log: LogStream) -> BoxStream<'static, Chunk> {
    let end = futures::stream::iter([None]);
    log.map(Some).chain(end).map(move |chunk| (column, chunk)).boxed()
}

/// Returns a log that cannot be read yet. It begins when it can be, and is empty once its pod is gone.
fn open_later(app: Arc<ApiState>, address: LogAddress, after: Option<Timestamp>) -> LogStream {
    let opened = async move {
        loop {
            sleep(RETRY_EVERY).await;
            if let Ok(log) = address.open(&app, true, after).await {
                return log;
            }
            let is_gone = |snapshot: Arc<Snapshot>| containers(&snapshot, &address.id()).is_none();
            if app.snapshot().is_ok_and(is_gone) {
                return futures::stream::empty().boxed();
            }
        }
    };
    opened.flatten_stream().boxed()
}

#[derive(Template)]
#[template(path = "log_filter.html")]
struct FilterTemplate {
    object: String,
    action: String,
    /// Address of the whole log; empty for several.
    download: String,
    containers: Vec<String>,
    is_all: bool,
    query: LogsQuery,
}

#[derive(Template)]
#[template(path = "log.html")]
struct LogTemplate {
    columns: Vec<Column>,
    /// Names of the containers that have no column.
    others: String,
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::response::IntoResponse as _;
    use axum::response::sse::Sse;

    use super::*;

    /// Follows logs of these pieces.
    fn follower(logs: Vec<Vec<reqwest::Result<Bytes>>>) -> Follower {
        let columns = logs.iter().map(|_| Lines::new("", None)).collect();
        let logs = logs.into_iter().enumerate();
        let chunks = logs.map(|(at, log)| with_end(at, futures::stream::iter(log).boxed())).collect();
        Follower { columns, chunks, problems: Vec::new(), is_over: false }
    }

    fn piece(text: &'static str) -> reqwest::Result<Bytes> {
        Ok(Bytes::from_static(text.as_bytes()))
    }

    /// Returns all that a tab gets.
    async fn sent(follower: Follower) -> String {
        let events = futures::stream::unfold(follower, Follower::event).map(Ok::<_, Infallible>);
        let body = Sse::new(events).into_response().into_body();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn the_rest_of_an_ended_log_is_a_line_and_its_end_is_sent() {
        let log = vec![piece("2026-01-01T00:00:00.1Z one\n2026-"), piece("01-01T00:00:00.2Z two")];
        let sent = sent(follower(vec![log])).await;
        assert!(sent.contains(" one") && sent.contains(" two"), "{sent}");
        assert!(sent.contains("id: after:2026-01-01T00:00:00.2Z\n"), "{sent}");
        assert!(sent.ends_with("event: end\ndata: {}\n\n"), "{sent}");
    }

    #[tokio::test]
    async fn logs_end_together_and_each_line_has_its_column() {
        let one = vec![piece("2026-01-01T00:00:01Z one\n")];
        let two = vec![piece("2026-01-01T00:00:02Z two\n"), piece("2026-01-01T00:00:03Z three\n")];
        let sent = sent(follower(vec![one, Vec::new(), two])).await;
        assert_eq!(sent.matches("event: end").count(), 1, "{sent}");
        for part in [
            "\"id\":\"lines-0\"",
            "\"id\":\"lines-2\"",
            "id: after:2026-01-01T00:00:01Z,after:,after:2026-01-01T00:00:03Z\n",
        ] {
            assert!(sent.contains(part), "no {part} in {sent}");
        }
        assert!(!sent.contains("lines-1"), "{sent}");
    }

    #[tokio::test]
    async fn a_log_that_breaks_has_not_ended() {
        let broken = reqwest::Client::new().get("no address").build().unwrap_err();
        let one = vec![piece("2026-01-01T00:00:01Z one\n2026-01-01T00:00:02Z ha"), Err(broken)];
        let sent = sent(follower(vec![one])).await;
        assert!(sent.contains(" one") && !sent.contains(" ha") && !sent.contains("event: end"), "{sent}");
        assert!(sent.contains("id: after:2026-01-01T00:00:01Z\n"), "the next stream sends all of it: {sent}");
    }

    #[test]
    fn all_containers_have_a_column_up_to_a_bound() {
        let names: Vec<String> = (0..9).map(|number| format!("c{number}")).collect();
        let shown = |container: &str, containers: &[String]| -> Vec<String> {
            let query = LogsQuery { container: container.to_owned(), ..LogsQuery::default() };
            let address = LogAddress { namespace: "default".to_owned(), pod: "web".to_owned(), query };
            address.columns(containers).into_iter().map(|column| column.query.container).collect()
        };
        assert_eq!(shown(ALL, &names), names[..COLUMNS_MAX]);
        assert_eq!(shown("", &names), ["c0"]);
        assert_eq!(shown("c7", &names), ["c7"]);
        assert_eq!(shown(ALL, &[]), [""], "the reason why is shown");
    }
}
