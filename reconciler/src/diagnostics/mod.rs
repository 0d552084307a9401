//! What is wrong with manifests, for people, programs and pull requests.
//!
//! `inspect` reads a folder and checks it; `excerpt`, `text`, `json` and `github` are pure: a report and
//! the lines it speaks of become text.

pub mod excerpt;
pub mod github;
pub mod inspect;
pub mod json;
mod redact;
pub mod report;
pub mod text;
mod visible;

pub use inspect::inspect;
pub use report::Report;
pub use visible::visible;
