//! Certificates as a reconciler signs them.

use jiff::{SignedDuration, Timestamp};

use crate::trust::{Authority, LeafRequest, TrustDir};

/// Returns a CA that is valid for a day.
pub fn authority() -> Authority {
    Authority::create(SignedDuration::from_hours(24), Timestamp::now()).unwrap()
}

/// Fills a folder as if `identity` had joined at `from`, with a certificate of this lifetime.
pub fn enroll(
    dir: &TrustDir,
    authority: &Authority,
    identity: &str,
    (from, lifetime): (Timestamp, SignedDuration),
) {
    let identity = identity.parse().unwrap();
    let key = dir.ensure_key().unwrap().public_key().unwrap();
    let request = LeafRequest { identity: &identity, key: &key, addresses: &[], lifetime };
    dir.write_authorities(std::slice::from_ref(authority.certificate())).unwrap();
    dir.write_certificate(&authority.sign(&request, from).unwrap()).unwrap();
}
