//! Idle connections to endpoints between two requests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{Bed, PATIENCE, endpoint, get, ok, table};
use crate::http::server::Limits;

/// Starts an endpoint that answers with the number of connections it has accepted, and reports each one that ends.
async fn counting() -> (std::net::SocketAddr, mpsc::Receiver<()>) {
    let (taken, (ended, ends)) = (Arc::new(AtomicUsize::new(0)), mpsc::channel(100));
    let at = endpoint(move |mut wire| {
        let (number, ended) = (taken.fetch_add(1, Ordering::SeqCst) + 1, ended.clone());
        async move {
            while !wire.message().await.is_empty() {
                wire.send(&ok(&number.to_string())).await;
            }
            let _ = ended.send(()).await;
        }
    })
    .await;
    (at, ends)
}

#[tokio::test]
async fn one_connection_serves_requests_of_several_clients_one_after_the_other() {
    let (at, _ends) = counting().await;
    let bed = Bed::with(&[at]).await;
    for _ in 0..5 {
        assert!(bed.ask(&get("/")).await.ends_with("\r\n1"));
    }
}

#[tokio::test]
async fn a_kept_connection_that_the_endpoint_closed_loses_no_request_that_must_not_be_repeated() {
    let (closed, mut closes) = mpsc::channel(1);
    let at = endpoint(move |mut wire| {
        let closed = closed.clone();
        async move {
            wire.message().await;
            wire.send(&ok("hello")).await;
            drop(wire);
            closed.send(()).await.unwrap();
        }
    })
    .await;
    let bed = Bed::with(&[at]).await;
    for _ in 0..20 {
        let answer = bed.ask("POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 2\r\n\r\nhi").await;
        assert!(answer.ends_with("hello"), "{answer}");
        closes.recv().await.unwrap();
    }
}

#[tokio::test]
async fn who_sends_all_before_it_reads_gets_an_answer_that_came_early_and_the_endpoint_gets_all() {
    const LENGTH: usize = 8 << 20;
    let (got, mut gets) = mpsc::channel(1);
    let at = endpoint(move |mut wire| {
        let got = got.clone();
        async move {
            wire.head().await;
            wire.send("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno").await;
            got.send(wire.exactly(LENGTH).await.len()).await.unwrap();
        }
    })
    .await;
    let bed = Bed::with(&[at]).await;
    let mut client = bed.client().await;
    client.send(&format!("POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: {LENGTH}\r\n\r\n")).await;
    client.send(&"x".repeat(LENGTH)).await;
    assert!(client.message().await.ends_with("no"));
    assert_eq!(timeout(PATIENCE, gets.recv()).await.unwrap(), Some(LENGTH));
}

#[tokio::test]
async fn a_connection_that_was_idle_for_too_long_is_not_used() {
    let (at, mut ends) = counting().await;
    let bed = Bed::start(Limits { spare_for: Duration::ZERO, ..Limits::default() }, table(&[at])).await;
    for number in 1..4 {
        assert!(bed.ask(&get("/")).await.ends_with(&format!("\r\n{number}")));
    }
    timeout(PATIENCE, ends.recv()).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_idle_connection_to_an_endpoint_that_no_table_has_is_closed() {
    let (at, mut ends) = counting().await;
    let bed = Bed::with(&[at]).await;
    bed.ask(&get("/")).await;
    bed.proxy.retain(&BTreeSet::from([at]));
    assert!(bed.ask(&get("/")).await.ends_with("\r\n1"), "this one is in the table");
    bed.proxy.retain(&BTreeSet::new());
    timeout(PATIENCE, ends.recv()).await.unwrap().unwrap();
}

/// Names of this process's threads.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_served_by_a_thread_per_core() {
    let (at, _ends) = counting().await;
    let mut bed = Bed::with(&[at]).await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(bed.client().await);
    }
    for _ in 0..20 {
        for client in &mut clients {
            client.send(&get("/")).await;
        }
        for client in &mut clients {
            let answer = client.message().await;
            let number = answer.rsplit("\r\n").next().unwrap().parse::<usize>().unwrap();
            assert!(number <= 8, "{number} connections for eight requests at a time");
        }
    }
    assert!(threads().iter().any(|name| name.starts_with("connections-0")), "{:?}", threads());
    drop(clients);
    bed.shutdown.cancel();
    timeout(PATIENCE, &mut bed.serving).await.unwrap().unwrap();
}
