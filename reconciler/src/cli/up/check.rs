//! Preconditions of `minik8s up`.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;

use anyhow::{Result, bail};

use super::children::{agent_program, etcd_program};
use super::record::UpRecord;

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
