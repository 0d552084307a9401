//! Plain requests, and those that hyper takes over: each reaches an endpoint exactly once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::header::TRANSFER_ENCODING;
use socket2::SockRef;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{Mutex, mpsc};

use super::super::headers::HOP_BY_HOP;
use super::{Bed, DATE, Wire, endpoint, field, first_line, get, ok};
use crate::http::server;
use crate::http::server::Limits;

/// Counts of an endpoint's connections and requests.
#[derive(Debug, Clone, Default)]
struct Counts {
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Counts {
    fn now(&self) -> (usize, usize) {
        (self.connections.load(Ordering::SeqCst), self.requests.load(Ordering::SeqCst))
    }
}

/// Starts a gateway whose endpoint answers each request with these pieces, one after the other.
async fn bed(pieces: &'static [&'static str], pause: Duration) -> (Bed, Counts) {
    let counts = Counts::default();
    let counted = counts.clone();
    let at = endpoint(move |mut wire: Wire| {
        let counted = counted.clone();
        async move {
            counted.connections.fetch_add(1, Ordering::SeqCst);
            while !wire.until("\r\n\r\n").await.is_empty() {
                counted.requests.fetch_add(1, Ordering::SeqCst);
                for piece in pieces {
                    tokio::time::sleep(pause).await;
                    wire.send(piece).await;
                }
            }
        }
    })
    .await;
    (Bed::with(&[at]).await, counts)
}

/// Sends two requests on one connection: each answer must contain all of `wanted`, in lower case, and the endpoint
/// must receive both on one connection.
async fn asked_twice(pieces: &'static [&'static str], pause: Duration, wanted: &[&str]) {
    let (bed, counts) = bed(pieces, pause).await;
    let mut client = bed.client().await;
    for _ in 0..2 {
        client.send(&get("/")).await;
        let answer = client.message().await;
        assert!(wanted.iter().all(|part| answer.contains(part)), "{answer}");
    }
    assert_eq!(counts.now(), (1, 2), "connections and requests for {pieces:?}");
}

const PLAIN: &str =
    "HTTP/1.1 200 OK\r\nDate: Thu, 26 Nov 2026 18:00:00 GMT\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello";

// Seen red with every request through hyper, which writes names in lower case.
#[tokio::test]
async fn a_plain_request_arrives_without_hyper_and_another_one_on_its_connection_with_it() {
    let at = endpoint(|mut wire| async move {
        loop {
            let head = wire.until("\r\n\r\n").await;
            if head.is_empty() {
                return;
            }
            wire.send(&ok(&head)).await;
        }
    })
    .await;
    let bed = Bed::with(&[at]).await;
    let mut client = bed.client().await;
    let lines = "Host: shop.example\r\nX-Case: a\r\n";
    for (request, name) in [
        (format!("GET /a?b HTTP/1.1\r\n{lines}\r\n"), "X-Case: a"),
        (format!("HEAD / HTTP/1.1\r\n{lines}\r\n"), ""),
        (format!("GET /a?b HTTP/1.1\r\n{lines}\r\n"), "x-case: a"),
    ] {
        client.send(&request).await;
        let head = client.head().await;
        let length = field(&head, "content-length").unwrap().parse().unwrap();
        let body = if name.is_empty() { String::new() } else { client.exactly(length).await };
        assert!(body.contains(name), "{request}{body}");
    }
}

// Seen red without `proxy-authenticate` in `hop_by_hop`: each header is on a request that is plain without it.
#[tokio::test]
async fn what_holds_for_one_connection_only_does_not_reach_an_endpoint() {
    let bed = Bed::with(&[super::mirror().await]).await;
    // An unknown transfer coding is a 400.
    for name in HOP_BY_HOP.iter().filter(|name| *name != TRANSFER_ENCODING) {
        let answer =
            bed.ask(&format!("GET / HTTP/1.1\r\nHost: shop.example\r\n{name}: of-this-hop\r\n\r\n")).await;
        assert!(answer.contains("x-real-ip") && !answer.contains("of-this-hop"), "{name}: {answer}");
    }
}

#[tokio::test]
async fn a_plain_answer_passes_also_in_pieces() {
    let (bed, counts) = bed(&[PLAIN], Duration::ZERO).await;
    let mut client = bed.client().await;
    for _ in 0..2 {
        client.send(&get("/")).await;
        assert_eq!(client.until("hello").await, PLAIN, "hyper would write names in lower case");
    }
    assert_eq!(counts.now(), (1, 2));
    let pieces =
        &["HTTP/1.1 200 OK\r\nDa", "te: Thu, 26 Nov 2026 18:00:00 GMT\r\nContent-Length: 5\r\n\r\nhe", "llo"];
    asked_twice(pieces, Duration::from_millis(5), &["hello"]).await;
}

