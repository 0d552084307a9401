//! Authentication for libgit2: token or SSH key, read at each use, and verification of the host's key.
//!
//! Reads the credential files, answers libgit2's callbacks. A refusal is kept as a typed error, because libgit2
//! passes on only that a callback failed.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use git2::{CertificateCheckStatus, Cred, CredentialType, RemoteCallbacks};

use super::known_hosts::{HostKey, look_up};
use super::sealed::SealedNamespace;
use super::{known_hosts, proxy};
use crate::git::GitError;
use crate::git::commit_status::CommitStatus;
use crate::git::config::{SourceConfig, Transport};
use crate::text_file::read_text;

const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Reason for a callback's refusal, if any.
#[derive(Clone, Default)]
pub(in crate::git) struct Refusal(Rc<RefCell<Option<GitError>>>);

impl Refusal {
    pub(in crate::git) fn take(&self) -> Option<GitError> {
        self.0.borrow_mut().take()
    }

    fn set(&self, error: GitError) -> git2::Error {
        *self.0.borrow_mut() = Some(error);
        git2::Error::from_str("refused, see the reason kept")
    }
}

/// Creates callbacks with the source's credentials, and the cell where they leave a refusal.
pub(in crate::git) fn callbacks(config: &SourceConfig) -> (RemoteCallbacks<'static>, Refusal) {
    let refusal = Refusal::default();
    let mut callbacks = RemoteCallbacks::new();
    let (owner, kept) = (config.clone(), refusal.clone());
    let mut tries = 0_u32;
    callbacks.credentials(move |_url, user, allowed| {
        // libgit2 asks repeatedly while the server refuses.
        tries += 1;
        let answer = if tries > 3 { Err(refused(&owner)) } else { credential(&owner, user, allowed, tries) };
        answer.map_err(|error| kept.set(error))
    });
    let (owner, kept) = (config.clone(), refusal.clone());
    callbacks.certificate_check(move |certificate, host| {
        if let Some(certificate) = certificate.as_x509() {
            return check_certificate(&owner, certificate.data(), host).map_err(|error| kept.set(error));
        }
        let Some(key) = certificate.as_hostkey() else {
            return Ok(CertificateCheckStatus::CertificatePassthrough);
        };
        match check_host_key(&owner, key.hostkey().unwrap_or_default()) {
            Ok(()) => Ok(CertificateCheckStatus::CertificateOk),
            Err(error) => Err(kept.set(error)),
        }
    });
    (callbacks, refusal)
}

/// Checks what the transport needs before connecting: host keys, encryption for a token, CA certificates.
pub(in crate::git) fn check(config: &SourceConfig) -> Result<(), GitError> {
    match config.transport()? {
        Transport::Ssh => {
            let Some(file) = &config.credentials.known_hosts else {
                // Sealed host keys may not be available yet.
                if config.credentials.sealed.is_some() {
                    return Ok(());
                }
                return Err(failed(
                    config,
                    "no known_hosts file is given",
                    "give --known-hosts FILE (ssh-keyscan HOST makes one; compare its keys)",
                ));
            };
            read(config, file).map(drop)
        }
        Transport::Http { encrypted: false } if config.sends_secret() && !is_loopback(config.host()) => {
            Err(failed(config, "a token would travel unencrypted over http://", "use an https:// address"))
        }
        Transport::Http { .. } => config.credentials.ca_file.as_deref().map_or(Ok(()), |file| {
            let pem = read(config, file)?;
            if pem.contains("-----BEGIN CERTIFICATE-----") {
                return Ok(());
            }
            let why = format!("{} holds no PEM certificate", file.display());
            Err(failed(config, &why, "give --ca-file a PEM file"))
        }),
        Transport::Local => Ok(()),
    }
}

/// Verifies against the source's own CA file, else the machine's. Rejects a host that is neither the source's nor
/// its proxy's.
fn check_certificate(
    config: &SourceConfig,
    certificate: &[u8],
    host: &str,
) -> Result<CertificateCheckStatus, GitError> {
    if !host.eq_ignore_ascii_case(config.host()) {
        let proxy = proxy::from_environment(config).unwrap_or_default();
        let proxy = SourceConfig::branch("proxy", &proxy, "main");
        if host.eq_ignore_ascii_case(proxy.host()) {
            return Ok(CertificateCheckStatus::CertificatePassthrough);
        }
        return Err(GitError::Redirected { url: config.shown_url() });
    }
    let Some(file) = &config.credentials.ca_file else {
        return Ok(CertificateCheckStatus::CertificatePassthrough);
    };
    match known_hosts::verify(certificate, host, read(config, file)?.as_bytes()) {
        Ok(()) => Ok(CertificateCheckStatus::CertificateOk),
        Err(why) => Err(failed(
            config,
            &format!("its certificate is not trusted by {}: {why}", file.display()),
            "add the CA that signed it, and any intermediate ones, to the --ca-file",
        )),
    }
}

