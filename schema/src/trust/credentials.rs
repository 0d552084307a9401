//! What a daemon shows and what it trusts, ready for connections; and the newest of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use openssl::ssl::{
    SslContext, SslContextBuilder, SslMethod, SslMode, SslOptions, SslSessionCacheMode, SslVerifyMode,
    SslVersion,
};
use openssl::x509::store::{X509Store, X509StoreBuilder};
use tokio::sync::watch;

use super::{Certificate, Identity, KeyFingerprint, KeyPair, TrustDir, TrustError, failed};

/// Own key and certificate, the trusted authorities, and the revoked keys.
#[derive(Clone)]
pub struct Credentials {
    identity: Identity,
    certificate: Certificate,
    authorities: Vec<Certificate>,
    revoked: BTreeMap<KeyFingerprint, Timestamp>,
    pub(super) server: SslContext,
    pub(super) client: SslContext,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Builds credentials.
    ///
    /// # Errors
    /// Certificate and key do not belong together, no authority has signed the certificate, or those of OpenSSL.
    pub fn new(
        key: &KeyPair,
        certificate: Certificate,
        authorities: Vec<Certificate>,
        revoked: BTreeMap<KeyFingerprint, Timestamp>,
    ) -> Result<Self, TrustError> {
        let wrong = |why: &str| Err(TrustError::Content(why.to_owned()));
        if !certificate.public_key()?.is(&key.public_key()?) {
            return wrong("the certificate is not that of the key");
        }
        let Some(issuer) = authorities.iter().find(|authority| certificate.is_signed_by(authority)) else {
            return wrong("the certificate is signed by none of the trusted authorities");
        };
        let context = |method, mode| {
            let built = context(method, mode, &authorities).and_then(|mut builder| {
                builder.set_certificate(&certificate.0)?;
                builder.set_private_key(&key.0)?;
                builder.add_extra_chain_cert(issuer.0.clone())?;
                builder.check_private_key()?;
                Ok(builder.build())
            });
            built.map_err(failed("set up TLS"))
        };
        // A client may have no certificate: a machine that joins. What it may do is decided for each request.
        let server = context(SslMethod::tls_server(), SslVerifyMode::PEER)?;
        let client = context(SslMethod::tls_client(), SslVerifyMode::PEER)?;
        Ok(Self { identity: certificate.identity()?, certificate, authorities, revoked, server, client })
    }

    /// Reads them from a folder.
    ///
    /// # Errors
    /// A file is missing or damaged, and those of [`Credentials::new`].
    pub fn load(dir: &TrustDir) -> Result<Self, TrustError> {
        Self::new(&dir.key()?, dir.certificate()?, dir.authorities()?, dir.revoked()?)
    }

    /// Returns the own identity.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the own certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// Returns the trusted authorities.
    pub fn authorities(&self) -> &[Certificate] {
        &self.authorities
    }

    /// Revokes a key in memory.
    #[cfg(test)]
    pub(super) fn revoke_for_test(&mut self, key: KeyFingerprint) {
        self.revoked.insert(key, Timestamp::MAX);
    }

    /// Returns the revoked keys, each with the time until which it would be of use.
    pub fn revoked(&self) -> &BTreeMap<KeyFingerprint, Timestamp> {
        &self.revoked
    }

    /// Returns true if the key with this fingerprint was revoked, and so all of its certificates.
    pub fn is_revoked(&self, key: &str) -> bool {
        self.revoked.contains_key(key)
    }
}

/// Returns a store of these authorities, for clients of servers that are not the cluster's own.
///
/// # Errors
/// Those of OpenSSL.
pub fn store_of(authorities: &[Certificate]) -> Result<X509Store, TrustError> {
    store(authorities).map_err(failed("set up TLS"))
}

/// Store of certificates that are trusted.
pub(super) fn store(authorities: &[Certificate]) -> Result<X509Store, openssl::error::ErrorStack> {
    let mut store = X509StoreBuilder::new()?;
    authorities.iter().try_for_each(|authority| store.add_cert(authority.0.clone()))?;
    Ok(store.build())
}

