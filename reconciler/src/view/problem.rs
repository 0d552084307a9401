//! Errors as the API sends them and the CLI prints them.

use std::error::Error;

use serde::{Deserialize, Serialize};

/// Body of an error response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    pub error: String,
    #[serde(default)]
    pub help: String,
}

/// The innermost cause, as a part of a sentence: `connection refused`.
pub fn root_cause(error: &(dyn Error + 'static)) -> String {
    let text = schema::control::root_cause(error).to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = text.chars();
    match letters.next() {
        // A capital before a lowercase letter begins a sentence; other capitals begin a name.
        Some(first) if letters.clone().next().is_some_and(char::is_lowercase) => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_cause_is_said_without_numbers_and_capitals() {
        let refused = std::io::Error::from_raw_os_error(111);
        assert_eq!(root_cause(&refused), "connection refused");
        assert_eq!(root_cause(&std::io::Error::other("EOF in mid-frame")), "EOF in mid-frame");
    }
}
