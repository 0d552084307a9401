//! Keys and certificates of this machine: the authority of the cluster, and what it signs here.
//!
//! Reads and writes `<state-dir>/reconciler/pki` and `<state-dir>/agent/pki`. A second call changes nothing while all
//! certificates are good. A certificate is good if it is that of the own key, has its name and addresses, is signed by the
//! own authority, and is not past two thirds of its validity. Another authority takes the place of the own one as a whole,
//! whenever the process ends.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::{fs, io};

use jiff::{SignedDuration, Timestamp};
use schema::control::lock;
use schema::trust::{
    AUTHORITY_DAYS, Authority, Certificate, Identity, LEAF_DAYS, LeafRequest, PublicKey, Role, TlsFiles,
    TrustDir, TrustError, TrustKeeper, bundle_to_pem,
};
use serde::{Deserialize, Serialize};

/// File with the certificate of the authority that signs.
const AUTHORITY_FILE: &str = "authority.pem";
/// File with its key.
pub(crate) const AUTHORITY_KEY_FILE: &str = "authority-key.pem";
/// File with both of the authority that takes their place, while it does.
const NEXT_AUTHORITY_FILE: &str = "authority-next.json";

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

/// Folder of a reconciler's keys and certificates, and of the authority that signs.
pub(crate) fn pki_dir(state_dir: &Path) -> TrustDir {
    TrustDir::new(state_dir.join("reconciler").join("pki"))
}

/// Folder of the certificate of this machine's own member of etcd.
pub(crate) fn etcd_pki_dir(state_dir: &Path) -> TrustDir {
    TrustDir::new(pki_dir(state_dir).path().join("etcd"))
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

/// Signs the certificate of this machine's member of etcd if it is not good.
///
/// # Errors
/// Same as [`open`].
pub(crate) fn sign_etcd(
    state_dir: &Path,
    addresses: &[String],
    now: Timestamp,
) -> Result<TlsFiles, TrustError> {
    let dir = etcd_pki_dir(state_dir);
    let leaf = Leaf { identity: Identity::etcd(), addresses, lifetime: days(LEAF_DAYS) };
    sign_into(state_dir, &dir, &leaf, now)?;
    Ok(dir.tls_files())
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
pub(crate) fn sign_node(state_dir: &Path, node: &str, now: Timestamp) -> Result<(), TrustError> {
    let dir = TrustDir::new(state_dir.join("agent").join("pki"));
    let leaf = Leaf { identity: named(Role::Node, node)?, addresses: &[], lifetime: days(LEAF_DAYS) };
    sign_into(state_dir, &dir, &leaf, now)
}

fn sign_into(state_dir: &Path, dir: &TrustDir, leaf: &Leaf<'_>, now: Timestamp) -> Result<(), TrustError> {
    let own = pki_dir(state_dir);
    let authority = ensure_authority(&own, days(AUTHORITY_DAYS), now)?;
    // While authorities change, the reconciler trusts two.
    ensure_trusted(dir, &own.authorities()?)?;
    ensure(dir, &authority, leaf, now).map(drop)
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
    let path = dir.path().join(NEXT_AUTHORITY_FILE);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(TrustError::File { act: "remove", path, source })
        }
        _ => Ok(()),
    }
}

/// Certificate and key of an authority as one text.
#[derive(Serialize, Deserialize)]
pub(super) struct AuthorityText {
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
    pub(super) fn parse(text: &str) -> Result<Authority, TrustError> {
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
    let key = dir.ensure_key()?.public_key()?;
    if is_good(dir, authority, &key, leaf, now)? {
        return Ok(false);
    }
    let Leaf { identity, addresses, lifetime } = leaf;
    let request = LeafRequest { identity, key: &key, addresses, lifetime: *lifetime };
    dir.write_certificate(&authority.sign(&request, now)?)?;
    Ok(true)
}

fn is_good(
    dir: &TrustDir,
    authority: &Authority,
    key: &PublicKey,
    leaf: &Leaf<'_>,
    now: Timestamp,
) -> Result<bool, TrustError> {
    let certificate = match dir.certificate() {
        Ok(certificate) => certificate,
        Err(error @ TrustError::File { .. }) if !error.is_missing() => return Err(error),
        // Missing or damaged.
        Err(_) => return Ok(false),
    };
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
mod tests {
    use schema::testing::at;
    use schema::trust::{Credentials, bundle_from_pem};
    use tempfile::TempDir;

    use super::*;

    const WEEK: SignedDuration = SignedDuration::from_hours(24 * 7);

    fn settings(name: &str, addresses: &[&str]) -> TrustSettings {
        TrustSettings {
            name: name.to_owned(),
            addresses: addresses.iter().map(|&address| address.to_owned()).collect(),
            authority_days: 3650,
            certificate_lifetime: WEEK,
        }
    }

    /// Serial number of the certificate in force after this call.
    fn serial(state: &TempDir, settings: &TrustSettings, now: Timestamp) -> String {
        open(state.path(), settings, now).unwrap().keeper.current().certificate().serial().unwrap()
    }

    #[test]
    fn a_second_start_changes_no_file() {
        let state = tempfile::tempdir().unwrap();
        let all = || -> Vec<(String, Vec<u8>)> {
            let files = fs::read_dir(pki_dir(state.path()).path()).unwrap().flatten();
            let mut files: Vec<_> = files
                .filter(|file| file.path().is_file())
                .map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap()))
                .collect();
            files.sort();
            files
        };
        let settings = settings("r1", &["10.0.0.5", "r1.lan", "FD00::1"]);
        let own = open(state.path(), &settings, at(0)).unwrap();
        let certificate = own.keeper.current().certificate().clone();
        assert_eq!(certificate.identity().unwrap().to_string(), "reconciler-r1");
        assert_eq!(certificate.addresses(), ["10.0.0.5", "r1.lan", "fd00::1"]);
        let before = all();
        assert_eq!(before.len(), 5, "{before:?}");
        open(state.path(), &settings, at(60)).unwrap();
        assert!(!own.renew(&settings, at(60)).unwrap());
        assert_eq!(all(), before);
    }