// Seen red with a `Replayed` that passes the request on a second time, that reads no more than what had arrived, and
// that reads before the request.
#[tokio::test]
async fn what_is_not_plain_is_asked_for_once_and_its_connection_is_kept() {
    let quick = Duration::from_millis(5);
    let chunked = &["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "0\r\n\r\n"];
    asked_twice(chunked, quick, &["chunked", "5\r\nhello"]).await;
    asked_twice(&["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"], quick, &["date: ", "hello"]).await;
    asked_twice(&["HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n", PLAIN], quick, &["200 ok", "hello"]).await;
    asked_twice(&["HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n"], quick, &["204", "x-a: b"]).await;
}

// Seen red with a request that is sent again when its time is up.
#[tokio::test]
async fn a_slow_answer_is_asked_for_once() {
    asked_twice(&[PLAIN], Duration::from_millis(400), &["hello"]).await;
    let pieces = &["HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", "hello", "hello"];
    asked_twice(pieces, Duration::from_millis(400), &["hellohello"]).await;
}

// Seen red without `avoid`: each client's request opens a new connection.
#[tokio::test]
async fn an_answer_that_is_large_or_ends_with_its_connection_is_whole() {
    let large: &'static str =
        format!("HTTP/1.1 200 OK\r\n{DATE}\r\nContent-Length: 300000\r\n\r\n{}", "x".repeat(300_000)).leak();
    let pieces: &'static [&'static str] = vec![large].leak();
    let (bed, counts) = bed(pieces, Duration::ZERO).await;
    for _ in 0..3 {
        assert!(bed.ask(&get("/")).await.ends_with(&"x".repeat(300_000)));
    }
    assert_eq!(counts.now(), (1, 3), "connections and requests");
    let at = endpoint(|mut wire| async move {
        wire.until("\r\n\r\n").await;
        wire.send("HTTP/1.1 200 OK\r\n\r\nhello").await;
    })
    .await;
    let answer = Bed::with(&[at]).await.ask(&get("/")).await;
    assert!(answer.ends_with("hello\r\n0\r\n\r\n"), "{answer}");
}

