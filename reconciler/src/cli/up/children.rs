//! Commands of the programs that `up` runs, and their readiness checks.

use std::collections::BTreeMap;
use std::env;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use hyper::Request;
use reqwest::Body;
use schema::store::StoreError;
use schema::store::etcd::{Access, LazyStore};
use schema::trust::{Identity, Role, TrustReader, url_of};
use tokio::net::lookup_host;
use tokio::time::{sleep, timeout};

use super::certificates;
use super::detach::print_line;
use super::record::UpRecord;
use super::state::StateDir;
use super::supervise::{ChildCommand, READY_WITHIN};
use crate::outgoing::{self, CommandClient, SOCKET_URL};
use crate::trust::{self, CATCH_UP_MAX, EtcdMembership, FIRST_MEMBER};

/// Variable of the agent with the address at which functions are called, and its port.
const FUNCTIONS_LISTEN: &str = "MINIK8S_FUNCTIONS_LISTEN";
const FUNCTIONS_PORT: u16 = 8081;
/// Interval between probes of a child that does not answer yet.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);
/// Consequence of a member of etcd that does not answer, for people.
pub(super) const WITHOUT_ETCD: &str =
    "a member answers only while most of the others run; the reconciler and the agent go on without it";
/// Longest time for a probe, and wait for etcd before it is dialed anew.
const PROBE_MAX: Duration = Duration::from_secs(2);

/// A program that `up` runs as its child, or as a service: its settings as flags and as environment variables.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) path: PathBuf,
    subcommand: Option<&'static str>,
    /// Beginning of the variables that stand for flags.
    prefix: &'static str,
    flags: Vec<(&'static str, String)>,
    /// Flags given by the user, which override all others.
    pub(super) more_flags: Vec<String>,
    /// Variables for which no flag is passed: everyone may read a command line, and an address may hold a password.
    env: Vec<(String, String)>,
}

