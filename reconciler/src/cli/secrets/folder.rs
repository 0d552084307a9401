//! The folder `secrets/` on disk: recipients, the cluster's identity, files of secrets.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use age::x25519::{Identity, Recipient};
use anyhow::{Context as _, bail};
use schema::content_refs::{
    IDENTITY_FILE, IDENTITY_RECIPIENT_FILE, KEYS_ENDING, RECIPIENTS_FILE, RECONCILER_NAMESPACES,
    SECRET_ENDING, SECRETS_FOLDER, secret_name,
};

use crate::args::SecretsArgs;
use crate::crypt;
use crate::text_file::read_text;

/// Path of a person's own identity, below the home folder.
const OWN_IDENTITY: &str = ".config/minik8s/age-identity.txt";

/// Path of a person's identities for SOPS, below the home folder, and the variable that names another file.
const SOPS_IDENTITY: &str = ".config/sops/age/keys.txt";
const SOPS_IDENTITY_VARIABLE: &str = "SOPS_AGE_KEY_FILE";

/// A listed recipient: a node or a person that can decrypt the cluster's identity, or a reconciler, which can't.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListedRecipient {
    pub(super) name: String,
    pub(super) recipient: String,
    pub(super) is_reconciler: bool,
}

/// Reconcilers are listed in comments, `# reconciler NAME: age1…`, so that `age -R` does not encrypt the cluster's
/// identity to them.
const RECONCILER: &str = "reconciler ";

impl ListedRecipient {
    fn reconciler(comment: &str) -> Option<Self> {
        let (name, recipient) = comment.strip_prefix(RECONCILER)?.rsplit_once(':')?;
        let recipient = crypt::recipient(recipient).ok()?.to_string();
        Some(Self { name: name.trim().to_owned(), recipient, is_reconciler: true })
    }

    fn line(&self) -> String {
        let Self { name, recipient, is_reconciler } = self;
        if *is_reconciler {
            format!("# {RECONCILER}{name}: {recipient}\n")
        } else {
            format!("# {name}\n{recipient}\n")
        }
    }
}

/// The folder, and the file of the identity that opens it.
pub(super) struct SecretsFolder {
    pub(super) root: PathBuf,
    own: PathBuf,
}

impl SecretsFolder {
    pub(super) fn from_args(args: &SecretsArgs) -> anyhow::Result<Self> {
        let own = match &args.identity {
            Some(path) => path.clone(),
            None => std::env::home_dir().context("no home folder found; pass --identity")?.join(OWN_IDENTITY),
        };
        if !args.dir.is_dir() {
            bail!("{} is not a folder; name the one that holds secrets/ with --dir", args.dir.display());
        }
        Ok(Self { root: args.dir.join(SECRETS_FOLDER), own })
    }

    pub(super) fn identity_file(&self) -> PathBuf {
        self.root.join(IDENTITY_FILE)
    }

    /// Path of a secret; shared secrets have no namespace.
    pub(super) fn secret(&self, namespace: Option<&str>, name: &str) -> anyhow::Result<PathBuf> {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        let other = namespace.filter(|namespace| !RECONCILER_NAMESPACES.contains(namespace));
        for part in other.into_iter().chain([name]) {
            if part.is_empty() || part.len() > 253 || part.starts_with('.') || !part.chars().all(fits) {
                bail!("{part:?} can't be a name; use lower-case letters, digits, '-' and '.'");
            }
        }
        let folder = namespace.map_or_else(|| self.root.clone(), |namespace| self.root.join(namespace));
        Ok(folder.join(format!("{name}{SECRET_ENDING}")))
    }

    /// Every secret: its namespace (`None` if shared), name and file.
    pub(super) fn secrets(&self) -> anyhow::Result<Vec<(Option<String>, String, PathBuf)>> {
        let mut found = Vec::new();
        for (path, name, is_dir) in entries(&self.root)? {
            if is_dir && (!name.starts_with('.') || RECONCILER_NAMESPACES.contains(&name.as_str())) {
                let below = entries(&path)?.into_iter().filter(|(_, _, is_dir)| !is_dir);
                found.extend(below.filter_map(|(path, file, _)| {
                    Some((Some(name.clone()), secret_name(&file)?.to_owned(), path))
                }));
            } else if let Some(name) = secret_name(&name) {
                found.push((None, name.to_owned(), path));
            }
        }
        found.sort();
        Ok(found)
    }

