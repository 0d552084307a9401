//! Commit status of a source: the forge, and the repository there, that show the verdicts on its commits.
//!
//! Reads no secret: `transport::credentials` reads the token.

use std::path::PathBuf;

use clap::ValueEnum;
use reqwest::Url;
use schema::names::is_dns_label;
use serde::{Deserialize, Serialize};

/// Forge that shows the status of commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Forge {
    /// GitHub, also GitHub Enterprise Server.
    #[value(name = "github")]
    GitHub,
    /// GitLab.
    #[value(name = "gitlab")]
    GitLab,
    /// Gitea.
    Gitea,
    /// Forgejo.
    Forgejo,
}

impl Forge {
    /// Returns its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::GitHub => "GitHub",
            Self::GitLab => "GitLab",
            Self::Gitea => "Gitea",
            Self::Forgejo => "Forgejo",
        }
    }

    /// Returns the API of the public forge, if there is one.
    fn default_api(self) -> Option<&'static str> {
        match self {
            Self::GitHub => Some("https://api.github.com"),
            Self::GitLab => Some("https://gitlab.com"),
            Self::Gitea | Self::Forgejo => None,
        }
    }

    /// Returns the path of the API below its base, which an address may have as well.
    fn api_path(self) -> &'static str {
        match self {
            Self::GitHub => "",
            Self::GitLab => "/api/v4",
            Self::Gitea | Self::Forgejo => "/api/v1",
        }
    }
}

/// Settings of commit status as given, for a source with this address.
#[derive(Debug, Default)]
pub struct CommitStatusFields {
    pub forge: Option<Forge>,
    pub name: Option<String>,
    pub api: Option<String>,
    pub repository: Option<String>,
    pub token_file: Option<PathBuf>,
    pub token_env: Option<String>,
    pub allow_private: bool,
}

/// Place at which a forge shows the verdicts on a source's commits. The token is read at each use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitStatus {
    pub forge: Forge,
    /// Name of the status after `minik8s/`; `None` for that of the source.
    pub name: Option<String>,
    /// Base of the API: `https://api.github.com`, `https://gitlab.com`, `https://git.example.org`.
    pub api: Url,
    /// Repository at the forge, `owner/name`; at GitLab with all of its groups.
    pub repository: String,
    /// A token for the API, alone in the file. Without one, and without a variable, it is in the source's sealed
    /// credentials, or the source's own.
    pub token_file: Option<PathBuf>,
    pub token_env: Option<String>,
    /// Allows an API at a loopback or private address, and `http://` to such a one.
    pub allow_private: bool,
}

impl CommitStatus {
    /// Checks the settings for a source with this valid address. The error is a clause that begins with a verb.
    pub fn new(given: CommitStatusFields, source_url: &str) -> Result<Self, String> {
        let forge = given.forge.ok_or("has no forge; name one of github, gitlab, gitea and forgejo")?;
        if given.token_file.is_some() && given.token_env.is_some() {
            return Err("has both tokenFile and tokenEnv; keep one of them".to_owned());
        }
        let api = given.api.as_deref().or(forge.default_api());
        let api = api.ok_or_else(|| format!("needs the address of {}, `api: https://HOST`", forge.name()))?;
        let api = api.trim_end_matches('/');
        let api = api.strip_suffix(forge.api_path()).unwrap_or(api);
        let repository = given.repository.or_else(|| repository_of(source_url)).ok_or(
            "has a repository without an owner in its address; name it at the forge, `repository: OWNER/NAME`",
        )?;
        check_repository(forge, &repository)?;
        if let Some(name) = given.name.as_ref().filter(|name| !is_dns_label(name)) {
            let name = name.escape_debug();
            return Err(format!("has the name `{name}`; use lower case letters, digits and '-'"));
        }
        Ok(Self {
            forge,
            name: given.name,
            api: api_url(api, given.allow_private)?,
            repository,
            token_file: given.token_file,
            token_env: given.token_env,
            allow_private: given.allow_private,
        })
    }

    /// True if the API belongs to the forge at this host, to which the source's own token may be sent.
    pub(super) fn is_at(&self, host: &str) -> bool {
        let api = self.api.host_str().unwrap_or_default();
        let api = api.trim_matches(['[', ']']);
        !host.is_empty()
            && (api.eq_ignore_ascii_case(host)
                || api.strip_prefix("api.").is_some_and(|rest| rest.eq_ignore_ascii_case(host)))
    }
}

/// Parses the base of an API.
fn api_url(api: &str, allow_private: bool) -> Result<Url, String> {
    let help = "write it as https://HOST";
    let url = Url::parse(api).map_err(|_| format!("has an api that is not a URL; {help}"))?;
    let is_plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none()
        && url.has_host();
    match url.scheme() {
        "https" if is_plain => Ok(url),
        "http" if is_plain && allow_private => Ok(url),
        "http" if is_plain => Err(format!(
            "has an api without encryption, to which no token is sent; {help}, or set allowPrivate for an address of \
             your own network"
        )),
        _ => Err(format!("has an api that is not an http(s) URL without a login or a query; {help}")),
    }
}

