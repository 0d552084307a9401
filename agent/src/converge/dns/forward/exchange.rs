//! A single question to a single server: over UDP, and over TCP if the answer is truncated.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

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
