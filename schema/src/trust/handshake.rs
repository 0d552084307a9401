//! The two ends of a TLS connection.

use std::io;
use std::pin::Pin;

use openssl::ssl::{Ssl, SslContext, SslContextBuilder, SslMethod, SslRef, SslVerifyMode};
use openssl::stack::Stack;
use openssl::x509::{X509ExtendedKeyUsage, X509Ref, X509StoreContext, X509VerifyResult};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_openssl::SslStream;

use super::certificate::identity_of;
use super::credentials::{context, store};
use super::{Certificate, Credentials, Identity, KeyFingerprint, PublicKey, Role, TrustError, failed};
use crate::errors::error_chain;

/// The other side of a connection, as its certificate names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub identity: Identity,
    /// Fingerprint of its key.
    pub key: KeyFingerprint,
}

/// The server that a client means to reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// Any one with this role.
    Role(Role),
    /// This one.
    Identity(Identity),
}

/// Protocol that a client means to speak. Servers of HTTP/2 want to know it before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2: etcd's.
    Http2,
}

/// A connection that came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// Own certificates cannot be used.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The other side is not trusted, does not trust us, or is gone.
    #[error("no TLS connection: {0}")]
    Handshake(String),
    /// The key of the other side was revoked.
    #[error("the key of {0} was revoked")]
    Revoked(Identity),
    /// Somebody else answered.
    #[error("{found} answered in place of {expected}")]
    WrongPeer {
        /// Who was meant.
        expected: String,
        /// Who answered.
        found: Identity,
    },
}

impl Expected {
    /// Returns true if the identity is that.
    pub fn is(&self, identity: &Identity) -> bool {
        match self {
            Self::Role(role) => identity.role() == *role,
            Self::Identity(expected) => identity == expected,
        }
    }
}

impl std::fmt::Display for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Role(Role::Etcd) => f.write_str("etcd"),
            Self::Role(role) => write!(f, "a {role}"),
            Self::Identity(identity) => write!(f, "{identity}"),
        }
    }
}

impl Peer {
    /// Returns the other side of an established connection; `None` if it has shown no certificate.
    fn of(ssl: &SslRef) -> Result<Option<Self>, TrustError> {
        ssl.peer_certificate().map(|certificate| Self::with(&certificate)).transpose()
    }

    fn with(certificate: &X509Ref) -> Result<Self, TrustError> {
        let key = certificate.public_key().map(PublicKey).map_err(failed("read the key of a certificate"))?;
        Ok(Self { identity: identity_of(certificate)?, key: key.fingerprint()? })
    }
}

/// Returns true if a certificate with this extended key usage is that of a client. Of the usage of users OpenSSL shows
/// nothing.
fn is_client(role: Role, usage: Option<X509ExtendedKeyUsage>) -> bool {
    usage.is_some_and(|usage| match role {
        Role::User => usage.is_empty(),
        Role::Node | Role::Reconciler | Role::Etcd => usage.contains(X509ExtendedKeyUsage::SSL_CLIENT),
    })
}

/// Accepts a connection. Its client is `None` if it has no certificate; one of another authority, of a revoked key, or
/// for servers only, is an error.
///
/// # Errors
/// [`HandshakeError`]. The caller bounds the time.
pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    credentials: &Credentials,
) -> Result<(SslStream<S>, Option<Peer>), HandshakeError> {
    let mut tls = begin(stream, &credentials.server)?;
    let done = Pin::new(&mut tls).accept().await;
    done.map_err(|error| refused(&error, tls.ssl()))?;
    let Some(certificate) = tls.ssl().peer_certificate() else { return Ok((tls, None)) };
    let peer = Peer::with(&certificate)?;
    if !is_client(peer.identity.role(), certificate.extended_key_usage()) {
        let why = format!("the certificate of {} is not that of a client", peer.identity);
        return Err(HandshakeError::Handshake(why));
    }
    match credentials.is_revoked(&peer.key) {
        true => Err(HandshakeError::Revoked(peer.identity)),
        false => Ok((tls, Some(peer))),
    }
}

/// Accepts a connection with another certificate than the cluster's, without asking for the client's.
///
/// # Errors
/// [`HandshakeError`]. The caller bounds the time.
pub async fn accept_public<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    context: &SslContext,
) -> Result<SslStream<S>, HandshakeError> {
    let mut tls = begin(stream, context)?;
    let done = Pin::new(&mut tls).accept().await;
    done.map_err(|error| refused(&error, tls.ssl()))?;
    Ok(tls)
}

/// Connects to a server of the cluster, and checks that it is the expected one.
///
/// # Errors
/// [`HandshakeError`]. The caller bounds the time.
pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    credentials: &Credentials,
    expected: &Expected,
    protocol: Protocol,
) -> Result<SslStream<S>, HandshakeError> {
    let mut ssl = Ssl::new(&credentials.client).map_err(failed("begin a TLS connection"))?;
    if protocol == Protocol::Http2 {
        ssl.set_alpn_protos(b"\x02h2").map_err(failed("begin a TLS connection"))?;
    }
    reach(ssl, stream, credentials, expected).await
}

