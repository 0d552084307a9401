//! Reads the node's own credentials, and the record of the cluster's trust in etcd.

use std::collections::BTreeMap;

use schema::codec::decode;
use schema::control::{LoopError, Observation};
use schema::keys::Key;
use schema::records::TrustRecord;
use schema::store::StoreError;
use schema::trust::{Certificate, Credentials, TrustError};

use super::TrustLoop;
use super::plan::{ClusterTrust, Observed, OwnTrust, RecordFacts, RecordedAuthority};
use crate::cluster::ClusterAddresses;

impl TrustLoop {
    pub(super) async fn gather(&mut self) -> Result<Observation<Observed>, LoopError> {
        let credentials = self.trust.credentials();
        let known = self.trust.known().clone();
        let own = own_trust(&credentials, known);
        let own = own.map_err(|error| LoopError::new("cannot read this node's certificate", error))?;
        let (record, unreadable) = match self.store.get(&Key::Trust.to_string()).await {
            Ok(Some(found)) => match read(&found.value, credentials.certificate()) {
                Ok(cluster) => (RecordFacts::Known(cluster), None),
                Err(why) => (RecordFacts::Unknown, Some(why)),
            },
            Err(StoreError::Denied { .. }) => (RecordFacts::Denied, None),
            Err(_) if self.is_refused().await => (RecordFacts::Denied, None),
            // Other loops report an etcd that is away. The certificate is renewed all the same.
            Ok(None) | Err(_) => (RecordFacts::Unknown, None),
        };
        self.unreadable = unreadable;
        Ok(Observation::Ready(Observed {
            own,
            record,
            renewed_at: self.trust.renewed_at(),
            retry_at: self.retry_at,
        }))
    }

    /// Returns true if etcd refuses this node's certificate, of which its own client says nothing.
    async fn is_refused(&self) -> bool {
        match &self.etcd {
            Some(etcd) => etcd.refuses_certificate().await,
            None => false,
        }
    }
}

fn own_trust(credentials: &Credentials, known: ClusterAddresses) -> Result<OwnTrust, TrustError> {
    let certificate = credentials.certificate();
    let authorities = credentials.authorities().iter().map(Certificate::to_pem);
    Ok(OwnTrust {
        renew_at: certificate.renew_at()?,
        not_after: certificate.not_after()?,
        authorities: authorities.collect::<Result<_, _>>()?,
        revoked: credentials.revoked().clone(),
        known,
    })
}

fn read(value: &[u8], own: &Certificate) -> Result<ClusterTrust, String> {
    let record: TrustRecord = decode(value).map_err(|error| error.to_string())?;
    let mut authorities = Vec::new();
    for pem in &record.authorities {
        let authority = Certificate::from_pem(pem).map_err(|error| error.to_string())?;
        let has_signed = own.is_signed_by(&authority);
        // As this node writes it, so that two texts of one certificate are equal.
        let pem = authority.to_pem().map_err(|error| error.to_string())?;
        authorities.push(RecordedAuthority { pem, has_signed });
    }
    let revoked: BTreeMap<_, _> = record.revoked.into_iter().map(|(key, entry)| (key, entry.until)).collect();
    let addresses = ClusterAddresses::learned(&record.etcd, &record.reconcilers);
    Ok(ClusterTrust { authorities, revoked, addresses })
}
