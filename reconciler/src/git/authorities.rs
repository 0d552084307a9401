//! The machine's CAs, for `https://` remotes whose source names none of its own.
//!
//! libgit2 reads the file that the environment names, or that OpenSSL was built with, as soon as it is
//! first used for anything: 140 certificates take as many instructions as the plan of one change among
//! 1,000 documents. So who has remotes looks for that file before libgit2 begins, and who only reads a
//! repository sees to it that there is none. (Read later it can't be: libgit2's own way to that puts
//! variables under the names of OpenSSL's functions.)

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Once;

// Gives libgit2 its HTTPS: git2's own feature for it would look for CAs in every process.
use libgit2_sys as _;

/// Where OpenSSL is told of a file.
const VARIABLE: &str = "SSL_CERT_FILE";
/// A file without certificates.
const NO_FILE: &str = "/dev/null";
/// Where OpenSSL looks if it is told of none: as Debian, Fedora and Alpine build it.
const BUILT_IN: [&str; 3] = ["/usr/lib/ssl/cert.pem", "/etc/pki/tls/cert.pem", "/etc/ssl/cert.pem"];

/// Looks once where this machine has them. Nothing of libgit2 may have been used before.
pub(super) fn find() {
    static FOUND: Once = Once::new();
    FOUND.call_once(|| {
        #[expect(deprecated, reason = "what git2's own feature calls; the other way needs unsafe code")]
        openssl_probe::init_ssl_cert_env_vars();
    });
}

/// Sees to it that libgit2 reads no CAs, for a program that reads repositories of this machine only: it
/// starts itself again with another environment, which takes a fiftieth of the instructions that it saves.
/// (To change its own environment needs unsafe code.) For the very beginning of a program; where it is not
/// possible, all goes on as it is.
pub fn do_without() {
    let named = std::env::var_os(VARIABLE);
    let is_read = match &named {
        Some(file) => file != NO_FILE && !file.is_empty(),
        None => BUILT_IN.iter().any(|file| Path::new(file).exists()),
    };
    let mut args = std::env::args_os();
    if let (true, Some(name)) = (is_read, args.next()) {
        // Comes back only if it failed.
        let _ = Command::new("/proc/self/exe").arg0(name).args(args).env(VARIABLE, NO_FILE).exec();
    }
}
