//! Flags that name a repository, shared by every command that needs one.
//!
//! All are optional: `up` fills absent flags from the record of an earlier `up`, `serve` from the defaults below.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::{Args, ValueEnum as _};
use schema::records::AllowedObjects;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{ConfigError, parse_duration};
use crate::git::{
    CommitStatus, CommitStatusFields, Credentials, Forge, Reference, SignaturePolicy, SourceConfig,
};

/// Shortest poll interval: a webhook spares the Git server the load of more frequent polls.
const POLL_MIN: Duration = Duration::from_millis(100);
/// Longest poll interval: a longer one is more likely a mistyped unit.
const POLL_MAX: Duration = Duration::from_secs(24 * 3600);
pub(super) const POLL_DEFAULT: Duration = Duration::from_secs(5);
pub(super) const BRANCH_DEFAULT: &str = "main";
const SOURCE_DEFAULT: &str = "main";
/// Value of `--commit-status` for no commit status.
const NO_FORGE: &str = "none";

/// A repository by flags, or several by a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RepoArgs {
    /// Repository with the manifests: a path, file://, https://, ssh:// or user@host:path
    #[arg(long, env = "MINIK8S_REPO", value_name = "URL")]
    pub repo: Option<String>,
    /// File with a list of several repositories, instead of --repo and its related flags
    #[arg(long, env = "MINIK8S_SOURCES", value_name = "FILE")]
    pub sources: Option<PathBuf>,
    /// Branch to follow [default: main]
    #[arg(long, env = "MINIK8S_BRANCH", value_name = "NAME")]
    pub branch: Option<String>,
    /// Tag to follow instead of a branch
    #[arg(long, env = "MINIK8S_TAG", value_name = "NAME", conflicts_with = "commit")]
    pub tag: Option<String>,
    /// Commit to pin instead of following a branch
    #[arg(long, env = "MINIK8S_COMMIT", value_name = "SHA")]
    pub commit: Option<String>,
    /// Folder of the repository with the manifests [default: its root]
    #[arg(long, env = "MINIK8S_PATH", value_name = "DIR")]
    pub path: Option<String>,
    /// Name of this source in status and history [default: main]
    #[arg(long, env = "MINIK8S_SOURCE", value_name = "NAME")]
    pub source: Option<String>,
    /// Interval between polls of the repository [default: 5s]
    #[arg(long, env = "MINIK8S_POLL", value_name = "TIME", value_parser = parse_duration)]
    #[serde(with = "duration_text")]
    pub poll: Option<Duration>,
    /// Apply a commit as a whole or not at all, instead of leaving out invalid files
    #[arg(long, env = "MINIK8S_STRICT", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub strict: Option<bool>,
    /// File with a token for https://
    #[arg(long, env = "MINIK8S_TOKEN_FILE", value_name = "FILE", conflicts_with = "token_env")]
    pub token_file: Option<PathBuf>,
    /// Environment variable with a token for https://
    #[arg(long, env = "MINIK8S_TOKEN_ENV", value_name = "NAME")]
    pub token_env: Option<String>,
    /// Username sent with the token; the default suits GitHub, GitLab, Gitea and Bitbucket
    #[arg(long, env = "MINIK8S_GIT_USERNAME", value_name = "NAME")]
    pub git_username: Option<String>,
    /// File with the only CA certificates to trust for https://
    #[arg(long, env = "MINIK8S_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// File with a private key for ssh://
    #[arg(long, env = "MINIK8S_SSH_KEY", value_name = "FILE")]
    pub ssh_key: Option<PathBuf>,
    /// File with the host keys for ssh://
    #[arg(long, env = "MINIK8S_KNOWN_HOSTS", value_name = "FILE")]
    pub known_hosts: Option<PathBuf>,
    /// Apply only commits with an SSH signature of one of these signers; OpenSSH's allowed_signers format
    #[arg(long, env = "MINIK8S_ALLOWED_SIGNERS", value_name = "FILE")]
    pub allowed_signers: Option<PathBuf>,
    /// Apply only commits with a GPG signature of one of these public keys; armored or binary
    #[arg(long, env = "MINIK8S_GPG_KEYS", value_name = "FILE")]
    pub gpg_keys: Option<PathBuf>,
    /// Forge to which the verdict on each commit is reported; `none` takes back that of an earlier `up`
    #[arg(
        long,
        env = "MINIK8S_COMMIT_STATUS",
        value_name = "FORGE",
        value_parser = ["github", "gitlab", "gitea", "forgejo", NO_FORGE]
    )]
    pub commit_status: Option<String>,
    /// Name of that status after `minik8s/`, for each of several clusters that follow one repository [default: that of
    /// the source]
    #[arg(long, env = "MINIK8S_COMMIT_STATUS_NAME", value_name = "NAME")]
    pub commit_status_name: Option<String>,
    /// File with a token for the forge's API, if not that of --token-file
    #[arg(long, env = "MINIK8S_COMMIT_STATUS_TOKEN_FILE", value_name = "FILE")]
    pub commit_status_token_file: Option<PathBuf>,
    /// Base URL of the forge's API [default: that of github.com or gitlab.com, if the repository is there]
    #[arg(long, env = "MINIK8S_COMMIT_STATUS_API", value_name = "URL")]
    pub commit_status_api: Option<String>,
    /// Repository at the forge, as OWNER/NAME [default: the path in --repo]
    #[arg(long, env = "MINIK8S_COMMIT_STATUS_REPOSITORY", value_name = "NAME")]
    pub commit_status_repository: Option<String>,
    /// Allow an API at a loopback or private address
    #[arg(
        long,
        env = "MINIK8S_COMMIT_STATUS_ALLOW_PRIVATE",
        value_name = "BOOL",
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub commit_status_allow_private: Option<bool>,
}

