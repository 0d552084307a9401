//! SOPS files with age recipients, as a plaintext with a header. Pure: the owner of an identity decrypts the data
//! key.
//!
//! In a SOPS file each value is encrypted by itself and the keys are in clear, so the header is among the values:
//! the keys `namespace`, `name` and `source` of the top level. All values must be encrypted: among values in clear,
//! the MAC covers their sequence and no keys, so one could be moved to another key.
//!
//! In a Kubernetes Secret, apiVersion, kind and metadata are usually in clear. The MAC covers their texts, but not their
//! keys, and not where one text ends: `name: db, namespace: shop` could become `name: shop, namespace: db`. So no node
//! reads such a file; a person decrypts it and seals it under the name that they see.
//!
//! The format is that of SOPS 3: AES-256-GCM with a nonce of 32 bytes and the path of keys as additional data, a MAC that
//! is the SHA-512 of all values, encrypted with the time of the last change as additional data.

#[cfg(test)]
mod tests;
mod tree;
use std::collections::BTreeMap;

use aes_gcm::aead::consts::U32;
use aes_gcm::aead::{Aead as _, KeyInit as _, Payload};
use aes_gcm::aes::Aes256;
use aes_gcm::{AesGcm, Nonce};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest as _, Sha512};

use super::{Format, Header, KEYS_MAX};

use tree::Node;
pub use tree::SopsError;

/// Suffixes of SOPS files.
pub const ENDINGS: [&str; 2] = [".sops.yaml", ".sops.json"];
/// True if SOPS encrypted the file, by its name.
pub fn is_sops(path: &str) -> bool {
    ENDINGS.iter().any(|ending| path.ends_with(ending))
}

/// Top-level key of SOPS' metadata.
const METADATA: &str = "sops";
type Cipher = AesGcm<Aes256, U32>;
/// Bytes of a data key, a nonce and a tag, in this order.
const SIZES: [usize; 3] = [32, 32, 16];

/// A document before decryption: its values in order, and SOPS' metadata.
#[derive(Debug)]
struct Encrypted {
    top: Vec<(String, Node)>,
    data_keys: Vec<String>,
    mac: String,
    last_modified: String,
}

impl Encrypted {
    fn parse(text: &str) -> Result<Self, SopsError> {
        let mut top = tree::parse(text)?;
        let metadata = top.iter().position(|(key, _)| key == METADATA);
        let Node::Map(metadata) = metadata.map_or(Node::Null, |at| top.remove(at).1) else {
            return Err(SopsError::NotEncrypted("mac"));
        };
        let text_of = |name: &'static str| match metadata.iter().find(|(key, _)| key == name) {
            Some((_, Node::Text(text))) => Ok(text.clone()),
            _ => Err(SopsError::NotEncrypted(name)),
        };
        let is_partial = metadata.iter().find(|(key, _)| key == "mac_only_encrypted").map(|(_, node)| node);
        if is_partial.is_some_and(|node| !matches!(node, Node::Bool(false) | Node::Null)) {
            return Err(SopsError::PartialMac);
        }
        let data_keys = data_keys(&metadata);
        if data_keys.is_empty() {
            return Err(SopsError::NoAge);
        }
        Ok(Self { top, data_keys, mac: text_of("mac")?, last_modified: text_of("lastmodified")? })
    }

    /// Returns the cipher of a decrypted data key.
    fn cipher(data_key: &[u8]) -> Result<Cipher, SopsError> {
        if data_key.len() != SIZES[0] {
            return Err(SopsError::Value("sops.age".to_owned()));
        }
        Ok(Cipher::new(data_key.into()))
    }

    /// Compares the MAC with the sum of all values.
    fn check(&self, cipher: &Cipher, sum: Sha512) -> Result<(), SopsError> {
        let sum: String = sum.finalize().iter().map(|byte| format!("{byte:02X}")).collect();
        let mac = EncryptedValue::parse(&self.mac).and_then(|mac| mac.decrypt(cipher, &self.last_modified));
        match mac.ok_or_else(|| SopsError::Value("sops.mac".to_owned()))? == sum {
            true => Ok(()),
            false => Err(SopsError::Mac),
        }
    }
}