/// Begins a context that trusts these authorities and no other, unlike OpenSSL's connectors and acceptors.
pub(super) fn context(
    method: SslMethod,
    mode: SslVerifyMode,
    authorities: &[Certificate],
) -> Result<SslContextBuilder, openssl::error::ErrorStack> {
    let mut builder = SslContext::builder(method)?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    builder.set_cert_store(store(authorities)?);
    builder.set_verify(mode);
    // As in OpenSSL's own connectors: hyper goes on with a write from a buffer that may have moved. An idle connection
    // keeps no buffers.
    builder.set_mode(
        SslMode::ACCEPT_MOVING_WRITE_BUFFER | SslMode::ENABLE_PARTIAL_WRITE | SslMode::RELEASE_BUFFERS,
    );
    // A resumed session would not check the certificate again.
    builder.set_options(SslOptions::NO_TICKET);
    builder.set_num_tickets(0)?;
    builder.set_session_cache_mode(SslSessionCacheMode::OFF);
    Ok(builder)
}

/// The newest credentials; cheap to clone.
#[derive(Debug, Clone)]
pub struct TrustReader(watch::Receiver<Arc<Credentials>>);

impl TrustReader {
    /// Creates a reader of credentials that never change.
    pub fn fixed(credentials: Credentials) -> Self {
        Self(watch::channel(Arc::new(credentials)).1)
    }

    /// Returns the newest credentials.
    pub fn current(&self) -> Arc<Credentials> {
        Arc::clone(&self.0.borrow())
    }

    /// Waits for the next change; forever if there can be none.
    ///
    /// Cancel-safe: a change that was not seen stays so.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Owner of a daemon's credentials: writes changes to disk and publishes them.
#[derive(Debug)]
pub struct TrustKeeper {
    dir: TrustDir,
    newest: watch::Sender<Arc<Credentials>>,
}

impl TrustKeeper {
    /// Loads the credentials from a folder.
    ///
    /// # Errors
    /// Those of [`Credentials::load`].
    pub fn open(dir: TrustDir) -> Result<Self, TrustError> {
        let credentials = Credentials::load(&dir)?;
        Ok(Self { dir, newest: watch::Sender::new(Arc::new(credentials)) })
    }

    /// Returns a reader.
    pub fn reader(&self) -> TrustReader {
        TrustReader(self.newest.subscribe())
    }

    /// Returns the newest credentials.
    pub fn current(&self) -> Arc<Credentials> {
        Arc::clone(&self.newest.borrow())
    }

    /// Returns the folder.
    pub fn dir(&self) -> &TrustDir {
        &self.dir
    }

    /// Puts a renewed certificate and the trusted authorities in force, and writes what has changed.
    ///
    /// # Errors
    /// They do not fit together, then nothing changes; or they cannot be written.
    pub fn renew(&self, certificate: Certificate, authorities: Vec<Certificate>) -> Result<(), TrustError> {
        let next =
            Credentials::new(&self.dir.key()?, certificate, authorities, self.current().revoked.clone())?;
        // The authorities first: the certificate is of use with them only.
        self.dir.write_authorities(next.authorities())?;
        self.dir.write_certificate(next.certificate())?;
        self.newest.send_replace(Arc::new(next));
        Ok(())
    }

    /// Puts a list of revoked keys in force.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn revoke(&self, revoked: BTreeMap<KeyFingerprint, Timestamp>) -> Result<(), TrustError> {
        let current = self.current();
        if current.revoked == revoked {
            return Ok(());
        }
        self.dir.write_revoked(&revoked)?;
        self.newest.send_replace(Arc::new(Credentials { revoked, ..(*current).clone() }));
        Ok(())
    }

    /// Reads all files again.
    ///
    /// # Errors
    /// Those of [`Credentials::load`]; then the former credentials stay.
    pub fn reload(&self) -> Result<(), TrustError> {
        self.newest.send_replace(Arc::new(Credentials::load(&self.dir)?));
        Ok(())
    }
}
