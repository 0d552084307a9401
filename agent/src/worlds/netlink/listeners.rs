//! What listens on the node itself: the kernel's socket tables, and whose a socket is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use schema::kinds::pod::Protocol;

use super::namespace::NetworkNamespace;

/// A port of the node.
pub type Port = (Protocol, u16);

/// The tables: a socket waits for others in this state (`TCP_LISTEN`; a UDP socket without a peer).
const TABLES: [(&str, Protocol, &str); 4] = [
    ("tcp", Protocol::Tcp, "0A"),
    ("tcp6", Protocol::Tcp, "0A"),
    ("udp", Protocol::Udp, "07"),
    ("udp6", Protocol::Udp, "07"),
];

/// Ports in use in this namespace, at whichever address, each with its process, which is looked up
/// for `named` only: it means reading every process' open files.
pub(super) fn listeners(
    namespace: &NetworkNamespace,
    named: &BTreeSet<Port>,
) -> io::Result<BTreeMap<Port, Option<String>>> {
    let sockets = namespace.run(|| {
        let mut sockets: BTreeMap<Port, u64> = BTreeMap::new();
        for (table, protocol, state) in TABLES {
            match fs::read_to_string(format!("/proc/thread-self/net/{table}")) {
                Ok(text) => {
                    sockets.extend(parse(&text, state).map(|(port, inode)| ((protocol, port), inode)));
                }
                // A kernel without IPv6 has no such table.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sockets)
    })?;
    let wanted: BTreeSet<u64> =
        sockets.iter().filter(|(port, _)| named.contains(port)).map(|(_, i)| *i).collect();
    let owners = if wanted.is_empty() { BTreeMap::new() } else { owners(&wanted) };
    Ok(sockets.into_iter().map(|(port, inode)| (port, owners.get(&inode).cloned())).collect())
}

/// Local port and inode of the sockets in `state`.
fn parse<'a>(table: &'a str, state: &'a str) -> impl Iterator<Item = (u16, u64)> + 'a {
    table.lines().skip(1).filter_map(move |line| {
        let mut fields = line.split_whitespace();
        let port = fields.nth(1)?.rsplit(':').next()?;
        let port = u16::from_str_radix(port, 16).ok()?;
        (fields.nth(1)? == state).then_some(())?;
        let inode = fields.nth(5)?.parse().ok()?;
        Some((port, inode))
    })
}

/// `name (process 123)` by inode, of those that can be found.
fn owners(inodes: &BTreeSet<u64>) -> BTreeMap<u64, String> {
    let mut owners = BTreeMap::new();
    let Ok(processes) = fs::read_dir("/proc") else { return owners };
    let ids = processes.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    for id in ids {
        // It may have ended, or be another user's.
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
        assert_eq!(parse(table, "0A").collect::<Vec<_>>(), [(8080, 16075)]);
        let udp6 = "  sl  local_address remote_address st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            7: 00000000000000000000000000000000:0035 00000000000000000000000000000000:0000 07 00000000:00000000 \
            00:00000000 00000000     0        0 999 2 0 0\n";
        assert_eq!(parse(udp6, "07").collect::<Vec<_>>(), [(53, 999)]);
    }
}
