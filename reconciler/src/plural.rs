//! Counted nouns in messages.

use std::fmt::Display;

/// `1 file`, `2 files`.
pub(crate) fn plural(count: impl Display, word: &str) -> String {
    let count = count.to_string();
    let ending = if count == "1" { "" } else { "s" };
    format!("{count} {word}{ending}")
}
