//! A link between two of the test's programs that can be cut at any moment.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};

use anyhow::Result;
use schema::control::lock;

/// Forwards connections to a port of loopback; ends when dropped.
#[derive(Debug)]
pub struct CutProxy {
    port: u16,
    shared: Arc<Shared>,
    accept: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    target: u16,
    ended: AtomicBool,
    live: Mutex<Vec<TcpStream>>,
}

impl CutProxy {
    /// Listens on a free loopback port.
    pub fn serve(target: u16) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared { target, ended: AtomicBool::default(), live: Mutex::default() });
        let seen = Arc::clone(&shared);
        let accept = spawn(move || {
            for client in listener.incoming() {
                if seen.ended.load(Ordering::SeqCst) {
                    return;
                }
                // The client notices a target that is down.
                let _ = client.and_then(|client| pass_on(&seen, client));
            }
        });
        Ok(Self { port, shared, accept: Some(accept) })
    }

    /// Port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Cuts all open connections; later ones pass.
    pub fn cut(&self) {
        for connection in lock(&self.shared.live).drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for CutProxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accept) = self.accept.take() {
            let _ = accept.join();
        }
        self.cut();
    }
}

fn pass_on(shared: &Shared, client: TcpStream) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", shared.target))?;
    let mut live = lock(&shared.live);
    live.extend([client.try_clone()?, server.try_clone()?]);
    drop(live);
    for (mut from, mut to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
        spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        });
    }
    Ok(())
}
