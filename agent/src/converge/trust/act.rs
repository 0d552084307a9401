//! Renews the node's certificate at a reconciler, and puts changes of the cluster's trust in force.

use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use schema::control::{DiskRecord, publish};
use schema::trust::{
    Certificate, Credentials, Identity, JoinAnswer, RenewRequest, Role, TrustDir, TrustError, TrustKeeper,
    TrustReader, bundle_from_pem,
};
use tokio::sync::watch;

use super::plan::{TrustChanges, has_ended};
use crate::cluster::ClusterAddresses;
use crate::worlds::admission::{Admission, AllFailed, OnRefusal, ask_in_turn};

/// Credentials of this node, and the addresses of its cluster.
pub struct NodeTrust {
    keeper: TrustKeeper,
    admission: Arc<dyn Admission>,
    /// Addresses given by flags, which never change.
    given: ClusterAddresses,
    /// Addresses in the file.
    known: ClusterAddresses,
    file: DiskRecord,
    addresses: watch::Sender<ClusterAddresses>,
    /// End of the last renewal by this process.
    renewed_at: Option<Timestamp>,
}

/// Files and settings of [`NodeTrust`].
pub struct TrustSettings {
    pub node: String,
    pub dir: TrustDir,
    /// Addresses given by flags.
    pub given: ClusterAddresses,
    /// Addresses in `file`.
    pub known: ClusterAddresses,
    /// Addresses in use.
    pub used: ClusterAddresses,
    pub file: DiskRecord,
}

/// Failure of a node to use or to renew its credentials.
#[derive(Debug, thiserror::Error)]
pub enum NodeTrustError {
    #[error(
        "this node has not joined a cluster; run 'minik8s token create --node {0}' on a reconciler, and the command that it prints here"
    )]
    NotJoined(String),
    #[error(
        "this node's certificate is that of {found} and not of {wanted}; leave out --node, or run 'minik8s-agent reset' and join as {wanted}"
    )]
    OtherName { found: Identity, wanted: String },
    #[error("cannot use this node's certificate")]
    Trust(#[from] TrustError),
    #[error("cannot write the addresses of the cluster to {path}")]
    Write { path: String, source: io::Error },
    #[error("cannot renew this node's certificate: no reconciler is known; give --reconciler its URL")]
    NoReconciler,
    #[error("cannot renew this node's certificate: {0}")]
    NoneRenews(AllFailed),
    #[error("cannot renew this node's certificate: the new one is that of {0}")]
    RenewedAs(Identity),
}

impl NodeTrust {
    /// Loads the credentials.
    ///
    /// # Errors
    /// The node has not joined, joined under another name, or its files are damaged.
    pub fn open(settings: TrustSettings, admission: Arc<dyn Admission>) -> Result<Self, NodeTrustError> {
        let TrustSettings { node, dir, given, known, used, file } = settings;
        let keeper = match dir.is_filled() {
            true => TrustKeeper::open(dir)?,
            false => return Err(NodeTrustError::NotJoined(node)),
        };
        let found = keeper.current().identity().clone();
        if found.node() != Some(node.as_str()) {
            let wanted = Identity::new(Role::Node, &node).map_or(node, |wanted| wanted.to_string());
            return Err(NodeTrustError::OtherName { found, wanted });
        }
        Ok(Self {
            keeper,
            admission,
            given,
            known,
            file,
            addresses: watch::Sender::new(used),
            renewed_at: None,
        })
    }

    /// Returns a reader of the newest credentials.
    pub fn reader(&self) -> TrustReader {
        self.keeper.reader()
    }

    /// Returns the newest credentials.
    pub fn credentials(&self) -> Arc<Credentials> {
        self.keeper.current()
    }

    /// Returns the addresses in use, as they change.
    pub fn addresses(&self) -> watch::Receiver<ClusterAddresses> {
        self.addresses.subscribe()
    }

