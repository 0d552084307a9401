//! Settings of `minik8s serve`: flags as typed ([`ServeArgs`]) and validated ([`ServeConfig`]).
//!
//! Reads flags and `MINIK8S_*`; checks everything that needs no I/O, and that tokens for commit status can be read.

mod repo;
mod sources;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ipnet::Ipv4Net;
use schema::names::{HostNames, is_host_name};
use schema::quantity::Memory;
use schema::store::etcd::Access;
use serde::{Deserialize, Serialize};

use crate::controllers::Settings;
use crate::git::SourceConfig;
use crate::text_file::read_text;
use crate::webhooks::{WebhookArgs, WebhookConfig};
use crate::workflows::BYTES_PER_MINUTE_MIN;

pub use repo::{RepoArgs, flag_of};
pub use sources::read_sources;

pub use crate::git::identity_file;

/// Default address of the private etcd of `minik8s up`.
pub const DEFAULT_ETCD: &str = "http://127.0.0.1:7079";
pub const DEFAULT_LISTEN: &str = "127.0.0.1:7070";
pub const DEFAULT_STATE_DIR: &str = "/var/lib/minik8s";
pub const DEFAULT_CLUSTER_CIDR: &str = "10.244.0.0/16";
pub const DEFAULT_SERVICE_CIDR: &str = "10.96.0.0/16";

/// Shortest prefix of the pod range: private address space has no larger range than 10.0.0.0/8.
const CLUSTER_PREFIX_MIN: u8 = 8;
/// Longest prefix of the pod range: a smaller range does not hold the /24 of a single node.
const CLUSTER_PREFIX_MAX: u8 = 24;
/// Shortest prefix of the service range, as in Kubernetes.
const SERVICE_PREFIX_MIN: u8 = 12;
/// Longest prefix of the service range that holds the reserved addresses and some services.
const SERVICE_PREFIX_MAX: u8 = 26;

/// Smallest quota that may be given: a cluster of a few pods with ten minutes of history.
const ETCD_QUOTA_MIN: u64 = 16 << 20;

#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub repo: RepoArgs,
    /// etcd's client addresses
    #[arg(long, env = "MINIK8S_ETCD", value_name = "URL", default_value = DEFAULT_ETCD, value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// etcd user, if etcd has authentication enabled
    #[arg(long, env = "MINIK8S_ETCD_USER", value_name = "NAME", requires = "etcd_password_file")]
    pub etcd_user: Option<String>,
    /// File with that user's password
    #[arg(long, env = "MINIK8S_ETCD_PASSWORD_FILE", value_name = "FILE", requires = "etcd_user")]
    pub etcd_password_file: Option<PathBuf>,
    #[command(flatten)]
    pub upkeep: EtcdUpkeepArgs,
    /// Directory for the mirror of the repository and other state
    #[arg(long, env = "MINIK8S_STATE_DIR", value_name = "DIR", default_value = DEFAULT_STATE_DIR)]
    pub state_dir: PathBuf,
    /// Address of the read-only API
    #[arg(long, env = "MINIK8S_LISTEN", value_name = "ADDR:PORT", default_value = DEFAULT_LISTEN)]
    pub listen: SocketAddr,
    /// Do not serve the web page at the API's address
    #[arg(long, env = "MINIK8S_NO_UI")]
    pub no_ui: bool,
    /// URL at which agents reach that API; by default found from --listen and the route to etcd
    #[arg(long, env = "MINIK8S_ADVERTISE", value_name = "URL")]
    pub advertise: Option<String>,
    /// URL at which people reach the web page; links in notifications begin with it
    #[arg(long, env = "MINIK8S_PAGE_URL", value_name = "URL")]
    pub page_url: Option<String>,
    /// Name of this cluster in notifications; titles in chats and mail begin with it
    #[arg(long, env = "MINIK8S_CLUSTER_NAME", value_name = "NAME")]
    pub cluster_name: Option<String>,
    /// Name by which that API may be addressed, besides IP addresses, localhost and the name in --advertise; may be
    /// repeated
    #[arg(long, env = "MINIK8S_ALLOW_HOST", value_name = "NAME", value_delimiter = ',')]
    pub allow_host: Vec<String>,
    /// Name of a node on this machine, whose agent may listen on loopback only; may be repeated. By default the host's
    /// name
    #[arg(long, env = "MINIK8S_LOCAL_NODE", value_name = "NODE", value_delimiter = ',')]
    pub local_node: Vec<String>,
    /// Maximum size of the runs that callers may request of a workflow in a minute
    #[arg(long, env = "MINIK8S_RUN_BYTES_PER_MINUTE", value_name = "QUANTITY", default_value = "16Mi")]
    pub run_bytes_per_minute: String,
    /// Range of pod addresses; every node gets a /24 of it
    #[arg(long, env = "MINIK8S_CLUSTER_CIDR", value_name = "CIDR", default_value = DEFAULT_CLUSTER_CIDR)]
    pub cluster_cidr: Ipv4Net,
    /// Range of service addresses: its 10th is DNS and its 11th the gateway on every node
    #[arg(long, env = "MINIK8S_SERVICE_CIDR", value_name = "CIDR", default_value = DEFAULT_SERVICE_CIDR)]
    pub service_cidr: Ipv4Net,
    /// Name of this reconciler among several; by default the host's name
    #[arg(long, env = "MINIK8S_NAME", value_name = "ID")]
    pub name: Option<String>,
    #[command(flatten)]
    pub webhooks: WebhookArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

