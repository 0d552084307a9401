//! Dependencies of the loop, and the own identity, which it reads with them from the own disk.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::SignedDuration;
use schema::control::LoopError;
use schema::records::TrustRecord;
use schema::snapshot::Snapshot;
use schema::store::SharedStore;
use schema::store::election::FenceReader;
use schema::store::etcd::Access;
use schema::store::events::EventRecorder;
use schema::store::reflector::SnapshotReader;
use schema::trust::{BACKDATED_SECONDS, Certificate, TrustError};
use tokio::sync::watch;

use super::plan::{LocalNode, ObservedOwnMember, OwnIdentity};
use crate::last_known::LastKnown;
use crate::trust::member;
use crate::trust::setup::{
    OwnTrust, RefusedSerials, TrustSettings, etcd_certificate, etcd_pki_dir, node_certificate, read_refused,
};

/// Dependencies of the loop.
pub(crate) struct TrustDeps {
    pub(crate) store: SharedStore,
    pub(crate) snapshot: SnapshotReader,
    pub(crate) fence: FenceReader,
    pub(crate) events: EventRecorder,
    /// State of etcd when it was last settled.
    pub(crate) last_known: watch::Receiver<Arc<LastKnown>>,
    pub(crate) own: OwnTrust,
    pub(crate) settings: TrustSettings,
    pub(crate) state_dir: PathBuf,
    pub(crate) access: Access,
    /// URL at which others reach the own API.
    pub(crate) api: Option<String>,
    /// age recipient of this reconciler.
    pub(crate) recipient: Option<String>,
    /// File with the age identity of that.
    pub(crate) identity_file: PathBuf,
    /// Set if etcd is the cluster's own: the leader then switches its authentication on.
    pub(crate) owns_etcd: bool,
}

impl TrustDeps {
    /// Reads the own identity; `rolled` is the newest roll in which this process has restarted the own member of etcd.
    ///
    /// # Errors
    /// A file cannot be read, or is damaged.
    pub(super) async fn own_identity(&self, rolled: u64) -> Result<OwnIdentity, LoopError> {
        let failed = |error| LoopError::new("reading the own certificates", error);
        let state_dir = self.state_dir.clone();
        let read = tokio::task::spawn_blocking(move || {
            let etcd = etcd_certificate(&state_dir).map(|certificate| {
                (certificate, member::own_member(&state_dir), read_refused(&etcd_pki_dir(&state_dir)))
            });
            (etcd, node_certificate(&state_dir))
        });
        let (read, node) = read
            .await
            .map_err(|error| LoopError::new("reading the certificates of etcd and the node", error))?;
        let mut own = own_identity(self).map_err(failed)?;
        if let Some((certificate, name, refused)) = read.filter(|_| self.owns_etcd) {
            let (name, joined_after) = name.map_err(|error| LoopError::message(format!("{error:#}")))?;
            // A damaged list is written anew.
            let refused = refused.unwrap_or_default();
            own.member = Some(
                own_member(self, (&certificate, name, refused), rolled.max(joined_after)).map_err(failed)?,
            );
        }
        own.node = node.and_then(|certificate| local_node(&self.own, &certificate).ok());
        Ok(own)
    }
}

fn own_identity(deps: &TrustDeps) -> Result<OwnIdentity, TrustError> {
    let (credentials, authority) = (deps.own.keeper.current(), deps.own.authority());
    let certificate = credentials.certificate();
    let signers = credentials.authorities();
    let signer = signers.iter().find(|authority| certificate.is_signed_by(authority));
    let signer = signer.unwrap_or_else(|| authority.certificate());
    let (begin, end) = (authority.certificate().not_before()?, authority.certificate().not_after()?);
    Ok(OwnIdentity {
        authority_ends_at: end,
        authority_ends_soon_at: end - end.duration_since(begin) / 10,
        identity: credentials.identity().clone(),
        key: certificate.public_key()?.fingerprint()?,
        serial: certificate.serial()?,
        issuer: signer.digest()?,
        signer: signer.to_pem()?,
        not_after: certificate.not_after()?,
        renew_at: certificate.renew_at()?,
        member: None,
        node: None,
        authority: authority.certificate().to_pem()?,
        trusted: credentials.authorities().iter().map(Certificate::to_pem).collect::<Result<_, _>>()?,
        revoked: credentials.revoked().clone(),
        api: deps.api.clone(),
        recipient: deps.recipient.clone(),
    })
}

/// Describes a node by its certificate.
///
/// # Errors
/// It is another cluster's, or no node's.
fn local_node(own: &OwnTrust, certificate: &Certificate) -> Result<LocalNode, TrustError> {
    let credentials = own.keeper.current();
    let signer = credentials.authorities().iter().find(|authority| certificate.is_signed_by(authority));
    let signer = signer.ok_or_else(|| TrustError::Content("another cluster's certificate".to_owned()))?;
    Ok(LocalNode {
        identity: certificate.identity()?,
        key: certificate.public_key()?.fingerprint()?,
        serial: certificate.serial()?,
        issuer: signer.digest()?,
        signed_at: certificate.not_before()? + SignedDuration::from_secs(BACKDATED_SECONDS),
        not_after: certificate.not_after()?,
        is_here: false,
    })
}

fn own_member(
    deps: &TrustDeps,
    (certificate, name, refused): (&Certificate, String, RefusedSerials),
    rolled: u64,
) -> Result<ObservedOwnMember, TrustError> {
    let credentials = deps.own.keeper.current();
    let signer = credentials.authorities().iter().find(|authority| certificate.is_signed_by(authority));
    let issuer = signer.map(Certificate::digest).transpose()?.unwrap_or_default();
    Ok(ObservedOwnMember { name, issuer, renew_at: certificate.renew_at()?, refused, rolled })
}

/// Returns the digests of the authorities of the records, and of those that are trusted here. One that cannot be read has
/// none.
pub(super) fn digests(snapshot: &Snapshot, own: &OwnIdentity) -> BTreeMap<String, String> {
    let trust: Option<&TrustRecord> = snapshot.trust.get(&()).map(|row| &row.value);
    let recorded = trust.into_iter().flat_map(|trust| &trust.authorities);
    let created = snapshot.authorities.values().map(|row| &row.value.certificate);
    let all = recorded.chain(created).chain(&own.trusted).chain([&own.authority]);
    let digest = |pem: &String| Certificate::from_pem(pem).and_then(|certificate| certificate.digest()).ok();
    all.filter_map(|pem| Some((pem.clone(), digest(pem)?))).collect()
}
