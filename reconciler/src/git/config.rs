//! Configuration of a source: address, reference, folder, credentials; and its address without secrets, for messages.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schema::records::AllowedObjects;

use super::commit_status::CommitStatus;
use super::{GitError, transport};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceConfig {
    /// A DNS label, also used as a key segment and a directory name.
    pub name: String,
    /// A local path, or `file://`, `http(s)://`, `ssh://`, `user@host:path`.
    pub url: String,
    pub reference: Reference,
    /// Folder within the repository, without slashes at its ends; empty for the root.
    pub path: String,
    pub credentials: Credentials,
    /// Interval between checks of the remote.
    pub poll: Duration,
    /// Set if a commit with any violation must not be applied at all.
    pub strict: bool,
    /// Accepts only commits signed by a known key; `None` accepts any commit.
    pub signatures: Option<SignaturePolicy>,
    /// Objects that commits may hold.
    pub allow: AllowedObjects,
    /// Forge that shows the verdicts.
    pub commit_status: Option<CommitStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// A branch, without `refs/heads/`.
    Branch(String),
    /// A tag, without `refs/tags/`.
    Tag(String),
    /// A commit, 40 hex digits.
    Commit(String),
}

/// Signers that the applied commit must have, whatever came before it. A file without a readable key lets no commit
/// pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignaturePolicy {
    /// Keys for SSH signatures, in OpenSSH's allowed_signers format.
    pub allowed_signers: Option<PathBuf>,
    /// Public keys for OpenPGP signatures, armored or binary.
    pub gpg_keys: Option<PathBuf>,
}

impl SignaturePolicy {
    /// Returns `None` if no key file is named.
    pub fn from_files(allowed_signers: Option<PathBuf>, gpg_keys: Option<PathBuf>) -> Option<Self> {
        let any = allowed_signers.is_some() || gpg_keys.is_some();
        any.then_some(Self { allowed_signers, gpg_keys })
    }
}

/// Credentials of a source. Files and variables are read at every use, so they can be rotated in place. Only
/// `proxy` may hold a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// A token for `http(s)://`, alone in the file.
    pub token_file: Option<PathBuf>,
    pub token_env: Option<String>,
    /// User sent with the token; defaults to the provider's usual one.
    pub username: Option<String>,
    pub ssh_key: Option<PathBuf>,
    /// Host keys, in OpenSSH's format; SSH requires them.
    pub known_hosts: Option<PathBuf>,
    /// The only CA certificates trusted for `https://`, PEM; defaults to the machine's.
    pub ca_file: Option<PathBuf>,
    /// Token or key, encrypted in another source's repository, instead of files here.
    pub sealed: Option<SealedCredentials>,
    /// Proxy for `http(s)://`; `none` disables it. Defaults to the environment's.
    pub proxy: Option<String>,
}

/// Secrets for the reconcilers that are stored in a source's repository: credentials of other sources, and of targets of
/// notifications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedCredentials {
    /// Source whose repository holds them.
    pub home: Box<SourceConfig>,
    /// Mirror of that source, a bare repository.
    pub mirror: PathBuf,
    /// File with this reconciler's age identity.
    pub identity: PathBuf,
}

/// Path of a reconciler's own age identity.
pub fn identity_file(state_dir: &Path) -> PathBuf {
    state_dir.join("reconciler").join("age-identity.txt")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Local,
    Http { encrypted: bool },
    Ssh,
}

impl SourceConfig {
    /// Creates a source that tracks a branch, with defaults otherwise; polled every 5 s.
    pub fn branch(name: &str, url: &str, branch: &str) -> Self {
        Self {
            name: name.to_owned(),
            url: url.to_owned(),
            reference: Reference::Branch(branch.to_owned()),
            path: String::new(),
            credentials: Credentials::default(),
            poll: Duration::from_secs(5),
            strict: false,
            signatures: None,
            allow: AllowedObjects::default(),
            commit_status: None,
        }
    }

