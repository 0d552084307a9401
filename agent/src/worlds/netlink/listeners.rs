//! Listening sockets of the node and their processes, from the kernel's socket tables.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use procfs::net::{TcpNetEntries, TcpState, UdpNetEntries, UdpNetEntry, UdpState};
use procfs::prelude::FromReadSI;
use procfs::process::{FDTarget, all_processes};
use procfs::{ProcError, current_system_info};
use schema::kinds::pod::Protocol;

use super::namespace::NetworkNamespace;

/// A port of the node.
pub type Port = (Protocol, u16);

/// A port that a program of the node listens on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listener {
    pub process: Option<String>,
    /// Bound only to loopback addresses, such as `127.0.0.53`: never reached from outside.
    pub loopback: bool,
}

/// First port of the kernel's usual range of ephemeral ports.
const EPHEMERAL: u16 = 32_768;

/// Lists ports in use in this namespace. The process is looked up only for `named` ports, as that means reading
/// every process's open files. A UDP socket at one address and an ephemeral port counts as a client.
pub(super) fn listeners(
    namespace: &NetworkNamespace,
    named: &BTreeSet<Port>,
) -> io::Result<BTreeMap<Port, Listener>> {
    let sockets = namespace.run(|| {
        let mut sockets: BTreeMap<Port, (IpAddr, u64)> = BTreeMap::new();
        for (protocol, at, inode) in waiting(tables("thread-self", "tcp")?, tables("thread-self", "udp")?) {
            let socket = sockets.entry((protocol, at.port())).or_insert((at.ip(), inode));
            if is_loopback(socket.0) {
                *socket = (at.ip(), inode);
            }
        }
        Ok(sockets)
    })?;
    let wanted = sockets.iter().filter(|(port, _)| named.contains(port));
    let wanted: BTreeSet<u64> = wanted.map(|(_, (_, inode))| *inode).collect();
    let owners = if wanted.is_empty() { BTreeMap::new() } else { owners(&wanted) };
    let listener =
        |(address, inode)| Listener { process: owners.get(&inode).cloned(), loopback: is_loopback(address) };
    Ok(sockets.into_iter().map(|(port, socket)| (port, listener(socket))).collect())
}

/// Counts connections at a TCP port in the network namespace of a process that the other side has not closed.
pub(super) fn connections(pid: i32, port: u16) -> io::Result<usize> {
    let sockets = tables(&pid.to_string(), "tcp")?.into_iter().flat_map(|TcpNetEntries(table)| table);
    let at_port = sockets.filter(|socket| socket.local_address.port() == port);
    Ok(at_port.filter(|socket| socket.state == TcpState::Established).count())
}

/// Socket tables of both versions of IP in the network namespace of a process or thread.
fn tables<T: FromReadSI>(process: &str, protocol: &str) -> io::Result<Vec<T>> {
    let read = |version: &str| {
        let path = format!("/proc/{process}/net/{protocol}{version}");
        match T::from_file(path, current_system_info()) {
            // A kernel without IPv6 lacks its table.
            Err(ProcError::NotFound(_)) => Ok(None),
            read => read.map(Some).map_err(io::Error::other),
        }
    };
    ["", "6"].into_iter().filter_map(|version| read(version).transpose()).collect()
}

/// Addresses and inodes of the sockets that wait for clients: those that listen, and UDP sockets without a peer.
fn waiting(
    tcp: Vec<TcpNetEntries>,
    udp: Vec<UdpNetEntries>,
) -> impl Iterator<Item = (Protocol, SocketAddr, u64)> {
    let tcp = tcp.into_iter().flat_map(|TcpNetEntries(table)| table);
    let tcp = tcp.filter(|socket| socket.state == TcpState::Listen);
    let udp = udp.into_iter().flat_map(|UdpNetEntries(table)| table);
    let udp = udp.filter(|UdpNetEntry { state, local_address: at, .. }| {
        *state == UdpState::Close && (at.ip().is_unspecified() || at.port() < EPHEMERAL)
    });
    let tcp = tcp.map(|socket| (Protocol::Tcp, socket.local_address, socket.inode));
    tcp.chain(udp.map(|socket| (Protocol::Udp, socket.local_address, socket.inode)))
}

/// True for loopback addresses, also for those of IPv4 in IPv6.
fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// `name (process 123)` by inode, for the processes that can be found.
fn owners(inodes: &BTreeSet<u64>) -> BTreeMap<u64, String> {
    let mut owners = BTreeMap::new();
    let Ok(processes) = all_processes() else { return owners };
    for process in processes.flatten() {
        // The process may have ended, or belong to another user.
        let Ok(files) = process.fd() else { continue };
        for file in files.flatten() {
            let FDTarget::Socket(inode) = file.target else { continue };
            if inodes.contains(&inode) {
                let name = process.stat().map(|stat| stat.comm).unwrap_or_default();
                owners.entry(inode).or_insert_with(|| format!("{name} (process {})", process.pid));
            }
        }
        if owners.len() == inodes.len() {
            break;
        }
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: FromReadSI>(table: &str) -> T {
        T::from_read(table.as_bytes(), current_system_info()).unwrap()
    }

    #[test]
    fn only_sockets_that_wait_for_others_count() {
        let tcp = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 16075 1 0 100 0\n\
            1: 0100007F:94E2 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 16080 1 0 20 4\n";
        let udp6 = "  sl  local_address remote_address st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            7: 00000000000000000000000000000000:0035 00000000000000000000000000000000:0000 07 00000000:00000000 \
            00:00000000 00000000     0        0 999 2 0 0\n";
        let at = |address: &str| address.parse::<SocketAddr>().unwrap();
        let found: Vec<_> = waiting(vec![read(tcp)], vec![read(udp6)]).collect();
        let expected = [(Protocol::Tcp, at("127.0.0.1:8080"), 16075), (Protocol::Udp, at("[::]:53"), 999)];
        assert_eq!(found, expected);
        for (address, loopback) in [
            ("3500007F", true),
            ("020200C0", false),
            ("00000000", false),
            ("00000000000000000000000001000000", true),
            ("0000000000000000FFFF00000100007F", true),
            ("0000000000000000FFFF0000020200C0", false),
            ("B80D01200000000000000000010000 7F".replace(' ', "").as_str(), false),
        ] {
            let table = format!("head\n 0: {address}:0035 00000000:0000 07 0:0 0:0 0 0 0 999 2 0 0\n");
            let found = waiting(Vec::new(), vec![read(&table)]);
            let found: Vec<_> = found.map(|(_, at, _)| is_loopback(at.ip())).collect();
            assert_eq!(found, [loopback], "{address}");
        }
    }
}
