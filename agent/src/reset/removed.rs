//! Outcome of a reset.

/// Removed things, failures and remarks.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    pub(crate) lines: Vec<String>,
    pub(crate) failures: Vec<String>,
    pub(crate) remarks: Vec<String>,
}

impl Removed {
    pub(super) fn done(&mut self, what: impl Into<String>) {
        self.lines.push(what.into());
    }

    pub(super) fn note<E: std::fmt::Display>(&mut self, what: String, result: Result<bool, E>) {
        match result {
            Ok(true) => self.lines.push(what),
            Ok(false) => {}
            Err(error) => self.failures.push(format!("{what}: {error}")),
        }
    }
}
