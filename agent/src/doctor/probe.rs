//! Probes the machine for the doctor. Judges nothing.

use std::fs;
use std::path::Path;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use schema::codec::decode;
use schema::control::error_chain;
use schema::keys::Key;
use schema::records::{DiskSpace, EtcdMember, EtcdUpkeep};
use schema::store::Store as _;
use schema::store::etcd::{Access, EtcdStore, ListedMember, refuses_certificate};
use schema::trust::{Credentials, Identity, TrustError};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::check::Ranges;
use super::network_probe::{self, NetworkFacts};
use crate::config::Config;
use crate::converge::services::names::ServiceNames;
use crate::locks::StateError;
use crate::packet_rules::chain::{Jump, Names};
use crate::worlds::admission::{AdmissionError, OnRefusal, ask_in_turn, clock};
use crate::worlds::iptables::{IptablesError, RealIptables};
use crate::worlds::netlink::probe_features;
use crate::{locks, trees};

/// Longest wait for etcd.
const ETCD_MAX: Duration = Duration::from_secs(2);

/// Longest wait for a reconciler.
const RECONCILER_MAX: Duration = Duration::from_secs(3);

/// Longest wait for Docker, in seconds.
const DOCKER_MAX_SECONDS: u64 = 10;

/// Facts that the Docker engine reports about itself.
#[derive(Debug, Clone, Default)]
pub(super) struct DockerFacts {
    pub(super) version: String,
    pub(super) api: String,
    pub(super) cgroup_driver: String,
    pub(super) cgroup_version: String,
    pub(super) storage_driver: String,
    pub(super) live_restore: bool,
}

/// etcd's members at the configured addresses, and how they are maintained; `None` before a leader recorded it.
#[derive(Debug, Clone, Default)]
pub(super) struct EtcdFacts {
    pub(super) members: Vec<EtcdMember>,
    pub(super) upkeep: Option<EtcdUpkeep>,
    /// URLs at which all members listen for clients, as they publish them.
    pub(super) client_urls: Vec<String>,
    /// The same for other members.
    pub(super) peer_urls: Vec<String>,
}

/// The node's certificate, and a reconciler's clock.
#[derive(Debug, Clone)]
pub(super) struct TrustFacts {
    pub(super) identity: Identity,
    /// Time at which two thirds of the certificate's validity are over.
    pub(super) renew_at: Timestamp,
    pub(super) not_after: Timestamp,
    /// Time of the probe.
    pub(super) now: Timestamp,
    /// Time by which this machine's clock is ahead of a reconciler's; `None` if no reconciler is known.
    pub(super) ahead: Option<Result<SignedDuration, String>>,
}

