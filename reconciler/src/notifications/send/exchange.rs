//! A delivery, and its exchange over HTTP: a request made by a pure function of another file, its answer as a value.
//!
//! Requests go to checked addresses only. No redirect is followed, no proxy is used, and lists and refusals are read up to
//! 64 KiB. Of a URL, errors have the scheme, the host and the port only.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, ErrorKind};
use std::iter;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use reqwest::header::HeaderMap;
use reqwest::{Method, StatusCode, Url};
use schema::errors::{causes, error_chain};
use schema::records::Message;
use schema::violation::{shortened, visible};
use serde_json::Value as Json;
use tokio::time::{Instant, timeout_at};

use super::address::{Bounds, resolve};
use crate::notifications::target::OwnAddresses;
use crate::outgoing::{self, TargetServer};

/// Longest duration of a delivery, with the lookup of the name and what is read back.
pub(super) const DELIVERY_MAX: Duration = Duration::from_secs(5);
/// Longest wait for a connection, so that a second address gets a try.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(4);
/// Largest answer that is read.
const ANSWER_MAX: usize = 64 * 1024;
/// Longest pause that a target may ask for. GitHub's limits are per hour.
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// Most characters of a server's reason in an error.
const REASON_MAX_CHARS: usize = 200;
/// Shortest part of a URL's path or query that is taken for a secret; `services` and `hooks` are none.
const SECRET_PART_MIN_BYTES: usize = 9;

/// Values of a target's secret by key.
pub(super) type Secrets = BTreeMap<String, String>;

/// A message on its way to a target.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Id; each repetition of the same message has it, too.
    pub id: String,
    /// Subject of the message.
    pub subject: String,
    /// The message.
    pub message: Message,
    /// URL of the page about the subject.
    pub link: Option<String>,
    /// True if an earlier delivery may have arrived: it failed, or its outcome is unknown.
    pub may_have_arrived: bool,
}

/// Outcome of a delivery that left the target with the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The target accepted it.
    Sent,
    /// The target had it already.
    AlreadyThere,
}

/// Failure of a delivery. It may have arrived all the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DeliveryError {
    /// Reason and, where there is one, the remedy. Has no secret.
    pub message: String,
    /// Pause that the target asks for.
    pub retry_after: Option<Duration>,
}

impl DeliveryError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), retry_after: None }
    }
}

/// An HTTP request. Its headers may have secrets, so it cannot be printed.
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Option<Vec<u8>>,
}

impl Request {
    /// Creates a request with a body of JSON.
    pub(super) fn json(method: Method, url: Url, body: &Json) -> Self {
        let headers = vec![("content-type", "application/json".to_owned())];
        Self { method, url, headers, body: Some(body.to_string().into_bytes()) }
    }

    pub(super) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// Limits on where a request may go.
pub(super) struct Route<'r> {
    pub(super) allow_private: bool,
    /// Addresses of the cluster.
    pub(super) own: &'r OwnAddresses,
    pub(super) secrets: &'r Secrets,
    /// Set if the request has a secret, also in its URL.
    pub(super) is_confidential: bool,
    /// Words for the setting that has the CA of the server.
    pub(super) ca_setting: &'static str,
    /// End of the delivery.
    pub(super) deadline: Instant,
}

impl Route<'_> {
    pub(super) fn bounds(&self, is_encrypted: bool) -> Bounds<'_> {
        let Self { allow_private, own, is_confidential, .. } = *self;
        Bounds { allow_private, own, is_exposed: is_confidential && !is_encrypted }
    }

    /// Returns the certificates to trust in addition to the machine's, PEM.
    pub(super) fn ca(&self) -> Option<String> {
        self.secrets.get("ca").cloned()
    }

    /// Bounds an act at the server at `place` by the end of the delivery.
    pub(super) async fn in_time<T>(
        &self,
        place: &str,
        act: impl Future<Output = Result<T, DeliveryError>>,
    ) -> Result<T, DeliveryError> {
        let late = || format!("{place} did not answer within {} s", DELIVERY_MAX.as_secs());
        timeout_at(self.deadline, act).await.unwrap_or_else(|_| Err(DeliveryError::new(late())))
    }

    /// Describes a failure of the connection to the server at `place`, with the remedy where there is one.
    pub(super) fn connection_failure(&self, place: &str, error: &(dyn Error + 'static)) -> DeliveryError {
        DeliveryError::new(connection_failure(place, error, self.ca_setting))
    }
}