/// Reads a value that is encrypted in another source's repository.
fn sealed(config: &SourceConfig, key: &str) -> Result<Option<String>, GitError> {
    let Some(sealed) = &config.credentials.sealed else { return Ok(None) };
    let read = sealed.read(SealedNamespace::Sources, &config.name);
    let mut values = read.map_err(|missing| failed(config, &missing.why, &missing.help))?;
    Ok(values.remove(key))
}

/// Reads the token: sealed, from its file, or from its variable, in this order.
fn token(config: &SourceConfig) -> Result<Option<String>, GitError> {
    if let Some(token) = sealed(config, "token")? {
        return Ok(Some(token.trim().to_owned()));
    }
    let named = &config.credentials;
    token_at(config, named.token_file.as_deref(), named.token_env.as_deref())
}

/// Reads the token for commit status: from its own file or variable, from the sealed credentials, or the source's own if
/// the API belongs to the same forge. Blocks.
pub fn status_token(config: &SourceConfig, status: &CommitStatus) -> Result<String, GitError> {
    if let Some(token) = token_at(config, status.token_file.as_deref(), status.token_env.as_deref())? {
        return Ok(token);
    }
    if let Some(token) = sealed(config, "statusToken")? {
        return Ok(token.trim().to_owned());
    }
    let own = if status.is_at(config.host()) { token(config)? } else { None };
    own.ok_or_else(|| {
        let why = "there is no token for its commit status";
        failed(
            config,
            why,
            "give one with tokenFile or tokenEnv of commitStatus, or --commit-status-token-file",
        )
    })
}

/// Reads a token from a file or a variable.
fn token_at(
    config: &SourceConfig,
    file: Option<&Path>,
    variable: Option<&str>,
) -> Result<Option<String>, GitError> {
    let (text, place) = match (file, variable) {
        (Some(file), _) => (read(config, file)?, file.display().to_string()),
        (None, Some(name)) => match std::env::var(name) {
            Ok(text) => (text, format!("variable {name}")),
            Err(_) => {
                let why = format!("the environment variable {name} of --token-env is not set");
                return Err(failed(config, &why, "set it for minik8s serve, or give --token-file FILE"));
            }
        },
        (None, None) => return Ok(None),
    };
    let token = text.trim();
    if token.is_empty() || token.contains(|c: char| c.is_control()) {
        let why = format!("the token in {place} is empty or more than one line");
        return Err(failed(config, &why, "put only the token there"));
    }
    Ok(Some(token.to_owned()))
}

/// Default user for a token, per the provider's documentation; Gitea and Forgejo accept any.
fn default_user(host: &str) -> &'static str {
    let host = host.to_ascii_lowercase();
    if host.contains("gitlab") {
        "oauth2"
    } else if host.contains("bitbucket") {
        "x-token-auth"
    } else {
        "x-access-token"
    }
}

fn credential(
    config: &SourceConfig,
    user: Option<&str>,
    allowed: CredentialType,
    tries: u32,
) -> Result<Cred, GitError> {
    let made = |cred: Result<Cred, git2::Error>| cred.map_err(|_| refused(config));
    if allowed.contains(CredentialType::USERNAME) {
        return made(Cred::username(user.unwrap_or("git")));
    }
    if allowed.contains(CredentialType::SSH_KEY) {
        if let Some(key) = sealed(config, "sshKey")? {
            if tries > 2 {
                return Err(refused(config));
            }
            return made(Cred::ssh_key_from_memory(user.unwrap_or("git"), None, &key, None));
        }
        let Some(key) = &config.credentials.ssh_key else {
            return Err(failed(config, "it requires an SSH key and none is given", "give --ssh-key FILE"));
        };
        // Only for a better message: libgit2 reports a missing key file as a failed login.
        read(config, key)?;
        if tries > 2 {
            return Err(refused(config));
        }
        return made(Cred::ssh_key(user.unwrap_or("git"), None, key, None));
    }
    if allowed.contains(CredentialType::USER_PASS_PLAINTEXT) {
        let Some(token) = token(config)? else {
            let help = "give --token-file FILE or --token-env NAME";
            return Err(failed(config, "it requires a login and none is given", help));
        };
        if tries > 1 {
            return Err(refused(config));
        }
        let sealed = sealed(config, "username")?;
        let user = sealed.as_deref().or(config.credentials.username.as_deref()).or(user);
        return made(Cred::userpass_plaintext(user.unwrap_or_else(|| default_user(config.host())), &token));
    }
    Err(refused(config))
}

