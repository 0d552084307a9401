//! The settings of `up`, as `up.json` in the state directory holds them: a later `up` or `down` needs no flags.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use ipnet::Ipv4Net;
use schema::names::is_host_name;
use schema::records::default_service_cidr;
use serde::{Deserialize, Serialize};

use crate::args::{EtcdLogin, LifetimeArgs, UpArgs};
use crate::config::{DEFAULT_SOCKET, DEFAULT_STATE_DIR, EtcdUpkeepArgs, RepoArgs, flag_of};
use crate::outgoing;

/// Value of `--etcd` for a private etcd.
const PRIVATE_ETCD: &str = "private";

/// The settings of `up`, defaults filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UpRecord {
    #[serde(flatten)]
    pub(crate) repo: RepoArgs,
    pub(crate) etcd: Option<String>,
    #[serde(flatten)]
    pub(crate) etcd_login: EtcdLogin,
    #[serde(flatten)]
    pub(crate) upkeep: EtcdUpkeepArgs,
    pub(crate) etcd_port: u16,
    /// Address or name of this machine for the others; `None` if everything stays on it.
    #[serde(default)]
    pub(crate) advertise: Option<String>,
    #[serde(flatten)]
    pub(crate) lifetimes: LifetimeArgs,
    pub(crate) state_dir: PathBuf,
    pub(crate) instance: String,
    pub(crate) node: String,
    pub(crate) node_ip: Option<IpAddr>,
    pub(crate) docker: String,
    pub(crate) listen: SocketAddr,
    pub(crate) agent_listen: SocketAddr,
    pub(crate) webhook_listen: Option<SocketAddr>,
    pub(crate) webhook_secret_file: Option<PathBuf>,
    #[serde(default)]
    pub(crate) webhook_tls: Option<PathBuf>,
    pub(crate) cluster_cidr: Ipv4Net,
    #[serde(default)]
    pub(crate) agent_args: Vec<String>,
    #[serde(default)]
    pub(crate) allow_host: Vec<String>,
    #[serde(default)]
    pub(crate) page_url: Option<String>,
    /// Missing in the records of versions without services.
    #[serde(default = "default_service_cidr")]
    pub(crate) service_cidr: Ipv4Net,
}

impl UpRecord {
    /// Merges the settings: flags override the record of an earlier `up`, which overrides the defaults.
    pub(super) fn merge(args: &UpArgs, earlier: Option<&UpRecord>) -> Result<Self> {
        // Made absolute before the comparison, because the recorded path is absolute and the same path is the same
        // repository.
        let repo = args.repo.clone().absolute()?;
        let before = earlier.cloned().map_or_else(Self::defaults, Ok)?;
        let repo = repo.filled_from(&before.repo);
        if repo.repo.is_none() && repo.sources.is_none() {
            bail!("no manifest repository given; pass --repo URL (a path or an address)");
        }
        // Absolute: a relative path would mean something else to a child, and to the next `up`.
        let secret_file = args.webhooks.webhook_secret_file.clone().or(before.webhook_secret_file);
        let secret_file = secret_file.map(std::path::absolute).transpose();
        let advertise = advertised(args.advertise.as_deref(), before.advertise.as_deref())?;
        let opens = (before.advertise.is_some(), advertise.is_some());
        Ok(Self {
            repo,
            etcd: match args.etcd.as_deref() {
                Some(PRIVATE_ETCD) => None,
                Some("") => {
                    bail!("--etcd names no address; give one, or '{PRIVATE_ETCD}' for a private etcd")
                }
                Some(url) => Some(url.to_owned()),
                None => before.etcd,
            },
            etcd_login: match &args.etcd_login {
                given if *given != EtcdLogin::default() => given.absolute()?,
                // A login belongs to the etcd that it was given with.
                _ if args.etcd.is_some() => EtcdLogin::default(),
                _ => before.etcd_login,
            },
            upkeep: upkeep(args, before.upkeep)?,
            etcd_port: args.etcd_port.unwrap_or(before.etcd_port),
            lifetimes: lifetimes(&args.lifetimes, before.lifetimes),
            state_dir: std::path::absolute(&args.state_dir)
                .context("the state directory has no absolute path")?,
            instance: args.instance.clone().unwrap_or(before.instance),
            node: args.node.clone().unwrap_or(before.node),
            node_ip: args.node_ip.or(before.node_ip),
            docker: args.docker.clone().unwrap_or(before.docker),
            listen: args.listen.unwrap_or_else(|| listening(before.listen, opens, advertise.as_deref())),
            agent_listen: args
                .agent_listen
                .unwrap_or_else(|| listening(before.agent_listen, opens, advertise.as_deref())),
            webhook_listen: args.webhooks.webhook_listen.or(before.webhook_listen),
            webhook_secret_file: secret_file.context("the webhook secret's file has no path")?,
            // Without it, an address that is given speaks plain HTTP, as with `serve`.
            webhook_tls: match args.webhooks.webhook_listen {
                Some(_) => args.webhooks.absolute_tls().context("the file of --webhook-tls has no path")?,
                None => before.webhook_tls,
            },
            cluster_cidr: args.cluster_cidr.unwrap_or(before.cluster_cidr),
            agent_args: list(&args.agent_arg, before.agent_args),
            allow_host: list(&args.allow_host, before.allow_host),
            page_url: args.page_url.clone().or(before.page_url).filter(|url| !url.is_empty()),
            service_cidr: args.service_cidr.unwrap_or(before.service_cidr),
            advertise,
        })
    }