    #[test]
    fn a_certificate_that_is_not_good_is_signed_again() {
        let state = tempfile::tempdir().unwrap();
        let first = settings("r1", &["10.0.0.5"]);
        let mut last = serial(&state, &first, at(0));
        let late = at(0) + SignedDuration::from_hours(24 * 5);
        let damage = || fs::write(pki_dir(state.path()).certificate_file(), "damaged").unwrap();
        let remove = || fs::remove_file(pki_dir(state.path()).key_file()).unwrap();
        let nothing = || {};
        let cases: [(&str, TrustSettings, Timestamp, &dyn Fn()); 6] = [
            ("another name", settings("r2", &["10.0.0.5"]), at(1), &nothing),
            ("another address", settings("r2", &["10.0.0.6"]), at(1), &nothing),
            ("damage", settings("r2", &["10.0.0.6"]), at(1), &damage),
            ("another key", settings("r2", &["10.0.0.6"]), at(1), &remove),
            ("two thirds over", settings("r2", &["10.0.0.6"]), late, &nothing),
            ("a clock that was far ahead", settings("r2", &["10.0.0.6"]), at(1), &nothing),
        ];
        for (why, settings, now, happens) in cases {
            happens();
            let next = serial(&state, &settings, now);
            assert_ne!(next, last, "{why}");
            assert_eq!(serial(&state, &settings, now), next, "{why}: once");
            last = next;
        }
    }

    #[test]
    fn a_renewed_certificate_is_in_force_at_once() {
        let state = tempfile::tempdir().unwrap();
        let settings = settings("r1", &[]);
        let own = open(state.path(), &settings, at(0)).unwrap();
        let reader = own.keeper.reader();
        let before = reader.current().certificate().serial().unwrap();
        assert!(own.renew(&settings, at(0) + SignedDuration::from_hours(24 * 5)).unwrap());
        assert_ne!(reader.current().certificate().serial().unwrap(), before);
    }

    // A second authority would divide the cluster in silence.
    #[test]
    fn an_authority_that_was_lost_is_not_replaced() {
        let state = tempfile::tempdir().unwrap();
        let settings = settings("r1", &[]);
        open(state.path(), &settings, at(0)).unwrap();
        fs::remove_file(pki_dir(state.path()).path().join(AUTHORITY_FILE)).unwrap();
        let error = open(state.path(), &settings, at(0)).unwrap_err().to_string();
        assert!(error.contains(AUTHORITY_FILE), "{error}");
        assert!(sign_node(state.path(), "n1", at(0)).is_err());
    }

    #[test]
    fn the_certificate_names_the_addresses_that_others_use() {
        let listen = |text: &str| text.parse().unwrap();
        let expected = ["10.0.0.5", "127.0.0.1", "::1", "api.example", "localhost"];
        assert_eq!(server_addresses(listen("10.0.0.5"), Some("api.example")), expected);
        let alone = ["127.0.0.1", "::1", "localhost"];
        for one in ["0.0.0.0", "::", "127.0.0.1"] {
            assert_eq!(server_addresses(listen(one), None), alone, "{one}");
        }
    }