    /// Reads `recipients.txt`: one recipient per line, named by the comment above it.
    pub(super) fn listed(&self) -> anyhow::Result<Vec<ListedRecipient>> {
        let path = self.root.join(RECIPIENTS_FILE);
        let text = match read_text(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let (mut listed, mut comment) = (Vec::new(), String::new());
        for (index, line) in text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty()) {
            let here = || format!("{}, line {}", path.display(), index + 1);
            if let Some(text) = line.strip_prefix('#') {
                if let Some(reconciler) = ListedRecipient::reconciler(text.trim()) {
                    listed.push(reconciler);
                    continue;
                }
                if text.trim().starts_with(RECONCILER) && text.contains(": age1") {
                    bail!(
                        "{}: the reconciler has no valid age recipient; copy it from the reconciler's log",
                        here()
                    );
                }
                text.trim().clone_into(&mut comment);
                continue;
            }
            let recipient = crypt::recipient(line).with_context(here)?.to_string();
            let name = std::mem::take(&mut comment);
            listed.push(ListedRecipient { name, recipient, is_reconciler: false });
        }
        Ok(listed)
    }

    pub(super) fn list(&self, listed: &[ListedRecipient]) -> anyhow::Result<()> {
        let text: String = listed.iter().map(ListedRecipient::line).collect();
        write(&self.root.join(RECIPIENTS_FILE), text.as_bytes(), 0o644)
    }

    /// The recipient of the cluster's identity.
    pub(super) fn cluster(&self) -> anyhow::Result<Recipient> {
        let path = self.root.join(IDENTITY_RECIPIENT_FILE);
        let text = read_text(&path)
            .with_context(|| format!("cannot read {}; 'minik8s secrets init' creates it", path.display()))?;
        crypt::recipient(&text)
    }

    /// Encrypts the cluster's identities, the current one first, to every listed recipient except reconcilers.
    pub(super) fn write_cluster(
        &self,
        identities: &[Identity],
        listed: &[ListedRecipient],
    ) -> anyhow::Result<()> {
        let to = listed.iter().filter(|one| !one.is_reconciler);
        let to: Vec<Recipient> = to.map(|one| crypt::recipient(&one.recipient)).collect::<Result<_, _>>()?;
        let plain =
            crypt::written(identities, "The cluster's age identity: it decrypts the cluster's secrets.");
        let ciphertext = crypt::encrypt(plain.as_bytes(), &to)?;
        let newest = identities.first().context("there is no identity")?.to_public();
        write(&self.identity_file(), &ciphertext, 0o644)?;
        write(&self.root.join(IDENTITY_RECIPIENT_FILE), format!("{newest}\n").as_bytes(), 0o644)
    }

