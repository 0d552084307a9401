//! Upstreams that answer, refuse, cut off, lie or stay silent, on real sockets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

use super::{ForwardError, Forwarder, QUESTIONS_MAX};

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 244, 1, 1));

/// Address of the client with this number.
fn client(number: usize) -> IpAddr {
    IpAddr::from(
        u32::from(Ipv4Addr::new(10, 244, 2, 0)).wrapping_add(u32::try_from(number).unwrap()).to_be_bytes(),
    )
}

#[derive(Clone, Copy, PartialEq)]
enum Says {
    /// Answers after a while; ignores names that begin with `silent`.
    Late,
    Address,
    Refused,
    Nothing,
    NoName,
    NoNameWithoutSoa,
    TruncatedThenTcp,
    ForgedFirst,
}

struct Upstream {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Upstream {
    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn question(text: &str) -> Query {
    Query::query(name(text), RecordType::A)
}

fn answer(packet: &[u8], says: Says) -> Message {
    let asked = Message::from_vec(packet).unwrap();
    let mut message = Message::response(asked.metadata.id, OpCode::Query);
    message.add_queries(asked.queries.clone());
    let owner = asked.queries[0].name().clone();
    let soa = SOA::new(name("ns."), name("me."), 1, 1, 1, 1, 300);
    match says {
        Says::Refused => message.metadata.response_code = ResponseCode::Refused,
        Says::NoName | Says::NoNameWithoutSoa => {
            message.metadata.response_code = ResponseCode::NXDomain;
            if says == Says::NoName {
                message.add_authority(Record::from_rdata(name("example."), 300, RData::SOA(soa)));
            }
        }
        Says::TruncatedThenTcp => message.metadata.truncation = true,
        _ => {
            message.add_answer(Record::from_rdata(owner, 300, RData::A(A::new(192, 0, 2, 1))));
        }
    }
    message
}

async fn upstream(says: Says) -> Upstream {
    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let address = socket.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    let count = Arc::clone(&asked);
    tasks.spawn(async move {
        let mut buffer = [0; 2048];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            if says == Says::Nothing {
                continue;
            }
            let mut message = answer(&buffer[..length], says);
            if says == Says::ForgedFirst {
                let mut forged = message.clone();
                forged.metadata.id = forged.metadata.id.wrapping_add(1);
                forged.metadata.response_code = ResponseCode::NXDomain;
                socket.send_to(&forged.to_vec().unwrap(), from).await.unwrap();
                let mut other = message.clone();
                other.queries = vec![question("other.example.")];
                socket.send_to(&other.to_vec().unwrap(), from).await.unwrap();
            }
            message.metadata.recursion_available = true;
            if says == Says::Late {
                let (socket, packet) = (Arc::clone(&socket), message.to_vec().unwrap());
                if !message.queries[0].name().to_ascii().starts_with("silent") {
                    tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        socket.send_to(&packet, from).await.unwrap();
                    });
                }
                continue;
            }
            socket.send_to(&message.to_vec().unwrap(), from).await.unwrap();
        }
    });
    if says == Says::TruncatedThenTcp {
        let listener = TcpListener::bind(address).await.unwrap();
        tasks.spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let length = stream.read_u16().await.unwrap();
                let mut packet = vec![0; usize::from(length)];
                stream.read_exact(&mut packet).await.unwrap();
                let packet = answer(&packet, Says::Address).to_vec().unwrap();
                stream.write_u16(u16::try_from(packet.len()).unwrap()).await.unwrap();
                stream.write_all(&packet).await.unwrap();
            }
        });
    }
    Upstream { address, asked, _tasks: tasks }
}

// Seen red with the first answer accepted whatever its content. With a silent upstream marked only when its own time
// is up, dnsperf at 1,000 questions a second got 66 % SERVFAIL.
#[tokio::test]
async fn an_upstream_that_refuses_or_is_silent_costs_no_answer() {
    for bad in [Says::Refused, Says::Nothing] {
        let silent = bad == Says::Nothing;
        let (bad, good) = (upstream(bad).await, upstream(Says::Address).await);
        let forwarder = Arc::new(Forwarder::new(vec![bad.address, good.address]));
        let mut asking = JoinSet::new();
        for number in 0..200 {
            let forwarder = Arc::clone(&forwarder);
            asking.spawn(async move {
                forwarder.resolve(&question(&format!("n{number}.example.")), CLIENT).await
            });
        }
        for answered in asking.join_all().await {
            assert_eq!(answered.unwrap().answers.len(), 1);
        }
        // More than once per question on a slow machine: an upstream is queried again after a while.
        assert!(bad.asked() > 0 && (200..=400).contains(&good.asked()), "{} {}", bad.asked(), good.asked());
        // A silent upstream is not awaited again and again: at 1,000 questions a second that would take every place.
        let before = bad.asked();
        for number in 0..20 {
            forwarder.resolve(&question(&format!("later{number}.example.")), CLIENT).await.unwrap();
        }
        let again = bad.asked() - before;
        assert!(if silent { again == 0 } else { (20..=40).contains(&again) }, "{again}");
    }
}