/// A SOPS file before decryption.
#[derive(Debug)]
pub struct SopsFile {
    values: Vec<(String, String)>,
    document: Encrypted,
}

impl SopsFile {
    /// Parses a file. Its own size bounds the work: no alias is followed.
    pub fn parse(bytes: &[u8]) -> Result<Self, SopsError> {
        let text = str::from_utf8(bytes).map_err(|_| SopsError::Syntax("it is not text".to_owned()))?;
        let mut document = Encrypted::parse(text)?;
        let top = std::mem::take(&mut document.top);
        if top.iter().any(|(key, _)| key == "kind") && top.iter().any(|(key, _)| key == "metadata") {
            return Err(SopsError::Object);
        }
        let mut values = Vec::new();
        for (key, node) in top {
            match node {
                Node::Text(text) if text.is_empty() || EncryptedValue::parse(&text).is_some() => {
                    values.push((key, text));
                }
                Node::Text(_) | Node::Bool(_) => return Err(SopsError::Clear(key)),
                Node::Null => {}
                Node::Map(_) | Node::List(_) => return Err(SopsError::Nested(key)),
            }
        }
        if values.len() > KEYS_MAX {
            return Err(SopsError::Syntax(format!("it has more than {KEYS_MAX} keys")));
        }
        Ok(Self { values, document })
    }

    /// Iterates over the keys of the values.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|(key, _)| key.as_str()).filter(|key| !is_header_field(key))
    }

    /// Returns the data key, encrypted with age once for each recipient.
    pub fn data_keys(&self) -> &[String] {
        &self.document.data_keys
    }

    /// Decrypts to the equivalent of an age file: a header, and a map from keys to texts.
    pub fn plaintext(&self, data_key: &[u8]) -> Result<Vec<u8>, SopsError> {
        let cipher = Encrypted::cipher(data_key)?;
        let (mut sum, mut header) = (Sha512::new(), Header { format: Format::Map, ..Header::default() });
        let mut texts = BTreeMap::new();
        for (key, text) in &self.values {
            // SOPS leaves an empty text unencrypted.
            if text.is_empty() && !is_header_field(key) {
                texts.insert(key.as_str(), String::new());
                continue;
            }
            let encrypted = EncryptedValue::parse(text).ok_or_else(|| SopsError::Clear(key.clone()))?;
            let value = encrypted.text(&cipher, &format!("{key}:"), &mut sum);
            let value = value.ok_or_else(|| SopsError::Value(key.clone()))?;
            match key.as_str() {
                "namespace" => header.namespace = value,
                "name" => header.name = value,
                "source" => header.source = Some(value),
                _ => drop(texts.insert(key.as_str(), value)),
            }
        }
        self.document.check(&cipher, sum)?;
        for (value, field) in [(&header.namespace, "namespace"), (&header.name, "name")] {
            if value.is_empty() {
                return Err(SopsError::Unbound(field));
            }
        }
        let texts = serde_json::to_string(&texts).map_err(|error| SopsError::Syntax(error.to_string()))?;
        Ok(format!("{header}{texts}").into_bytes())
    }
}

/// A Kubernetes Secret that SOPS encrypted, before decryption.
pub struct SopsObject(Encrypted);

impl SopsObject {
    /// Parses a document.
    pub fn parse(text: &str) -> Result<Self, SopsError> {
        let document = Encrypted::parse(text)?;
        for (field, node) in
            document.top.iter().filter(|(field, _)| matches!(field.as_str(), "data" | "stringData"))
        {
            let Node::Map(values) = node else { continue };
            let is_clear = |node: &Node| match node {
                Node::Text(text) => !text.is_empty() && EncryptedValue::parse(text).is_none(),
                Node::Bool(_) => true,
                Node::Null | Node::Map(_) | Node::List(_) => false,
            };
            if let Some((key, _)) = values.iter().find(|(_, node)| is_clear(node)) {
                return Err(SopsError::Clear(format!("{field}.{key}")));
            }
        }
        Ok(Self(document))
    }

    /// Returns the data key, encrypted with age once for each recipient.
    pub fn data_keys(&self) -> &[String] {
        &self.0.data_keys
    }

