//! What is wrong with a SOPS file.

/// Why such a file can't be used. No error holds any of its values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SopsError {
    /// It is not YAML, or not what a secret may be.
    #[error("{0}")]
    Syntax(String),
    /// SOPS has not encrypted it.
    #[error("has no `sops.{0}`, so SOPS did not encrypt it: 'sops encrypt -i' does")]
    NotEncrypted(&'static str),
    /// Nobody here could decrypt it.
    #[error("has no age recipient; 'sops rotate -i --add-age age1…' adds one")]
    NoAge,
    /// The names in it are not covered.
    #[error("has a MAC over its encrypted values alone; encrypt it without mac_only_encrypted")]
    PartialMac,
    /// A value that can't become a text under a key.
    #[error("`{0}` is not text: write each value as a text at the top level of the file")]
    Nested(String),
    /// A value that every reader of the repository can read.
    #[error("`{0}` is not encrypted: take it out of the file, or out of the rule that leaves it in clear")]
    Clear(String),
    /// It could be a copy from anywhere.
    #[error("has no encrypted `{0}` at its top level, which says for which pods it is; 'sops edit' adds it")]
    Unbound(&'static str),
    /// The key, or what it decrypts, is another.
    #[error("`{0}` can't be decrypted: it was changed after it was encrypted, or moved")]
    Value(String),
    /// It was changed after it was encrypted.
    #[error("has a MAC that does not fit its values: it was changed by something other than SOPS")]
    Mac,
}
