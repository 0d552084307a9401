//! How much a secret may hold.

/// Most keys of one secret: each may become a file or a variable.
pub(super) const KEYS_MAX: usize = 1000;
