//! Trust between the machines of the cluster: the authority that signs, who is admitted and removed, and who has a user of
//! etcd.
//!
//! `setup.rs` keeps this machine's own keys and certificates, and the list of those that its etcd refuses; `admission/` signs those of others; `run/` is the loop;
//! `member.rs` makes this machine's etcd one of several, `restart.rs` restarts it; `revocation.rs` says how long a key is
//! on which list.

mod admission;
mod etcd_users;
#[cfg(test)]
mod fake;
mod member;
mod restart;
mod revocation;
mod run;
mod setup;

#[cfg(test)]
pub(crate) use self::admission::testing as admission_testing;
pub(crate) use self::admission::{
    Admission, AdmissionDeps, AdmissionError, IdentityItem, Refusal, RemovedIdentity, RotationAnswer,
    TokenAnswer, admits_or_removes,
};
pub(crate) use self::etcd_users::EtcdUsers;
pub(crate) use self::member::{
    CATCH_UP_MAX, EtcdMembership, FIRST_MEMBER, prepare, promote, publish_address,
};
pub(crate) use self::run::{TRUST_INTERVAL, TRUST_MAX, TrustDeps, TrustLoop, endpoints};
pub(crate) use self::setup::{
    AUTHORITY_KEY_FILE, AuthorityText, OwnTrust, RemovedError, TrustSettings, check_upgraded, etcd_pki_dir,
    has_authority, known_name, known_node, open, pki_dir, refused_file, renew_etcd, server_addresses,
    sign_etcd, sign_node, sign_users_etcd, write_authority,
};
