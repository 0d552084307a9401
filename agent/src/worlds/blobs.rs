//! Content from the reconcilers' `GET /v1/blobs/<digest>`.

use schema::control::{error_chain, lock};
use std::collections::VecDeque;
use std::io::Write as _;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use reqwest::{Method, Request, Url};
use schema::store::SharedStore;
use schema::store::election::{self, LeaderRecord};
use schema::trust::{Identity, Role, TrustReader};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::cluster::ClusterAddresses;
use crate::http::outgoing::{self, DaemonClient, Timeouts};

/// Longest time to connect to a reconciler.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Longest time until an answer begins while another address may have the content.
const ANSWER_MAX: Duration = Duration::from_secs(4);
/// Longest time without a byte.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// Longest time for a whole fetch.
const FETCH_MAX: Duration = Duration::from_secs(300);
const TIMEOUTS: Timeouts = Timeouts { connect: CONNECT_MAX, silence: SILENCE_MAX, whole: Some(FETCH_MAX) };
/// Longest time for etcd to name the leader.
const LEADER_MAX: Duration = Duration::from_secs(2);
/// Maximum bytes read of a reconciler's error.
const ERROR_MAX_BYTES: usize = 4 * 1024;

/// Source of content by digest.
#[async_trait]
pub trait BlobSource: Send + Sync {
    /// Writes the archive with this digest, of `size` bytes, to `to`, unverified. The error names the reconcilers
    /// asked and their reasons.
    async fn fetch(&self, digest: &str, size: u64, to: std::fs::File) -> Result<(), String>;
}

/// Content source backed by the reconcilers.
pub struct Reconcilers {
    client: DaemonClient,
    addresses: watch::Receiver<ClusterAddresses>,
    /// etcd, which knows the leader.
    store: SharedStore,
    answer_max: Duration,
    /// URL of the last successful fetch.
    last_successful: Mutex<Option<String>>,
}

/// Failure to fetch from a reconciler.
struct FetchFailure {
    why: String,
    /// Set if there was no answer: the reconciler may only be slow.
    silent: bool,
}

impl From<String> for FetchFailure {
    fn from(why: String) -> Self {
        Self { why, silent: false }
    }
}

impl Reconcilers {
    /// Creates a source that asks the reconcilers at these addresses and the leader in etcd. No I/O.
    pub fn following(
        addresses: watch::Receiver<ClusterAddresses>,
        trust: TrustReader,
        store: SharedStore,
    ) -> Self {
        Self::with(addresses, Some(trust), store)
    }

    /// Creates a source that asks these reconcilers without TLS. No I/O.
    #[cfg(any(test, feature = "fakes"))]
    pub fn new(reconcilers: Vec<String>, store: SharedStore) -> Self {
        let addresses = ClusterAddresses { reconcilers, ..ClusterAddresses::default() };
        Self::with(watch::channel(addresses).1, None, store)
    }

    fn with(
        addresses: watch::Receiver<ClusterAddresses>,
        trust: Option<TrustReader>,
        store: SharedStore,
    ) -> Self {
        let client = outgoing::to_daemons(TIMEOUTS, trust, Role::Reconciler);
        Self { client, addresses, store, answer_max: ANSWER_MAX, last_successful: Mutex::default() }
    }

    async fn addresses(&self) -> Vec<String> {
        let leader = timeout(LEADER_MAX, election::leader(self.store.as_ref())).await;
        let leader = leader.ok().and_then(Result::ok).flatten();
        let mut all = self.addresses.borrow().reconcilers.clone();
        let leader = leader.and_then(|leader| leader_url(&leader, &all));
        all.extend(leader);
        let gave = lock(&self.last_successful).clone();
        // Stable: the others keep their order.
        all.sort_by_key(|url| Some(url) != gave.as_ref());
        all
    }

