//! Bodies of calls: their room, their pace, and paths.

use super::*;

// Seen red with a time limit for each part alone.
#[tokio::test(start_paused = true)]
async fn a_body_that_comes_byte_by_byte_is_given_up() {
    let limits = CallLimits { request_body_bytes: 1000, ..limits() };
    let functions = functions(FunctionRecord { calls: limits, ..record(1) });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (listeners, opened) = mpsc::channel(1);
    listeners.send(listener).await.unwrap();
    let serving = tokio::spawn(super::super::serve(functions, opened, None, CancellationToken::new()));
    let head = "POST /default/hello HTTP/1.1\r\nHost: n1\r\nContent-Length: 100\r\n\r\n{";
    client.write_all(head.as_bytes()).await.unwrap();
    let mut said = [0; 12];
    for _ in 0..10 {
        let answered = tokio::time::timeout(Duration::from_secs(8), client.read_exact(&mut said)).await;
        if answered.is_ok() {
            break;
        }
        client.write_all(b" ").await.unwrap();
    }
    assert_eq!(String::from_utf8_lossy(&said), "HTTP/1.1 408");
    serving.abort();
}

/// Starts a gateway with room for so many KiB of bodies, to one replica that answers with the body; returns its address.
async fn with_room(kib: u64) -> (SocketAddr, JoinHandle<()>) {
    let replica = echoes().await;
    let SocketAddr::V4(address) = replica else { panic!("{replica}") };
    let limits = CallLimits {
        timeout_seconds: 60,
        cold_start_timeout_seconds: 60,
        concurrency: 100,
        request_body_bytes: 1 << 20,
        response_body_bytes: 1 << 20,
        ..limits()
    };
    let (pod, node) = ("hello-0".to_owned(), "n1".to_owned());
    let replicas = vec![Replica { pod, node, address, start: None }];
    let functions = functions(FunctionRecord { replicas, calls: limits, ..record(0) });
    let functions = functions.with_budget(Budget::new(kib * 1024));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (listeners, opened) = mpsc::channel(1);
    listeners.send(listener).await.unwrap();
    (at, tokio::spawn(super::super::serve(functions, opened, None, CancellationToken::new())))
}

// Room for the whole Content-Length at once would refuse the last call.
#[tokio::test]
async fn calls_that_announce_bodies_and_send_none_take_no_room() {
    let (at, serving) = with_room(400).await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        let mut client = TcpStream::connect(at).await.unwrap();
        let head = "POST /default/hello HTTP/1.1\r\nHost: n1\r\nContent-Length: 1000000\r\n\r\n{";
        client.write_all(head.as_bytes()).await.unwrap();
        silent.push(client);
    }
    let body = format!("{{\"text\": \"{}\"}}", "x".repeat(150 * 1024));
    let url = format!("http://{at}/default/hello");
    let answer = reqwest::Client::new().post(url).body(body.clone()).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.text().await.unwrap() == body);
    serving.abort();
}

// The limit for the whole body alone would be 60 s.
#[tokio::test(start_paused = true)]
async fn a_body_of_which_nothing_more_comes_is_given_up_after_10_s() {
    let (at, serving) = with_room(400).await;
    let mut client = TcpStream::connect(at).await.unwrap();
    let began = Instant::now();
    let head = "POST /default/hello HTTP/1.1\r\nHost: n1\r\nContent-Length: 100\r\n\r\n{";
    client.write_all(head.as_bytes()).await.unwrap();
    let mut said = String::new();
    tokio::time::timeout(Duration::from_secs(300), client.read_to_string(&mut said)).await.unwrap().unwrap();
    assert!(
        said.starts_with("HTTP/1.1 408 ") && said.contains("no byte of the body arrived for 10 s"),
        "{said}"
    );
    assert_eq!(began.elapsed().as_secs(), 10);
    serving.abort();
}

#[tokio::test]
async fn a_functions_path_is_compared_normalized_and_has_no_dot_segments() {
    let (at, serving) = with_room(400).await;
    let status = async |path: &str| {
        let mut client = TcpStream::connect(at).await.unwrap();
        client.write_all(format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n").as_bytes()).await.unwrap();
        let mut said = [0; 12];
        client.read_exact(&mut said).await.unwrap();
        String::from_utf8_lossy(&said[9..]).into_owned()
    };
    for (path, wanted) in [
        ("/default/hello", "200"),
        ("/default/%68ell%6F", "200"),
        ("/other/../default/hello", "400"),
        ("/default/%2e%2e/default/hello", "400"),
        ("/default%2fhello", "404"),
        ("//default/hello", "404"),
    ] {
        assert_eq!(status(path).await, wanted, "{path}");
    }
    serving.abort();
}

// Seen red with a quarter smaller than a body: the one that has the kept quarter gets no further.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_and_answers_of_many_calls_pass_through_the_room_of_a_few() {
    let (at, serving) = with_room(200).await;
    let url = format!("http://{at}/default/hello");
    let client = reqwest::Client::new();
    let body = format!("{{\"text\": \"{}\"}}", "x".repeat(40 * 1024));
    let asked = (0..10).map(|_| {
        let asked = client.post(&url).body(body.clone()).send();
        async { asked.await.unwrap().text().await.unwrap() }
    });
    for answer in futures::future::join_all(asked).await {
        assert!(answer == body, "{}", &answer[..answer.len().min(200)]);
    }
    let big = client.post(&url).body(body.repeat(4)).send().await.unwrap();
    assert_eq!(big.status(), 503, "there never is so much room");
    assert_eq!(big.headers()["retry-after"], "1");
    assert!(big.text().await.unwrap().contains("GatewayFull"));
    // On another connection, because the rejected body may have ended that one.
    let counted = reqwest::get(&url).await.unwrap().json::<serde_json::Value>().await.unwrap();
    let counted = &counted["here"]["calls"];
    assert_eq!(counted["answers"], serde_json::json!({"200": 10, "503": 1}), "{counted}");
    serving.abort();
}
