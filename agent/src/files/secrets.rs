//! This node's age identity, and secrets decrypted with it, in memory only.
//!
//! Reads `--age-identity`, created at the first start; writes nothing else. Nothing here has a `Debug` that shows a
//! secret, and no error carries one.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use age::secrecy::ExposeSecret as _;
use age::x25519::Identity;
use anyhow::{Context as _, bail};
use schema::content_refs::{ContentRef, LIMITS, has_bounded_header, is_sops};
use schema::control::DiskRecord;
use schema::secrets::format;
use schema::secrets::format::sops::{SopsError, SopsFile};
use schema::secrets::format::{ANY, Format, PlaintextError, WHOLE};

/// Failure to open a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The pod was created before its files were resolved, or does not name the secret.
    #[error("the pod does not include {0}; see 'minik8s describe' of its owner")]
    NotNamed(String),
    #[error("no secret can be decrypted on this node: {0}; then restart the agent")]
    NoIdentity(String),
    #[error("{0}")]
    NoContent(String),
    /// Encrypted to other recipients only.
    #[error(
        "secret {name} ({path}) is encrypted neither to the cluster nor to this node; {}",
        remedy(path, recipient)
    )]
    NotForUs { name: String, path: String, recipient: String },
    /// The newest version of the cluster's identity is encrypted to other nodes.
    #[error(
        "the cluster's identity is not encrypted to this node; add it with 'minik8s secrets recipients add NODE {recipient}' and push"
    )]
    NotAmongRecipients { recipient: String },
    /// The plaintext has no header: the secret could be a copy from anywhere.
    #[error(
        "secret {name} ({path}) has no header with its namespace and name; 'minik8s secrets seal {name} -n {namespace}' adds one"
    )]
    Unbound { name: String, path: String, namespace: String },
    /// A copy of a secret for another use.
    #[error(
        "secret {name} ({path}) is for {bound} and can't be used as {wanted}; seal another with 'minik8s secrets seal', with --source if the source differs"
    )]
    Elsewhere { name: String, path: String, bound: String, wanted: String },
    /// The file was cut short or merged by hand.
    #[error(
        "the cluster's identity ({path}) can't be read: {why}; restore the previous version from Git, then 'minik8s secrets recipients add' the nodes that it lacks"
    )]
    IdentityDamaged { path: String, why: String },
    #[error("secret {name} {why}; fix it with 'minik8s secrets edit'")]
    Plaintext { name: String, why: String },
    #[error("secret {name} ({path}) can't be decrypted: {why}; encrypt it again with 'age -r {recipient}'")]
    Damaged { name: String, path: String, why: String, recipient: String },
    #[error("secret {name} ({path}) {why}")]
    Sops { name: String, path: String, why: String },
    #[error("{of} has no key {key}; it has {known}")]
    NoKey { of: String, key: String, known: String },
    #[error("key {key} of {of} {why}")]
    Unfit { of: String, key: String, why: &'static str },
}

fn remedy(path: &str, recipient: &str) -> String {
    match is_sops(path) {
        true => {
            format!("add the cluster with 'sops rotate -i --add-age', or this node, which is {recipient}")
        }
        false => format!(
            "seal it with 'minik8s secrets seal', or encrypt it with 'age -r {recipient}' in addition to its other recipients"
        ),
    }
}

/// Name and path of a secret, for messages.
#[derive(Debug, Clone, Copy)]
pub struct SecretLocation<'a> {
    pub name: &'a str,
    pub path: &'a str,
}

/// The node's identities, its own first, or the reason why there are none.
pub struct Keys(Result<Identities, String>);

struct Identities {
    all: Vec<Identity>,
    recipient: String,
}

impl Keys {
    /// Reads or creates the identity file. If that fails the agent runs without one: pods without secrets are kept
    /// running, and pods with secrets report the reason.
    pub fn open_or_without(path: &Path) -> Self {
        Self::open(path).unwrap_or_else(|error| {
            let why = format!("{error:#}");
            tracing::error!(error = why, "age identity not available; pods that need secrets do not start");
            Self(Err(why))
        })
    }

