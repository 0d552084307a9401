//! Keys and certificates of this machine: the authority of the cluster, what it signs here, and the list of certificates
//! that its member of etcd refuses.
//!
//! Reads and writes `<state-dir>/reconciler/pki` and `<state-dir>/agent/pki`. A second call changes nothing while all
//! certificates are good. A certificate is good if it is that of the own key, has its name and addresses, is signed by the
//! own authority, and is not past two thirds of its validity. Another name has another key: whoever removes the former name
//! revokes its key. Another authority takes the place of the own one as a whole, whenever the process ends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::{fs, io};

use jiff::{SignedDuration, Timestamp};
use schema::control::lock;
use schema::trust::{
    AUTHORITY_DAYS, Authority, Certificate, Identity, KeyFingerprint, LeafRequest, PublicKey, Role, Serial,
    TlsFiles, TrustDir, TrustError, TrustKeeper, bundle_to_pem, revoked_serials,
};
use serde::{Deserialize, Serialize};

/// File with the certificate of the authority that signs.
const AUTHORITY_FILE: &str = "authority.pem";
/// File with its key.
pub(crate) const AUTHORITY_KEY_FILE: &str = "authority-key.pem";
/// File with both of the authority that takes their place, while it does.
const NEXT_AUTHORITY_FILE: &str = "authority-next.json";

/// Certificates that this machine's member of etcd refuses (CRL, PEM): etcd knows its clients by name alone, and the former
/// certificate of a name that was given again would log in until its end. It reads the list at each handshake, and refuses
/// every client if it cannot.
const LIST_FILE: &str = "refused.pem";
/// Serial numbers in it, each with the end of its certificate.
const ENDS_FILE: &str = "refused.json";

/// Refused serial numbers, each with the end of its certificate.
pub(super) type RefusedSerials = BTreeMap<Serial, Timestamp>;

/// Settings of a reconciler's trust.
#[derive(Debug, Clone)]
pub(crate) struct TrustSettings {
    /// Name of the reconciler.
    pub(crate) name: String,
    /// Addresses and host names of its API, for browsers and curl.
    pub(crate) addresses: Vec<String>,
    /// Validity of the authority, if it is created.
    pub(crate) authority_days: u32,
    /// Validity of certificates of daemons.
    pub(crate) certificate_lifetime: SignedDuration,
}

/// A reconciler's own credentials, and the authority that signs.
#[derive(Debug, Clone)]
pub(crate) struct OwnTrust {
    pub(crate) keeper: Arc<TrustKeeper>,
    /// The authority that signs, which a rotation replaces. Clones share it.
    pub(super) signer: Arc<Mutex<Arc<Authority>>>,
}

/// A certificate that this machine needs.
struct Leaf<'a> {
    identity: Identity,
    addresses: &'a [String],
    lifetime: SignedDuration,
}

/// Validity of the certificate of an etcd that is not ours: somebody copies it to its machines.
const USERS_ETCD_DAYS: u32 = 365;

/// A reconciler that worked for a cluster without certificates, as versions before them did.
#[derive(Debug, thiserror::Error)]
#[error(
    "this reconciler has served a cluster without certificates: stop all daemons of the cluster, and run 'minik8s trust \
     enable' once, on one reconciler (docs/operations.md, \"Upgrading a cluster without certificates\")"
)]
pub(crate) struct UpgradeError;

/// A reconciler that was removed from its cluster.
#[derive(Debug, thiserror::Error)]
#[error(
    "this reconciler was removed from the cluster, and its key is revoked: to let it join again, remove \
     <state-dir>/reconciler/pki (and <state-dir>/etcd, if it had a member of etcd), and run the command that 'minik8s \
     token create --reconciler NAME' prints on another one"
)]
pub(crate) struct RemovedError;

/// Folder of a reconciler's keys and certificates, and of the authority that signs.
pub(crate) fn pki_dir(state_dir: &Path) -> TrustDir {
    TrustDir::new(state_dir.join("reconciler").join("pki"))
}

/// Folder of the certificate of this machine's own member of etcd.
pub(crate) fn etcd_pki_dir(state_dir: &Path) -> TrustDir {
    TrustDir::new(pki_dir(state_dir).path().join("etcd"))
}

