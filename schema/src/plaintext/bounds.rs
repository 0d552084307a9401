//! Size limits of a secret.

/// Most keys of a secret: each may become a file or a variable.
pub(super) const KEYS_MAX: usize = 1000;
