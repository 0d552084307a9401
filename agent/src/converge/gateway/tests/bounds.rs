//! Limits of time and number: clients that are slow, too many, or still connected at shutdown.

use std::time::Duration;

use super::{Bed, endpoint, first_line, get, named, ok, table};
use crate::http::server::Limits;

fn short() -> Limits {
    Limits { head: Duration::from_millis(300), idle: Duration::from_secs(3), ..Limits::default() }
}

// Seen red with no limit of a head's time.
#[tokio::test]
async fn a_head_that_comes_byte_by_byte_is_given_up() {
    let bed = Bed::start(short(), table(&[named("hello").await])).await;
    let mut client = bed.client().await;
    // This head has no end. Its time is over after some eight bytes, on a slow machine after fewer.
    let mut sent = 0;
    for byte in b"GET / HTTP/1.1\r\nX: ".iter().chain(std::iter::repeat_n(&b'x', 200)) {
        use tokio::io::AsyncWriteExt;
        if client.stream.write_all(&[*byte]).await.is_err() {
            break;
        }
        sent += 1;
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    assert!(sent < 200, "it was read for all of its bytes");
    assert!(client.closes().await);
    assert!(bed.client().await.closes().await, "who says nothing at all is no better");
}

// Seen red without the transition from idle to a head.
#[tokio::test]
async fn a_later_head_has_no_more_time_than_the_first() {
    let limits = Limits { idle: Duration::from_secs(3600), ..short() };
    let bed = Bed::start(limits, table(&[named("hello").await])).await;
    let mut client = bed.client().await;
    client.send(&get("/")).await;
    assert!(client.message().await.ends_with("hello"));
    client.send("GET / HT").await;
    assert!(client.closes().await);
}

#[tokio::test]
async fn a_kept_connection_may_rest_longer_than_a_head_may_take_and_not_for_ever() {
    let bed = Bed::start(short(), table(&[named("hello").await])).await;
    let mut client = bed.client().await;
    for _ in 0..2 {
        client.send(&get("/")).await;
        assert!(client.message().await.ends_with("hello"));
        // Longer than a head may take, shorter than an idle period: there is no event to wait for.
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    client.send("GET / HT").await;
    assert!(client.closes().await);
    let mut client = bed.client().await;
    client.send(&get("/")).await;
    client.message().await;
    assert!(client.closes().await);
}

#[tokio::test]
async fn an_answer_may_take_longer_than_a_rest() {
    let at = endpoint(|mut wire| async move {
        wire.message().await;
        tokio::time::sleep(Duration::from_millis(600)).await;
        wire.send(&ok("late")).await;
    })
    .await;
    let limits = Limits { idle: Duration::from_millis(200), ..short() };
    let bed = Bed::start(limits, table(&[at])).await;
    assert!(bed.ask(&get("/")).await.ends_with("late"));
}

// Seen red without `max_header_size`.
#[tokio::test]
async fn a_head_without_end_is_refused() {
    let bed = Bed::with(&[named("hello").await]).await;
    let head = |size| format!("GET / HTTP/1.1\r\nHost: shop.example\r\nX: {}\r\n\r\n", "x".repeat(size));
    assert_eq!(first_line(&bed.ask(&head(60_000)).await), "http/1.1 200 ok");
    assert_eq!(first_line(&bed.ask(&head(70_000)).await), "http/1.1 431 request header fields too large");
}

#[tokio::test]
async fn heads_of_many_lines_pass_both_ways() {
    let lines = |count: usize| (0..count).map(|n| format!("x-{n}: a\r\n")).collect::<String>();
    let at = endpoint(move |mut wire| async move {
        while let head = wire.head().await
            && !head.is_empty()
        {
            let seen = head.matches("\r\nx-").count();
            let body = format!("{seen} lines");
            wire.send(&format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{}\r\n{body}",
                body.len(),
                lines(300)
            ))
            .await;
        }
    })
    .await;
    let bed = Bed::with(&[at]).await;
    let request = |count| format!("GET / HTTP/1.1\r\nHost: shop.example\r\n{}\r\n", lines(count));
    let answer = bed.ask(&request(300)).await;
    assert!(answer.contains("x-299: a") && answer.ends_with(" lines"), "{answer}");
    assert_eq!(first_line(&bed.ask(&request(1_100)).await), "http/1.1 431 request header fields too large");
}

// Seen red without the semaphore.
#[tokio::test]
async fn who_is_one_too_many_waits_for_a_place() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let bed = Bed::start(limits, table(&[named("hello").await])).await;
    let (mut one, mut two, mut three) = (bed.client().await, bed.client().await, bed.client().await);
    for client in [&mut one, &mut two] {
        client.send(&get("/")).await;
        assert!(client.message().await.ends_with("hello"));
    }
    three.send(&get("/")).await;
    let early = tokio::time::timeout(Duration::from_millis(300), three.message()).await;
    assert!(early.is_err(), "a third connection was served");
    drop(one);
    assert!(three.message().await.ends_with("hello"));
    drop(two);
}

