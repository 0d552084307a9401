//! What a source is: address, reference, folder, credentials; and its address fit for a message.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::GitError;

/// One repository that objects come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceConfig {
    /// Name: a DNS label. It is a key segment and a directory.
    pub name: String,
    /// A local path, or `file://`, `http(s)://`, `ssh://`, `user@host:path`.
    pub url: String,
    /// What to follow.
    pub reference: Reference,
    /// Folder within the repository, without slashes at its ends; empty for the root.
    pub path: String,
    /// How to be let in.
    pub credentials: Credentials,
    /// Time between two looks at the remote.
    pub poll: Duration,
}

/// What of the repository is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// A branch, without `refs/heads/`.
    Branch(String),
    /// A tag, without `refs/tags/`.
    Tag(String),
    /// A commit, 40 hex digits.
    Commit(String),
}

/// Files with credentials; each is read anew at every use, so it can be rotated in place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// A token for `http(s)://`, alone in the file.
    pub token_file: Option<PathBuf>,
    /// A private key without passphrase for ssh.
    pub ssh_key: Option<PathBuf>,
    /// Host keys, in OpenSSH's format; ssh does not go without.
    pub known_hosts: Option<PathBuf>,
}

/// How the address is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Local,
    Http { encrypted: bool },
    Ssh,
}

impl SourceConfig {
    /// A branch at an address, with nothing else set: polled every 5 s.
    pub fn branch(name: &str, url: &str, branch: &str) -> Self {
        Self {
            name: name.to_owned(),
            url: url.to_owned(),
            reference: Reference::Branch(branch.to_owned()),
            path: String::new(),
            credentials: Credentials::default(),
            poll: Duration::from_secs(5),
        }
    }

    /// Checks what can be checked without looking.
    pub fn check(&self) -> Result<(), GitError> {
        let label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.name.is_empty() || self.name.len() > 63 || !self.name.chars().all(label) {
            return Err(GitError::InvalidSource {
                what: format!("source name `{}`", self.name),
                why: "not a DNS label (a-z, 0-9, -)".into(),
            });
        }
        let odd_part = |part: &str| part.is_empty() || part == "." || part == "..";
        if !self.path.is_empty() && self.path.split('/').any(odd_part) {
            return Err(GitError::InvalidSource {
                what: format!("path `{}`", self.path),
                why: "not a folder relative to the repository's root, like `clusters/lab`".into(),
            });
        }
        let name = match &self.reference {
            Reference::Commit(id) if id.len() == 40 && git2::Oid::from_str(id).is_ok() => {
                return self.transport().map(drop);
            }
            Reference::Commit(id) => {
                return Err(GitError::InvalidSource {
                    what: format!("commit `{id}`"),
                    why: "not 40 hex digits; write the full id".into(),
                });
            }
            Reference::Branch(_) | Reference::Tag(_) => self.reference.full_name(),
        };
        if !git2::Reference::is_valid_name(&name) {
            return Err(GitError::InvalidSource {
                what: self.reference.to_string(),
                why: "not a name that Git allows".into(),
            });
        }
        self.transport().map(drop)
    }

    /// The address without user, password and token.
    pub fn shown_url(&self) -> String {
        shown(&self.url)
    }

    pub(super) fn transport(&self) -> Result<Transport, GitError> {
        let unsupported = |why: &str| GitError::InvalidSource {
            what: format!("repository `{}`", self.shown_url()),
            why: why.into(),
        };
        match self.url.split_once("://") {
            Some(("file", _)) => Ok(Transport::Local),
            Some(("https", _)) => Ok(Transport::Http { encrypted: true }),
            Some(("http", _)) => Ok(Transport::Http { encrypted: false }),
            Some(("ssh" | "git+ssh" | "ssh+git", _)) => Ok(Transport::Ssh),
            Some(_) => Err(unsupported("use a path, file://, https://, ssh:// or user@host:path")),
            None if self.url.is_empty() => Err(unsupported("no address given")),
            None if is_scp(&self.url) => Ok(Transport::Ssh),
            None => Ok(Transport::Local),
        }
    }

    /// The host of a remote address.
    pub(super) fn host(&self) -> &str {
        let rest = self.url.split_once("://").map_or(self.url.as_str(), |(_, rest)| rest);
        let authority = rest.split('/').next().unwrap_or_default();
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        match host.strip_prefix('[').and_then(|h| h.split_once(']')) {
            Some((v6, _)) => v6,
            None => host.split(':').next().unwrap_or_default(),
        }
    }

    /// The port of an `ssh://` address, 22 when none is given.
    pub(super) fn ssh_port(&self) -> u16 {
        let Some((_, rest)) = self.url.split_once("://") else { return 22 };
        let authority = rest.split('/').next().unwrap_or_default();
        let after_host = authority.rsplit_once(']').map_or(authority, |(_, rest)| rest);
        after_host.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(22)
    }

    /// What the address itself holds of credentials: to be struck from any message.
    pub(super) fn secret_of_url(&self) -> Option<&str> {
        let (_, rest) = self.url.split_once("://")?;
        let (user_info, _) = rest.split('/').next()?.rsplit_once('@')?;
        (user_info.contains(':') || !matches!(self.transport(), Ok(Transport::Ssh))).then_some(user_info)
    }
}

/// `git@host:path`: a colon before the first slash.
fn is_scp(url: &str) -> bool {
    let before_slash = url.split('/').next().unwrap_or_default();
    before_slash.contains(':')
}

fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let host = match authority.rsplit_once('@') {
        // The user of an ssh address is no secret, and part of the address.
        Some((user, host)) if scheme.contains("ssh") => {
            let user = user.split(':').next().unwrap_or_default();
            return format!("{scheme}://{user}@{host}{path}");
        }
        Some((_, host)) => host,
        None => authority,
    };
    // A query may carry a token as well.
    let path = path.split('?').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

impl Reference {
    /// The name in the repository; for a commit, the name that the mirror gives it.
    pub(super) fn full_name(&self) -> String {
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
        ] {
            assert_eq!(at(url).shown_url(), shown);
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
