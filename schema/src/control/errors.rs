//! What is behind an error.

use std::error::Error;

/// The error and all its causes, in one line. A cause that the text already includes is left out.
pub fn error_chain(error: &dyn Error) -> String {
    with_causes(error.to_string(), error)
}

/// A text of one's own for the error, and all its causes, as [`error_chain`] writes them.
pub fn with_causes(mut text: String, error: &dyn Error) -> String {
    for inner in causes(error) {
        let inner = inner.to_string();
        if !text.contains(&inner) {
            text = if text.is_empty() { inner } else { format!("{text}: {inner}") };
        }
    }
    text
}

/// The innermost cause.
pub fn root_cause<'e>(error: &'e (dyn Error + 'static)) -> &'e (dyn Error + 'static) {
    causes(error).last().unwrap_or(error)
}

/// Each cause, the outermost first, without the error itself.
pub fn causes<'e>(error: &'e (dyn Error + '_)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(error.source(), |cause| (*cause).source())
}