/// Fields that apply to a single repository only.
const OF_ONE_REPO: [&str; 14] = [
    "branch",
    "tag",
    "commit",
    "path",
    "tokenFile",
    "tokenEnv",
    "gitUsername",
    "sshKey",
    "commitStatus",
    "commitStatusName",
    "commitStatusTokenFile",
    "commitStatusApi",
    "commitStatusRepository",
    "commitStatusAllowPrivate",
];
/// Groups of mutually exclusive fields.
const EXCLUSIVE: [&[&str]; 2] = [&["branch", "tag", "commit"], &["tokenFile", "tokenEnv"]];

impl RepoArgs {
    /// The fields that are set. Empty if a path is not UTF-8, which [`RepoArgs::absolute`] rejects.
    fn set_fields(&self) -> Map<String, Value> {
        let fields = serde_json::to_value(self).ok().and_then(|value| value.as_object().cloned());
        fields.into_iter().flatten().filter(|(_, value)| !value.is_null()).collect()
    }

    /// Fills absent fields from `earlier`, unless that would contradict: a repository by flags and a file of
    /// sources, one reference and another, one kind of token and another. For another repository, see
    /// [`RepoArgs::not_carried_over`]. Both are [`RepoArgs::absolute`].
    #[must_use]
    pub fn filled_from(self, earlier: &RepoArgs) -> Self {
        if self.sources.is_some() {
            return self;
        }
        let (now, mut fields) = (self.set_fields(), earlier.set_fields());
        if self.repo.is_some() {
            fields.remove("sources");
        }
        if self.is_another_repo(earlier) {
            fields.retain(|field, _| !OF_ONE_REPO.contains(&field.as_str()));
        }
        if self.commit_status.as_deref() == Some(NO_FORGE) {
            fields.retain(|field, _| !field.starts_with("commitStatus"));
        }
        for group in EXCLUSIVE.iter().filter(|group| group.iter().any(|field| now.contains_key(*field))) {
            fields.retain(|field, _| !group.contains(&field.as_str()));
        }
        fields.extend(now);
        serde_json::from_value(Value::Object(fields)).expect("the fields of two RepoArgs make one")
    }

