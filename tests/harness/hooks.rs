//! Webhooks as a Git server sends them: reconcilers that accept them, requests signed by openssl (not
//! by our own code), and senders of much too large bodies.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::thread;

use anyhow::{Context, Error, Result};
use serde_json::{Value, json};

use crate::cluster::{Cluster, ClusterOptions};
use crate::http::http_post_body;

const SECRET: &str = "an-e2e-webhook-secret-0123456789";
/// Number of concurrent large requests.
pub const LARGE: usize = 100;
const LARGE_BYTES: usize = 50 << 20;

/// Webhook address of reconciler `index`.
fn hooks_at(cluster: &Cluster, index: u16) -> String {
    format!("127.0.0.1:{}", cluster.slot().port(10 + index))
}

/// Lets reconciler `index` accept webhooks from its next start on.
pub fn accept_hooks(cluster: &mut Cluster, index: u16) -> Result<()> {
    let secret = cluster.dir("webhook-secret");
    std::fs::write(&secret, SECRET)?;
    let mut command = cluster.serve_command(index);
    command.extend(["--webhook-listen".to_owned(), hooks_at(cluster, index)]);
    command.extend(["--webhook-secret-file".to_owned(), secret.to_string_lossy().into_owned()]);
    cluster.reconcilers[usize::from(index)].set_command(command);
    Ok(())
}

/// A cluster whose reconcilers accept webhooks and poll once an hour. Its nodes are not started.
pub fn with_hooks(reconcilers: u16) -> Result<Cluster> {
    let options = ClusterOptions { poll: "1h", reconcilers, ..ClusterOptions::default() };
    let mut cluster = Cluster::prepare(options)?;
    cluster.start_etcd()?;
    for index in 0..reconcilers {
        accept_hooks(&mut cluster, index)?;
        let at = usize::from(index);
        cluster.reconcilers[at].start()?;
        cluster.wait_reconciler(at)?;
        if index == 0 {
            // The very first run is over: from here on only hooks trigger a run.
            cluster.source_where("the first look is over", |source| source.observed_commit.is_some())?;
        }
    }
    Ok(cluster)
}

/// A push event of `main`, with its signature.
#[derive(Debug)]
pub struct SignedHook {
    id: String,
    body: String,
    signature: String,
}

/// Request that GitHub would send for a push of `commit`.
pub fn signed(cluster: &Cluster, id: &str, commit: &str) -> Result<SignedHook> {
    let body = json!({"ref": "refs/heads/main", "after": commit, "repository": {"full_name": "lab/cluster"}});
    let body = body.to_string();
    let file = cluster.dir("hook.json");
    std::fs::write(&file, &body)?;
    let made =
        Command::new("openssl").args(["dgst", "-sha256", "-hmac", SECRET, "-r"]).arg(&file).output()?;
    let made = String::from_utf8(made.stdout)?;
    let digest = made.split_whitespace().next().context("openssl says nothing")?;
    Ok(SignedHook { id: id.to_owned(), body, signature: format!("sha256={digest}") })
}

impl SignedHook {
    /// Sends it to reconciler `index`; returns status code and answer.
    pub fn send(&self, cluster: &Cluster, index: u16) -> Result<(u16, Value)> {
        let headers = [
            ("X-Hub-Signature-256", self.signature.as_str()),
            ("X-GitHub-Event", "push"),
            ("X-GitHub-Delivery", self.id.as_str()),
        ];
        let (code, answer) =
            http_post_body(&hooks_at(cluster, index), "/v1/webhooks/main", &headers, &self.body)?;
        Ok((code, serde_json::from_str(&answer)?))
    }
}

/// Signs and sends the hook of `commit` to reconciler `index`.
pub fn hook(cluster: &Cluster, index: u16, id: &str, commit: &str) -> Result<(u16, Value)> {
    signed(cluster, id, commit)?.send(cluster, index)
}

/// Value of a line of `/proc/<pid>/status`, in KiB.
pub fn memory_kib(pid: u32, line: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let found = status.lines().find_map(|text| text.strip_prefix(line)).context("no such line")?;
    Ok(found.trim_start_matches(':').split_whitespace().next().context("no number")?.parse()?)
}

/// Sends as much of a large body without a length as the server accepts; returns the answer, if one comes.
fn send_large(address: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let signature = "0".repeat(64);
    let head = format!(
        "POST /v1/webhooks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\
         X-Hub-Signature-256: sha256={signature}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    let piece = format!("10000\r\n{}\r\n", "x".repeat(1 << 16));
    for _ in 0..LARGE_BYTES >> 16 {
        if stream.write_all(piece.as_bytes()).is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    // Cut off while it still sends, a sender may lose the answer.
    let _ = stream.read_to_end(&mut answer);
    Ok(String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned())
}

/// Runs [`LARGE`] concurrent senders without the secret; returns the first line of each answer.
pub fn send_all_large(cluster: &Cluster) -> Result<Vec<String>> {
    let address = hooks_at(cluster, 0);
    let send = |_| {
        let address = address.clone();
        thread::spawn(move || send_large(&address))
    };
    let senders: Vec<_> = (0..LARGE).map(send).collect();
    senders.into_iter().map(|sender| sender.join().map_err(|_| Error::msg("a sender panicked"))?).collect()
}
