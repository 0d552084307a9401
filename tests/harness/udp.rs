//! A UDP server in a pod, and a client that queries it through one socket.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;

use crate::cluster::{Cluster, PodView};
use crate::net_world::NetWorld;

/// Port of the server in its pod.
pub const UDP_PORT: u16 = 5353;
/// Interval at which a server checks if it must stop.
const LOOKS: Duration = Duration::from_millis(100);
/// Time that a client waits for an answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Answers with its name on [`UDP_PORT`] of a pod, until it is dropped.
#[derive(Debug)]
pub struct UdpServer {
    ends: Arc<AtomicBool>,
}

impl UdpServer {
    /// Starts the server, which already listens when this returns.
    pub fn serve(pod: &PodView, name: &str) -> Result<Self> {
        let socket = Cluster::net_of(pod).within(|| Ok(UdpSocket::bind(("0.0.0.0", UDP_PORT))?))?;
        socket.set_read_timeout(Some(LOOKS))?;
        let (ends, name) = (Arc::new(AtomicBool::new(false)), name.to_owned());
        let end = Arc::clone(&ends);
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while !end.load(Ordering::Relaxed) {
                if let Ok((_, from)) = socket.recv_from(&mut buffer) {
                    // A client that is gone is no error.
                    let _ = socket.send_to(name.as_bytes(), from);
                }
            }
        });
        Ok(Self { ends })
    }
}

impl Drop for UdpServer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

/// A client with one socket for its lifetime: a single connection for the kernel.
#[derive(Debug)]
pub struct UdpClient {
    socket: UdpSocket,
}

impl UdpClient {
    /// Creates a client in that network.
    pub fn within(net: &NetWorld) -> Result<Self> {
        let socket = net.within(|| Ok(UdpSocket::bind("0.0.0.0:0")?))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { socket })
    }

    /// Name of the server that answers there.
    pub fn asks(&self, address: &str) -> Result<String> {
        self.socket.send_to(b"?", address)?;
        let mut buffer = [0; 64];
        let length = self.socket.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }
}