    fn defaults() -> Result<Self> {
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Ok(Self {
            repo: RepoArgs::default(),
            etcd: None,
            etcd_login: EtcdLogin::default(),
            upkeep: EtcdUpkeepArgs::default(),
            etcd_port: 7079,
            advertise: None,
            lifetimes: LifetimeArgs::default(),
            state_dir: PathBuf::new(),
            instance: "mk8s".to_owned(),
            node: host_name()?,
            node_ip: None,
            docker: "unix:///var/run/docker.sock".to_owned(),
            listen: loopback(7070),
            agent_listen: loopback(7071),
            webhook_listen: None,
            webhook_secret_file: None,
            webhook_tls: None,
            cluster_cidr: Ipv4Net::new_assert([10, 244, 0, 0].into(), 16),
            agent_args: Vec::new(),
            allow_host: Vec::new(),
            page_url: None,
            service_cidr: default_service_cidr(),
        })
    }

    /// Warning about flags of an earlier `up` that belong to another repository.
    pub(super) fn left_behind(args: &UpArgs, earlier: Option<&UpRecord>) -> Result<Option<String>> {
        let Some(earlier) = earlier else { return Ok(None) };
        let flags = args.repo.clone().absolute()?.not_carried_over(&earlier.repo);
        let line = format!(
            "the repository changed, so these options of the former one are dropped: {}; give them again to keep them",
            flags.join(", ")
        );
        Ok((!flags.is_empty()).then_some(line))
    }

    /// Flags whose values differ from those in `other`.
    pub(super) fn differences(&self, other: &UpRecord) -> Vec<String> {
        let fields = |record: &UpRecord| match serde_json::to_value(record) {
            Ok(serde_json::Value::Object(fields)) => fields,
            _ => serde_json::Map::new(),
        };
        let (ours, theirs) = (fields(self), fields(other));
        let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
        let differ = names.into_iter().filter(|name| ours.get(*name) != theirs.get(*name));
        differ
            .map(|name| if name == "agentArgs" { "--agent-arg".to_owned() } else { flag_of(name) })
            .collect()
    }

    /// URL of etcd for the daemons of this machine.
    pub(crate) fn etcd_url(&self) -> String {
        self.etcd.clone().unwrap_or_else(|| tls_url((Ipv4Addr::LOCALHOST, self.etcd_port).into()))
    }

    /// Addresses at which the private etcd listens on a port: loopback, and with `--advertise` that one, too. Of a name,
    /// the address on this machine is not known.
    pub(super) fn etcd_listens(&self, port: u16) -> Vec<SocketAddr> {
        let mut all = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))];
        match self.advertise.as_deref().map(str::parse::<IpAddr>) {
            Some(Ok(address)) if address != Ipv4Addr::LOCALHOST => all.push((address, port).into()),
            Some(Err(_)) => all = vec![(Ipv4Addr::UNSPECIFIED, port).into()],
            _ => {}
        }
        all
    }

    /// URL of a port of this machine for the other machines; that of loopback without `--advertise`.
    pub(super) fn published_url(&self, port: u16) -> String {
        outgoing::tls_url(self.advertise.as_deref().unwrap_or("127.0.0.1"), port)
    }

    pub(crate) fn api_url(&self) -> String {
        tls_url(reachable(self.listen))
    }

    /// Address of the agent's API on this machine.
    pub(super) fn agent_address(&self) -> SocketAddr {
        reachable(self.agent_listen)
    }

    /// Socket of the reconciler's API.
    pub(crate) fn socket(&self) -> PathBuf {
        match self.state_dir == Path::new(DEFAULT_STATE_DIR) {
            true => DEFAULT_SOCKET.into(),
            false => self.state_dir.join("run/api.sock"),
        }
    }

    /// Value of `--server` for commands on this machine.
    pub(crate) fn server(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// A command as a user would type it here: with `--server` where it would not find this reconciler.
    pub(super) fn command(&self, words: &str) -> String {
        match self.socket() == Path::new(DEFAULT_SOCKET) {
            true => format!("'minik8s {words}'"),
            false => format!("'minik8s {words} --server {}'", self.server()),
        }
    }
}