/// Upkeep of etcd.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EtcdUpkeepArgs {
    /// Let the leader compact and defragment this etcd. The private etcd of `up` is always maintained; for another
    /// one, `minik8s-agent doctor` prints what to run
    #[arg(long, env = "MINIK8S_ETCD_UPKEEP")]
    pub etcd_upkeep: bool,
    /// etcd's --quota-backend-bytes: needed if its metrics can't be read; `up` gives it to its private etcd
    #[arg(long, env = "MINIK8S_ETCD_QUOTA", value_name = "QUANTITY")]
    pub etcd_quota: Option<String>,
}

impl EtcdUpkeepArgs {
    /// Returns the quota in bytes.
    ///
    /// # Errors
    /// It is no quantity of at least 16 MiB.
    pub fn quota_bytes(&self) -> Result<Option<u64>, ConfigError> {
        let Some(given) = &self.etcd_quota else { return Ok(None) };
        let (flag, help) = ("--etcd-quota", "give 16Mi or more, for example 8Gi");
        match given.parse::<Memory>() {
            Ok(quota) if quota.bytes >= ETCD_QUOTA_MIN => Ok(Some(quota.bytes)),
            Ok(_) => Err(ConfigError::new(flag, given, "is too small for a cluster", help)),
            Err(error) => Err(ConfigError::new(flag, given, error.to_string(), help)),
        }
    }
}

#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// The repositories, at least one, with unique names.
    pub sources: Vec<SourceConfig>,
    pub etcd: Access,
    /// Set if the leader maintains this etcd.
    pub etcd_upkeep: bool,
    /// Quota of etcd, if it is given.
    pub etcd_quota: Option<u64>,
    /// Directory that holds this daemon's `reconciler/`.
    pub state_dir: PathBuf,
    pub listen: SocketAddr,
    /// Set if the web page is served, too.
    pub ui: bool,
    /// URL of the API for agents, `http://host:port` without a trailing `/`; `None` if not given.
    pub advertise: Option<String>,
    /// URL of the page for people, without a trailing `/`; `None` if messages have no links.
    pub page_url: Option<String>,
    /// Name of the cluster in messages.
    pub cluster_name: Option<String>,
    /// Names by which the API may be addressed.
    pub hosts: HostNames,
    /// Names of the nodes on this machine, whose servers may listen on loopback.
    pub local_nodes: Arc<BTreeSet<String>>,
    pub run_bytes_per_minute: u64,
    pub settings: Settings,
    /// Settings of webhooks; `None` if webhooks are off.
    pub webhooks: Option<WebhookConfig>,
    pub name: String,
    pub log: LogArgs,
}

impl ServeConfig {
    /// This daemon's own part of the state directory.
    pub fn own_dir(&self) -> PathBuf {
        self.state_dir.join("reconciler")
    }
}

