//! Listening sockets of the node and their processes, from the kernel's socket tables.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

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

/// Socket tables, each with the state of a listening socket (`TCP_LISTEN`; a UDP socket without a peer).
const TABLES: [(&str, Protocol, &str); 4] = [
    ("tcp", Protocol::Tcp, "0A"),
    ("tcp6", Protocol::Tcp, "0A"),
    ("udp", Protocol::Udp, "07"),
    ("udp6", Protocol::Udp, "07"),
];

/// `TCP_ESTABLISHED`.
const ESTABLISHED: &str = "01";

/// Lists ports in use in this namespace. The process is looked up only for `named` ports, as that means reading
/// every process's open files. A UDP socket at one address and an ephemeral port counts as a client.
pub(super) fn listeners(
    namespace: &NetworkNamespace,
    named: &BTreeSet<Port>,
) -> io::Result<BTreeMap<Port, Listener>> {
    let sockets = namespace.run(|| {
        let mut sockets: BTreeMap<Port, Socket> = BTreeMap::new();
        for (table, protocol, state) in TABLES {
            match fs::read_to_string(format!("/proc/thread-self/net/{table}")) {
                Ok(text) => {
                    for socket in parse(&text, state) {
                        let client = !socket.wildcard && socket.port >= EPHEMERAL;
                        if client && protocol == Protocol::Udp {
                            continue;
                        }
                        let port = sockets.entry((protocol, socket.port)).or_insert(socket);
                        if port.loopback {
                            *port = socket;
                        }
                    }
                }
                // A kernel without IPv6 lacks this table.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sockets)
    })?;
    let wanted: BTreeSet<u64> =
        sockets.iter().filter(|(port, _)| named.contains(port)).map(|(_, s)| s.inode).collect();
    let owners = if wanted.is_empty() { BTreeMap::new() } else { owners(&wanted) };
    let listener = |s: Socket| Listener { process: owners.get(&s.inode).cloned(), loopback: s.loopback };
    Ok(sockets.into_iter().map(|(port, socket)| (port, listener(socket))).collect())
}

/// Counts connections at a TCP port in the network namespace of a process that the other side has not closed.
pub(super) fn connections(pid: i32, port: u16) -> io::Result<usize> {
    let mut found = 0;
    for table in ["tcp", "tcp6"] {
        match fs::read_to_string(format!("/proc/{pid}/net/{table}")) {
            Ok(text) => found += parse(&text, ESTABLISHED).filter(|socket| socket.port == port).count(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// A line of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Socket {
    port: u16,
    inode: u64,
    loopback: bool,
    wildcard: bool,
}

/// Parses the sockets in `state`.
fn parse<'a>(table: &'a str, state: &'a str) -> impl Iterator<Item = Socket> + 'a {
    table.lines().skip(1).filter_map(move |line| {
        let mut fields = line.split_whitespace();
        let (address, port) = fields.nth(1)?.rsplit_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        (fields.nth(1)? == state).then_some(())?;
        let inode = fields.nth(5)?.parse().ok()?;
        // Words of four bytes, each in reverse: 127.0.0.1, ::1 and ::ffff:127.0.0.1.
        let v4 = address.strip_prefix("0000000000000000FFFF0000").unwrap_or(address);
        let loopback = address == "00000000000000000000000001000000" || v4.len() == 8 && v4.ends_with("7F");
        Some(Socket { port, inode, loopback, wildcard: address.bytes().all(|digit| digit == b'0') })
    })
}

/// `name (process 123)` by inode, for the processes that can be found.
fn owners(inodes: &BTreeSet<u64>) -> BTreeMap<u64, String> {
    let mut owners = BTreeMap::new();
    let Ok(processes) = fs::read_dir("/proc") else { return owners };
    let ids = processes.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    for id in ids {
        // The process may have ended, or belong to another user.
        let Ok(files) = fs::read_dir(format!("/proc/{id}/fd")) else { continue };
        for link in files.flatten().filter_map(|file| fs::read_link(file.path()).ok()) {
            let inode =
                link.to_str().and_then(|l| l.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            if let Some(inode) = inode.filter(|inode| inodes.contains(inode)) {
                let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
                owners.entry(inode).or_insert_with(|| format!("{} (process {id})", name.trim()));
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

    #[test]
    fn only_sockets_that_wait_for_others_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 16075 1 0 100 0\n\
            1: 0100007F:94E2 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 16080 1 0 20 4\n";
        let socket = |port, inode, loopback, wildcard| Socket { port, inode, loopback, wildcard };
        assert_eq!(parse(table, "0A").collect::<Vec<_>>(), [socket(8080, 16075, true, false)]);
        let udp6 = "  sl  local_address remote_address st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            7: 00000000000000000000000000000000:0035 00000000000000000000000000000000:0000 07 00000000:00000000 \
            00:00000000 00000000     0        0 999 2 0 0\n";
        assert_eq!(parse(udp6, "07").collect::<Vec<_>>(), [socket(53, 999, false, true)]);
        for (address, loopback) in [
            ("3500007F", true),
            ("020200C0", false),
            ("00000000", false),
            ("00000000000000000000000001000000", true),
            ("0000000000000000FFFF00000100007F", true),
            ("0000000000000000FFFF0000020200C0", false),
            ("B80D01200000000000000000010000 7F".replace(' ', "").as_str(), false),
        ] {
            let table = format!("head\n 0: {address}:0035 0:0 07 0:0 0:0 0 0 0 999 2 0 0\n");
            assert_eq!(parse(&table, "07").map(|s| s.loopback).collect::<Vec<_>>(), [loopback], "{address}");
        }
    }
}
