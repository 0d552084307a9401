//! Sockets that go from hand to hand lose nothing.

use std::io::Read as _;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};

use super::*;

fn bound() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = socket.local_addr().unwrap();
    (socket, at)
}

fn shared(role: Role, socket: &UdpSocket) -> Sockets {
    vec![(role, Arc::new(socket.try_clone().unwrap().into()))]
}

#[test]
fn what_came_for_a_process_that_ended_waits_for_the_next() {
    let (socket, at) = bound();
    let (one, other) = UnixStream::pair().unwrap();
    wire::send(&one, &shared(Role::DnsUdp, &socket)).unwrap();
    drop(socket);
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().send_to(b"who?", at).unwrap();
    let mut received = wire::receive(&other).unwrap();
    let (role, socket) = received.pop().unwrap();
    assert!(received.is_empty() && role == Role::DnsUdp);
    let mut question = [0; 16];
    assert_eq!(UdpSocket::from(socket).recv(&mut question).unwrap(), 4);
    drop(one);
    assert!(wire::receive(&other).unwrap().is_empty(), "the agent ended before it said anything");
}

#[tokio::test]
async fn the_next_agent_asks_once_and_takes_what_is_bound_where_it_wants() {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join(SOCKET)).unwrap();
    let ((udp, at), (tcp, other_at)) = (bound(), bound());
    let all = [shared(Role::DnsUdp, &udp), shared(Role::DnsTcp, &tcp)].concat();
    let serving = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        wire::send(&stream, &all)?;
        stream.read_exact(&mut [0; 1])
    });
    let handover = Handover::of(dir.path());
    let elsewhere = (Ipv4Addr::LOCALHOST, 1).into();
    assert!(handover.take(Role::DnsTcp, elsewhere).await.is_none(), "bound elsewhere");
    serving.join().unwrap().unwrap();
    let taken = handover.take(Role::DnsUdp, at).await.unwrap();
    assert_eq!(taken.local_addr().unwrap(), SockAddr::from(at));
    assert!(handover.take(Role::DnsTcp, other_at).await.is_none(), "it was closed");
    handover.hold(Role::DnsUdp, &taken);
    handover.hold(Role::DnsUdp, &taken);
    assert_eq!(handover.bound().borrow().len(), 1);
}

#[tokio::test]
async fn without_a_process_that_serves_there_is_nothing_to_take_and_to_end() {
    let dir = tempfile::tempdir().unwrap();
    let handover = Handover::of(dir.path());
    let at = (Ipv4Addr::LOCALHOST, 53).into();
    assert!(handover.take(Role::DnsUdp, at).await.is_none());
    assert!(!end(dir.path()).unwrap());
    // One that was killed leaves its file.
    drop(UnixListener::bind(dir.path().join(SOCKET)).unwrap());
    assert!(handover.take(Role::DnsUdp, at).await.is_none());
    assert!(!end(dir.path()).unwrap() && !dir.path().join(SOCKET).exists());
}
