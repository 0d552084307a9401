//! The state directory of `up`: its settings, and the children it runs.
//!
//! `up.json` holds the settings, so that a later `up` or `down` needs no flags; `run/*.pid` hold the
//! children, so that a later `up` ends the processes that a killed one left.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use ipnet::Ipv4Net;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use schema::control::{DiskRecord, FileLock, Fsync, LockOutcome, is_file_locked, lock_file};
use schema::records::default_service_cidr;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::args::{EtcdLogin, UpArgs};
use crate::config::{EtcdUpkeepArgs, RepoArgs, flag_of};
use crate::{outgoing, state_dir};

/// Value of `--etcd` for a private etcd.
const PRIVATE_ETCD: &str = "private";
pub(crate) const RECORD_FILE: &str = "up.json";
/// Every directory that is ever created in the state directory.
pub(crate) const KNOWN_DIRS: [&str; 5] = ["etcd", "reconciler", "agent", "logs", "run"];
const LOCK_FILE: &str = "run/up.lock";

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
    pub(crate) state_dir: PathBuf,
    pub(crate) instance: String,
    pub(crate) node: String,
    pub(crate) node_ip: Option<IpAddr>,
    pub(crate) docker: String,
    pub(crate) listen: SocketAddr,
    pub(crate) agent_listen: SocketAddr,
    pub(crate) webhook_listen: Option<SocketAddr>,
    pub(crate) webhook_secret_file: Option<PathBuf>,
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
                // A login belongs to the etcd that it was given with.
                EtcdLogin { etcd_user: None, .. } if args.etcd.is_some() => EtcdLogin::default(),
                EtcdLogin { etcd_user: None, .. } => before.etcd_login,
                given => given.absolute()?,
            },
            upkeep: {
                args.upkeep.quota_bytes()?;
                // As a login does, it belongs to the etcd that it was given with.
                let kept = if args.etcd.is_some() { EtcdUpkeepArgs::default() } else { before.upkeep };
                EtcdUpkeepArgs {
                    etcd_upkeep: args.upkeep.etcd_upkeep || kept.etcd_upkeep,
                    etcd_quota: args.upkeep.etcd_quota.clone().or(kept.etcd_quota),
                }
            },
            etcd_port: args.etcd_port.unwrap_or(before.etcd_port),
            state_dir: std::path::absolute(&args.state_dir)
                .context("the state directory has no absolute path")?,
            instance: args.instance.clone().unwrap_or(before.instance),
            node: args.node.clone().unwrap_or(before.node),
            node_ip: args.node_ip.or(before.node_ip),
            docker: args.docker.clone().unwrap_or(before.docker),
            listen: args.listen.unwrap_or(before.listen),
            agent_listen: args.agent_listen.unwrap_or(before.agent_listen),
            webhook_listen: args.webhooks.webhook_listen.or(before.webhook_listen),
            webhook_secret_file: secret_file.context("the webhook secret's file has no path")?,
            cluster_cidr: args.cluster_cidr.unwrap_or(before.cluster_cidr),
            agent_args: list(&args.agent_arg, before.agent_args),
            allow_host: list(&args.allow_host, before.allow_host),
            page_url: args.page_url.clone().or(before.page_url).filter(|url| !url.is_empty()),
            service_cidr: args.service_cidr.unwrap_or(before.service_cidr),
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
            state_dir: PathBuf::new(),
            instance: "mk8s".to_owned(),
            node: host_name()?,
            node_ip: None,
            docker: "unix:///var/run/docker.sock".to_owned(),
            listen: loopback(7070),
            agent_listen: loopback(7071),
            webhook_listen: None,
            webhook_secret_file: None,
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

    pub(crate) fn etcd_url(&self) -> String {
        let own = || outgoing::url((Ipv4Addr::LOCALHOST, self.etcd_port).into(), "");
        self.etcd.clone().unwrap_or_else(own)
    }

    pub(crate) fn api_url(&self) -> String {
        outgoing::url(reachable(self.listen), "")
    }

    pub(crate) fn agent_url(&self) -> String {
        outgoing::url(reachable(self.agent_listen), "")
    }
}

/// Merges a repeatable flag: it replaces the former list as a whole, and an empty value empties it.
fn list(given: &[String], before: Vec<String>) -> Vec<String> {
    if given.is_empty() { before } else { given.iter().filter(|value| !value.is_empty()).cloned().collect() }
}

impl EtcdLogin {
    fn absolute(&self) -> Result<Self> {
        let file = self.etcd_password_file.as_deref().map(std::path::absolute).transpose();
        let file = file.context("the file with the password of etcd's user has no path")?;
        Ok(Self { etcd_password_file: file, ..self.clone() })
    }
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

/// State directory of `up`.
#[derive(Debug, Clone)]
pub(crate) struct StateDir {
    root: PathBuf,
}

impl StateDir {
    pub(super) fn create(root: &Path) -> Result<Self> {
        let run = root.join("run");
        let made = fs::create_dir_all(root.join("logs"))
            .and_then(|()| fs::create_dir_all(&run))
            .and_then(|()| tempfile::tempfile_in(&run));
        made.map_err(|error| {
            anyhow!(
                "cannot write to the state directory {}: {error}; make it writable, or choose another with \
                 --state-dir",
                root.display()
            )
        })?;
        state_dir::close(root, &["logs", "run"]);
        Self::open(root)
    }

