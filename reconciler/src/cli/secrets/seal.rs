//! `minik8s secrets seal`: encrypts values from a file or from the existing secret, with a header.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::{fs, io};

use age::x25519::Recipient;
use anyhow::{Context as _, bail};
use schema::content_refs::LIMITS;
use schema::secrets::format;
use schema::secrets::format::{ANY, Format, Header};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use super::folder::{SecretsFolder, is_for_reconcilers};
use crate::args::{SealArgs, SecretFormat, SecretSelector};
use crate::crypt;

/// Name of the cluster's recipient in `--to`.
pub(super) const CLUSTER: &str = "cluster";

impl SecretSelector {
    pub(super) fn namespace(&self) -> Option<&str> {
        (!self.place.shared).then_some(self.place.namespace.as_str())
    }

    /// Recipients of the secret.
    fn recipients(&self, folder: &SecretsFolder) -> anyhow::Result<Vec<Recipient>> {
        let listed = folder.listed()?;
        if self.place.to.is_empty() && is_for_reconcilers(self.namespace()) {
            let reconcilers = listed.iter().filter(|one| one.is_reconciler);
            let to: Vec<Recipient> =
                reconcilers.map(|one| crypt::recipient(&one.recipient)).collect::<Result<_, _>>()?;
            if to.is_empty() {
                bail!(
                    "no reconciler is on the list; find its recipient in its log: 'minik8s secrets \
                     recipients add NAME age1… --reconciler'"
                );
            }
            return Ok(to);
        }
        if self.place.to.is_empty() {
            return Ok(vec![folder.cluster()?]);
        }
        let by_name =
            |to: &String| listed.iter().find(|one| one.name == *to).map(|one| one.recipient.clone());
        let recipient = |to: &String| match to.as_str() {
            CLUSTER => folder.cluster(),
            _ => crypt::recipient(&by_name(to).unwrap_or_else(|| to.clone())),
        };
        self.place.to.iter().map(recipient).collect()
    }
}

/// Seals `given` values, with the file's name, or the existing secret again.
pub(super) fn seal(
    folder: &SecretsFolder,
    args: &SealArgs,
    given: Option<(&Path, Vec<u8>)>,
) -> anyhow::Result<String> {
    let Some(name) = args.name.clone().filter(|_| !args.remove) else {
        bail!("the file has no object of kind Secret; for values alone, name the secret, without --remove")
    };
    let which = &SecretSelector { name, place: args.place.clone() };
    let path = folder.secret(which.namespace(), &which.name)?;
    let there = if args.from.is_some() { replaced_plaintext(folder, which, &path)? } else { None };
    let plain = match given {
        None => {
            let (plain, to_cluster) = folder.open(&path)?;
            require_recipients(which, to_cluster, &path)?;
            plain
        }
        Some((_, plain)) => plain,
    };
    // The plaintext may already have a header, possibly of another secret.
    let (former, values) = match format::split(&plain) {
        Ok((header, values)) => (Some(header), values),
        Err(format::PlaintextError::Unbound) => (None, plain.as_slice()),
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
            let is_map = if args.from.is_some() { format::is_plain_map(values) } else { is_map(values) };
            if is_map { Format::Map } else { Format::Opaque }
        });
    // New values of an existing secret stay bound to its source.
    let replaced = there.as_deref().and_then(|there| format::split(there).ok()).map(|(header, _)| header);
    let source = [former, replaced].into_iter().flatten().find_map(|header| header.source);
    let header = Header {
        namespace: which.namespace().unwrap_or(ANY).to_owned(),
        name: which.name.clone(),
        source: args.source.clone().or(source),
        format,
    };
    write_sealed(folder, which, &header, values)
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
    format::entries(Format::Map, values).is_ok()
}

/// Plaintext of the secret whose values are replaced, if it can be decrypted. Fails if the secret may have recipients
/// other than the cluster and `--to` is missing, so that recipients don't change by accident; credentials of sources
/// and of notifications are for reconcilers anyway.
pub(super) fn replaced_plaintext(
    folder: &SecretsFolder,
    which: &SecretSelector,
    path: &Path,
) -> anyhow::Result<Option<Vec<u8>>> {
    if !path.exists() {
        return Ok(None);
    }
    let opened = folder.open(path);
    if !which.place.to.is_empty() || is_for_reconcilers(which.namespace()) {
        return Ok(opened.ok().map(|(plain, _)| plain));
    }
    let (plain, to_cluster) = opened.context(
        "you can't read the existing secret, so its recipients are unknown; name all recipients with --to, \
         or remove the file first",
    )?;
    require_recipients(which, to_cluster, path)?;
    Ok(Some(plain))
}

/// Fails if a secret that is not encrypted to the cluster alone would become so by accident.
pub(super) fn require_recipients(
    which: &SecretSelector,
    to_cluster: bool,
    path: &Path,
) -> anyhow::Result<()> {
    if to_cluster || !which.place.to.is_empty() {
        return Ok(());
    }
    bail!(
        "{} is not encrypted to the cluster alone; name all of its recipients with --to, including \
         '{CLUSTER}' if it may read it, too",
        path.display()
    )
}

/// An encrypted secret that is not written yet.
pub(super) struct Sealed {
    pub(super) path: PathBuf,
    ciphertext: Vec<u8>,
    keys: Vec<String>,
}