// Tokio's paused clock, which jumps: elapsed time is part of the forwarder's decisions.
#[tokio::test(start_paused = true)]
async fn without_any_upstream_that_answers_all_end_in_bounded_time() {
    let (one, other) = (upstream(Says::Nothing).await, upstream(Says::Nothing).await);
    let forwarder = Arc::new(Forwarder::new(vec![one.address, other.address]));
    let start = tokio::time::Instant::now();
    let mut asking = JoinSet::new();
    for number in 0..QUESTIONS_MAX + 50 {
        let forwarder = Arc::clone(&forwarder);
        let question = question(&format!("n{number}.example."));
        asking.spawn(async move { forwarder.resolve(&question, client(number)).await });
    }
    let failed: Vec<ForwardError> = asking.join_all().await.into_iter().map(Result::unwrap_err).collect();
    let known = [ForwardError::Busy, ForwardError::Timeout];
    assert!(failed.len() == QUESTIONS_MAX + 50 && failed.iter().all(|error| known.contains(error)));
    assert!(start.elapsed() <= super::DEADLINE + super::STAGGER, "{:?}", start.elapsed());
}

// Seen red with SERVFAIL for a question that finds no free place.
#[tokio::test]
async fn who_finds_no_place_waits_for_one() {
    let one = upstream(Says::Late).await;
    let forwarder = Arc::new(Forwarder::new(vec![one.address]));
    let mut asking = JoinSet::new();
    for number in 0..QUESTIONS_MAX * 2 {
        let forwarder = Arc::clone(&forwarder);
        let question = question(&format!("n{number}.example."));
        asking.spawn(async move { forwarder.resolve(&question, client(number)).await });
    }
    for answered in asking.join_all().await {
        assert_eq!(answered.unwrap().answers.len(), 1);
    }
}

// Seen red without a share for each client.
#[tokio::test]
async fn a_client_that_asks_for_what_nobody_answers_is_in_nobodys_way() {
    let one = upstream(Says::Late).await;
    let forwarder = Arc::new(Forwarder::new(vec![one.address]));
    let mut asking = JoinSet::new();
    let flood = QUESTIONS_MAX * 2;
    for number in 0..flood {
        let forwarder = Arc::clone(&forwarder);
        let question = question(&format!("silent{number}.example."));
        asking.spawn(async move { forwarder.resolve(&question, CLIENT).await });
    }
    // Questions beyond the queue get that answer; the others have a place or wait for one.
    for _ in 0..flood - QUESTIONS_MAX {
        assert_eq!(asking.join_next().await.unwrap().unwrap().unwrap_err(), ForwardError::Busy);
    }
    let others = (0..20).map(|number| {
        let forwarder = Arc::clone(&forwarder);
        async move { forwarder.resolve(&question(&format!("n{number}.example.")), client(number)).await }
    });
    for said in futures::future::join_all(others).await {
        assert_eq!(said.unwrap().answers.len(), 1);
    }
    assert!(asking.try_join_next().is_none(), "the others did not wait for it");
}

// Seen red with an upstream question for each client.
#[tokio::test]
async fn who_asks_the_same_waits_for_the_same_answer() {
    let one = upstream(Says::Late).await;
    let forwarder = Arc::new(Forwarder::new(vec![one.address]));
    let mut asking = JoinSet::new();
    for number in 0..100 {
        let forwarder = Arc::clone(&forwarder);
        asking.spawn(async move { forwarder.resolve(&question("a.example."), client(number)).await });
    }
    for answered in asking.join_all().await {
        assert_eq!(answered.unwrap().answers.len(), 1);
    }
    // More than one on a slow machine: an upstream is queried again after a while.
    assert!(one.asked() <= 3, "{}", one.asked());
}

#[tokio::test]
async fn all_refusals_are_reported_and_no_upstream_too() {
    let one = upstream(Says::Refused).await;
    let said = Forwarder::new(vec![one.address]).resolve(&question("a.example."), CLIENT).await;
    assert_eq!(said.unwrap_err(), ForwardError::Refused(ResponseCode::Refused));
    let said = Forwarder::new(Vec::new()).resolve(&question("a.example."), CLIENT).await;
    assert_eq!(said.unwrap_err(), ForwardError::NoUpstream);
}

#[tokio::test]
async fn answers_that_are_cut_off_are_asked_for_over_tcp_and_forged_ones_ignored() {
    for says in [Says::TruncatedThenTcp, Says::ForgedFirst] {
        let one = upstream(says).await;
        let said = Forwarder::new(vec![one.address]).resolve(&question("a.example."), CLIENT).await.unwrap();
        assert_eq!((said.metadata.response_code, said.answers.len()), (ResponseCode::NoError, 1));
    }
}

// Seen red with a cached negative answer that has no SOA.
#[tokio::test]
async fn answers_are_kept_as_long_as_they_say_within_limits() {
    for (says, kept, code, ttl) in [
        (Says::Address, true, ResponseCode::NoError, 30),
        (Says::NoName, true, ResponseCode::NXDomain, 10),
        (Says::NoNameWithoutSoa, false, ResponseCode::NXDomain, 0),
    ] {
        let one = upstream(says).await;
        let forwarder = Forwarder::new(vec![one.address]);
        // An upstream that has answered is queried again only after a long silence.
        forwarder.resolve(&question("first.example."), CLIENT).await.unwrap();
        let before = one.asked();
        for asked in 1..=3 {
            let said = forwarder.resolve(&question("A.example."), CLIENT).await.unwrap();
            assert_eq!(said.metadata.response_code, code);
            let record = said.answers.first().or(said.authorities.first());
            assert!(record.map_or(0, |record| record.ttl) <= ttl);
            assert_eq!(one.asked() - before, if kept { 1 } else { asked }, "{code}");
        }
    }
}
