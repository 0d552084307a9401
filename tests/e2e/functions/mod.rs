//! Functions: code in Git, called over HTTP, scaled from zero and back.

use harness::{Change, Cluster, ClusterOptions, Context, NetWorld, Node, Result, Where, ensure};
use schema::trust::TrustDir;
use serde_json::Value;

mod builds;
mod callers;
mod calls;
mod contract;
mod faults;
mod refusals;
mod scaling;
mod sources;
mod transfer;

/// Answer to a call.
#[derive(Debug)]
struct Answer {
    status: u16,
    body: Value,
}

impl Answer {
    /// Error type of the answer.
    fn error(&self) -> &str {
        self.body["error"]["type"].as_str().unwrap_or_default()
    }
}

/// Three nodes that can build Python functions.
fn three_nodes() -> ClusterOptions {
    ClusterOptions { place: Where::Namespaces(3), python: true, ..ClusterOptions::default() }
}

/// A function's manifest, with further lines of its spec.
pub(crate) fn manifest(name: &str, spec: &str) -> Change {
    let text = format!(
        "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {{name: {name}}}\nspec:\n  source: code/{name}\n{spec}"
    );
    Change::write(format!("{name}.yaml"), text)
}

/// An unrelated object, so that removing the function does not remove everything.
fn other_object() -> Change {
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\ndata: {a: b}\n";
    Change::write("other.yaml", text)
}

/// A file of the function's folder.
pub(crate) fn code(name: &str, file: &str, text: &str) -> Change {
    Change::write(format!("code/{name}/{file}"), text)
}

/// Calls from the machine, a peer in the nodes' network that is not a pod.
fn call(node: &Node, name: &str, body: &str) -> Result<Answer> {
    call_with(node, name, body, &[])
}

/// Status and whole answer to a call through a node's address over TLS, from the machine, as somebody.
fn call_as(pki: &TrustDir, node: &Node, name: &str, more: &[&str]) -> Result<(u16, String)> {
    let (certificate, key) = (pki.certificate_file(), pki.key_file());
    let (certificate, key) = (certificate.to_string_lossy(), key.to_string_lossy());
    let url = format!("https://{}:8081/default/{name}", node.address()?);
    // The certificate of a node names no address.
    let words = ["-s", "-i", "-k", "--cert", &certificate, "--key", &key, "-m", "100", "-d", "{}", &url];
    let said = NetWorld::of_machine().run("curl", &[&words[..], more].concat())?;
    let status = said.split_whitespace().nth(1).context("no status")?.parse()?;
    Ok((status, said))
}

fn call_with(node: &Node, name: &str, body: &str, more: &[&str]) -> Result<Answer> {
    let url = format!("http://127.0.0.1:8081/default/{name}");
    let mut args = vec!["-s", "-m", "100", "-w", "\n%{http_code}", "-d", body, &url];
    args.extend(more);
    let text = node.net.run("curl", &args)?;
    let (body, code) = text.rsplit_once('\n').context("curl said nothing")?;
    let body = serde_json::from_str(body).with_context(|| format!("{code}: {body}"))?;
    Ok(Answer { status: code.parse()?, body })
}
