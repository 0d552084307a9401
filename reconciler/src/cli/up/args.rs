//! Flags of `minik8s up`, and what must hold before anything is started.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Result, bail};
use ipnet::Ipv4Net;

use super::children::{agent_program, etcd_program};
use super::record::UpRecord;
use crate::config::RepoArgs;
use crate::webhooks::WebhookArgs;

/// Runs everything on this machine: etcd, the reconciler and the agent.
#[derive(Debug, Clone, clap::Args)]
pub struct UpArgs {
    #[command(flatten)]
    pub repo: RepoArgs,
    /// Uses this etcd instead of running a private one; `private` goes back to that.
    #[arg(long, env = "MINIK8S_ETCD", value_name = "URL")]
    pub etcd: Option<String>,
    /// Loopback port of the private etcd; the next one serves its peers [default: 7079].
    #[arg(long, env = "MINIK8S_ETCD_PORT", value_name = "PORT")]
    pub etcd_port: Option<u16>,
    /// Where everything is kept.
    #[arg(long, env = "MINIK8S_STATE_DIR", value_name = "DIR", default_value = "/var/lib/minik8s")]
    pub state_dir: PathBuf,
    /// Keeps several Minik8s apart on one machine: names the bridge, the rules and the containers [default: mk8s].
    #[arg(long, env = "MINIK8S_INSTANCE", value_name = "NAME")]
    pub instance: Option<String>,
    /// Name of this node [default: the host name].
    #[arg(long, env = "MINIK8S_NODE", value_name = "NAME")]
    pub node: Option<String>,
    /// Address of this node [default: that of the default route].
    #[arg(long, env = "MINIK8S_NODE_IP", value_name = "ADDR")]
    pub node_ip: Option<std::net::IpAddr>,
    /// Docker's socket [default: unix:///var/run/docker.sock].
    #[arg(long, env = "DOCKER_HOST", value_name = "SOCKET")]
    pub docker: Option<String>,
    /// Address of the read-only API [default: 127.0.0.1:7070].
    #[arg(long, env = "MINIK8S_LISTEN", value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,
    /// Address of the agent's read-only API [default: 127.0.0.1:7071].
    #[arg(long, env = "MINIK8S_AGENT_LISTEN", value_name = "ADDR:PORT")]
    pub agent_listen: Option<SocketAddr>,
    #[command(flatten)]
    pub webhooks: WebhookArgs,
    /// Addresses of all pods [default: 10.244.0.0/16].
    #[arg(long, env = "MINIK8S_CLUSTER_CIDR", value_name = "CIDR")]
    pub cluster_cidr: Option<Ipv4Net>,
    /// Another flag for `minik8s-agent run`, for example --agent-arg=--image-gc-high=90; may be given again.
    /// A later `up` remembers them; an empty one, --agent-arg=, forgets them.
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    pub agent_arg: Vec<String>,
    /// Addresses of all services [default: 10.96.0.0/16].
    #[arg(long, env = "MINIK8S_SERVICE_CIDR", value_name = "CIDR")]
    pub service_cidr: Option<Ipv4Net>,
    /// Goes on in the background once the node is up.
    #[arg(long)]
    pub detach: bool,
}

/// Root, before anything is looked at that others may not see.
pub(super) fn check_root() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("cannot manage containers and the network of this machine: not root; run 'sudo minik8s up'");
    }
    Ok(())
}

/// Docker and the programs that `up` starts.
pub(super) fn check_machine(record: &UpRecord) -> Result<()> {
    let socket = record.docker.strip_prefix("unix://").unwrap_or(&record.docker);
    if socket.contains("://") {
        bail!(
            "cannot reach Docker at {socket}: a node speaks to its own Docker only, by a unix socket; name it with --docker"
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

/// The ports are free. Checked after an earlier `up`'s children are gone.
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