/// Merges a repeatable flag: it replaces the former list as a whole, and an empty value empties it.
fn list(given: &[String], before: Vec<String>) -> Vec<String> {
    if given.is_empty() { before } else { given.iter().filter(|value| !value.is_empty()).cloned().collect() }
}

/// Merges the address for the others: an empty value takes it back.
fn advertised(given: Option<&str>, before: Option<&str>) -> Result<Option<String>> {
    let Some(given) = given else { return Ok(before.map(str::to_owned)) };
    if given.is_empty() {
        return Ok(None);
    }
    let is_right = match given.parse::<IpAddr>() {
        Ok(address) => !address.is_unspecified() && !address.is_multicast(),
        Err(_) => is_host_name(given),
    };
    ensure!(
        is_right,
        "--advertise {given} is no address of this machine; give an IP address or a host name, without scheme and port"
    );
    Ok(Some(given.to_owned()))
}

/// Address of an API where none is given: as before, but open to others from the first `up` with `--advertise` on, and
/// back on loopback with the first without it. `opens` tells of both whether they have it.
fn listening(before: SocketAddr, opens: (bool, bool), advertise: Option<&str>) -> SocketAddr {
    let is_v6 = advertise.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    let all: IpAddr = if is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let ip = match opens {
        (false, true) if before.ip().is_loopback() => all,
        (true, false) if before.ip().is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        _ => before.ip(),
    };
    SocketAddr::new(ip, before.port())
}

/// Merges the upkeep of etcd. As a login does, it belongs to the etcd that it was given with.
fn upkeep(args: &UpArgs, before: EtcdUpkeepArgs) -> Result<EtcdUpkeepArgs> {
    args.upkeep.quota_bytes()?;
    let kept = if args.etcd.is_some() { EtcdUpkeepArgs::default() } else { before };
    Ok(EtcdUpkeepArgs {
        etcd_upkeep: args.upkeep.etcd_upkeep || kept.etcd_upkeep,
        etcd_quota: args.upkeep.etcd_quota.clone().or(kept.etcd_quota),
    })
}

fn lifetimes(given: &LifetimeArgs, before: LifetimeArgs) -> LifetimeArgs {
    LifetimeArgs {
        authority_lifetime: given.authority_lifetime.clone().or(before.authority_lifetime),
        certificate_lifetime: given.certificate_lifetime.clone().or(before.certificate_lifetime),
    }
}

impl EtcdLogin {
    fn absolute(&self) -> Result<Self> {
        let absolute = |file: &Option<PathBuf>| {
            let file = file.as_deref().map(std::path::absolute).transpose();
            file.context("a file for the login at etcd has no path")
        };
        Ok(Self {
            etcd_user: self.etcd_user.clone(),
            etcd_password_file: absolute(&self.etcd_password_file)?,
            etcd_ca: absolute(&self.etcd_ca)?,
            etcd_cert: absolute(&self.etcd_cert)?,
            etcd_key: absolute(&self.etcd_key)?,
        })
    }
}

fn tls_url(address: SocketAddr) -> String {
    outgoing::tls_url(&address.ip().to_string(), address.port())
}

/// Replaces an unspecified address with loopback, because the server listens on every address.
fn reachable(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() { SocketAddr::from(([127, 0, 0, 1], address.port())) } else { address }
}

