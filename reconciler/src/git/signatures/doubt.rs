//! Input of a signature check, and the reason for rejecting a commit.

use jiff::Timestamp;

/// Reason for rejecting a commit, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Doubt {
    pub(super) why: String,
    pub(super) help: &'static str,
}

impl Doubt {
    pub(super) fn new(why: impl Into<String>, help: &'static str) -> Self {
        Self { why: why.into(), help }
    }
}

pub(super) const HELP_SIGN: &str =
    "sign it (git commit --amend -S) with a key that the source allows, and push";

pub(super) struct Signed<'a> {
    pub(super) content: &'a [u8],
    pub(super) signature: &'a [u8],
    pub(super) email: &'a str,
    pub(super) committed_at: Timestamp,
}
