//! Command-line arguments as typed. `config.rs` validates them.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::converge::pods::facts::DEFAULT_PIDS;

/// Default directory for the files of Minik8s.
pub const DEFAULT_STATE_DIR: &str = "/var/lib/minik8s";
/// Default Docker socket.
pub const DEFAULT_DOCKER: &str = "unix:///var/run/docker.sock";
/// Default address of the agent's read-only API.
pub const DEFAULT_LISTEN: &str = "0.0.0.0:7071";
/// Default address at which functions are called.
pub const DEFAULT_FUNCTIONS_LISTEN: &str = "0.0.0.0:8081";
/// Default address of the private etcd.
pub const DEFAULT_ETCD: &str = "https://127.0.0.1:7079";
/// Default resolver configuration of a machine.
pub const DEFAULT_RESOLV_CONF: &str = "/etc/resolv.conf";
/// Default instance name, for a machine with a single Minik8s.
pub const DEFAULT_INSTANCE: &str = "mk8s";

/// Runs the pods that a Minik8s cluster assigns to this machine.
#[derive(Debug, Parser)]
#[command(name = "minik8s-agent", version, max_term_width = 100)]
pub struct Arguments {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
    /// Logging flags.
    #[command(flatten)]
    pub log: LogArguments,
}

/// Subcommands of the agent.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run as this machine's agent until stopped; pods outlive it
    Run(RunArguments),
    /// Join a cluster as its node, by the command that 'minik8s token create --node NAME' prints on a reconciler; then
    /// run
    Join(JoinArguments),
    /// Serve DNS and hosts after the agent that started this process ends; started by `run` and `join`
    #[command(hide = true)]
    Standby(StandbyArguments),
    /// Check that this machine can run an agent; exit code 1 if it can't
    Doctor(DoctorArguments),
    /// Build the base images of Python functions from this machine's Debian packages, if they are missing
    PythonBase(PythonBaseArguments),
    /// Remove everything that the agent made on this machine: containers, links, rules, files
    Reset(ResetArguments),
}

/// Flags of `python-base`.
#[derive(Debug, Clone, Args)]
pub struct PythonBaseArguments {
    /// Flags that identify a Minik8s instance on this machine.
    #[command(flatten)]
    pub machine: MachineArguments,
}

/// Flags that identify a Minik8s instance on this machine.
#[derive(Debug, Clone, Args)]
pub struct MachineArguments {
    /// Directory for the agent's files
    #[arg(long, env = "MINIK8S_STATE_DIR", value_name = "DIR", default_value = DEFAULT_STATE_DIR)]
    pub state_dir: PathBuf,
    /// Name that separates several Minik8s on one machine: a letter and at most five letters or digits
    #[arg(long, env = "MINIK8S_INSTANCE", value_name = "NAME", default_value = DEFAULT_INSTANCE)]
    pub instance: String,
    /// Docker's socket
    #[arg(long, env = "MINIK8S_DOCKER", value_name = "SOCKET", default_value = DEFAULT_DOCKER)]
    pub docker: String,
}

/// Flags of `join`.
#[derive(Debug, Clone, Args)]
pub struct JoinArguments {
    /// APIs of the cluster's reconcilers
    #[arg(value_name = "URL", value_delimiter = ',', required = true)]
    pub urls: Vec<String>,
    /// Join token
    #[arg(long, env = "MINIK8S_JOIN_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub token: String,
    /// Join only; start the agent later, with 'minik8s-agent run'
    #[arg(long)]
    pub no_run: bool,
    #[command(flatten)]
    pub run: RunArguments,
}

/// Flags of `standby`: those of the agent that starts it, by `run` or `join`.
#[derive(Debug, Clone, Args)]
pub struct StandbyArguments {
    #[arg(value_name = "URL", hide = true)]
    urls: Vec<String>,
    #[command(flatten)]
    pub run: RunArguments,
}

