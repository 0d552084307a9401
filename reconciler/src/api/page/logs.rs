//! The log of a container: its last lines, and new ones as they are written.
//!
//! Lines are read with their times, so that a tab that comes back continues after the last line that it has.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use askama::Template;
use axum::response::sse::Event;
use futures::StreamExt as _;
use futures::stream::Fuse;
use jiff::Timestamp;
use schema::kinds::Kind;
use schema::meta::{NamespacedName, ObjectRef};
use schema::snapshot::Snapshot;
use serde::Deserialize;
use tokio::time::{Instant, timeout, timeout_at};

use super::ansi::line_html;
use super::parts::{Page, Part, TemplateHelpers};
use crate::api::app::ApiState;
use crate::api::error::ApiError;
use crate::api::kinds::object_not_found;
use crate::api::kinds::results::percent_encode;
use crate::api::logs::{LogQuery, LogStream, open};
use crate::view;

/// Lines read at first, unless a text or a start selects the lines.
const LINES_FIRST: u64 = 500;
/// Longest line that is shown, in bytes; the rest of it is left out.
const LINE_MAX: usize = 4 * 1024;
/// Longest line that is searched, in bytes.
const SEARCHED_MAX: usize = 64 * 1024;
/// Most bytes of the lines shown at first, as HTML; the newest are kept.
const HTML_MAX: usize = 1 << 20;
/// Longest time to read the lines shown at first. With the node's time to answer, less than a request may take.
const READ_MAX: Duration = Duration::from_secs(4);
/// Time for which lines are collected into one event.
const GATHER: Duration = Duration::from_millis(250);
/// Number of lines after which an event collects no more.
const EVENT_LINES_MAX: usize = 200;
/// Number of lines in which a repeated one is found.
const RECENT_MAX: usize = 1000;

/// Container, run and lines that are shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LogsQuery {
    /// Name of a container; empty for the first.
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

    /// Returns the address with a container: the first of these if it names none.
    fn with_container(&self, containers: &[String]) -> Self {
        let mut address = self.clone();
        if address.query.container.is_empty() {
            address.query.container = containers.first().cloned().unwrap_or_default();
        }
        address
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

    async fn open(&self, app: &ApiState, query: &LogQuery) -> Result<LogStream, ApiError> {
        open(app, self.namespace.clone(), self.pod.clone(), query).await
    }
}

/// Renders the page, and returns it with the mark of its last line.
pub(super) async fn page(
    app: &ApiState,
    snapshot: &Snapshot,
    address: &LogAddress,
) -> Result<(Page, String), ApiError> {
    let id = address.id();
    let Some(containers) = containers(snapshot, &id) else { return Err(object_not_found(Kind::Pod, &id)) };
    let address = address.with_container(&containers);
    let mut lines = Lines::new(&address.query.grep, None);
    let log = match address.open(app, &address.log_query(false, None)).await {
        Ok(stream) => {
            let lines = newest(stream, &mut lines).await;
            LogTemplate { lines, problem: String::new(), help: String::new() }
        }
        // The page says why there is no log yet, and its stream tries again.
        Err(error) => LogTemplate { lines: String::new(), problem: error.to_string(), help: error.help() },
    };
    let mark = lines.mark();
    let object = ObjectRef { kind: Kind::Pod, namespace: id.namespace, name: id.name }.to_string();
    let title = format!("Log of {}/{}", address.namespace, address.pod);
    let (action, download) = (format!("/logs/{}/{}", address.namespace, address.pod), download(&address));
    let filter = FilterTemplate { object, action, download, containers, query: address.query };
    let parts = vec![Part::new("filter", &filter), Part::new("log", &log)];
    Ok((Page { title, parts }, mark))
}

