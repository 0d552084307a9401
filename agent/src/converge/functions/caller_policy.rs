//! Callers allowed to call non-public functions: nodes, reconcilers and users by their certificates; without TLS the node
//! itself, and pods by the ranges of addresses in etcd. Packet rules drop what arrives with a pod's address, but neither
//! from a pod of this node nor through the tunnel (`converge/network/render.rs`).

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::header::AUTHORIZATION;
use hyper::{HeaderMap, StatusCode};
use ipnet::Ipv4Net;
use schema::content_refs::ContentRef;
use schema::control::lock;
use schema::kinds::Kind;
use schema::meta::NamespacedName;
use schema::records::{CallToken, Subnet};
use schema::trust::Role;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::time::Instant;

use super::answer::CallError;
use crate::catalog::Catalog;
use crate::files::{PodFiles, secrets};
use crate::http::server::{Caller, Channel};

/// Addresses of pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PodAddresses {
    /// Ranges of this node and of the others.
    ranges: Vec<Ipv4Net>,
    /// Address of this node's bridge, once it has a range.
    pub(super) bridge: Option<Ipv4Addr>,
}

impl PodAddresses {
    pub(super) fn from_catalog(catalog: &Catalog, own: Option<&Subnet>) -> Self {
        let ranges =
            own.map(|subnet| subnet.cidr).into_iter().chain(catalog.peers.values().map(|peer| peer.cidr));
        Self { ranges: ranges.collect(), bridge: own.map(Subnet::bridge) }
    }

    fn has(&self, address: IpAddr) -> bool {
        matches!(address, IpAddr::V4(address) if self.ranges.iter().any(|range| range.contains(&address)))
    }
}

/// Rights of a caller besides public functions and those whose token it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rights {
    /// Permission to call every function.
    pub(super) calls_all: bool,
    /// Permission to send the heartbeats of a call, with the call's token.
    pub(super) sends_heartbeats: bool,
    /// Permission to have the heartbeats of its calls reported: others must not fill the report.
    pub(super) awaits_heartbeats: bool,
}

/// Returns the rights of a caller.
pub(super) fn rights(caller: &Caller, pods: &PodAddresses) -> Rights {
    match &caller.channel {
        Channel::Tls(peer) => {
            let role = peer.as_ref().map(|peer| peer.identity.role());
            let is_daemon = matches!(role, Some(Role::Node | Role::Reconciler));
            let calls_all = is_daemon || role == Some(Role::User);
            Rights { calls_all, sends_heartbeats: is_daemon, awaits_heartbeats: is_daemon }
        }
        Channel::Plain => {
            let is_inside = caller.is_node || pods.has(caller.address.to_canonical());
            Rights { calls_all: is_inside, sends_heartbeats: is_inside, awaits_heartbeats: caller.is_node }
        }
    }
}

// Verification of the function tokens of callers from outside. The secret is decrypted in memory; only a hash of
// the token is kept, until the secret changes.

/// Wait after a token could not be read: there are many callers, but only one reconciler that has the file.
const RETRY: Duration = Duration::from_secs(5);

type Hash = [u8; 32];

#[derive(Clone)]
struct CachedToken {
    of: CallToken,
    token: Result<Hash, Instant>,
}

/// Token hashes, shared by all calls of the node.
#[derive(Clone)]
pub(super) struct Tokens {
    /// `None` if this process does not decrypt.
    files: Option<Arc<PodFiles>>,
    kept: Arc<Mutex<HashMap<NamespacedName, CachedToken>>>,
    /// Serializes reads.
    reads: Arc<tokio::sync::Mutex<()>>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens")
    }
}

impl Tokens {
    pub(super) fn new(files: Option<Arc<PodFiles>>) -> Self {
        Self { files, kept: Arc::default(), reads: Arc::default() }
    }