/// Credentials for etcd. By default this node's own certificate.
#[derive(Debug, Clone, Args)]
pub struct EtcdLoginArguments {
    /// etcd user, if etcd has authentication enabled
    #[arg(long, env = "MINIK8S_ETCD_USER", value_name = "NAME", requires = "etcd_password_file")]
    pub etcd_user: Option<String>,
    /// File with that user's password
    #[arg(long, env = "MINIK8S_ETCD_PASSWORD_FILE", value_name = "FILE", requires = "etcd_user")]
    pub etcd_password_file: Option<PathBuf>,
    /// PEM file with the authorities of an etcd that does not belong to the cluster
    #[arg(long, env = "MINIK8S_ETCD_CA", value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,
    /// PEM file with the certificate to show to that etcd [default: this node's]
    #[arg(long, env = "MINIK8S_ETCD_CERT", value_name = "FILE", requires_all = ["etcd_ca", "etcd_key"])]
    pub etcd_cert: Option<PathBuf>,
    /// PEM file with the key of that certificate
    #[arg(long, env = "MINIK8S_ETCD_KEY", value_name = "FILE", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
}

/// Flags of `run`.
#[derive(Debug, Clone, Args)]
pub struct RunArguments {
    /// etcd's client addresses; http only on this machine
    /// [default: those learned from the cluster, else https://127.0.0.1:7079]
    #[arg(long, env = "MINIK8S_ETCD", value_name = "URL", value_delimiter = ',')]
    pub etcd: Vec<String>,
    #[command(flatten)]
    pub etcd_login: EtcdLoginArguments,
    /// Name of this node, under which it joined; by default, and to join, the host's name
    #[arg(long, env = "MINIK8S_NODE", value_name = "NAME")]
    pub node: Option<String>,
    /// Address of the agent's read-only API, for reconcilers and other nodes
    #[arg(long, env = "MINIK8S_AGENT_LISTEN", value_name = "ADDR:PORT", default_value = DEFAULT_LISTEN)]
    pub listen: SocketAddr,
    /// Name by which functions may be called from pages, besides IP addresses and localhost; may be repeated
    #[arg(long, env = "MINIK8S_ALLOW_HOST", value_name = "NAME", value_delimiter = ',')]
    pub allow_host: Vec<String>,
    /// Address at which functions are called; any other than 0.0.0.0 adds that of the pods' bridge
    #[arg(long, env = "MINIK8S_FUNCTIONS_LISTEN", value_name = "ADDR:PORT", default_value = DEFAULT_FUNCTIONS_LISTEN)]
    pub functions_listen: SocketAddr,
    /// Address at which other nodes reach this one; by default that of the default route
    #[arg(long, env = "MINIK8S_NODE_IP", value_name = "ADDR")]
    pub node_ip: Option<IpAddr>,
    /// VXLAN network identifier (VNI) between nodes, the same on all of them
    #[arg(long, env = "MINIK8S_VXLAN_VNI", value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=0x00ff_ffff))]
    pub vxlan_vni: u32,
    /// UDP port of the VXLAN network, the same on all nodes
    #[arg(long, env = "MINIK8S_VXLAN_PORT", value_name = "PORT", default_value_t = 8472)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub vxlan_port: u16,
    /// Maximum number of processes and threads of a container; -1 is no limit
    #[arg(long, env = "MINIK8S_POD_PIDS_LIMIT", value_name = "N", default_value_t = DEFAULT_PIDS)]
    #[arg(allow_negative_numbers = true)]
    pub pod_pids_limit: i64,
    /// YAML file with fields of the Cluster object's podSecurity; this node creates no pod that violates them
    #[arg(long, env = "MINIK8S_POD_SECURITY", value_name = "FILE")]
    pub pod_security: Option<PathBuf>,
    /// Size at which a container's log file is rotated
    #[arg(long, env = "MINIK8S_CONTAINER_LOG_MAX_SIZE", value_name = "QUANTITY", default_value = "10Mi")]
    pub container_log_max_size: String,
    /// Maximum number of files of a container's log
    #[arg(long, env = "MINIK8S_CONTAINER_LOG_MAX_FILES", value_name = "N", default_value_t = 5)]
    pub container_log_max_files: u32,
    /// Disk usage (%) of Docker above which unused images pulled by Minik8s are removed; 100 disables removal
    #[arg(long, env = "MINIK8S_IMAGE_GC_HIGH", value_name = "PERCENT", default_value_t = 85)]
    pub image_gc_high: u8,
    /// Disk usage (%) at which that removal stops
    #[arg(long, env = "MINIK8S_IMAGE_GC_LOW", value_name = "PERCENT", default_value_t = 80)]
    pub image_gc_low: u8,
    /// Seconds to keep an image built for a function once no function needs it, in the cluster's registry too
    #[arg(long, env = "MINIK8S_FUNCTION_IMAGE_KEEP", value_name = "SECONDS", default_value_t = 600)]
    pub function_image_keep_seconds: u32,
    /// Maximum time to build a function's image
    #[arg(long, env = "MINIK8S_BUILD_TIMEOUT", value_name = "SECONDS", default_value_t = 900)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub build_timeout_seconds: u32,
    /// Memory limit of a build step
    #[arg(long, env = "MINIK8S_BUILD_MEMORY", value_name = "QUANTITY", default_value = "1Gi")]
    pub build_memory: String,
    /// Growth of the usage of Docker's disk at which a build is stopped
    #[arg(long, env = "MINIK8S_BUILD_DISK", value_name = "QUANTITY", default_value = "8Gi")]
    pub build_disk: String,
    /// Reconciler APIs to renew the certificate at and to fetch files from, besides the leader recorded in etcd; by
    /// default those learned from the cluster
    #[arg(long, env = "MINIK8S_RECONCILER", value_name = "URL", value_delimiter = ',')]
    pub reconciler: Vec<String>,
    /// This node's age identity, which decrypts secrets; created if missing
    /// [default: agent/age-identity.txt in the state directory]
    #[arg(long, env = "MINIK8S_AGE_IDENTITY", value_name = "FILE")]
    pub age_identity: Option<PathBuf>,
    /// DNS flags.
    #[command(flatten)]
    pub dns: DnsArguments,
    #[command(flatten)]
    pub machine: MachineArguments,
}