fn host_name() -> Result<String> {
    let name = nix::unistd::gethostname().context("the host has no name; give the node one with --node")?;
    let name = name.to_string_lossy().to_lowercase();
    Ok(name.split('.').next().unwrap_or(&name).to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: UpArgs,
    }

    fn record(flags: &[&str]) -> UpRecord {
        let always = ["up", "--repo", "https://ada:s3cret@git.example/a.git", "--node", "n1"];
        UpRecord::merge(&Line::parse_from(always.iter().chain(flags)).args, None).unwrap()
    }

    #[test]
    fn files_are_remembered_by_where_they_lie_not_by_how_they_were_named() {
        let record = record(&["--token-file", "token", "--ssh-key", "key", "--known-hosts", "/etc/hosts"]);
        let here = std::env::current_dir().unwrap();
        assert_eq!(record.repo.token_file, Some(here.join("token")));
        assert_eq!(record.repo.ssh_key, Some(here.join("key")));
        assert_eq!(record.repo.known_hosts, Some("/etc/hosts".into()));
    }

    #[test]
    fn flags_of_the_agent_are_remembered_and_passed_on() {
        let first = record(&["--agent-arg=--image-gc-high=90", "--agent-arg", "--pod-pids-limit=64"]);
        let again = UpRecord::merge(&Line::parse_from(["up"]).args, Some(&first)).unwrap();
        assert_eq!(again.agent_args, ["--image-gc-high=90", "--pod-pids-limit=64"]);
        let other = Line::parse_from(["up", "--agent-arg=--image-gc-high=80"]).args;
        assert_eq!(UpRecord::merge(&other, Some(&first)).unwrap().agent_args, ["--image-gc-high=80"]);
        let named = record(&["--allow-host", "a.lan", "--allow-host", "b.lan"]);
        let again = UpRecord::merge(&Line::parse_from(["up"]).args, Some(&named)).unwrap();
        assert_eq!(again.allow_host, ["a.lan", "b.lan"]);
        let cleared = UpRecord::merge(&Line::parse_from(["up", "--allow-host="]).args, Some(&named)).unwrap();
        assert_eq!(cleared.allow_host, [""; 0]);
    }

    #[test]
    fn the_page_and_the_forge_are_remembered_until_they_are_taken_back() {
        let merge = |flags: &[&str], earlier: &UpRecord| {
            UpRecord::merge(&Line::parse_from(["up"].iter().chain(flags)).args, Some(earlier)).unwrap()
        };
        let page = ["--page-url", "https://page.example"];
        let forge = ["--commit-status", "github", "--commit-status-token-file", "/token"];
        let first = record(&[&page[..], &forge].concat());
        assert_eq!(merge(&[], &first), first);
        let back = merge(&["--page-url=", "--commit-status", "none"], &first);
        assert_eq!((&back.page_url, &back.repo.commit_status_token_file), (&None, &None));
        let differ = ["--commit-status", "--commit-status-token-file", "--page-url"];
        assert_eq!(back.differences(&first), differ);
        assert_eq!(merge(&[], &back), back);
    }

    // Would fail with a record that has only address and secret.
    #[test]
    fn the_certificate_of_webhooks_belongs_to_their_address() {
        let merge = |flags: &[&str], earlier: &UpRecord| {
            UpRecord::merge(&Line::parse_from(["up"].iter().chain(flags)).args, Some(earlier)).unwrap()
        };
        let webhooks = ["--webhook-listen", "0.0.0.0:7072", "--webhook-secret-file", "/secret"];
        let with = |tls| record(&[&webhooks[..], &["--webhook-tls", tls]].concat());
        let here = std::env::current_dir().unwrap();
        assert_eq!(with("tls.pem").webhook_tls, Some(here.join("tls.pem")));
        let own = with("cluster");
        assert_eq!(own.webhook_tls.as_deref(), Some(Path::new("cluster")));
        assert_eq!(merge(&[], &own), own);
        assert_eq!(merge(&webhooks, &own).differences(&own), ["--webhook-tls"]);
    }

    // Seen red with `private` taken for an address.
    #[test]
    fn an_etcd_of_its_own_comes_back_and_an_empty_address_is_none() {
        let merge = |flags: &[&str], earlier: &UpRecord| {
            UpRecord::merge(&Line::parse_from(["up"].iter().chain(flags)).args, Some(earlier))
        };
        let other = record(&["--etcd", "http://192.0.2.1:2379", "--agent-arg=--node-dns"]);
        assert_eq!(merge(&[], &other).unwrap().etcd.as_deref(), Some("http://192.0.2.1:2379"));
        let back = merge(&["--etcd", "private", "--agent-arg="], &other).unwrap();
        assert_eq!((back.etcd.clone(), back.agent_args.as_slice()), (None, &[][..]));
        let error = merge(&["--etcd", ""], &other).unwrap_err().to_string();
        assert!(error.contains("'private'"), "{error}");
        assert_eq!(back.differences(&other), ["--agent-arg", "--etcd"]);
        let login = ["--etcd-user", "both", "--etcd-password-file", "/etc/etcd-password"];
        let with_login = merge(&login, &other).unwrap();
        assert_eq!(with_login.differences(&other), ["--etcd-password-file", "--etcd-user"]);
        assert_eq!(merge(&[], &with_login).unwrap(), with_login);
        assert_eq!(
            merge(&["--etcd", "http://192.0.2.2:2379"], &with_login).unwrap().etcd_login,
            back.etcd_login
        );
        let maintained = merge(&["--etcd-upkeep", "--etcd-quota", "8Gi"], &other).unwrap();
        assert_eq!(maintained.differences(&other), ["--etcd-quota", "--etcd-upkeep"]);
        assert_eq!(merge(&[], &maintained).unwrap(), maintained);
        assert_eq!(merge(&["--etcd", "private"], &maintained).unwrap().upkeep, back.upkeep);
        assert!(merge(&["--etcd-quota", "much"], &other).is_err());
        let path = merge(&["--path", "apps", "--etcd-port", "7179"], &other).unwrap();
        assert_eq!(path.differences(&other), ["--etcd-port", "--path"]);
        assert_eq!(other.differences(&other), [""; 0]);
    }

    // Would fail with the addresses of the record before, whether others are to reach them or not.
    #[test]
    fn both_apis_are_open_to_others_while_the_machine_is_advertised() {
        let merge = |flags: &[&str], earlier: &UpRecord| {
            UpRecord::merge(&Line::parse_from(["up"].iter().chain(flags)).args, Some(earlier))
        };
        let apis =
            |record: &UpRecord| [record.listen, record.agent_listen].map(|address| address.to_string());
        let alone = record(&["--agent-listen", "127.0.0.1:7171"]);
        let open = merge(&["--advertise", "192.0.2.7"], &alone).unwrap();
        assert_eq!(apis(&open), ["0.0.0.0:7070", "0.0.0.0:7171"]);
        assert_eq!(open.differences(&alone), ["--advertise", "--agent-listen", "--listen"]);
        assert_eq!(merge(&[], &open).unwrap(), open);
        assert_eq!(apis(&merge(&["--advertise="], &open).unwrap()), apis(&alone));
        let given = merge(&["--advertise", "2001:db8::7", "--listen", "127.0.0.1:7070"], &alone).unwrap();
        assert_eq!(apis(&given), ["127.0.0.1:7070", "[::]:7171"]);
        assert_eq!(merge(&[], &given).unwrap(), given);
        for wrong in ["https://192.0.2.7", "192.0.2.7:7070", "0.0.0.0", "a b"] {
            assert!(merge(&["--advertise", wrong], &alone).is_err(), "{wrong}");
        }
    }

    #[test]
    fn etcd_is_found_at_loopback_and_at_what_is_advertised() {
        let etcd = |flags: &[&str]| {
            let record = record(flags);
            let listens: Vec<_> = record.etcd_listens(7079).iter().map(ToString::to_string).collect();
            (listens.join(" "), record.published_url(7079), record.etcd_url())
        };
        let own = "https://127.0.0.1:7079";
        let all = |listens: &str, published: &str| (listens.to_owned(), published.to_owned(), own.to_owned());
        assert_eq!(etcd(&[]), all("127.0.0.1:7079", own));
        assert_eq!(
            etcd(&["--advertise", "2001:db8::7"]),
            all("127.0.0.1:7079 [2001:db8::7]:7079", "https://[2001:db8::7]:7079")
        );
        assert_eq!(etcd(&["--advertise", "web-1.lan"]), all("0.0.0.0:7079", "https://web-1.lan:7079"));
    }

    #[test]
    fn another_repository_does_not_get_the_token_of_the_one_before() {
        let earlier = record(&["--token-file", "/t", "--path", "apps"]);
        let merge = |flags: &[&str]| {
            let args = Line::parse_from(["up"].iter().chain(flags)).args;
            let line = UpRecord::left_behind(&args, Some(&earlier)).unwrap();
            (UpRecord::merge(&args, Some(&earlier)).unwrap().repo, line)
        };
        let (other, line) = merge(&["--repo", "https://other.example/a.git"]);
        assert_eq!((other.token_file, other.path), (None, None));
        assert!(line.is_some_and(|line| line.contains("are dropped: --path, --token-file;")));
        let (same, line) = merge(&["--repo", "https://ada:s3cret@git.example/a.git"]);
        assert_eq!((same.token_file.as_deref(), line), (Some(Path::new("/t")), None));
        let repo = RepoArgs { repo: Some("repo".into()), ..same }.absolute().unwrap();
        let here = UpRecord { repo, ..earlier.clone() };
        let args = Line::parse_from(["up", "--repo", "./repo"]).args;
        assert_eq!(UpRecord::merge(&args, Some(&here)).unwrap().repo, here.repo);
    }
}
