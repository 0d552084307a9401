//! The machine's CAs, for `https://` remotes whose source names none of its own.
//!
//! libgit2 reads the file that the environment names as soon as it is first used for anything: 140
//! certificates take a third of what the plan of a pull request takes. So who only reads a repository
//! does not look for that file, and who has remotes does before libgit2 begins. (Read later it can't
//! be: libgit2's own way to that puts variables under the names of OpenSSL's functions.)

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