    /// Flags of `earlier` that do not apply to another repository. The allowed signers are kept, so that no more
    /// commits are accepted.
    pub fn not_carried_over(&self, earlier: &RepoArgs) -> Vec<String> {
        if self.sources.is_some() || !self.is_another_repo(earlier) {
            return Vec::new();
        }
        let (now, before) = (self.set_fields(), earlier.set_fields());
        let lost =
            OF_ONE_REPO.iter().filter(|field| before.contains_key(**field) && !now.contains_key(**field));
        lost.map(|field| flag_of(field)).collect()
    }

    fn is_another_repo(&self, earlier: &RepoArgs) -> bool {
        self.repo.is_some() && earlier.repo.is_some() && self.repo != earlier.repo
    }

    /// Makes paths absolute: a relative one would mean something else to a child process, and to the next `up`.
    pub fn absolute(mut self) -> anyhow::Result<Self> {
        self.repo = self.repo.map(|repo| absolute_if_path(&repo)).transpose()?;
        let files = [
            &mut self.sources,
            &mut self.token_file,
            &mut self.ca_file,
            &mut self.ssh_key,
            &mut self.known_hosts,
            &mut self.allowed_signers,
            &mut self.gpg_keys,
            &mut self.commit_status_token_file,
        ];
        for file in files.into_iter().flatten() {
            let path = std::path::absolute(&*file)
                .with_context(|| format!("{} has no absolute path", file.display()))?;
            *file = text_of(path)?.into();
        }
        Ok(self)
    }

    /// Environment variables for a child process. Not flags: everyone may read a command line, and a URL may
    /// contain a password.
    pub fn environment(&self) -> Vec<(String, String)> {
        let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let name = |field: &str| format!("MINIK8S_{}", spelled(field, '_').to_uppercase());
        self.set_fields().into_iter().map(|(field, value)| (name(&field), text(value))).collect()
    }

    /// A flag that is set and applies to a single repository only, if any.
    pub(super) fn flag_of_single(&self) -> Option<String> {
        self.set_fields().keys().find(|field| *field != "sources").map(|field| flag_of(field))
    }
}

/// Flag of a field: `--token-file` for `tokenFile`.
pub fn flag_of(field: &str) -> String {
    format!("--{}", spelled(field, '-'))
}

fn spelled(field: &str, separator: char) -> String {
    let letters = field.chars().map(|c| match c.is_ascii_uppercase() {
        true => format!("{separator}{}", c.to_ascii_lowercase()),
        false => c.to_string(),
    });
    letters.collect()
}

impl TryFrom<RepoArgs> for SourceConfig {
    type Error = ConfigError;

    fn try_from(args: RepoArgs) -> Result<Self, ConfigError> {
        let status = commit_status_fields(&args)?;
        let Some(repo) = args.repo else {
            let help = "name the repository to follow: --repo URL, or --sources FILE for several";
            return Err(ConfigError::new("--repo", "", "is not given", help));
        };
        let poll = args.poll.unwrap_or(POLL_DEFAULT);
        check_poll(poll).map_err(|(why, help)| ConfigError::new("--poll", format!("{poll:?}"), why, help))?;
        let mut config = SourceConfig {
            name: args.source.unwrap_or_else(|| SOURCE_DEFAULT.to_owned()),
            url: repo,
            reference: reference(args.branch, args.tag, args.commit),
            path: args.path.unwrap_or_default().trim_matches('/').to_owned(),
            credentials: Credentials {
                token_file: args.token_file,
                token_env: args.token_env,
                username: args.git_username,
                ssh_key: args.ssh_key,
                known_hosts: args.known_hosts,
                ca_file: args.ca_file,
                sealed: None,
                proxy: None,
            },
            poll,
            strict: args.strict.unwrap_or(false),
            signatures: SignaturePolicy::from_files(args.allowed_signers, args.gpg_keys),
            allow: AllowedObjects::default(),
            commit_status: None,
        };
        let help = "see minik8s serve --help";
        config
            .check()
            .map_err(|error| ConfigError::new("--repo", config.shown_url(), error.to_string(), help))?;
        if let Some(given) = status {
            let forge = given.forge.map(|forge| forge.name().to_ascii_lowercase()).unwrap_or_default();
            let status = CommitStatus::new(given, &config.url)
                .map_err(|(why, help)| ConfigError::new("--commit-status", forge, why, help))?;
            config.commit_status = Some(status);
        }
        Ok(config)
    }
}