/// Returns the certificate of this machine's member of etcd; `None` if there is none, or it cannot be read.
pub(super) fn etcd_certificate(state_dir: &Path) -> Option<Certificate> {
    etcd_pki_dir(state_dir).certificate().ok()
}

/// Returns the certificate of this machine's node; `None` if there is none, or it cannot be read.
pub(super) fn node_certificate(state_dir: &Path) -> Option<Certificate> {
    node_pki_dir(state_dir).certificate().ok()
}

fn node_pki_dir(state_dir: &Path) -> TrustDir {
    TrustDir::new(state_dir.join("agent").join("pki"))
}

/// Returns the name in the reconciler's certificate, if it has one.
pub(crate) fn known_name(state_dir: &Path) -> Option<String> {
    let identity = pki_dir(state_dir).certificate().ok()?.identity().ok()?;
    (identity.role() == Role::Reconciler).then(|| identity.name().to_owned())
}

/// Returns the name in the certificate of this machine's node, if it has one.
pub(crate) fn known_node(state_dir: &Path) -> Option<String> {
    node_certificate(state_dir)?.identity().ok()?.node().map(str::to_owned)
}

/// True if this machine has the cluster's authority, or has had it.
pub(crate) fn has_authority(state_dir: &Path) -> bool {
    let dir = pki_dir(state_dir);
    dir.authorities_file().exists() || dir.path().join(AUTHORITY_FILE).exists()
}

/// Refuses a reconciler that would give a cluster without certificates an authority in silence: others of that cluster
/// would do the same.
///
/// # Errors
/// It has read repositories, and has no authority.
pub(crate) fn check_upgraded(state_dir: &Path) -> Result<(), UpgradeError> {
    let own = state_dir.join("reconciler");
    let has_served = ["mirrors", "last-known.json"].iter().any(|name| own.join(name).exists());
    if has_served && !has_authority(state_dir) { Err(UpgradeError) } else { Ok(()) }
}

/// Addresses and host names for the certificates of this machine's servers, sorted.
pub(crate) fn server_addresses(listen: IpAddr, advertised: Option<&str>) -> Vec<String> {
    let own = ["127.0.0.1", "::1", "localhost"].map(str::to_owned);
    let listened = Some(listen).filter(|ip| !ip.is_unspecified()).map(|ip| ip.to_string());
    let all: BTreeSet<String> =
        own.into_iter().chain(listened).chain(advertised.map(str::to_owned)).collect();
    all.into_iter().collect()
}

/// Opens the folder of a reconciler. Creates the authority if the folder is new, and signs the own certificate if it is
/// not good.
///
/// # Errors
/// A file can't be read or written, the authority is damaged or missing from a folder in use, or the name is in no
/// certificate.
pub(crate) fn open(
    state_dir: &Path,
    settings: &TrustSettings,
    now: Timestamp,
) -> Result<OwnTrust, TrustError> {
    let dir = pki_dir(state_dir);
    let authority = ensure_authority(&dir, days(settings.authority_days), now)?;
    ensure(&dir, &authority, &own_leaf(settings)?, now)?;
    let signer = Arc::new(Mutex::new(Arc::new(authority)));
    Ok(OwnTrust { keeper: Arc::new(TrustKeeper::open(dir)?), signer })
}

impl OwnTrust {
    /// Returns the fingerprint of the own key.
    ///
    /// # Errors
    /// Those of OpenSSL.
    pub(crate) fn key(&self) -> Result<KeyFingerprint, TrustError> {
        self.keeper.current().certificate().public_key()?.fingerprint()
    }

    /// Returns true if the own key is revoked.
    ///
    /// # Errors
    /// Those of OpenSSL.
    pub(crate) fn is_removed(&self) -> Result<bool, TrustError> {
        Ok(self.keeper.current().is_revoked(&self.key()?))
    }

    /// Returns the authority that signs.
    pub(crate) fn authority(&self) -> Arc<Authority> {
        Arc::clone(&lock(&self.signer))
    }

    /// Signs with another authority from now on.
    ///
    /// # Errors
    /// It cannot be written; then the former one signs until the next start at least.
    pub(super) fn adopt(&self, next: Authority) -> Result<(), TrustError> {
        replace_authority(self.keeper.dir(), &next)?;
        *lock(&self.signer) = Arc::new(next);
        Ok(())
    }

