//! Translation of libgit2 errors into errors of a source.

use git2::{ErrorClass, ErrorCode};

use super::config::{SourceConfig, Transport, user_info};
use super::error::GitError;
use super::transport::proxy;

/// Translates a libgit2 error from talking to the remote.
pub(super) fn remote_error(config: &SourceConfig, error: &git2::Error) -> GitError {
    let url = config.shown_url();
    let why = cleaned(config, error.message());
    let lower = why.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if error.code() == ErrorCode::Owner {
        let help = "make its owner the user that runs minik8s, or run `git config --global --add safe.directory PATH` as that user".into();
        return GitError::AuthenticationFailed { url, why, help };
    }
    // libgit2 sets the code for some of its TLS streams only.
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

/// True if the local mirror is at fault, not the remote.
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

/// Joins the message into one line and masks the credentials of the address and the proxy.
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
    use schema::records::SourceErrorKind;

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
