//! Invariants for any request to the webhook endpoint, shared by the fuzz target `webhook` and a plain test
//! (`reconciler/src/webhooks/tests/fuzz_smoke.rs`); both have `crate::webhooks`.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Sha256, Sha512};

use crate::webhooks::payload;
use crate::webhooks::provider::{AuthClaim, Proof, SCHEMES, claim, envelope, event_kind};
use crate::webhooks::verify::{CLOCK_SKEW_MAX_S, Secrets, Verifier};

/// Secrets that every request is checked against.
const SECRETS: [&[u8]; 2] = [b"0123456789abcdef-webhook-secret", b"another-secret-while-it-changes"];
/// Time at which every request arrives.
const NOW: i64 = 1_700_000_000;

/// Splits bytes into headers, up to an empty line, and the body; invalid headers are skipped.
fn request(bytes: &[u8]) -> (HeaderMap, &[u8]) {
    let (mut headers, mut rest) = (HeaderMap::new(), bytes);
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        let line = rest[..end].trim_ascii();
        rest = &rest[(end + 1).min(rest.len())..];
        if line.is_empty() {
            break;
        }
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (name, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let header = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value.trim_ascii()));
        if let (Ok(name), Ok(value)) = header {
            headers.append(name, value);
        }
    }
    (headers, rest)
}

fn secrets() -> Secrets {
    Secrets::parse(&SECRETS.join(&b'\n')).expect("these are secrets")
}

/// True if the request is authentic, with its body arriving in chunks of `piece` bytes.
fn is_authentic(claim: &AuthClaim, body: &[u8], piece: usize) -> bool {
    let Ok(mut verifier) = Verifier::begin(claim, &secrets(), NOW) else { return false };
    body.chunks(piece.max(1)).for_each(|piece| verifier.update(piece));
    verifier.finish().is_ok()
}

/// True if the request is accepted.
#[allow(dead_code)]
pub(crate) fn accepts(bytes: &[u8]) -> bool {
    let (headers, body) = request(bytes);
    claim(&headers).is_ok_and(|claim| is_authentic(&claim, body, usize::MAX))
}

fn sha256(secret: &[u8], body: &[u8]) -> Vec<u8> {
    let mac = Hmac::<Sha256>::new_from_slice(secret).expect("any key will do").chain_update(body);
    mac.finalize().into_bytes().to_vec()
}

fn sha512(secret: &[u8], body: &[u8]) -> Vec<u8> {
    let mac = Hmac::<Sha512>::new_from_slice(secret).expect("any key will do").chain_update(body);
    mac.finalize().into_bytes().to_vec()
}

/// Reference implementation of the authenticity check.
fn should_be(claim: &AuthClaim, body: &[u8]) -> bool {
    SECRETS.iter().any(|secret| match &claim.proof {
        Proof::HmacSha256(signature) => *signature == sha256(secret, body),
        Proof::HmacSha512(signature) => *signature == sha512(secret, body),
        Proof::Token(token) => token == secret,
        Proof::Standard { id, timestamp, signatures } => {
            let age = i128::from(NOW) - i128::from(*timestamp);
            let text = [format!("{id}.{timestamp}.").as_bytes(), body].concat();
            age.abs() <= i128::from(CLOCK_SKEW_MAX_S) && signatures.contains(&sha256(secret, &text))
        }
    })
}

/// Checks for no panic, that exactly the signed requests are authentic, and that the kept part of a request is
/// short and plain.
pub(crate) fn webhook(bytes: &[u8]) {
    let (headers, body) = request(bytes);
    match claim(&headers) {
        Err(_) => {}
        Ok(claim) => {
            let whole = is_authentic(&claim, body, usize::MAX);
            assert_eq!(whole, is_authentic(&claim, body, 3), "pieces matter: {claim:?}");
            assert_eq!(whole, should_be(&claim, body), "{claim:?}");
        }
    }
    signed(body);
    for (_, provider) in SCHEMES {
        let said = envelope(provider, &headers);
        for word in [Some(&said.event), said.id.as_ref()].into_iter().flatten() {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_. ".contains(c);
            assert!(!word.is_empty() && word.len() <= 64 && word.chars().all(plain), "{word:?}");
        }
        let _ = event_kind(&said.event);
    }
    let hint = payload::read(body);
    for text in [&hint.reference, &hint.repository].into_iter().flatten() {
        assert!(!text.is_empty() && text.len() <= 256 && !text.chars().any(char::is_control), "{text:?}");
    }
    assert!(hint.reference.is_none_or(|name| name.starts_with("refs/")));
    let hex = |id: &String| matches!(id.len(), 40 | 64) && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(hint.commit.is_none_or(|id| hex(&id)));
}

/// Checks that the body signed with either secret is authentic, and with one more byte is not.
fn signed(body: &[u8]) {
    let longer = [body, b"x"].concat();
    for secret in SECRETS {
        for (header, _) in
            SCHEMES.iter().filter(|(header, _)| !matches!(*header, "webhook-signature" | "x-gitlab-token"))
        {
            let bare = hex::encode(sha256(secret, body));
            let value = if header.starts_with("x-hub") || *header == "x-signature" {
                format!("sha256={bare}")
            } else {
                bare
            };
            let (headers, _) = request(format!("{header}: {value}").as_bytes());
            let claim = claim(&headers).expect("the header is whole");
            assert!(is_authentic(&claim, body, 7), "{header}");
            assert!(!is_authentic(&claim, &longer, 7), "{header}");
        }
    }
}