    /// Signs the own certificate again if it is not good any more, and puts it in force. Returns true if it did.
    ///
    /// # Errors
    /// Same as [`open`].
    pub(crate) fn renew(&self, settings: &TrustSettings, now: Timestamp) -> Result<bool, TrustError> {
        let is_signed = ensure(self.keeper.dir(), &self.authority(), &own_leaf(settings)?, now)?;
        if is_signed {
            self.keeper.reload()?;
        }
        Ok(is_signed)
    }
}

/// Signs the certificate of this machine's member of etcd if it is not good, and writes the list of refused ones if it is
/// missing.
///
/// # Errors
/// Same as [`open`].
pub(crate) fn sign_etcd(
    state_dir: &Path,
    addresses: &[String],
    lifetime: SignedDuration,
    now: Timestamp,
) -> Result<TlsFiles, TrustError> {
    let dir = etcd_pki_dir(state_dir);
    let leaf = Leaf { identity: Identity::etcd(), addresses, lifetime };
    let authority = sign_into(state_dir, &dir, &leaf, now)?;
    ensure_refused(&dir, &authority, now)?;
    Ok(dir.tls_files())
}

/// Has this machine's member of etcd, which is about to start for the first time, refuse these certificates.
///
/// # Errors
/// Same as [`open`].
pub(super) fn write_first_refusals(
    state_dir: &Path,
    refused: &RefusedSerials,
    now: Timestamp,
) -> Result<(), TrustError> {
    let authority = ensure_authority(&pki_dir(state_dir), days(AUTHORITY_DAYS), now)?;
    write_refused(&etcd_pki_dir(state_dir), &authority, refused, now)
}

/// Signs the certificate of this machine's member of etcd, if it has one, again with its own addresses if it is not good,
/// and writes its list of authorities. etcd reads the certificate at each handshake, and the list when it starts.
///
/// # Errors
/// Same as [`open`].
pub(crate) fn renew_etcd(
    state_dir: &Path,
    lifetime: SignedDuration,
    now: Timestamp,
) -> Result<(), TrustError> {
    match etcd_certificate(state_dir) {
        Some(etcd) => sign_etcd(state_dir, &etcd.addresses(), lifetime, now).map(drop),
        None => Ok(()),
    }
}

/// Signs the certificate of an etcd that is not ours, if it is not good; returns the folder with it.
///
/// # Errors
/// Same as [`open`].
pub(crate) fn sign_users_etcd(
    state_dir: &Path,
    addresses: &[String],
    now: Timestamp,
) -> Result<TrustDir, TrustError> {
    let dir = TrustDir::new(pki_dir(state_dir).path().join("users-etcd"));
    let leaf = Leaf { identity: Identity::etcd(), addresses, lifetime: days(USERS_ETCD_DAYS) };
    sign_into(state_dir, &dir, &leaf, now)?;
    Ok(dir)
}

/// Signs the certificate of this machine's own node if it is not good.
///
/// # Errors
/// Same as [`open`].
pub(crate) fn sign_node(
    state_dir: &Path,
    node: &str,
    lifetime: SignedDuration,
    now: Timestamp,
) -> Result<(), TrustError> {
    let dir = node_pki_dir(state_dir);
    if let (Ok(key), Ok(revoked)) = (dir.key(), pki_dir(state_dir).revoked())
        && revoked.contains_key(&key.public_key()?.fingerprint()?)
    {
        return Err(TrustError::Content(format!(
            "the key of node-{node} was revoked: the node was removed, or another machine has its name; remove {}, and give \
             this one another --node if so",
            dir.path().display()
        )));
    }
    let leaf = Leaf { identity: named(Role::Node, node)?, addresses: &[], lifetime };
    sign_into(state_dir, &dir, &leaf, now).map(drop)
}

/// Signs a certificate into a folder if the one there is not good; returns the authority.
fn sign_into(
    state_dir: &Path,
    dir: &TrustDir,
    leaf: &Leaf<'_>,
    now: Timestamp,
) -> Result<Authority, TrustError> {
    let own = pki_dir(state_dir);
    let authority = ensure_authority(&own, days(AUTHORITY_DAYS), now)?;
    // While authorities change, the reconciler trusts two.
    ensure_trusted(dir, &own.authorities()?)?;
    ensure(dir, &authority, leaf, now)?;
    Ok(authority)
}