    pub(crate) fn open(root: &Path) -> Result<Self> {
        Ok(Self { root: std::path::absolute(root).context("the state directory has no absolute path")? })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.root.join("logs").join(format!("{name}.log"))
    }

    pub(super) fn run_file(&self, name: &str) -> PathBuf {
        self.root.join("run").join(name)
    }

    /// Loads the settings of an earlier `up`.
    pub(crate) fn load(&self) -> Result<Option<UpRecord>> {
        let record = self.record();
        record.read().map_err(|error| {
            let help = match error.kind() {
                std::io::ErrorKind::InvalidData => "; remove the file and pass --repo again",
                _ => "",
            };
            anyhow!("cannot read {}: {error}{help}", record.path().display())
        })
    }

    pub(super) fn save(&self, record: &UpRecord) -> Result<()> {
        let file = self.record();
        file.write(record).with_context(|| format!("cannot write {}", file.path().display()))
    }

    fn record(&self) -> DiskRecord {
        DiskRecord::new(self.root.join(RECORD_FILE)).fsync(Fsync::None)
    }

    /// Locks this directory against a second `up`; the kernel releases the lock when this process ends.
    pub(super) fn lock(&self) -> Result<FileLock> {
        let path = self.root.join(LOCK_FILE);
        let locking = lock_file(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let LockOutcome::Locked(lock) = locking else {
            bail!(
                "another 'minik8s up' (process {}) runs on {}; stop it with 'minik8s down --keep-pods', or \
                 choose another --state-dir and --instance",
                fs::read_to_string(&path).unwrap_or_default().trim(),
                self.root.display()
            );
        };
        fs::write(&path, std::process::id().to_string())
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(lock)
    }

    /// Id of the process that holds the lock, if any.
    pub(crate) fn running(&self) -> Option<i32> {
        let path = self.root.join(LOCK_FILE);
        is_file_locked(&path).then(|| fs::read_to_string(&path).ok()?.trim().parse().ok()).flatten()
    }

    /// Id of the `up` that runs, or starts, the reconciler at this address; `None` for another address.
    pub(crate) fn running_at(&self, server: &str) -> Option<i32> {
        let record = self.load().ok().flatten().filter(|record| record.api_url() == server);
        record.and_then(|_| self.running())
    }

    /// Ends the children that a killed `up` left.
    pub(crate) async fn end_leftovers(&self) -> Result<()> {
        let Ok(entries) = fs::read_dir(self.root.join("run")) else { return Ok(()) };
        let mut pid_files: Vec<PathBuf> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|p| p.extension().is_some_and(|e| e == "pid"))
            .collect();
        // Agent, etcd, reconciler: a reconciler without etcd just waits.
        pid_files.sort();
        for path in pid_files {
            let pid: Option<i32> = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
            if let Some(pid) = pid.filter(|pid| self.is_our_child(*pid)) {
                end_process(pid, Signal::SIGTERM).await;
            }
            let _ = fs::remove_file(path);
        }
        Ok(())
    }

    /// True if the process has this state directory on its command line, so that its id was not reused.
    fn is_our_child(&self, pid: i32) -> bool {
        let command_line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command_line
            .split(|byte| *byte == 0)
            .any(|word| Path::new(OsStr::from_bytes(word)).starts_with(&self.root))
    }
}

// Ends processes.

/// Time between SIGTERM and SIGKILL.
pub(super) const END_WITHIN: Duration = Duration::from_secs(20);

/// Ends a process that is not a child: sends the signal, waits up to [`END_WITHIN`], then sends SIGKILL.
pub(crate) async fn end_process(pid: i32, signal: Signal) {
    let process = Pid::from_raw(pid);
    let _ = kill(process, signal);
    let deadline = Instant::now() + END_WITHIN;
    while is_alive(pid) {
        if Instant::now() >= deadline {
            let _ = kill(process, Signal::SIGKILL);
            return;
        }
        // There is no event for the end of a process that is not a child.
        sleep(Duration::from_millis(50)).await;
    }
}

/// True if the process exists and has not ended (a zombie has).
fn is_alive(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

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

    #[test]
    fn what_up_was_given_is_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        state.save(&record(&[])).unwrap();
        let mode = fs::metadata(dir.path().join(RECORD_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}: the address may hold a password");
        assert_eq!(state.load().unwrap().unwrap().repo.repo.unwrap(), "https://ada:s3cret@git.example/a.git");
    }

    #[test]
    fn an_up_that_starts_is_found_by_the_address_of_its_reconciler() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::create(dir.path()).unwrap();
        let record = record(&["--listen", "127.0.0.1:7170"]);
        state.save(&record).unwrap();
        let found = || ["http://127.0.0.1:7170", "http://127.0.0.1:7070"].map(|url| state.running_at(url));
        assert_eq!(found(), [None, None]);
        let lock = state.lock().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(found(), [Some(own), None]);
        drop(lock);
        assert_eq!(found(), [None, None]);
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
