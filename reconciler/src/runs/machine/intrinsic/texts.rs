//! Intrinsic functions on texts.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use openssl::hash::MessageDigest;
use serde_json::Value as Json;

use crate::runs::machine::failure::Refused;
use crate::runs::machine::limits::size;

/// Maximum length of a text to encode, decode or hash, in characters: the language's own limit.
const TEXT_MAX_CHARS: usize = 10_000;

/// Replaces each `{}` of the template by a value, up to `most` bytes. In a template written in the workflow, `\{`
/// is a brace.
pub(super) fn format(
    template: &str,
    has_escapes: bool,
    values: &[&Json],
    most: usize,
) -> Result<Json, Refused> {
    let mut formatted = String::new();
    let mut left = values.iter();
    let mut chars = template.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\\' if has_escapes => formatted.push(chars.next().unwrap_or(char)),
            '{' if chars.peek() == Some(&'}') => {
                chars.next();
                let value = left
                    .next()
                    .ok_or_else(|| "the template has more `{}` than there are values".to_owned())?;
                // The size of a text includes its two quotes, which only the whole result has.
                if formatted.len() + size(value) > most + 2 {
                    return Err(Refused::TooLarge);
                }
                match value {
                    Json::String(text) => formatted.push_str(text),
                    other => {
                        let _ = write!(formatted, "{other}");
                    }
                }
            }
            plain => formatted.push(plain),
        }
    }
    match left.len() {
        0 => Ok(Json::String(formatted)),
        left => Err(format!("the template has {left} `{{}}` fewer than there are values").into()),
    }
}

/// Splits at any of the characters of `at`, without empty parts.
pub(super) fn split(whole: &str, at: &str) -> Json {
    let parts = whole.split(|char| at.contains(char)).filter(|part| !part.is_empty());
    Json::Array(parts.map(Json::from).collect())
}

pub(super) fn encode(plain: &str) -> Result<Json, String> {
    bounded(plain)?;
    Ok(Json::String(STANDARD.encode(plain)))
}

pub(super) fn decode(encoded: &str) -> Result<Json, String> {
    bounded(encoded)?;
    let bytes = STANDARD.decode(encoded).map_err(|error| format!("not Base64: {error}"))?;
    String::from_utf8(bytes).map(Json::String).map_err(|_| "what was encoded is not text in UTF-8".to_owned())
}

/// Returns the hash in hexadecimal; for a value that is not text, the hash of its JSON.
pub(super) fn hash(value: &Json, algorithm: &str) -> Result<Json, String> {
    let digest = match algorithm {
        "MD5" => MessageDigest::md5(),
        "SHA-1" => MessageDigest::sha1(),
        "SHA-256" => MessageDigest::sha256(),
        "SHA-384" => MessageDigest::sha384(),
        "SHA-512" => MessageDigest::sha512(),
        other => return Err(format!("unknown algorithm `{other}`; MD5, SHA-1, SHA-256, SHA-384 or SHA-512")),
    };
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    bounded(&text)?;
    let hash = openssl::hash::hash(digest, text.as_bytes()).map_err(|error| error.to_string())?;
    Ok(Json::String(hex::encode(hash)))
}

/// Returns a version 4 UUID from random bytes.
pub(super) fn uuid(mut bytes: [u8; 16]) -> Json {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = hex::encode(bytes);
    for at in [20, 16, 12, 8] {
        text.insert(at, '-');
    }
    Json::String(text)
}

fn bounded(text: &str) -> Result<(), String> {
    let length = text.chars().count();
    if length <= TEXT_MAX_CHARS {
        return Ok(());
    }
    Err(format!("the text has {length} characters; at most {TEXT_MAX_CHARS} are taken"))
}