    /// Decrypts to the same object in clear, as JSON.
    pub fn decrypt(&self, data_key: &[u8]) -> Result<String, SopsError> {
        let cipher = Encrypted::cipher(data_key)?;
        let mut sum = Sha512::new();
        let object = map_in_clear(&self.0.top, "", &cipher, &mut sum)?;
        self.0.check(&cipher, sum)?;
        Ok(object.to_string())
    }
}

fn map_in_clear(
    entries: &[(String, Node)],
    path: &str,
    cipher: &Cipher,
    sum: &mut Sha512,
) -> Result<Value, SopsError> {
    let mut map = serde_json::Map::new();
    for (key, node) in entries {
        map.insert(key.clone(), in_clear(node, &format!("{path}{key}:"), cipher, sum)?);
    }
    Ok(Value::Object(map))
}

/// Decrypts a value at `path`, all of its keys with a colon after each, and adds it to the sum. Values in clear count,
/// too.
fn in_clear(node: &Node, path: &str, cipher: &Cipher, sum: &mut Sha512) -> Result<Value, SopsError> {
    Ok(match node {
        Node::Null => Value::Null,
        Node::Bool(value) => {
            sum.update(if *value { "True" } else { "False" });
            Value::Bool(*value)
        }
        Node::Text(text) => match EncryptedValue::parse(text) {
            Some(encrypted) => {
                let text = encrypted.text(cipher, path, sum);
                Value::from(
                    text.ok_or_else(|| SopsError::Value(path.trim_end_matches(':').replace(':', ".")))?,
                )
            }
            None => {
                sum.update(text);
                Value::from(text.as_str())
            }
        },
        Node::Map(entries) => map_in_clear(entries, path, cipher, sum)?,
        Node::List(items) => Value::Array(
            items.iter().map(|item| in_clear(item, path, cipher, sum)).collect::<Result<_, _>>()?,
        ),
    })
}

fn is_header_field(key: &str) -> bool {
    matches!(key, "namespace" | "name" | "source")
}

/// Returns every `sops.age[].enc`.
fn data_keys(metadata: &[(String, Node)]) -> Vec<String> {
    let Some((_, Node::List(recipients))) = metadata.iter().find(|(key, _)| key == "age") else {
        return Vec::new();
    };
    let of = |recipient: &Node| match recipient {
        Node::Map(fields) => fields.iter().find_map(|(key, value)| match value {
            Node::Text(text) if key == "enc" => Some(text.clone()),
            _ => None,
        }),
        _ => None,
    };
    recipients.iter().filter_map(of).collect()
}

/// Encrypted value: `ENC[AES256_GCM,data:…,iv:…,tag:…,type:str]`.
struct EncryptedValue<'a> {
    data: Vec<u8>,
    iv: Vec<u8>,
    tag: Vec<u8>,
    kind: &'a str,
}

impl<'a> EncryptedValue<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let fields = text.strip_prefix("ENC[AES256_GCM,")?.strip_suffix(']')?;
        let mut fields = fields.split(',');
        let mut next = |name: &str| fields.next()?.strip_prefix(name)?.strip_prefix(':');
        let (data, iv, tag, kind) = (next("data")?, next("iv")?, next("tag")?, next("type")?);
        let bytes = |text: &str| STANDARD.decode(text).ok();
        Some(Self { data: bytes(data)?, iv: bytes(iv)?, tag: bytes(tag)?, kind })
    }

    /// Decrypts a value and adds it to the sum.
    fn text(&self, cipher: &Cipher, path: &str, sum: &mut Sha512) -> Option<String> {
        let mut value = self.decrypt(cipher, path)?;
        sum.update(&value);
        if self.kind == "bool" {
            // SOPS writes booleans as Python does.
            value.make_ascii_lowercase();
        }
        Some(value)
    }

    fn decrypt(&self, cipher: &Cipher, path: &str) -> Option<String> {
        if self.iv.len() != SIZES[1] || self.tag.len() != SIZES[2] {
            return None;
        }
        let msg = [self.data.as_slice(), &self.tag].concat();
        let payload = Payload { msg: &msg, aad: path.as_bytes() };
        let plain = cipher.decrypt(Nonce::from_slice(&self.iv), payload).ok()?;
        String::from_utf8(plain).ok()
    }
}
