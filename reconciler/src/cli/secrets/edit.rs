//! `minik8s secrets edit`: the plaintext in an editor, in a file of a file system that lies in memory.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};
use schema::plaintext::{self, ANY};

use super::folder::Folder;
use super::seal::{put, require_recipients};
use crate::args::WhichSecret;

/// In memory on Linux.
const SHM: &str = "/dev/shm";

pub(super) fn edit(folder: &Folder, which: &WhichSecret) -> anyhow::Result<String> {
    let path = folder.secret(which.namespace(), &which.name)?;
    let (plain, to_cluster) = folder.open(&path)?;
    require_recipients(which, to_cluster, &path)?;
    let edited = in_editor(&plain)?;
    if edited == plain {
        return Ok(format!("{} stays as it was\n", path.display()));
    }
    let (header, values) = plaintext::split(&edited).map_err(|why| {
        anyhow::anyhow!(
            "the secret {why}, so it stays as it was; 'minik8s secrets seal {}' adds that",
            which.name
        )
    })?;
    if header.name != which.name || header.namespace != which.namespace().unwrap_or(ANY) {
        bail!("the header names another secret; write that one with 'minik8s secrets seal'");
    }
    put(folder, which, &header, values)
}

/// What the editor made of it.
fn in_editor(plain: &[u8]) -> anyhow::Result<Vec<u8>> {
    if !Path::new(SHM).is_dir() {
        bail!("there is no {SHM}, and no plaintext goes to a disk; use 'minik8s secrets seal --from -'");
    }
    // Of mode 0700, for what editors leave beside the file; removed with all that is in it.
    let place = tempfile::Builder::new().prefix("minik8s-").tempdir_in(SHM)?;
    let file = place.path().join("secret");
    fs::File::create_new(&file)?.write_all(plain)?;
    let editor =
        ["VISUAL", "EDITOR"].iter().find_map(|name| std::env::var(name).ok().filter(|e| !e.is_empty()));
    let editor = editor.unwrap_or_else(|| "vi".to_owned());
    // An editor may be given with arguments.
    let ended = Command::new("sh").arg("-c").arg(format!("{editor} \"$1\"")).arg("sh").arg(&file).status();
    let ended = ended.with_context(|| format!("cannot run {editor}; set EDITOR"))?;
    if !ended.success() {
        bail!("{editor} ended with {ended}; the secret stays as it was");
    }
    fs::read(&file).context("cannot read what the editor wrote")
}
