//! The reconciler's files that process untrusted bytes, unchanged. The rest of their crate (libgit2,
//! the servers) is not suited for a fuzzer.
#![allow(dead_code)]

#[path = "../../reconciler/src/webhooks/payload.rs"]
pub(crate) mod payload;
#[path = "../../reconciler/src/webhooks/provider.rs"]
pub(crate) mod provider;
#[path = "../../reconciler/src/webhooks/verify.rs"]
pub(crate) mod verify;
