//! Flags of `token`, `node`, `join`, `user` and `ui`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{OutputArgs, ServerArgs};
use crate::config::{DEFAULT_STATE_DIR, parse_duration};

#[derive(Debug, Args)]
pub struct TokenArgs {
    #[command(subcommand)]
    pub command: TokenCommand,
}

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Print the command by which a machine joins; it is valid once, and for that name only
    #[command(after_help = "Examples: minik8s token create --node web-2\n          \
                            minik8s token create --reconciler r2 --ttl 10m")]
    Create(TokenCreateArgs),
}

#[derive(Debug, Args)]
pub struct TokenCreateArgs {
    /// Name of the node that may join; or give --reconciler
    #[arg(long, value_name = "NAME", required_unless_present = "reconciler", conflicts_with = "reconciler")]
    pub node: Option<String>,
    /// Name of the reconciler that may join; it gets the key of the cluster's authority
    #[arg(long, value_name = "NAME")]
    pub reconciler: Option<String>,
    /// Time until which the token can be used: 10m, 1h
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_duration)]
    pub ttl: Duration,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct NodeArgs {
    #[command(subcommand)]
    pub command: NodeCommand,
}

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Copy the agent to a machine over SSH, let it join and start it; again to update or to repair
    #[command(after_help = "Examples: minik8s node add root@10.0.0.7\n          \
                            minik8s node add root@web-2.lan --name web-2 --ssh-option IdentityFile=~/.ssh/lab\n          \
                            minik8s node add root@10.0.0.7 --agent-arg=--node-ip=10.0.0.7\n\n\
                            Run it on a reconciler. The machine needs Docker and a login for root. What is done \
                            already stays as it is.")]
    Add(NodeAddArgs),
}

#[derive(Debug, Args)]
pub struct NodeAddArgs {
    /// Machine, as ssh takes it: root@HOST, ssh://root@HOST:PORT, or a name of your ssh's configuration
    #[arg(value_name = "DESTINATION")]
    pub destination: String,
    /// Name of the node [default: the machine's host name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Directory for all state on that machine
    #[arg(long, value_name = "DIR", default_value = DEFAULT_STATE_DIR)]
    pub state_dir: String,
    /// Option of ssh, as after its -o: Port=2222; may be repeated
    #[arg(long, value_name = "OPTION")]
    pub ssh_option: Vec<String>,
    /// Flag of 'minik8s-agent run' for this node, for example --agent-arg=--node-dns; may be repeated. It replaces those of
    /// an earlier 'node add'
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    pub agent_arg: Vec<String>,
    /// Do not let 'minik8s-agent doctor' check that machine
    #[arg(long)]
    pub skip_doctor: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct JoinArgs {
    /// APIs of the cluster's reconcilers, of which one must answer
    #[arg(value_name = "URL", required = true, value_delimiter = ',')]
    pub servers: Vec<String>,
    /// Token, as 'minik8s token create --reconciler NAME' printed it
    #[arg(long, env = "MINIK8S_JOIN_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub token: String,
    /// Name of this reconciler: that of the token [default: the host name]
    #[arg(long, env = "MINIK8S_NAME", value_name = "NAME")]
    pub name: Option<String>,
    /// Address or host name at which others reach this reconciler; may be repeated [default: the address from which
    /// it reaches URL]
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    pub address: Vec<String>,
    /// Make this machine's etcd a member of the cluster's; 'minik8s up' starts it
    #[arg(long)]
    pub etcd_member: bool,
    /// Directory for all state
    #[arg(long, env = "MINIK8S_STATE_DIR", value_name = "DIR", default_value = DEFAULT_STATE_DIR)]
    pub state_dir: PathBuf,
}

#[derive(Debug, Args)]
pub struct UserArgs {
    #[command(subcommand)]
    pub command: UserCommand,
}

#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Create a file with a certificate, with which a person may view everything; again to renew it
    #[command(after_help = "Examples: minik8s user add ada -o ada.json\n          \
                            minik8s user add ci --lifetime 12h -o ci.json\n\n\
                            The file holds a private key. On the person's machine it is \
                            ~/.config/minik8s/user.json, or anywhere with MINIK8S_CONFIG.")]
    Add(UserAddArgs),
    /// Refuse a person's certificates from now on
    #[command(after_help = "Example: minik8s user remove ada")]
    Remove(UserRemoveArgs),
    /// List the people with a certificate
    #[command(after_help = "Example: minik8s user list")]
    List(UserListArgs),
}

#[derive(Debug, Args)]
pub struct UserAddArgs {
    /// Name of the person or program
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Lifetime of the certificate: 12h, 30d
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = parse_lifetime)]
    pub lifetime: Duration,
    /// Write to this file, which only you can read, instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct UserRemoveArgs {
    /// Name of the person or program
    #[arg(value_name = "NAME")]
    pub name: String,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct UserListArgs {
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Debug, Args)]
pub struct UiArgs {
    /// Loopback address of the page; port 0 is any free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Parses a duration that may also be a number of days: `30d`.
fn parse_lifetime(text: &str) -> Result<Duration, String> {
    match text.strip_suffix('d').map(str::parse::<u32>) {
        Some(Ok(days @ 1..)) => Ok(Duration::from_secs(u64::from(days) * 24 * 3600)),
        Some(_) => Err(format!("`{text}` is not a number of days; write for example 30d")),
        None => parse_duration(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_may_be_a_number_of_days() {
        assert_eq!(parse_lifetime("30d"), Ok(Duration::from_secs(2_592_000)));
        assert_eq!(parse_lifetime("12h"), Ok(Duration::from_secs(43_200)));
        for wrong in ["0d", "d", "1.5d", "-1d", "30"] {
            assert!(parse_lifetime(wrong).is_err(), "{wrong}");
        }
    }
}
