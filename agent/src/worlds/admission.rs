//! Reconcilers that let this machine join, renew its certificate and leave, and tell it the time.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use reqwest::{StatusCode, Url};
use schema::control::error_chain;
use schema::trust::{
    Credentials, Expected, HandshakeError, JoinAnswer, JoinRequest, Protocol, RenewRequest, Role, connect,
    connect_anonymous, connect_pinned,
};
use schema::violation::{shortened, visible};
use serde::Serialize;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::http::outgoing::{DaemonError, WholeResponse, exchange};

/// Longest time for a connection, a request and its response. Admission writes to etcd a few times.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// Most characters of a reconciler's reason that are shown.
const REASON_MAX_CHARS: usize = 400;

/// Failure to be admitted by a reconciler.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// Not a reconciler's URL.
    #[error("give a URL such as https://10.0.0.1:7070")]
    Url,
    /// No connection.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// The server is not the reconciler that was meant, or a clock is wrong.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// No response.
    #[error(transparent)]
    Exchange(#[from] DaemonError),
    /// No response in time.
    #[error("no answer within {0:?}")]
    Silence(Duration),
    /// The reconciler's refusal, in its words.
    #[error("{why}")]
    Refused { status: StatusCode, why: String },
    /// The response is not what it should be.
    #[error("its answer is not understood: {0}")]
    Answer(String),
}

/// Reconcilers that admit this machine.
#[async_trait]
pub trait Admission: Send + Sync {
    /// Joins by a token, at the reconciler of the pinned authority.
    async fn join(&self, url: &str, pin: &str, request: &JoinRequest) -> Result<JoinAnswer, AdmissionError>;

    /// Renews the own certificate, which may have ended.
    async fn renew(
        &self,
        url: &str,
        own: &Credentials,
        request: &RenewRequest,
    ) -> Result<JoinAnswer, AdmissionError>;

    /// Leaves the cluster for good, with the own certificate. Refused with 409 while the own heartbeat is there.
    async fn leave(&self, url: &str, own: &Credentials) -> Result<(), AdmissionError>;
}

/// Effect of a refusal on the reconcilers that have not been asked yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnRefusal {
    /// They would refuse, too.
    Stop,
    /// They may know better.
    GoOn,
}

/// Failure of all reconcilers that were asked.
#[derive(Debug, Default, thiserror::Error)]
#[error("{}", .failures.join("; "))]
pub struct AllFailed {
    /// URLs and reasons.
    failures: Vec<String>,
    /// The first refusal of a request that was understood.
    pub refusal: Option<Refusal>,
}

/// A reconciler's refusal.
#[derive(Debug)]
pub struct Refusal {
    pub url: String,
    pub status: StatusCode,
    pub why: String,
}

