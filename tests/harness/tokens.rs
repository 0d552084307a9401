//! Join tokens as people and programs get them, and the state of the nodes that joined.

use anyhow::{Context, Result, ensure};
use schema::trust::JoinToken;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::http::{http_get, http_post_body};

/// Parts of the command that `minik8s token create` prints.
#[derive(Debug, Clone)]
pub struct PrintedToken {
    /// URLs of the reconcilers, separated by commas.
    pub url: String,
    pub token: JoinToken,
}

impl PrintedToken {
    /// Creates a token; `whom` are flags.
    pub fn create(cluster: &Cluster, whom: &[&str]) -> Result<Self> {
        let said = cluster.cli(&[&["token", "create"], whom].concat())?.ok()?;
        let words: Vec<&str> = said.split_whitespace().collect();
        let url = words.iter().skip_while(|word| **word != "join").nth(1);
        let token = words.iter().find_map(|word| word.strip_prefix("MINIK8S_JOIN_TOKEN="));
        let (url, token) = url.zip(token).with_context(|| format!("no command to join in {said}"))?;
        Ok(Self { url: (*url).to_owned(), token: token.parse()? })
    }
}

/// Token for an identity (`node-web-2`), valid for so many seconds, from the first reconciler's API.
pub fn request_token(cluster: &Cluster, identity: &str, seconds: u32) -> Result<JoinToken> {
    let body = json!({"identity": identity, "ttlSeconds": seconds}).to_string();
    let headers = [("Content-Type", "application/json")];
    let (code, said) = http_post_body(&cluster.api(0), "/v1/tokens", &headers, &body)?;
    ensure!(code == 200, "{code} {said}");
    let said: Value = serde_json::from_str(&said)?;
    Ok(said["token"].as_str().context("no token")?.parse()?)
}

/// Fails unless the first reconciler shows the node as ready.
pub fn node_is_ready(cluster: &Cluster, name: &str) -> Result<()> {
    let (code, said) = http_get(&cluster.api(0), "/v1/nodes")?;
    ensure!(code == 200, "{code} {said}");
    let nodes: Value = serde_json::from_str(&said)?;
    let node = nodes["items"].as_array().into_iter().flatten().find(|node| node["name"] == name);
    let node = node.with_context(|| format!("{name} is not listed"))?;
    ensure!(node["isReady"] == true, "{name} is {}", node["status"]);
    Ok(())
}
