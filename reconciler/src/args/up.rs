//! Flags of `up`, `down` and `etcd defrag`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use super::ServerArgs;
use crate::config::{DEFAULT_STATE_DIR, EtcdUpkeepArgs, RepoArgs, parse_duration};
use crate::webhooks::WebhookArgs;

/// Runs everything on this machine: etcd, the reconciler and the agent.
#[derive(Debug, Clone, clap::Args)]
pub struct UpArgs {
    #[command(flatten)]
    pub repo: RepoArgs,
    /// Uses this etcd instead of running a private one; `private` switches back.
    #[arg(long, env = "MINIK8S_ETCD", value_name = "URL")]
    pub etcd: Option<String>,
    #[command(flatten)]
    pub etcd_login: EtcdLogin,
    #[command(flatten)]
    pub upkeep: EtcdUpkeepArgs,
    /// Loopback port of the private etcd; the next one serves its peers [default: 7079].
    #[arg(long, env = "MINIK8S_ETCD_PORT", value_name = "PORT")]
    pub etcd_port: Option<u16>,
    /// Directory for all state.
    #[arg(long, env = "MINIK8S_STATE_DIR", value_name = "DIR", default_value = DEFAULT_STATE_DIR)]
    pub state_dir: PathBuf,
    /// Separates several instances of Minik8s on one machine: names the bridge, the rules and the containers
    /// [default: mk8s].
    #[arg(long, env = "MINIK8S_INSTANCE", value_name = "NAME")]
    pub instance: Option<String>,
    /// Name of this node [default: the host name].
    #[arg(long, env = "MINIK8S_NODE", value_name = "NAME")]
    pub node: Option<String>,
    /// Address of this node [default: that of the default route].
    #[arg(long, env = "MINIK8S_NODE_IP", value_name = "ADDR")]
    pub node_ip: Option<IpAddr>,
    /// Docker's socket [default: unix:///var/run/docker.sock].
    #[arg(long, env = "DOCKER_HOST", value_name = "SOCKET")]
    pub docker: Option<String>,
    /// Address of the read-only API [default: 127.0.0.1:7070].
    #[arg(long, env = "MINIK8S_LISTEN", value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,
    /// Address of the agent's read-only API [default: 127.0.0.1:7071].
    #[arg(long, env = "MINIK8S_AGENT_LISTEN", value_name = "ADDR:PORT")]
    pub agent_listen: Option<SocketAddr>,
    /// Name by which both APIs may be addressed, besides IP addresses and localhost; may be repeated. A later `up`
    /// reuses these names; an empty one, --allow-host=, clears them.
    #[arg(long, env = "MINIK8S_ALLOW_HOST", value_name = "NAME", value_delimiter = ',')]
    pub allow_host: Vec<String>,
    /// URL at which people reach the web page; links in notifications begin with it. An empty one, --page-url=, clears
    /// it.
    #[arg(long, env = "MINIK8S_PAGE_URL", value_name = "URL")]
    pub page_url: Option<String>,
    #[command(flatten)]
    pub webhooks: WebhookArgs,
    /// Addresses of all pods [default: 10.244.0.0/16].
    #[arg(long, env = "MINIK8S_CLUSTER_CIDR", value_name = "CIDR")]
    pub cluster_cidr: Option<Ipv4Net>,
    /// Additional flag for `minik8s-agent run`, for example --agent-arg=--image-gc-high=90; may be repeated.
    /// A later `up` reuses these flags; an empty one, --agent-arg=, clears them.
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    pub agent_arg: Vec<String>,
    /// Addresses of all services [default: 10.96.0.0/16].
    #[arg(long, env = "MINIK8S_SERVICE_CIDR", value_name = "CIDR")]
    pub service_cidr: Option<Ipv4Net>,
    /// Continues in the background once the node is up.
    #[arg(long)]
    pub detach: bool,
    /// Runs everything as services of systemd, which start again after a reboot, and returns once the node is up.
    #[arg(long, conflicts_with = "detach")]
    pub systemd: bool,
}

/// Login for an external etcd.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EtcdLogin {
    /// User for both daemons at the etcd given by --etcd, if it requires authentication.
    #[arg(long, env = "MINIK8S_ETCD_USER", value_name = "NAME", requires = "etcd_password_file")]
    pub etcd_user: Option<String>,
    /// File with that user's password.
    #[arg(long, env = "MINIK8S_ETCD_PASSWORD_FILE", value_name = "FILE", requires = "etcd_user")]
    pub etcd_password_file: Option<PathBuf>,
}

/// Removes everything that 'minik8s up' created here: daemons, containers, bridge, rules, files.
#[derive(Debug, Clone, clap::Args)]
pub struct DownArgs {
    /// The state directory given to 'minik8s up'.
    #[arg(long, env = "MINIK8S_STATE_DIR", value_name = "DIR", default_value = DEFAULT_STATE_DIR)]
    pub state_dir: PathBuf,
    /// Stops only the daemons: pods, rules and files stay, and the next 'minik8s up' adopts them.
    #[arg(long)]
    pub keep_pods: bool,
}

#[derive(Debug, clap::Args)]
pub struct EtcdArgs {
    #[command(subcommand)]
    pub command: EtcdCommand,
}

#[derive(Debug, clap::Subcommand)]
pub enum EtcdCommand {
    /// Compact etcd now, defragment its members one by one, and end its alarm if there is room
    #[command(after_help = "Example: minik8s etcd defrag\n\nExit code: 0 done, 1 failed or timed out.")]
    Defrag(DefragArgs),
}

#[derive(Debug, clap::Args)]
pub struct DefragArgs {
    /// Maximum time to wait for the end: 500ms, 60s, 5m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration)]
    pub timeout: Duration,
    #[command(flatten)]
    pub server: ServerArgs,
}
