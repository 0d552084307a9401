//! Access to a remote: its address through a proxy, its certificate or host key, its credentials.

pub(super) mod credentials;
mod known_hosts;
pub(super) mod proxy;
pub(super) mod remote;
pub(super) mod sealed;

use std::sync::Once;

// Enables HTTPS in libgit2: git2's own feature for it would look for CAs in every process.
use libgit2_sys as _;

/// Finds the machine's CAs, once, for `https://` remotes whose source names none. Must precede any use of libgit2,
/// which reads the file named by the environment at its first use. That takes a third of a plan's time, so only
/// processes with remotes do it.
pub(in crate::git) fn find_authorities() {
    static FOUND: Once = Once::new();
    FOUND.call_once(|| {
        #[expect(deprecated, reason = "what git2's own feature calls; the other way needs unsafe code")]
        openssl_probe::init_ssl_cert_env_vars();
    });
}
