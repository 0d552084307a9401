//! Trust between the machines of the cluster: the authority that signs, who is admitted and removed, and who has a user of
//! etcd.
//!
//! `setup.rs` keeps this machine's own keys and certificates; `admission/` signs those of others; `run/` is the loop;
//! `member.rs` makes this machine's etcd one of several, `restart.rs` restarts it.

mod admission;
mod etcd_users;
#[cfg(test)]
mod fake;
mod member;
mod restart;
mod run;
mod setup;

#[cfg(test)]
pub(crate) use self::admission::testing as admission_testing;
pub(crate) use self::admission::{
    Admission, AdmissionDeps, AdmissionError, IdentityItem, Refusal, RemovedIdentity, RotationAnswer,
    TokenAnswer,
};
pub(crate) use self::etcd_users::EtcdUsers;
pub(crate) use self::member::{EtcdMembership, FIRST_MEMBER, prepare, promote, publish_address};
pub(crate) use self::run::{TRUST_INTERVAL, TRUST_MAX, TrustDeps, TrustLoop, endpoints};
pub(crate) use self::setup::{
    AUTHORITY_KEY_FILE, OwnTrust, TrustSettings, check_upgraded, etcd_pki_dir, has_authority, open, pki_dir,
    server_addresses, sign_etcd, sign_node, sign_users_etcd, write_authority,
};