/// Asks reconcilers one after the other. Returns the URL and the answer of the first that has one.
///
/// # Errors
/// None has, or one refuses and the others would, too.
pub async fn ask_in_turn<'a, T, F>(
    urls: &'a [String],
    on_refusal: OnRefusal,
    ask: impl Fn(&'a str) -> F,
) -> Result<(&'a str, T), AllFailed>
where
    F: Future<Output = Result<T, AdmissionError>>,
{
    let mut failed = AllFailed::default();
    for url in urls {
        let error = match ask(url.as_str()).await {
            Ok(answer) => return Ok((url.as_str(), answer)),
            Err(error) => error,
        };
        failed.failures.push(format!("{url}: {}", error.explained(Timestamp::now())));
        if let AdmissionError::Refused { status, why } = error
            && status.is_client_error()
        {
            failed.refusal.get_or_insert(Refusal { url: url.clone(), status, why });
            if on_refusal == OnRefusal::Stop {
                break;
            }
        }
    }
    Err(failed)
}

/// Admission over the network.
pub struct RealAdmission;

#[async_trait]
impl Admission for RealAdmission {
    async fn join(&self, url: &str, pin: &str, request: &JoinRequest) -> Result<JoinAnswer, AdmissionError> {
        let url = url_of(url, "/v1/join")?;
        let json = json(request)?;
        let response = within(async {
            let stream = connect_pinned(dial(&url).await?, pin).await?;
            Ok(exchange(stream, &url, Some(json)).await?)
        });
        answer_of(&response.await?)
    }

    async fn renew(
        &self,
        url: &str,
        own: &Credentials,
        request: &RenewRequest,
    ) -> Result<JoinAnswer, AdmissionError> {
        answer_of(&ask(url, "/v1/renew", own, Some(json(request)?)).await?)
    }

    async fn leave(&self, url: &str, own: &Credentials) -> Result<(), AdmissionError> {
        let url = url_of(url, "/v1/leave")?;
        let expected = Expected::Role(Role::Reconciler);
        let response = within(async {
            let stream = connect(dial(&url).await?, own, &expected, Protocol::Http1).await?;
            Ok(exchange(stream, &url, Some(b"{}".to_vec())).await?)
        });
        check_accepted(&response.await?)
    }
}

/// Returns the time on a reconciler's clock. Needs no valid certificate of one's own.
///
/// # Errors
/// [`AdmissionError`]
pub async fn clock(url: &str, own: &Credentials) -> Result<Timestamp, AdmissionError> {
    // Every response has its date, also a refusal.
    let response = ask(url, "/v1/healthz", own, None).await?;
    let date = response.headers.get("date").and_then(|date| date.to_str().ok());
    let date = date.and_then(|date| DateTimeParser::new().parse_timestamp(date).ok());
    date.ok_or_else(|| AdmissionError::Answer("it has no date".to_owned()))
}

/// Sends a request to a reconciler of the own cluster without showing a certificate.
async fn ask(
    url: &str,
    path: &str,
    own: &Credentials,
    json: Option<Vec<u8>>,
) -> Result<WholeResponse, AdmissionError> {
    let url = url_of(url, path)?;
    let expected = Expected::Role(Role::Reconciler);
    within(async {
        let stream = connect_anonymous(dial(&url).await?, own, &expected).await?;
        Ok(exchange(stream, &url, json).await?)
    })
    .await
}

async fn within<T>(work: impl Future<Output = Result<T, AdmissionError>>) -> Result<T, AdmissionError> {
    timeout(ANSWER_MAX, work).await.unwrap_or(Err(AdmissionError::Silence(ANSWER_MAX)))
}

fn url_of(url: &str, path: &str) -> Result<Url, AdmissionError> {
    let mut url: Url = url.parse().map_err(|_| AdmissionError::Url)?;
    url.set_path(path);
    match url.scheme() == "https" && url.host_str().is_some() {
        true => Ok(url),
        false => Err(AdmissionError::Url),
    }
}

async fn dial(url: &Url) -> Result<TcpStream, AdmissionError> {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let port = url.port_or_known_default().unwrap_or_default();
    TcpStream::connect((host, port)).await.map_err(AdmissionError::Connect)
}

fn json(request: &impl Serialize) -> Result<Vec<u8>, AdmissionError> {
    serde_json::to_vec(request).map_err(|error| AdmissionError::Answer(error.to_string()))
}

/// Reads the response to a request to join or to renew.
fn answer_of(response: &WholeResponse) -> Result<JoinAnswer, AdmissionError> {
    check_accepted(response)?;
    serde_json::from_slice(&response.body).map_err(|error| AdmissionError::Answer(error.to_string()))
}

/// Fails with the reconciler's words unless it did what it was asked for.
fn check_accepted(response: &WholeResponse) -> Result<(), AdmissionError> {
    if response.status.is_success() {
        return Ok(());
    }
    let body: Option<serde_json::Value> = serde_json::from_slice(&response.body).ok();
    let part = |name: &str| body.as_ref().and_then(|body| body.get(name)?.as_str()).filter(|s| !s.is_empty());
    let parts: Vec<&str> = ["error", "help"].into_iter().filter_map(part).collect();
    let why = match parts.is_empty() {
        true => format!("it answered {}", response.status),
        false => shortened(visible(&parts.join("; ")).into_owned(), REASON_MAX_CHARS),
    };
    Err(AdmissionError::Refused { status: response.status, why })
}

impl AdmissionError {
    /// Returns the reason as one line; if a clock is wrong, with the time on this machine's.
    pub fn explained(&self, now: Timestamp) -> String {
        let why = error_chain(self);
        // In OpenSSL's words.
        let is_of_clocks = why.contains("not yet valid") || why.contains("has expired");
        match (self, is_of_clocks) {
            (Self::Handshake(_), true) => {
                let now = now.round(jiff::Unit::Second).unwrap_or(now);
                format!("{why}; compare the clocks: on this machine it is {now}")
            }
            _ => why,
        }
    }
}

/// Scripted admission.
#[cfg(any(test, feature = "fakes"))]
#[derive(Default)]
pub struct FakeAdmission {
    /// Authority that signs; without one every request is refused.
    pub authority: std::sync::Mutex<Option<schema::trust::Authority>>,
    /// URLs asked.
    pub asked: std::sync::Mutex<Vec<String>>,
    /// Addresses in the answers.
    pub addresses: std::sync::Mutex<crate::cluster::ClusterAddresses>,
    /// Refusals, the next one first; requests after them are accepted.
    pub refusals: std::sync::Mutex<std::collections::VecDeque<StatusCode>>,
}

#[cfg(any(test, feature = "fakes"))]
impl FakeAdmission {
    fn refuse_or_accept(&self, url: &str) -> Result<(), AdmissionError> {
        use schema::control::lock;
        lock(&self.asked).push(url.to_owned());
        match lock(&self.refusals).pop_front() {
            Some(status) => Err(AdmissionError::Refused { status, why: format!("it answered {status}") }),
            None => Ok(()),
        }
    }

    fn answer(&self, url: &str, identity: &str, request: &str) -> Result<JoinAnswer, AdmissionError> {
        use schema::control::lock;
        use schema::trust::{LeafRequest, PublicKey, TrustError};
        self.refuse_or_accept(url)?;
        let authority = lock(&self.authority).clone().ok_or_else(|| AdmissionError::Refused {
            status: StatusCode::UNAUTHORIZED,
            why: "this token admits nobody".to_owned(),
        })?;
        let signed = || -> Result<JoinAnswer, TrustError> {
            let no_name = |error: schema::trust::IdentityError| TrustError::Content(error.to_string());
            let leaf = LeafRequest {
                identity: &identity.parse().map_err(no_name)?,
                key: &PublicKey::of_signing_request(request)?,
                addresses: &[],
                lifetime: jiff::SignedDuration::from_hours(24),
            };
            let addresses = lock(&self.addresses).clone();
            Ok(JoinAnswer {
                certificate: authority.sign(&leaf, Timestamp::now())?.to_pem()?,
                authorities: authority.certificate().to_pem()?,
                etcd: addresses.etcd,
                reconcilers: addresses.reconcilers,
                sealed_authority: None,
            })
        };
        signed().map_err(|error| AdmissionError::Answer(error.to_string()))
    }
}

#[cfg(any(test, feature = "fakes"))]
#[async_trait]
impl Admission for FakeAdmission {
    async fn join(&self, url: &str, _: &str, request: &JoinRequest) -> Result<JoinAnswer, AdmissionError> {
        self.answer(url, &request.identity, &request.signing_request)
    }

    async fn renew(
        &self,
        url: &str,
        own: &Credentials,
        request: &RenewRequest,
    ) -> Result<JoinAnswer, AdmissionError> {
        self.answer(url, &own.identity().to_string(), &request.signing_request)
    }

    async fn leave(&self, url: &str, _: &Credentials) -> Result<(), AdmissionError> {
        self.refuse_or_accept(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: StatusCode, body: &str) -> String {
        let response = WholeResponse { status, headers: Default::default(), body: body.into() };
        answer_of(&response).unwrap_err().to_string()
    }

    #[test]
    fn a_refusal_is_shown_in_the_reconcilers_words_and_on_one_line() {
        let unauthorized = StatusCode::UNAUTHORIZED;
        let body = r#"{"error": "this token was used already", "help": "make\nanother"}"#;
        assert_eq!(refused(unauthorized, body), "this token was used already; make\\nanother");
        assert_eq!(refused(unauthorized, "<html>"), "it answered 401 Unauthorized");
        assert!(refused(StatusCode::OK, "{}").starts_with("its answer is not understood"));
        let long = format!(r#"{{"error": "{}"}}"#, "x".repeat(10_000));
        assert!(refused(unauthorized, &long).len() < 1_000);
    }

    #[tokio::test]
    async fn the_first_answer_counts_and_each_failure_is_named() {
        // The second one refuses.
        async fn ask(url: &str) -> Result<u16, AdmissionError> {
            let status = match url {
                "https://r:1" => StatusCode::SERVICE_UNAVAILABLE,
                "https://r:2" => StatusCode::FORBIDDEN,
                _ => return Ok(3),
            };
            Err(AdmissionError::Refused { status, why: format!("it answered {}", status.as_u16()) })
        }
        let urls = ["https://r:1", "https://r:2", "https://r:3"].map(str::to_owned);
        assert_eq!(ask_in_turn(&urls, OnRefusal::GoOn, ask).await.unwrap(), ("https://r:3", 3));
        for (asked, on_refusal) in [(&urls[..], OnRefusal::Stop), (&urls[..2], OnRefusal::GoOn)] {
            let failed = ask_in_turn(asked, on_refusal, ask).await.unwrap_err();
            assert_eq!(failed.to_string(), "https://r:1: it answered 503; https://r:2: it answered 403");
            let Some(Refusal { url, status: StatusCode::FORBIDDEN, .. }) = failed.refusal else {
                panic!("none")
            };
            assert_eq!(url, "https://r:2");
        }
        assert!(ask_in_turn(&urls[..1], OnRefusal::Stop, ask).await.unwrap_err().refusal.is_none());
    }

    #[test]
    fn an_authority_that_begins_later_is_a_matter_of_clocks() {
        let at = |why: &str| {
            let error = AdmissionError::from(HandshakeError::Handshake(why.to_owned()));
            error.explained(Timestamp::UNIX_EPOCH)
        };
        assert_eq!(
            at("certificate is not yet valid"),
            "no TLS connection: certificate is not yet valid; compare the clocks: on this machine it is 1970-01-01T00:00:00Z"
        );
        assert!(!at("the server does not have the authority").contains("clocks"));
    }

    // A server that is no reconciler, or has another authority, learns nothing of the token.
    #[tokio::test]
    async fn only_a_reconciler_of_the_pinned_authority_gets_the_token() {
        use schema::testing::{authority, enroll};
        use schema::trust::{TrustDir, accept};
        use tokio::io::AsyncReadExt as _;

        let (own, other) = (authority(), authority());
        let pin = own.certificate().digest().unwrap();
        let request = JoinRequest {
            token: "ab".to_owned(),
            secret: "secret".to_owned(),
            identity: "node-n1".to_owned(),
            signing_request: String::new(),
            recipient: None,
            addresses: Vec::new(),
        };
        for (signer, identity, gets_it) in
            [(&own, "reconciler-r1", true), (&own, "node-n2", false), (&other, "reconciler-r1", false)]
        {
            let root = tempfile::tempdir().unwrap();
            let dir = TrustDir::new(root.path().join("pki"));
            enroll(&dir, signer, identity, (Timestamp::now(), jiff::SignedDuration::from_hours(1)));
            let server = Credentials::load(&dir).unwrap();
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("https://{}", listener.local_addr().unwrap());
            let serving = async {
                let (stream, _) = listener.accept().await.unwrap();
                let mut got = Vec::new();
                if let Ok((mut tls, _)) = accept(stream, &server).await {
                    let mut piece = [0; 4096];
                    let read = tls.read(&mut piece).await.unwrap_or_default();
                    got.extend_from_slice(&piece[..read]);
                }
                String::from_utf8_lossy(&got).into_owned()
            };
            let (asked, got) = tokio::join!(RealAdmission.join(&url, &pin, &request), serving);
            assert!(asked.is_err());
            assert_eq!(got.contains("POST /v1/join HTTP/1.1"), gets_it, "{identity}: {got}");
        }
    }
}