impl Program {
    /// The command of a child.
    pub(super) fn command(self) -> ChildCommand {
        let mut args: Vec<String> = self.subcommand.map(str::to_owned).into_iter().collect();
        args.extend(self.flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
        args.extend(self.more_flags);
        ChildCommand { name: self.name, program: self.path, args, env: self.env }
    }

    /// The same settings as variables. A repeated flag becomes a list.
    pub(super) fn variables(&self) -> BTreeMap<String, String> {
        let mut variables: BTreeMap<String, String> = self.env.iter().cloned().collect();
        for (flag, value) in &self.flags {
            let name = match (self.name, *flag) {
                ("agent", "--listen") => "MINIK8S_AGENT_LISTEN".to_owned(),
                _ => variable(self.prefix, flag),
            };
            let list = variables.entry(name).or_default();
            *list = if list.is_empty() { value.clone() } else { format!("{list},{value}") };
        }
        variables
    }
}

/// Returns the variable that stands for a flag: `MINIK8S_NODE_IP` for `--node-ip`.
fn variable(prefix: &str, flag: &str) -> String {
    format!("{prefix}{}", flag[1..].replace('-', "_").to_uppercase())
}

/// A member of etcd with its data in the state directory, the first one or one that joined. It answers holders of the
/// cluster's certificates, on loopback and, with `--advertise`, at that address.
pub(super) fn etcd(state: &StateDir, record: &UpRecord) -> Result<Program> {
    // As variables, because such flags may not have a word of its own as their value.
    let env = [
        ("ETCD_CLIENT_CERT_AUTH", "true"),
        ("ETCD_PEER_CLIENT_CERT_AUTH", "true"),
        // Nobody uses its JSON API, which does not know clients by their certificates.
        ("ETCD_ENABLE_GRPC_GATEWAY", "false"),
        // 3.4.23 does not have this flag, and ignores the variable: there TLS 1.2 is the oldest.
        ("ETCD_TLS_MIN_VERSION", "TLS1.3"),
    ];
    Ok(Program {
        name: "etcd",
        path: etcd_program()?,
        subcommand: None,
        prefix: "ETCD",
        flags: etcd_flags(state, record)?,
        more_flags: Vec::new(),
        env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
    })
}

fn etcd_flags(state: &StateDir, record: &UpRecord) -> Result<Vec<(&'static str, String)>> {
    let (clients, peers) = (record.etcd_port, record.etcd_port.saturating_add(1));
    let listens = |port| {
        let urls =
            record.etcd_listens(port).into_iter().map(|at| outgoing::tls_url(&at.ip().to_string(), port));
        urls.collect::<Vec<_>>().join(",")
    };
    let own = record.published_url(peers);
    let joined =
        EtcdMembership::load(state.root())?.and_then(|joined| Some((joined.name, joined.initial_cluster?)));
    let (name, cluster, cluster_state) = match joined {
        Some((name, cluster)) => (name, cluster, "existing"),
        None => (FIRST_MEMBER.to_owned(), format!("{FIRST_MEMBER}={own}"), "new"),
    };
    let tls = trust::etcd_pki_dir(state.root()).tls_files();
    let [authorities, certificate, key] =
        [tls.authorities, tls.certificate, tls.key].map(|file| path_text(&file));
    let (authorities, certificate, key) = (authorities?, certificate?, key?);
    let mut flags = vec![
        ("--name", name),
        ("--data-dir", path_text(&state.root().join("etcd"))?),
        ("--listen-client-urls", listens(clients)),
        ("--advertise-client-urls", record.published_url(clients)),
        ("--cert-file", certificate.clone()),
        ("--key-file", key.clone()),
        ("--trusted-ca-file", authorities.clone()),
        ("--client-crl-file", path_text(&trust::refused_file(&trust::etcd_pki_dir(state.root())))?),
        ("--listen-peer-urls", listens(peers)),
        ("--peer-cert-file", certificate),
        ("--peer-key-file", key),
        ("--peer-trusted-ca-file", authorities),
        ("--peer-cert-allowed-cn", Identity::etcd().to_string()),
        // Of the first start. A member keeps its peer URL, which matters only to others.
        ("--initial-advertise-peer-urls", own),
        ("--initial-cluster", cluster),
        ("--initial-cluster-state", cluster_state.to_owned()),
        ("--logger", "zap".to_owned()),
        ("--log-level", "warn".to_owned()),
    ];
    flags.extend(record.upkeep.quota_bytes()?.map(|bytes| ("--quota-backend-bytes", bytes.to_string())));
    Ok(flags)
}

pub(super) fn reconciler(state: &StateDir, record: &UpRecord) -> Result<Program> {
    let mut flags = vec![
        ("--etcd", record.etcd_url()),
        ("--state-dir", path_text(state.root())?),
        ("--listen", record.listen.to_string()),
        ("--socket", path_text(&record.socket())?),
        ("--local-node", record.node.clone()),
        ("--cluster-cidr", record.cluster_cidr.to_string()),
        ("--service-cidr", record.service_cidr.to_string()),
    ];
    flags.extend(
        record.advertise.is_some().then(|| ("--advertise", record.published_url(record.listen.port()))),
    );
    flags.extend(login(record)?);
    flags.extend(
        certificates::etcd_files(record)
            .map(|(flag, file)| Ok((flag, path_text(file)?)))
            .collect::<Result<Vec<_>>>()?,
    );
    flags.extend(record.lifetimes.certificate_lifetime.clone().map(|time| ("--certificate-lifetime", time)));
    flags.extend(record.upkeep.etcd_quota.clone().map(|quota| ("--etcd-quota", quota)));
    flags.extend(allowed_hosts(record));
    flags.extend(record.page_url.clone().map(|url| ("--page-url", url)));
    if let (Some(address), Some(file)) = (record.webhook_listen, &record.webhook_secret_file) {
        let secret = path_text(file)?;
        flags.extend([("--webhook-listen", address.to_string()), ("--webhook-secret-file", secret)]);
        let tls = record.webhook_tls.as_deref().map(path_text).transpose()?;
        flags.extend(tls.map(|tls| ("--webhook-tls", tls)));
    }
    let mut env = record.repo.environment();
    // Nobody else maintains a private etcd.
    if record.etcd.is_none() || record.upkeep.etcd_upkeep {
        env.push(("MINIK8S_ETCD_UPKEEP".to_owned(), "true".to_owned()));
    }
    if record.etcd.is_none() {
        env.push(("MINIK8S_OWN_ETCD".to_owned(), "true".to_owned()));
    }
    env.push((certificates::NAME.to_owned(), certificates::reconciler_name(record)));
    Ok(Program {
        name: "reconciler",
        path: env::current_exe().context("cannot find the path of this program")?,
        subcommand: Some("serve"),
        prefix: "MINIK8S",
        flags,
        more_flags: Vec::new(),
        env,
    })
}

pub(super) fn agent(state: &StateDir, record: &UpRecord) -> Result<Program> {
    let mut flags = vec![
        ("--etcd", record.etcd_url()),
        ("--node", record.node.clone()),
        ("--state-dir", path_text(state.root())?),
        ("--instance", record.instance.clone()),
        ("--docker", record.docker.clone()),
        ("--listen", record.agent_listen.to_string()),
        ("--reconciler", record.api_url()),
    ];
    flags.extend(record.node_ip.map(|address| ("--node-ip", address.to_string())));
    // Both daemons may share a user; the agent may have its own, restricted to its node.
    if !record.agent_args.iter().any(|flag| flag.starts_with("--etcd-user")) {
        flags.extend(login(record)?);
    }
    flags.extend(allowed_hosts(record));
    // As variables, so that a flag of the agent overrides them. Strangers have no way to loopback, and pods do: the agent
    // adds that of their bridge.
    let functions = SocketAddr::new(functions_ip(record), FUNCTIONS_PORT);
    let functions = env::var(FUNCTIONS_LISTEN).unwrap_or_else(|_| functions.to_string());
    let mut env = vec![(FUNCTIONS_LISTEN.to_owned(), functions)];
    for (flag, file) in certificates::etcd_files(record) {
        env.push((variable("MINIK8S", flag), path_text(file)?));
    }
    let address = record.advertise.as_deref().and_then(|address| address.parse::<IpAddr>().ok());
    if let (None, Some(address)) = (record.node_ip, address) {
        env.push(("MINIK8S_NODE_IP".to_owned(), address.to_string()));
    }
    Ok(Program {
        name: "agent",
        path: agent_program()?,
        subcommand: Some("run"),
        prefix: "MINIK8S",
        flags,
        more_flags: record.agent_args.clone(),
        env,
    })
}

/// Address for calls of functions: with `--advertise` other nodes and reconcilers pass calls on.
fn functions_ip(record: &UpRecord) -> IpAddr {
    if record.advertise.is_some() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv4Addr::LOCALHOST.into() }
}

