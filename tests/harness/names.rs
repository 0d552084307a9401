//! Name lookups with `dig`, and a name server outside of the cluster with the answers that a story needs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::net_world::NetWorld;

/// Output of `dig`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    /// `NOERROR`, `NXDOMAIN`, …
    pub status: String,
    /// `aa`, `tc`, …
    pub flags: Vec<String>,
    /// Answers as `TYPE data`, sorted.
    pub answers: Vec<String>,
    /// TTLs of the answers, in seconds.
    pub ttls: Vec<u32>,
    /// Names of the SOA records of the authority section.
    pub authority: Vec<String>,
}

impl Said {
    /// Answers; if there are none, the status with the zone that returned it.
    pub fn gist(&self) -> Vec<String> {
        match self.answers.is_empty() {
            true => vec![format!("{} {}", self.status, self.authority.join(" ")).trim().to_owned()],
            false => self.answers.clone(),
        }
    }
}

/// Queries `server` for a name from a network namespace. `options` are dig's own, such as `+notcp`.
pub fn dig(from: &NetWorld, server: &str, name: &str, kind: &str, options: &[&str]) -> Result<Said> {
    let at = format!("@{server}");
    let mut args = vec![at.as_str(), "+tries=1", "+time=5", "+nostats", "+nocmd", "-q", name, "-t", kind];
    args.extend(options);
    let text = from.run("dig", &args).with_context(|| format!("{name} {kind} at {server}"))?;
    Ok(read(&text))
}

fn read(text: &str) -> Said {
    let mut said = Said::default();
    let mut section = String::new();
    for line in text.lines() {
        if let Some(rest) = line.split("status: ").nth(1) {
            said.status = rest.split(',').next().unwrap_or_default().to_owned();
        } else if let Some(rest) = line.strip_prefix(";; flags: ") {
            let flags = rest.split(';').next().unwrap_or_default();
            said.flags = flags.split_whitespace().map(str::to_owned).collect();
        } else if line.starts_with(";; ") && line.ends_with("SECTION:") {
            section = line.to_owned();
        } else if !line.starts_with(';') && !line.is_empty() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [owner, ttl, "IN", kind, data @ ..] = words.as_slice() {
                if section.contains("ANSWER") {
                    said.answers.push(format!("{kind} {}", data.join(" ")));
                    said.ttls.extend(ttl.parse::<u32>());
                } else if section.contains("AUTHORITY") && *kind == "SOA" {
                    said.authority.push((*owner).to_owned());
                }
            }
        }
    }
    said.answers.sort();
    said
}

/// An outside name server: `192.0.2.77` for every name except those that start with `missing.`
/// (NXDOMAIN with an SOA) or `large.` (100 addresses, truncated over UDP). It ends when dropped.
#[derive(Debug)]
pub struct Upstream {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Upstream {
    /// Starts listening.
    pub fn serve(address: SocketAddr) -> Result<Self> {
        let udp = UdpSocket::bind(address).with_context(|| format!("{address} is taken"))?;
        let tcp = TcpListener::bind(address).with_context(|| format!("{address} is taken"))?;
        let (asked, ended) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        udp.set_read_timeout(Some(Duration::from_millis(100)))?;
        tcp.set_nonblocking(true)?;
        let threads = vec![
            spawn({
                let (asked, ended) = (Arc::clone(&asked), Arc::clone(&ended));
                move || over_udp(&udp, &asked, &ended)
            }),
            spawn({
                let (asked, ended) = (Arc::clone(&asked), Arc::clone(&ended));
                move || over_tcp(&tcp, &asked, &ended)
            }),
        ];
        Ok(Self { address, asked, ended, threads })
    }

    /// Address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Number of received queries.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn over_udp(socket: &UdpSocket, asked: &AtomicUsize, ended: &AtomicBool) {
    let mut buffer = [0; 2048];
    while !ended.load(Ordering::SeqCst) {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
        asked.fetch_add(1, Ordering::SeqCst);
        if let Some(answer) = answer(&buffer[..length], false) {
            let _ = socket.send_to(&answer, from);
        }
    }
}

fn over_tcp(listener: &TcpListener, asked: &AtomicUsize, ended: &AtomicBool) {
    while !ended.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok((stream, _)) => {
                asked.fetch_add(1, Ordering::SeqCst);
                // A client that disconnects is no error.
                let _ = serve_one(stream);
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn serve_one(mut stream: TcpStream) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut question)?;
    let answer = answer(&question, true).context("no question")?;
    stream.write_all(&u16::try_from(answer.len())?.to_be_bytes())?;
    Ok(stream.write_all(&answer)?)
}

/// Builds the message by hand (RFC 1035, 4.1): header, the received question, records that point to its name.
fn answer(packet: &[u8], whole: bool) -> Option<Vec<u8>> {
    let mut end = 12;
    while *packet.get(end)? != 0 {
        end += usize::from(packet[end]) + 1;
    }
    end += 5;
    let question = packet.get(12..end)?;
    let first = question.get(1..=usize::from(question[0]))?.to_ascii_lowercase();
    let is_a = question.ends_with(&[0, 1, 0, 1]);
    let (mut flags, mut answers, mut authorities) = (0x8180u16, 0u16, 0u16);
    let mut records = Vec::new();
    match first.as_slice() {
        b"missing" => {
            flags |= 3;
            authorities = 1;
            // The root's SOA, one hour; negative answers may be cached for as long.
            records.extend_from_slice(&[0, 0, 6, 0, 1, 0, 0, 14, 16, 0, 22, 0, 0]);
            for number in [1u32, 2, 3, 4, 3600] {
                records.extend_from_slice(&number.to_be_bytes());
            }
        }
        b"large" if !whole => flags |= 0x0200,
        _ if !is_a => {}
        name => {
            answers = if name == b"large" { 100 } else { 1 };
            for number in 0..answers {
                let last = if answers == 1 { 77 } else { u8::try_from(number).ok()? };
                records.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 14, 16, 0, 4, 192, 0, 2, last]);
            }
        }
    }
    let mut message = packet.get(..2)?.to_vec();
    for number in [flags, 1, answers, authorities, 0] {
        message.extend_from_slice(&number.to_be_bytes());
    }
    message.extend_from_slice(question);
    message.extend_from_slice(&records);
    Some(message)
}