/// Returns the settings of commit status, if they are given.
fn commit_status_fields(args: &RepoArgs) -> Result<Option<CommitStatusFields>, ConfigError> {
    let given = CommitStatusFields {
        forge: args.commit_status.as_deref().and_then(|name| Forge::from_str(name, false).ok()),
        name: args.commit_status_name.clone(),
        api: args.commit_status_api.clone(),
        repository: args.commit_status_repository.clone(),
        token_file: args.commit_status_token_file.clone(),
        token_env: None,
        allow_private: args.commit_status_allow_private.unwrap_or_default(),
        is_by_flags: true,
    };
    let is_any = [&given.name, &given.api, &given.repository].iter().any(|field| field.is_some());
    if given.forge.is_none() && (is_any || given.token_file.is_some() || given.allow_private) {
        let help = "name the forge: --commit-status github, gitlab, gitea or forgejo";
        return Err(ConfigError::new("--commit-status", "", "is not given, but settings of it are", help));
    }
    Ok(given.forge.is_some().then_some(given))
}

/// The reference that is given, else the default branch.
pub(super) fn reference(branch: Option<String>, tag: Option<String>, commit: Option<String>) -> Reference {
    match (commit, tag, branch) {
        (Some(commit), ..) => Reference::Commit(commit),
        (None, Some(tag), _) => Reference::Tag(tag),
        (None, None, branch) => Reference::Branch(branch.unwrap_or_else(|| BRANCH_DEFAULT.to_owned())),
    }
}

/// Checks a poll interval; the error is the problem and the remedy.
pub(super) fn check_poll(poll: Duration) -> Result<(), (&'static str, &'static str)> {
    if (POLL_MIN..=POLL_MAX).contains(&poll) {
        return Ok(());
    }
    Err(("is out of bounds", "give a time from 100ms to 24h, for example 5s"))
}

fn absolute_if_path(repo: &str) -> anyhow::Result<String> {
    let is_path = !repo.contains("://") && (!repo.contains(':') || Path::new(repo).exists());
    if !is_path {
        return Ok(repo.to_owned());
    }
    let path = std::path::absolute(repo).with_context(|| format!("{repo} has no absolute path"))?;
    text_of(path)
}

fn text_of(path: PathBuf) -> anyhow::Result<String> {
    path.into_os_string().into_string().map_err(|path| anyhow!("{} is not UTF-8", path.display()))
}

