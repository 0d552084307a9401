//! `minik8s secrets seal` of what manifests hold in clear: objects of kind Secret (`--from`) and values of variables
//! (`--from-env`).
//!
//! Reads one file of the work tree. Writes the sealed files first, then the file without the values, and nothing if
//! anything is wrong with any of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use schema::content_refs::secret_paths;
use schema::manifest::{FileOfSecrets, FoundSecret, SecretObject, seal_line};
use schema::meta::DEFAULT_NAMESPACE;
use schema::secrets::format;
use schema::secrets::format::sops::SopsObject;
use schema::secrets::format::{ANY, Header};
use schema::violation::shell_word;

use super::folder::{SecretsFolder, write};
use super::seal::{self, Sealed, read_file, replaced_plaintext, require_recipients};
use crate::args::{LineInFile, SealArgs, SecretSelector};
use crate::crypt;

/// Reminder after a value in clear was sealed.
const IN_HISTORY: &str =
    "if a value was ever committed in clear, it stays in Git's history: change it where it is used\n";

const OTHER_NAME: &str = "name another secret: 'minik8s secrets seal NAME --from-env FILE:LINE'";

/// Seals what the arguments name.
pub(super) fn seal(folder: &SecretsFolder, args: &SealArgs) -> anyhow::Result<String> {
    if let Some(place) = &args.from_env {
        return seal_variable(folder, args, place);
    }
    let given = match args.from.as_deref() {
        Some(from) => Some((from, read_file(from)?)),
        None => None,
    };
    if let Some((from, bytes)) = &given
        && args.format.is_none()
        && let Some(said) = seal_objects(folder, args, from, bytes)?
    {
        return Ok(said);
    }
    seal::seal(folder, args, given)
}

/// Seals the Secrets of a file, or the one that the arguments name; `None` if there is no Secret in it.
fn seal_objects(
    folder: &SecretsFolder,
    args: &SealArgs,
    from: &Path,
    bytes: &[u8],
) -> anyhow::Result<Option<String>> {
    let shown = from.display();
    let is_file = from.as_os_str() != "-";
    if args.remove && !is_file {
        bail!("--remove needs a file, not standard input");
    }
    if args.remove && from.is_symlink() {
        bail!("{shown} is a link; name the file that it leads to");
    }
    let file = match FileOfSecrets::read(&from.to_string_lossy(), bytes) {
        Ok(file) => file,
        Err(why) if args.name.is_none() || args.remove => bail!("{shown}: {why}"),
        // Values of a named secret can be anything.
        Err(_) => return Ok(None),
    };
    if file.secrets().next().is_none() {
        return Ok(None);
    }
    let (mut sealed, mut taken, mut dropped) = (Vec::new(), Vec::new(), Vec::new());
    let (mut left_out, mut in_clear) = (BTreeSet::new(), false);
    for found in file.secrets().filter(|found| args.name.is_none() || found.name() == args.name.as_deref()) {
        let here = || format!("{shown}: Secret {}", found.name().unwrap_or("without a name"));
        let object = read(folder, &found, from).with_context(here)?;
        let (written, keys) = seal_object(folder, args, from, &object).with_context(here)?;
        sealed.push(written);
        dropped.extend(keys);
        taken.push(found.document);
        left_out.extend(object.left_out);
        in_clear |= found.sops_text().is_none();
    }
    if sealed.is_empty() {
        bail!("{shown} has Secrets, but none with this name; without a name, all of them are sealed");
    }
    let paths: BTreeSet<&Path> = sealed.iter().map(|sealed: &Sealed| sealed.path.as_path()).collect();
    if paths.len() < sealed.len() {
        bail!("{shown} has two Secrets with the same namespace and name");
    }
    let rest = args.remove.then(|| file.without(&taken)).transpose();
    let rest = rest.map_err(|why| anyhow!("{shown}: {why}"))?;
    let mut said = sealed.iter().map(|sealed| sealed.write(folder)).collect::<anyhow::Result<String>>()?;
    if !dropped.is_empty() {
        said += &format!("it has no longer: {}\n", dropped.join(", "));
    }
    if !left_out.is_empty() {
        let left_out = left_out.into_iter().collect::<Vec<_>>().join(", ");
        said += &format!("left out {left_out}: a sealed secret has values only\n");
    }
    said += &match rest {
        None if is_file => format!("{shown} is unchanged; --remove takes out what is sealed\n"),
        None => String::new(),
        Some(None) => {
            let removed = fs::canonicalize(from).and_then(fs::remove_file);
            removed.with_context(|| format!("cannot remove {shown}"))?;
            format!("removed {shown}: nothing else was in it\n")
        }
        Some(Some(rest)) => {
            replace(from, &rest)?;
            format!("took it out of {shown}\n")
        }
    };
    said += if in_clear { IN_HISTORY } else { "" };
    Ok(Some(said))
}

/// Reads a Secret, decrypted if SOPS encrypted it.
fn read(folder: &SecretsFolder, found: &FoundSecret<'_>, from: &Path) -> anyhow::Result<SecretObject> {
    let Some(text) = found.sops_text() else { return found.read().map_err(|why| anyhow!(why)) };
    let document = SopsObject::parse(text)?;
    let identities = folder.identities_for_sops()?;
    for data_key in document.data_keys() {
        if let Some(data_key) = crypt::decrypt(data_key.as_bytes(), &identities)? {
            return SecretObject::from_json(&document.decrypt(&data_key)?).map_err(|why| anyhow!(why));
        }
    }
    let file = from.to_string_lossy();
    let file = shell_word(&file);
    bail!(
        "SOPS encrypted it to none of your age keys; name the file of one with --identity, or decrypt it yourself: 'sops \
         decrypt {file} | minik8s secrets seal --from -'"
    )
}

