//! Failing endpoints, misbehaving clients, and the answer that each gets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use super::super::route::Table;
use super::{Bed, add_route, endpoint, field, first_line, get, known, mirror, named, nobody, ok, table};
use crate::http::server::Limits;

// Seen red with a table that a handler loads only once.
#[tokio::test]
async fn every_refusal_has_its_status_and_says_why() {
    let mut catalog = known();
    let paths = json!([{"path": "/shop", "service": "web", "port": 80, "broken": "there is no service web"}]);
    add_route(&mut catalog, "shop", "shop.example", &paths);
    let bed = Bed::start(Limits::default(), Table::from_catalog(&catalog, "n1")).await;
    for (request, status, why) in [
        (get("/shop/1"), "503 service unavailable", "there is no service web"),
        (get("/"), "404 not found", "no path of shop.example matches /"),
        (
            "GET / HTTP/1.1\r\nHost: other.example\r\n\r\n".to_owned(),
            "404 not found",
            "no Dns object has the host other.example",
        ),
        (
            "GET http://other.example/ HTTP/1.1\r\nHost: shop.example\r\n\r\n".to_owned(),
            "404 not found",
            "no Dns object has the host other.example",
        ),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400 bad request", "no Host header"),
        (
            "GET / HTTP/1.1\r\nHost: shop.example\r\nHost: other.example\r\n\r\n".to_owned(),
            "400 bad request",
            "more than one Host header",
        ),
        (
            "CONNECT shop.example:80 HTTP/1.1\r\nHost: shop.example\r\n\r\n".to_owned(),
            "405 method not allowed",
            "does not support CONNECT",
        ),
    ] {
        let answer = bed.ask(&request).await;
        assert_eq!(first_line(&answer), format!("http/1.1 {status}"), "{request}");
        assert!(answer.contains(why), "{request}{answer}");
        assert_eq!(field(&answer, "content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(field(&answer, "server"), None);
    }
    let unknown = Bed::start(Limits::default(), Table::default()).await.ask(&get("/")).await;
    assert!(unknown.contains("503") && unknown.contains("does not know any routes yet"), "{unknown}");
}

#[tokio::test]
async fn who_does_not_take_the_connection_is_replaced_whatever_the_method() {
    let there = mirror().await;
    let bed = Bed::with(&[nobody().await, there]).await;
    for method in ["GET", "POST"] {
        for _ in 0..3 {
            let answer = bed
                .ask(&format!("{method} / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 2\r\n\r\nhi"))
                .await;
            assert_eq!(first_line(&answer), "http/1.1 200 ok");
            assert!(answer.ends_with("\r\n\r\nhi"), "{answer}");
        }
    }
}

#[tokio::test]
async fn when_nobody_takes_the_connection_it_is_a_502_with_the_address() {
    let (one, two) = (nobody().await, nobody().await);
    let answer = Bed::with(&[one, two]).await.ask(&get("/")).await;
    assert_eq!(first_line(&answer), "http/1.1 502 bad gateway");
    let named = |at| answer.contains(&format!("cannot connect to {at}"));
    assert!(named(one) || named(two), "{answer}");
    assert!(answer.contains("refused"), "{answer}");
}

/// Starts an endpoint that reads a request and hangs up; returns its address and its count of requests.
async fn rude() -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let at = endpoint(move |mut wire| {
        let counter = Arc::clone(&counter);
        async move {
            if !wire.head().await.is_empty() {
                counter.fetch_add(1, Ordering::SeqCst);
            }
        }
    })
    .await;
    (at, asked)
}

#[tokio::test]
async fn what_may_have_been_done_is_done_again_only_if_that_is_the_same() {
    let (at, asked) = rude().await;
    let bed = Bed::with(&[at]).await;
    for (request, times) in [
        (get("/"), 2),
        ("POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 0\r\n\r\n".to_owned(), 1),
        ("PUT / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 2\r\n\r\nhi".to_owned(), 1),
    ] {
        asked.store(0, Ordering::SeqCst);
        let answer = bed.ask(&request).await;
        assert_eq!(first_line(&answer), "http/1.1 502 bad gateway", "{request}");
        assert_eq!(asked.load(Ordering::SeqCst), times, "{request}");
    }
}

#[tokio::test]
async fn a_connection_that_was_closed_while_it_was_kept_costs_no_request() {
    let at = endpoint(|mut wire| async move {
        // Answers one request; the second finds the connection closed.
        wire.message().await;
        wire.send(&ok("hello")).await;
        wire.message().await;
    })
    .await;
    let bed = Bed::with(&[at]).await;
    for _ in 0..20 {
        assert!(bed.ask(&get("/")).await.ends_with("hello"));
    }
}

#[tokio::test]
async fn an_endpoint_that_says_nothing_is_a_504_and_a_client_that_does_not_go_on_a_408() {
    let at = endpoint(|mut wire| async move { while wire.more().await {} }).await;
    let limits = Limits { answer: Duration::from_millis(200), ..Limits::default() };
    let bed = Bed::start(limits, table(&[at])).await;
    let answer = bed.ask(&get("/")).await;
    assert_eq!(first_line(&answer), "http/1.1 504 gateway timeout");
    assert!(answer.contains(&format!("{at} did not answer in time")), "{answer}");
    let half = "POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 9\r\n\r\nhalf";
    assert_eq!(first_line(&bed.ask(half).await), "http/1.1 408 request timeout");
}

#[tokio::test]
async fn an_upload_may_take_as_long_as_it_goes_on() {
    let limits = Limits { answer: Duration::from_secs(2), ..Limits::default() };
    let bed = Bed::start(limits, table(&[mirror().await])).await;
    let mut client = bed.client().await;
    client.send("POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 10\r\n\r\n").await;
    for _ in 0..10 {
        client.send("x").await;
        // The pace of a slow client; together more than an answer may take.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(first_line(&client.message().await), "http/1.1 200 ok");
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_not_made_to_look_whole() {
    let at = endpoint(|mut wire| async move {
        wire.message().await;
        wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n").await;
    })
    .await;
    let bed = Bed::with(&[at]).await;
    let mut client = bed.client().await;
    client.send(&get("/")).await;
    client.head().await;
    assert_eq!(client.until("\r\n0\r\n").await, "4\r\nhalf\r\n");
    assert!(client.closes().await);
}

#[tokio::test]
async fn a_client_that_leaves_frees_the_endpoint() {
    let (gone, mut left) = tokio::sync::mpsc::channel::<()>(1);
    let at = endpoint(move |mut wire| {
        let gone = gone.clone();
        async move {
            wire.message().await;
            wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n").await;
            assert!(!wire.more().await);
            gone.send(()).await.unwrap();
        }
    })
    .await;
    let bed = Bed::with(&[at]).await;
    let mut client = bed.client().await;
    client.send(&get("/")).await;
    client.until("1\r\nx\r\n").await;
    drop(client);
    tokio::time::timeout(super::PATIENCE, left.recv()).await.unwrap().unwrap();
}

/// Request smuggled behind another when two programs disagree about where that one ends.
const SMUGGLED: &str = "GET /admin HTTP/1.1\r\nHost: shop.example\r\n\r\n";

#[tokio::test]
async fn no_request_hides_in_another() {
    let seen = Arc::new(std::sync::Mutex::new(Vec::<String>::new()));
    let heads = Arc::clone(&seen);
    let at = endpoint(move |mut wire| {
        let heads = Arc::clone(&heads);
        async move {
            loop {
                let message = wire.message().await;
                if message.is_empty() {
                    return;
                }
                heads.lock().unwrap().push(message);
                wire.send(&ok("hello")).await;
            }
        }
    })
    .await;
    let bed = Bed::with(&[at]).await;
    let length = SMUGGLED.len() + 5;
    let lead = "POST / HTTP/1.1\r\nHost: shop.example\r\n";
    for attempt in [
        format!("{lead}Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{SMUGGLED}"),
        format!("{lead}Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n\r\n0\r\n\r\n{SMUGGLED}"),
        format!("{lead}Content-Length: 0\r\nContent-Length: {length}\r\n\r\n{SMUGGLED}"),
        format!("{lead}Content-Length: +0\r\n\r\n{SMUGGLED}"),
        format!("{lead}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{SMUGGLED}"),
        format!("{lead}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{SMUGGLED}"),
        format!("{lead}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{SMUGGLED}"),
        format!("{lead}Content-Length\n: 0\r\n\r\n{SMUGGLED}"),
        format!("{lead} Folded: x\r\nContent-Length: 0\r\n\r\n{SMUGGLED}"),
        format!("{lead}X: a\rContent-Length: 0\r\n\r\n{SMUGGLED}"),
        format!(
            "POST / HTTP/1.0\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{SMUGGLED}"
        ),
        format!("{lead}Transfer-Encoding: chunked\r\n\r\n0;\n x\r\n\r\n{SMUGGLED}"),
        format!("{lead}Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n{SMUGGLED}"),
    ] {
        let mut client = bed.client().await;
        client.send(&attempt).await;
        let answers = client.until("\u{4}").await;
        // The request is refused or answered once as what it is; then the connection ends.
        assert!(answers.matches("HTTP/1.1 ").count() <= 1, "{attempt:?} gives {answers:?}");
    }
    let seen = seen.lock().unwrap();
    assert!(seen.iter().all(|message| message.starts_with("post / http/1.1\r\n")), "{seen:?}");
    assert!(seen.iter().all(|message| field(message, "content-length").is_none()), "{seen:?}");
}

#[tokio::test]
async fn a_new_table_holds_for_the_next_request_and_drops_none() {
    let (go, wait) = tokio::sync::watch::channel(false);
    let (asked, mut begun) = tokio::sync::mpsc::channel::<()>(1);
    let slow = endpoint(move |mut wire| {
        let (asked, mut wait) = (asked.clone(), wait.clone());
        async move {
            while !wire.message().await.is_empty() {
                asked.send(()).await.unwrap();
                wait.wait_for(|go| *go).await.unwrap();
                wire.send(&ok("slow")).await;
            }
        }
    })
    .await;
    let quick = named("quick").await;
    let bed = Bed::with(&[slow]).await;
    let mut waiting = bed.client().await;
    waiting.send(&get("/")).await;
    begun.recv().await.unwrap();
    bed.tables.send_replace(Arc::new(table(&[quick])));
    let mut client = bed.client().await;
    client.send(&get("/")).await;
    assert!(client.message().await.ends_with("quick"));
    go.send_replace(true);
    assert!(waiting.message().await.ends_with("slow"), "it keeps the table that it began with");
    client.send(&get("/")).await;
    assert!(client.message().await.ends_with("quick"), "the connection goes on");
}