/// An invalid flag. One line: problem, reason, remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}; {help}")]
pub struct ConfigError {
    /// The flag, and its value if that can be shown.
    place: String,
    why: String,
    help: String,
}

impl ConfigError {
    fn new(
        flag: &'static str,
        value: impl fmt::Display,
        why: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        let place = format!("{flag} {value}").trim_end().to_owned();
        Self { place, why: why.into(), help: help.into() }
    }
}

impl TryFrom<ServeArgs> for ServeConfig {
    type Error = ConfigError;

    fn try_from(args: ServeArgs) -> Result<Self, ConfigError> {
        let state_dir = absolute(&args.state_dir)?;
        let sources = sources_of(args.repo, &state_dir)?;
        let first_source = sources.first().map(|source| source.name.clone()).unwrap_or_default();
        let help = "for example http://10.0.0.5:7070";
        let advertise = args.advertise.map(|url| http_url("--advertise", &url, help)).transpose()?;
        let help = "for example https://minik8s.example.org";
        let page_url = args.page_url.map(|url| http_url("--page-url", &url, help)).transpose()?;
        let names: BTreeSet<String> = sources.iter().map(|source| source.name.clone()).collect();
        Ok(Self {
            sources,
            etcd: Access::new(endpoints(args.etcd)?, args.etcd_user, args.etcd_password_file),
            etcd_upkeep: args.upkeep.etcd_upkeep,
            etcd_quota: args.upkeep.quota_bytes()?,
            state_dir,
            listen: args.listen,
            ui: !args.no_ui,
            run_bytes_per_minute: run_bytes(&args.run_bytes_per_minute)?,
            hosts: hosts(args.allow_host, advertise.as_deref())?,
            local_nodes: Arc::new(local_nodes(args.local_node)),
            advertise,
            page_url,
            cluster_name: args.cluster_name.map(|name| valid_name("--cluster-name", name)).transpose()?,
            settings: Settings {
                cluster_cidr: cluster_cidr(args.cluster_cidr)?,
                service_cidr: service_cidr(args.service_cidr, args.cluster_cidr)?,
                sources: names,
                first_source,
            },
            webhooks: args.webhooks.config(),
            name: valid_name("--name", args.name.or_else(host_name).unwrap_or_else(|| "minik8s".to_owned()))?,
            log: args.log,
        })
    }
}

/// Checks the flags that name repositories, as `serve` does, before anything is started for them.
pub fn check_repo(args: &RepoArgs) -> Result<(), ConfigError> {
    sources_of(args.clone(), Path::new(DEFAULT_STATE_DIR)).map(drop)
}

/// Returns the source in the flags, or those in the file.
fn sources_of(args: RepoArgs, state_dir: &Path) -> Result<Vec<SourceConfig>, ConfigError> {
    let Some(file) = &args.sources else {
        let source = SourceConfig::try_from(args)?;
        check_status_token(&source, None)?;
        return Ok(vec![source]);
    };
    if let Some(flag) = args.flag_of_single() {
        let help = format!("keep one of them; for a repository in the file, set it there instead of {flag}");
        return Err(ConfigError::new(
            "--sources",
            file.display(),
            format!("cannot be combined with {flag}"),
            help,
        ));
    }
    let sources = read_sources(file, state_dir)?;
    sources.iter().try_for_each(|source| check_status_token(source, Some(file.as_path())))?;
    Ok(sources)
}

/// Checks the file with the token for commit status, which is needed only once there is a status to send. `list` is the
/// file of sources.
fn check_status_token(source: &SourceConfig, list: Option<&Path>) -> Result<(), ConfigError> {
    let file = source.commit_status.as_ref().and_then(|status| status.token_file.as_deref());
    let Some((file, error)) = file.and_then(|file| Some((file, read_text(file).err()?))) else {
        return Ok(());
    };
    let (why, help) =
        (format!("cannot be read: {error}"), "name a file with the token that this user can read");
    Err(match list {
        None => ConfigError::new("--commit-status-token-file", file.display(), why, help),
        Some(list) => {
            let why = format!("source `{}`: tokenFile {} of commitStatus {why}", source.name, file.display());
            ConfigError::new("--sources", list.display(), why, help)
        }
    })
}

