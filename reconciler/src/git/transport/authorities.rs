//! The machine's CAs, for `https://` remotes whose source names none. libgit2 reads the file named by the
//! environment at its first use, which takes a third of a plan's time: only processes with remotes look for it.

use std::sync::Once;

// Enables HTTPS in libgit2: git2's own feature for it would look for CAs in every process.
use libgit2_sys as _;

/// Finds the machine's CAs, once. Must precede any use of libgit2.
pub(in crate::git) fn find() {
    static FOUND: Once = Once::new();
    FOUND.call_once(|| {
        #[expect(deprecated, reason = "what git2's own feature calls; the other way needs unsafe code")]
        openssl_probe::init_ssl_cert_env_vars();
    });
}
