//! Result files of Slurm jobs: a listing as JSON or as an HTML page with links, and single files.
//!
//! Names and contents are untrusted, because jobs control them. Names are escaped, files are downloaded instead of
//! displayed unless they are asked for as plain text or as an image, and the browser must not guess a type.

use std::fmt::Write as _;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};
use jiff::Timestamp;
use schema::content_refs::is_digest;
use schema::kinds::Kind;
use schema::meta::NamespacedName;
use schema::quantity::Memory;
use schema::records::{JobReport, ResultFile, ResultKind};
use serde::{Deserialize, Serialize};

use super::{object_id, object_not_found};
use crate::api::app::{ApiState, App};
use crate::api::error::ApiError;
use crate::api::input::QueryParams;
use crate::api::logs;
use crate::view;

/// Blocks scripts, styles, frames and external resources.
const POLICY: &str = "default-src 'none'; sandbox allow-downloads; frame-ancestors 'none'";

const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// Content types by file extension; other files are sent as bytes. Browsers execute none of these types.
const TYPES: [(&str, &str); 9] = [
    ("txt", PLAIN_TEXT),
    ("out", PLAIN_TEXT),
    ("err", PLAIN_TEXT),
    ("log", PLAIN_TEXT),
    ("csv", "text/csv; charset=utf-8"),
    ("json", "application/json"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
];

/// Result files of a job.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Listing {
    items: Vec<ListedFile>,
    /// Number of further files that exist only on the login host.
    unfetched: u64,
}

#[derive(Debug, Serialize)]
struct ListedFile {
    #[serde(flatten)]
    file: ResultFile,
    /// URL relative to the listing; empty if the file could not be read.
    href: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct ResultQuery {
    /// Selects one of several files with the same content.
    path: Option<String>,
    /// Requests a file to be displayed, if that is safe.
    #[serde(default)]
    view: bool,
}

pub(in crate::api) async fn all(
    State(app): App,
    Path((namespace, name)): Path<(String, String)>,
    asked: HeaderMap,
) -> Result<Response, ApiError> {
    let id = object_id(Kind::Job, namespace, name)?;
    let detail = view::job(&*app.snapshot()?, &id, Vec::new(), Timestamp::now());
    let detail = detail.ok_or_else(|| object_not_found(Kind::Job, &id))?;
    let JobReport { results, unfetched, .. } = detail.report.unwrap_or_default();
    let listed = |file: ResultFile| ListedFile { href: href(&file), file };
    let listing = Listing { items: results.into_iter().map(listed).collect(), unfetched: unfetched.count };
    let accepts = asked.get(header::ACCEPT).and_then(|accepts| accepts.to_str().ok()).unwrap_or_default();
    let answer = match accepts.contains("text/html") {
        true => Html(page(&id.to_string(), &listing)).into_response(),
        false => Json(listing).into_response(),
    };
    Ok(with_security_headers(answer))
}

pub(in crate::api) async fn one(
    State(app): App,
    Path((namespace, name, digest)): Path<(String, String, String)>,
    QueryParams(wanted): QueryParams<ResultQuery>,
) -> Result<Response, ApiError> {
    if !is_digest(&digest) {
        let help = "give the 64 hex digits of a SHA-256";
        return Err(ApiError::bad_request(format!("{digest} is not a digest"), help));
    }
    let id = object_id(Kind::Job, namespace, name)?;
    let detail = view::job(&*app.snapshot()?, &id, Vec::new(), Timestamp::now());
    let detail = detail.ok_or_else(|| object_not_found(Kind::Job, &id))?;
    let results = detail.report.map(|report| report.results).unwrap_or_default();
    let is_wanted = |file: &&ResultFile| {
        file.digest == digest && wanted.path.as_ref().is_none_or(|path| *path == file.path)
    };
    let file = results.iter().find(is_wanted).ok_or_else(|| {
        ApiError::not_found(format!("job {id} has no such result"), "see 'minik8s results job/NAME'")
    })?;
    let mut answer = fetch_from_job_node(&app, id, &format!("results/{digest}")).await?;
    let displayed = display_type(file).filter(|_| wanted.view);
    let kind = displayed.unwrap_or_else(|| content_type(&file.path));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    let place = if displayed.is_some() { "inline" } else { "attachment" };
    let name = file.path.rsplit('/').next().unwrap_or_default();
    if let Ok(saved) = HeaderValue::try_from(format!("{place}; filename*=UTF-8''{}", percent_encode(name))) {
        answer.headers_mut().insert(header::CONTENT_DISPOSITION, saved);
    }
    Ok(with_security_headers(answer))
}

fn with_security_headers(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    answer
}

fn content_type(path: &str) -> &'static str {
    let ending = path.rsplit('.').next().unwrap_or_default();
    TYPES.iter().find(|(of, _)| *of == ending).map_or("application/octet-stream", |(_, kind)| kind)
}

/// Returns the content type under which a browser may display a file: plain text or an image. `None` for all others,
/// which it saves.
pub(in crate::api) fn display_type(file: &ResultFile) -> Option<&'static str> {
    match content_type(&file.path) {
        image @ ("image/png" | "image/jpeg") => Some(image),
        PLAIN_TEXT | "text/csv; charset=utf-8" | "application/json" => Some(PLAIN_TEXT),
        _ => matches!(file.kind, ResultKind::Stdout | ResultKind::Stderr).then_some(PLAIN_TEXT),
    }
}

