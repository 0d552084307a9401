//! Content of an object that is too big for etcd: named values, which travel to nodes by digest as the files of a
//! repository do.

use std::collections::BTreeMap;
use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::archive::{Archive, ArchiveError, Made};
use crate::codec::hex;

/// Most bytes of all values of an object, as Kubernetes has it.
pub const CONTENT_MAX_BYTES: usize = 1024 * 1024;
/// Digits of a value's SHA-256 that are shown.
const SHOWN_DIGITS: usize = 12;

/// The values of an object by key, as its manifest has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values {
    /// What can be a variable of an environment, too.
    pub texts: BTreeMap<String, Vec<u8>>,
    /// What can only be a file.
    pub binaries: BTreeMap<String, Vec<u8>>,
}

impl Values {
    /// Writes their archive: each value is a file of its key's name.
    ///
    /// # Errors
    /// A key can't be the name of a file, or writing failed.
    pub fn archive<W: Write>(&self, writer: W) -> Result<Made<W>, ArchiveError> {
        let all: BTreeMap<_, _> = self.texts.iter().chain(&self.binaries).collect();
        let mut archive = Archive::new(writer);
        for (key, value) in all {
            archive.file(key, false, value.len() as u64, value.as_slice())?;
        }
        archive.finish()
    }
}

/// The bytes of a text in base64, which may have line breaks.
pub fn decoded(text: &str) -> Option<Vec<u8>> {
    let text: String = text.chars().filter(|c| !matches!(c, '\n' | '\r')).collect();
    STANDARD.decode(text).ok()
}

/// What stands for the values in etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Content {
    /// SHA-256 of their archive, 64 hex digits.
    pub digest: String,
    /// Bytes of their archive.
    pub size: u64,
    /// Keys of texts, each with the size and digest of its value, for people.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, String>,
    /// The same of other values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub binary_data: BTreeMap<String, String>,
}

impl Content {
    /// Of these values; none if a key can't be the name of a file.
    pub fn of(values: &Values) -> Option<Self> {
        let Made { digest, size, .. } = values.archive(io::sink()).ok()?;
        let shown = |(key, value): (&String, &Vec<u8>)| {
            let sha = hex(&Sha256::digest(value));
            (key.clone(), format!("{} bytes, sha256 {}", value.len(), &sha[..SHOWN_DIGITS]))
        };
        let shown = |values: &BTreeMap<_, _>| values.iter().map(shown).collect();
        Some(Self { digest, size, data: shown(&values.texts), binary_data: shown(&values.binaries) })
    }

    /// A value has this key.
    pub fn has(&self, key: &str) -> bool {
        self.data.contains_key(key) || self.binary_data.contains_key(key)
    }
}