    // Would fail if each reconciler of the cluster gave it an authority of its own.
    #[test]
    fn a_reconciler_that_served_without_certificates_gets_no_authority_unasked() {
        for made in ["mirrors/main/HEAD", "last-known.json"] {
            let state = tempfile::tempdir().unwrap();
            assert!(check_upgraded(state.path()).is_ok(), "it has never served");
            let file = state.path().join("reconciler").join(made);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "{}").unwrap();
            let error = check_upgraded(state.path()).unwrap_err().to_string();
            assert!(error.contains("'minik8s trust enable'") && !error.contains('\n'), "{error}");
            open(state.path(), &settings("r1", &[]), at(0)).unwrap();
            assert!(check_upgraded(state.path()).is_ok());
            // A lost authority is another fault, and has its own words.
            fs::remove_file(pki_dir(state.path()).path().join(AUTHORITY_FILE)).unwrap();
            assert!(check_upgraded(state.path()).is_ok());
        }
    }

    #[test]
    fn an_etcd_that_is_not_ours_has_a_certificate_for_a_year() {
        let state = tempfile::tempdir().unwrap();
        let own = open(state.path(), &settings("r1", &[]), at(0)).unwrap();
        let addresses = ["10.0.0.5".to_owned()];
        let dir = sign_users_etcd(state.path(), &addresses, at(0)).unwrap();
        let certificate = dir.certificate().unwrap();
        assert_eq!(certificate.identity().unwrap(), Identity::etcd());
        assert!(certificate.is_signed_by(own.authority().certificate()));
        let half = at(0) + SignedDuration::from_hours(24 * 180);
        sign_users_etcd(state.path(), &addresses, half).unwrap();
        assert_eq!(dir.certificate().unwrap().serial().unwrap(), certificate.serial().unwrap());
        assert!(!etcd_pki_dir(state.path()).is_filled(), "it is no member of ours");
    }

    #[test]
    fn an_authority_of_which_only_the_key_was_written_is_created_again() {
        let state = tempfile::tempdir().unwrap();
        pki_dir(state.path()).write(AUTHORITY_KEY_FILE, b"half").unwrap();
        open(state.path(), &settings("r1", &[]), at(0)).unwrap();
    }

    fn digest(authority: &Authority) -> String {
        authority.certificate().digest().unwrap()
    }

    /// A reconciler that trusts another authority besides its own.
    fn before_a_replacement() -> (TempDir, OwnTrust, Authority) {
        let state = tempfile::tempdir().unwrap();
        let own = open(state.path(), &settings("r1", &[]), at(0)).unwrap();
        let next = Authority::create(WEEK, at(0)).unwrap();
        let both = vec![own.authority().certificate().clone(), next.certificate().clone()];
        own.keeper.renew(own.keeper.current().certificate().clone(), both).unwrap();
        (state, own, next)
    }

    #[test]
    fn another_authority_signs_at_once() {
        let (state, own, next) = before_a_replacement();
        own.adopt(next.clone()).unwrap();
        assert_eq!(digest(&own.authority()), digest(&next));
        let settings = settings("r1", &[]);
        assert!(own.renew(&settings, at(0)).unwrap(), "a certificate of the former authority is not good");
        assert!(own.keeper.current().certificate().is_signed_by(next.certificate()));
        let etcd = sign_etcd(state.path(), &["127.0.0.1".to_owned()], at(0)).unwrap();
        let certificate = Certificate::from_pem(&TlsFiles::read(&etcd.certificate).unwrap()).unwrap();
        assert!(certificate.is_signed_by(next.certificate()));
        assert!(!pki_dir(state.path()).path().join(NEXT_AUTHORITY_FILE).exists());
    }

    // Would fail by a start with the key of one authority and the certificate of the other.
    #[test]
    fn a_replacement_that_was_interrupted_is_finished_by_the_next_start() {
        for is_key_written in [false, true] {
            let (state, _, next) = before_a_replacement();
            let dir = pki_dir(state.path());
            let text = AuthorityText::of(&next).unwrap().to_json().unwrap();
            dir.write(NEXT_AUTHORITY_FILE, text.as_bytes()).unwrap();
            if is_key_written {
                dir.write(AUTHORITY_KEY_FILE, next.key_pem().unwrap().as_bytes()).unwrap();
            }
            let opened = open(state.path(), &settings("r1", &[]), at(0)).unwrap();
            assert_eq!(digest(&opened.authority()), digest(&next));
        }
    }

    #[test]
    fn etcd_and_the_own_node_have_certificates_of_the_same_authority() {
        let state = tempfile::tempdir().unwrap();
        // Before the reconciler opens its folder: etcd starts first.
        let etcd = sign_etcd(state.path(), &["127.0.0.1".to_owned()], at(0)).unwrap();
        sign_node(state.path(), "n1", at(0)).unwrap();
        let own = open(state.path(), &settings("r1", &[]), at(0)).unwrap();
        let node = Credentials::load(&TrustDir::new(state.path().join("agent/pki"))).unwrap();
        assert_eq!(node.identity().to_string(), "node-n1");
        let read = |path: &Path| TlsFiles::read(path).unwrap();
        let certificate = Certificate::from_pem(&read(&etcd.certificate)).unwrap();
        assert_eq!(certificate.identity().unwrap(), Identity::etcd());
        let authority = own.authority();
        let signer = authority.certificate();
        assert!(certificate.is_signed_by(signer) && node.certificate().is_signed_by(signer));
        let trusted = bundle_from_pem(&read(&etcd.authorities)).unwrap();
        assert_eq!(bundle_to_pem(&trusted).unwrap(), signer.to_pem().unwrap());
        let (file, before) = (&etcd.certificate, read(&etcd.certificate));
        sign_etcd(state.path(), &["127.0.0.1".to_owned()], at(60)).unwrap();
        assert_eq!(read(file), before);
        sign_etcd(state.path(), &["127.0.0.1".to_owned(), "10.0.0.5".to_owned()], at(60)).unwrap();
        assert_ne!(read(file), before);
    }
}
