//! Requests and answers that pass through the gateway, as the other side receives them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Mutex, mpsc};

use super::{Bed, DATE, Wire, endpoint, field, first_line, get, mirror, ok};

// Seen red with a client that keeps no connections (`pool_max_idle_per_host(0)`).
#[tokio::test]
async fn both_sides_keep_their_connection() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connections);
    let at = endpoint(move |mut wire| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move {
            while !wire.message().await.is_empty() {
                wire.send(&ok("hello")).await;
            }
        }
    })
    .await;
    let bed = Bed::with(&[at]).await;
    let mut client = bed.client().await;
    for _ in 0..5 {
        client.send(&get("/")).await;
        assert!(client.message().await.ends_with("hello"));
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

// Seen red with a rewrite that drops the query, and without `headers::to_endpoint`.
#[tokio::test]
async fn a_request_arrives_as_it_was_but_for_what_a_proxy_does() {
    let bed = Bed::with(&[mirror().await]).await;
    let request = "DELETE /a%20b//%7Ec/%2f?x=1/../2&y=%2F HTTP/1.1\r\nHost: Shop.example:8080\r\nConnection: x-hop\r\n\
                   X-Hop: 1\r\nX-Forwarded-For: 192.0.2.1\r\nCookie: a=b\r\n\r\n";
    let seen = bed.ask(request).await;
    let seen = seen.split_once("\r\n\r\n").unwrap().1;
    assert_eq!(first_line(seen), "delete /a%20b//%7ec/%2f?x=1/../2&y=%2f http/1.1");
    assert_eq!(field(seen, "host"), Some("shop.example:8080"));
    assert_eq!(field(seen, "x-forwarded-for"), Some("192.0.2.1, 127.0.0.1"));
    assert_eq!(field(seen, "x-real-ip"), Some("127.0.0.1"));
    assert_eq!(field(seen, "x-forwarded-proto"), Some("http"));
    assert_eq!(field(seen, "x-forwarded-host"), Some("shop.example:8080"));
    assert_eq!(field(seen, "cookie"), Some("a=b"));
    assert_eq!((field(seen, "x-hop"), field(seen, "connection")), (None, None));
}

#[tokio::test]
async fn an_answer_arrives_as_it_was_and_nobody_signs_it() {
    let at = endpoint(|mut wire| async move {
        wire.message().await;
        wire.send(
            "HTTP/1.1 418 Short And Stout\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nConnection: x-hop\r\n\
             X-Hop: 1\r\nContent-Length: 3\r\n\r\ntea",
        )
        .await;
    })
    .await;
    let answer = Bed::with(&[at]).await.ask(&get("/")).await;
    assert_eq!(first_line(&answer), "http/1.1 418 short and stout");
    assert!(answer.contains("set-cookie: a=1\r\nset-cookie: b=2\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\ntea"));
    assert_eq!((field(&answer, "x-hop"), field(&answer, "server")), (None, None));
}

#[tokio::test]
async fn the_length_of_what_head_does_not_send_is_reported() {
    let at = endpoint(|mut wire| async move {
        while !wire.head().await.is_empty() {
            wire.send("HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n").await;
        }
    })
    .await;
    let bed = Bed::with(&[at]).await;
    let mut client = bed.client().await;
    for _ in 0..2 {
        client.send("HEAD / HTTP/1.1\r\nHost: shop.example\r\n\r\n").await;
        assert_eq!(field(&client.head().await, "content-length"), Some("1234"));
    }
}

#[tokio::test]
async fn each_side_sees_the_first_chunk_before_the_other_has_sent_the_last() {
    let at = endpoint(|mut wire| async move {
        wire.head().await;
        assert_eq!(wire.until("one\r\n").await, "3\r\none\r\n");
        wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n").await;
        assert_eq!(wire.until("0\r\n\r\n").await, "3\r\ntwo\r\n0\r\n\r\n");
        wire.send("4\r\nlast\r\n0\r\n\r\n").await;
    })
    .await;
    let bed = Bed::with(&[at]).await;
    let mut client = bed.client().await;
    client
        .send("POST / HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        .await;
    assert_eq!(first_line(&client.head().await), "http/1.1 200 ok");
    assert_eq!(client.until("first\r\n").await, "5\r\nfirst\r\n");
    client.send("3\r\ntwo\r\n0\r\n\r\n").await;
    assert_eq!(client.until("0\r\n\r\n").await, "4\r\nlast\r\n0\r\n\r\n");
}

// Seen red with a connection that wakes no task while the next piece of an answer is pending, and with a plain answer
// that is awaited without limit.
#[tokio::test]
async fn each_piece_of_an_answer_passes_before_the_next_is_sent() {
    let (next, pieces) = mpsc::channel(1);
    let pieces = Arc::new(Mutex::new(pieces));
    let at = endpoint(move |mut wire| {
        let pieces = Arc::clone(&pieces);
        async move {
            wire.head().await;
            wire.send(&format!("HTTP/1.1 200 OK\r\n{DATE}\r\nContent-Length: 4\r\n\r\n")).await;
            while let Some(piece) = pieces.lock().await.recv().await {
                wire.send(piece).await;
            }
        }
    })
    .await;
    let bed = Bed::with(&[at]).await;
    let mut client = bed.client().await;
    client.send(&get("/")).await;
    assert_eq!(first_line(&client.head().await), "http/1.1 200 ok");
    for piece in ["a", "b", "cd"] {
        next.send(piece).await.unwrap();
        assert_eq!(client.exactly(piece.len()).await, piece);
    }
}

#[tokio::test]
async fn trailers_pass_both_ways_also_behind_the_body_of_a_get() {
    let at = endpoint(|mut wire| async move {
        let head = wire.head().await;
        assert_eq!(field(&head, "te"), Some("trailers"), "{head}");
        let body = wire.until("\r\n\r\n").await;
        assert_eq!(body.to_ascii_lowercase(), "2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n");
        wire.send(
            "HTTP/1.1 200 OK\r\nTrailer: X-Answer\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbye\r\n0\r\n\
             X-Answer: 42\r\n\r\n",
        )
        .await;
    })
    .await;
    let bed = Bed::with(&[at]).await;
    let mut client = bed.client().await;
    client
        .send(
            "GET / HTTP/1.1\r\nHost: shop.example\r\nTE: trailers\r\nTrailer: X-Sum\r\n\
             Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 7\r\n\r\n",
        )
        .await;
    client.head().await;
    let body = client.until("\r\n\r\n").await;
    assert_eq!(body.to_ascii_lowercase(), "3\r\nbye\r\n0\r\nx-answer: 42\r\n\r\n");
}

#[tokio::test]
async fn a_client_that_waits_for_100_continue_gets_it() {
    let bed = Bed::with(&[mirror().await]).await;
    let mut client = bed.client().await;
    client
        .send("PUT / HTTP/1.1\r\nHost: shop.example\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        .await;
    assert_eq!(first_line(&client.head().await), "http/1.1 100 continue");
    client.send("body").await;
    let answer = client.message().await;
    assert_eq!(first_line(&answer), "http/1.1 200 ok");
    assert!(answer.ends_with("\r\n\r\nbody"), "{answer}");
}

#[tokio::test]
async fn an_old_client_gets_a_body_that_ends_with_the_connection() {
    let at = endpoint(|mut wire| async move {
        assert_eq!(first_line(&wire.message().await), "get / http/1.1");
        wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nold\r\n0\r\n\r\n").await;
    })
    .await;
    let bed = Bed::with(&[at]).await;
    let mut client = bed.client().await;
    client.send("GET / HTTP/1.0\r\nHost: shop.example\r\n\r\n").await;
    let head = client.head().await;
    assert_eq!(field(&head, "transfer-encoding"), None, "{head}");
    assert_eq!(client.until("old").await, "old");
    assert!(client.closes().await);
}

#[tokio::test]
async fn a_web_socket_is_a_tunnel_that_may_rest_longer_than_a_connection() {
    let at = endpoint(|mut wire| async move {
        let head = wire.head().await;
        assert_eq!(
            (field(&head, "upgrade"), field(&head, "connection")),
            (Some("websocket"), Some("upgrade"))
        );
        wire.send(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\nwelcome",
        )
        .await;
        while wire.more().await {
            let echo = std::mem::take(&mut wire.buffer);
            wire.stream.write_all(&echo).await.unwrap();
        }
    })
    .await;
    let limits = super::Limits { idle: std::time::Duration::from_millis(100), ..Default::default() };
    let bed = Bed::start(limits, super::table(&[at])).await;
    let mut client = bed.client().await;
    client
        .send(
            "GET /chat HTTP/1.1\r\nHost: shop.example\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
        .await;
    let head = client.head().await;
    assert_eq!(first_line(&head), "http/1.1 101 switching protocols");
    assert_eq!(field(&head, "sec-websocket-accept"), Some("s3pplmbitxaq9kygzzhzrbk+xoo="));
    assert_eq!(client.exactly(7).await, "welcome");
    // Longer than a connection may stay idle: there is no event to wait for.
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    for text in ["ping", "\u{1}\u{0}frame", "end"] {
        client.send(text).await;
        assert_eq!(client.exactly(text.len()).await, text);
    }
    client.stream.shutdown().await.unwrap();
    assert!(client.closes().await, "the end of one side ends the other");
}

/// Size of a block; each block carries its number.
const BLOCK: usize = 1 << 16;
const BLOCKS: usize = 1600;

/// Sends blocks until the other side accepts none for a while. Returns their number.
async fn pour(wire: &mut Wire) -> usize {
    for number in 0..BLOCKS {
        let block = vec![u8::try_from(number % 251).unwrap(); BLOCK];
        match tokio::time::timeout(std::time::Duration::from_secs(1), wire.stream.write_all(&block)).await {
            Ok(written) => written.unwrap(),
            Err(_) => return number,
        }
    }
    BLOCKS
}

fn post_of_100_mib() -> String {
    format!("POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: {}\r\n\r\n", BLOCK * BLOCKS)
}

#[tokio::test]
async fn a_hundred_mebibytes_pass_both_ways_at_once() {
    let at = endpoint(|mut wire| async move {
        wire.head().await;
        wire.send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", BLOCK * BLOCKS)).await;
        let mut left = BLOCK * BLOCKS;
        let early = std::mem::take(&mut wire.buffer);
        left -= early.len();
        wire.stream.write_all(&early).await.unwrap();
        let mut block = vec![0; BLOCK];
        while left > 0 {
            let read = wire.stream.read(&mut block).await.unwrap();
            wire.stream.write_all(&block[..read]).await.unwrap();
            left -= read;
        }
    })
    .await;
    let bed = Bed::with(&[at]).await;
    let Wire { stream, .. } = bed.client().await;
    let (mut reading, mut writing) = stream.into_split();
    let sending = tokio::spawn(async move {
        writing.write_all(post_of_100_mib().as_bytes()).await.unwrap();
        for number in 0..BLOCKS {
            let block = vec![u8::try_from(number % 251).unwrap(); BLOCK];
            writing.write_all(&block).await.unwrap();
        }
        writing
    });
    let receiving = async {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(reading.read_u8().await.unwrap());
        }
        let mut block = vec![0; BLOCK];
        for number in 0..BLOCKS {
            reading.read_exact(&mut block).await.unwrap();
            let wanted = u8::try_from(number % 251).unwrap();
            assert!(block.iter().all(|byte| *byte == wanted), "block {number}");
        }
        sending.await.unwrap();
    };
    tokio::time::timeout(super::PATIENCE * 3, receiving).await.unwrap();
}

#[tokio::test]
async fn what_the_endpoint_does_not_take_is_not_taken_from_the_client() {
    let (taken, mut wanted) = mpsc::channel::<Wire>(1);
    let at = endpoint(move |mut wire| {
        let taken = taken.clone();
        async move {
            wire.head().await;
            taken.send(wire).await.unwrap();
        }
    })
    .await;
    let bed = Bed::with(&[at]).await;
    let mut client = bed.client().await;
    client.send(&post_of_100_mib()).await;
    let sent = (pour(&mut client).await * BLOCK) >> 20;
    // The kernel's buffers of two connections hold 4 to 6 MiB each; the gateway's own are below 1 MiB.
    assert!(sent < 48, "{sent} MiB were taken");
    drop(wanted.recv().await);
}