/// Connects like [`connect`], but shows no certificate: a server takes none that has ended.
///
/// # Errors
/// [`HandshakeError`]. The caller bounds the time.
pub async fn connect_anonymous<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    credentials: &Credentials,
    expected: &Expected,
) -> Result<SslStream<S>, HandshakeError> {
    let context = context(SslMethod::tls_client(), SslVerifyMode::PEER, credentials.authorities());
    let context = context.map(SslContextBuilder::build).map_err(failed("set up TLS"))?;
    let ssl = Ssl::new(&context).map_err(failed("begin a TLS connection"))?;
    reach(ssl, stream, credentials, expected).await
}

/// Does the handshake of a client, and checks the server.
async fn reach<S: AsyncRead + AsyncWrite + Unpin>(
    ssl: Ssl,
    stream: S,
    credentials: &Credentials,
    expected: &Expected,
) -> Result<SslStream<S>, HandshakeError> {
    let mut tls = SslStream::new(ssl, stream).map_err(failed("begin a TLS connection"))?;
    let done = Pin::new(&mut tls).connect().await;
    done.map_err(|error| refused(&error, tls.ssl()))?;
    let Some(peer) = Peer::of(tls.ssl())? else {
        return Err(HandshakeError::Handshake("the server has shown no certificate".to_owned()));
    };
    if credentials.is_revoked(&peer.key) {
        return Err(HandshakeError::Revoked(peer.identity));
    }
    match expected.is(&peer.identity) {
        true => Ok(tls),
        false => Err(HandshakeError::WrongPeer { expected: expected.to_string(), found: peer.identity }),
    }
}

/// Connects to a reconciler without a certificate of one's own: by the digest of its authority ([`Certificate::digest`]).
///
/// # Errors
/// [`HandshakeError`]; [`HandshakeError::Handshake`] if the server has another authority. The caller bounds the time.
pub async fn connect_pinned<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    pin: &str,
) -> Result<SslStream<S>, HandshakeError> {
    // Checked below, once its authority is known.
    let context = context(SslMethod::tls_client(), SslVerifyMode::NONE, &[]);
    let context = context.map(SslContextBuilder::build).map_err(failed("set up TLS"))?;
    let mut tls = begin(stream, &context)?;
    let done = Pin::new(&mut tls).connect().await;
    done.map_err(|error| refused(&error, tls.ssl()))?;
    check_pinned(tls.ssl(), pin)?;
    let expected = Expected::Role(Role::Reconciler);
    match Peer::of(tls.ssl())? {
        Some(peer) if expected.is(&peer.identity) => Ok(tls),
        Some(peer) => Err(HandshakeError::WrongPeer { expected: expected.to_string(), found: peer.identity }),
        None => Err(HandshakeError::Handshake("the server has shown no certificate".to_owned())),
    }
}

/// Checks that the pinned authority has signed the server's certificate.
fn check_pinned(ssl: &SslRef, pin: &str) -> Result<(), HandshakeError> {
    let refused = |why: &str| HandshakeError::Handshake(why.to_owned());
    let shown: Vec<_> =
        ssl.peer_cert_chain().into_iter().flatten().map(|one| Certificate(one.to_owned())).collect();
    let pinned = |one: &&Certificate| one.digest().is_ok_and(|digest| digest == pin);
    let authority = shown.iter().find(pinned).ok_or_else(|| {
        refused("the server does not have the authority that the token names; is this the right cluster?")
    })?;
    let Some(leaf) = ssl.peer_certificate() else {
        return Err(refused("the server has shown no certificate"));
    };
    let failed = failed("check the server's certificate");
    let verified = store(std::slice::from_ref(authority)).and_then(|store| {
        let mut context = X509StoreContext::new()?;
        context.init(&store, &leaf, &*Stack::new()?, |context| {
            context.verify_cert().map(|valid| (valid, context.error()))
        })
    });
    match verified.map_err(failed)? {
        (true, _) => Ok(()),
        (false, why) => Err(refused(why.error_string())),
    }
}

fn begin<S: AsyncRead + AsyncWrite>(stream: S, context: &SslContext) -> Result<SslStream<S>, HandshakeError> {
    let failed = failed("begin a TLS connection");
    let ssl = Ssl::new(context).map_err(&failed)?;
    Ok(SslStream::new(ssl, stream).map_err(&failed)?)
}

fn refused(error: &openssl::ssl::Error, ssl: &SslRef) -> HandshakeError {
    let why = match ssl.verify_result() {
        X509VerifyResult::OK => error_chain(error),
        // More telling than "certificate verify failed".
        why => format!("certificate of the other side: {}", why.error_string()),
    };
    HandshakeError::Handshake(why)
}

impl From<HandshakeError> for io::Error {
    fn from(error: HandshakeError) -> Self {
        io::Error::other(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_the_usage_of_one_and_a_user_its_own() {
        let (client, server) = (X509ExtendedKeyUsage::SSL_CLIENT, X509ExtendedKeyUsage::SSL_SERVER);
        for (usage, of_node, of_user) in [
            (Some(client | server), true, false),
            (Some(client), true, false),
            (Some(X509ExtendedKeyUsage::empty()), false, true),
            (Some(server), false, false),
            (None, false, false),
        ] {
            assert_eq!(is_client(Role::Node, usage), of_node, "{usage:?}");
            assert_eq!(is_client(Role::User, usage), of_user, "{usage:?}");
        }
    }
}
