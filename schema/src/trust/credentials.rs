//! Credentials of a daemon: own certificate and trusted authorities, ready for connections; and their newest version.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use openssl::ssl::{
    SslContext, SslContextBuilder, SslMethod, SslMode, SslOptions, SslSessionCacheMode, SslVerifyMode,
    SslVersion,
};
use openssl::x509::X509PurposeId;
use openssl::x509::store::{X509Store, X509StoreBuilder};
use tokio::sync::watch;

use super::{Certificate, Identity, KeyFingerprint, KeyPair, TrustDir, TrustError, failed};
use crate::mutex::lock;

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
        let context = |method, purpose| {
            let built = context(method, SslVerifyMode::PEER, &authorities).and_then(|mut builder| {
                builder.verify_param_mut().set_purpose(purpose)?;
                builder.set_certificate(&certificate.0)?;
                builder.set_private_key(&key.0)?;
                builder.add_extra_chain_cert(issuer.0.clone())?;
                builder.check_private_key()?;
                Ok(builder.build())
            });
            built.map_err(failed("set up TLS"))
        };
        // A client may have no certificate: a machine that joins. What it may do is decided for each request.
        // Its purpose is checked after the handshake: OpenSSL does not know that of users.
        let server = context(SslMethod::tls_server(), X509PurposeId::ANY)?;
        let client = context(SslMethod::tls_client(), X509PurposeId::SSL_SERVER)?;
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

/// Owner of a daemon's credentials: publishes changes and writes them to disk.
#[derive(Debug)]
pub struct TrustKeeper {
    dir: TrustDir,
    newest: watch::Sender<Arc<Credentials>>,
    /// Held during each change, so that two of them lose nothing. True if revoked keys are not on disk yet.
    changing: Mutex<bool>,
}

impl TrustKeeper {
    /// Loads the credentials from a folder.
    ///
    /// # Errors
    /// Those of [`Credentials::load`].
    pub fn open(dir: TrustDir) -> Result<Self, TrustError> {
        let credentials = Credentials::load(&dir)?;
        Ok(Self { dir, newest: watch::Sender::new(Arc::new(credentials)), changing: Mutex::default() })
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

    /// Puts a renewed certificate and the trusted authorities in force, and writes them.
    ///
    /// # Errors
    /// They do not fit together, then nothing changes; or they cannot be written, then additional authorities are not
    /// in force.
    pub fn renew(&self, certificate: Certificate, authorities: Vec<Certificate>) -> Result<(), TrustError> {
        let _changing = lock(&self.changing);
        let (key, current) = (self.dir.key()?, self.current());
        let next = Credentials::new(&key, certificate, authorities, current.revoked.clone())?;
        // A full disk keeps no former authority in force. An additional one is on disk before anyone can report that
        // it is trusted here: it must not be forgotten.
        let is_known = |authority: &&Certificate| current.authorities.iter().any(|it| it.0 == authority.0);
        let known = next.authorities.iter().filter(is_known).cloned().collect();
        if let Ok(known) = Credentials::new(&key, next.certificate.clone(), known, next.revoked.clone()) {
            self.newest.send_replace(Arc::new(known));
        }
        // The authorities first: the certificate is of use with them only.
        self.dir.write_authorities(next.authorities())?;
        self.dir.write_certificate(next.certificate())?;
        self.newest.send_replace(Arc::new(next));
        Ok(())
    }

    /// Puts revoked keys in force and writes them, beside those of before that would still be of use.
    ///
    /// # Errors
    /// They cannot be written, but are in force. The next call writes them, too.
    pub fn revoke(&self, revoked: BTreeMap<KeyFingerprint, Timestamp>) -> Result<(), TrustError> {
        let mut is_unwritten = lock(&self.changing);
        let (current, now) = (self.current(), Timestamp::now());
        let mut all = current.revoked.clone();
        all.retain(|_, until| *until > now);
        all.extend(revoked);
        if current.revoked == all && !*is_unwritten {
            return Ok(());
        }
        let next = Arc::new(Credentials { revoked: all, ..(*current).clone() });
        self.newest.send_replace(Arc::clone(&next));
        *is_unwritten = true;
        self.dir.write_revoked(&next.revoked)?;
        *is_unwritten = false;
        Ok(())
    }

    /// Reads all files again.
    ///
    /// # Errors
    /// Those of [`Credentials::load`]; then the former credentials stay.
    pub fn reload(&self) -> Result<(), TrustError> {
        let is_unwritten = lock(&self.changing);
        let mut next = Credentials::load(&self.dir)?;
        if *is_unwritten {
            next.revoked.extend(self.current().revoked.clone());
        }
        self.newest.send_replace(Arc::new(next));
        Ok(())
    }
}
