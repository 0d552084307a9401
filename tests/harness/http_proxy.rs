//! A tunneling proxy (`CONNECT`) that counts, so that a story knows which way a client went.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};

use anyhow::{Context, Result};
use schema::control::lock;

/// The proxy; it ends when dropped.
#[derive(Debug)]
pub struct HttpProxy {
    port: u16,
    shared: Arc<Shared>,
    accept: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    ended: AtomicBool,
    tunnels: AtomicUsize,
    seen: Mutex<String>,
}

impl HttpProxy {
    /// Listens on a loopback port.
    pub fn serve(port: u16) -> Result<Self> {
        let listener =
            TcpListener::bind(("127.0.0.1", port)).with_context(|| format!("port {port} is taken"))?;
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        let accept = spawn(move || {
            for client in listener.incoming() {
                if seen.ended.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&seen);
                if let Ok(client) = client {
                    // A broken tunnel concerns only its client.
                    spawn(move || drop(tunnel(&shared, client)));
                }
            }
        });
        Ok(Self { port, shared, accept: Some(accept) })
    }

    /// URL of the proxy.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Number of opened tunnels.
    pub fn tunnels(&self) -> usize {
        self.shared.tunnels.load(Ordering::SeqCst)
    }

    /// Everything that clients sent to the proxy itself.
    pub fn seen(&self) -> String {
        lock(&self.shared.seen).clone()
    }
}

impl Drop for HttpProxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accept) = self.accept.take() {
            let _ = accept.join();
        }
    }
}

fn tunnel(shared: &Shared, mut client: TcpStream) -> Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut head = String::new();
    while reader.read_line(&mut head)? > 2 {}
    lock(&shared.seen).push_str(&head);
    let mut words = head.split_whitespace();
    if words.next() != Some("CONNECT") {
        client.write_all(b"HTTP/1.1 405 Only CONNECT\r\nContent-Length: 0\r\n\r\n")?;
        return Ok(());
    }
    let mut server = TcpStream::connect(words.next().context("no target")?)?;
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    shared.tunnels.fetch_add(1, Ordering::SeqCst);
    let (mut back_from, mut back_to) = (server.try_clone()?, client.try_clone()?);
    let back = spawn(move || {
        let _ = std::io::copy(&mut back_from, &mut back_to);
        let _ = back_to.shutdown(std::net::Shutdown::Write);
    });
    std::io::copy(&mut reader, &mut server)?;
    let _ = server.shutdown(std::net::Shutdown::Write);
    let _ = back.join();
    Ok(())
}
