//! Settings of `minik8s serve`: flags as typed ([`ServeArgs`]) and validated ([`ServeConfig`]).
//!
//! Reads flags and `MINIK8S_*`, and the name in the own certificate; checks everything that needs no I/O, and that tokens
//! for commit status can be read.

mod etcd;
mod repo;
mod sources;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ipnet::Ipv4Net;
use jiff::SignedDuration;
use schema::names::{HostNames, is_host_name};
use schema::quantity::Memory;
use schema::store::etcd::Access;
use schema::trust::{Identity, NAME_MAX, Role};

use crate::controllers::Settings;
use crate::git::SourceConfig;
use crate::text_file::read_text;
use crate::trust::{known_name, pki_dir};
use crate::webhooks::{WebhookArgs, WebhookConfig};
use crate::workflows::BYTES_PER_MINUTE_MIN;

pub use etcd::{DEFAULT_ETCD, EtcdAccessArgs, EtcdUpkeepArgs};
pub use repo::{RepoArgs, flag_of};
pub use sources::read_sources;

pub use crate::git::identity_file;

pub const DEFAULT_LISTEN: &str = "127.0.0.1:7070";
pub const DEFAULT_STATE_DIR: &str = "/var/lib/minik8s";
/// Socket of a reconciler's API, where commands look for it.
pub const DEFAULT_SOCKET: &str = "/run/minik8s/api.sock";
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

/// Shortest lifetime of a certificate. It begins 10 minutes ago, so a shorter one would be renewed at once.
const CERTIFICATE_LIFETIME_MIN: Duration = Duration::from_secs(600);
/// Longest lifetime of a certificate.
const CERTIFICATE_LIFETIME_MAX: Duration = Duration::from_secs(365 * DAY_SECONDS);
/// Longest lifetime of the cluster's authority: a century.
const AUTHORITY_DAYS_MAX: u64 = 36_500;
const DAY_SECONDS: u64 = 24 * 3600;

