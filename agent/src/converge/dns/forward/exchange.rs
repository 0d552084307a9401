//! A single question to a single server: over UDP, and over TCP if the answer is truncated.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use hickory_proto::op::{Edns, Message, Query};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};

/// Largest answer requested over UDP: packets up to this size are not fragmented (DNS flag day 2020).
const PAYLOAD: u16 = 1232;

/// Sends the question and waits for the answer, without a time limit.
///
/// # Errors
/// The server can't be reached, or its answer is not DNS.
pub(super) async fn exchange(server: SocketAddr, query: &Query) -> io::Result<Message> {
    let (question, id) = question(query)?;
    let answer = over_udp(server, &question, id, query).await?;
    if answer.metadata.truncation { over_tcp(server, &question, id, query).await } else { Ok(answer) }
}

fn question(query: &Query) -> io::Result<(Vec<u8>, u16)> {
    let mut message = Message::query();
    message.metadata.id = rand::random();
    message.metadata.recursion_desired = true;
    message.add_query(query.clone());
    let mut edns = Edns::new();
    edns.set_max_payload(PAYLOAD);
    message.set_edns(edns);
    Ok((message.to_vec().map_err(io::Error::other)?, message.metadata.id))
}

async fn over_udp(server: SocketAddr, question: &[u8], id: u16, query: &Query) -> io::Result<Message> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // A separate port for each question, and packets from the server only: hard to forge.
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(question).await?;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let length = socket.recv(&mut buffer).await?;
        let packet = buffer.get(..length).unwrap_or_default();
        // A packet that does not match is not the answer; the right one may still come.
        if let Some(answer) = read(packet, id, query) {
            return Ok(answer);
        }
    }
}

async fn over_tcp(server: SocketAddr, question: &[u8], id: u16, query: &Query) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    let mut packet = length.to_be_bytes().to_vec();
    packet.extend_from_slice(question);
    stream.write_all(&packet).await?;
    let length = stream.read_u16().await?;
    let mut buffer = vec![0; usize::from(length)];
    stream.read_exact(&mut buffer).await?;
    read(&buffer, id, query).ok_or_else(|| io::Error::other("the answer does not match the question"))
}

fn read(packet: &[u8], id: u16, query: &Query) -> Option<Message> {
    let message = Message::from_vec(packet).ok()?;
    let fits = message.metadata.id == id && message.queries.first().is_none_or(|of| of == query);
    fits.then_some(message)
}

// Order in which upstream servers are queried: as listed, with recently unresponsive ones last. Pure.

/// Time for which an unresponsive upstream is queried last.
const SILENT_FOR: Duration = Duration::from_secs(10);

/// Health of each upstream.
#[derive(Debug)]
pub(super) struct UpstreamHealth(Vec<Upstream>);

#[derive(Debug, Clone, Default)]
struct Upstream {
    silent_until: Option<Instant>,
    proven: bool,
}

impl UpstreamHealth {
    /// Creates the health of `count` upstreams, all presumed responsive.
    pub(super) fn new(count: usize) -> Self {
        Self(vec![Upstream::default(); count])
    }

    /// Returns all indices in the order in which to query them. An upstream whose penalty has expired is tried by
    /// one question; other questions go on without it until it answers.
    pub(super) fn order(&mut self, now: Instant) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.0.len()).collect();
        let silent_until = |index: &usize| self.0.get(*index)?.silent_until;
        // Stable: among equals the list decides.
        order.sort_by_key(|index| silent_until(index).filter(|until| *until > now));
        let known = self.0.iter_mut().filter_map(|upstream| upstream.silent_until.as_mut());
        for until in known.filter(|until| **until <= now) {
            *until = now + SILENT_FOR;
        }
        order
    }

    /// True if the upstream answered when last queried; false if it did not, or was never queried.
    pub(super) fn is_proven(&self, index: usize) -> bool {
        self.0.get(index).is_some_and(|upstream| upstream.proven)
    }

    /// Records an answer, whatever its content.
    pub(super) fn mark_answered(&mut self, index: usize) {
        self.note(index, Upstream { silent_until: None, proven: true });
    }

    /// Records that no answer came in time.
    pub(super) fn mark_unresponsive(&mut self, index: usize, now: Instant) {
        self.note(index, Upstream { silent_until: Some(now + SILENT_FOR), proven: false });
    }

    fn note(&mut self, index: usize, now: Upstream) {
        if let Some(upstream) = self.0.get_mut(index) {
            *upstream = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Seen red with `order` unsorted.
    #[test]
    fn the_silent_are_asked_last_and_come_back() {
        let start = Instant::now();
        let mut health = UpstreamHealth::new(3);
        assert_eq!(health.order(start), [0, 1, 2]);
        health.mark_unresponsive(0, start);
        assert_eq!(health.order(start), [1, 2, 0]);
        health.mark_unresponsive(1, start + Duration::from_secs(1));
        assert_eq!(health.order(start + Duration::from_secs(1)), [2, 0, 1]);
        // One question tries it again, and no other before it has answered.
        assert_eq!(health.order(start + SILENT_FOR), [0, 2, 1]);
        assert_eq!(health.order(start + SILENT_FOR), [2, 1, 0]);
        assert!(!health.is_proven(0));
        health.mark_answered(0);
        assert!(health.is_proven(0));
        assert_eq!(health.order(start + SILENT_FOR), [0, 2, 1]);
    }
}
