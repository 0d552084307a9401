//! Commands of the programs that `up` runs, and their readiness checks.

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

/// A single-member etcd on loopback with its data in the state directory.
pub(super) fn etcd(state: &StateDir, record: &UpRecord) -> Result<ChildCommand> {
    let client = outgoing::url(loopback(record.etcd_port), "");
    let peer = outgoing::url(loopback(record.etcd_port.saturating_add(1)), "");
    let args = [
        ("--name", "minik8s".to_owned()),
        ("--data-dir", path_text(&state.root().join("etcd"))?),
        ("--listen-client-urls", client.clone()),
        ("--advertise-client-urls", client),
        ("--listen-peer-urls", peer.clone()),
        ("--initial-advertise-peer-urls", peer.clone()),
        ("--initial-cluster", format!("minik8s={peer}")),
        ("--auto-compaction-mode", "periodic".to_owned()),
        ("--auto-compaction-retention", "1h".to_owned()),
        ("--logger", "zap".to_owned()),
        ("--log-level", "warn".to_owned()),
    ];
    Ok(ChildCommand { name: "etcd", program: etcd_program()?, args: words(args), env: Vec::new() })
}

pub(super) fn reconciler(state: &StateDir, record: &UpRecord) -> Result<ChildCommand> {
    let mut args = vec!["serve".to_owned()];
    args.extend(words([
        ("--etcd", record.etcd_url()),
        ("--state-dir", path_text(state.root())?),
        ("--listen", record.listen.to_string()),
        ("--cluster-cidr", record.cluster_cidr.to_string()),
        ("--service-cidr", record.service_cidr.to_string()),
    ]));
    args.extend(login(record)?);
    args.extend(allowed_hosts(record));
    if let (Some(address), Some(file)) = (record.webhook_listen, &record.webhook_secret_file) {
        let secret = path_text(file)?;
        args.extend(words([("--webhook-listen", address.to_string()), ("--webhook-secret-file", secret)]));
    }
    let program = env::current_exe().context("cannot find the path of this program")?;
    // In the environment, because everyone may read the command line and an address may hold a password.
    let env = record.repo.environment();
    Ok(ChildCommand { name: "reconciler", program, args, env })
}

pub(super) fn agent(state: &StateDir, record: &UpRecord) -> Result<ChildCommand> {
    let mut args = vec!["run".to_owned()];
    args.extend(words([
        ("--etcd", record.etcd_url()),
        ("--node", record.node.clone()),
        ("--state-dir", path_text(state.root())?),
        ("--instance", record.instance.clone()),
        ("--docker", record.docker.clone()),
        ("--listen", record.agent_listen.to_string()),
        ("--reconciler", record.api_url()),
    ]));
    args.extend(words(record.node_ip.map(|address| ("--node-ip", address.to_string()))));
    // Both daemons may share a user; the agent may have its own, restricted to its node.
    if !record.agent_args.iter().any(|flag| flag.starts_with("--etcd-user")) {
        args.extend(login(record)?);
    }
    args.extend(allowed_hosts(record));
    args.extend(record.agent_args.iter().cloned());
    // As a variable, so that a flag of the agent overrides it. Strangers have no way to this address, and pods do: the
    // agent adds that of their bridge.
    let functions = (FUNCTIONS_LISTEN.to_owned(), loopback(FUNCTIONS_PORT).to_string());
    let env = if env::var_os(FUNCTIONS_LISTEN).is_some() { Vec::new() } else { vec![functions] };
    Ok(ChildCommand { name: "agent", program: agent_program()?, args, env })
}

fn allowed_hosts(record: &UpRecord) -> Vec<String> {
    words(record.allow_host.iter().map(|name| ("--allow-host", name.clone())))
}

/// Flags of a daemon's login at etcd.
fn login(record: &UpRecord) -> Result<Vec<String>> {
    let login = &record.etcd_login;
    let Some((user, file)) = login.etcd_user.clone().zip(login.etcd_password_file.as_deref()) else {
        return Ok(Vec::new());
    };
    Ok(words([("--etcd-user", user), ("--etcd-password-file", path_text(file)?)]))
}

fn words(flags: impl IntoIterator<Item = (&'static str, String)>) -> Vec<String> {
    flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
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
