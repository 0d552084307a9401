//! From a commit to desired state: load, check, plan, apply; one loop per source.
//!
//! `check diff prune plan status history` are pure. `source_loop` observes and reports, `apply`
//! alone writes `objects/`, `record` alone `sources/` and `revisions/`.

pub mod apply;
pub mod check;
pub mod diff;
mod head;
pub mod history;
pub mod load;
pub mod plan;
pub mod prune;
mod read;
pub mod record;
pub mod source_loop;
pub mod status;
#[cfg(test)]
mod tests;

pub use read::preflight;
pub use source_loop::SourceLoop;