/// Returns the URL without a trailing `/`. One with a login is refused, and not repeated.
fn http_url(flag: &'static str, url: &str, help: &str) -> Result<String, ConfigError> {
    let url = url.trim().trim_end_matches('/').to_owned();
    let authority = url.split_once("://").and_then(|(_, rest)| rest.split(['/', '?', '#']).next());
    if authority.is_some_and(|authority| authority.contains('@')) {
        return Err(ConfigError::new(flag, "", "has a login, which everyone would see", help));
    }
    match is_http(&url) && !url.contains(|c: char| c.is_control() || c.is_whitespace()) {
        true => Ok(url),
        false => Err(ConfigError::new(flag, url, "is not an http(s) URL", help)),
    }
}

/// Returns the names by which the API may be addressed: those allowed, and the one in the URL for agents.
fn hosts(allowed: Vec<String>, advertised: Option<&str>) -> Result<HostNames, ConfigError> {
    if let Some(wrong) = allowed.iter().find(|name| !is_host_name(name)) {
        let help = "write a name without scheme and port, for example api.example.org";
        return Err(ConfigError::new("--allow-host", wrong, "is not the name of a host", help));
    }
    let advertised = advertised.and_then(|url| Some(url.split_once("://")?.1.to_owned()));
    Ok(HostNames::new(allowed.into_iter().chain(advertised)))
}

fn run_bytes(given: &str) -> Result<u64, ConfigError> {
    let (flag, help) = ("--run-bytes-per-minute", "give 1Mi or more, for example 16Mi");
    match given.parse::<Memory>() {
        Ok(given) if given.bytes >= BYTES_PER_MINUTE_MIN => Ok(given.bytes),
        Ok(_) => Err(ConfigError::new(flag, given, "does not hold the largest input of a run", help)),
        Err(error) => Err(ConfigError::new(flag, given, error.to_string(), help)),
    }
}

fn endpoints(etcd: Vec<String>) -> Result<Vec<String>, ConfigError> {
    let etcd: Vec<String> =
        etcd.into_iter().map(|url| url.trim().to_owned()).filter(|u| !u.is_empty()).collect();
    if etcd.is_empty() {
        return Err(ConfigError::new(
            "--etcd",
            "",
            "names no endpoint",
            format!("for example {DEFAULT_ETCD}"),
        ));
    }
    if let Some(url) = etcd.iter().find(|url| !is_http(url)) {
        let help = format!("write it as {DEFAULT_ETCD}");
        return Err(ConfigError::new("--etcd", url, "is not an http:// or https:// address", help));
    }
    Ok(etcd)
}

fn is_http(url: &str) -> bool {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    rest.is_some_and(|rest| !rest.is_empty())
}

fn absolute(dir: &Path) -> Result<PathBuf, ConfigError> {
    std::path::absolute(dir).map_err(|error| {
        ConfigError::new("--state-dir", dir.display(), error.to_string(), "name a directory")
    })
}

fn cluster_cidr(cidr: Ipv4Net) -> Result<Ipv4Net, ConfigError> {
    let bad = |why: &str, help: String| Err(ConfigError::new("--cluster-cidr", cidr, why, help));
    if cidr.addr() != cidr.network() {
        return bad("has bits set after its prefix", format!("write {}", cidr.trunc()));
    }
    if cidr.prefix_len() > CLUSTER_PREFIX_MAX {
        return bad("has no room for a /24 per node", format!("for example {DEFAULT_CLUSTER_CIDR}"));
    }
    if cidr.prefix_len() < CLUSTER_PREFIX_MIN {
        return bad("is larger than any private range", format!("for example {DEFAULT_CLUSTER_CIDR}"));
    }
    Ok(cidr)
}