// Without places for tunnels the fifth opens, and then nobody else gets a connection.
#[tokio::test]
async fn tunnels_leave_half_of_all_places_to_others() {
    let at = endpoint(|mut wire| async move {
        while let head = wire.head().await
            && !head.is_empty()
        {
            let switch = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: a\r\nConnection: Upgrade\r\n\r\n";
            let answer = if head.contains("upgrade: a") { switch.to_owned() } else { ok("hello") };
            wire.send(&answer).await;
        }
    })
    .await;
    let bed = Bed::start(Limits { connections: 8, ..Limits::default() }, table(&[at])).await;
    let upgrade = "GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\nUpgrade: a\r\n\r\n";
    let mut tunnels = Vec::new();
    for _ in 0..4 {
        let mut client = bed.client().await;
        client.send(upgrade).await;
        assert_eq!(first_line(&client.head().await), "http/1.1 101 switching protocols");
        tunnels.push(client);
    }
    let mut fifth = bed.client().await;
    fifth.send(upgrade).await;
    let answer = fifth.message().await;
    assert_eq!(first_line(&answer), "http/1.1 503 service unavailable");
    assert!(answer.contains("tunnel limit reached"), "{answer}");
    fifth.send(&get("/")).await;
    assert!(fifth.message().await.ends_with("hello"), "its connection goes on");
    assert!(bed.ask(&get("/")).await.ends_with("hello"));
    drop(tunnels.pop());
    let freed = async { while first_line(&bed.ask(upgrade).await) != "http/1.1 101 switching protocols" {} };
    tokio::time::timeout(super::PATIENCE, freed).await.expect("a tunnel that ended gives its place back");
}