/// Seals a Secret. Also returns the keys of the sealed secret that it replaces and does not have.
fn seal_object(
    folder: &SecretsFolder,
    args: &SealArgs,
    from: &Path,
    object: &SecretObject,
) -> anyhow::Result<(Sealed, Vec<String>)> {
    let which = selector(args, object.namespace.as_deref(), &object.name)?;
    let path = folder.secret(which.namespace(), &which.name)?;
    if args.name.is_none() && path.exists() {
        let (name, from) = (&object.name, from.to_string_lossy());
        bail!(
            "{} exists; to replace it, name it: 'minik8s secrets seal {name} -n {} --from {}{}'",
            path.display(),
            which.place.namespace,
            shell_word(&from),
            if args.remove { " --remove" } else { "" }
        );
    }
    let there = replaced_plaintext(folder, &which, &path)?;
    let there = there.as_deref().and_then(|there| format::split(there).ok());
    let source = args.source.clone().or(there.as_ref().and_then(|(header, _)| header.source.clone()));
    let former =
        there.and_then(|(header, values)| format::entries(header.format, values).ok()).unwrap_or_default();
    let dropped = former.into_keys().filter(|key| !object.values.contains_key(key)).collect();
    Ok((seal_values(folder, &which, source, &object.values)?, dropped))
}

fn seal_values(
    folder: &SecretsFolder,
    which: &SecretSelector,
    source: Option<String>,
    values: &BTreeMap<String, Vec<u8>>,
) -> anyhow::Result<Sealed> {
    let (format, values) = format::format_entries(values);
    let namespace = which.namespace().unwrap_or(ANY).to_owned();
    let header = Header { namespace, name: which.name.clone(), source, format };
    Sealed::new(folder, which, &header, &values)
}

/// Returns the secret of an object's namespace; the arguments must not contradict the manifest.
fn selector(args: &SealArgs, namespace: Option<&str>, name: &str) -> anyhow::Result<SecretSelector> {
    let mut place = args.place.clone();
    if let Some(namespace) = namespace {
        if place.shared || ![DEFAULT_NAMESPACE, namespace].contains(&place.namespace.as_str()) {
            bail!("the object is in namespace {namespace}; leave out -n and --shared");
        }
        namespace.clone_into(&mut place.namespace);
    }
    Ok(SecretSelector { name: name.to_owned(), place })
}

/// Seals the values of variables on a line, and makes the line refer to the secret.
fn seal_variable(
    folder: &SecretsFolder,
    args: &SealArgs,
    LineInFile { file, line }: &LineInFile,
) -> anyhow::Result<String> {
    let shown = file.display();
    let bytes = read_file(file)?;
    let rewritten = seal_line(&file.to_string_lossy(), &bytes, *line, args.name.as_deref());
    let rewritten = rewritten.map_err(|why| anyhow!("{shown}: {why}"))?;
    let which = selector(args, rewritten.namespace.as_deref(), &rewritten.secret)?;
    let new = rewritten.values.iter().map(|(key, value)| (key.clone(), value.clone().into_bytes())).collect();
    let sealed = with_values(folder, args, &which, new)?;
    let said = sealed.write(folder)?;
    replace(file, rewritten.text.as_bytes())?;
    let keys = rewritten.values.into_keys().collect::<Vec<_>>().join(", ");
    Ok(format!("{said}{shown}, line {line}, now takes {keys} from secret {}\n{IN_HISTORY}", rewritten.secret))
}

/// Adds values to a secret, which may exist.
fn with_values(
    folder: &SecretsFolder,
    args: &SealArgs,
    which: &SecretSelector,
    new: BTreeMap<String, Vec<u8>>,
) -> anyhow::Result<Sealed> {
    let path = folder.secret(which.namespace(), &which.name)?;
    let (mut values, mut source) = (BTreeMap::new(), None);
    if path.exists() {
        let (plain, to_cluster) = folder.open(&path)?;
        require_recipients(which, to_cluster, &path)?;
        let (header, there) = format::split(&plain).map_err(|why| anyhow!("{} {why}", path.display()))?;
        values = format::entries(header.format, there).map_err(|why| anyhow!("{} {why}", path.display()))?;
        source = header.source;
    } else if let Some(other) = other_file(folder, which) {
        bail!("{other} exists, and pods would no longer find it; {OTHER_NAME}");
    }
    for (key, value) in new {
        if values.get(&key).is_some_and(|there| *there != value) {
            bail!("{} has another value of {key}; {OTHER_NAME}", path.display());
        }
        values.insert(key, value);
    }
    seal_values(folder, which, args.source.clone().or(source), &values)
}

/// Returns a file that holds the secret at a place that a new file would hide.
fn other_file(folder: &SecretsFolder, which: &SecretSelector) -> Option<String> {
    let root = folder.root.parent()?;
    let paths = secret_paths("", which.namespace()?, &which.name).into_iter();
    paths.map(|path| root.join(path)).find(|path| path.exists()).map(|path| path.display().to_string())
}

/// Replaces a file that a person wrote, with the same mode, also where a link leads.
fn replace(file: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let found = fs::canonicalize(file).and_then(|path| Ok((fs::metadata(&path)?.permissions().mode(), path)));
    let (mode, path) = found.with_context(|| format!("cannot read {}", file.display()))?;
    write(&path, bytes, mode & 0o777)
}
