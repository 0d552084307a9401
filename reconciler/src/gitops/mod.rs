//! From a commit to desired state: load, check, plan, apply; one loop per source.
//!
//! `bounds check diff prune plan gate review secrets status history` are pure. `source_loop` observes and reports,
//! `apply` alone writes `objects/`. `record` writes the status of a configured source and its new revisions;
//! `verdict` writes the outcome of a revision, once, and marks a source that is no longer configured; `timeline` writes
//! the times of its steps.

pub mod apply;
pub mod bounds;
pub mod check;
pub mod diff;
pub mod gate;
mod head;
pub mod load;
pub mod offline;
mod owned_record;
pub mod plan;
pub mod prune;
mod read;
pub mod review;
pub mod source_loop;
pub mod status;
#[cfg(test)]
mod tests;
pub mod timeline;
pub mod verdict;

pub use read::preflight;
pub use source_loop::SourceLoop;
pub use timeline::TimelineLoop;
pub use verdict::VerdictLoop;