/// DNS flags.
#[derive(Debug, Clone, Args)]
pub struct DnsArguments {
    /// The cluster's DNS zone, the same on all nodes; by default the Cluster object's, else cluster.local
    #[arg(long, env = "MINIK8S_CLUSTER_DOMAIN", value_name = "NAME")]
    pub cluster_domain: Option<String>,
    /// Name servers for all other names; by default the Cluster object's, else those of --resolv-conf
    #[arg(long, env = "MINIK8S_DNS_UPSTREAM", value_name = "ADDR[:PORT]", value_delimiter = ',')]
    pub dns_upstream: Vec<String>,
    /// Let this machine itself resolve the cluster's names: through systemd-resolved if it runs, else through
    /// --resolv-conf, which is restored by reset and by running without this flag
    #[arg(long, env = "MINIK8S_NODE_DNS")]
    pub node_dns: bool,
    /// This machine's resolver configuration
    #[arg(long, env = "MINIK8S_RESOLV_CONF", value_name = "FILE", default_value = DEFAULT_RESOLV_CONF)]
    pub resolv_conf: PathBuf,
}

/// Flags of `doctor`.
#[derive(Debug, Clone, Args)]
pub struct DoctorArguments {
    #[command(flatten)]
    pub run: RunArguments,
    /// Range of pod addresses to check for conflicts
    #[arg(long, env = "MINIK8S_CLUSTER_CIDR", value_name = "CIDR", default_value = "10.244.0.0/16")]
    pub cluster_cidr: ipnet::Ipv4Net,
    /// Range of service addresses to check for conflicts
    #[arg(long, env = "MINIK8S_SERVICE_CIDR", value_name = "CIDR", default_value = "10.96.0.0/16")]
    pub service_cidr: ipnet::Ipv4Net,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,
}

/// Flags of `reset`.
#[derive(Debug, Clone, Args)]
pub struct ResetArguments {
    /// Leave the cluster for good: a reconciler forgets this node and revokes its certificate, and its pods start on
    /// other nodes. Without this flag, its state stays in etcd for when the node comes back
    #[arg(long)]
    pub leave: bool,
    /// Reconciler APIs to leave at; by default those learned from the cluster
    #[arg(long, env = "MINIK8S_RECONCILER", value_name = "URL", value_delimiter = ',')]
    pub reconciler: Vec<String>,
    #[command(flatten)]
    pub machine: MachineArguments,
}

/// Format of a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Lines of text.
    Text,
    /// A single JSON document.
    Json,
}

/// Logging flags.
#[derive(Debug, Clone, Args)]
pub struct LogArguments {
    /// Log format
    #[arg(long, global = true, env = "MINIK8S_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: OutputFormat,
    /// Log level: error, warn, info, debug, trace, or a filter as in RUST_LOG
    #[arg(long, global = true, env = "MINIK8S_LOG_LEVEL", value_name = "LEVEL")]
    pub log_level: Option<String>,
}
