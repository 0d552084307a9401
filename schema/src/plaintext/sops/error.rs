//! Errors of SOPS files.

/// Error that makes a SOPS file unusable. No error holds any of its values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SopsError {
    /// The file is not YAML, or not what a secret may be.
    #[error("{0}")]
    Syntax(String),
    /// The file was not encrypted by SOPS.
    #[error("has no `sops.{0}`, so SOPS did not encrypt it: 'sops encrypt -i' does")]
    NotEncrypted(&'static str),
    /// No recipient is an age key, so nobody here can decrypt the file.
    #[error("has no age recipient; 'sops rotate -i --add-age age1…' adds one")]
    NoAge,
    /// The names in the file are not covered by the MAC.
    #[error("has a MAC over its encrypted values alone; encrypt it without mac_only_encrypted")]
    PartialMac,
    /// A value can't become a text under a key.
    #[error("`{0}` is not text: write each value as a text at the top level of the file")]
    Nested(String),
    /// A value is readable by every reader of the repository.
    #[error("`{0}` is not encrypted: take it out of the file, or out of the rule that leaves it in clear")]
    Clear(String),
    /// Without a header in it, the file could be a copy from anywhere.
    #[error("has no encrypted `{0}` at its top level, which says for which pods it is; 'sops edit' adds it")]
    Unbound(&'static str),
    /// The key, or the content it decrypts, was changed.
    #[error("`{0}` can't be decrypted: it was changed after it was encrypted, or moved")]
    Value(String),
    /// The file was changed after it was encrypted.
    #[error("has a MAC that does not fit its values: it was changed by something other than SOPS")]
    Mac,
}
