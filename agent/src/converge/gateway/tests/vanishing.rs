//! Endpoints whose packets vanish, like those of a node that lost power, in the test's own network namespaces; and
//! endpoints that are only slow, which must not be mistaken for them.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::{Bed, endpoint, first_line, get, ok, serve_at, server, table};
use crate::http::server::Limits;
use crate::testing::{TestNamespace, in_pod, inside};

const POST: &str = "POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 2\r\n\r\nhi";

/// Longer than the gateway waits for an endpoint that gives no sign of life.
const SLOW: Duration = Duration::from_secs(7);

/// Two machines, each with its own link to the gateway's namespace.
struct Machines {
    namespace: TestNamespace,
    pods: [i32; 2],
}

impl Machines {
    fn new() -> Self {
        let mut namespace = TestNamespace::new();
        let pods = [namespace.pod(), namespace.pod()];
        for (number, pid) in pods.iter().enumerate() {
            let (link, pid) = (format!("v{number}"), pid.to_string());
            namespace
                .run("ip", &["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &pid]);
            namespace.run("ip", &["addr", "add", &format!("10.9.{number}.1/24"), "dev", &link]);
            namespace.run("ip", &["link", "set", &link, "up"]);
        }
        for (number, pid) in pods.iter().enumerate() {
            let address = format!("10.9.{number}.2/24");
            for arguments in
                [["addr", "add", &address, "dev", "eth0"].as_slice(), &["link", "set", "eth0", "up"]]
            {
                assert!(in_pod(*pid, "ip", arguments).0);
            }
        }
        Self { namespace, pods }
    }

    /// Runs `work` in the gateway's namespace.
    fn run(&mut self, work: impl AsyncFnOnce([i32; 2]) + Send) {
        let pods = self.pods;
        let talk = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(work(pods));
            Ok(())
        };
        inside(self.namespace.process(), talk).unwrap();
    }
}

fn address(number: usize) -> SocketAddr {
    format!("10.9.{number}.2:80").parse().unwrap()
}

/// Listens on port 80 of a machine.
fn port(pid: i32) -> TcpListener {
    let listener = inside(pid, || std::net::TcpListener::bind("0.0.0.0:80")).unwrap();
    listener.set_nonblocking(true).unwrap();
    TcpListener::from_std(listener).unwrap()
}

/// Answers every request with the machine's name.
fn serve_named(pid: i32, name: &'static str) {
    serve_at(port(pid), move |mut wire| async move {
        while !wire.message().await.is_empty() {
            wire.send(&ok(name)).await;
        }
    });
}

async fn bed(endpoints: &[SocketAddr]) -> Bed {
    let listener = server::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    Bed::at(listener, Limits::default(), table(endpoints)).await
}

/// Drops every packet to and from the machine from now on.
fn vanish(pid: i32) {
    for chain in ["INPUT", "OUTPUT"] {
        assert!(in_pod(pid, "iptables", &["-I", chain, "-j", "DROP"]).0);
    }
}

// Seen red without `set_tcp_user_timeout`: the client waits in vain for 20 s.
#[test]
fn requests_on_kept_connections_to_a_machine_that_is_gone_go_elsewhere_soon() {
    Machines::new().run(async |[one, two]| {
        serve_named(one, "one");
        serve_named(two, "two");
        let bed = bed(&[address(0), address(1)]).await;
        let mut names = Vec::new();
        for _ in 0..4 {
            let answer = bed.ask(&get("/")).await;
            names.push(answer.lines().last().unwrap_or_default().to_owned());
        }
        names.sort();
        assert_eq!(names, ["one", "one", "two", "two"], "both have a connection that is kept");
        vanish(one);
        for _ in 0..6 {
            let answer = bed.ask(&get("/")).await;
            assert!(answer.ends_with("two"), "{answer}");
        }
    });
}

// Seen red with all requests on patient connections.
#[test]
fn what_may_have_been_done_by_a_machine_that_is_gone_is_a_502_soon() {
    Machines::new().run(async |[one, _]| {
        serve_named(one, "one");
        let bed = bed(&[address(0)]).await;
        assert!(bed.ask(POST).await.ends_with("one"));
        vanish(one);
        let answer = bed.ask(POST).await;
        assert_eq!(first_line(&answer), "http/1.1 502 bad gateway");
        assert!(answer.contains("10.9.0.2:80 did not answer"), "{answer}");
    });
}

// Seen red with the keepalive of `idle`: everything sent has been acknowledged.
#[test]
fn a_machine_that_goes_after_it_took_the_request_is_not_waited_for() {
    Machines::new().run(async |[one, two]| {
        let (took, mut taken) = mpsc::channel(1);
        serve_at(port(one), move |mut wire| {
            let took = took.clone();
            async move {
                wire.message().await;
                took.send(()).await.unwrap();
                std::future::pending::<()>().await;
            }
        });
        serve_named(two, "two");
        let bed = bed(&[address(0)]).await;
        let mut client = bed.client().await;
        bed.tables.send_replace(std::sync::Arc::new(table(&[address(0), address(1)])));
        // One of the two requests goes to the machine that vanishes.
        let mut other = bed.client().await;
        client.send(&get("/")).await;
        other.send(&get("/")).await;
        taken.recv().await.unwrap();
        vanish(one);
        assert!(client.message().await.ends_with("two"));
        assert!(other.message().await.ends_with("two"));
    });
}

// Seen red with large bodies on watched connections: the endpoint's kernel has no room for 7 s.
#[tokio::test]
async fn who_is_only_slow_gets_its_time() {
    let slow = endpoint(|mut wire| async move {
        wire.message().await;
        // The pace of a slow endpoint; nothing is awaited.
        tokio::time::sleep(SLOW).await;
        wire.send(&ok("slow")).await;
    })
    .await;
    let full = endpoint(|mut wire| async move {
        // The endpoint reads nothing for that long.
        tokio::time::sleep(SLOW).await;
        wire.message().await;
        wire.send(&ok("full")).await;
    })
    .await;
    let (one, two) = (Bed::with(&[slow]).await, Bed::with(&[full]).await);
    let length = 8 << 20;
    let lead = format!("POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: {length}\r\n\r\n");
    let large = lead + &"x".repeat(length);
    let request = get("/");
    let (first, second) = tokio::join!(one.ask(&request), two.ask(&large));
    assert!(first.ends_with("slow"), "{first}");
    assert!(second.ends_with("full"), "{second}");
}
