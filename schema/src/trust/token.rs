//! Tokens by which a machine joins: bound to a name, valid once.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use openssl::rand::rand_bytes;
use sha2::{Digest as _, Sha256};

use super::{TrustError, failed};

/// Bytes of a secret.
const SECRET_BYTES: usize = 32;
/// Bytes of an id.
const ID_BYTES: usize = 6;

/// A join token, `ID.SECRET.PIN`: the key of its record, its secret, and the digest of the cluster's authority.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// Key of its record, in hex.
    pub id: String,
    /// Secret, known to its holder only.
    pub secret: String,
    /// Digest of the authority ([`Certificate::digest`](super::Certificate::digest)).
    pub pin: String,
}

/// A text that is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is no join token: it has the form ID.SECRET.PIN, as `minik8s token create` prints it")]
pub struct TokenError;

impl JoinToken {
    /// Creates a token.
    ///
    /// # Errors
    /// OpenSSL has no randomness.
    pub fn create(pin: &str) -> Result<Self, TrustError> {
        let (mut id, mut secret) = ([0; ID_BYTES], [0; SECRET_BYTES]);
        rand_bytes(&mut id).and_then(|()| rand_bytes(&mut secret)).map_err(failed("make a token"))?;
        Ok(Self { id: hex::encode(id), secret: URL_SAFE_NO_PAD.encode(secret), pin: pin.to_owned() })
    }

    /// Returns the hash of a secret, as the record has it.
    pub fn hash(secret: &str) -> String {
        hex::encode(Sha256::digest(secret))
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.id, self.secret, self.pin)
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({}.***)", self.id)
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let parts: Vec<&str> = text.trim().split('.').collect();
        let [id, secret, pin] = parts[..] else { return Err(TokenError) };
        let is_hex = |text: &str, bytes: usize| {
            text.len() == 2 * bytes && text.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c))
        };
        match is_hex(id, ID_BYTES) && is_hex(pin, 32) && !secret.is_empty() {
            true => Ok(Self { id: id.to_owned(), secret: secret.to_owned(), pin: pin.to_owned() }),
            false => Err(TokenError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_is_written_and_shows_no_secret() {
        let token = JoinToken::create(&"ab".repeat(32)).unwrap();
        assert_eq!(token.to_string().parse::<JoinToken>().unwrap(), token);
        assert!(!format!("{token:?}").contains(&token.secret));
        for text in ["", "a.b", "zz.secret.ab", &format!("{token}x"), &format!("{}..{}", token.id, token.pin)]
        {
            assert_eq!(text.parse::<JoinToken>(), Err(TokenError), "{text}");
        }
    }
}
