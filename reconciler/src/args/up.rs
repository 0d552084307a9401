//! Flags of `up`, `down`, `etcd defrag` and `trust`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::Ipv4Net;
use schema::trust::Identity;
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
    /// Port of the private etcd; the next one serves its peers [default: 7079].
    #[arg(long, env = "MINIK8S_ETCD_PORT", value_name = "PORT")]
    pub etcd_port: Option<u16>,
    /// Directory for all state.
    #[arg(long, env = "MINIK8S_STATE_DIR", value_name = "DIR", default_value = DEFAULT_STATE_DIR)]
    pub state_dir: PathBuf,
    /// IP address or host name of this machine for the other machines of the cluster: etcd and both APIs listen for them,
    /// too, and answer holders of the cluster's certificates. An empty one, --advertise=, takes it back.
    #[arg(long, env = "MINIK8S_ADDRESS", value_name = "ADDRESS")]
    pub advertise: Option<String>,
    #[command(flatten)]
    pub lifetimes: LifetimeArgs,
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
    /// Address of the read-only API [default: 127.0.0.1:7070, with --advertise 0.0.0.0:7070].
    #[arg(long, env = "MINIK8S_LISTEN", value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,
    /// Address of the agent's read-only API [default: 127.0.0.1:7071, with --advertise 0.0.0.0:7071].
    #[arg(long, env = "MINIK8S_AGENT_LISTEN", value_name = "ADDR:PORT")]
    pub agent_listen: Option<SocketAddr>,
    /// Name by which the reconciler's API may be addressed, and functions called from pages, besides IP addresses and
    /// localhost; may be repeated. A later `up` reuses these names; an empty one, --allow-host=, clears them.
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

/// Lifetimes of certificates, with ms, s, m, h or d.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LifetimeArgs {
    /// Lifetime of the cluster's authority (CA), which the first 'up' makes [default: 3650d].
    #[arg(long, env = "MINIK8S_AUTHORITY_LIFETIME", value_name = "TIME")]
    pub authority_lifetime: Option<String>,
    /// Lifetime of the certificates of nodes and reconcilers; they are renewed at two thirds of it [default: 7d].
    #[arg(long, env = "MINIK8S_CERTIFICATE_LIFETIME", value_name = "TIME")]
    pub certificate_lifetime: Option<String>,
}

/// Login for an external etcd: a user with a password, certificates, or both.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EtcdLogin {
    /// User for both daemons at the etcd given by --etcd, if it requires authentication.
    #[arg(long, env = "MINIK8S_ETCD_USER", value_name = "NAME", requires = "etcd_password_file")]
    pub etcd_user: Option<String>,
    /// File with that user's password.
    #[arg(long, env = "MINIK8S_ETCD_PASSWORD_FILE", value_name = "FILE", requires = "etcd_user")]
    pub etcd_password_file: Option<PathBuf>,
    /// File with the authorities (PEM) of the etcd given by --etcd, if it does not trust the cluster's own.
    #[arg(long, env = "MINIK8S_ETCD_CA", value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,
    /// File with the certificate (PEM) that both daemons show to that etcd [default: each its own].
    #[arg(long, env = "MINIK8S_ETCD_CERT", value_name = "FILE", requires = "etcd_ca", requires = "etcd_key")]
    pub etcd_cert: Option<PathBuf>,
    /// File with the key of that certificate.
    #[arg(long, env = "MINIK8S_ETCD_KEY", value_name = "FILE", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
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

#[derive(Debug, clap::Args)]
pub struct TrustArgs {
    #[command(subcommand)]
    pub command: TrustCommand,
}

#[derive(Debug, clap::Subcommand)]
pub enum TrustCommand {
    /// Print the etcdctl commands that create the users of Minik8s in an etcd of your own
    #[command(after_help = "Example: minik8s trust etcd-users --node web-1 --node web-2 | sh\n\n\
                            For an etcd of your own that was started with --client-cert-auth: it knows a client by the \
                            common name of its certificate, and gives a node no other keys than its own. Run the commands \
                            where etcdctl reaches it as root, before 'etcdctl auth enable', and again for each new node and \
                            after an upgrade: what exists already is reported and stays. The private etcd of 'minik8s up' \
                            needs none of this.")]
    EtcdUsers(EtcdUsersArgs),
    /// Give a cluster of an earlier version, without certificates, its authority; once, on one reconciler
    #[command(after_help = "Examples: minik8s trust enable\n          \
                            minik8s trust enable --etcd http://10.0.0.1:2379 --name r1\n\n\
                            Stop all daemons of the cluster first; containers, rules and names stay. It prints what is left \
                            to do. Run again, it changes nothing but certificates that are about to end. See \
                            docs/operations.md, \"Upgrading a cluster without certificates\".")]
    Enable(EnableArgs),
    /// Replace the cluster's authority (CA) by a new one, while everything runs
    #[command(after_help = "Example: minik8s trust rotate\n\n\
                            Begins it and returns. Once every node and reconciler trusts the new authority, it signs; once \
                            all have certificates of it, nobody trusts the former one. 'minik8s status' names what it \
                            waits for. A user's file knows only the authorities of its day: give people new ones with \
                            'minik8s user add'.")]
    Rotate(TrustRequestArgs),
    /// Confirm that you have restarted the members of an etcd of your own, as 'minik8s status' asked
    #[command(after_help = "Example: minik8s trust etcd-restarted")]
    EtcdRestarted(TrustRequestArgs),
    /// Revoke the key of a node, a reconciler or a user, for good
    #[command(after_help = "Examples: minik8s trust remove reconciler-r2\n          \
                            minik8s trust remove node-web-2\n\n\
                            A reconciler is removed on another one, and with its member of the cluster's own etcd. A node \
                            that is gone for good is declared so in Git, or leaves by 'minik8s-agent reset --leave'.")]
    Remove(TrustRemoveArgs),
}

#[derive(Debug, Clone, clap::Args)]
pub struct EnableArgs {
    /// etcd of your own, at the address that the daemons were given [default: that of 'minik8s up' on this machine]
    #[arg(long, env = "MINIK8S_ETCD", value_name = "URL", value_delimiter = ',')]
    pub etcd: Vec<String>,
    #[command(flatten)]
    pub etcd_login: EtcdLogin,
    #[command(flatten)]
    pub lifetimes: LifetimeArgs,
    /// Name of this reconciler [default: that of 'minik8s up', else the host name]
    #[arg(long, env = "MINIK8S_NAME", value_name = "ID")]
    pub name: Option<String>,
    /// State directory of the reconciler
    #[arg(long, env = "MINIK8S_STATE_DIR", value_name = "DIR", default_value = DEFAULT_STATE_DIR)]
    pub state_dir: PathBuf,
}

#[derive(Debug, clap::Args)]
pub struct TrustRemoveArgs {
    /// Name in its certificate: node-NAME, reconciler-NAME or user-NAME
    #[arg(value_name = "IDENTITY")]
    pub identity: Identity,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub struct TrustRequestArgs {
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, clap::Args)]
pub struct EtcdUsersArgs {
    /// Name of a node; may be repeated
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    pub node: Vec<String>,
    /// Name of the reconciler [default: that in its certificate, in the state directory]
    #[arg(long, env = "MINIK8S_NAME", value_name = "ID")]
    pub name: Option<String>,
    /// State directory of the reconciler
    #[arg(long, env = "MINIK8S_STATE_DIR", value_name = "DIR", default_value = DEFAULT_STATE_DIR)]
    pub state_dir: PathBuf,
}
