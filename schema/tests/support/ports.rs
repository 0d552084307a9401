//! Ports for the programs that a test starts.

use std::net::TcpListener;
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the kernel's ephemeral range, so that no outgoing connection takes a port before its
/// program listens or while it is down; above the ports of the end-to-end tests.
const FIRST: u16 = 22_000;
const PORTS: u16 = 8_000;

/// Finds a free port on loopback. No process gets a port twice, and each process begins elsewhere.
pub(crate) fn free_port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    loop {
        let turn = u32::from(TAKEN.fetch_add(1, Ordering::Relaxed));
        // 101 shares no factor with PORTS: processes with neighboring ids stay 101 ports apart.
        let offset = (process::id().wrapping_mul(101).wrapping_add(turn)) % u32::from(PORTS);
        let port = FIRST + u16::try_from(offset).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