    /// The person's own identities; `None` if the file is missing.
    pub(super) fn own(&self) -> anyhow::Result<Option<Vec<Identity>>> {
        match read_text(&self.own) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            text => {
                let text = text.with_context(|| format!("cannot read {}", self.own.display()))?;
                crypt::identities(&text, &self.own).map(Some)
            }
        }
    }

    /// Identities that may decrypt what SOPS encrypted, as far as they can be read: the person's, also those for SOPS,
    /// and the cluster's.
    pub(super) fn identities_for_sops(&self) -> anyhow::Result<Vec<Identity>> {
        let mut all = self.own()?.unwrap_or_default();
        let of_sops = match std::env::var_os(SOPS_IDENTITY_VARIABLE) {
            Some(path) => Some(PathBuf::from(path)),
            None => std::env::home_dir().map(|home| home.join(SOPS_IDENTITY)),
        };
        let read = |path: PathBuf| crypt::identities(&read_text(&path).ok()?, &path).ok();
        all.extend(of_sops.and_then(read).unwrap_or_default());
        all.extend(self.cluster_identities().unwrap_or_default());
        Ok(all)
    }

    /// Creates the person's own identity.
    pub(super) fn make_own(&self) -> anyhow::Result<(Identity, &Path)> {
        let identity = Identity::generate();
        let text = crypt::written(
            std::slice::from_ref(&identity),
            "My age identity: it decrypts secrets of Minik8s.",
        );
        write(&self.own, text.as_bytes(), 0o600)?;
        Ok((identity, &self.own))
    }

    /// The cluster's identities, decrypted with the person's own.
    pub(super) fn cluster_identities(&self) -> anyhow::Result<Vec<Identity>> {
        let path = self.identity_file();
        let ciphertext = fs::read(&path)
            .with_context(|| format!("cannot read {}; 'minik8s secrets init' creates it", path.display()))?;
        let own = self.own()?.with_context(|| {
            format!(
                "this needs your identity, but {} does not exist; name it with --identity",
                self.own.display()
            )
        })?;
        let plain = crypt::decrypt(&ciphertext, &own).with_context(|| path.display().to_string())?;
        let plain = plain.with_context(|| {
            let recipient = own.first().map(|own| own.to_public().to_string()).unwrap_or_default();
            format!(
                "{} is not encrypted to you ({recipient}); someone who can read it may add you with 'minik8s secrets \
                 recipients add'",
                path.display()
            )
        })?;
        crypt::identities(&String::from_utf8_lossy(&plain), &path)
    }

    /// Decrypts a secret; the flag is true if it is encrypted to the cluster alone.
    pub(super) fn open(&self, path: &Path) -> anyhow::Result<(Vec<u8>, bool)> {
        let ciphertext = fs::read(path)
            .with_context(|| format!("cannot read {}; give its values with --from", path.display()))?;
        let here = || path.display().to_string();
        let cluster = self.cluster_identities();
        if let Ok(identities) = &cluster
            && let Some(plain) = crypt::decrypt(&ciphertext, identities).with_context(here)?
        {
            return Ok((plain, crypt::recipients_of(&ciphertext).with_context(here)? == 1));
        }
        let own = self.own()?.unwrap_or_default();
        if let Some(plain) = crypt::decrypt(&ciphertext, &own).with_context(here)? {
            return Ok((plain, false));
        }
        cluster?;
        bail!("{} is encrypted neither to the cluster nor to you", path.display())
    }

    /// Replaces the ciphertext of a secret whose values stay the same.
    pub(super) fn replace(&self, path: &Path, ciphertext: &[u8]) -> anyhow::Result<()> {
        write(path, ciphertext, 0o644)
    }

    /// Writes a secret's file, and the list of its keys next to it.
    pub(super) fn write_secret<'k>(
        &self,
        path: &Path,
        ciphertext: &[u8],
        keys: impl IntoIterator<Item = &'k String>,
    ) -> anyhow::Result<()> {
        write(path, ciphertext, 0o644)?;
        let keys: String = keys.into_iter().map(|key| format!("{key}\n")).collect();
        write(&keys_file(path), keys.as_bytes(), 0o644)
    }
}

/// True for the namespaces of secrets that reconcilers read.
pub(super) fn is_for_reconcilers(namespace: Option<&str>) -> bool {
    namespace.is_some_and(|namespace| RECONCILER_NAMESPACES.contains(&namespace))
}

/// Path of the list of a secret's keys.
pub(super) fn keys_file(secret: &Path) -> PathBuf {
    secret.with_extension(KEYS_ENDING.trim_start_matches('.'))
}

fn entries(folder: &Path) -> anyhow::Result<Vec<(PathBuf, String, bool)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("cannot read {}", folder.display()))?,
    };
    let entry = |entry: io::Result<fs::DirEntry>| -> io::Result<_> {
        let entry = entry?;
        Ok((entry.path(), entry.file_name().to_string_lossy().into_owned(), entry.file_type()?.is_dir()))
    };
    entries.map(entry).collect::<Result<_, _>>().with_context(|| format!("cannot read {}", folder.display()))
}

/// Replaces a file of a user's repository atomically.
pub(super) fn write(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let written = || -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}