fn connection_failure(place: &str, error: &(dyn Error + 'static), ca_setting: &str) -> String {
    let text = error_chain(error);
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let mut chain = iter::once(error).chain(causes(error));
    let kind = chain.find_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    let why = match kind {
        // Words of OpenSSL.
        _ if says(&["certificate verify failed"]) => {
            if says(&["self-signed certificate", "self signed certificate", "unable to "]) {
                format!("its certificate is not trusted: give the CA as {ca_setting}")
            } else if says(&["certificate has expired"]) {
                "its certificate has expired".to_owned()
            } else if says(&["ostname mismatch", "IP address mismatch"]) {
                "its certificate is for another name".to_owned()
            } else {
                visible(&text).into_owned()
            }
        }
        _ if says(&["wrong version number", "packet length too long", "record layer failure"]) => {
            "it does not speak TLS".to_owned()
        }
        Some(
            kind
            @ (ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable),
        ) => kind.to_string(),
        Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof) => {
            return format!("{place} closed the connection");
        }
        // Words of hyper, of OpenSSL and of lettre.
        _ if says(&["connection closed", "unexpected eof", "unexpected EOF", "incomplete response"]) => {
            return format!("{place} closed the connection");
        }
        _ if kind == Some(ErrorKind::TimedOut) || says(&["timed out"]) => {
            return format!("{place} did not answer within {} s", CONNECT_MAX.as_secs());
        }
        _ => return format!("cannot reach {place}: {}", visible(&text)),
    };
    format!("cannot connect to {place}: {why}")
}

/// An HTTP answer.
pub(super) struct Answer<'r> {
    /// Scheme, host and port of the server.
    pub(super) place: String,
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// Body; empty if a request that changes something was accepted, and if it is larger than the limit.
    pub(super) body: Vec<u8>,
    /// Values that the server may repeat.
    pub(super) secrets: &'r Secrets,
}

/// Parses the address of a target. The error does not repeat it.
pub(super) fn url_of(text: &str) -> Result<Url, DeliveryError> {
    let wrong = || DeliveryError::new("its `url` is not an http(s) URL without a user and a password");
    let url = Url::parse(text.trim()).map_err(|_| wrong())?;
    let is_plain = url.username().is_empty() && url.password().is_none() && url.has_host();
    if is_plain && matches!(url.scheme(), "http" | "https") { Ok(url) } else { Err(wrong()) }
}

/// Appends segments to the path of a URL; each is encoded.
pub(super) fn below(base: &Url, segments: &[&str]) -> Url {
    let mut url = base.clone();
    // Only a URL without a host has no path.
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

/// Sends a request and reads what matters of its answer, whatever its status.
pub(super) async fn exchange<'r>(request: Request, route: &Route<'r>) -> Result<Answer<'r>, DeliveryError> {
    let place = place_of(&request.url);
    route.in_time(&place, Box::pin(exchange_at(&place, request, route))).await
}

/// Returns scheme, host and port of an http(s) URL.
pub(super) fn place_of(url: &Url) -> String {
    url.origin().ascii_serialization()
}