/// Returns the list for etcd, in the folder of its certificate.
pub(crate) fn refused_file(dir: &TrustDir) -> PathBuf {
    dir.path().join(LIST_FILE)
}

/// Reads what the member refuses.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub(super) fn read_refused(dir: &TrustDir) -> Result<RefusedSerials, TrustError> {
    match dir.read(ENDS_FILE) {
        Err(error) if error.is_missing() => Ok(RefusedSerials::new()),
        text => serde_json::from_str(&text?).map_err(|error| {
            TrustError::Content(format!("{}: {error}", dir.path().join(ENDS_FILE).display()))
        }),
    }
}

/// Has the member refuse these from the next handshake on.
///
/// # Errors
/// A file cannot be written, or those of OpenSSL.
pub(super) fn write_refused(
    dir: &TrustDir,
    authority: &Authority,
    refused: &RefusedSerials,
    now: Timestamp,
) -> Result<(), TrustError> {
    let text = serde_json::to_string(refused).map_err(|error| TrustError::Content(error.to_string()))?;
    dir.write(LIST_FILE, authority.sign_revocations(refused.keys(), now)?.as_bytes())?;
    // Last: what it has is in the list.
    dir.write(ENDS_FILE, text.as_bytes())
}

/// Writes the list if it is missing or damaged: etcd would refuse everybody.
///
/// # Errors
/// A file cannot be written, or those of OpenSSL.
fn ensure_refused(dir: &TrustDir, authority: &Authority, now: Timestamp) -> Result<(), TrustError> {
    match dir.read(LIST_FILE).and_then(|list| revoked_serials(&list)) {
        Ok(_) => Ok(()),
        // With damaged serial numbers it begins anew.
        Err(_) => write_refused(dir, authority, &read_refused(dir).unwrap_or_default(), now),
    }
}

fn own_leaf(settings: &TrustSettings) -> Result<Leaf<'_>, TrustError> {
    let identity = named(Role::Reconciler, &settings.name)?;
    Ok(Leaf { identity, addresses: &settings.addresses, lifetime: settings.certificate_lifetime })
}

fn named(role: Role, name: &str) -> Result<Identity, TrustError> {
    Identity::new(role, name).map_err(|error| TrustError::Content(error.to_string()))
}

fn days(count: u32) -> SignedDuration {
    SignedDuration::from_hours(24 * i64::from(count))
}

/// Reads the authority that signs. Creates one in a folder that trusts none yet: a second one would divide the cluster.
fn ensure_authority(
    dir: &TrustDir,
    lifetime: SignedDuration,
    now: Timestamp,
) -> Result<Authority, TrustError> {
    finish_replacement(dir)?;
    let authority = match dir.read(AUTHORITY_FILE) {
        Ok(certificate) => Authority::from_pem(&certificate, &dir.read(AUTHORITY_KEY_FILE)?)?,
        Err(error) if !error.is_missing() || dir.authorities_file().exists() => return Err(error),
        Err(_) => {
            let authority = Authority::create(lifetime, now)?;
            write_authority(dir, &authority)?;
            authority
        }
    };
    if !dir.authorities_file().exists() {
        dir.write_authorities(std::slice::from_ref(authority.certificate()))?;
    }
    Ok(authority)
}

/// Writes the authority that signs. The list of trusted authorities comes after it: a folder that has the list has its
/// authority.
pub(crate) fn write_authority(dir: &TrustDir, authority: &Authority) -> Result<(), TrustError> {
    // The key first: a certificate without it would be damage.
    dir.write(AUTHORITY_KEY_FILE, authority.key_pem()?.as_bytes())?;
    dir.write(AUTHORITY_FILE, authority.certificate().to_pem()?.as_bytes())
}

/// Puts another authority in the place of the one that signs. Its certificate and its key are two files, and one without
/// the other would be damage: until both are written, a third file has both.
fn replace_authority(dir: &TrustDir, next: &Authority) -> Result<(), TrustError> {
    dir.write(NEXT_AUTHORITY_FILE, AuthorityText::of(next)?.to_json()?.as_bytes())?;
    finish_replacement(dir)
}

