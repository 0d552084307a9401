//! A small client of the reconciler's API. Every call is bounded in time and size.

use std::io;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Body, Method, Request, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::CliError;
use crate::outgoing::{self, PlainClient};
use crate::view::{Problem, root_cause};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time for a whole answer; slightly longer than the API's own timeout.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest answer: 30,000 pods of 1 KiB twice over.
const ANSWER_MAX_BYTES: usize = 64 * 1024 * 1024;

pub(super) struct Client {
    server: Url,
    http: PlainClient,
}

impl Client {
    /// Creates a client of the API at `server`; `host:port` alone means HTTP.
    pub(super) fn new(server: &str) -> Result<Self, CliError> {
        let wrong = |why: &str| {
            CliError::Usage(format!("--server {server}: {why}; write it as {}", crate::args::DEFAULT_SERVER))
        };
        let url: Url = outgoing::with_scheme(server).parse().map_err(|_| wrong("not an address"))?;
        if url.scheme() != "http" || url.host_str().is_none_or(str::is_empty) {
            return Err(wrong("only http is supported"));
        }
        Ok(Self { server: url, http: outgoing::to_reconciler(CONNECT_TIMEOUT) })
    }

    /// The address, without a trailing slash.
    pub(super) fn server(&self) -> &str {
        self.server.as_str().trim_end_matches('/')
    }

    /// `GET /v1/<path>`, decoded.
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<T, CliError> {
        self.send_and_decode(Request::new(Method::GET, self.url(path, query))).await
    }

    /// `POST /v1/<path>` without a body, decoded.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<T, CliError> {
        let mut request = Request::new(Method::POST, self.url(path, query));
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.send_and_decode(request).await
    }

    /// `POST /v1/<path>` with a body, decoded.
    pub(super) async fn post_json<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &B,
    ) -> Result<T, CliError> {
        let unwritable =
            |error: serde_json::Error| CliError::Usage(format!("cannot write the request: {error}"));
        let mut request = Request::new(Method::POST, self.url(path, &[]));
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        *request.body_mut() = Some(serde_json::to_vec(body).map_err(unwritable)?.into());
        self.send_and_decode(request).await
    }

    /// `GET /v1/<path>` with a streamed body.
    pub(super) async fn stream(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Response, CliError> {
        let request = Request::new(Method::GET, self.url(path, query));
        tokio::time::timeout(ANSWER_TIMEOUT, self.send(request))
            .await
            .unwrap_or_else(|_| Err(self.timeout_error()))
    }

    pub(super) fn unreachable(&self, why: impl Into<String>) -> CliError {
        CliError::Reach { server: self.server().to_owned(), why: why.into() }
    }

    fn timeout_error(&self) -> CliError {
        self.unreachable(format!("no answer within {}s", ANSWER_TIMEOUT.as_secs()))
    }

    fn url(&self, path: &[&str], query: &[(&str, &str)]) -> Url {
        let mut url = self.server.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("v1").extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    async fn send(&self, request: Request) -> Result<Response, CliError> {
        let url = request.url().to_string();
        let request =
            request.try_into().map_err(|error: reqwest::Error| self.unreachable(root_cause(&error)))?;
        let answer = self.http.request(request).await.map_err(|error| {
            let is_timeout = |io: &io::Error| io.kind() == io::ErrorKind::TimedOut;
            match schema::control::root_cause(&error).downcast_ref().is_some_and(is_timeout) {
                true => self.unreachable("timed out connecting"),
                false => self.unreachable(root_cause(&error)),
            }
        })?;
        let answer = Response::from(answer.map(Body::wrap));
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let text = read_all(answer).await.unwrap_or_default();
        let problem = serde_json::from_slice::<Problem>(&text)
            .map_err(|_| CliError::ReadAnswer { url, why: format!("its status is {status}") })?;
        Err(CliError::Refused { status: status.as_u16(), error: problem.error, help: problem.help })
    }

    async fn send_and_decode<T: DeserializeOwned>(&self, request: Request) -> Result<T, CliError> {
        let url = request.url().to_string();
        let read = async {
            let answer = self.send(request).await?;
            let unreadable = |why: String| CliError::ReadAnswer { url, why };
            match read_all(answer).await {
                Ok(text) => serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string())),
                Err(why) => Err(unreadable(why)),
            }
        };
        tokio::time::timeout(ANSWER_TIMEOUT, read).await.unwrap_or_else(|_| Err(self.timeout_error()))
    }
}

async fn read_all(answer: Response) -> Result<Vec<u8>, String> {
    let read = outgoing::body(answer, ANSWER_MAX_BYTES).await.map_err(|error| root_cause(&error))?;
    read.ok_or_else(|| format!("it is larger than {ANSWER_MAX_BYTES} bytes"))
}