async fn exchange_at<'r>(
    place: &str,
    request: Request,
    route: &Route<'r>,
) -> Result<Answer<'r>, DeliveryError> {
    let (url, is_list) = (request.url, request.method == Method::GET);
    let host = url.host_str().unwrap_or_default().to_owned();
    let failed = |error: reqwest::Error| route.connection_failure(place, &error.without_url());
    let port = url.port_or_known_default().unwrap_or_default();
    let bounds = route.bounds(url.scheme() == "https");
    let addresses = resolve(&host, port, &bounds).await.map_err(DeliveryError::new)?;
    let server = TargetServer { host, addresses, ca: route.ca() };
    let client = outgoing::to_target(server, CONNECT_MAX).await;
    let client = client.map_err(|why| DeliveryError::new(format!("cannot reach {place}: {why}")))?;
    let mut sending = client.request(request.method, url);
    for (name, value) in request.headers {
        sending = sending.header(name, value);
    }
    if let Some(body) = request.body {
        sending = sending.body(body);
    }
    let response = sending.send().await.map_err(failed)?;
    let (status, headers) = (response.status(), response.headers().clone());
    let is_refusal = !status.is_success();
    let read = if is_refusal || is_list { outgoing::body(response, ANSWER_MAX).await } else { Ok(None) };
    let body = match read {
        Ok(body) => body.unwrap_or_default(),
        // The status is enough.
        Err(_) if is_refusal => Vec::new(),
        Err(error) => return Err(failed(error)),
    };
    Ok(Answer { place: place.to_owned(), status, headers, body, secrets: route.secrets })
}

impl Answer<'_> {
    /// Returns the failure that the answer is; `help` is the remedy.
    pub(super) fn error(&self, help: Option<&str>, now: Timestamp) -> DeliveryError {
        let mut message = format!("the answer is {}", self.status);
        if self.status.is_redirection() {
            let to = self.redirected_to().map(|place| format!(" to {place}")).unwrap_or_default();
            message = format!("{message}, a redirect{to}, which is not followed: name the new address");
        } else if let Some(reason) = self.reason() {
            message = format!("{message}: {reason}");
        }
        if let Some(help) = help {
            message = format!("{message}; {help}");
        }
        DeliveryError { message, retry_after: self.pause(now) }
    }

    /// Returns scheme, host and port of the address to which a redirect leads.
    fn redirected_to(&self) -> Option<String> {
        let to = Url::parse(&self.place).ok()?.join(self.header("location")?).ok()?;
        let is_http = matches!(to.scheme(), "http" | "https");
        is_http.then(|| shortened(place_of(&to), REASON_MAX_CHARS))
    }

    /// Returns the outcome of a request that needs no more than to be accepted.
    pub(super) fn accepted(&self, now: Timestamp) -> Result<DeliveryOutcome, DeliveryError> {
        if self.status.is_success() { Ok(DeliveryOutcome::Sent) } else { Err(self.error(None, now)) }
    }

    /// Returns the reason that the server gives, in one line and without secrets: a field of its JSON, or its text if it
    /// is not a page.
    pub(super) fn reason(&self) -> Option<String> {
        let text = match serde_json::from_slice::<Json>(&self.body) {
            Ok(json) => match ["message", "error", "errcode"].iter().find_map(|field| json.get(field))? {
                Json::String(text) => text.clone(),
                other => other.to_string(),
            },
            Err(_) => str::from_utf8(&self.body).ok().filter(|text| !text.contains('<'))?.to_owned(),
        };
        // Masked before it is cut, which may leave a part of a secret.
        let text = redacted(text.trim(), self.secrets);
        (!text.is_empty()).then(|| shortened(visible(&text).into_owned(), REASON_MAX_CHARS))
    }

    /// Returns the pause that the server asks for: by `Retry-After` in seconds or as a date, by a limit of requests
    /// that is used up, or as Matrix does.
    fn pause(&self, now: Timestamp) -> Option<Duration> {
        let until = |at: Timestamp| Duration::try_from(at.duration_since(now)).unwrap_or_default();
        let after = self.header("retry-after").and_then(|text| match text.parse::<u64>() {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => DateTimeParser::new().parse_timestamp(text).ok().map(until),
        });
        let header = |name: &str| self.header(&format!("x-{name}")).or_else(|| self.header(name));
        let is_used_up =
            self.status == StatusCode::TOO_MANY_REQUESTS || header("ratelimit-remaining") == Some("0");
        let reset = || {
            let at = header("ratelimit-reset").filter(|_| is_used_up)?.parse::<i64>().ok()?;
            Timestamp::from_second(at).ok().map(until)
        };
        let milliseconds = || {
            let json: Json = serde_json::from_slice(&self.body).ok()?;
            json.get("retry_after_ms")?.as_u64().map(Duration::from_millis)
        };
        after.or_else(reset).or_else(milliseconds).map(|pause| pause.min(PAUSE_MAX))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok().map(str::trim)
    }
}

