//! List of the certificates that this machine's member of etcd refuses, by serial number.
//!
//! etcd knows its clients by name alone: without the list, the former certificate of a name that was given again would
//! log in until its end. etcd reads the list at each handshake, and refuses every client if it
//! cannot.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use schema::trust::{Authority, Serial, TrustDir, TrustError, revoked_serials};

/// List for etcd (CRL, PEM).
const LIST_FILE: &str = "refused.pem";
/// Serial numbers in it, each with the end of its certificate.
const ENDS_FILE: &str = "refused.json";

/// Refused serial numbers, each with the end of its certificate.
pub(super) type Refused = BTreeMap<Serial, Timestamp>;

/// Returns the list for etcd, in the folder of its certificate.
pub(crate) fn refused_file(dir: &TrustDir) -> PathBuf {
    dir.path().join(LIST_FILE)
}

/// Reads what the member refuses.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub(super) fn read(dir: &TrustDir) -> Result<Refused, TrustError> {
    match dir.read(ENDS_FILE) {
        Err(error) if error.is_missing() => Ok(Refused::new()),
        text => serde_json::from_str(&text?).map_err(|error| {
            TrustError::Content(format!("{}: {error}", dir.path().join(ENDS_FILE).display()))
        }),
    }
}

/// Has the member refuse these from the next handshake on.
///
/// # Errors
/// A file cannot be written, or those of OpenSSL.
pub(super) fn write(
    dir: &TrustDir,
    authority: &Authority,
    refused: &Refused,
    now: Timestamp,
) -> Result<(), TrustError> {
    let text = serde_json::to_string(refused).map_err(|error| TrustError::Content(error.to_string()))?;
    dir.write(LIST_FILE, authority.sign_revocations(refused.keys(), now)?.as_bytes())?;
    // Last: what it has is in the list.
    dir.write(ENDS_FILE, text.as_bytes())
}

/// Writes the list if it is missing or damaged: etcd would refuse everybody.
///
/// # Errors
/// A file cannot be written, or those of OpenSSL.
pub(super) fn ensure(dir: &TrustDir, authority: &Authority, now: Timestamp) -> Result<(), TrustError> {
    match dir.read(LIST_FILE).and_then(|list| revoked_serials(&list)) {
        Ok(_) => Ok(()),
        // With damaged serial numbers it begins anew.
        Err(_) => write(dir, authority, &read(dir).unwrap_or_default(), now),
    }
}