fn allowed_hosts(record: &UpRecord) -> impl Iterator<Item = (&'static str, String)> {
    record.allow_host.iter().map(|name| ("--allow-host", name.clone()))
}

/// Flags of a daemon's login at etcd.
fn login(record: &UpRecord) -> Result<Vec<(&'static str, String)>> {
    let login = &record.etcd_login;
    let Some((user, file)) = login.etcd_user.clone().zip(login.etcd_password_file.as_deref()) else {
        return Ok(Vec::new());
    };
    Ok(vec![("--etcd-user", user), ("--etcd-password-file", path_text(file)?)])
}

/// Finds `minik8s-agent` next to this program, else on the PATH.
pub(crate) fn agent_program() -> Result<PathBuf> {
    let beside = env::current_exe().ok().and_then(|path| Some(path.parent()?.join("minik8s-agent")));
    beside.filter(|path| path.is_file()).or_else(|| on_path("minik8s-agent")).ok_or_else(|| {
        anyhow!("cannot find minik8s-agent next to this program or on the PATH; install it there")
    })
}

pub(super) fn etcd_program() -> Result<PathBuf> {
    on_path("etcd").ok_or_else(|| {
        anyhow!("cannot find etcd on the PATH; install it (Debian: 'apt-get install etcd-server'), or name a running one with --etcd")
    })
}

fn on_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| path.is_file())
}

fn path_text(path: &std::path::Path) -> Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| anyhow!("{} is not UTF-8", path.display()))
}

/// Access to the member of etcd on this machine, as its reconciler.
fn own_member(state: &StateDir, record: &UpRecord) -> Access {
    let tls = trust::pki_dir(state.root()).tls_files();
    Access::anonymous(&[record.etcd_url()]).with_tls(Some(tls))
}

/// Adds the etcd of a machine that joined to the members of the cluster, before its first start.
pub(super) async fn prepare_etcd(state: &StateDir, record: &UpRecord) -> Result<Option<EtcdMembership>> {
    match EtcdMembership::load(state.root())? {
        Some(joined) if record.etcd.is_none() => {
            trust::prepare(state.root(), joined, record.etcd_port).await.map(Some)
        }
        _ => Ok(None),
    }
}

/// True if the member of etcd on this machine has started before. Then it may have to wait for others.
pub(super) fn has_etcd_data(state: &StateDir) -> bool {
    state.root().join("etcd/member").is_dir()
}