    /// Rejects callers without the function's token.
    pub(super) async fn check(
        &self,
        id: &NamespacedName,
        wanted: &CallToken,
        headers: &HeaderMap,
    ) -> Result<(), CallError> {
        let Some(shown) = bearer(headers) else {
            let message = format!("outside callers of function {id} must send Authorization: Bearer TOKEN");
            return Err(CallError::new(StatusCode::UNAUTHORIZED, "TokenMissing", message));
        };
        let shown: Hash = Sha256::digest(shown).into();
        let token = self.hash(id, wanted).await.map_err(|_| {
            CallError::retryable(
                "TokenUnreadable",
                "this node can't read the function's token; its log says why",
            )
        })?;
        if bool::from(token.ct_eq(&shown)) {
            return Ok(());
        }
        let message = format!("wrong token for function {id}");
        Err(CallError::new(StatusCode::UNAUTHORIZED, "TokenWrong", message))
    }

    async fn hash(&self, id: &NamespacedName, wanted: &CallToken) -> Result<Hash, Instant> {
        if let Some(known) = self.known(id, wanted) {
            return known;
        }
        let _alone = self.reads.lock().await;
        if let Some(known) = self.known(id, wanted) {
            return known;
        }
        let token = match self.read(id, wanted).await {
            Ok(token) => Ok(Sha256::digest(token.as_bytes()).into()),
            Err(why) => {
                let object = id.of_kind(Kind::Function);
                tracing::warn!(%object, error = %why, "token of a function not read");
                Err(Instant::now())
            }
        };
        // Each change is complete before anything can panic.
        lock(&self.kept).insert(id.clone(), CachedToken { of: wanted.clone(), token });
        token
    }

    /// Returns the cached hash; `None` if it must be read.
    fn known(&self, id: &NamespacedName, wanted: &CallToken) -> Option<Result<Hash, Instant>> {
        let kept = lock(&self.kept).get(id).filter(|kept| kept.of == *wanted).cloned()?;
        match kept.token {
            Err(at) if at.elapsed() >= RETRY => None,
            token => Some(token),
        }
    }

    async fn read(&self, id: &NamespacedName, wanted: &CallToken) -> Result<String, String> {
        let Some(files) = &self.files else {
            return Err("secrets can't be decrypted while no agent runs".to_owned());
        };
        let of = ContentRef::Secret(wanted.secret.clone());
        let values = files.secret_values(&wanted.files, &id.namespace, &wanted.secret).await;
        let values = values.map_err(|error| error.to_string())?;
        let token = secrets::variable(&of, &wanted.key, &values).map_err(|error| error.to_string())?;
        match token.trim() {
            "" => Err(format!("key {} of {of} is empty", wanted.key)),
            token => Ok(token.to_owned()),
        }
    }
}

/// Returns the bearer token (RFC 6750, 2.1); the scheme is case-insensitive.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii()).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hyper::header::HeaderValue;

    use super::*;

    fn shown(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))])
    }

    // Seen red with a comparison of lengths alone.
    #[tokio::test]
    async fn only_the_token_itself_opens() {
        let id = NamespacedName::new("default", "door");
        let wanted = CallToken { secret: "door".to_owned(), key: "token".to_owned(), files: BTreeMap::new() };
        let tokens = Tokens::new(None);
        let says = async |headers: &HeaderMap| {
            let refused = tokens.check(&id, &wanted, headers).await.err();
            refused.map_or(200, |refused| refused.status.as_u16())
        };
        assert_eq!(says(&shown("Bearer sesame")).await, 503, "what can't be read opens to nobody");
        let token = Ok(Sha256::digest(b"sesame").into());
        lock(&tokens.kept).insert(id.clone(), CachedToken { of: wanted.clone(), token });
        assert_eq!(says(&shown("Bearer sesame")).await, 200);
        assert_eq!(says(&shown("bearer  sesame ")).await, 200, "the scheme's case does not count");
        for wrong in ["Bearer sesam", "Bearer sesame1", "Bearer Sesame", "Bearer ", "Basic sesame", "sesame"]
        {
            assert_eq!(says(&shown(wrong)).await, 401, "{wrong}");
        }
        assert_eq!(says(&HeaderMap::new()).await, 401);
        let other = CallToken { key: "other".to_owned(), ..wanted.clone() };
        let refused = tokens.check(&id, &other, &shown("Bearer sesame")).await.err();
        assert_eq!(refused.map(|refused| refused.status.as_u16()), Some(503), "another key is read anew");
    }
}
