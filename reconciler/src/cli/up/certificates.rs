//! Certificates of the programs that `up` runs.
//!
//! Makes the cluster's authority, if there is none, and signs the certificates of the reconciler, of a private etcd and of
//! this node's agent before these start. The daemons renew them.

use std::env;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use jiff::{SignedDuration, Timestamp};
use schema::trust::{AUTHORITY_DAYS, Identity, LEAF_DAYS, Role, TlsFiles, TrustReader};

use super::record::UpRecord;
use super::state::StateDir;
use crate::args::{EtcdLogin, LifetimeArgs};
use crate::config::parse_duration;
pub(super) use crate::trust::known_name;
use crate::trust::{self, TrustSettings};

const DAY_SECONDS: u64 = 24 * 3600;

/// Variable of the reconciler with its name.
pub(super) const NAME: &str = "MINIK8S_NAME";

/// Certificate with which `up` probes its programs, and the identity that it expects of the agent.
pub(super) struct Certificates {
    /// The reconciler's certificate.
    pub(super) reconciler: TrustReader,
    /// Identity of this node's agent.
    pub(super) node: Identity,
}

/// Returns the reconciler's name: that under which it joined or was started before, else that of the node, unless the user
/// gives it one.
pub(super) fn reconciler_name(record: &UpRecord) -> String {
    env::var(NAME).ok().or_else(|| known_name(&record.state_dir)).unwrap_or_else(|| record.node.clone())
}

/// Signs the certificates of all programs, as far as they are missing or about to end.
pub(super) fn sign(record: &UpRecord) -> Result<Certificates> {
    let node = Identity::new(Role::Node, &record.node)
        .with_context(|| format!("cannot name the node {}; choose another name with --node", record.node))?;
    let reconciler = open(record)?;
    let (now, lifetime) = (Timestamp::now(), settings_of(record)?.certificate_lifetime);
    if record.etcd.is_none() {
        trust::sign_etcd(&record.state_dir, &addresses(record), lifetime, now)
            .context("cannot sign the certificate of etcd")?;
    }
    trust::sign_node(&record.state_dir, &record.node, lifetime, now)
        .context("cannot sign the certificate of the agent")?;
    Ok(Certificates { reconciler, node })
}

/// Returns the certificates for an https etcd of the user's: the reconciler's own, but for those given with it.
pub(super) fn for_etcd(state: &StateDir, record: &UpRecord) -> Result<TlsFiles> {
    open(record)?;
    Ok(shown_to_etcd(state, &record.etcd_login))
}

/// Files with which the reconciler and an https etcd of the user's know each other.
pub(super) fn shown_to_etcd(state: &StateDir, login: &EtcdLogin) -> TlsFiles {
    let own = trust::pki_dir(state.root()).tls_files();
    match login.etcd_ca.clone() {
        None => own,
        Some(authorities) => TlsFiles {
            authorities,
            certificate: login.etcd_cert.clone().unwrap_or(own.certificate),
            key: login.etcd_key.clone().unwrap_or(own.key),
            is_own: false,
        },
    }
}

/// Flags of the reconciler with the certificates that were given with an etcd.
pub(super) fn etcd_files(record: &UpRecord) -> impl Iterator<Item = (&'static str, &Path)> {
    let login = &record.etcd_login;
    let files =
        [("--etcd-ca", &login.etcd_ca), ("--etcd-cert", &login.etcd_cert), ("--etcd-key", &login.etcd_key)];
    files.into_iter().filter_map(|(flag, file)| Some((flag, file.as_deref()?)))
}

/// Opens the reconciler's folder, with a new authority if there is none.
fn open(record: &UpRecord) -> Result<TrustReader> {
    let opened = trust::open(&record.state_dir, &settings_of(record)?, Timestamp::now());
    Ok(opened.context("cannot set up the certificates of the reconciler")?.keeper.reader())
}

fn settings_of(record: &UpRecord) -> Result<TrustSettings> {
    settings(reconciler_name(record), addresses(record), &record.lifetimes)
}

fn addresses(record: &UpRecord) -> Vec<String> {
    trust::server_addresses(record.listen.ip(), record.advertise.as_deref())
}

/// Settings of a reconciler's certificates, with the lifetimes as typed.
pub(super) fn settings(
    name: String,
    addresses: Vec<String>,
    lifetimes: &LifetimeArgs,
) -> Result<TrustSettings> {
    let authority =
        lifetime("--authority-lifetime", lifetimes.authority_lifetime.as_deref(), AUTHORITY_DAYS)?;
    let certificate =
        lifetime("--certificate-lifetime", lifetimes.certificate_lifetime.as_deref(), LEAF_DAYS)?;
    Ok(TrustSettings {
        name,
        addresses,
        authority_days: u32::try_from(authority.as_secs() / DAY_SECONDS).unwrap_or(u32::MAX).max(1),
        certificate_lifetime: SignedDuration::try_from(certificate).context("--certificate-lifetime")?,
    })
}

/// Reads a lifetime as typed; without one it is `days`.
fn lifetime(flag: &str, typed: Option<&str>, days: u32) -> Result<Duration> {
    let by_default = Duration::from_secs(u64::from(days) * DAY_SECONDS);
    typed.map_or(Ok(by_default), parse_duration).map_err(|why| anyhow!("{flag}: {why}"))
}