/// Longest wait for the member of etcd: one that joins copies all of etcd first.
pub(super) fn etcd_max(joined: Option<&EtcdMembership>, had_data: bool) -> Duration {
    if joined.is_some() && !had_data { CATCH_UP_MAX + READY_WITHIN } else { READY_WITHIN }
}

/// Finishes the start of a member of etcd that did not answer in time.
pub(super) async fn finish_etcd(state: StateDir, record: UpRecord, joined: Option<EtcdMembership>) {
    wait_for_etcd(&state, &record, joined.as_ref()).await;
    print_line("etcd        ready");
    if let Err(error) = publish_etcd(&state, &record).await {
        eprintln!("minik8s: {error:#}");
    }
}

/// Returns once the member of etcd on this machine answers the reconciler, and has its vote.
pub(super) async fn wait_for_etcd(state: &StateDir, record: &UpRecord, joined: Option<&EtcdMembership>) {
    if let Some(joined) = joined
        && let Err(error) = trust::promote(state.root(), joined, record.etcd_port).await
    {
        eprintln!("minik8s: {error:#}");
    }
    let store = LazyStore::new(own_member(state, record));
    // One that denies the reconciler a read is there; the leader mends that.
    while !matches!(store.connect(PROBE_MAX).await, Ok(()) | Err(StoreError::Denied { .. })) {
        sleep(PROBE_INTERVAL).await;
    }
}

/// Tells other members the address of this machine, if they know another one.
pub(super) async fn publish_etcd(state: &StateDir, record: &UpRecord) -> Result<()> {
    if record.advertise.is_none() {
        return Ok(());
    }
    let url = record.published_url(record.etcd_port.saturating_add(1));
    trust::publish_address(&own_member(state, record), &url).await
}

/// Returns once the reconciler answers at its socket.
pub(super) async fn wait_for_reconciler(record: &UpRecord) {
    let client = CommandClient::through_socket(record.socket());
    until_healthy(&client, &format!("{SOCKET_URL}/v1/healthz")).await;
}

/// Returns once the agent answers the reconciler.
pub(super) async fn wait_for_agent(record: &UpRecord, node: &Identity, trust: TrustReader) {
    let url = url_of(node, record.agent_address(), "/v1/healthz");
    until_healthy(&CommandClient::over_tcp(Some(trust), Role::Node, PROBE_MAX), &url).await;
}

async fn until_healthy(client: &CommandClient, url: &str) {
    let is_healthy = || async {
        let request = Request::get(url).body(Body::default()).ok()?;
        let answer = timeout(PROBE_MAX, client.send(request)).await.ok()?.ok()?;
        Some(answer.status().is_success())
    };
    while is_healthy().await != Some(true) {
        sleep(PROBE_INTERVAL).await;
    }
}

// Preconditions of `minik8s up`.

/// Requires root, before reading anything that other users may not read.
pub(super) fn check_root() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("cannot manage containers and the network of this machine: not root; run 'sudo minik8s up'");
    }
    Ok(())
}

/// Checks Docker and the programs that `up` starts.
pub(super) fn check_machine(record: &UpRecord) -> Result<()> {
    let socket = record.docker.strip_prefix("unix://").unwrap_or(&record.docker);
    if socket.contains("://") {
        bail!(
            "cannot reach Docker at {socket}: a node uses only its own Docker, over a unix socket; name it \
             with --docker"
        );
    }
    if let Err(error) = UnixStream::connect(socket) {
        bail!(
            "cannot reach Docker at {socket}: {error}; start it with 'systemctl start docker', or name its \
             socket with --docker"
        );
    }
    agent_program()?;
    if record.etcd.is_none() {
        etcd_program()?;
    }
    Ok(())
}

/// Checks that the name of this machine for the others is known here, too: etcd's clients on this machine use it.
pub(super) async fn check_name(record: &UpRecord) -> Result<()> {
    let Some(name) = &record.advertise else { return Ok(()) };
    if let Err(error) = lookup_host((name.as_str(), 0)).await {
        bail!(
            "cannot resolve {name}: {error}; add it to DNS or to /etc/hosts, or give --advertise an IP address"
        );
    }
    Ok(())
}

