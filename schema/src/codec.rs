//! JSON encoding of etcd values, and the content hash.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha256};

/// Largest value, in bytes, under one key; larger content travels by digest.
pub const VALUE_MAX_BYTES: usize = 64 * 1024;

/// Error from encoding or decoding a value.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The bytes are not valid JSON for the key.
    #[error("value is not valid JSON for its key: {0}")]
    Decode(#[source] serde_json::Error),
    /// The value has no JSON form.
    #[error("value cannot be written as JSON: {0}")]
    Encode(#[source] serde_json::Error),
    /// The value is larger than [`VALUE_MAX_BYTES`].
    #[error("value of {bytes} bytes is larger than the limit of {VALUE_MAX_BYTES}")]
    TooLarge {
        /// Size of the value.
        bytes: usize,
    },
}

/// Encodes a value as the JSON text stored under a key.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, CodecError> {
    let bytes = serde_json::to_vec(value).map_err(CodecError::Encode)?;
    if bytes.len() > VALUE_MAX_BYTES {
        return Err(CodecError::TooLarge { bytes: bytes.len() });
    }
    Ok(bytes)
}

/// Decodes the JSON found under a key. Unknown fields are ignored, so that daemons of neighboring versions can read
/// each other's values.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    serde_json::from_slice(bytes).map_err(CodecError::Decode)
}

/// Deserializes a list without spare capacity: objects live long, and a list of one item starts with capacity for
/// four.
pub(crate) fn exact<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let mut list = Vec::deserialize(from)?;
    list.shrink_to_fit();
    Ok(list)
}

/// True if serde may omit a field, because it is read as its default.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Default of fields that are 1 when absent.
pub(crate) fn one() -> u32 {
    1
}

/// Default of fields that are 3 when absent.
pub(crate) fn three() -> u32 {
    3
}

/// SHA-256 of the value's JSON, as 64 hex digits. Maps are ordered, so equal values hash equal.
///
/// # Panics
/// If the value has no JSON form, which all types of this crate have.
pub fn content_hash<T: Serialize>(value: &T) -> String {
    // Through `Value`, whose objects are ordered maps: field order of the type does not matter.
    let value = serde_json::to_value(value).expect("types of this crate have a JSON form");
    let text = serde_json::to_vec(&value).expect("what is a JSON value has a text");
    sha256_hex(&text)
}

/// Returns the SHA-256 of these bytes, as 64 hex digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Returns the lower-case hex digits of `bytes`.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}
