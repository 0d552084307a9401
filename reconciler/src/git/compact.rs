//! Keeps a mirror from growing a pack per fetch: many packs become one.
//!
//! libgit2 has no `git gc`. Of the commits unreachable from the reference, only those that the caller names
//! survive: after a force push, the applied commit is needed to compare histories.

use std::fs;
use std::path::PathBuf;

use git2::{Oid, Repository};

/// Pack limit: above it every look-up gets slow. One fetch makes one pack.
const PACKS_MAX: usize = 50;

/// Repacks if due. A failure only costs speed: it is logged and retried after the next fetch.
pub(super) fn when_due(repository: &Repository, head: Oid, kept: &[Oid]) {
    let packs = packs_of(repository);
    if packs.len() <= PACKS_MAX {
        return;
    }
    if let Err(error) = compact(repository, head, kept, &packs) {
        tracing::warn!(%error, "the mirror could not be repacked");
    }
}

fn packs_of(repository: &Repository) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(repository.path().join("objects/pack")) else { return Vec::new() };
    let is_pack = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "pack");
    entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_pack).collect()
}

fn compact(repository: &Repository, head: Oid, kept: &[Oid], old: &[PathBuf]) -> Result<(), git2::Error> {
    let mut walk = repository.revwalk()?;
    walk.push(head)?;
    for commit in kept.iter().filter(|commit| repository.find_commit(**commit).is_ok()) {
        walk.push(*commit)?;
    }
    let mut builder = repository.packbuilder()?;
    builder.insert_walk(&mut walk)?;
    builder.write(&repository.path().join("objects/pack"), 0)?;
    let named = builder.name()?.map(str::to_owned);
    for pack in old {
        let stem = pack.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        if named.as_deref().is_some_and(|name| !stem.ends_with(name)) {
            for extension in ["idx", "pack"] {
                let _ = fs::remove_file(pack.with_extension(extension));
            }
        }
    }
    Ok(())
}
