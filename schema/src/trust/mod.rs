//! Trust between machines: who is who, shown by certificates of the cluster's own CA.
//!
//! An [`Authority`] (a CA) signs the key of an [`Identity`]: a node, a reconciler, a user, or a member of etcd. A
//! daemon keeps its own in a [`TrustDir`] and uses them as [`Credentials`], of which a [`TrustKeeper`] always holds the
//! newest. [`accept`] and [`TrustConnector`] are the two ends of a connection; both name the other side. TLS 1.3 only.

mod authority;
mod certificate;
mod connector;
mod credentials;
mod dir;
mod handshake;
mod identity;
mod key_pair;
mod messages;
#[cfg(test)]
mod tests;
mod token;

pub use authority::{Authority, LeafRequest, revoked_serials};
pub use certificate::{Certificate, Serial, bundle_from_pem, bundle_to_pem, chain_from_pem};
pub use connector::{MaybeTls, TrustConnector, url_of};
pub use credentials::{Credentials, TrustKeeper, TrustReader, store_of};
pub use dir::{TlsFiles, TrustDir};
pub use handshake::{Expected, HandshakeError, Peer, Protocol};
pub use handshake::{accept, accept_public, connect, connect_anonymous, connect_pinned};
pub use identity::{Identity, IdentityError, NAME_MAX, Role};
pub use key_pair::{KeyFingerprint, KeyPair, PublicKey};
pub use messages::{JoinAnswer, JoinRequest, RenewRequest};
pub use token::{JoinToken, TokenError};

use std::io;
use std::path::PathBuf;

use openssl::error::ErrorStack;

/// Lifetime of a CA unless set otherwise: ten years.
pub const AUTHORITY_DAYS: u32 = 3_650;
/// Lifetime of the certificate of a daemon unless set otherwise.
pub const LEAF_DAYS: u32 = 7;
/// Lifetime of the certificate of a user unless set otherwise.
pub const USER_DAYS: u32 = 30;
/// Age of a certificate when it is signed, in seconds: the clock of a machine may be this much behind.
pub const BACKDATED_SECONDS: i64 = 600;
/// Time after its end in which a certificate can still be renewed by its key, in days.
pub const RENEWABLE_DAYS: u32 = 365;

/// Failure to make, read or write keys and certificates.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// OpenSSL refused: the input is damaged, for example.
    #[error("cannot {act}: {source}")]
    Crypto {
        /// What was tried.
        act: &'static str,
        /// Reasons of OpenSSL.
        #[source]
        source: ErrorStack,
    },
    /// A file could not be read or written.
    #[error("cannot {act} {path}: {source}", path = path.display())]
    File {
        /// What was tried: `read` or `write`.
        act: &'static str,
        /// The file.
        path: PathBuf,
        /// Reason of the system.
        #[source]
        source: io::Error,
    },
    /// The content of a certificate, a request or a file is not what it should be.
    #[error("{0}")]
    Content(String),
}

impl TrustError {
    /// Returns true if a file does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::File { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Returns the bytes of a PEM text for OpenSSL, which would ask for the passphrase of an encrypted one on the terminal.
fn unencrypted(pem: &[u8]) -> Result<&[u8], TrustError> {
    match String::from_utf8_lossy(pem).contains("Proc-Type") {
        true => Err(TrustError::Content("an encrypted PEM text cannot be used".to_owned())),
        false => Ok(pem),
    }
}

/// Returns the outcome of a verification. OpenSSL leaves the reason for a wrong signature in the thread's queue of errors,
/// where the next TLS connection would take it for its own.
fn settled(verified: Result<bool, ErrorStack>) -> Result<bool, ErrorStack> {
    drop(ErrorStack::get());
    verified
}

/// Adds the failed act to an error of OpenSSL.
fn failed(act: &'static str) -> impl Fn(ErrorStack) -> TrustError {
    move |source| TrustError::Crypto { act, source }
}
