//! Certificates of a cluster: an authority of its own, and what it has signed for daemons, for etcd and for the tests
//! themselves.

use std::path::{Path, PathBuf};

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use openssl::ssl::{SslAcceptor, SslFiletype, SslMethod};
use schema::keys::Key;
use schema::records::IdentityRecord;
use schema::trust::{
    AUTHORITY_DAYS, Authority, Certificate, Identity, LEAF_DAYS, LeafRequest, Role, TrustDir,
};

/// Age of what is signed: a story has clocks that are an hour behind.
const BACKDATED: SignedDuration = SignedDuration::from_hours(2);
/// Files of an identity that are the same in all of its folders.
const FILES: [&str; 3] = ["key.pem", "authorities.pem", "certificate.pem"];

/// An authority, and the folders of all identities that it has signed. An identity keeps its key.
#[derive(Debug)]
pub struct Trust {
    authority: Authority,
    dir: PathBuf,
    addresses: Vec<String>,
}

impl Trust {
    /// Creates an authority, with its files below `dir`. Servers are reached at these addresses.
    pub fn create(dir: &Path, addresses: &[&str]) -> Result<Self> {
        let authority = Authority::create(days(AUTHORITY_DAYS), Timestamp::now() - BACKDATED)?;
        let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
        Ok(Self { authority, dir: dir.join("trust"), addresses })
    }

    /// Signs an identity unless it was signed before; returns its folder.
    pub fn of(&self, identity: &Identity) -> Result<TrustDir> {
        let dir = TrustDir::new(self.dir.join(identity.to_string()));
        if !dir.is_filled() {
            let key = dir.ensure_key()?.public_key()?;
            let is_server = matches!(identity.role(), Role::Etcd | Role::Reconciler);
            let addresses = if is_server { &self.addresses[..] } else { &[] };
            let leaf = LeafRequest { identity, key: &key, addresses, lifetime: days(LEAF_DAYS) };
            dir.write_authorities(std::slice::from_ref(self.authority.certificate()))?;
            dir.write_certificate(&self.authority.sign(&leaf, Timestamp::now() - BACKDATED)?)?;
        }
        Ok(dir)
    }

    /// Signs a key, as at another time.
    pub fn sign_at(&self, leaf: &LeafRequest<'_>, at: Timestamp) -> Result<Certificate> {
        Ok(self.authority.sign(leaf, at)?)
    }

    /// Folder of a node.
    pub fn node(&self, name: &str) -> Result<TrustDir> {
        self.of(&Identity::new(Role::Node, name)?)
    }

    /// Folder of a reconciler.
    pub fn reconciler(&self, name: &str) -> Result<TrustDir> {
        self.of(&Identity::new(Role::Reconciler, name)?)
    }

    /// Folder of the tests as a user of the cluster.
    pub fn user(&self) -> Result<TrustDir> {
        self.of(&Identity::new(Role::User, "tests")?)
    }

    /// Fills the state directory of a node's agent, unless it is filled, as if it had joined.
    pub fn fill_node(&self, state_dir: &Path, name: &str) -> Result<()> {
        let pki = TrustDir::new(state_dir.join("agent/pki"));
        if pki.is_filled() { Ok(()) } else { copy(&self.node(name)?, &pki) }
    }

    /// Fills the state directory of a reconciler, unless it is filled. It gets the authority, too.
    pub fn fill_reconciler(&self, state_dir: &Path, name: &str) -> Result<()> {
        let pki = TrustDir::new(state_dir.join("reconciler/pki"));
        if pki.is_filled() {
            return Ok(());
        }
        copy(&self.reconciler(name)?, &pki)?;
        pki.write("authority.pem", self.authority.certificate().to_pem()?.as_bytes())?;
        Ok(pki.write("authority-key.pem", self.authority.key_pem()?.as_bytes())?)
    }

    /// Digest of the authority, as a token names it.
    pub fn pin(&self) -> Result<String> {
        Ok(self.authority.certificate().digest()?)
    }

    /// Record of an identity in etcd, as its join would have left it.
    pub fn record(&self, identity: &Identity) -> Result<(Key, IdentityRecord)> {
        let certificate = self.of(identity)?.certificate()?;
        let record = IdentityRecord {
            key: certificate.public_key()?.fingerprint()?,
            serials: [(certificate.serial()?, certificate.not_after()?)].into(),
            issuer: self.pin()?,
            not_after: certificate.not_after()?,
            joined_at: Timestamp::now(),
            recipient: None,
            api: None,
            authorities: Vec::new(),
            etcd_member: None,
            confirmed_roll: None,
        };
        Ok((Key::Identity(identity.to_string()), record))
    }
}

/// TLS acceptor of somebody who asks nobody for a certificate.
pub fn tls_acceptor(pki: &TrustDir) -> Result<SslAcceptor> {
    let mut acceptor = SslAcceptor::mozilla_modern_v5(SslMethod::tls_server())?;
    acceptor.set_certificate_file(pki.certificate_file(), SslFiletype::PEM)?;
    acceptor.set_private_key_file(pki.key_file(), SslFiletype::PEM)?;
    Ok(acceptor.build())
}

fn copy(from: &TrustDir, to: &TrustDir) -> Result<()> {
    FILES.iter().try_for_each(|name| Ok(to.write(name, from.read(name)?.as_bytes())?))
}

fn days(count: u32) -> SignedDuration {
    SignedDuration::from_hours(24 * i64::from(count))
}
