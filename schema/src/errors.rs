//! Chains of errors as text, outermost cause first.

use std::error::Error;

/// Formats an error and all its causes in one line. Leaves out a cause that the text already includes.
pub fn error_chain(error: &dyn Error) -> String {
    with_causes(error.to_string(), error)
}

/// Appends all causes of an error to `text`, as [`error_chain`] does.
pub fn with_causes(mut text: String, error: &dyn Error) -> String {
    for inner in causes(error) {
        let inner = inner.to_string();
        if !text.contains(&inner) {
            text = if text.is_empty() { inner } else { format!("{text}: {inner}") };
        }
    }
    text
}

/// Returns the innermost cause; the error itself if it has none.
pub fn root_cause<'e>(error: &'e (dyn Error + 'static)) -> &'e (dyn Error + 'static) {
    causes(error).last().unwrap_or(error)
}

/// Iterates over the causes, outermost first, without the error itself.
pub fn causes<'e>(error: &'e (dyn Error + '_)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(error.source(), |cause| (*cause).source())
}
