//! A server that answers by UDP in a pod, and a client that asks it by one socket.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;

use crate::cluster::{Cluster, PodView};
use crate::net_world::NetWorld;

/// Where the server listens in its pod.
pub const UDP_PORT: u16 = 5353;
/// How often a server looks whether it is to end.
const LOOKS: Duration = Duration::from_millis(100);
/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Answers on [`UDP_PORT`] of a pod with its name, until it is dropped.
#[derive(Debug)]
pub struct UdpServer {
    ends: Arc<AtomicBool>,
}

impl UdpServer {
    /// Listens already when it returns.
    pub fn serve(pod: &PodView, name: &str) -> Result<Self> {
        let socket = Cluster::net_of(pod).within(|| Ok(UdpSocket::bind(("0.0.0.0", UDP_PORT))?))?;
        socket.set_read_timeout(Some(LOOKS))?;
        let (ends, name) = (Arc::new(AtomicBool::new(false)), name.to_owned());
        let end = Arc::clone(&ends);
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while !end.load(Ordering::Relaxed) {
                if let Ok((_, from)) = socket.recv_from(&mut buffer) {
                    // A client that is gone is none of its business.
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

/// One socket all the time: one connection, as the kernel sees it.
#[derive(Debug)]
pub struct UdpClient {
    socket: UdpSocket,
}

impl UdpClient {
    /// In that network.
    pub fn within(net: &NetWorld) -> Result<Self> {
        let socket = net.within(|| Ok(UdpSocket::bind("0.0.0.0:0")?))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { socket })
    }

    /// Who answers there.
    pub fn asks(&self, address: &str) -> Result<String> {
        self.socket.send_to(b"?", address)?;
        let mut buffer = [0; 64];
        let length = self.socket.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }
}
