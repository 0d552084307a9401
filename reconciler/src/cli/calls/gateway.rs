//! Way of a call to a function: the gateway that the user named, that of this machine, or that of a ready node.
//!
//! Loopback is plain, because a node trusts its own machine; other nodes are called over TLS with a certificate.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Body, Method, Request, Response, Url};
use schema::trust::{Identity, Role, TrustReader, url_of};
use tokio::time::timeout;

use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::cli::server::Server;
use crate::outgoing::{self, CommandClient};
use crate::view::{List, NodeView, root_cause};

/// Default port of a node's gateway.
const GATEWAY_PORT: u16 = 8081;
/// Longest time for a connection to a node.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Most nodes to which a connection is tried.
const NODES_MAX: usize = 3;
/// Largest answer of a function.
const ANSWER_MAX_BYTES: usize = 64 * 1024 * 1024;

/// Call of a function.
pub(super) struct FunctionCall {
    /// `/namespace/name`.
    pub(super) path: String,
    /// JSON object.
    pub(super) body: String,
    pub(super) token: Option<String>,
    /// Longest time for the whole call.
    pub(super) timeout: Duration,
}

/// Answer of a gateway, whole.
pub(super) struct Answer {
    pub(super) status: reqwest::StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
}

/// Call without an answer, and to which URL.
#[derive(Debug)]
pub(super) struct LostCall {
    pub(super) url: String,
    pub(super) kind: LostCallKind,
}

/// Proof, or doubt, that a call did not run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LostCallKind {
    /// No connection to a gateway, and why: it did not run.
    NotRun(String),
    /// No answer in time.
    TimedOut,
    /// The connection was lost, and why.
    Broken(String),
}

type Outcome = Result<Answer, LostCall>;

impl FunctionCall {
    /// Makes the call through a gateway that the user named, or else through the first one that is reached.
    pub(super) async fn send(
        &self,
        gateway: Option<&str>,
        server: Option<&str>,
    ) -> Result<Outcome, CliError> {
        let headers = self.headers()?;
        let Some(gateway) = gateway else {
            return self.through_any(&headers, Server::find(server)?).await;
        };
        let wrong = || {
            CliError::Usage(format!("{gateway} is not an address; write it as http://node:{GATEWAY_PORT}"))
        };
        let mut url: Url = outgoing::with_scheme(gateway).parse().map_err(|_| wrong())?;
        url.set_path(&self.path);
        if !is_named_node(&url) {
            return self.plain(&headers, &url).await;
        }
        let trust = Server::find(server)?.trust().map_err(|error| CliError::NotReached(error.to_string()))?;
        Ok(self.over_tls(&headers, &node_client(trust), &url).await)
    }

    async fn through_any(&self, headers: &HeaderMap, server: Server) -> Result<Outcome, CliError> {
        let mut lost = None;
        // Another instance on this machine has no part in the usual gateway.
        if server.is_usual() {
            let local = SocketAddr::from(([127, 0, 0, 1], GATEWAY_PORT));
            let local = outgoing::url(local, &self.path);
            let url = Url::parse(&local).map_err(|error| CliError::Usage(format!("{local}: {error}")))?;
            match self.plain(headers, &url).await? {
                Err(refused) if matches!(refused.kind, LostCallKind::NotRun(_)) => lost = Some(refused),
                outcome => return Ok(outcome),
            }
        }
        let trust = match (server.trust(), lost) {
            (Ok(trust), _) => trust,
            (Err(error), Some(LostCall { url, kind: LostCallKind::NotRun(why) })) => {
                let why = format!("{why}, and there is no certificate to call other nodes: {error}");
                return Ok(Err(LostCall { url, kind: LostCallKind::NotRun(why) }));
            }
            (Err(error), _) => return Err(CliError::NotReached(error.to_string())),
        };
        let client = Client::of(server)?;
        let List { items } = client.get::<List<NodeView>>(&["nodes"], &[]).await?;
        let http = node_client(trust);
        let mut lost = LostCall {
            url: self.path.clone(),
            kind: LostCallKind::NotRun(format!(
                "no node is ready with a gateway at an address of its own; on this machine give --gateway \
                 http://127.0.0.1:{GATEWAY_PORT}"
            )),
        };
        for url in gateways(&items, &self.path) {
            match self.over_tls(headers, &http, &url).await {
                Err(refused) if matches!(refused.kind, LostCallKind::NotRun(_)) => lost = refused,
                outcome => return Ok(outcome),
            }
        }
        Ok(Err(lost))
    }

