//! Signature check of a commit, before anything else of the commit is read; every doubt is a refusal.
//!
//! Rereads the key files at each check, so keys can be changed in place. A missing, unreadable, empty or malformed
//! file lets no commit pass.
//!
//! The committer writes the date of a commit, so an SSH key must have been valid also when the commit was first seen.
//! That time is kept beside the mirror, so that a commit accepted once stays accepted when the key's time ends.

mod gpg;
mod program;
mod ssh;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use git2::{ErrorCode, Oid, Repository};
use jiff::Timestamp;
use schema::control::{DiskRecord, Fsync};

use self::gpg::Keyring;
use self::ssh::AllowedSigners;
use super::GitError;
use super::config::{SignaturePolicy, SourceConfig};
use program::{Doubt, HELP_SIGN, SignedCommit};

const KEYS_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Limit on a signature: the largest existing one takes a tenth of it; a longer one only costs work.
const SIGNATURE_BYTES_MAX: usize = 64 * 1024;
/// Limit on a commit object, usually a few lines: the signed content is hashed whole.
const COMMIT_BYTES_MAX: usize = 1024 * 1024;

/// Commits whose time is kept beside a mirror, the newest ones.
const KEPT_MAX: usize = 1_000;

/// Times at which commits, by full id, were first seen.
pub type FirstSeen = BTreeMap<String, Timestamp>;

struct Keys {
    ssh: Option<AllowedSigners>,
    gpg: Option<Keyring>,
}

/// Checks that the key files of `config` are usable.
pub fn check_keys(config: &SourceConfig) -> Result<(), GitError> {
    config.signatures.as_ref().map_or(Ok(()), |policy| read_keys(config, policy).map(drop))
}

/// Accepts commits signed by a key that was valid when they were made and when they were first seen, and any commit if
/// no signature is required. `known` are commits accepted before, as far as etcd knows; those of this disk are beside
/// `mirror`.
pub(super) fn check_commit(
    config: &SourceConfig,
    (mirror, repository): (&Path, &Repository),
    commit: Oid,
    known: &FirstSeen,
) -> Result<(), GitError> {
    if config.signatures.is_none() {
        return Ok(());
    }
    let record = DiskRecord::new(mirror.with_extension("accepted")).fsync(Fsync::Content);
    let mut kept: FirstSeen = record.read_or_warn("times of accepted commits").unwrap_or_default();
    let id = commit.to_string();
    let before = kept.get(&id).into_iter().chain(known.get(&id)).min().copied();
    let first_seen = before.unwrap_or_else(Timestamp::now);
    check_signature(config, repository, commit, Some(first_seen))?;
    if kept.insert(id, first_seen) != Some(first_seen) {
        while kept.len() > KEPT_MAX {
            let oldest = kept.iter().min_by_key(|(_, at)| **at).map(|(id, _)| id.clone());
            oldest.and_then(|id| kept.remove(&id));
        }
        if let Err(error) = record.write(&kept) {
            tracing::warn!(path = %record.path().display(), %error, "time of an accepted commit not kept");
        }
    }
    Ok(())
}

/// Checks the signature of a commit. With `first_seen` an SSH key must have been valid then, too.
pub(super) fn check_signature(
    config: &SourceConfig,
    repository: &Repository,
    commit: Oid,
    first_seen: Option<Timestamp>,
) -> Result<(), GitError> {
    let Some(policy) = &config.signatures else { return Ok(()) };
    let keys = read_keys(config, policy)?;
    let broken = |error: git2::Error| GitError::MirrorBroken {
        directory: repository.path().to_owned(),
        why: error.message().to_owned(),
    };
    let found = repository.find_commit(commit).map_err(broken)?;
    let refuse = |doubt: Doubt| GitError::SignatureInvalid {
        url: config.shown_url(),
        commit: commit.to_string().chars().take(12).collect(),
        author: super::commit::author_of(&found),
        why: doubt.why,
        help: doubt.help,
    };
    let (size, _) = repository.odb().and_then(|odb| odb.read_header(commit)).map_err(broken)?;
    if size > COMMIT_BYTES_MAX {
        return Err(refuse(Doubt::new("the commit object is larger than 1 MiB", HELP_SIGN)));
    }
    let (signature, content) = match repository.extract_signature(&commit, None) {
        Ok(parts) => parts,
        Err(error) if error.code() == ErrorCode::NotFound => {
            return Err(refuse(Doubt::new("it is not signed", HELP_SIGN)));
        }
        Err(error) => return Err(broken(error)),
    };
    if signature.len() > SIGNATURE_BYTES_MAX {
        return Err(refuse(Doubt::new("its signature is larger than 64 KiB", HELP_SIGN)));
    }
    let committer = found.committer();
    let signed = SignedCommit {
        content: &content,
        signature: &signature,
        email: &String::from_utf8_lossy(committer.email_bytes()),
        committed_at: Timestamp::from_second(found.time().seconds()).unwrap_or(Timestamp::UNIX_EPOCH),
        first_seen,
    };
    judge(&keys, &signed).map_err(refuse)
}

fn judge(keys: &Keys, signed: &SignedCommit<'_>) -> Result<(), Doubt> {
    let armor = String::from_utf8_lossy(signed.signature);
    let armor = armor.trim_start();
    if armor.starts_with("-----BEGIN SSH SIGNATURE-----") {
        let Some(signers) = &keys.ssh else {
            return Err(Doubt::new(
                "it is signed with SSH, but the source has no allowed signers",
                HELP_SIGN,
            ));
        };
        ssh::verify(signers, armor, signed)
    } else if armor.starts_with("-----BEGIN PGP") {
        let Some(keyring) = &keys.gpg else {
            return Err(Doubt::new("it is signed with GPG, but the source has no GPG keys", HELP_SIGN));
        };
        gpg::verify(keyring, armor, signed)
    } else {
        Err(Doubt::new("its signature is neither SSH nor GPG", HELP_SIGN))
    }
}

fn read_keys(config: &SourceConfig, policy: &SignaturePolicy) -> Result<Keys, GitError> {
    let unusable = |file: &Path, why: String| GitError::SignersUnusable {
        url: config.shown_url(),
        file: file.to_owned(),
        why,
    };
    let read = |file: &Path| {
        let size = fs::metadata(file).map_err(|error| unusable(file, error.to_string()))?.len();
        if size > KEYS_BYTES_MAX {
            return Err(unusable(file, "larger than 4 MiB".to_owned()));
        }
        fs::read(file).map_err(|error| unusable(file, error.to_string()))
    };
    let ssh = policy.allowed_signers.as_deref().map(|file| {
        let bytes = read(file)?;
        let text = String::from_utf8(bytes).map_err(|_| unusable(file, "it is not text".to_owned()))?;
        AllowedSigners::parse(text).map_err(|why| unusable(file, why))
    });
    let gpg = policy
        .gpg_keys
        .as_deref()
        .map(|file| Keyring::parse(&read(file)?).map_err(|why| unusable(file, why)));
    let keys = Keys { ssh: ssh.transpose()?, gpg: gpg.transpose()? };
    if keys.ssh.is_none() && keys.gpg.is_none() {
        // A policy without keys can't be configured; if it ever could, it must not mean "anyone".
        return Err(unusable(Path::new(""), "no key file is given".to_owned()));
    }
    Ok(keys)
}
