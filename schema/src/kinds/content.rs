//! Object content that is too large for etcd: named values, which reach nodes by digest like repository files.

use std::collections::BTreeMap;
use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::archive::{Archive, ArchiveError, FinishedArchive};
use crate::codec::hex;

/// Maximum total size of an object's values in bytes, as in Kubernetes.
pub const CONTENT_MAX_BYTES: usize = 1024 * 1024;
/// Number of SHA-256 digits shown per value.
const SHOWN_DIGITS: usize = 12;

/// Values of an object by key, as written in its manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values {
    /// Values that can be files or environment variables.
    pub texts: BTreeMap<String, Vec<u8>>,
    /// Values that can only be files.
    pub binaries: BTreeMap<String, Vec<u8>>,
}

impl Values {
    /// Writes an archive with one file per value, named after the key.
    ///
    /// # Errors
    /// Fails if a key is not a valid file name, or if writing fails.
    pub fn archive<W: Write>(&self, writer: W) -> Result<FinishedArchive<W>, ArchiveError> {
        let all: BTreeMap<_, _> = self.texts.iter().chain(&self.binaries).collect();
        let mut archive = Archive::new(writer);
        for (key, value) in all {
            archive.file(key, false, value.len() as u64, value.as_slice())?;
        }
        archive.finish()
    }
}

/// Decodes base64 text, which may contain line breaks.
pub fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let text: String = text.chars().filter(|c| !matches!(c, '\n' | '\r')).collect();
    STANDARD.decode(text).ok()
}

/// Summary of the values, which etcd stores in their place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Content {
    /// SHA-256 of the archive, 64 hex digits.
    pub digest: String,
    /// Size of the archive in bytes.
    pub size: u64,
    /// Keys of text values, each with the size and digest of the value, for display.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, String>,
    /// Keys of binary values, with the same information.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub binary_data: BTreeMap<String, String>,
}

impl Content {
    /// Returns the content of `values`; `None` if a key is not a valid file name.
    pub fn from_values(values: &Values) -> Option<Self> {
        let FinishedArchive { digest, size, .. } = values.archive(io::sink()).ok()?;
        let shown = |(key, value): (&String, &Vec<u8>)| {
            let sha = hex(&Sha256::digest(value));
            (key.clone(), format!("{} bytes, sha256 {}", value.len(), &sha[..SHOWN_DIGITS]))
        };
        let shown = |values: &BTreeMap<_, _>| values.iter().map(shown).collect();
        Some(Self { digest, size, data: shown(&values.texts), binary_data: shown(&values.binaries) })
    }

    /// True if a value has this key.
    pub fn has_key(&self, key: &str) -> bool {
        self.data.contains_key(key) || self.binary_data.contains_key(key)
    }
}
