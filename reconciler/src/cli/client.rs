//! A small client of the reconciler's API. Every call is bounded in time and size.

use std::io;
use std::time::Duration;

use hyper::body::Incoming;
use hyper_util::client::legacy;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Body, Method, Request, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::CliError;
use super::server::Server;
use crate::outgoing::{self, CommandClient};
use crate::view::{Problem, root_cause};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time for a whole answer; slightly longer than the API's own timeout.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest answer: 30,000 pods of 1 KiB twice over.
const ANSWER_MAX_BYTES: usize = 64 * 1024 * 1024;

pub(super) struct Client {
    server: Server,
    url: Url,
    http: CommandClient,
}

impl Client {
    /// Creates a client of the API at an address, by default of the server that this user most likely means.
    pub(super) fn new(server: Option<&str>) -> Result<Self, CliError> {
        Self::of(Server::find(server)?)
    }

    /// Creates a client of a server.
    pub(super) fn of(server: Server) -> Result<Self, CliError> {
        Ok(Self { url: server.url()?, http: server.client(CONNECT_TIMEOUT), server })
    }

    /// The address, without a trailing slash.
    pub(super) fn server(&self) -> &Server {
        &self.server
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
        CliError::Reach { server: self.server.to_string(), why: why.into() }
    }

    fn timeout_error(&self) -> CliError {
        self.unreachable(format!("no answer within {}s", ANSWER_TIMEOUT.as_secs()))
    }

    fn url(&self, path: &[&str], query: &[(&str, &str)]) -> Url {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("v1").extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    /// Sends a request as it is, but for its address, and streams the answer. The caller bounds the time.
    pub(super) async fn forward(
        &self,
        mut request: hyper::Request<Body>,
    ) -> Result<hyper::Response<Incoming>, CliError> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let target = format!("{}{path}", self.url.as_str().trim_end_matches('/'));
        let uri = target.parse::<hyper::Uri>();
        *request.uri_mut() = uri.map_err(|error| self.unreachable(format!("{target}: {error}")))?;
        self.http.send(request).await.map_err(|error| self.failure(&error))
    }

    fn failure(&self, error: &legacy::Error) -> CliError {
        let kind = schema::control::root_cause(error).downcast_ref().map(io::Error::kind);
        let why = match kind {
            Some(io::ErrorKind::TimedOut) => "timed out connecting".to_owned(),
            _ => root_cause(error),
        };
        match self.server.lasting_failure(kind, &why) {
            Some(failure) => CliError::NotReached(failure),
            None => self.unreachable(self.server.passing_failure(!error.is_connect(), why)),
        }
    }

    async fn send(&self, request: Request) -> Result<Response, CliError> {
        let url = self.shown(request.url());
        let request =
            request.try_into().map_err(|error: reqwest::Error| self.unreachable(root_cause(&error)))?;
        let answer = self.http.send(request).await.map_err(|error| self.failure(&error))?;
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

    /// URL of a request for messages; behind a socket, the socket and the path.
    fn shown(&self, url: &Url) -> String {
        match &self.server {
            Server::Socket(_) => format!("{}{}", self.server, url.path()),
            Server::Tls { .. } | Server::Plain(_) => url.to_string(),
        }
    }

    async fn send_and_decode<T: DeserializeOwned>(&self, request: Request) -> Result<T, CliError> {
        let url = self.shown(request.url());
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

#[cfg(test)]
mod tests {
    use axum::http::Uri;
    use axum::routing::get;
    use axum::{Json, Router};
    use serde_json::{Value, json};
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_socket_is_queried_like_any_other_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let router = Router::new()
            .route("/v1/pods", get(|uri: Uri| async move { Json(json!({"uri": uri.to_string()})) }))
            .route("/v1/nodes", get(|| async { "no JSON" }));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = Client::new(Some(&format!("unix://{}", path.display()))).unwrap();
        let pods: Value = client.get(&["pods"], &[("namespace", "shop")]).await.unwrap();
        assert_eq!(pods, json!({"uri": "/v1/pods?namespace=shop"}));
        let error = client.get::<Value>(&["nodes"], &[]).await.unwrap_err().to_string();
        assert!(error.contains(&format!("the answer of unix://{}/v1/nodes:", path.display())), "{error}");
    }

    #[tokio::test]
    async fn a_missing_socket_is_an_error_that_may_pass() {
        let client = Client::new(Some("unix:///nonexistent/api.sock")).unwrap();
        let error = client.get::<Value>(&["pods"], &[]).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        let said = error.to_string();
        assert!(said.contains("unix:///nonexistent/api.sock: no such socket"), "{said}");
        assert!(said.contains("minik8s up") && said.contains("minik8s user add"), "{said}");
    }
}
