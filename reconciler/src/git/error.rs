//! Errors of a source: one variant per operation, each a single line with what, where, why and the remedy.

use std::path::{Path, PathBuf};
use std::time::Duration;

use schema::records::SourceErrorKind;

/// Failure to read a source. No variant contains a credential.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GitError {
    #[error("{what}: {why}")]
    InvalidSource { what: String, why: String },
    #[error("cannot reach repository {url}: {why}; check the address and the network")]
    RemoteUnreachable { url: String, why: String },
    #[error("repository {url} did not answer {act} within {after:?}; it will be retried")]
    RemoteTimeout { url: String, act: &'static str, after: Duration },
    #[error("no Git repository at {url}: {why}; check --repo")]
    NotARepository { url: String, why: String },
    #[error("cannot read repository {url}: {why}; {help}")]
    UnsupportedFormat { url: String, why: String, help: &'static str },
    #[error(
        "repository {url} has moved: it answers with a redirect, which is not followed; pass its new address with --repo"
    )]
    Redirected { url: String },
    #[error("repository {url} refused access: {why}; {help}")]
    AuthenticationFailed { url: String, why: String, help: String },
    #[error("repository {url} has no {reference}{known}; push it, or name another with --branch")]
    ReferenceNotFound { url: String, reference: String, known: String },
    #[error("repository {url} holds no commit yet; push one to its {reference}")]
    NoCommit { url: String, reference: String },
    #[error("repository {url} has no folder `{path}` at commit {commit}; check --path, or put it back")]
    PathNotFound { url: String, path: String, commit: String },
    #[error("commit {commit} of {url} is not applied: {why}")]
    CommitUnreadable { url: String, commit: String, why: String },
    #[error("commit {commit} of {author} in {url} is not applied: {why}; {help}")]
    SignatureInvalid { url: String, commit: String, author: String, why: String, help: &'static str },
    #[error("no commit of {url} is applied: signers in {}: {why}; fix the file", file.display())]
    SignersUnusable { url: String, file: PathBuf, why: String },
    #[error(
        "repository {url} is not fetched: it is larger than {most} or has too many objects; put the manifests into a repository of their own"
    )]
    TooLarge { url: String, most: String },
    #[error(
        "repository {url} is not fetched: it would take more than half of the free space of {}; free some",
        directory.display()
    )]
    NoSpace { url: String, directory: PathBuf },
    #[error("mirror {} is broken: {why}; it is fetched again from the remote", directory.display())]
    MirrorBroken { directory: PathBuf, why: String },
    #[error("cannot write mirror {}: {why}; check --state-dir and the disk", directory.display())]
    MirrorUnwritable { directory: PathBuf, why: String },
}

/// Failure to read the files of a commit.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{0}")]
    Git(#[from] git2::Error),
    #[error("it holds more than {most} {what}; name the folder of the manifests with --path, or split it")]
    TooMuch { what: &'static str, most: usize },
    #[error("{file} {why}, so what it excludes is unknown; make it a regular file of UTF-8 text")]
    IgnoreFile { file: String, why: &'static str },
}

/// Reason why libgit2 can't open a repository of this machine, with the remedy.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LocalFault {
    #[error(
        "the repository at {path} belongs to another user; allow it with 'git config --global --add safe.directory {path}'"
    )]
    Owner { path: String },
    #[error("the repository at {path} can't be read: {why}; {help}")]
    Format { path: String, why: String, help: &'static str },
    #[error("no Git repository at {path}: {why}")]
    Other { path: String, why: String },
}

impl LocalFault {
    /// Translates the error from opening `path`, a folder of the repository.
    pub fn new(path: &Path, error: &git2::Error) -> Self {
        let why = error.message().to_owned();
        if error.code() == git2::ErrorCode::Owner || is_of_another_user(&why) {
            return LocalFault::Owner { path: root_around(path).display().to_string() };
        }
        let path = path.display().to_string();
        match format_help(&why) {
            Some(help) => LocalFault::Format { path, why, help },
            None => LocalFault::Other { path, why },
        }
    }
}

/// Returns the root of the repository around a folder, as an absolute path: Git takes no other for `safe.directory`.
fn root_around(path: &Path) -> PathBuf {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let root = full.ancestors().find(|folder| folder.join(".git").symlink_metadata().is_ok());
    root.map(Path::to_owned).unwrap_or(full)
}

/// True for libgit2's message about the owner; its code is lost on the way through a fetch.
pub(super) fn is_of_another_user(message: &str) -> bool {
    message.contains("is not owned by current user")
}

/// Returns the remedy if a message is about a format of repositories that libgit2 does not know.
pub(super) fn format_help(message: &str) -> Option<&'static str> {
    let message = message.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
    if says(&["refstorage", "reftable"]) {
        return Some(
            "reftable is not supported: 'git refs migrate --ref-format=files', or clone with '--ref-format=files'",
        );
    }
    if says(&["objectformat", "object format", "object-format", "sha256"]) {
        return Some(
            "objects named by SHA-256 are not supported: make the repository with '--object-format=sha1'",
        );
    }
    says(&["unsupported extension"]).then_some("use a repository without this extension")
}

impl GitError {
    /// Returns the kind of the error in the source's status.
    pub fn kind(&self) -> SourceErrorKind {
        match self {
            GitError::RemoteUnreachable { .. }
            | GitError::RemoteTimeout { .. }
            | GitError::Redirected { .. }
            | GitError::UnsupportedFormat { .. }
            | GitError::NotARepository { .. } => SourceErrorKind::RemoteUnreachable,
            GitError::AuthenticationFailed { .. } => SourceErrorKind::AuthenticationFailed,
            GitError::ReferenceNotFound { .. } | GitError::InvalidSource { .. } => {
                SourceErrorKind::ReferenceNotFound
            }
            GitError::NoCommit { .. } => SourceErrorKind::NoCommit,
            GitError::PathNotFound { .. } => SourceErrorKind::PathNotFound,
            GitError::CommitUnreadable { .. } | GitError::TooLarge { .. } => {
                SourceErrorKind::CommitUnreadable
            }
            GitError::SignatureInvalid { .. } | GitError::SignersUnusable { .. } => {
                SourceErrorKind::SignatureInvalid
            }
            GitError::MirrorBroken { .. } | GitError::MirrorUnwritable { .. } | GitError::NoSpace { .. } => {
                SourceErrorKind::MirrorBroken
            }
        }
    }

    /// True if the mirror itself is at fault and a fresh one may help.
    pub(super) fn is_mirror_broken(&self) -> bool {
        matches!(self, GitError::MirrorBroken { .. })
    }
}
