//! `minik8s secrets seal`: encrypts values from a file or from the existing secret, with a header.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use age::x25519::Recipient;
use anyhow::{Context as _, bail};
use schema::files::{LIMITS, SOURCES_NAMESPACE};
use schema::plaintext::{self, ANY, Format, Header};

use super::folder::Folder;
use crate::args::{SealArgs, SecretFormat, WhichSecret};
use crate::crypt;

/// Name of the cluster's recipient in `--to`.
pub(super) const CLUSTER: &str = "cluster";

impl WhichSecret {
    pub(super) fn namespace(&self) -> Option<&str> {
        (!self.shared).then_some(self.namespace.as_str())
    }

    /// Recipients of the secret.
    fn recipients(&self, folder: &Folder) -> anyhow::Result<Vec<Recipient>> {
        let listed = folder.listed()?;
        if self.to.is_empty() && self.namespace() == Some(SOURCES_NAMESPACE) {
            let reconcilers = listed.iter().filter(|one| one.is_reconciler);
            let to: Vec<Recipient> =
                reconcilers.map(|one| crypt::recipient(&one.recipient)).collect::<Result<_, _>>()?;
            if to.is_empty() {
                bail!(
                    "no reconciler is on the list; its log says its recipient: 'minik8s secrets recipients add NAME age1… \
                     --reconciler'"
                );
            }
            return Ok(to);
        }
        if self.to.is_empty() {
            return Ok(vec![folder.cluster()?]);
        }
        let by_name =
            |to: &String| listed.iter().find(|one| one.name == *to).map(|one| one.recipient.clone());
        let recipient = |to: &String| match to.as_str() {
            CLUSTER => folder.cluster(),
            _ => crypt::recipient(&by_name(to).unwrap_or_else(|| to.clone())),
        };
        self.to.iter().map(recipient).collect()
    }
}

pub(super) fn seal(folder: &Folder, args: &SealArgs) -> anyhow::Result<String> {
    let which = &args.which;
    let path = folder.secret(which.namespace(), &which.name)?;
    let there = if args.from.is_some() { replaced(folder, which, &path)? } else { None };
    let plain = match &args.from {
        None => {
            let (plain, to_cluster) = folder.open(&path)?;
            require_recipients(which, to_cluster, &path)?;
            plain
        }
        Some(from) if from.as_os_str() == "-" => read(std::io::stdin().lock(), from)?,
        Some(from) => {
            let file = fs::File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
            read(file, from)?
        }
    };
    // The plaintext may already have a header, possibly of another secret.
    let (former, values) = match plaintext::split(&plain) {
        Ok((header, values)) => (Some(header), values),
        Err(plaintext::PlaintextError::Unbound) => (None, plain.as_slice()),
        // With --format, the whole file is values.
        Err(_) if args.format.is_some() && args.from.is_some() => (None, plain.as_slice()),
        Err(why) => bail!("the plaintext {why}; if these are values without a header, name their --format"),
    };
    let asked = args.format.map(|format| match format {
        SecretFormat::Map => Format::Map,
        SecretFormat::Dotenv => Format::Dotenv,
        SecretFormat::Opaque => Format::Opaque,
    });
    let said = former.as_ref().map(|former| former.format).filter(|format| *format != Format::Guess);
    let format =
        asked.or(said).or_else(|| format_of_file(args.from.as_deref()?, values)).unwrap_or_else(|| {
            // An existing secret keeps its format. New values are a map only if they are unambiguously one.
            let is_map = if args.from.is_some() { plaintext::is_plain_map(values) } else { is_map(values) };
            if is_map { Format::Map } else { Format::Opaque }
        });
    // New values of an existing secret stay bound to its source.
    let replaced = there.as_deref().and_then(|there| plaintext::split(there).ok()).map(|(header, _)| header);
    let source = [former, replaced].into_iter().flatten().find_map(|header| header.source);
    let header = Header {
        namespace: which.namespace().unwrap_or(ANY).to_owned(),
        name: which.name.clone(),
        source: args.source.clone().or(source),
        format,
    };
    put(folder, which, &header, values)
}

/// Derives the format from the file name: `.env`, `prod.env` and `.env.prod` hold lines, `db.yaml` a map if it is
/// one.
fn format_of_file(from: &Path, values: &[u8]) -> Option<Format> {
    let name = from.file_name()?.to_str()?;
    let ending = from.extension().and_then(|ending| ending.to_str());
    match ending {
        _ if name == ".env" || name.starts_with(".env.") => Some(Format::Dotenv),
        Some("env") => Some(Format::Dotenv),
        Some("yaml" | "yml" | "json") => is_map(values).then_some(Format::Map),
        _ => None,
    }
}

fn is_map(values: &[u8]) -> bool {
    plaintext::entries(Format::Map, values).is_ok()
}

/// Plaintext of the secret whose values are replaced, if it can be decrypted. Fails if the secret may have recipients
/// other than the cluster and `--to` is missing, so that recipients don't change by accident; credentials of sources
/// are for reconcilers anyway.
fn replaced(folder: &Folder, which: &WhichSecret, path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    if !path.exists() {
        return Ok(None);
    }
    let opened = folder.open(path);
    if !which.to.is_empty() || which.namespace() == Some(SOURCES_NAMESPACE) {
        return Ok(opened.ok().map(|(plain, _)| plain));
    }
    let (plain, to_cluster) = opened.context(
        "a secret is there that you can't read, so who can is not known; name all recipients with --to, or remove the file first",
    )?;
    require_recipients(which, to_cluster, path)?;
    Ok(Some(plain))
}

/// Fails if a secret that is not encrypted to the cluster alone would become so by accident.
pub(super) fn require_recipients(which: &WhichSecret, to_cluster: bool, path: &Path) -> anyhow::Result<()> {
    if to_cluster || !which.to.is_empty() {
        return Ok(());
    }
    bail!(
        "{} is encrypted to others than the cluster alone; name all of them with --to, among them '{CLUSTER}' if it may \
         read it, too",
        path.display()
    )
}

/// Encrypts values and writes them.
pub(super) fn put(
    folder: &Folder,
    which: &WhichSecret,
    header: &Header,
    values: &[u8],
) -> anyhow::Result<String> {
    let entries =
        plaintext::entries(header.format, values).map_err(|why| anyhow::anyhow!("the secret {why}"))?;
    let path = folder.secret(which.namespace(), &which.name)?;
    let plain = [header.to_string().as_bytes(), values].concat();
    if !plaintext::split(&plain).is_ok_and(|(written, _)| written == *header) {
        bail!(
            "its header could not be read again; use letters, digits, '-', '_' and '.' in --source and in names"
        );
    }
    let ciphertext = crypt::encrypt(&plain, &which.recipients(folder)?)?;
    folder.write_secret(&path, &ciphertext, entries.keys())?;
    let keys = entries.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    Ok(format!("wrote {} with the keys {keys}\n", path.display()))
}

fn read(from: impl std::io::Read, name: &Path) -> anyhow::Result<Vec<u8>> {
    let mut plain = Vec::new();
    let read = from.take(LIMITS.secret_bytes + 1).read_to_end(&mut plain);
    read.with_context(|| format!("cannot read {}", name.display()))?;
    if plain.len() as u64 > LIMITS.secret_bytes {
        bail!("a secret has at most {} KiB", LIMITS.secret_bytes / 1024);
    }
    Ok(plain)
}