/// Reads a log to its end, within limits, and returns the newest lines as HTML.
async fn newest(mut stream: LogStream, lines: &mut Lines) -> String {
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
        while bytes > HTML_MAX {
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

/// Returns the address of the whole log as text.
fn download(address: &LogAddress) -> String {
    let LogAddress { namespace, pod, query } = address;
    let container = match query.container.as_str() {
        "" => String::new(),
        name => format!("&container={}", percent_encode(name)),
    };
    format!("/v1/logs/{namespace}/{pod}?timestamps=true&previous={}{container}", address.is_previous())
}

/// A tab that follows a log.
pub(super) struct Follower {
    stream: Fuse<LogStream>,
    lines: Lines,
}

impl Follower {
    /// Follows the log after the line with this mark; after none, it begins like the page.
    pub(super) async fn open(app: &ApiState, address: &LogAddress, mark: &str) -> Result<Self, ApiError> {
        if address.is_previous() {
            let why = "the log of an ended run gets no new lines";
            return Err(ApiError::bad_request(why, "leave out `previous` to follow the current run"));
        }
        let after = mark.strip_prefix(MARK).and_then(|time| time.parse().ok());
        let containers = containers(&*app.snapshot()?, &address.id()).unwrap_or_default();
        let address = address.with_container(&containers);
        let stream = address.open(app, &address.log_query(true, after)).await?;
        Ok(Self { stream: stream.fuse(), lines: Lines::new(&address.query.grep, after) })
    }

    /// Waits for new lines. `None` once the log has ended.
    pub(super) async fn event(mut self) -> Option<(Event, Self)> {
        loop {
            let mut lines = self.read().await?;
            // A busy log becomes a few large events.
            let gathered = async {
                while lines.len() < EVENT_LINES_MAX {
                    let Some(more) = self.read().await else { break };
                    lines.extend(more);
                }
            };
            let _ = timeout(GATHER, gathered).await;
            if !lines.is_empty() {
                let data = serde_json::Value::from(lines.concat()).to_string();
                return Some((Event::default().event("lines").id(self.lines.mark()).data(data), self));
            }
        }
    }

    /// Returns the lines that the next bytes complete, and at the end of the log its rest. `None` after that.
    async fn read(&mut self) -> Option<Vec<String>> {
        match self.stream.next().await {
            Some(Ok(chunk)) => Some(self.lines.take(&chunk)),
            // The tab's next stream sends the whole line.
            Some(Err(_)) => {
                self.lines.rest.clear();
                None
            }
            None => self.lines.end().map(|line| vec![line]),
        }
    }
}

/// Beginning of the mark of a line; the rest is its time.
const MARK: &str = "after:";

/// Splits a log with times into lines.
struct Lines {
    grep: String,
    /// Beginning of the next line.
    rest: Vec<u8>,
    /// Newest time of a line.
    last: Option<Timestamp>,
    /// Newest time that the tab has, until a later line comes: the node sends its whole second again.
    seen: Option<Timestamp>,
    /// Times and hashes of the last lines: Docker may repeat some when it rotates a log. Times alone do not tell: lines
    /// of the two outputs may swap places, and clocks may be set back.
    recent: BTreeSet<(Timestamp, u64)>,
}

impl Lines {
    fn new(grep: &str, seen: Option<Timestamp>) -> Self {
        let (rest, recent) = (Vec::new(), BTreeSet::new());
        Self { grep: grep.to_owned(), rest, last: seen, seen, recent }
    }

    fn mark(&self) -> String {
        format!("{MARK}{}", self.last.map(|time| time.to_string()).unwrap_or_default())
    }

    /// Returns the lines that `bytes` completes, as HTML.
    fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut out = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = SEARCHED_MAX.saturating_sub(self.rest.len());
            self.rest.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                out.extend(self.end());
            }
        }
        out
    }

    /// Ends the line that was begun, and returns it if it is new and contains the text.
    fn end(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.rest);
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches(['\n', '\r']);
        if line.is_empty() {
            return None;
        }
        let timed = line.split_once(' ').and_then(|(time, text)| {
            let at: Timestamp = time.parse().ok()?;
            Some((at, time, text))
        });
        let at = timed.map(|(at, ..)| at);
        let (time, text) = timed.map_or(("", line), |(_, time, text)| (time, text));
        if !self.is_new(at, text) || !text.contains(&self.grep) {
            return None;
        }
        if text.len() <= LINE_MAX {
            return Some(line_html(time, text));
        }
        let end = (0..=LINE_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        Some(line_html(time, &format!("{}…", &text[..end])))
    }

    /// Returns false for a line that the tab has, and otherwise takes note of it.
    fn is_new(&mut self, at: Option<Timestamp>, text: &str) -> bool {
        if self.seen.is_some_and(|seen| at.is_none_or(|at| at <= seen)) {
            return false;
        }
        self.seen = None;
        let Some(at) = at else { return true };
        self.last = self.last.max(Some(at));
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let is_new = self.recent.insert((at, hasher.finish()));
        if self.recent.len() > RECENT_MAX {
            self.recent.pop_first();
        }
        is_new
    }
}

