//! Sockets handed over between processes without losing anything.

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

/// A process that hands over these sockets on request; its result is true if it was notified that it may end.
fn giver(dir: &Path, sockets: Sockets) -> std::thread::JoinHandle<bool> {
    let listener = UnixListener::bind(dir.join(SOCKET)).unwrap();
    std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        drop(listener);
        wire::send(&stream, &sockets).unwrap();
        stream.read(&mut [0; 1]).unwrap() > 0
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_that_come_at_once_ask_once_and_get_what_is_theirs() {
    let dir = tempfile::tempdir().unwrap();
    let ((udp, udp_at), (tcp, tcp_at), (web, web_at)) = (bound(), bound(), bound());
    let all = [shared(Role::DnsUdp, &udp), shared(Role::DnsTcp, &tcp), shared(Role::Gateway, &web)];
    let giver = giver(dir.path(), all.concat());
    let handover = Handover::for_agent(dir.path());
    let (dns, gateway) = (handover.clone(), handover.clone());
    let dns =
        tokio::spawn(
            async move { dns.take([(Role::DnsUdp, udp_at), (Role::DnsTcp, tcp_at)]).await.is_some() },
        );
    let gateway = tokio::spawn(async move { gateway.take([(Role::Gateway, web_at)]).await.is_some() });
    assert!(dns.await.unwrap() && gateway.await.unwrap());
    assert!(!giver.is_finished(), "it serves until another waits");
    handover.release_giver();
    assert!(giver.join().unwrap());
}

#[tokio::test]
async fn what_is_bound_elsewhere_or_is_not_all_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let ((udp, udp_at), elsewhere) = (bound(), SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
    let _giver = giver(dir.path(), shared(Role::DnsUdp, &udp));
    let handover = Handover::for_agent(dir.path());
    assert!(handover.take([(Role::DnsUdp, udp_at), (Role::DnsTcp, elsewhere)]).await.is_none());
    assert!(handover.take([(Role::DnsUdp, udp_at)]).await.is_none(), "it was closed");
}

// Seen red with sockets in use kept by the waiting process: the port can't be bound again.
#[tokio::test]
async fn a_server_that_ended_by_itself_is_started_again_on_its_own_socket() {
    let dir = tempfile::tempdir().unwrap();
    let (handover, (udp, at)) = (Handover::for_agent(dir.path()), bound());
    handover.hold(Role::DnsUdp, copy(&udp).unwrap());
    handover.hold(Role::DnsUdp, copy(&udp).unwrap());
    assert_eq!(handover.0.bound.borrow().len(), 1);
    let [again] = handover.take([(Role::DnsUdp, at)]).await.unwrap();
    assert_eq!(again.local_addr().unwrap(), SockAddr::from(at));
    assert!(handover.0.bound.borrow().is_empty(), "and held anew once it serves");
}

#[tokio::test]
async fn without_a_process_that_serves_there_is_nothing_to_take_and_to_end() {
    let dir = tempfile::tempdir().unwrap();
    // Longer than a socket address may be.
    let deep = dir.path().join("d".repeat(120));
    std::fs::create_dir(&deep).unwrap();
    let handover = Handover::for_agent(&deep);
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 53));
    assert!(handover.take([(Role::DnsUdp, at)]).await.is_none());
    assert!(!end(&deep).unwrap() && !is_serving(&deep));
    assert!(!end(&dir.path().join("nothing")).unwrap());
    // A killed process leaves its file, and maybe a connection that it never accepted.
    let listener = UnixListener::bind(address(&deep).unwrap().1).unwrap();
    let stream = connect(&deep).unwrap().unwrap();
    drop(listener);
    assert!(receive_sockets(stream).unwrap().is_none());
    assert!(deep.join(SOCKET).exists());
    assert!(!end(&deep).unwrap() && !deep.join(SOCKET).exists());
}
