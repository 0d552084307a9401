//! A daemon's own key and certificates on disk.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use nix::unistd::geteuid;
use tempfile::NamedTempFile;

use super::{Certificate, KeyFingerprint, KeyPair, TrustError, bundle_from_pem, bundle_to_pem};

/// Largest file that is read.
const FILE_MAX_BYTES: u64 = 4 << 20;

/// Folder with a daemon's key, its certificate and what it trusts. Mode 0700, files 0600.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustDir(PathBuf);

/// PEM files for a TLS client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Trusted authorities.
    pub authorities: PathBuf,
    /// Own certificate, and those between it and the authority.
    pub certificate: PathBuf,
    /// Own private key.
    pub key: PathBuf,
    /// Set if the authorities are the cluster's own: then the other side is known by its name in the certificate, and
    /// else by its address.
    pub is_own: bool,
}

impl TrustDir {
    /// Names a folder, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the files for a TLS client.
    pub fn tls_files(&self) -> TlsFiles {
        TlsFiles {
            authorities: self.authorities_file(),
            certificate: self.certificate_file(),
            key: self.key_file(),
            is_own: true,
        }
    }

    /// Returns the file with the trusted authorities.
    pub fn authorities_file(&self) -> PathBuf {
        self.0.join("authorities.pem")
    }

    /// Returns the file with the own certificate.
    pub fn certificate_file(&self) -> PathBuf {
        self.0.join("certificate.pem")
    }

    /// Returns the file with the own key.
    pub fn key_file(&self) -> PathBuf {
        self.0.join("key.pem")
    }

    fn revoked_file(&self) -> PathBuf {
        self.0.join("revoked.json")
    }

    /// Returns true if there is a certificate.
    pub fn is_filled(&self) -> bool {
        self.certificate_file().is_file()
    }

    /// Reads the own certificate.
    ///
    /// # Errors
    /// It is missing or damaged.
    pub fn certificate(&self) -> Result<Certificate, TrustError> {
        Certificate::from_pem(&read(&self.certificate_file())?)
    }

    /// Reads the trusted authorities.
    ///
    /// # Errors
    /// They are missing or damaged.
    pub fn authorities(&self) -> Result<Vec<Certificate>, TrustError> {
        bundle_from_pem(&read(&self.authorities_file())?)
    }

    /// Reads the own key.
    ///
    /// # Errors
    /// It is missing or damaged.
    pub fn key(&self) -> Result<KeyPair, TrustError> {
        KeyPair::from_pem(&read(&self.key_file())?)
    }

    /// Reads the own key, or creates it.
    ///
    /// # Errors
    /// It is damaged, or cannot be written.
    pub fn ensure_key(&self) -> Result<KeyPair, TrustError> {
        match self.key() {
            Err(error) if error.is_missing() => {}
            found => return found,
        }
        let key = KeyPair::generate()?;
        self.write("key.pem", key.to_pem()?.as_bytes())?;
        Ok(key)
    }

    /// Reads the revoked keys, each with the time until which it would be of use.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn revoked(&self) -> Result<BTreeMap<KeyFingerprint, Timestamp>, TrustError> {
        let text = match read(&self.revoked_file()) {
            Err(error) if error.is_missing() => return Ok(BTreeMap::new()),
            text => text?,
        };
        serde_json::from_str(&text)
            .map_err(|error| TrustError::Content(format!("{}: {error}", self.revoked_file().display())))
    }

    /// Replaces the own certificate.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_certificate(&self, certificate: &Certificate) -> Result<(), TrustError> {
        self.write("certificate.pem", certificate.to_pem()?.as_bytes())
    }

    /// Replaces the trusted authorities.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write_authorities(&self, all: &[Certificate]) -> Result<(), TrustError> {
        self.write("authorities.pem", bundle_to_pem(all)?.as_bytes())
    }

    /// Replaces the revoked keys.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write_revoked(&self, revoked: &BTreeMap<KeyFingerprint, Timestamp>) -> Result<(), TrustError> {
        let text = serde_json::to_string(revoked).map_err(|error| TrustError::Content(error.to_string()))?;
        self.write("revoked.json", text.as_bytes())
    }

    /// Replaces a file of the folder as a whole. The folder is created if it is missing.
    ///
    /// # Errors
    /// It cannot be written, or the folder is a link or another user's.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), TrustError> {
        let path = self.0.join(name);
        let failed = |source| TrustError::File { act: "write", path: path.clone(), source };
        fs::create_dir_all(&self.0).and_then(|()| check_folder(&self.0)).map_err(failed)?;
        fs::set_permissions(&self.0, Permissions::from_mode(0o700)).map_err(failed)?;
        // Created with mode 0600.
        let mut file = NamedTempFile::new_in(&self.0).map_err(failed)?;
        file.write_all(content).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        File::open(&self.0).and_then(|dir| dir.sync_all()).map_err(failed)
    }

    /// Reads a file of the folder.
    ///
    /// # Errors
    /// It is missing, too large or no text.
    pub fn read(&self, name: &str) -> Result<String, TrustError> {
        read(&self.0.join(name))
    }
}

/// Refuses a folder that another user may have put there: root also writes below a folder of the reconciler's user.
fn check_folder(folder: &Path) -> io::Result<()> {
    let (found, me) = (fs::symlink_metadata(folder)?, geteuid().as_raw());
    let above = folder.parent().unwrap_or(folder);
    let is_misled =
        fs::symlink_metadata(above).is_ok_and(|above| above.is_symlink() && ![0, me].contains(&above.uid()));
    let is_own = found.uid() == me || fs::metadata(above).is_ok_and(|above| above.uid() == found.uid());
    match found.is_dir() && is_own && !is_misled {
        true => Ok(()),
        false => Err(io::Error::other("its folder is a link, or another user's")),
    }
}

fn read(path: &Path) -> Result<String, TrustError> {
    use std::io::Read as _;
    let failed = |source| TrustError::File { act: "read", path: path.to_owned(), source };
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(FILE_MAX_BYTES + 1).read_to_string(&mut text));
    match read.map_err(failed)? as u64 > FILE_MAX_BYTES {
        true => Err(failed(io::ErrorKind::FileTooLarge.into())),
        false => Ok(text),
    }
}

impl TlsFiles {
    /// Reads a file of these.
    ///
    /// # Errors
    /// It is missing, too large or no text.
    pub fn read(path: &Path) -> Result<String, TrustError> {
        read(path)
    }
}