#[derive(Template)]
#[template(path = "log_filter.html")]
struct FilterTemplate {
    object: String,
    action: String,
    download: String,
    containers: Vec<String>,
    query: LogsQuery,
}

#[derive(Template)]
#[template(path = "log.html")]
struct LogTemplate {
    lines: String,
    problem: String,
    help: String,
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn lines_are_whole_and_chosen_by_text() {
        let mut lines = Lines::new("er", None);
        let mut shown = Vec::new();
        for chunk in
            ["2026-01-01T00:00:00.1Z no", "\n2026-01-01T00:00:00.2Z err", "or\n2026-01-01T00:00:00.3Z error"]
        {
            shown.extend(lines.take(chunk.as_bytes()));
        }
        shown.extend(lines.end());
        assert_eq!(shown.len(), 2, "{shown:?}");
        assert!(shown[0].contains("error"), "{shown:?}");
        assert_eq!(lines.mark(), "after:2026-01-01T00:00:00.3Z");
        let long = format!("2026-01-01T00:00:00.4Z er{}\n", "ä".repeat(LINE_MAX));
        assert!(lines.take(long.as_bytes())[0].len() < 2 * LINE_MAX);
        let endless = vec![b'x'; 2 * SEARCHED_MAX];
        assert!(lines.take(&endless).is_empty() && lines.rest.len() == SEARCHED_MAX);
    }

    #[test]
    fn no_line_is_shown_twice_and_none_is_lost() {
        let count = |lines: &mut Lines, text: &str| lines.take(text.as_bytes()).len();
        let mut lines = Lines::new("", "2026-01-01T00:00:00.3Z".parse().ok());
        let second = "2026-01-01T00:00:00.200000000Z a\n2026-01-01T00:00:00.300000000Z b\n";
        assert_eq!(count(&mut lines, second), 0, "the tab has them");
        assert_eq!(count(&mut lines, "2026-01-01T00:00:00.31Z c\n"), 1, "later, although its text is less");
        assert_eq!(count(&mut lines, "2026-01-01T00:00:00.305Z d\n"), 1, "late from the other output");
        assert_eq!(count(&mut lines, "2026-01-01T00:00:00.31Z c\n"), 0, "repeated");
        assert_eq!(count(&mut lines, "2026-01-01T00:00:00.31Z e\n\n"), 1, "at the same time");
        assert_eq!(count(&mut lines, "without a time\n"), 1);
        assert_eq!(lines.mark(), "after:2026-01-01T00:00:00.31Z");
    }

    #[tokio::test]
    async fn the_rest_of_an_ended_log_is_a_line() {
        let pieces = ["2026-01-01T00:00:00.1Z one\n2026-", "01-01T00:00:00.2Z two"];
        let stream = futures::stream::iter(pieces.map(|piece| Ok(Bytes::from(piece)))).boxed().fuse();
        let mut follower = Follower { stream, lines: Lines::new("", None) };
        let mut shown = Vec::new();
        while let Some(lines) = follower.read().await {
            shown.extend(lines);
        }
        assert!(shown.len() == 2 && shown[1].contains("two"), "{shown:?}");
        assert!(follower.event().await.is_none());
    }
}
