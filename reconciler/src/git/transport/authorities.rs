//! The machine's CAs, for `https://` remotes whose source names none of its own. libgit2 reads the file that the
//! environment names at its first use, which takes a third of the time of a plan: only who has remotes looks for it.

use std::sync::Once;

// Gives libgit2 its HTTPS: git2's own feature for it would look for CAs in every process.
use libgit2_sys as _;

/// Looks once where this machine has them. Nothing of libgit2 may have been used before.
pub(in crate::git) fn find() {
    static FOUND: Once = Once::new();
    FOUND.call_once(|| {
        #[expect(deprecated, reason = "what git2's own feature calls; the other way needs unsafe code")]
        openssl_probe::init_ssl_cert_env_vars();
    });
}
