//! Attacks by pods, commits, nodes and strangers on a running cluster: each must be refused, and must not keep anybody
//! else from being answered.

mod apis;
mod builds;
mod gateway;
mod link;
mod nodes;
mod pods;
mod policy;
mod runs;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use harness::{Result, ensure, http_get, secs, tls_acceptor};
use schema::trust::TrustDir;

/// Body of a trap: whoever shows it has asked where no attack may lead.
const SECRET: &str = "the secret of another";

/// A server on each address of this machine that counts its callers, until the test ends.
struct Trap {
    port: u16,
    callers: Arc<AtomicUsize>,
}

impl Trap {
    /// Starts one that answers [`SECRET`], and checks that it counts.
    fn set() -> Result<Self> {
        let trap = Self::answering(format!("HTTP/1.0 200 OK\r\n\r\n{SECRET}"))?;
        let (code, body) = http_get(&format!("127.0.0.1:{}", trap.port), "/")?;
        ensure!((code, body.as_str()) == (200, SECRET) && trap.callers() == 1, "{code} {body}");
        trap.callers.store(0, Ordering::SeqCst);
        Ok(trap)
    }

    /// Starts one that gives this answer.
    fn answering(answer: String) -> Result<Self> {
        Self::start(move |connection| answer_one(connection, &answer))
    }

    /// Starts one that gives this answer over TLS, with somebody's certificate.
    fn answering_as(pki: &TrustDir, answer: String) -> Result<Self> {
        let acceptor = tls_acceptor(pki)?;
        Self::start(move |connection| {
            let mut stream = acceptor.accept(connection)?;
            answer_one(&mut stream, &answer)?;
            Ok(stream.shutdown().map(drop)?)
        })
    }

    fn start(answers: impl Fn(TcpStream) -> Result<()> + Send + 'static) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let (port, callers) = (listener.local_addr()?.port(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&callers);
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                // A client that hangs up is counted all the same.
                let _ = connection.set_read_timeout(Some(secs(5)));
                let _ = answers(connection);
            }
        });
        Ok(Self { port, callers })
    }

    /// Number of connections so far.
    fn callers(&self) -> usize {
        self.callers.load(Ordering::SeqCst)
    }
}

fn answer_one(mut connection: impl Read + Write, answer: &str) -> Result<()> {
    let _ = connection.read(&mut [0; 1024])?;
    Ok(connection.write_all(answer.as_bytes())?)
}