    /// Reads or creates the identity file.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(path)?,
            Err(error) => bail!("cannot read the age identity {}: {error}", path.display()),
        };
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let identities: Result<Vec<Identity>, _> = lines.map(str::parse).collect();
        let Ok(identities) = identities else {
            bail!(
                "{} holds something other than age identities; restore the former identity or create one with age-keygen",
                path.display()
            )
        };
        let Some(own) = identities.first() else {
            bail!("{} holds no age identity; remove it and the agent creates one", path.display())
        };
        let recipient = own.to_public().to_string();
        Ok(Self(Ok(Identities { all: identities, recipient })))
    }

    /// Recipient to encrypt to so that this node can decrypt: `age1…`; `None` without an identity.
    pub fn recipient(&self) -> Option<&str> {
        self.0.as_ref().ok().map(|identities| identities.recipient.as_str())
    }

    /// Decrypts with the node's own identities or one of `more`.
    pub fn decrypt(
        &self,
        place: SecretLocation<'_>,
        ciphertext: &[u8],
        more: &[Identity],
    ) -> Result<Vec<u8>, SecretError> {
        let identities = self.0.as_ref().map_err(|why| SecretError::NoIdentity(why.clone()))?;
        if is_sops(place.path) {
            return identities.sops(place, ciphertext, more);
        }
        identities.plain(ciphertext, more).map_err(|why| identities.not_decrypted(place, &why))
    }
}

impl Identities {
    fn not_decrypted(&self, place: SecretLocation<'_>, why: &age::DecryptError) -> SecretError {
        let (name, path) = (place.name.to_owned(), place.path.to_owned());
        let recipient = self.recipient.clone();
        match why {
            age::DecryptError::NoMatchingKeys => SecretError::NotForUs { name, path, recipient },
            other => SecretError::Damaged { name, path, why: other.to_string(), recipient },
        }
    }

    /// Decrypts a SOPS file, of which age encrypts the data key alone, separately to each recipient.
    fn sops(
        &self,
        place: SecretLocation<'_>,
        file: &[u8],
        more: &[Identity],
    ) -> Result<Vec<u8>, SecretError> {
        let wrong = |why: SopsError| SecretError::Sops {
            name: place.name.to_owned(),
            path: place.path.to_owned(),
            why: why.to_string(),
        };
        let sealed = SopsFile::parse(file).map_err(wrong)?;
        let mut why = age::DecryptError::NoMatchingKeys;
        for data_key in sealed.data_keys() {
            match self.plain(data_key.as_bytes(), more) {
                Ok(data_key) => return sealed.plaintext(&data_key).map_err(wrong),
                Err(age::DecryptError::NoMatchingKeys) => {}
                Err(other) => why = other,
            }
        }
        Err(self.not_decrypted(place, &why))
    }

    fn plain(&self, ciphertext: &[u8], more: &[Identity]) -> Result<Vec<u8>, age::DecryptError> {
        let mut binary = Vec::new();
        age::armor::ArmoredReader::new(ciphertext).take(LIMITS.secret_bytes).read_to_end(&mut binary)?;
        if !has_bounded_header(&binary) {
            return Err(age::DecryptError::InvalidHeader);
        }
        let decryptor = age::Decryptor::new_buffered(binary.as_slice())?;
        let identities = self.all.iter().chain(more).map(|identity| identity as &dyn age::Identity);
        let mut plain = Vec::new();
        decryptor.decrypt(identities)?.take(LIMITS.secret_bytes).read_to_end(&mut plain)?;
        Ok(plain)
    }
}

fn make(path: &Path) -> anyhow::Result<String> {
    let identity = Identity::generate();
    let text = format!(
        "# This node's age identity: it decrypts the node's secrets.\n# public key: {}\n{}\n",
        identity.to_public(),
        identity.to_string().expose_secret()
    );
    // Written whole or not at all, whenever the machine stops: the identity exists nowhere else.
    let written = DiskRecord::new(path).create_new(text.as_bytes());
    written.with_context(|| format!("cannot write an age identity to {}", path.display()))?;
    tracing::info!(path = %path.display(), recipient = %identity.to_public(), "age identity of this node created");
    Ok(text)
}

