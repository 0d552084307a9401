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
    /// The configuration makes no sense.
    #[error("{what}: {why}")]
    InvalidSource {
        /// Which part.
        what: String,
        /// What is wrong and what is right.
        why: String,
    },
    /// Nothing answers there, or not as Git.
    #[error("cannot reach repository {url}: {why}; check the address and the network")]
    RemoteUnreachable {
        /// Address without credentials.
        url: String,
        /// What Git said.
        why: String,
    },
    /// It took too long.
    #[error("repository {url} did not answer {act} within {after:?}; it is asked again")]
    RemoteTimeout {
        /// Address without credentials.
        url: String,
        /// Which request.
        act: &'static str,
        /// How long it was given.
        after: Duration,
    },
    /// Something is there, but no repository.
    #[error("no Git repository at {url}: {why}; check --repo")]
    NotARepository {
        /// Address without credentials.
        url: String,
        /// What Git said.
        why: String,
    },
    /// The server sends elsewhere: what was meant for one host is not carried to another.
    #[error(
        "repository {url} is said to be elsewhere by a redirect, which is not followed; put its new address into --repo"
    )]
    Redirected {
        /// Address without credentials.
        url: String,
    },
    /// The credentials, or their absence, were refused.
    #[error("repository {url} refused access: {why}; {help}")]
    AuthenticationFailed {
        /// Address without credentials.
        url: String,
        /// What was refused.
        why: String,
        /// What to do.
        help: String,
    },
    /// Branch, tag or commit is not there.
    #[error("repository {url} has no {reference}{known}; push it, or name another with --branch")]
    ReferenceNotFound {
        /// Address without credentials.
        url: String,
        /// The one wanted.
        reference: String,
        /// ` (it has a, b)`, or that it is empty.
        known: String,
    },
    /// A repository as it begins.
    #[error("repository {url} holds no commit yet; push one to its {reference}")]
    NoCommit {
        /// Address without credentials.
        url: String,
        /// What is followed.
        reference: String,
    },
    /// The folder is not in the commit.
    #[error("repository {url} has no folder `{path}` at commit {commit}; check --path, or put it back")]
    PathNotFound {
        /// Address without credentials.
        url: String,
        /// The folder.
        path: String,
        /// First 12 digits.
        commit: String,
    },
    /// Not all of the commit can be read; nothing of it is applied, and nothing removed.
    #[error("commit {commit} of {url} is not applied: {why}")]
    CommitUnreadable {
        /// Address without credentials.
        url: String,
        /// First 12 digits.
        commit: String,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// The commit is not signed as the source wants it; nothing of it is applied.
    #[error("commit {commit} of {author} in {url} is not applied: {why}; {help}")]
    SignatureInvalid {
        /// Address without credentials.
        url: String,
        /// First 12 digits.
        commit: String,
        /// `Name <mail>`.
        author: String,
        /// What is wrong with the signature.
        why: String,
        /// What to do.
        help: &'static str,
    },
    /// The keys that may sign can't be read: no commit is believed.
    #[error("no commit of {url} is applied: signers in {}: {why}; fix the file", file.display())]
    SignersUnusable {
        /// Address without credentials.
        url: String,
        /// The file of keys.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The local mirror can't be read.
    #[error("mirror {} is broken: {why}; it is fetched again from the remote", directory.display())]
    MirrorBroken {
        /// Where it lies.
        directory: PathBuf,
        /// What Git said.
        why: String,
    },
    /// The local mirror can't be written.
    #[error("cannot write mirror {}: {why}; check --state-dir and the disk", directory.display())]
    MirrorUnwritable {
        /// Where it lies.
        directory: PathBuf,
        /// What the system said.
        why: String,
    },
}

/// The files of a commit could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The object database.
    #[error("{0}")]
    Git(#[from] git2::Error),
    /// More than a repository of manifests has.
    #[error("it holds more than {most} {what}; name the folder of the manifests with --path, or split it")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        most: usize,
    },
    /// What an ignore file keeps out is not known.
    #[error("{file} {why}, so what it excludes is unknown; make it a regular file")]
    IgnoreFile {
        /// Which.
        file: String,
        /// What is wrong with it.
        why: &'static str,
    },
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
