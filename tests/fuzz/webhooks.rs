//! The reconciler's files that strangers' bytes go through, as they are. The rest of their crate (libgit2,
//! the servers) is nothing for a fuzzer.
#![allow(dead_code)]

#[path = "../../reconciler/src/webhooks/payload.rs"]
pub(crate) mod payload;
#[path = "../../reconciler/src/webhooks/provider.rs"]
pub(crate) mod provider;
#[path = "../../reconciler/src/webhooks/verify.rs"]
pub(crate) mod verify;