    pub fn check(&self) -> Result<(), GitError> {
        let label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.name.is_empty() || self.name.len() > 63 || !self.name.chars().all(label) {
            return invalid(format!("source name `{}`", self.name), "not a DNS label (a-z, 0-9, -)");
        }
        let odd_part = |part: &str| part.is_empty() || part == "." || part == "..";
        if !self.path.is_empty() && self.path.split('/').any(odd_part) {
            let why = "not a folder relative to the repository's root, like `clusters/lab`";
            return invalid(format!("path `{}`", self.path), why);
        }
        self.check_proxy()?;
        if self.url.contains("://") && self.transport()? != Transport::Local && has_late_at(&self.url) {
            let why = "its address has an @ after a slash, so the end of a password is ambiguous; write %40 for it, \
                       and %2F for a / in a password";
            return invalid(format!("repository `{}`", self.shown_url()), why);
        }
        // The first use of libgit2 in any process with sources.
        transport::find_authorities();
        match &self.reference {
            Reference::Commit(id) if id.len() != 40 || git2::Oid::from_str(id).is_err() => {
                return invalid(format!("commit `{id}`"), "not 40 hex digits; write the full id");
            }
            name if !git2::Reference::is_valid_name(&name.full_name()) => {
                return invalid(name.to_string(), "not a name that Git allows");
            }
            _ => {}
        }
        self.transport().map(drop)
    }

    fn check_proxy(&self) -> Result<(), GitError> {
        let Some(proxy) = &self.credentials.proxy else { return Ok(()) };
        let known = match proxy.split_once("://") {
            Some((scheme, _)) => matches!(scheme, "http" | "https"),
            None => true,
        };
        let odd = |c: char| c.is_control() || c.is_whitespace();
        if known && !proxy.is_empty() && !proxy.contains(odd) && !has_late_at(proxy) {
            return Ok(());
        }
        let why = "not http://USER:PASSWORD@HOST:PORT, https://HOST:PORT or none; in a password, write %2F for / and \
                   %40 for @";
        invalid(format!("proxy `{}`", without_login(proxy)), why)
    }

    /// Returns the address without password and token; only an SSH address keeps its user.
    pub fn shown_url(&self) -> String {
        shown(&self.url)
    }

    pub(super) fn transport(&self) -> Result<Transport, GitError> {
        let unsupported = |why| invalid(format!("repository `{}`", self.shown_url()), why);
        match self.url.split_once("://") {
            Some(("file", _)) => Ok(Transport::Local),
            Some(("https", _)) => Ok(Transport::Http { encrypted: true }),
            Some(("http", _)) => Ok(Transport::Http { encrypted: false }),
            Some(("ssh" | "git+ssh" | "ssh+git", _)) => Ok(Transport::Ssh),
            Some(_) => unsupported("use a path, file://, https://, ssh:// or user@host:path"),
            None if self.url.is_empty() => unsupported("no address given"),
            None if is_scp(&self.url) => Ok(Transport::Ssh),
            None => Ok(Transport::Local),
        }
    }

    pub(super) fn host(&self) -> &str {
        host_and_port(&self.url).0
    }

    /// Returns the port of an `ssh://` address, 22 by default.
    pub(super) fn ssh_port(&self) -> u16 {
        // In `user@host:path`, the text after the colon is not a port.
        let port = host_and_port(&self.url).1.filter(|_| self.url.contains("://"));
        port.and_then(|port| port.parse().ok()).unwrap_or(22)
    }

    /// Returns the port of an `http(s)://` address, or the scheme's default.
    pub(super) fn http_port(&self) -> u16 {
        let default = if self.url.starts_with("http://") { 80 } else { 443 };
        host_and_port(&self.url).1.and_then(|port| port.parse().ok()).unwrap_or(default)
    }

    /// Returns the credentials embedded in the address, which must be removed from any message.
    pub(super) fn secret_of_url(&self) -> Option<&str> {
        let user_info = user_info(&self.url)?;
        (user_info.contains(':') || !matches!(self.transport(), Ok(Transport::Ssh))).then_some(user_info)
    }