fn service_cidr(cidr: Ipv4Net, cluster: Ipv4Net) -> Result<Ipv4Net, ConfigError> {
    let bad = |why: &str, help: String| Err(ConfigError::new("--service-cidr", cidr, why, help));
    if cidr.addr() != cidr.network() {
        return bad("has bits set after its prefix", format!("write {}", cidr.trunc()));
    }
    if !(SERVICE_PREFIX_MIN..=SERVICE_PREFIX_MAX).contains(&cidr.prefix_len()) {
        let help = format!(
            "use a prefix from {SERVICE_PREFIX_MIN} to {SERVICE_PREFIX_MAX}, for example {DEFAULT_SERVICE_CIDR}"
        );
        return bad("is too small or too large for services", help);
    }
    if cidr.contains(&cluster) || cluster.contains(&cidr) {
        return bad("overlaps --cluster-cidr", "give pods and services ranges of their own".to_owned());
    }
    Ok(cidr)
}

/// Returns the names of the nodes on this machine; as an agent does, takes the host's name in lower case if none is
/// given.
fn local_nodes(given: Vec<String>) -> BTreeSet<String> {
    let by_default = given.is_empty().then(host_name).flatten().map(|name| name.to_ascii_lowercase());
    given.into_iter().chain(by_default).filter(|name| !name.is_empty()).collect()
}

fn host_name() -> Option<String> {
    nix::unistd::gethostname().ok()?.into_string().ok()
}

fn valid_name(flag: &'static str, name: String) -> Result<String, ConfigError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 64 || !name.chars().all(allowed) {
        let help = "use 1 to 64 letters, digits, `-`, `_` and `.`";
        return Err(ConfigError::new(flag, name, "is not a valid name", help));
    }
    Ok(name)
}

/// Parses `500ms`, `5s`, `2m`, `1h`, and fractions such as `1.5s`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a time; write a number with ms, s, m or h, for example 5s");
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits_end);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "ms" => number / 1000.0,
        "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(wrong()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

// Logging flags.