fn check_host_key(config: &SourceConfig, key: &[u8]) -> Result<(), GitError> {
    let (known, shown) = match (sealed(config, "knownHosts")?, &config.credentials.known_hosts) {
        (Some(sealed), _) => (sealed, "`knownHosts` in its sealed credentials".to_owned()),
        (None, Some(file)) => (read(config, file)?, file.display().to_string()),
        (None, None) => {
            return Err(failed(config, "no known_hosts file is given", "give --known-hosts FILE"));
        }
    };
    let (host, port) = (config.host(), config.ssh_port());
    match look_up(&known, host, port, key) {
        HostKey::Known => Ok(()),
        HostKey::Unknown => Err(failed(
            config,
            &format!("host {host}:{port} is not in {shown}"),
            "add its key after comparing it (ssh-keyscan HOST)",
        )),
        HostKey::Changed => Err(failed(
            config,
            &format!("host {host}:{port} presented a different key than the one in {shown}"),
            "this may be a man-in-the-middle attack; add the new key only if the host's owner confirms it",
        )),
        HostKey::OtherType => Err(failed(
            config,
            &format!("host {host}:{port} presented a key of a type that {shown} does not list for it"),
            "add all its keys after comparing them (ssh-keyscan HOST gives them)",
        )),
        HostKey::Revoked => Err(failed(
            config,
            &format!("the key of host {host}:{port} is revoked in {shown}"),
            "ask the host's owner for its new key",
        )),
    }
}

fn read(config: &SourceConfig, file: &Path) -> Result<String, GitError> {
    let unreadable = |why: String| {
        failed(
            config,
            &format!("{} cannot be read: {why}", file.display()),
            "check the file and its permissions",
        )
    };
    let size = fs::metadata(file).map_err(|error| unreadable(error.to_string()))?.len();
    if size > FILE_BYTES_MAX {
        return Err(unreadable("larger than 1 MiB".into()));
    }
    read_text(file).map_err(|error| unreadable(error.to_string()))
}

fn refused(config: &SourceConfig) -> GitError {
    let help = match config.transport() {
        Ok(Transport::Ssh) => {
            "check --ssh-key (without passphrase) and that its public half may read the repository"
        }
        _ => {
            "check the token and that it may read the repository (--token-file, --token-env, --git-username)"
        }
    };
    failed(config, "the login was not accepted", help)
}

fn failed(config: &SourceConfig, why: &str, help: &str) -> GitError {
    GitError::AuthenticationFailed { url: config.shown_url(), why: why.to_owned(), help: help.to_owned() }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_does_not_go_without_known_hosts() {
        let config = SourceConfig::branch("main", "git@git.example:a.git", "main");
        let error = check(&config).unwrap_err().to_string();
        assert!(error.contains("known_hosts") && error.contains("--known-hosts"), "{error}");
    }

    #[test]
    fn a_token_does_not_travel_in_the_clear() {
        let mut config = SourceConfig::branch("main", "http://git.example/a.git", "main");
        assert!(check(&config).is_ok());
        config.credentials.token_file = Some("/token".into());
        assert!(check(&config).is_err());
        config.url = "http://127.0.0.1:3000/a.git".into();
        assert!(check(&config).is_ok());
    }

    // Would fail if the source's own token went to any API.
    #[test]
    fn the_status_has_its_own_token_or_that_of_the_same_forge() {
        use crate::git::{CommitStatusFields, Forge};
        let dir = tempfile::tempdir().unwrap();
        let (own, other) = (dir.path().join("own"), dir.path().join("other"));
        fs::write(&own, "canary\n").unwrap();
        fs::write(&other, "bird\n").unwrap();
        let mut config = SourceConfig::branch("main", "https://git.example/kim/a.git", "main");
        let status = |api: &str, token_file| {
            let given = CommitStatusFields {
                forge: Some(Forge::Gitea),
                api: Some(api.to_owned()),
                token_file,
                ..CommitStatusFields::default()
            };
            CommitStatus::new(given, "https://git.example/kim/a.git").unwrap()
        };
        let same = status("https://git.example", None);
        assert!(
            status_token(&config, &same).unwrap_err().to_string().contains("no token for its commit status")
        );
        config.credentials.token_file = Some(own);
        assert_eq!(status_token(&config, &same).unwrap(), "canary");
        let error = status_token(&config, &status("https://other.example", None)).unwrap_err().to_string();
        assert!(error.contains("--commit-status-token-file") && !error.contains("canary"), "{error}");
        assert_eq!(status_token(&config, &status("https://other.example", Some(other))).unwrap(), "bird");
    }

    #[test]
    fn a_token_file_is_read_at_each_use_and_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let mut config = SourceConfig::branch("main", "https://git.example/a.git", "main");
        config.credentials.token_file = Some(file.clone());
        let ask = |tries| credential(&config, None, CredentialType::USER_PASS_PLAINTEXT, tries);
        assert!(ask(1).err().unwrap().to_string().contains("token"));
        fs::write(&file, "s3cr3t\n").unwrap();
        assert!(ask(1).is_ok());
        let again = ask(2).err().unwrap().to_string();
        assert!(!again.contains("s3cr3t") && again.contains("--token-file"), "{again}");
    }
}