    /// True if the address contains a password or token, or one is sent with it.
    pub(super) fn sends_secret(&self) -> bool {
        let named = &self.credentials;
        named.token_file.is_some()
            || named.token_env.is_some()
            || named.sealed.is_some()
            || self.secret_of_url().is_some()
    }
}

fn invalid<T>(what: String, why: &str) -> Result<T, GitError> {
    Err(GitError::InvalidSource { what, why: why.to_owned() })
}

/// Extracts host and port from `scheme://user@host:port/…`, `[::1]:port` or `host`.
pub(crate) fn host_and_port(url: &str) -> (&str, Option<&str>) {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let authority = authority.split(['?', '#']).next().unwrap_or_default();
    match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
    }
}

/// Extracts `user:password` from an address: everything before its last `@`, because a password may contain a slash.
pub(super) fn user_info(url: &str) -> Option<&str> {
    let rest = url.split_once("://").map(|(_, rest)| rest)?;
    rest.rsplit_once('@').map(|(user_info, _)| user_info)
}

/// Detects an `@` that strictly belongs to no login: one after the first slash that follows the scheme.
fn has_late_at(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split_once('/').is_some_and(|(_, path)| path.contains('@'))
}

/// Returns a proxy's address without its login; the scheme is optional.
fn without_login(proxy: &str) -> String {
    match proxy.split_once("://") {
        Some(_) => shown(proxy),
        None => proxy.rsplit_once('@').map_or(proxy, |(_, host)| host).to_owned(),
    }
}

/// Recognizes `git@host:path`: a colon before the first slash.
fn is_scp(url: &str) -> bool {
    let before_slash = url.split('/').next().unwrap_or_default();
    before_slash.contains(':')
}

fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return shown_without_scheme(url) };
    // A file name may contain anything, and a file URL has no login.
    if scheme == "file" {
        return url.to_owned();
    }
    let (login, place) = rest.rsplit_once('@').map_or((None, rest), |(login, place)| (Some(login), place));
    // A query may carry a token as well.
    let place = place.split('?').next().unwrap_or_default();
    match login.map(|login| login.split([':', '/']).next().unwrap_or_default()) {
        // The user of an SSH address is part of the address and not secret.
        Some(user) if scheme.contains("ssh") => format!("{scheme}://{user}@{place}"),
        _ => format!("{scheme}://{place}"),
    }
}

/// Shows a path or `user@host:path`; drops the password of `user:password@host`.
fn shown_without_scheme(url: &str) -> String {
    let is_login =
        |(login, _): &(&str, &str)| login.split_once(':').is_some_and(|(user, _)| !user.contains(['@', '/']));
    match url.rsplit_once('@').filter(is_login) {
        Some((login, place)) => format!("{}@{place}", login.split(':').next().unwrap_or_default()),
        None => url.to_owned(),
    }
}