#[derive(Debug, Clone, Default, Args)]
pub struct LogArgs {
    /// Log format
    #[arg(long, env = "MINIK8S_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Log level: error, warn, info, debug, trace, or a filter as in RUST_LOG
    #[arg(long, env = "MINIK8S_LOG_LEVEL", value_name = "LEVEL")]
    pub log_level: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line per record, colored on a terminal.
    #[default]
    Text,
    /// A JSON object per line.
    Json,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::git::Reference;
    use crate::workflows::BYTES_PER_MINUTE;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        serve: ServeArgs,
    }

    fn config(flags: &[&str]) -> Result<ServeConfig, String> {
        let flags = ["minik8s", "--repo", "/srv/cluster.git"].iter().chain(flags);
        let cli = Cli::try_parse_from(flags).map_err(|error| error.to_string())?;
        ServeConfig::try_from(cli.serve).map_err(|error| error.to_string())
    }

    #[test]
    fn a_repository_is_enough() {
        let config = config(&["--name", "r1"]).unwrap();
        assert_eq!(config.sources, [SourceConfig::branch("main", "/srv/cluster.git", "main")]);
        assert_eq!(config.settings.sources, BTreeSet::from(["main".to_owned()]));
        assert_eq!(config.etcd, Access::anonymous(&["http://127.0.0.1:7079".to_owned()]));
        assert_eq!(config.listen.to_string(), "127.0.0.1:7070");
        assert_eq!(config.run_bytes_per_minute, BYTES_PER_MINUTE);
        assert_eq!(config.own_dir(), Path::new("/var/lib/minik8s/reconciler"));
        assert_eq!(config.settings.cluster_cidr.to_string(), "10.244.0.0/16");
    }

    #[test]
    fn every_wrong_value_says_what_why_and_what_to_do_in_one_line() {
        let table: &[(&[&str], &str)] = &[
            (
                &["--etcd", "localhost:2379"],
                "--etcd localhost:2379: is not an http:// or https:// address; write it",
            ),
            (
                &["--advertise", "10.0.0.5:7070"],
                "--advertise 10.0.0.5:7070: is not an http(s) URL; for example",
            ),
            (&["--page-url", "page.example"], "--page-url page.example: is not an http(s) URL; for example"),
            (
                &["--allow-host", "http://api.example"],
                "--allow-host http://api.example: is not the name of a host; write a name without",
            ),
            (
                &["--run-bytes-per-minute", "1Ki"],
                "--run-bytes-per-minute 1Ki: does not hold the largest input of a run; give 1Mi or more",
            ),
            (&["--etcd-quota", "1Mi"], "--etcd-quota 1Mi: is too small for a cluster; give 16Mi or more"),
            (&["--etcd", ","], "--etcd: names no endpoint; for example http"),
            (&["--cluster-cidr", "10.244.0.0/26"], "--cluster-cidr 10.244.0.0/26: has no room for a /24"),
            (&["--cluster-cidr", "10.244.1.0/16"], "has bits set after its prefix; write 10.244.0.0/16"),
            (&["--cluster-cidr", "0.0.0.0/0"], "is larger than any private range"),
            (&["--name", "a/b"], "--name a/b: is not a valid name; use 1 to 64"),
            (&["--cluster-name", "a b"], "--cluster-name a b: is not a valid name; use 1 to 64"),
            (&["--cluster-name", ""], "--cluster-name: is not a valid name"),
            (&["--poll", "1ms"], "--poll 1ms: is out of bounds; give a time from"),
            (&["--source", "Main"], "source name `Main`"),
            (&["--path", "../x"], "path `../x`"),
        ];
        for (flags, wanted) in table {
            let error = config(flags).unwrap_err();
            assert!(error.contains(wanted), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn the_api_answers_to_the_names_that_are_allowed_and_the_advertised_one() {
        let flags = ["--advertise", "http://Api.example:7070/", "--allow-host", "a.lan", "--allow-host", "b"];
        let hosts = config(&flags).unwrap().hosts;
        assert!(["api.example:7070", "a.lan", "b:1"].iter().all(|host| hosts.has(host)), "{hosts:?}");
        assert!(!hosts.has("c.lan"));
    }

    #[test]
    fn links_begin_with_the_url_of_the_page() {
        assert_eq!(config(&[]).unwrap().page_url, None);
        let page = config(&["--page-url", "https://page.example/minik8s/"]).unwrap().page_url;
        assert_eq!(page.as_deref(), Some("https://page.example/minik8s"));
        let error = config(&["--page-url", "https://kim:s3cret@page.example"]).unwrap_err();
        assert!(error.contains("--page-url: has a login") && !error.contains("s3cret"), "{error}");
    }

    #[test]
    fn a_status_token_that_cannot_be_read_is_found_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token").display().to_string();
        let flags = ["--commit-status", "github", "--commit-status-api", "https://api.github.com"];
        let file = ["--commit-status-repository", "kim/shop", "--commit-status-token-file", &token];
        let flags = [&flags[..], &file].concat();
        let error = config(&flags).unwrap_err();
        assert!(
            error.starts_with(&format!("--commit-status-token-file {token}: cannot be read: ")),
            "{error}"
        );
        let list = dir.path().join("sources.yaml");
        let text = "- {name: apps, repo: 'https://github.com/kim/a', commitStatus: {forge: github, tokenFile: token}}\n";
        std::fs::write(&list, text).unwrap();
        let args = RepoArgs { sources: Some(list), ..RepoArgs::default() };
        let error = check_repo(&args).unwrap_err().to_string();
        assert!(error.contains("source `apps`: tokenFile ") && error.contains("cannot be read: "), "{error}");
        std::fs::write(&token, "canary").unwrap();
        assert!(config(&flags).is_ok() && check_repo(&args).is_ok());
    }

    #[test]
    fn tag_and_commit_take_the_place_of_the_branch() {
        assert_eq!(
            config(&["--tag", "v1"]).unwrap().sources[0].reference.clone(),
            Reference::Tag("v1".into())
        );
        let commit = "a".repeat(40);
        let pinned = config(&["--commit", &commit]).unwrap().sources[0].reference.clone();
        assert_eq!(pinned, Reference::Commit(commit));
        assert!(config(&["--tag", "v1", "--commit", "abc"]).is_err());
    }

    #[test]
    fn durations_have_units() {
        for (text, millis) in
            [("500ms", 500), ("5s", 5000), ("1.5s", 1500), ("2m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "s", "-5s", "5 s", "5d", "1.2.3s", "99999999999999999999h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
