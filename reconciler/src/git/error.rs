//! What can go wrong with a source, one variant per act, each one line: what, where, why, what to do.

use std::path::PathBuf;
use std::time::Duration;

use git2::{ErrorClass, ErrorCode};
use schema::records::SourceErrorKind;

use super::config::{SourceConfig, Transport, user_info};
use super::transport::proxy;

/// A source could not be read. No variant carries a credential.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GitError {
    #[error("{what}: {why}")]
    InvalidSource { what: String, why: String },
    #[error("cannot reach repository {url}: {why}; check the address and the network")]
    RemoteUnreachable { url: String, why: String },
    #[error("repository {url} did not answer {act} within {after:?}; it is asked again")]
    RemoteTimeout { url: String, act: &'static str, after: Duration },
    #[error("no Git repository at {url}: {why}; check --repo")]
    NotARepository { url: String, why: String },
    #[error(
        "repository {url} has moved: it answers with a redirect, which is not followed; put its new address into --repo"
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
    #[error("mirror {} is broken: {why}; it is fetched again from the remote", directory.display())]
    MirrorBroken { directory: PathBuf, why: String },
    #[error("cannot write mirror {}: {why}; check --state-dir and the disk", directory.display())]
    MirrorUnwritable { directory: PathBuf, why: String },
}

/// The files of a commit could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{0}")]
    Git(#[from] git2::Error),
    #[error("it holds more than {most} {what}; name the folder of the manifests with --path, or split it")]
    TooMuch { what: &'static str, most: usize },
    #[error("{file} {why}, so what it excludes is unknown; make it a regular file")]
    IgnoreFile { file: String, why: &'static str },
}

impl GitError {
    /// Its word in the source's status.
    pub fn kind(&self) -> SourceErrorKind {
        match self {
            GitError::RemoteUnreachable { .. }
            | GitError::RemoteTimeout { .. }
            | GitError::Redirected { .. }
            | GitError::NotARepository { .. } => SourceErrorKind::RemoteUnreachable,
            GitError::AuthenticationFailed { .. } => SourceErrorKind::AuthenticationFailed,
            GitError::ReferenceNotFound { .. }
            | GitError::NoCommit { .. }
            | GitError::InvalidSource { .. } => SourceErrorKind::ReferenceNotFound,
            GitError::PathNotFound { .. } => SourceErrorKind::PathNotFound,
            GitError::CommitUnreadable { .. } => SourceErrorKind::CommitUnreadable,
            GitError::SignatureInvalid { .. } | GitError::SignersUnusable { .. } => {
                SourceErrorKind::SignatureInvalid
            }
            GitError::MirrorBroken { .. } | GitError::MirrorUnwritable { .. } => {
                SourceErrorKind::MirrorBroken
            }
        }
    }

    /// The mirror itself is at fault, and a fresh one may do.
    pub(super) fn is_mirror_broken(&self) -> bool {
        matches!(self, GitError::MirrorBroken { .. })
    }
}

/// Translates what libgit2 said while talking to the remote.
pub(super) fn remote_error(config: &SourceConfig, error: &git2::Error) -> GitError {
    let url = config.shown_url();
    let why = cleaned(config, error.message());
    let lower = why.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if error.code() == ErrorCode::Owner {
        let help = "make its owner the user that runs minik8s, or run `git config --global --add safe.directory PATH` as that user".into();
        return GitError::AuthenticationFailed { url, why, help };
    }
    // libgit2 gives the code to some of its TLS streams only.
    if error.code() == ErrorCode::Certificate || says(&["certificate is invalid"]) {
        let help =
            "give --ca-file FILE with the CA that signed the server's certificate, if it is yours".into();
        return GitError::AuthenticationFailed { url, why, help };
    }
    if says(&["redirect"]) {
        return GitError::Redirected { url };
    }
    if error.code() == ErrorCode::Auth
        || says(&["authentication", "401", "403", "permission denied", "access denied"])
    {
        let help = match config.transport() {
            Ok(Transport::Ssh) => "check --ssh-key and that its public half may read the repository",
            Ok(Transport::Http { .. }) => "check --token-file and that the token may read the repository",
            _ => "check the permissions of the path",
        };
        return GitError::AuthenticationFailed { url, why, help: help.into() };
    }
    if says(&[
        "404",
        "not found",
        "could not find repository",
        "not a git repository",
        "does not exist",
        "no such file",
    ]) {
        return GitError::NotARepository { url, why };
    }
    GitError::RemoteUnreachable { url, why }
}

/// The fault lies in the local mirror, not with the remote.
pub(super) fn is_mirror_fault(error: &git2::Error) -> bool {
    let class = matches!(
        error.class(),
        ErrorClass::Odb
            | ErrorClass::Zlib
            | ErrorClass::Object
            | ErrorClass::Indexer
            | ErrorClass::Repository
            | ErrorClass::Reference
            | ErrorClass::Config
            | ErrorClass::Tree
            | ErrorClass::Sha1
            | ErrorClass::Filesystem
    );
    class || matches!(error.code(), ErrorCode::Locked | ErrorCode::HashsumMismatch | ErrorCode::Modified)
}

/// One line, with what the address holds of credentials struck out.
fn cleaned(config: &SourceConfig, message: &str) -> String {
    let mut text = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let proxy = proxy::from_environment(config);
    let of_proxy = proxy.as_deref().and_then(user_info);
    for secret in config.secret_of_url().into_iter().chain(of_proxy) {
        for part in std::iter::once(secret).chain(secret.split(':')).filter(|p| p.len() > 2) {
            text = text.replace(part, "***");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translate(url: &str, code: ErrorCode, class: ErrorClass, message: &str) -> GitError {
        remote_error(&SourceConfig::branch("main", url, "main"), &git2::Error::new(code, class, message))
    }

    #[test]
    fn what_libgit2_says_becomes_the_failed_act() {
        let net = |message: &str| translate("https://h/x", ErrorCode::GenericError, ErrorClass::Net, message);
        assert_eq!(net("failed to resolve address for h").kind(), SourceErrorKind::RemoteUnreachable);
        assert!(matches!(net("unexpected http status code: 404"), GitError::NotARepository { .. }));
        assert_eq!(net("unexpected http status code: 403").kind(), SourceErrorKind::AuthenticationFailed);
        let ssh = translate("git@h:x", ErrorCode::Auth, ErrorClass::Ssh, "failed to authenticate");
        assert!(ssh.to_string().contains("--ssh-key"), "{ssh}");
    }

    #[test]
    fn no_message_holds_a_credential() {
        let url = "https://user:hunter2@h/x.git";
        let message = "cannot get https://user:hunter2@h/x.git\n: refused";
        for code in [ErrorCode::GenericError, ErrorCode::Auth, ErrorCode::Certificate, ErrorCode::NotFound] {
            let text = translate(url, code, ErrorClass::Http, message).to_string();
            assert!(!text.contains("hunter2") && !text.contains('\n'), "{text}");
        }
    }
}