// Seen red without `is_held`: the connection lasts forever.
#[tokio::test]
async fn an_answer_that_nobody_reads_is_given_up() {
    let large: &'static str =
        format!("HTTP/1.1 200 OK\r\n{DATE}\r\nContent-Length: 15000\r\n\r\n{}", "x".repeat(15_000)).leak();
    let counts = Counts::default();
    let counted = counts.clone();
    let at = endpoint(move |mut wire: Wire| {
        let counted = counted.clone();
        async move {
            while !wire.until("\r\n\r\n").await.is_empty() {
                counted.requests.fetch_add(1, Ordering::SeqCst);
                wire.send(large).await;
            }
        }
    })
    .await;
    let limits = Limits { answer: Duration::from_millis(300), ..Limits::default() };
    let listener = server::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    // Accepted connections inherit the buffer size, so a few answers fill it.
    SockRef::from(&listener).set_send_buffer_size(4096).unwrap();
    let bed = Bed::at(listener, limits, super::table(&[at])).await;
    let mut client = bed.client().await;
    let ask = async {
        // The gateway has cut the connection once this fails.
        while client.stream.write_all(get("/").as_bytes()).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(super::PATIENCE, ask).await.expect("the connection was cut");
    assert!(counts.now().1 > 0);
}

// Seen red with a remainder that is not written.
#[tokio::test]
async fn answers_that_the_client_takes_late_are_whole() {
    let body: String = (0..3000).map(|number| format!("{number:05}")).collect();
    let answer: &'static str = ok(&body).leak();
    let (asked, mut asks) = mpsc::unbounded_channel::<()>();
    let at = endpoint(move |mut wire: Wire| {
        let asked = asked.clone();
        async move {
            while !wire.until("\r\n\r\n").await.is_empty() {
                asked.send(()).unwrap();
                wire.send(answer).await;
            }
        }
    })
    .await;
    let bed = Bed::with(&[at]).await;
    let mut client = bed.client().await;
    // More answers than the kernel buffers for a client that does not read: the gateway then sends no more requests.
    let requests = 1000;
    let mut answered = 0;
    client.send(&get("/").repeat(requests)).await;
    while tokio::time::timeout(Duration::from_millis(300), asks.recv()).await.is_ok() {
        answered += 1;
    }
    assert!(answered < requests, "all answers were taken");
    for _ in 0..requests {
        assert_eq!(client.exactly(answer.len()).await, answer);
    }
}

// Seen red with an `is_silent` that is always true.
#[tokio::test]
async fn what_an_endpoint_sends_unasked_is_no_answer_to_the_next_request() {
    let (unasked, go) = mpsc::channel::<()>(1);
    let (done, mut sent) = mpsc::channel::<()>(1);
    let go = Arc::new(Mutex::new(go));
    let at = endpoint(move |mut wire: Wire| {
        let (go, done) = (Arc::clone(&go), done.clone());
        async move {
            wire.until("\r\n\r\n").await;
            wire.send(&ok("asked")).await;
            if go.lock().await.recv().await.is_some() {
                wire.send(&ok("unasked")).await;
                done.send(()).await.unwrap();
            }
            wire.closes().await;
        }
    })
    .await;
    let bed = Bed::with(&[at]).await;
    for _ in 0..3 {
        assert!(bed.ask(&get("/")).await.ends_with("\r\nasked"));
        unasked.send(()).await.unwrap();
        sent.recv().await.unwrap();
    }
}

// Seen red with a handler that routes a request again while its answer is on the way.
#[tokio::test]
async fn a_request_that_hyper_takes_over_is_answered_though_its_route_is_gone() {
    let (asked, mut begun) = mpsc::channel::<()>(1);
    let at = endpoint(move |mut wire: Wire| {
        let asked = asked.clone();
        async move {
            wire.until("\r\n\r\n").await;
            asked.send(()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(400)).await;
            wire.send(&ok("done")).await;
        }
    })
    .await;
    let bed = Bed::with(&[at]).await;
    let mut client = bed.client().await;
    client.send(&get("/")).await;
    begun.recv().await.unwrap();
    bed.tables.send_replace(Arc::new(super::table(&[])));
    assert!(client.message().await.ends_with("done"));
    assert_eq!(first_line(&bed.ask(&get("/")).await), "http/1.1 503 service unavailable");
}

// Seen red with links that are kept whatever has arrived.
#[tokio::test]
async fn what_an_endpoint_sends_behind_its_answer_is_no_answer_to_the_next_request() {
    let (bed, counts) = bed(&["HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length: 1\r\n\r\naHTTP/1.1 200 OK\r\nDate: now\r\nContent-Length: 1\r\n\r\nb"], Duration::ZERO).await;
    let mut client = bed.client().await;
    for _ in 0..5 {
        client.send(&get("/")).await;
        assert!(client.message().await.ends_with("\r\na"));
    }
    assert_eq!(counts.now(), (5, 5));
}

// Seen red without `read.drain`.
#[tokio::test]
async fn requests_that_come_at_once_are_answered_in_turn() {
    let bed = Bed::with(&[super::mirror().await]).await;
    let mut client = bed.client().await;
    let post = "POST /3 HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 2\r\n\r\nhi";
    client.send(&format!("{}{}{post}{}", get("/1"), get("/2"), get("/4"))).await;
    for number in 1..=4 {
        let answer = client.message().await;
        assert!(answer.contains(&format!(" /{number} ")), "{answer}");
    }
}

#[tokio::test]
async fn a_kept_connection_that_the_endpoint_closed_costs_no_plain_request() {
    let at = endpoint(|mut wire| async move {
        wire.until("\r\n\r\n").await;
        wire.send(&ok("hello")).await;
    })
    .await;
    let bed = Bed::with(&[at]).await;
    let mut client = bed.client().await;
    for _ in 0..50 {
        client.send(&get("/")).await;
        let answer = client.message().await;
        assert_eq!(first_line(&answer), "http/1.1 200 ok", "{answer}");
    }
}

// Would fail without the count in `plain`, with a second one where hyper takes over, and with the time from there on.
#[tokio::test]
async fn each_request_is_counted_once_whichever_way_it_takes() {
    let counted = |bed: &Bed, class: &str| {
        ["requests_total", "request_duration_seconds_count", "request_duration_seconds_sum"]
            .map(|name| bed.metrics.value(&format!("minik8s_gateway_{name}{{code=\"{class}\"}}")))
    };
    let (plain, _) = bed(&[PLAIN], Duration::ZERO).await;
    let mut client = plain.client().await;
    for requests in 1..=3 {
        client.send(&get("/")).await;
        client.message().await;
        assert_eq!(counted(&plain, "2xx")[..2], [f64::from(requests); 2]);
    }
    let post = "POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 0\r\n\r\n";
    assert!(plain.ask(post).await.ends_with("hello"));
    assert_eq!(counted(&plain, "2xx")[..2], [4.0; 2], "by hyper");
    plain.ask("GET / HTTP/1.1\r\nHost: unknown.example\r\n\r\n").await;
    assert_eq!(counted(&plain, "4xx")[..2], [1.0; 2], "refused");
    let (slow, _) = bed(&[PLAIN], Duration::from_millis(400)).await;
    slow.ask(&get("/")).await;
    let [requests, count, seconds] = counted(&slow, "2xx");
    assert_eq!((requests, count), (1.0, 1.0), "taken over");
    assert!(seconds >= 0.4, "{seconds}");
}
