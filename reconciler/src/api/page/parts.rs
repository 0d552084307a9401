//! Shared by all pages: parts, functions for templates, charts, headers.
//!
//! Charts are SVG with attributes only, because the page allows no inline style.

use std::collections::BTreeMap;
use std::sync::Mutex;

use askama::Template;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use jiff::Timestamp;
use schema::kinds::Kind;
use schema::meta::DEFAULT_NAMESPACE;
use schema::records::Revision;
use schema::snapshot::Snapshot;
use schema::violation::visible;
use sha2::{Digest as _, Sha256};

use crate::view::{self, AutoscalerSamples, TimelineView, seconds};

/// Number of rows on one page of a list.
pub(super) const ROWS_MAX: usize = 100;

/// Allows only what this server sends itself: no inline script or style, and markup from strings only in the page's
/// own script.
const CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                   form-action 'self'; base-uri 'none'; frame-ancestors 'none'; \
                   require-trusted-types-for 'script'; trusted-types minik8s";

/// Width of a meter.
const METER_WIDTH: u64 = 200;
/// Sizes of a timeline: width of the names, width of the bars, height of a row.
const NAMES: u64 = 110;
const BARS: u64 = 640;
const ROW: u64 = 22;

/// A part of a page, replaced as a whole when it changes.
pub(super) struct Part {
    pub(super) id: &'static str,
    pub(super) html: String,
}

impl Part {
    pub(super) fn new(id: &'static str, template: &impl Template) -> Self {
        // Rendering to a string fails only if a value's Display does.
        let html = template.render().unwrap_or_else(|error| visible(&error.to_string()).into_owned());
        Self { id, html }
    }

    fn hash(&self) -> String {
        hex::encode(&Sha256::digest(self.html.as_bytes())[..4])
    }
}

/// The parts of one address at one moment.
pub(super) struct Page {
    pub(super) title: String,
    pub(super) parts: Vec<Part>,
}

impl Page {
    /// Returns the hashes of the parts by their ids.
    pub(super) fn hashes(&self) -> BTreeMap<String, String> {
        self.parts.iter().map(|part| (part.id.to_owned(), part.hash())).collect()
    }
}

/// Formats hashes as the script sends them back: `id:hash,id:hash`.
pub(super) fn hash_list(hashes: &BTreeMap<String, String>) -> String {
    hashes.iter().map(|(id, hash)| format!("{id}:{hash}")).collect::<Vec<_>>().join(",")
}

/// State of the cluster that a page is rendered from, and samples of what it was.
pub(super) struct RenderContext<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) samples: &'a Mutex<AutoscalerSamples>,
    pub(super) now: Timestamp,
}

/// Functions for all templates.
pub(super) trait TemplateHelpers {
    /// Text that others wrote, with control and bidirectional characters made visible.
    fn text(&self, text: &str) -> String {
        visible(text).into_owned()
    }

    /// Class of a state's mark.
    fn mark(&self, state: &str) -> &'static str {
        match state {
            state if view::is_well(state) => "good",
            "Degraded" | "Bad" | "Failed" | "NotReady" | "Error" | "CrashLoopBackOff"
            | "ImagePullBackOff" | "ErrImagePull" | "NodeLost" | "OOMKilled" | "TimedOut" => "bad",
            "Unknown" | "Applied" | "Superseded" | "Aborted" | "Cancelled" | "Deleting" | "" => "none",
            _ => "busy",
        }
    }

    /// A time to the second.
    fn time(&self, at: &Timestamp) -> String {
        at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
    }

    /// Changes of a commit, as the CLI shows them.
    fn changes(&self, revision: &Revision) -> String {
        view::changes(&revision.counts)
    }

    /// Address of an object's page, as [`object_address`].
    fn link(&self, id: &str) -> String {
        object_address(id)
    }

    /// Lines of a text, with control characters made visible.
    fn lines(&self, text: &str) -> String {
        text.lines().map(|line| visible(line).into_owned() + "\n").collect()
    }
}

impl<T: Template> TemplateHelpers for T {}

/// Returns the address of an object's page, from `Kind/namespace/name`, or `Kind/name` for kinds of the whole cluster;
/// empty for anything else.
pub(super) fn object_address(id: &str) -> String {
    let parts: Vec<&str> = id.split('/').collect();
    let kind = Kind::ALL.into_iter().find(|kind| Some(&kind.as_str()) == parts.first());
    match (kind, parts.as_slice()) {
        (Some(kind), [_, name]) if kind.is_cluster_scoped() => {
            format!("/object/{kind}/{DEFAULT_NAMESPACE}/{name}")
        }
        (Some(kind), [_, namespace, name]) => format!("/object/{kind}/{namespace}/{name}"),
        _ => String::new(),
    }
}

/// Cuts a text after this many bytes; then `command` is named, which prints all of it.
pub(super) fn cut(mut text: String, bytes_max: usize, command: &str) -> String {
    if text.len() > bytes_max {
        let end = (0..=bytes_max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push_str(&format!("\n… shortened; '{command}' prints all of it\n"));
    }
    text
}

/// Adds the headers that keep foreign code and frames out.
pub(super) fn with_protection(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-security-policy", CSP),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// Draws the used share of something below a text that says the same. `text` must be free of markup.
pub(super) fn meter(used: u64, all: u64, text: &str) -> String {
    // Without `all`, the meter is empty.
    let share = u128::from(used.min(all)) * u128::from(METER_WIDTH) / u128::from(all.max(1));
    format!(
        "<p class=\"quiet\">{text}</p><svg width=\"{METER_WIDTH}\" height=\"6\" aria-hidden=\"true\">\
         <rect class=\"rest\" width=\"{METER_WIDTH}\" height=\"6\" rx=\"3\"/>\
         <rect class=\"bar\" width=\"{share}\" height=\"6\" rx=\"3\"/></svg>"
    )
}

/// Draws the steps of a timeline one below the other; the table beside it says the same in numbers.
pub(super) fn timeline(shown: &TimelineView) -> String {
    let (width, height) = (NAMES + BARS, ROW * shown.steps.len() as u64);
    let position = |at: u64| at * BARS / shown.total.max(1);
    let rows = shown.steps.iter().zip(0_u64..).map(|(step, row)| {
        let (from, to) = (position(step.from), position(step.to));
        let (y, length) = (row * ROW, (to - from).max(2));
        format!(
            "<text x=\"0\" y=\"{}\">{}</text><rect class=\"bar\" x=\"{}\" y=\"{}\" width=\"{length}\" height=\"12\" rx=\"2\"/>",
            y + 15,
            step.name,
            NAMES + from.min(BARS - length),
            y + 5,
        )
    });
    let rows: String = rows.collect();
    format!(
        "<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" \
         aria-label=\"Steps of the commit over {}\">{rows}</svg>",
        seconds(shown.total)
    )
}