/// Parses a file of age identities: one a line, the one in use first.
pub(super) fn identities(plain: &[u8], path: &str) -> Result<Vec<Identity>, SecretError> {
    let unfit = || SecretError::NoContent(format!("{path} holds something other than age identities"));
    let text = str::from_utf8(plain).map_err(|_| unfit())?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let identities: Vec<Identity> = lines.map(str::parse).collect::<Result<_, _>>().map_err(|_| unfit())?;
    if identities.is_empty() { Err(unfit()) } else { Ok(identities) }
}

/// Intended use of a secret.
pub(super) struct SecretUse<'a> {
    pub(super) place: SecretLocation<'a>,
    /// Namespace of the pod.
    pub(super) namespace: &'a str,
    /// Source whose repository has the pod and the file; empty if unknown.
    pub(super) source: &'a str,
    /// Source of the Cluster object, or the first source if there is no such object: a secret without a source is
    /// for it.
    pub(super) home: Option<&'a str>,
}

impl SecretUse<'_> {
    /// Returns the values if the header of the plaintext allows this use.
    pub(super) fn check<'p>(&self, plain: &'p [u8]) -> Result<(Format, &'p [u8]), SecretError> {
        let SecretLocation { name, path } = self.place;
        let (header, values) = format::split(plain).map_err(|why| match why {
            PlaintextError::Unbound => SecretError::Unbound {
                name: name.to_owned(),
                path: path.to_owned(),
                namespace: self.namespace.to_owned(),
            },
            why => SecretError::Plaintext { name: name.to_owned(), why: why.to_string() },
        })?;
        let fits = |said: &str, is: &str| said == ANY || said == is;
        let source = header.source.as_deref().or(self.home);
        let is_of_source = self.source.is_empty() || source.is_none_or(|source| fits(source, self.source));
        if fits(&header.namespace, self.namespace) && header.name == name && is_of_source {
            return Ok((header.format, values));
        }
        let source = source.map(|source| format!(" of source {source}")).unwrap_or_default();
        Err(SecretError::Elsewhere {
            name: name.to_owned(),
            path: path.to_owned(),
            bound: format!("{}/{}{source}", header.namespace, header.name),
            wanted: format!("{}/{name} of source {}", self.namespace, self.source),
        })
    }
}

/// Returns a value as text for an environment variable.
pub fn variable(
    of: &ContentRef,
    key: &str,
    entries: &BTreeMap<String, Vec<u8>>,
) -> Result<String, SecretError> {
    let unfit = |why| SecretError::Unfit { of: of.to_string(), key: key.to_owned(), why };
    let value = entries.get(key).ok_or_else(|| {
        let known = entries.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let hint = if known == WHOLE { " (a secret that is not a map has only this key)" } else { "" };
        SecretError::NoKey { of: of.to_string(), key: key.to_owned(), known: format!("{known}{hint}") }
    })?;
    let text = String::from_utf8(value.clone()).map_err(|_| unfit("is not text; mount it as a file"))?;
    if text.contains('\0') { Err(unfit("holds a NUL; mount it as a file")) } else { Ok(text) }
}

/// Checks that every key can be a file name.
pub fn check_file_names(of: &ContentRef, entries: &BTreeMap<String, Vec<u8>>) -> Result<(), SecretError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_file =
        |key: &str| key.len() <= 253 && !key.starts_with("..") && key != "." && key.chars().all(fits);
    match entries.keys().find(|key| key.is_empty() || !is_file(key)) {
        None => Ok(()),
        Some(key) => Err(SecretError::Unfit {
            of: of.to_string(),
            key: key.clone(),
            why: "can't be the name of a file; use letters, digits, '-', '_' and '.'",
        }),
    }
}
