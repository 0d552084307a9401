//! Diagnostics of manifests for people, programs and pull requests.
//!
//! `inspect` reads and checks a folder; `excerpt`, `text`, `json` and `github` are pure: they turn a report and the
//! lines it refers to into text.

pub mod excerpt;
pub mod inspect;
pub mod json;
mod redact;
pub mod report;

pub use inspect::inspect;
pub use report::Report;