/// Findings about the machine; error texts where a probe failed.
#[derive(Debug, Clone)]
pub(super) struct HostFacts {
    pub(super) is_root: bool,
    pub(super) kernel: String,
    pub(super) has_openat2: bool,
    pub(super) state_dir: Result<(), String>,
    pub(super) agent_runs: bool,
    pub(super) disk: Option<DiskSpace>,
    pub(super) docker: Result<DockerFacts, String>,
    /// `None` if the node has not joined a cluster.
    pub(super) trust: Result<Option<TrustFacts>, String>,
    pub(super) etcd: Result<EtcdFacts, String>,
    pub(super) port: Result<(), String>,
    pub(super) features: Vec<(&'static str, Result<(), String>)>,
    pub(super) iptables_version: Result<String, String>,
    pub(super) forward_policy: Result<String, String>,
    /// Jumps of the agent that are missing in the kernel's chains; meaningful only if an agent runs.
    pub(super) missing_jumps: Result<Vec<String>, String>,
    pub(super) firewalld: bool,
    pub(super) ip_forward: Option<String>,
    pub(super) bridge_nf: Option<String>,
    pub(super) has_conntrack: bool,
    pub(super) network: NetworkFacts,
}

pub(super) async fn gather(config: &Config, ranges: Ranges) -> HostFacts {
    let (state_dir, agent_runs) = state_dir(config);
    let iptables = RealIptables::new();
    HostFacts {
        is_root: nix::unistd::geteuid().is_root(),
        kernel: kernel(),
        has_openat2: trees::require_openat2().is_ok(),
        state_dir,
        agent_runs,
        disk: disk(&config.machine.state_dir),
        docker: docker(&config.machine.docker).await.map_err(|error| error_chain(&error)),
        trust: trust(config).await,
        etcd: Box::pin(etcd(config)).await,
        port: TcpListener::bind(config.listen).await.map(|_| ()).map_err(|error| error.to_string()),
        features: features().await,
        iptables_version: iptables.version().await.map(str::to_owned).map_err(|error| error.to_string()),
        forward_policy: iptables.policy("filter", "FORWARD").await.map_err(|error| error.to_string()),
        missing_jumps: missing_jumps(config, &iptables).await.map_err(|error| error.to_string()),
        firewalld: Path::new("/run/firewalld.pid").exists(),
        ip_forward: setting("/proc/sys/net/ipv4/ip_forward"),
        bridge_nf: setting("/proc/sys/net/bridge/bridge-nf-call-iptables"),
        has_conntrack: is_installed("conntrack"),
        network: network_probe::gather(config, ranges, agent_runs).await,
    }
}

fn kernel() -> String {
    let name = nix::sys::utsname::uname();
    name.map_or_else(|_| "unknown".to_owned(), |name| name.release().to_string_lossy().into_owned())
}

/// Checks that the directory can be used; true if an agent uses it. Leaves the disk as it was.
fn state_dir(config: &Config) -> (Result<(), String>, bool) {
    match locks::take(&config.machine.agent_dir()) {
        Ok(lock) => {
            lock.undo();
            (Ok(()), false)
        }
        Err(error) => (Err(error.to_string()), matches!(error, StateError::Busy(_))),
    }
}

/// Space on the file system of `dir`, or of its nearest existing ancestor.
fn disk(dir: &Path) -> Option<DiskSpace> {
    let there = dir.ancestors().find(|ancestor| ancestor.exists())?;
    let system = nix::sys::statvfs::statvfs(there).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(system.fragment_size());
    let (used, free) = (system.blocks().saturating_sub(system.blocks_free()), system.blocks_available());
    Some(DiskSpace { total_bytes: bytes(used + free), free_bytes: bytes(free) })
}

async fn docker(host: &str) -> Result<DockerFacts, bollard::errors::Error> {
    let path = host.strip_prefix("unix://").unwrap_or(host);
    let client = bollard::Docker::connect_with_unix(path, DOCKER_MAX_SECONDS, bollard::API_DEFAULT_VERSION)?;
    let client = client.negotiate_version().await?;
    let info = client.info().await?;
    let word = |value: Option<String>| value.unwrap_or_else(|| "?".to_owned());
    Ok(DockerFacts {
        version: word(info.server_version),
        api: client.client_version().to_string(),
        cgroup_driver: word(info.cgroup_driver.map(|driver| driver.to_string())),
        cgroup_version: word(info.cgroup_version.map(|version| version.to_string())),
        storage_driver: word(info.driver),
        live_restore: info.live_restore_enabled.unwrap_or(false),
    })
}

async fn trust(config: &Config) -> Result<Option<TrustFacts>, String> {
    let dir = config.machine.pki();
    if !dir.is_filled() {
        return Ok(None);
    }
    let read = |error: TrustError| error_chain(&error);
    let own = Credentials::load(&dir).map_err(read)?;
    let certificate = own.certificate();
    let (reconcilers, credentials) = (config.addresses().reconcilers, &own);
    let asked = ask_in_turn(&reconcilers, OnRefusal::GoOn, |url| async move {
        let theirs = timeout(RECONCILER_MAX, clock(url, credentials)).await;
        theirs.unwrap_or(Err(AdmissionError::Silence(RECONCILER_MAX)))
    });
    let asked = asked.await;
    let now = Timestamp::now();
    let ahead = asked.map(|(_, theirs)| now.duration_since(theirs)).map_err(|failed| failed.to_string());
    Ok(Some(TrustFacts {
        identity: own.identity().clone(),
        renew_at: certificate.renew_at().map_err(read)?,
        not_after: certificate.not_after().map_err(read)?,
        now,
        ahead: (!reconcilers.is_empty()).then_some(ahead),
    }))
}

async fn etcd(config: &Config) -> Result<EtcdFacts, String> {
    let connected = Box::pin(EtcdStore::connect(&config.etcd, ETCD_MAX)).await;
    let store = match connected {
        Ok(store) => store,
        Err(_) if refuses_certificate(&config.etcd).await => {
            return Err("etcd refuses this node's certificate: Git may say that the node is gone, or another machine has its \
                        name; the agent's log has what a reconciler says"
                .to_owned());
        }
        Err(error) => return Err(error.to_string()),
    };
    // A role of an earlier version does not permit it.
    let upkeep = store.get(&Key::EtcdUpkeep.to_string()).await.ok().flatten();
    let upkeep: Option<EtcdUpkeep> = upkeep.and_then(|found| decode(&found.value).ok());
    let mut members = Vec::new();
    for endpoint in &config.etcd.endpoints {
        let own = Access { endpoints: vec![endpoint.clone()], ..config.etcd.clone() };
        let Ok(store) = Box::pin(EtcdStore::connect(&own, ETCD_MAX)).await else { continue };
        let Ok((mut member, alarms)) = store.member_status().await else { continue };
        // Those of all members: under any of them etcd refuses writes.
        member.alarms = alarms.into_iter().map(|alarm| alarm.alarm).collect();
        member.endpoint.clone_from(endpoint);
        member.quota_bytes = member.quota_bytes.or(upkeep.as_ref().and_then(|upkeep| upkeep.quota_bytes));
        members.push(member);
    }
    let listed = store.listed_members().await.unwrap_or_default();
    let urls = |of: fn(&ListedMember) -> &[String]| listed.iter().flat_map(of).cloned().collect();
    Ok(EtcdFacts {
        members,
        upkeep,
        client_urls: urls(|member| &member.client_urls),
        peer_urls: urls(|member| &member.peer_urls),
    })
}

async fn missing_jumps(config: &Config, iptables: &RealIptables) -> Result<Vec<String>, IptablesError> {
    let mut missing = Vec::new();
    let instance = &config.machine.instance;
    let jumps =
        Names::for_instance(instance).jumps().into_iter().chain(ServiceNames::for_instance(instance).jumps());
    for Jump { base, rule, .. } in jumps {
        if !iptables.exists(base.table.to_string(), base.chain.clone(), rule.clone()).await? {
            missing.push(format!("{base} {rule}"));
        }
    }
    Ok(missing)
}

async fn features() -> Vec<(&'static str, Result<(), String>)> {
    match probe_features().await {
        Ok(features) => {
            features.into_iter().map(|(name, result)| (name, result.map_err(|e| e.to_string()))).collect()
        }
        Err(error) => vec![("network namespace", Err(error.to_string()))],
    }
}

fn setting(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