/// Finishes the replacement of the authority that a former process has begun.
fn finish_replacement(dir: &TrustDir) -> Result<(), TrustError> {
    let text = match dir.read(NEXT_AUTHORITY_FILE) {
        Err(error) if error.is_missing() => return Ok(()),
        text => text?,
    };
    write_authority(dir, &AuthorityText::parse(&text)?)?;
    remove(dir.path().join(NEXT_AUTHORITY_FILE))
}

fn remove(path: PathBuf) -> Result<(), TrustError> {
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(TrustError::File { act: "remove", path, source })
        }
        _ => Ok(()),
    }
}

/// Certificate and key of an authority as one text.
#[derive(Serialize, Deserialize)]
pub(crate) struct AuthorityText {
    /// PEM.
    certificate: String,
    /// PEM.
    key: String,
}

impl AuthorityText {
    pub(super) fn of(authority: &Authority) -> Result<Self, TrustError> {
        Ok(Self { certificate: authority.certificate().to_pem()?, key: authority.key_pem()? })
    }

    pub(super) fn to_json(&self) -> Result<String, TrustError> {
        serde_json::to_string(self).map_err(|error| TrustError::Content(error.to_string()))
    }

    /// Reads an authority.
    ///
    /// # Errors
    /// Parts are missing, damaged, or do not belong together.
    pub(crate) fn parse(text: &str) -> Result<Authority, TrustError> {
        // Not the error's own text, which may repeat a part of the key.
        let read: Self = serde_json::from_str(text)
            .map_err(|_| TrustError::Content("no certificate and key of an authority".to_owned()))?;
        Authority::from_pem(&read.certificate, &read.key)
    }
}

fn ensure_trusted(dir: &TrustDir, authorities: &[Certificate]) -> Result<(), TrustError> {
    let wanted = bundle_to_pem(authorities)?;
    let found = dir.authorities().and_then(|found| bundle_to_pem(&found));
    if found.is_ok_and(|found| found == wanted) { Ok(()) } else { dir.write_authorities(authorities) }
}

/// Signs a certificate if the one in the folder is not good. Returns true if it did.
fn ensure(
    dir: &TrustDir,
    authority: &Authority,
    leaf: &Leaf<'_>,
    now: Timestamp,
) -> Result<bool, TrustError> {
    let found = match dir.certificate() {
        Err(error @ TrustError::File { .. }) if !error.is_missing() => return Err(error),
        // Missing or damaged.
        found => found.ok(),
    };
    let Leaf { identity, addresses, lifetime } = leaf;
    match found.as_ref().and_then(|found| found.identity().ok()) {
        Some(named) if named != *identity => remove(dir.key_file())?,
        // Another key would be that of another machine.
        Some(_) if !dir.key_file().exists() => {
            let (key, folder) = (dir.key_file(), dir.path());
            return Err(TrustError::Content(format!(
                "the key {} of {identity} is missing: restore it; without it, remove the folder {} and let the machine \
                 join again",
                key.display(),
                folder.display()
            )));
        }
        _ => {}
    }
    let key = dir.ensure_key()?.public_key()?;
    if let Some(found) = found
        && is_good(&found, authority, &key, leaf, now)?
    {
        return Ok(false);
    }
    let request = LeafRequest { identity, key: &key, addresses, lifetime: *lifetime };
    dir.write_certificate(&authority.sign(&request, now)?)?;
    Ok(true)
}

fn is_good(
    certificate: &Certificate,
    authority: &Authority,
    key: &PublicKey,
    leaf: &Leaf<'_>,
    now: Timestamp,
) -> Result<bool, TrustError> {
    let canonical = |text: &String| text.parse::<IpAddr>().map_or_else(|_| text.clone(), |ip| ip.to_string());
    let signed: BTreeSet<String> = certificate.addresses().into_iter().collect();
    Ok(certificate.not_before()? <= now
        && now < certificate.renew_at()?
        && certificate.identity().is_ok_and(|found| found == leaf.identity)
        && certificate.public_key()?.is(key)
        && certificate.is_signed_by(authority.certificate())
        && leaf.addresses.iter().map(canonical).all(|address| signed.contains(&address)))
}

#[cfg(test)]
#[path = "setup_tests.rs"]
mod tests;