/// Masks secrets in the text of a server: values, also in Base64, and path and query of a URL, as a whole and in parts.
pub(super) fn redacted(text: &str, secrets: &Secrets) -> String {
    let mut masked = Vec::new();
    for (key, value) in secrets {
        let value = value.trim();
        match key.as_str() {
            "ca" | "username" => {}
            "url" => {
                let Ok(url) = Url::parse(value) else { continue };
                let rest = [url.path().trim_start_matches('/'), url.query().unwrap_or_default()];
                let is_end = |c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_');
                let parts = rest.into_iter().flat_map(|part| part.split(is_end)).chain(rest);
                masked.extend(parts.filter(|part| part.len() >= SECRET_PART_MIN_BYTES).map(str::to_owned));
            }
            _ => masked.extend([value.to_owned(), BASE64.encode(value)]),
        }
    }
    if let (Some(user), Some(password)) = (secrets.get("username"), secrets.get("password")) {
        masked.push(BASE64.encode(format!("\0{}\0{}", user.trim(), password.trim())));
    }
    masked.retain(|part| !part.is_empty());
    masked.sort_by_key(|part| Reverse(part.len()));
    masked.iter().fold(text.to_owned(), |text, part| text.replace(part.as_str(), "***"))
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    static NO_SECRETS: Secrets = Secrets::new();

    fn answer(status: u16, headers: &[(&'static str, &'static str)], body: &str) -> Answer<'static> {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        Answer {
            place: "https://h".to_owned(),
            status: StatusCode::from_u16(status).unwrap(),
            headers: headers.collect(),
            body: body.as_bytes().to_vec(),
            secrets: &NO_SECRETS,
        }
    }

    // Would fail if GitHub's limits, which it sends with each answer, counted before they are used up.
    #[test]
    fn a_target_may_ask_for_a_pause() {
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let at = (now.as_second() + 90).to_string();
        let at: &'static str = at.leak();
        let pause = |status, headers: &[(&'static str, &'static str)], body| {
            answer(status, headers, body).error(None, now).retry_after.map(|pause| pause.as_millis())
        };
        for (status, headers, body, wanted) in [
            (429, vec![("retry-after", "7")], "", Some(7_000)),
            (503, vec![("retry-after", "Sun, 01 Mar 2026 12:00:30 GMT")], "", Some(30_000)),
            (503, vec![("retry-after", "Sun, 01 Mar 2026 11:00:00 GMT")], "", Some(0)),
            (403, vec![("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", at)], "", Some(90_000)),
            (403, vec![("x-ratelimit-remaining", "40"), ("x-ratelimit-reset", at)], "", None),
            (429, vec![("ratelimit-reset", at)], "", Some(90_000)),
            (429, vec![], r#"{"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 2500}"#, Some(2_500)),
            (429, vec![("retry-after", "999999999")], "", Some(3_600_000)),
            (429, vec![("retry-after", "soon")], "", None),
            (500, vec![], "", None),
        ] {
            assert_eq!(pause(status, &headers, body), wanted, "{status} {headers:?}");
        }
    }

    #[test]
    fn the_reason_of_a_server_is_one_short_line() {
        let now = Timestamp::UNIX_EPOCH;
        let long = "x".repeat(5000);
        for (status, body, message) in [
            (404, r#"{"message": "Not Found"}"#, "the answer is 404 Not Found: Not Found"),
            (403, "no_service\n", "the answer is 403 Forbidden: no_service"),
            (500, "<html>oops</html>", "the answer is 500 Internal Server Error"),
            (
                302,
                "moved",
                "the answer is 302 Found, a redirect, which is not followed: name the new address",
            ),
            (400, "a\u{1b}[31m\nb", "the answer is 400 Bad Request: a\\u{1b}[31m\\nb"),
        ] {
            assert_eq!(answer(status, &[], body).error(None, now).message, message);
        }
        let message = answer(400, &[], &long).error(Some("push it there"), now).message;
        assert!(message.len() < 300 && message.ends_with("…; push it there"), "{message}");
    }

    // Would fail if the path were shown: it may be a secret.
    #[test]
    fn a_redirect_names_the_host_to_which_it_leads() {
        for (location, wanted) in [
            ("https://new.example:8443/services/s3cret", "a redirect to https://new.example:8443, which"),
            ("//new.example/s3cret", "a redirect to https://new.example, which"),
            ("/s3cret", "a redirect to https://h, which"),
            ("mailto:s3cret@new.example", "a redirect, which"),
        ] {
            let message =
                answer(307, &[("location", location)], "").error(None, Timestamp::UNIX_EPOCH).message;
            assert!(message.contains(wanted) && !message.contains("s3cret"), "{message}");
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("client error (Connect)")]
    struct Outer(#[source] io::Error);

    // The texts are those of OpenSSL 3, of hyper and of lettre.
    #[test]
    fn failures_of_connections_say_what_to_do() {
        let tls = |why: &str| io::Error::other(format!("error:0A00010B:SSL routines::{why}"));
        let unverified = |why: &str| tls(&format!("certificate verify failed:../ssl/x.c:2103: ({why})"));
        for (error, wanted) in [
            (ErrorKind::ConnectionRefused.into(), "cannot connect to P: connection refused"),
            (ErrorKind::HostUnreachable.into(), "cannot connect to P: host unreachable"),
            (ErrorKind::ConnectionReset.into(), "P closed the connection"),
            (io::Error::other("connection closed before message completed"), "P closed the connection"),
            (io::Error::other("response error: incomplete response"), "P closed the connection"),
            (ErrorKind::TimedOut.into(), "P did not answer within 4 s"),
            (io::Error::other("operation timed out"), "P did not answer within 4 s"),
            (
                unverified("self-signed certificate in certificate chain"),
                "cannot connect to P: its certificate is not trusted: give the CA as `ca`",
            ),
            (
                unverified("unable to get local issuer certificate"),
                "cannot connect to P: its certificate is not trusted: give the CA as `ca`",
            ),
            (unverified("certificate has expired"), "cannot connect to P: its certificate has expired"),
            (unverified("hostname mismatch"), "cannot connect to P: its certificate is for another name"),
            (tls("wrong version number:../ssl/y.c:354:"), "cannot connect to P: it does not speak TLS"),
            (io::Error::other("odd\nthing"), "cannot reach P: client error (Connect): odd\\nthing"),
        ] {
            let error = Outer(error);
            assert_eq!(connection_failure("P", &error, "`ca`"), wanted);
        }
    }

    #[test]
    fn segments_of_a_path_are_encoded() {
        for (base, segments, wanted) in [
            ("https://gitlab.com", vec!["api", "a/b"], "https://gitlab.com/api/a%2Fb"),
            ("https://h:8443/sub/", vec!["!r:h", "m.room.message"], "https://h:8443/sub/!r:h/m.room.message"),
            ("https://h", vec!["a?b#c", "ä"], "https://h/a%3Fb%23c/%C3%A4"),
        ] {
            assert_eq!(below(&url_of(base).unwrap(), &segments).as_str(), wanted);
        }
        for wrong in ["https://kim:s3cret@h", "ftp://h", "h", ""] {
            assert!(!url_of(wrong).unwrap_err().message.contains("s3cret"));
        }
    }
}
