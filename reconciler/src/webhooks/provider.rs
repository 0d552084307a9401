//! Sender and claimed proof of a request, from its headers alone. Pure, and total over any headers.
//!
//! Only the first of [`SCHEMES`] that is present counts: Forgejo and Gitea also send the headers of their ancestors.

use axum::http::HeaderMap;
use schema::records::Provider;

/// A claim of authenticity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthClaim {
    pub provider: Provider,
    pub proof: Proof,
}

#[derive(Clone, PartialEq, Eq)]
pub enum Proof {
    HmacSha256(Vec<u8>),
    HmacSha512(Vec<u8>),
    /// HMAC-SHA256 of `<id>.<timestamp>.<body>`; one matching signature of several suffices.
    Standard {
        /// `webhook-id`.
        id: String,
        /// `webhook-timestamp`, in seconds since 1970.
        timestamp: i64,
        signatures: Vec<Vec<u8>>,
    },
    Token(Vec<u8>),
}

impl std::fmt::Debug for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Proof::HmacSha256(_) => "HMAC-SHA256",
            Proof::HmacSha512(_) => "HMAC-SHA512",
            Proof::Standard { .. } => "Standard Webhooks",
            Proof::Token(_) => "token",
        })
    }
}

/// Lack of a claim that could be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoClaim {
    #[error("the request is not signed")]
    Missing,
    #[error("the signature is malformed")]
    Malformed,
}

/// Headers that carry a signature, in order of preference, with their providers.
pub const SCHEMES: [(&str, Provider); 8] = [
    ("x-forgejo-signature", Provider::Forgejo),
    ("x-gitea-signature", Provider::Gitea),
    ("x-gogs-signature", Provider::Gogs),
    ("x-hub-signature-256", Provider::GitHub),
    ("webhook-signature", Provider::GitLab),
    ("x-gitlab-token", Provider::GitLab),
    (HUB_SIGNATURE, Provider::Generic),
    ("x-signature", Provider::Generic),
];
/// Bitbucket's signature by SHA-256. GitHub and its descendants send one by SHA-1 under this name, which counts as none.
const HUB_SIGNATURE: &str = "x-hub-signature";

const SHA256_BYTES: usize = 32;
const SHA512_BYTES: usize = 64;
/// Maximum number of signatures of a request; a sender that changes its key sends two.
const SIGNATURES_MAX: usize = 4;
/// Maximum bytes kept of an id or event name.
const NAME_BYTES_MAX: usize = 64;

pub fn claim(headers: &HeaderMap) -> Result<AuthClaim, NoClaim> {
    let is_sha1 = |header: &str| {
        let values = headers.get_all(header).into_iter();
        header == HUB_SIGNATURE && values.into_iter().all(|value| value.as_bytes().starts_with(b"sha1="))
    };
    let is_claim = |(header, _): &(&str, Provider)| headers.contains_key(*header) && !is_sha1(header);
    let (header, provider) = SCHEMES.into_iter().find(is_claim).ok_or(NoClaim::Missing)?;
    let value = only(headers, header).ok_or(NoClaim::Malformed)?;
    let proof = match header {
        "webhook-signature" => standard(headers, value),
        "x-gitlab-token" => Some(Proof::Token(value.to_vec())),
        "x-hub-signature-256" | HUB_SIGNATURE => value.strip_prefix(b"sha256=").and_then(sha256),
        "x-signature" => match value.strip_prefix(b"sha512=") {
            Some(hex) => unhex(hex, SHA512_BYTES).map(Proof::HmacSha512),
            None => value.strip_prefix(b"sha256=").and_then(sha256),
        },
        _ => sha256(value),
    };
    Ok(AuthClaim { provider, proof: proof.ok_or(NoClaim::Malformed)? })
}

/// The value of a header; `None` if the header is missing or occurs twice.
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    values.next().is_none().then(|| first.as_bytes().trim_ascii())
}

fn sha256(hex: &[u8]) -> Option<Proof> {
    unhex(hex, SHA256_BYTES).map(Proof::HmacSha256)
}

fn unhex(text: &[u8], bytes: usize) -> Option<Vec<u8>> {
    (text.len() == 2 * bytes).then(|| hex::decode(text).ok())?
}

fn standard(headers: &HeaderMap, value: &[u8]) -> Option<Proof> {
    use base64::Engine as _;
    let id = std::str::from_utf8(only(headers, "webhook-id")?).ok()?;
    let timestamp = std::str::from_utf8(only(headers, "webhook-timestamp")?).ok()?.parse().ok()?;
    let decode = |text: &[u8]| base64::engine::general_purpose::STANDARD.decode(text).ok();
    let versions = value.split(|byte| *byte == b' ').filter_map(|one| one.strip_prefix(b"v1,"));
    let signatures: Vec<Vec<u8>> = versions.take(SIGNATURES_MAX).filter_map(decode).collect();
    let whole = !id.is_empty() && !signatures.is_empty();
    whole.then(|| Proof::Standard { id: id.to_owned(), timestamp, signatures })
}

/// Metadata in a request's headers. Not signed: it may only name and distinguish deliveries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryHeaders {
    /// The provider's name of the event; `push` by default.
    pub event: String,
    /// The provider's id of the delivery, the same for a redelivery.
    pub id: Option<String>,
}

/// Reads the metadata of a request of this provider.
pub fn envelope(provider: Provider, headers: &HeaderMap) -> DeliveryHeaders {
    let (events, ids): (&[&str], &[&str]) = match provider {
        Provider::GitHub => (&["x-github-event"], &["x-github-delivery"]),
        Provider::Gitea => (&["x-gitea-event"], &["x-gitea-delivery"]),
        Provider::Forgejo => (&["x-forgejo-event"], &["x-forgejo-delivery"]),
        Provider::Gogs => (&["x-gogs-event"], &["x-gogs-delivery"]),
        // The key is the same for a redelivery; the UUID is shared by an event's hooks.
        Provider::GitLab => (&["x-gitlab-event"], &["webhook-id", "idempotency-key", "x-gitlab-event-uuid"]),
        // The second ones are Bitbucket's: of its cloud and of its data center.
        Provider::Generic | Provider::Cli => {
            (&["x-event", "x-event-key"], &["x-delivery-id", "x-request-uuid", "x-request-id"])
        }
    };
    let word = |name: &str| only(headers, name).map(plain).filter(|text| !text.is_empty());
    DeliveryHeaders {
        event: events.iter().find_map(|name| word(name)).unwrap_or_else(|| "push".to_owned()),
        id: ids.iter().find_map(|name| word(name)),
    }
}

/// Letters, digits and `-_. `, cut to fit a key, a table and a log.
fn plain(text: &[u8]) -> String {
    let kept = text.iter().take(NAME_BYTES_MAX).map(|byte| char::from(*byte));
    let fit = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ') { c } else { '_' };
    kept.map(fit).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Push,
    Ping,
    Other,
}

pub fn event_kind(event: &str) -> EventKind {
    match event.to_ascii_lowercase().as_str() {
        // A new tag is a `create` at Gitea, Forgejo and Gogs; GitLab's system hooks include pushes.
        "push" | "create" | "push hook" | "tag push hook" | "system hook" => EventKind::Push,
        // Bitbucket's, with a colon in the header.
        "repo_push" | "repo_refs_changed" => EventKind::Push,
        "ping" | "diagnostics_ping" => EventKind::Ping,
        _ => EventKind::Other,
    }
}