    fn headers(&self) -> Result<HeaderMap, CliError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert("x-timings", HeaderValue::from_static("1"));
        if let Some(token) = &self.token {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            let wrong = |_| CliError::Usage("the token has characters that no header can have".to_owned());
            headers.insert(AUTHORIZATION, value.map_err(wrong)?);
        }
        Ok(headers)
    }

    /// Calls a gateway that needs no certificate: one on loopback, a stranger's call, or a proxy.
    async fn plain(&self, headers: &HeaderMap, url: &Url) -> Result<Outcome, CliError> {
        let http = outgoing::to_named_gateway(self.timeout);
        let http = http.map_err(|error| CliError::Usage(root_cause(&error)))?;
        let lost = |error: reqwest::Error| {
            let kind = match root_cause(&error) {
                why if error.is_connect() => LostCallKind::NotRun(why),
                _ if error.is_timeout() => LostCallKind::TimedOut,
                why => LostCallKind::Broken(why),
            };
            LostCall { url: url.to_string(), kind }
        };
        // Of a login in the URL, reqwest makes a header.
        let request = http.post(url.clone()).headers(headers.clone()).body(self.body.clone());
        let answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(lost(error))),
        };
        Ok(read(answer).await.map_err(lost))
    }

    async fn over_tls(&self, headers: &HeaderMap, http: &CommandClient, url: &Url) -> Outcome {
        let lost = |kind| LostCall { url: url.to_string(), kind };
        let mut request = Request::new(Method::POST, url.clone());
        *request.headers_mut() = headers.clone();
        *request.body_mut() = Some(self.body.clone().into());
        let whole = async {
            let request: hyper::Request<Body> = request
                .try_into()
                .map_err(|error: reqwest::Error| LostCallKind::NotRun(root_cause(&error)))?;
            let answer = http.send(request).await.map_err(|error| match error.is_connect() {
                true => LostCallKind::NotRun(root_cause(&error)),
                false => LostCallKind::Broken(root_cause(&error)),
            })?;
            let answer = Response::from(answer.map(Body::wrap));
            read(answer).await.map_err(|error| LostCallKind::Broken(root_cause(&error)))
        };
        let outcome = timeout(self.timeout, whole).await.unwrap_or(Err(LostCallKind::TimedOut));
        outcome.map_err(lost)
    }
}

fn node_client(trust: TrustReader) -> CommandClient {
    CommandClient::over_tcp(Some(trust), Role::Node, CONNECT_TIMEOUT)
}

async fn read(answer: Response) -> reqwest::Result<Answer> {
    let (status, headers) = (answer.status(), answer.headers().clone());
    let text = match outgoing::body(answer, ANSWER_MAX_BYTES).await? {
        Some(body) => String::from_utf8_lossy(&body).into_owned(),
        None => format!("the answer is larger than {ANSWER_MAX_BYTES} bytes"),
    };
    Ok(Answer { status, headers, text })
}

/// True for `https://node-NAME@ADDRESS`: the gateway of that node, which has a certificate of the cluster.
fn is_named_node(url: &Url) -> bool {
    let identity = url.username().parse::<Identity>();
    url.scheme() == "https" && url.password().is_none() && identity.is_ok_and(|one| one.role() == Role::Node)
}

/// URLs of a function at ready nodes that other machines reach, each with the node that must answer.
fn gateways(nodes: &[NodeView], path: &str) -> Vec<Url> {
    let gateway = |node: &NodeView| {
        let url: Url = node.calls.parse().ok()?;
        let host = url.host_str()?.trim_matches(['[', ']']).parse::<IpAddr>().ok()?;
        let address = SocketAddr::new(host, url.port_or_known_default()?);
        let identity = Identity::new(Role::Node, &node.name).ok()?;
        let is_elsewhere = !address.ip().is_loopback() && !address.ip().is_unspecified();
        is_elsewhere.then(|| url_of(&identity, address, path).parse::<Url>().ok()).flatten()
    };
    nodes.iter().filter(|node| node.is_ready).filter_map(gateway).take(NODES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::nodes;
    use crate::view::testing::{at, snapshot};

    #[test]
    fn ready_nodes_are_called_by_name_at_addresses_that_others_reach() {
        let node = nodes(&snapshot(), at(100)).remove(0);
        let with = |calls: &str, is_ready| NodeView { calls: calls.to_owned(), is_ready, ..node.clone() };
        let all = [
            with("https://10.0.0.7:8081", true),
            with("https://[fd00::7]:8081", true),
            with("https://127.0.0.1:8081", true),
            with("https://10.0.0.8:8081", false),
            with("", true),
        ];
        let name = &node.name;
        let urls: Vec<String> = gateways(&all, "/shop/price").iter().map(ToString::to_string).collect();
        assert_eq!(
            urls,
            [
                format!("https://node-{name}@10.0.0.7:8081/shop/price"),
                format!("https://node-{name}@[fd00::7]:8081/shop/price")
            ]
        );
        assert!(gateways(&all, "/a/b").iter().all(is_named_node));
        for other in
            ["https://10.0.0.7:8081", "http://node-a@h:1", "https://ada@h:1", "https://node-a:pw@h:1"]
        {
            assert!(!is_named_node(&other.parse().unwrap()), "{other}");
        }
    }
}
