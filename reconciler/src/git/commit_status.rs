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

    /// Returns the host of the public forge and its API, if there is one.
    fn public(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::GitHub => Some(("github.com", "https://api.github.com")),
            Self::GitLab => Some(("gitlab.com", "https://gitlab.com")),
            Self::Gitea | Self::Forgejo => None,
        }
    }

    /// Returns the form of an address of the API.
    fn example_api(self) -> &'static str {
        if self == Self::GitHub { "https://HOST/api/v3" } else { "https://HOST" }
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
    /// Set for flags: errors then name these in place of the fields of a sources file.
    pub is_by_flags: bool,
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
    /// Checks the settings for a source with this valid address. The error is the problem and the remedy.
    pub fn new(given: CommitStatusFields, source_url: &str) -> Result<Self, (String, String)> {
        let wrong = |why: &str, help: String| (why.to_owned(), help);
        let is_by_flags = given.is_by_flags;
        let set = |field: &str, value: &str| match is_by_flags {
            true => format!("--commit-status-{field} {value}"),
            false => format!("`{field}: {value}`"),
        };
        let no_forge = || wrong("no forge is named", "name github, gitlab, gitea or forgejo".to_owned());
        let forge = given.forge.ok_or_else(no_forge)?;
        if given.token_file.is_some() && given.token_env.is_some() {
            return Err(wrong("tokenFile and tokenEnv are both set", "keep one of them".to_owned()));
        }
        let (host, path) = address_of(source_url).unwrap_or_default();
        let public = forge.public().filter(|(own, _)| host.eq_ignore_ascii_case(own));
        let give_api = format!("give {}", set("api", forge.example_api()));
        let no_api = || match forge.public() {
            Some((own, api)) => {
                let help = format!("{give_api}, or {api} if its commits are there");
                wrong(&format!("the repository is not at {own}"), help)
            }
            None => wrong(&format!("the address of {}'s API is missing", forge.name()), give_api.clone()),
        };
        let api = given.api.as_deref().or(public.map(|(_, api)| api)).ok_or_else(no_api)?;
        let api = api.trim_end_matches('/');
        let api = api_url(api.strip_suffix(forge.api_path()).unwrap_or(api)).ok_or_else(|| {
            wrong("the API's address is not an http(s) URL without a login and a query", give_api.clone())
        })?;
        if api.scheme() == "http" && !given.allow_private {
            let allow = set(if is_by_flags { "allow-private" } else { "allowPrivate" }, "true");
            let help = format!("{give_api}, or set {allow} for an address of your own network");
            return Err(wrong("the API is not encrypted, so no token is sent to it", help));
        }
        let own = path.contains('/').then(|| path.to_owned());
        let give_repository = || format!("give {}", set("repository", "OWNER/NAME"));
        let no_owner = || wrong("the address of the repository has no owner", give_repository());
        let repository = given.repository.or(own).ok_or_else(no_owner)?;
        if !is_repository(forge, &repository) {
            let why = format!("`{}` is not a repository of {}", repository.escape_debug(), forge.name());
            return Err((why, give_repository()));
        }
        if let Some(name) = given.name.as_ref().filter(|name| !is_dns_label(name)) {
            let why = format!("`{}` is not a name for the status", name.escape_debug());
            let help = format!("give {} of lower case letters, digits and '-'", set("name", "NAME"));
            return Err((why, help));
        }
        Ok(Self {
            forge,
            name: given.name,
            api,
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

/// Parses the base of an API: an http(s) URL without a login and a query.
fn api_url(api: &str) -> Option<Url> {
    let url = Url::parse(api).ok()?;
    let is_plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none()
        && url.has_host();
    (is_plain && matches!(url.scheme(), "http" | "https")).then_some(url)
}

fn is_repository(forge: Forge, repository: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_name = |part: &str| !part.is_empty() && part != "." && part != ".." && part.chars().all(fits);
    let parts = repository.split('/').count();
    let has_owner = if forge == Forge::GitLab { parts >= 2 } else { parts == 2 };
    has_owner && repository.split('/').all(is_name)
}

/// Returns the host of a repository's address, and its path without `.git`; `None` for one on this machine.
fn address_of(url: &str) -> Option<(&str, &str)> {
    let (authority, path) = match url.split_once("://") {
        Some(("file", _)) => return None,
        Some((_, rest)) => rest.split_once('/')?,
        // `user@host:path`, unless it is a path of this machine.
        None => url.split_once(':').filter(|(host, _)| !host.contains('/'))?,
    };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = host.split_once(':').map_or(host, |(host, _)| host);
    let path = path.split(['?', '#']).next()?.trim_matches('/');
    Some((host, path.strip_suffix(".git").unwrap_or(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(
        forge: Forge,
        api: Option<&str>,
        repository: Option<&str>,
        url: &str,
    ) -> Result<CommitStatus, (String, String)> {
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

    // Would fail if a forgotten `api` meant the public forge, which would then get the token of another one.
    #[test]
    fn what_is_wrong_is_said_without_secrets() {
        use Forge::{GitHub, GitLab, Gitea};
        let own = "https://git.lan/kim/shop.git";
        let (hub, lab) = ("https://api.github.com", Some("https://gitlab.com"));
        for (forge, api, repository, url, part) in [
            (Gitea, None, None, own, "address of Gitea's API is missing; give `api: https://HOST`"),
            (
                GitLab,
                None,
                None,
                own,
                "not at gitlab.com; give `api: https://HOST`, or https://gitlab.com if",
            ),
            (
                GitHub,
                None,
                None,
                "https://gitlab.com/kim/shop",
                "not at github.com; give `api: https://HOST/api/v3`",
            ),
            (GitHub, None, Some("kim/shop"), "/srv/shop.git", "not at github.com"),
            (GitHub, None, Some("kim/shop"), "file://github.com/kim/shop", "not at github.com"),
            (GitHub, None, None, "https://github.com@git.lan/kim/shop", "not at github.com"),
            (
                Gitea,
                Some("http://git.lan"),
                None,
                own,
                "not encrypted, so no token is sent to it; give `api: ",
            ),
            (Gitea, Some("https://kim:s3cret@git.lan"), None, own, "without a login"),
            (Gitea, Some("ftp://git.lan"), None, own, "not an http(s) URL"),
            (Gitea, Some("git.lan"), None, own, "not an http(s) URL"),
            (GitHub, Some(hub), None, "/srv/shop.git", "has no owner; give `repository: OWNER/NAME`"),
            (GitHub, Some(hub), None, "file:///srv/kim/shop.git", "has no owner"),
            (GitHub, Some(hub), None, "https://git.lan/a/b/shop", "`a/b/shop` is not a repository of GitHub"),
            (GitHub, Some(hub), Some("kim/../shop"), own, "OWNER/NAME"),
            (GitLab, lab, Some("shop"), own, "OWNER/NAME"),
        ] {
            let (why, help) = made(forge, api, repository, url).unwrap_err();
            let said = format!("{why}; {help}");
            assert!(said.contains(part) && !said.contains("s3cret"), "{said}");
        }
        let given = CommitStatusFields {
            forge: Some(GitHub),
            name: Some("lab/2".to_owned()),
            api: Some(hub.to_owned()),
            ..CommitStatusFields::default()
        };
        assert_eq!(CommitStatus::new(given, own).unwrap_err().0, "`lab/2` is not a name for the status");
        let none = CommitStatus::new(CommitStatusFields::default(), own).unwrap_err();
        assert_eq!(none.0, "no forge is named");
    }

    #[test]
    fn the_sources_own_token_goes_to_its_own_forge_only() {
        let hosts = |forge, api| {
            let status = made(forge, api, None, "https://github.com/kim/shop").unwrap();
            ["github.com", "git.lan", "evil.lan", ""].map(|host| status.is_at(host))
        };
        assert_eq!(hosts(Forge::GitHub, None), [true, false, false, false]);
        assert_eq!(hosts(Forge::GitLab, Some("https://git.lan:8443")), [false, true, false, false]);
        assert_eq!(hosts(Forge::Gitea, Some("https://api.evil.lan.git")), [false; 4]);
    }
}