fn check_repository(forge: Forge, repository: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_name = |part: &str| !part.is_empty() && part != "." && part != ".." && part.chars().all(fits);
    let parts = repository.split('/').count();
    let has_owner = if forge == Forge::GitLab { parts >= 2 } else { parts == 2 };
    if has_owner && repository.split('/').all(is_name) {
        return Ok(());
    }
    Err(format!(
        "has the repository `{}`, which is not one of {}; write it as OWNER/NAME",
        repository.escape_debug(),
        forge.name()
    ))
}

/// Returns the path of a repository's address without `.git`; `None` for one on this machine.
fn repository_of(url: &str) -> Option<String> {
    let path = match url.split_once("://") {
        Some(("file", _)) => return None,
        Some((_, rest)) => rest.split_once('/')?.1,
        // `user@host:path`, unless it is a path of this machine.
        None => url.split_once(':').filter(|(host, _)| !host.contains('/'))?.1,
    };
    let path = path.split(['?', '#']).next()?.trim_matches('/');
    let path = path.strip_suffix(".git").unwrap_or(path);
    (!path.is_empty()).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(
        forge: Forge,
        api: Option<&str>,
        repository: Option<&str>,
        url: &str,
    ) -> Result<CommitStatus, String> {
        let (api, repository) = (api.map(str::to_owned), repository.map(str::to_owned));
        let given =
            CommitStatusFields { forge: Some(forge), api, repository, ..CommitStatusFields::default() };
        CommitStatus::new(given, url)
    }

    #[test]
    fn api_and_repository_follow_from_the_forge_and_the_address() {
        use Forge::{Forgejo, GitHub, GitLab, Gitea};
        for (forge, api, url, base, repository) in [
            (GitHub, None, "https://github.com/kim/shop.git", "https://api.github.com/", "kim/shop"),
            (GitHub, None, "git@github.com:kim/shop.git", "https://api.github.com/", "kim/shop"),
            (GitLab, None, "https://x:y@gitlab.com/a/b/shop.git/", "https://gitlab.com/", "a/b/shop"),
            (
                Gitea,
                Some("https://git.lan:3000/git"),
                "ssh://git@git.lan:22/kim/shop",
                "https://git.lan:3000/git",
                "kim/shop",
            ),
            (
                Forgejo,
                Some("https://f.lan/api/v1/"),
                "http://f.lan/kim/shop.git",
                "https://f.lan/",
                "kim/shop",
            ),
        ] {
            let status = made(forge, api, None, url).unwrap();
            assert_eq!((status.api.as_str(), status.repository.as_str()), (base, repository), "{url}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_secrets() {
        use Forge::{GitHub, GitLab, Gitea};
        let own = "https://git.lan/kim/shop.git";
        for (forge, api, repository, url, part) in [
            (Gitea, None, None, own, "needs the address of Gitea"),
            (Gitea, Some("http://git.lan"), None, own, "without encryption"),
            (Gitea, Some("https://kim:s3cret@git.lan"), None, own, "without a login"),
            (Gitea, Some("ftp://git.lan"), None, own, "not an http(s) URL"),
            (Gitea, Some("git.lan"), None, own, "not a URL"),
            (GitHub, None, None, "/srv/shop.git", "without an owner"),
            (GitHub, None, None, "file:///srv/kim/shop.git", "without an owner"),
            (GitHub, None, None, "https://git.lan/a/b/shop", "`a/b/shop`, which is not one of GitHub"),
            (GitHub, None, Some("kim/../shop"), own, "OWNER/NAME"),
            (GitLab, None, Some("shop"), own, "OWNER/NAME"),
        ] {
            let why = made(forge, api, repository, url).unwrap_err();
            assert!(why.contains(part) && !why.contains("s3cret"), "{why}");
        }
        let given = CommitStatusFields {
            forge: Some(GitHub),
            name: Some("lab/2".to_owned()),
            ..CommitStatusFields::default()
        };
        assert!(CommitStatus::new(given, own).unwrap_err().starts_with("has the name `lab/2`; use"));
        assert!(CommitStatus::new(CommitStatusFields::default(), own).unwrap_err().contains("has no forge"));
    }

    #[test]
    fn the_sources_own_token_goes_to_its_own_forge_only() {
        let hosts = |forge, api| {
            let status = made(forge, api, Some("kim/shop"), "").unwrap();
            ["github.com", "git.lan", "evil.lan", ""].map(|host| status.is_at(host))
        };
        assert_eq!(hosts(Forge::GitHub, None), [true, false, false, false]);
        assert_eq!(hosts(Forge::GitLab, Some("https://git.lan:8443")), [false, true, false, false]);
        assert_eq!(hosts(Forge::Gitea, Some("https://api.evil.lan.git")), [false; 4]);
    }
}