/// Durations as typed, in the record of `up`.
mod duration_text {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        value.map(|time| format!("{}ms", time.as_millis())).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| super::parse_duration(&text).map_err(serde::de::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(repo: &str) -> RepoArgs {
        RepoArgs { repo: Some(repo.to_owned()), ..RepoArgs::default() }
    }

    #[test]
    fn what_is_said_anew_takes_the_place_of_what_contradicts_it() {
        let earlier = RepoArgs { branch: Some("main".into()), token_file: Some("/t".into()), ..args("/a") };
        let now = RepoArgs { tag: Some("v1".into()), token_env: Some("T".into()), ..RepoArgs::default() };
        let both = now.filled_from(&earlier);
        assert_eq!((both.repo.as_deref(), both.branch, both.token_file), (Some("/a"), None, None));
        assert_eq!(both.tag.as_deref(), Some("v1"));
        let file = RepoArgs { sources: Some("/s.yaml".into()), ..RepoArgs::default() };
        assert_eq!(file.clone().filled_from(&earlier), file);
        assert_eq!(args("/b").filled_from(&file), args("/b"));
    }

    #[test]
    fn nothing_that_was_for_one_repository_goes_to_another() {
        let one = RepoArgs {
            branch: Some("b".into()),
            path: Some("apps".into()),
            token_file: Some("/t".into()),
            git_username: Some("u".into()),
            ssh_key: Some("/k".into()),
            known_hosts: Some("/hosts".into()),
            ca_file: Some("/ca".into()),
            allowed_signers: Some("/signers".into()),
            gpg_keys: Some("/gpg".into()),
            strict: Some(true),
            commit_status: Some("gitea".into()),
            commit_status_token_file: Some("/status".into()),
            ..args("https://one.example/a.git")
        };
        let other = args("https://other.example/a.git");
        let both = other.clone().filled_from(&one);
        let forgotten = (&both.branch, &both.path, &both.token_file, &both.git_username, &both.ssh_key);
        assert_eq!(forgotten, (&None, &None, &None, &None, &None));
        let kept = (both.allowed_signers, both.gpg_keys, both.known_hosts, both.strict);
        assert_eq!(
            kept,
            (one.allowed_signers.clone(), one.gpg_keys.clone(), one.known_hosts.clone(), Some(true))
        );
        assert_eq!((both.commit_status, both.commit_status_token_file), (None, None));
        let flags = [
            "--branch",
            "--path",
            "--token-file",
            "--git-username",
            "--ssh-key",
            "--commit-status",
            "--commit-status-token-file",
        ];
        assert_eq!(other.not_carried_over(&one), flags);
        let env = RepoArgs { token_env: Some("T".into()), ..args("https://one.example/a.git") };
        assert_eq!(other.clone().filled_from(&env).token_env, None);
        // A newly given key is for the new repository.
        let given = RepoArgs { ssh_key: Some("/k2".into()), ..other };
        assert_eq!(given.not_carried_over(&one), [&flags[..4], &flags[5..]].concat());
        assert_eq!(given.filled_from(&one).ssh_key, Some("/k2".into()));
        // The same repository again, or none: every flag is kept.
        for same in [args("https://one.example/a.git"), RepoArgs::default()] {
            assert!(same.not_carried_over(&one).is_empty());
            assert_eq!(same.filled_from(&one), one);
        }
    }

    #[test]
    fn the_forge_gets_its_settings_from_flags() {
        let args = RepoArgs {
            commit_status: Some("gitea".into()),
            commit_status_api: Some("http://127.0.0.1:3000".to_owned()),
            commit_status_allow_private: Some(true),
            ..args("http://127.0.0.1:3000/kim/shop.git")
        };
        let status = SourceConfig::try_from(args.clone()).unwrap().commit_status.unwrap();
        assert_eq!((status.forge, status.repository.as_str()), (Forge::Gitea, "kim/shop"));
        assert!(args.environment().contains(&("MINIK8S_COMMIT_STATUS".to_owned(), "gitea".to_owned())));
        let off = RepoArgs {
            repo: args.repo.clone(),
            commit_status: Some(NO_FORGE.to_owned()),
            ..RepoArgs::default()
        };
        assert_eq!(SourceConfig::try_from(off).unwrap().commit_status, None);
        let forgotten = RepoArgs { commit_status: None, ..args.clone() };
        let without_owner = RepoArgs { repo: Some("/srv/shop.git".to_owned()), ..args.clone() };
        let refused = RepoArgs { commit_status_allow_private: None, ..args };
        for (args, part) in [
            (forgotten, "--commit-status: is not given"),
            (refused, "--commit-status gitea: the API is not encrypted"),
            (without_owner, "; give --commit-status-repository OWNER/NAME"),
        ] {
            let error = SourceConfig::try_from(args).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_record_is_read_back_as_it_was_written() {
        let before = RepoArgs {
            poll: Some(Duration::from_millis(1500)),
            strict: Some(true),
            commit_status: Some("github".into()),
            ..args("/a")
        };
        let text = serde_json::to_string(&before).unwrap();
        assert_eq!(serde_json::from_str::<RepoArgs>(&text).unwrap(), before);
        let old = r#"{"repo": "/a", "branch": "main", "path": null, "poll": "5s", "etcdPort": 1}"#;
        assert_eq!(serde_json::from_str::<RepoArgs>(old).unwrap().poll, Some(Duration::from_secs(5)));
    }
}
