//! `minik8s secrets edit`: opens the plaintext in an editor, in a file on an in-memory file system.

use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use schema::plaintext::{self, ANY};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use super::folder::Folder;
use super::seal::{put, require_recipients};
use crate::args::WhichSecret;

/// In-memory file system of Linux.
const SHM: &str = "/dev/shm";

pub(super) async fn edit(folder: &Folder, which: &WhichSecret) -> anyhow::Result<String> {
    let path = folder.secret(which.namespace(), &which.name)?;
    let (plain, to_cluster) = folder.open(&path)?;
    require_recipients(which, to_cluster, &path)?;
    let mut text = plain.clone();
    loop {
        text = in_editor(&text).await?;
        if text == plain {
            return Ok(format!("{} stays as it was\n", path.display()));
        }
        match take(folder, which, &text) {
            // Keep the edited text, so that it can be corrected.
            Err(why) if io::stdin().is_terminal() => {
                eprintln!("{why:#}\nEnter opens the editor again, Ctrl-D leaves the secret as it was");
                if io::stdin().read_line(&mut String::new())? == 0 {
                    return Err(why);
                }
            }
            done => return done,
        }
    }
}

/// Seals the edited plaintext as the secret.
fn take(folder: &Folder, which: &WhichSecret, edited: &[u8]) -> anyhow::Result<String> {
    let (header, values) = plaintext::split(edited).map_err(|why| {
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

/// Returns the plaintext as edited. Catches signals so that none leaves the file behind: closing a terminal or
/// ending a session sends a signal to this process as well as to the editor.
async fn in_editor(plain: &[u8]) -> anyhow::Result<Vec<u8>> {
    if !Path::new(SHM).is_dir() {
        bail!("there is no {SHM}, and no plaintext goes to a disk; use 'minik8s secrets seal --from -'");
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
        _ = hangup.recv() => bail!("the terminal was closed; the secret stays as it was"),
        _ = terminate.recv() => bail!("asked to end; the secret stays as it was"),
    };
    if !ended.success() {
        bail!("{editor} ended with {ended}; the secret stays as it was");
    }
    fs::read(&file).context("cannot read what the editor wrote")
}