impl Reference {
    /// Returns the full name in the repository; for a commit, the name that the mirror gives it.
    pub fn full_name(&self) -> String {
        match self {
            Reference::Branch(name) => format!("refs/heads/{name}"),
            Reference::Tag(name) => format!("refs/tags/{name}"),
            Reference::Commit(id) => format!("refs/minik8s/{id}"),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reference::Branch(name) => write!(f, "branch `{name}`"),
            Reference::Tag(name) => write!(f, "tag `{name}`"),
            Reference::Commit(id) => write!(f, "commit {id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(url: &str) -> SourceConfig {
        SourceConfig::branch("main", url, "main")
    }

    #[test]
    fn an_address_is_shown_without_what_lets_one_in() {
        for (url, shown) in [
            ("https://user:secret@git.example/a.git", "https://git.example/a.git"),
            ("https://ghp_secret@git.example/a.git?token=x", "https://git.example/a.git"),
            ("ssh://git:pw@git.example:2222/a.git", "ssh://git@git.example:2222/a.git"),
            ("git@git.example:a.git", "git@git.example:a.git"),
            ("/srv/a.git", "/srv/a.git"),
            ("file:///srv/a.git", "file:///srv/a.git"),
            ("file:///srv/a@b/c.git", "file:///srv/a@b/c.git"),
            ("/srv/a:b@c.git", "/srv/a:b@c.git"),
            ("https://user:pa/ss@git.example/a.git", "https://git.example/a.git"),
            ("https://user:p@a/s@s@git.example/a.git", "https://git.example/a.git"),
            ("ssh://git:p/w@git.example/a.git", "ssh://git@git.example/a.git"),
            ("user:pa/ss@git.example:a.git", "user@git.example:a.git"),
            ("git@git.example:a@b.git", "git@git.example:a@b.git"),
        ] {
            assert_eq!(at(url).shown_url(), shown);
        }
    }

    #[test]
    fn an_address_whose_password_has_no_clear_end_is_refused_and_not_repeated() {
        for (url, proxy) in [
            ("https://user:s3c/r3t@git.example/a.git", None),
            ("http://s3c/r3t@git.example/a.git", None),
            ("ssh://git:s3c/r3t@git.example/a.git", None),
            ("https://git.example/a.git", Some("http://user:s3c/r3t@proxy:3128")),
            ("https://git.example/a.git", Some("user:s3c/r3t@proxy:3128")),
            ("https://git.example/a.git", Some("user:s3c r3t@proxy:3128")),
        ] {
            let mut config = at(url);
            config.credentials.proxy = proxy.map(str::to_owned);
            let error = config.check().expect_err(url).to_string();
            assert!(!error.contains("s3c") && !error.contains("r3t"), "{error}");
            assert!(error.contains("%2F"), "{error}");
            assert!(proxy.is_some() || config.secret_of_url().is_some_and(|s| s.contains("r3t")), "{url}");
        }
        for url in ["file:///srv/a@b.git", "/srv/a@b.git", "git@h:a@b.git", "https://u:p%2Fw@h/a.git"] {
            assert!(at(url).check().is_ok(), "{url}");
        }
    }

    #[test]
    fn the_transport_follows_from_the_address() {
        assert_eq!(at("git@host:x.git").transport().unwrap(), Transport::Ssh);
        assert_eq!(at("./x.git").transport().unwrap(), Transport::Local);
        assert_eq!(at("/srv/a:b.git").transport().unwrap(), Transport::Local);
        assert_eq!(at("http://h/x").transport().unwrap(), Transport::Http { encrypted: false });
        assert!(at("git://h/x").transport().is_err());
        assert!(at("").transport().is_err());
    }

    #[test]
    fn host_and_port_are_read_from_every_form() {
        for (url, host, port) in [
            ("ssh://git@h.example:2222/x.git", "h.example", 2222),
            ("ssh://h.example/x.git", "h.example", 22),
            ("ssh://git@[fe80::1]:2200/x", "fe80::1", 2200),
            ("git@h.example:x.git", "h.example", 22),
        ] {
            assert_eq!((at(url).host(), at(url).ssh_port()), (host, port), "{url}");
        }
    }

    #[test]
    fn names_that_are_no_key_segment_or_folder_are_refused() {
        for name in ["", "Main", "a/b", "..", "a b"] {
            let config = SourceConfig { name: name.into(), ..at("/x") };
            assert!(config.check().is_err(), "{name}");
        }
        for path in ["/a", "a/", "../b", "a//b", "."] {
            let config = SourceConfig { path: path.into(), ..at("/x") };
            assert!(config.check().is_err(), "{path}");
        }
        assert!(SourceConfig { path: "clusters/lab".into(), ..at("/x") }.check().is_ok());
        assert!(SourceConfig { reference: Reference::Branch("a..b".into()), ..at("/x") }.check().is_err());
        assert!(SourceConfig { reference: Reference::Commit("abc".into()), ..at("/x") }.check().is_err());
    }
}
