//! Where content comes from: the reconcilers' `GET /v1/blobs/<digest>`.

use std::io::Write as _;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use schema::store::{SharedStore, election};
use tokio::time::timeout;

/// Longest time to connect to a reconciler.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Longest time without a byte.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// Longest time for all of it.
const FETCH_MAX: Duration = Duration::from_secs(300);
/// Longest time until etcd says who leads.
const LEADER_MAX: Duration = Duration::from_secs(2);
/// Most of a reconciler's error that is read.
const ERROR_MAX_BYTES: usize = 4 * 1024;

/// Gives out content by digest.
#[async_trait]
pub trait BlobSource: Send + Sync {
    /// Writes the archive with this digest, of `size` bytes, to `to`. What it wrote is not verified. The
    /// error says who was asked and why it did not come.
    async fn fetch(&self, digest: &str, size: u64, to: std::fs::File) -> Result<(), String>;
}

/// The reconcilers.
pub struct Reconcilers {
    client: reqwest::Client,
    /// As given by hand.
    fixed: Vec<String>,
    /// etcd, which knows who leads.
    store: SharedStore,
}

impl Reconcilers {
    /// Those at `fixed`, and the one that etcd says leads. Asks nobody yet.
    pub fn new(fixed: Vec<String>, store: SharedStore) -> Self {
        let built = reqwest::Client::builder()
            .connect_timeout(CONNECT_MAX)
            .read_timeout(SILENCE_MAX)
            .timeout(FETCH_MAX)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build();
        // Only TLS or a resolver of the system can fail to load, and neither is built in.
        Self { client: built.unwrap_or_default(), fixed, store }
    }

    async fn addresses(&self) -> Vec<String> {
        let leader = timeout(LEADER_MAX, election::leader(self.store.as_ref())).await;
        let leader = leader.ok().and_then(Result::ok).flatten().and_then(|leader| leader.api);
        let mut all = self.fixed.clone();
        all.extend(leader.filter(|url| !self.fixed.contains(url)));
        all
    }

    async fn fetch_from(
        &self,
        url: &str,
        digest: &str,
        size: u64,
        to: &mut std::fs::File,
    ) -> Result<(), String> {
        let answer = self.client.get(format!("{url}/v1/blobs/{digest}")).send().await;
        let answer = answer.map_err(|error| chain(&error))?;
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
            return Err(format!("{status}: {}; {}", part("error"), part("help")));
        }
        let mut left = size;
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|error| chain(&error))?;
            left = left.checked_sub(chunk.len() as u64).ok_or("it sends more than the file has")?;
            to.write_all(&chunk).map_err(|error| format!("cannot write it to this node's disk: {error}"))?;
        }
        if left == 0 { Ok(()) } else { Err(format!("it ended {left} bytes early")) }
    }
}

#[async_trait]
impl BlobSource for Reconcilers {
    async fn fetch(&self, digest: &str, size: u64, mut to: std::fs::File) -> Result<(), String> {
        use std::io::Seek as _;
        let addresses = self.addresses().await;
        let mut said = Vec::new();
        for url in &addresses {
            let url = url.trim_end_matches('/');
            match self.fetch_from(url, digest, size, &mut to).await {
                Ok(()) => return Ok(()),
                Err(why) => said.push(format!("{url}: {why}")),
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

/// An error with all its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
