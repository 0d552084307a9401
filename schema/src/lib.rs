//! Types and machinery shared by both daemons: kinds, manifests, etcd keys and values, the store and control loops.
//!
//! Without the features `store` and `control` this crate is pure: no clock, no I/O, no runtime.
#![warn(missing_docs)]

#[cfg(feature = "arbitrary")]
pub mod arbitrary;
pub mod archive;
pub mod backoff;
pub mod codec;
pub mod condition;
pub mod content_refs;
#[cfg(feature = "control")]
pub mod control;
pub mod dockerfile;
pub(crate) mod document;
pub mod errors;
pub mod explain;
pub mod file_text;
pub mod image;
pub mod keys;
pub mod kinds;
pub mod manifest;
pub mod meta;
#[cfg(feature = "store")]
pub mod metrics;
mod mutex;
pub mod names;
pub mod object;
pub mod quantity;
pub mod records;
pub mod secrets;
pub mod since;
#[cfg(feature = "store")]
pub mod snapshot;
#[cfg(feature = "store")]
pub mod store;
#[cfg(all(feature = "store", any(test, feature = "testing")))]
pub mod testing;
#[cfg(feature = "control")]
pub mod trust;
pub mod violation;
