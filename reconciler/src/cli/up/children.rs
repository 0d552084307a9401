//! Commands of the programs that `up` runs, and their readiness checks.

use std::collections::BTreeMap;
use std::env;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tokio::time::sleep;

use super::record::{StateDir, UpRecord};
use super::supervise::ChildCommand;
use crate::outgoing;

/// Variable of the agent with the address at which functions are called, and its port.
const FUNCTIONS_LISTEN: &str = "MINIK8S_FUNCTIONS_LISTEN";
const FUNCTIONS_PORT: u16 = 8081;
/// Interval between probes of a child that does not answer yet.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);

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

    /// The same settings as variables: `MINIK8S_NODE_IP` for `--node-ip`. A repeated flag becomes a list.
    pub(super) fn variables(&self) -> BTreeMap<String, String> {
        let mut variables: BTreeMap<String, String> = self.env.iter().cloned().collect();
        for (flag, value) in &self.flags {
            let name = match (self.name, *flag) {
                ("agent", "--listen") => "MINIK8S_AGENT_LISTEN".to_owned(),
                _ => format!("{}{}", self.prefix, flag[1..].replace('-', "_").to_uppercase()),
            };
            let list = variables.entry(name).or_default();
            *list = if list.is_empty() { value.clone() } else { format!("{list},{value}") };
        }
        variables
    }
}

/// A single-member etcd on loopback with its data in the state directory.
pub(super) fn etcd(state: &StateDir, record: &UpRecord) -> Result<Program> {
    let client = outgoing::url(loopback(record.etcd_port), "");
    let peer = outgoing::url(loopback(record.etcd_port.saturating_add(1)), "");
    let mut flags = vec![
        ("--name", "minik8s".to_owned()),
        ("--data-dir", path_text(&state.root().join("etcd"))?),
        ("--listen-client-urls", client.clone()),
        ("--advertise-client-urls", client),
        ("--listen-peer-urls", peer.clone()),
        ("--initial-advertise-peer-urls", peer.clone()),
        ("--initial-cluster", format!("minik8s={peer}")),
        ("--logger", "zap".to_owned()),
        ("--log-level", "warn".to_owned()),
    ];
    flags.extend(record.upkeep.quota_bytes()?.map(|bytes| ("--quota-backend-bytes", bytes.to_string())));
    Ok(Program {
        name: "etcd",
        path: etcd_program()?,
        subcommand: None,
        prefix: "ETCD",
        flags,
        more_flags: Vec::new(),
        // Nobody uses its JSON API, to which a POST of any program on this machine could write. As a variable, because the
        // value of such a flag may not be a word of its own.
        env: vec![("ETCD_ENABLE_GRPC_GATEWAY".to_owned(), "false".to_owned())],
    })
}

pub(super) fn reconciler(state: &StateDir, record: &UpRecord) -> Result<Program> {
    let mut flags = vec![
        ("--etcd", record.etcd_url()),
        ("--state-dir", path_text(state.root())?),
        ("--listen", record.listen.to_string()),
        ("--local-node", record.node.clone()),
        ("--cluster-cidr", record.cluster_cidr.to_string()),
        ("--service-cidr", record.service_cidr.to_string()),
    ];
    flags.extend(login(record)?);
    flags.extend(record.upkeep.etcd_quota.clone().map(|quota| ("--etcd-quota", quota)));
    flags.extend(allowed_hosts(record));
    flags.extend(record.page_url.clone().map(|url| ("--page-url", url)));
    if let (Some(address), Some(file)) = (record.webhook_listen, &record.webhook_secret_file) {
        let secret = path_text(file)?;
        flags.extend([("--webhook-listen", address.to_string()), ("--webhook-secret-file", secret)]);
    }
    let mut env = record.repo.environment();
    // Nobody else maintains a private etcd.
    if record.etcd.is_none() || record.upkeep.etcd_upkeep {
        env.push(("MINIK8S_ETCD_UPKEEP".to_owned(), "true".to_owned()));
    }
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
    // As a variable, so that a flag of the agent overrides it. Strangers have no way to this address, and pods do: the
    // agent adds that of their bridge.
    let functions = env::var(FUNCTIONS_LISTEN).unwrap_or_else(|_| loopback(FUNCTIONS_PORT).to_string());
    Ok(Program {
        name: "agent",
        path: agent_program()?,
        subcommand: Some("run"),
        prefix: "MINIK8S",
        flags,
        more_flags: record.agent_args.clone(),
        env: vec![(FUNCTIONS_LISTEN.to_owned(), functions)],
    })
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

pub(super) async fn wait_for_etcd(port: u16) {
    until_ok(outgoing::url(loopback(port), "/health")).await;
}

/// Returns once the daemon at `url` answers.
pub(super) async fn wait_for_api(url: &str) {
    until_ok(format!("{url}/v1/healthz")).await;
}

async fn until_ok(url: String) {
    let client = outgoing::to_children();
    loop {
        let answer = client.get(&url).timeout(Duration::from_secs(2)).send().await;
        if answer.is_ok_and(|answer| answer.status().is_success()) {
            return;
        }
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

/// Checks that the ports are free, after the children of an earlier `up` are gone.
pub(super) fn check_ports(record: &UpRecord) -> Result<()> {
    let mut wanted = vec![("--listen", record.listen), ("--agent-listen", record.agent_listen)];
    wanted.extend(record.webhook_listen.map(|address| ("--webhook-listen", address)));
    if record.etcd.is_none() {
        wanted.push(("--etcd-port", loopback(record.etcd_port)));
        wanted.push(("--etcd-port", loopback(record.etcd_port.saturating_add(1))));
    }
    for (flag, address) in wanted {
        if let Err(error) = TcpListener::bind(address) {
            bail!("cannot listen on {address}: {error}; free the port, or choose another with {flag}");
        }
    }
    Ok(())
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