/// Checks that the ports are free, after the children of an earlier `up` are gone.
pub(super) fn check_ports(record: &UpRecord) -> Result<()> {
    let mut wanted = vec![("--listen", record.listen), ("--agent-listen", record.agent_listen)];
    wanted.extend(record.webhook_listen.map(|address| ("--webhook-listen", address)));
    if record.etcd.is_none() {
        for port in [record.etcd_port, record.etcd_port.saturating_add(1)] {
            // The second one is the advertised address.
            let flags = ["--etcd-port", "--advertise"];
            wanted.extend(flags.into_iter().zip(record.etcd_listens(port)));
        }
    }
    for (flag, address) in wanted {
        if let Err(error) = TcpListener::bind(address) {
            let what = if flag == "--agent-listen" {
                "stop an agent that runs here by itself"
            } else {
                "free the port"
            };
            bail!("cannot listen on {address}: {error}; {what}, or choose another with {flag}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser as _;

    use super::*;
    use crate::args::UpArgs;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: UpArgs,
    }

    fn record(flags: &[&str]) -> UpRecord {
        let always = ["up", "--repo", "https://git.example/a.git", "--node", "n1", "--state-dir", "/s"];
        UpRecord::merge(&Line::parse_from(always.iter().chain(flags)).args, None).unwrap()
    }

    fn state() -> StateDir {
        StateDir::open(Path::new("/s")).unwrap()
    }

    /// Value of a flag of etcd.
    fn of_etcd(flag: &str, record: &UpRecord) -> String {
        let flags = etcd_flags(&state(), record).unwrap();
        flags.into_iter().find(|(name, _)| *name == flag).unwrap().1
    }

    #[test]
    fn etcd_shows_its_certificate_and_stays_on_loopback_unless_the_machine_is_advertised() {
        let (alone, open) = (record(&[]), record(&["--advertise", "192.0.2.7"]));
        let own = ("https://127.0.0.1:7079", "https://127.0.0.1:7080");
        let at = ("https://192.0.2.7:7079", "https://192.0.2.7:7080");
        for (flag, without, with) in [
            ("--listen-client-urls", own.0.to_owned(), format!("{},{}", own.0, at.0)),
            ("--listen-peer-urls", own.1.to_owned(), format!("{},{}", own.1, at.1)),
            ("--advertise-client-urls", own.0.to_owned(), at.0.to_owned()),
            ("--initial-cluster", format!("minik8s={}", own.1), format!("minik8s={}", at.1)),
        ] {
            assert_eq!((of_etcd(flag, &alone), of_etcd(flag, &open)), (without, with), "{flag}");
        }
        for flag in ["--cert-file", "--peer-cert-file"] {
            assert_eq!(of_etcd(flag, &alone), "/s/reconciler/pki/etcd/certificate.pem");
        }
        assert_eq!(of_etcd("--peer-cert-allowed-cn", &open), "etcd");
    }

    #[test]
    fn the_reconciler_owns_a_private_etcd_and_publishes_what_is_advertised() {
        let variables = |flags: &[&str]| reconciler(&state(), &record(flags)).unwrap().variables();
        let alone = variables(&[]);
        assert_eq!((&*alone["MINIK8S_OWN_ETCD"], &*alone["MINIK8S_SOCKET"]), ("true", "/s/run/api.sock"));
        assert!(!alone.contains_key("MINIK8S_ADVERTISE"));
        let open = variables(&["--advertise", "192.0.2.7", "--etcd", "https://192.0.2.1:2379"]);
        assert_eq!(open["MINIK8S_ADVERTISE"], "https://192.0.2.7:7070");
        assert!(!open.contains_key("MINIK8S_OWN_ETCD"));
        let foreign = ["--etcd-ca=/e/ca", "--etcd-cert=/e/cert", "--etcd-key=/e/key"];
        let foreign = variables(&[&["--etcd", "https://192.0.2.1:2379"][..], &foreign].concat());
        assert_eq!(
            ["CA", "CERT", "KEY"].map(|what| &*foreign[&format!("MINIK8S_ETCD_{what}")]),
            ["/e/ca", "/e/cert", "/e/key"]
        );
        let webhooks = ["--webhook-listen=0.0.0.0:7072", "--webhook-secret-file=/s", "--webhook-tls=cluster"];
        assert_eq!(variables(&webhooks)["MINIK8S_WEBHOOK_TLS"], "cluster");
    }

    #[test]
    fn calls_of_functions_come_from_other_machines_only_if_this_one_is_advertised() {
        assert_eq!(functions_ip(&record(&[])), Ipv4Addr::LOCALHOST);
        assert_eq!(functions_ip(&record(&["--advertise", "web-1.lan"])), Ipv4Addr::UNSPECIFIED);
    }
}