#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub repo: RepoArgs,
    #[command(flatten)]
    pub etcd: EtcdAccessArgs,
    #[command(flatten)]
    pub upkeep: EtcdUpkeepArgs,
    /// Directory for the mirror of the repository and other state
    #[arg(long, env = "MINIK8S_STATE_DIR", value_name = "DIR", default_value = DEFAULT_STATE_DIR)]
    pub state_dir: PathBuf,
    /// Address of the read-only API, which answers callers with a certificate of the cluster
    #[arg(long, env = "MINIK8S_LISTEN", value_name = "ADDR:PORT", default_value = DEFAULT_LISTEN)]
    pub listen: SocketAddr,
    /// Socket of that API for root, this user and the group `minik8s` of this machine [default:
    /// /run/minik8s/api.sock if it can be made, else reconciler/api.sock in the state directory]
    #[arg(long, env = "MINIK8S_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Do not serve the web page at the API's address
    #[arg(long, env = "MINIK8S_NO_UI")]
    pub no_ui: bool,
    /// URL (https://) at which agents reach that API; by default found from --listen and the route to etcd
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
    /// Name of this reconciler among several, and in its certificate; by default the name in that, or else the host's
    /// name
    #[arg(long, env = "MINIK8S_NAME", value_name = "ID")]
    pub name: Option<String>,
    /// Lifetime of certificates that this reconciler signs for nodes and reconcilers; they are renewed at two thirds
    #[arg(long, env = "MINIK8S_CERTIFICATE_LIFETIME", value_name = "TIME", default_value = "7d")]
    #[arg(value_parser = parse_duration)]
    pub certificate_lifetime: Duration,
    /// Lifetime of an authority that this reconciler makes
    #[arg(long, env = "MINIK8S_AUTHORITY_LIFETIME", value_name = "TIME", default_value = "3650d")]
    #[arg(value_parser = parse_duration)]
    pub authority_lifetime: Duration,
    #[command(flatten)]
    pub webhooks: WebhookArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// The repositories, at least one, with unique names.
    pub sources: Vec<SourceConfig>,
    pub etcd: Access,
    /// Set if this etcd is the cluster's own, whose authentication the leader turns on.
    pub owns_etcd: bool,
    /// Set if the leader maintains this etcd.
    pub etcd_upkeep: bool,
    /// Quota of etcd, if it is given.
    pub etcd_quota: Option<u64>,
    /// Directory that holds this daemon's `reconciler/`.
    pub state_dir: PathBuf,
    pub listen: SocketAddr,
    /// Socket of the API; `None` if not given.
    pub socket: Option<PathBuf>,
    /// Set if the web page is served, too.
    pub ui: bool,
    /// URL of the API for agents, `https://host:port` without a trailing `/`; `None` if not given.
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
    /// Lifetime of certificates of nodes and reconcilers.
    pub certificate_lifetime: SignedDuration,
    /// Lifetime of a new authority.
    pub authority_days: u32,
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
        let own = pki_dir(&state_dir);
        let authority_days = authority_days(args.authority_lifetime)?;
        let advertise = args.advertise.map(|url| advertised(&url)).transpose()?;
        let help = "for example https://minik8s.example.org";
        let page_url = args.page_url.map(|url| http_url("--page-url", &url, help)).transpose()?;
        let name = reconciler_name(args.name.or_else(|| known_name(&state_dir)))?;
        let names: BTreeSet<String> = sources.iter().map(|source| source.name.clone()).collect();
        Ok(Self {
            sources,
            owns_etcd: args.etcd.own_etcd,
            etcd: args.etcd.access(&own)?,
            etcd_upkeep: args.upkeep.etcd_upkeep,
            etcd_quota: args.upkeep.quota_bytes()?,
            state_dir,
            listen: args.listen,
            socket: args.socket,
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
            name,
            certificate_lifetime: certificate_lifetime(args.certificate_lifetime)?,
            authority_days,
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

/// Returns the URL for agents, who speak TLS only.
fn advertised(url: &str) -> Result<String, ConfigError> {
    let (flag, help) = ("--advertise", "for example https://10.0.0.5:7070");
    let url = http_url(flag, url, help)?;
    match url.starts_with("https://") {
        true => Ok(url),
        false => Err(ConfigError::new(flag, url, "is not encrypted", help)),
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

/// Returns the name of this reconciler, which is also in its certificate.
pub(crate) fn reconciler_name(given: Option<String>) -> Result<String, ConfigError> {
    let host = || host_name().map(|name| name.to_ascii_lowercase());
    let name = given.or_else(host).unwrap_or_else(|| "minik8s".to_owned());
    if Identity::new(Role::Reconciler, &name).is_err() {
        let help = format!("use 1 to {NAME_MAX} lower-case letters, digits, `-` and `.`");
        return Err(ConfigError::new("--name", name, "is not a valid name", help));
    }
    Ok(name)
}

fn certificate_lifetime(given: Duration) -> Result<SignedDuration, ConfigError> {
    let (flag, help) = ("--certificate-lifetime", "give a time from 10m to 365d, for example 7d");
    let is_in_bounds = (CERTIFICATE_LIFETIME_MIN..=CERTIFICATE_LIFETIME_MAX).contains(&given);
    let lifetime = SignedDuration::try_from(given).ok().filter(|_| is_in_bounds);
    lifetime.ok_or_else(|| ConfigError::new(flag, format!("{}s", given.as_secs()), "is out of bounds", help))
}

fn authority_days(given: Duration) -> Result<u32, ConfigError> {
    let (flag, help) = ("--authority-lifetime", "give a time from 1d to 36500d, for example 3650d");
    let days = Some(given.as_secs() / DAY_SECONDS).filter(|days| (1..=AUTHORITY_DAYS_MAX).contains(days));
    let days = days.and_then(|days| u32::try_from(days).ok());
    days.ok_or_else(|| ConfigError::new(flag, format!("{}s", given.as_secs()), "is out of bounds", help))
}

/// Name of this machine, if it is text.
pub(crate) fn host_name() -> Option<String> {
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

/// Parses `500ms`, `5s`, `2m`, `1h`, `7d`, and fractions such as `1.5s`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a time; write a number with ms, s, m, h or d, for example 5s");
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits_end);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "ms" => number / 1000.0,
        "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        "d" => number * 86_400.0,
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