/// Returns the URL of a file below that of its job; empty if the file could not be read.
pub(in crate::api) fn href(file: &ResultFile) -> String {
    if file.digest.is_empty() {
        return String::new();
    }
    format!("results/{}?path={}", file.digest, percent_encode(&file.path))
}

/// Percent-encodes a part of a URL: everything but letters, digits, `-`, `_` and `.`.
pub(in crate::api) fn percent_encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => out.push(char::from(byte)),
            _ => _ = write!(out, "%{byte:02X}"),
        }
    }
    out
}

/// Escapes text for HTML, and makes control characters visible.
pub(in crate::api) fn escape_html(text: &str) -> String {
    let safe = |c: char| match c {
        '&' | '<' | '>' | '"' | '\'' => format!("&#{};", u32::from(c)),
        c if c.is_control() => c.escape_unicode().to_string(),
        c => c.to_string(),
    };
    text.chars().map(safe).collect()
}

fn page(job: &str, listing: &Listing) -> String {
    let title = format!("Results of job {}", escape_html(job));
    let mut page = format!(
        "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n<h1>{title}</h1>\n<ul>\n"
    );
    for ListedFile { file, href } in &listing.items {
        let (path, size) = (escape_html(&file.path), Memory { bytes: file.size }.readable());
        let cut = if file.is_truncated { ", only its beginning" } else { "" };
        let line = match href.as_str() {
            "" => format!("<bdi>{path}</bdi> (not fetched: {})", escape_html(&file.unreadable)),
            href => format!("<a href=\"{}\"><bdi>{path}</bdi></a> ({size}{cut})", escape_html(href)),
        };
        page.push_str(&format!("<li>{line}</li>\n"));
    }
    page.push_str("</ul>\n");
    if listing.unfetched > 0 {
        page.push_str(&format!("<p>{} more files are only on the login host.</p>\n", listing.unfetched));
    }
    page
}

// Output of Slurm jobs, fetched from the node that handles the job.

/// Selects one of a job's two outputs.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct OutputQuery {
    #[serde(default)]
    stderr: bool,
    /// Offset of the first byte.
    from: Option<u64>,
}

/// Streams the job's output so far from the node that handles the job.
pub(in crate::api) async fn output(
    State(app): App,
    Path((namespace, name)): Path<(String, String)>,
    QueryParams(wanted): QueryParams<OutputQuery>,
) -> Result<Response, ApiError> {
    let from = wanted.from.map(|from| format!("&from={from}")).unwrap_or_default();
    let id = object_id(Kind::Job, namespace, name)?;
    let answer = fetch_from_job_node(&app, id, &format!("output?stderr={}{from}", wanted.stderr)).await?;
    Ok(with_security_headers(answer))
}

pub(super) async fn fetch_from_job_node(
    app: &ApiState,
    id: NamespacedName,
    what: &str,
) -> Result<Response, ApiError> {
    let snapshot = app.snapshot()?;
    let detail = view::job(&snapshot, &id, Vec::new(), Timestamp::UNIX_EPOCH);
    let detail = detail.ok_or_else(|| object_not_found(Kind::Job, &id))?;
    let Some(node) = detail.row.node else {
        return Err(ApiError::not_found(
            format!("job {id} is not assigned to a node yet"),
            "see 'minik8s get nodes'",
        ));
    };
    logs::stream_from_node(app, &snapshot, &node, &format!("/v1/jobs/{}/{}/{what}", id.namespace, id.name))
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    // Seen red with unescaped names.
    #[test]
    fn no_name_leaves_its_place_on_the_page() {
        let hostile = [
            "<script>alert(1)</script>",
            "\"><img src=x onerror=alert(1)>",
            "a&b 'c' ?x=#y",
            "\u{202e}\r\nX: y",
        ];
        let file = |path: &&str| ResultFile {
            path: (*path).to_owned(),
            size: 7,
            digest: "a".repeat(64),
            kind: ResultKind::Output,
            is_truncated: false,
            unreadable: String::new(),
        };
        let listed = |path: &&str| ListedFile { href: href(&file(path)), file: file(path) };
        let mut items: Vec<ListedFile> = hostile.iter().map(listed).collect();
        let unreadable = "<b>denied</b>".to_owned();
        let lost = ResultFile { digest: String::new(), unreadable, ..file(&"lost") };
        items.push(ListedFile { href: href(&lost), file: lost });
        let page = page("default/sum", &Listing { items, unfetched: 3 });
        let tags: Vec<&str> =
            page.split('<').skip(1).filter_map(|part| part.split(['>', ' ']).next()).collect();
        let known = [
            "!DOCTYPE", "meta", "title", "/title", "h1", "/h1", "ul", "/ul", "li", "/li", "a", "/a", "bdi",
            "/bdi", "p", "/p",
        ];
        assert!(tags.iter().all(|tag| known.contains(tag)), "{tags:?}");
        assert!(page.contains("href=\"results/aaaa") && page.contains("?path=%3Cscript%3E"), "{page}");
        assert!(page.contains("3 more files") && page.contains("not fetched: &#60;b"), "{page}");
        assert_eq!(percent_encode("a\r\n\"b/ü"), "a%0D%0A%22b%2F%C3%BC");
    }
}