// Seen red with an `admit` that refuses no client.
#[tokio::test]
async fn one_client_holds_a_quarter_of_all_places_and_its_refusal_says_so() {
    use crate::testing::TestNamespace;
    let limits = Limits { connections: 8, ..Limits::default() };
    // The client has another address than the gateway, because the node itself may hold all connections.
    let mut node = TestNamespace::new();
    let client = node.pod();
    let peer = client.to_string();
    node.run("ip", &["link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", &peer]);
    node.run("ip", &["addr", "add", "192.0.2.1/24", "dev", "up0"]);
    node.run("ip", &["link", "set", "up0", "up"]);
    for arguments in
        [["addr", "add", "192.0.2.2/24", "dev", "eth0"].as_slice(), &["link", "set", "eth0", "up"]]
    {
        assert!(crate::testing::in_pod(client, "ip", arguments).0);
    }
    let own = node.process();
    let listener = crate::testing::inside(own, || {
        let listener = std::net::TcpListener::bind("192.0.2.1:80")?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    let listener = tokio::net::TcpListener::from_std(listener.unwrap()).unwrap();
    let bed = Bed::at(listener, limits, table(&[named("hello").await])).await;
    let connect = |from: i32| {
        let connected = crate::testing::inside(from, || {
            let stream = std::net::TcpStream::connect("192.0.2.1:80")?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        super::Wire::new(tokio::net::TcpStream::from_std(connected.unwrap()).unwrap())
    };
    let (mut one, mut two) = (connect(client), connect(client));
    for held in [&mut one, &mut two] {
        held.send(&get("/")).await;
        assert!(held.message().await.ends_with("hello"));
    }
    let mut three = connect(client);
    let answer = three.message().await;
    assert_eq!(first_line(&answer), "http/1.1 503 service unavailable");
    assert!(answer.contains("192.0.2.2 already has 2 connections to the gateway"), "{answer}");
    assert!(three.closes().await);
    let mut others: Vec<_> = (0..4).map(|_| connect(own)).collect();
    for other in &mut others {
        other.send(&get("/")).await;
        assert!(other.message().await.ends_with("hello"), "the node itself, for a proxy there");
    }
    drop(one);
    let served = async {
        loop {
            let mut again = connect(client);
            again.send(&get("/")).await;
            if again.message().await.ends_with("hello") {
                return;
            }
        }
    };
    tokio::time::timeout(super::PATIENCE, served).await.expect("its place is free again");
    bed.shutdown.cancel();
}

/// Starts an endpoint that reports each request and answers it after a while.
async fn slow() -> (std::net::SocketAddr, tokio::sync::mpsc::Receiver<()>) {
    let (asked, begun) = tokio::sync::mpsc::channel::<()>(1);
    let at = endpoint(move |mut wire| {
        let asked = asked.clone();
        async move {
            while !wire.message().await.is_empty() {
                asked.send(()).await.unwrap();
                tokio::time::sleep(Duration::from_millis(300)).await;
                wire.send(&ok("done")).await;
            }
        }
    })
    .await;
    (at, begun)
}

#[tokio::test]
async fn at_the_end_requests_under_way_are_answered_and_nothing_else_is_waited_for() {
    let (at, mut begun) = slow().await;
    let limits = Limits { drain: super::PATIENCE, ..Limits::default() };
    let bed = Bed::start(limits, table(&[at])).await;
    let mut idle = bed.client().await;
    idle.send(&get("/")).await;
    begun.recv().await.unwrap();
    idle.message().await;
    let mut busy = bed.client().await;
    busy.send(&get("/")).await;
    begun.recv().await.unwrap();
    bed.shutdown.cancel();
    let answer = busy.message().await;
    assert!(answer.ends_with("done") && answer.contains("connection: close"), "{answer}");
    assert!(idle.closes().await && busy.closes().await);
    tokio::time::timeout(super::PATIENCE / 2, bed.serving).await.unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(bed.address).await.is_err());
}

// Seen red with `graceful_shutdown` before the first poll of hyper's connection.
#[tokio::test]
async fn at_the_end_a_request_that_hyper_takes_over_is_answered() {
    let (at, mut begun) = slow().await;
    let bed = Bed::with(&[at]).await;
    let (mut busy, mut half) = (bed.client().await, bed.client().await);
    half.send("GET / HTTP/1.1\r\nHost: shop.ex").await;
    busy.send(&get("/")).await;
    begun.recv().await.unwrap();
    bed.shutdown.cancel();
    let answer = busy.message().await;
    assert!(answer.ends_with("done") && answer.contains("connection: close"), "{answer}");
    half.send("ample\r\n\r\n").await;
    begun.recv().await.unwrap();
    assert!(half.message().await.ends_with("done"));
}

// Seen red with connections that end immediately: the first client gets no answer.
#[tokio::test]
async fn at_the_end_a_connection_that_was_just_made_has_time_for_its_first_request() {
    let limits = Limits { drain: super::PATIENCE, first_byte: super::PATIENCE, ..Limits::default() };
    let bed = Bed::start(limits, table(&[named("hello").await])).await;
    let mut new = bed.client().await;
    let mut idle = bed.client().await;
    idle.send(&get("/")).await;
    // Connections are accepted in order, so `new` has been accepted by now.
    idle.message().await;
    bed.shutdown.cancel();
    assert!(idle.closes().await);
    new.send(&get("/")).await;
    let answer = new.message().await;
    assert!(answer.ends_with("hello") && answer.contains("connection: close"), "{answer}");
    assert!(new.closes().await);
    tokio::time::timeout(super::PATIENCE / 2, bed.serving).await.unwrap().unwrap();
}

// Seen red with an upload that ends at shutdown: the client gets a head and no body.
#[tokio::test]
async fn at_the_end_an_answer_that_began_before_the_request_was_sent_is_whole() {
    let at = endpoint(|mut wire| async move {
        wire.head().await;
        wire.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n").await;
        wire.until("rest").await;
        wire.send("done").await;
    })
    .await;
    let limits = Limits { drain: super::PATIENCE, first_byte: super::PATIENCE, ..Limits::default() };
    let bed = Bed::start(limits, table(&[at])).await;
    let (mut new, mut idle) = (bed.client().await, bed.client().await);
    idle.send("GET /nowhere HTTP/1.1\r\nHost: other.example\r\n\r\n").await;
    // Connections are accepted in order, so `new` has been accepted by now.
    idle.message().await;
    bed.shutdown.cancel();
    assert!(idle.closes().await);
    new.send("POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 9\r\n\r\nfirst").await;
    let head = new.head().await;
    new.send("rest").await;
    assert_eq!((first_line(&head), &*new.exactly(4).await), ("http/1.1 200 ok", "done"));
    assert!(new.closes().await);
}

// Seen red with a timer that is not polled.
#[tokio::test]
async fn at_the_end_a_connection_on_which_nothing_comes_is_not_waited_for_long() {
    let limits = Limits {
        drain: super::PATIENCE,
        head: Duration::from_secs(3600),
        first_byte: Duration::from_millis(100),
        ..Limits::default()
    };
    let bed = Bed::start(limits, table(&[])).await;
    let (mut silent, mut asks) = (bed.client().await, bed.client().await);
    asks.send(&get("/")).await;
    asks.message().await;
    bed.shutdown.cancel();
    assert!(silent.closes().await);
    tokio::time::timeout(super::PATIENCE / 2, bed.serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn at_the_end_nobody_is_waited_for_without_limit() {
    let (asked, mut begun) = tokio::sync::mpsc::channel::<()>(1);
    let at = endpoint(move |mut wire| {
        let asked = asked.clone();
        async move {
            wire.message().await;
            asked.send(()).await.unwrap();
            while wire.more().await {}
        }
    })
    .await;
    let limits = Limits { drain: Duration::from_millis(100), ..Limits::default() };
    let bed = Bed::start(limits, table(&[at])).await;
    let mut client = bed.client().await;
    client.send(&get("/")).await;
    begun.recv().await.unwrap();
    bed.shutdown.cancel();
    tokio::time::timeout(super::PATIENCE, bed.serving).await.unwrap().unwrap();
    assert!(client.closes().await);
}