    /// Returns the owner of the credentials.
    #[cfg(test)]
    pub(super) fn keeper_for_test(&self) -> &TrustKeeper {
        &self.keeper
    }

    pub(super) fn known(&self) -> &ClusterAddresses {
        &self.known
    }

    pub(super) fn renewed_at(&self) -> Option<Timestamp> {
        self.renewed_at
    }

    /// Returns true if the certificate has ended.
    ///
    /// # Errors
    /// It can't be read.
    pub fn has_ended(&self, now: Timestamp) -> Result<bool, TrustError> {
        Ok(has_ended(self.credentials().certificate().not_after()?, now))
    }

    /// Renews the certificate at the first reconciler that does so.
    ///
    /// # Errors
    /// None does, or its answer can't be used.
    pub async fn renew(&mut self) -> Result<(), NodeTrustError> {
        let own = self.credentials();
        let request = RenewRequest {
            certificate: own.certificate().to_pem()?,
            signing_request: self.keeper.dir().key()?.signing_request(own.identity())?,
        };
        let urls = self.addresses.borrow().reconcilers.clone();
        if urls.is_empty() {
            return Err(NodeTrustError::NoReconciler);
        }
        let admission = &self.admission;
        let asked = ask_in_turn(&urls, OnRefusal::GoOn, |url| admission.renew(url, &own, &request)).await;
        let (_, answer) = asked.map_err(NodeTrustError::NoneRenews)?;
        self.accept_renewal(&answer)
    }

    fn accept_renewal(&mut self, answer: &JoinAnswer) -> Result<(), NodeTrustError> {
        let certificate = Certificate::from_pem(&answer.certificate)?;
        let (found, own) = (certificate.identity()?, self.credentials());
        if found != *own.identity() {
            return Err(NodeTrustError::RenewedAs(found));
        }
        let mut authorities = bundle_from_pem(&answer.authorities)?;
        // The reconciler may be behind: what this node has reported that it trusts stays trusted until the record of trust
        // says otherwise, or an authority might sign that it has just forgotten.
        let given = authorities.iter().map(Certificate::digest).collect::<Result<Vec<_>, _>>()?;
        for former in own.authorities() {
            if !given.contains(&former.digest()?) {
                authorities.push(former.clone());
            }
        }
        self.keeper.renew(certificate, authorities)?;
        self.renewed_at = Some(Timestamp::now());
        let learned = ClusterAddresses::learned(&answer.etcd, &answer.reconcilers);
        self.adopt(learned.or(&self.known))
    }

    /// Puts changes in force.
    ///
    /// # Errors
    /// One can't be written.
    pub(super) fn apply(&mut self, changes: TrustChanges) -> Result<(), NodeTrustError> {
        if let Some(revoked) = changes.revoked {
            tracing::info!(keys = ?revoked.keys(), "list of revoked keys changed");
            self.keeper.revoke(revoked)?;
        }
        if let Some(authorities) = changes.authorities {
            let authorities = bundle_from_pem(&authorities.concat())?;
            tracing::info!(count = authorities.len(), "trusted authorities changed");
            self.keeper.renew(self.credentials().certificate().clone(), authorities)?;
        }
        changes.addresses.map_or(Ok(()), |addresses| self.adopt(addresses))
    }

    /// Uses addresses, except where flags give others, and writes them for the next start.
    fn adopt(&mut self, known: ClusterAddresses) -> Result<(), NodeTrustError> {
        if known == self.known {
            return Ok(());
        }
        tracing::info!(etcd = ?known.etcd, reconcilers = ?known.reconcilers, "addresses of the cluster changed");
        let used = self.given.or(&known).or(&self.addresses.borrow());
        publish(&self.addresses, used);
        self.file.write(&known).map_err(|source| {
            let path = self.file.path().display().to_string();
            NodeTrustError::Write { path, source }
        })?;
        self.known = known;
        Ok(())
    }
}
