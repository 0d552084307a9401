//! Verifies that a request was signed by someone who knows the secret. Pure, and total over any bytes.
//!
//! The signature covers the bytes as received, fed piece by piece, so that a body of any size takes the same
//! memory. All comparisons are `Mac::verify_slice`: constant in time.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Sha256, Sha512};

use super::provider::{AuthClaim, Proof};

/// Shortest secret: 16 random bytes can't be guessed.
pub const SECRET_BYTES_MIN: usize = 16;
/// Largest file of secrets; a larger file is not one.
pub const SECRET_FILE_BYTES_MAX: usize = 4 * 1024;
/// Maximum skew of the sender's clock in seconds, as in the Standard Webhooks specification.
pub const CLOCK_SKEW_MAX_S: i64 = 300;

/// The valid secrets: one, or the old and the new one during a change.
#[derive(Clone)]
pub struct Secrets(Vec<Vec<u8>>);

/// Failure to read secrets from the file. Reveals nothing of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error("it is empty")]
    Empty,
    #[error("line {0} has fewer than {SECRET_BYTES_MIN} bytes")]
    Short(usize),
    #[error("it has more than two lines")]
    TooMany,
    #[error("it is larger than {SECRET_FILE_BYTES_MAX} bytes")]
    TooLarge,
}

impl Secrets {
    /// Parses the content of the secret file: one secret per line, two at most.
    pub fn parse(file: &[u8]) -> Result<Self, SecretError> {
        if file.len() > SECRET_FILE_BYTES_MAX {
            return Err(SecretError::TooLarge);
        }
        let lines = file.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let lines: Vec<&[u8]> = lines.filter(|line| !line.is_empty()).collect();
        if lines.is_empty() {
            return Err(SecretError::Empty);
        }
        if lines.len() > 2 {
            return Err(SecretError::TooMany);
        }
        match lines.iter().position(|line| line.len() < SECRET_BYTES_MIN) {
            Some(at) => Err(SecretError::Short(at + 1)),
            None => Ok(Self(lines.into_iter().map(<[u8]>::to_vec).collect())),
        }
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

/// Error of a request whose sender does not know the secret. The reason is not revealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request is not signed with the secret")]
pub struct InvalidSignature;

/// Incremental verifier of a body's signature.
pub struct Verifier(State);

enum State {
    Sha256 { macs: Vec<Hmac<Sha256>>, signatures: Vec<Vec<u8>> },
    Sha512 { macs: Vec<Hmac<Sha512>>, signature: Vec<u8> },
    Proven,
}

impl Verifier {
    /// Begins to verify `claim`. A claim that the headers alone disprove is rejected before the body is read.
    pub fn begin(claim: &AuthClaim, secrets: &Secrets, now: i64) -> Result<Self, InvalidSignature> {
        let sha256 = |keys: Vec<Vec<u8>>, head: &[u8], signatures: Vec<Vec<u8>>| {
            let macs = keys.iter().map(|key| mac::<Hmac<Sha256>>(key).chain_update(head)).collect();
            Self(State::Sha256 { macs, signatures })
        };
        match &claim.proof {
            Proof::HmacSha256(signature) => Ok(sha256(secrets.0.clone(), b"", vec![signature.clone()])),
            Proof::HmacSha512(signature) => {
                let macs = secrets.0.iter().map(|secret| mac::<Hmac<Sha512>>(secret)).collect();
                Ok(Self(State::Sha512 { macs, signature: signature.clone() }))
            }
            Proof::Standard { id, timestamp, signatures } => {
                if now.checked_sub(*timestamp).is_none_or(|age| age.abs() > CLOCK_SKEW_MAX_S) {
                    return Err(InvalidSignature);
                }
                let keys = secrets.0.iter().map(|secret| standard_key(secret)).collect();
                Ok(sha256(keys, format!("{id}.{timestamp}.").as_bytes(), signatures.clone()))
            }
            Proof::Token(token) => {
                is_known(secrets, token).then_some(Self(State::Proven)).ok_or(InvalidSignature)
            }
        }
    }

    pub fn update(&mut self, piece: &[u8]) {
        match &mut self.0 {
            State::Sha256 { macs, .. } => macs.iter_mut().for_each(|mac| mac.update(piece)),
            State::Sha512 { macs, .. } => macs.iter_mut().for_each(|mac| mac.update(piece)),
            State::Proven => {}
        }
    }

    pub fn finish(self) -> Result<(), InvalidSignature> {
        // Compare all, so that the time does not depend on the secret that matches.
        let right = match self.0 {
            State::Proven => true,
            State::Sha512 { macs, signature } => macs.into_iter().fold(false, |right, mac| {
                let same = mac.verify_slice(&signature).is_ok();
                right | same
            }),
            State::Sha256 { macs, signatures } => macs.into_iter().fold(false, |right, mac| {
                signatures.iter().fold(right, |right, signature| {
                    let same = mac.clone().verify_slice(signature).is_ok();
                    right | same
                })
            }),
        };
        if right { Ok(()) } else { Err(InvalidSignature) }
    }
}

fn mac<M: KeyInit + Mac>(key: &[u8]) -> M {
    <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length")
}

/// Compares digests instead of texts, so that neither time nor length reveals how much of a token is right.
fn is_known(secrets: &Secrets, token: &[u8]) -> bool {
    let digest = |text: &[u8]| mac::<Hmac<Sha256>>(b"minik8s webhook token").chain_update(text);
    let given = digest(token).finalize().into_bytes();
    secrets.0.iter().fold(false, |known, secret| {
        let same = digest(secret).verify_slice(&given).is_ok();
        known | same
    })
}

/// Key of a Standard Webhooks secret: base64 after `whsec_`, else the text itself.
fn standard_key(secret: &[u8]) -> Vec<u8> {
    use base64::Engine as _;
    let encoded = secret.strip_prefix(b"whsec_");
    encoded
        .and_then(|encoded| base64::engine::general_purpose::STANDARD.decode(encoded).ok())
        .unwrap_or_else(|| secret.to_vec())
}