    async fn fetch_from(
        &self,
        (url, answer_max): (&str, Duration),
        digest: &str,
        size: u64,
        to: &mut std::fs::File,
    ) -> Result<(), FetchFailure> {
        let url = format!("{}/v1/blobs/{digest}", url.trim_end_matches('/'));
        let url: Url = url.parse().map_err(|error| format!("it is no URL: {error}"))?;
        let answer = timeout(answer_max, self.client.send(Request::new(Method::GET, url))).await;
        let silent = |_| FetchFailure { why: format!("no answer within {answer_max:?}"), silent: true };
        let answer = answer.map_err(silent)?.map_err(|error| error_chain(&error))?;
        let status = answer.status();
        let mut body = answer.bytes_stream();
        if !status.is_success() {
            let mut said = Vec::new();
            while let Some(Ok(chunk)) = body.next().await
                && said.len() < ERROR_MAX_BYTES
            {
                said.extend_from_slice(&chunk);
            }
            let said: Option<serde_json::Value> = serde_json::from_slice(&said).ok();
            let part =
                |name: &str| said.as_ref().and_then(|said| said.get(name)?.as_str()).unwrap_or_default();
            return Err(format!("{status}: {}; {}", part("error"), part("help")).into());
        }
        let mut left = size;
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|error| error_chain(&error))?;
            left = left
                .checked_sub(chunk.len() as u64)
                .ok_or_else(|| "it sent more bytes than the file has".to_owned())?;
            to.write_all(&chunk).map_err(|error| format!("cannot write it to this node's disk: {error}"))?;
        }
        if left == 0 { Ok(()) } else { Err(format!("it ended {left} bytes early").into()) }
    }
}

/// Returns the URL of the leader's API, unless it is among `known`. With TLS only the leader itself may answer there.
fn leader_url(leader: &LeaderRecord, known: &[String]) -> Option<String> {
    let api = leader.api.as_ref().filter(|api| !known.contains(api))?;
    let mut url: Url = api.parse().ok()?;
    if url.scheme() == "https" {
        let identity = Identity::new(Role::Reconciler, &leader.id).ok()?;
        url.set_username(&identity.to_string()).ok()?;
    }
    Some(url.into())
}

#[async_trait]
impl BlobSource for Reconcilers {
    async fn fetch(&self, digest: &str, size: u64, mut to: std::fs::File) -> Result<(), String> {
        use std::io::Seek as _;
        let addresses = self.addresses().await;
        let mut said = Vec::new();
        let mut left: VecDeque<_> = addresses.into_iter().map(|url| (url, self.answer_max)).collect();
        while let Some((url, answer_max)) = left.pop_front() {
            match self.fetch_from((&url, answer_max), digest, size, &mut to).await {
                Ok(()) => {
                    *lock(&self.last_successful) = Some(url);
                    return Ok(());
                }
                // Try again, patiently, after all others.
                Err(failed) if failed.silent && answer_max < SILENCE_MAX => {
                    left.push_back((url, SILENCE_MAX));
                }
                Err(failed) => said.push(format!("{url}: {}", failed.why)),
            }
            let emptied = to.set_len(0).and_then(|()| to.rewind());
            emptied.map_err(|error| format!("cannot write to this node's disk: {error}"))?;
        }
        if said.is_empty() {
            return Err("no reconciler is known: etcd names no leader; give --reconciler its URL".to_owned());
        }
        Err(said.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use schema::store::memory::MemoryStore;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Accepts and counts connections, and answers each with `says`; not at all if empty.
    async fn reconciler(says: &'static str) -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(says.as_bytes()).await;
                open.push(stream);
            }
        });
        (url, asked)
    }

    /// Red without `gave`.
    #[tokio::test]
    async fn one_that_is_silent_is_passed_over_and_who_gave_the_last_is_asked_first() {
        let (silent, silent_asked) = reconciler("").await;
        let (gives, given) =
            reconciler("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi").await;
        let mut source = Reconcilers::new(vec![silent, gives], Arc::new(MemoryStore::new()));
        source.answer_max = Duration::from_secs(1);
        for times in 1..=2 {
            let mut file = tempfile::tempfile().unwrap();
            source.fetch("d", 2, file.try_clone().unwrap()).await.unwrap();
            file.rewind().unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_eq!((text.as_str(), given.load(Ordering::SeqCst)), ("hi", times));
            assert_eq!(silent_asked.load(Ordering::SeqCst), 1);
        }
    }

    #[test]
    fn with_tls_only_the_leader_itself_may_answer_for_it() {
        let leader = |api: &str| LeaderRecord {
            id: "r1".to_owned(),
            since: jiff::Timestamp::UNIX_EPOCH,
            api: Some(api.to_owned()),
        };
        let known = ["https://10.0.0.1:7070".to_owned()];
        for (api, url) in [
            ("https://10.0.0.2:7070", Some("https://reconciler-r1@10.0.0.2:7070/")),
            ("https://10.0.0.1:7070", None),
            ("http://127.0.0.1:7070", Some("http://127.0.0.1:7070/")),
            ("10.0.0.2", None),
        ] {
            assert_eq!(leader_url(&leader(api), &known).as_deref(), url, "{api}");
        }
    }
}