impl Sealed {
    /// Encrypts values.
    pub(super) fn new(
        folder: &SecretsFolder,
        which: &SecretSelector,
        header: &Header,
        values: &[u8],
    ) -> anyhow::Result<Self> {
        let entries =
            format::entries(header.format, values).map_err(|why| anyhow::anyhow!("the secret {why}"))?;
        let path = folder.secret(which.namespace(), &which.name)?;
        let plain = [header.to_string().as_bytes(), values].concat();
        if !format::split(&plain).is_ok_and(|(written, _)| written == *header) {
            bail!(
                "its header would not be readable; use letters, digits, '-', '_' and '.' in --source and in names"
            );
        }
        let ciphertext = crypt::encrypt(&plain, &which.recipients(folder)?)?;
        Ok(Self { path, ciphertext, keys: entries.into_keys().collect() })
    }

    /// Writes the secret, and returns what was written.
    pub(super) fn write(&self, folder: &SecretsFolder) -> anyhow::Result<String> {
        folder.write_secret(&self.path, &self.ciphertext, &self.keys)?;
        let word = if self.keys.len() == 1 { "key" } else { "keys" };
        Ok(format!("wrote {} with the {word} {}\n", self.path.display(), self.keys.join(", ")))
    }
}

/// Encrypts values and writes them.
pub(super) fn write_sealed(
    folder: &SecretsFolder,
    which: &SecretSelector,
    header: &Header,
    values: &[u8],
) -> anyhow::Result<String> {
    Sealed::new(folder, which, header, values)?.write(folder)
}

/// Reads a file, or standard input for `-`.
pub(super) fn read_file(from: &Path) -> anyhow::Result<Vec<u8>> {
    if from.as_os_str() == "-" {
        return read(io::stdin().lock(), from);
    }
    let file = fs::File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
    read(file, from)
}

fn read(from: impl io::Read, name: &Path) -> anyhow::Result<Vec<u8>> {
    let mut plain = Vec::new();
    let read = from.take(LIMITS.secret_bytes + 1).read_to_end(&mut plain);
    read.with_context(|| format!("cannot read {}", name.display()))?;
    if plain.len() as u64 > LIMITS.secret_bytes {
        bail!("a secret has at most {} KiB", LIMITS.secret_bytes / 1024);
    }
    Ok(plain)
}

// `minik8s secrets edit`: opens the plaintext in an editor, in a file on an in-memory file system.

/// In-memory file system of Linux.
const SHM: &str = "/dev/shm";

pub(super) async fn edit(folder: &SecretsFolder, which: &SecretSelector) -> anyhow::Result<String> {
    let path = folder.secret(which.namespace(), &which.name)?;
    let (plain, to_cluster) = folder.open(&path)?;
    require_recipients(which, to_cluster, &path)?;
    let mut text = plain.clone();
    loop {
        text = in_editor(&text).await?;
        if text == plain {
            return Ok(format!("{} is unchanged\n", path.display()));
        }
        match seal_edited(folder, which, &text) {
            // Keep the edited text, so that it can be corrected.
            Err(why) if io::stdin().is_terminal() => {
                eprintln!("{why:#}\nEnter opens the editor again, Ctrl-D leaves the secret unchanged");
                if io::stdin().read_line(&mut String::new())? == 0 {
                    return Err(why);
                }
            }
            done => return done,
        }
    }
}

/// Seals the edited plaintext as the secret.
fn seal_edited(folder: &SecretsFolder, which: &SecretSelector, edited: &[u8]) -> anyhow::Result<String> {
    let (header, values) = format::split(edited).map_err(|why| {
        anyhow::anyhow!(
            "the secret {why}, so it was left unchanged; 'minik8s secrets seal {}' adds it",
            which.name
        )
    })?;
    if header.name != which.name || header.namespace != which.namespace().unwrap_or(ANY) {
        bail!("the header names another secret; write that one with 'minik8s secrets seal'");
    }
    write_sealed(folder, which, &header, values)
}

/// Returns the plaintext as edited. Catches signals so that none leaves the file behind: closing a terminal or
/// ending a session sends a signal to this process as well as to the editor.
async fn in_editor(plain: &[u8]) -> anyhow::Result<Vec<u8>> {
    if !Path::new(SHM).is_dir() {
        bail!(
            "{SHM} does not exist, and plaintext is never written to a disk; use 'minik8s secrets seal --from -'"
        );
    }
    // From here on these signals no longer end the process.
    let (mut hangup, mut terminate) = (signal(SignalKind::hangup())?, signal(SignalKind::terminate())?);
    // The editor receives these too, and decides; wait for it, as Git does.
    let _ignored = [signal(SignalKind::interrupt())?, signal(SignalKind::quit())?];
    // With mode 0700, for files that editors leave next to it; removed with its contents.
    let place = tempfile::Builder::new().prefix("minik8s-").tempdir_in(SHM)?;
    let file = place.path().join("secret");
    fs::File::create_new(&file)?.write_all(plain)?;
    let editor =
        ["VISUAL", "EDITOR"].iter().find_map(|name| std::env::var(name).ok().filter(|e| !e.is_empty()));
    let editor = editor.unwrap_or_else(|| "vi".to_owned());
    // The variable may contain arguments for the editor.
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{editor} \"$1\"")).arg("sh").arg(&file).kill_on_drop(true);
    let mut running = command.spawn().with_context(|| format!("cannot run {editor}; set EDITOR"))?;
    let ended = tokio::select! {
        ended = running.wait() => ended.with_context(|| format!("cannot run {editor}; set EDITOR"))?,
        // Both leave the secret unchanged.
        _ = hangup.recv() => bail!("the terminal was closed; the secret is unchanged"),
        _ = terminate.recv() => bail!("received SIGTERM; the secret is unchanged"),
    };
    if !ended.success() {
        bail!("{editor} ended with {ended}; the secret is unchanged");
    }
    fs::read(&file).context("cannot read what the editor wrote")
}
