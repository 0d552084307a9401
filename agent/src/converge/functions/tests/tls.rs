//! Callers over TLS and without, at one port, and their rights.

use schema::records::Vtep;
use schema::trust::{MaybeTls, Peer, TrustReader};
use tokio_util::task::TaskTracker;

use super::super::caller_policy::rights;
use super::*;
use crate::catalog::Peer as OtherNode;
use crate::http::outgoing;
use crate::http::server::{Channel, Limits, Server};
use crate::testing::connect_with;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn caller(address: &str, is_node: bool, channel: Channel) -> Caller {
    let place = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    let caller = Caller::new(address.parse().unwrap(), is_node, Arc::new(Admitted::new(place, None)), 0);
    Caller { channel, ..caller }
}

/// The channel of a client with this certificate.
fn shows(name: &str) -> Channel {
    Channel::Tls(Some(Arc::new(Peer { identity: name.parse().unwrap(), key: String::new() })))
}

// Would fail with addresses of nodes, or with a certificate that adds to the rights of an address.
#[test]
fn certificates_decide_over_tls_and_addresses_of_pods_without() {
    let address = "192.0.2.8".parse().unwrap();
    let other = OtherNode {
        cidr: "10.244.1.0/24".parse().unwrap(),
        vtep: Vtep { address, mac: "0a:58:0a:f4:01:00".to_owned() },
        address: Some(address),
        absent_since: None,
    };
    let mut catalog = Catalog { own_address: "192.0.2.7".parse().ok(), ..Catalog::default() };
    catalog.peers.insert("n2".to_owned(), other);
    let pods = PodAddresses::from_catalog(&catalog, Some(&subnet("10.244.0.0/24")));
    let may = |address: &str, is_node: bool, channel: Channel| {
        let rights = rights(&caller(address, is_node, channel), &pods);
        [rights.calls_all, rights.sends_heartbeats, rights.awaits_heartbeats]
    };
    assert_eq!(may("127.0.0.1", true, Channel::Plain), [true; 3]);
    for pod in ["10.244.0.5", "10.244.1.5", "::ffff:10.244.1.5"] {
        assert_eq!(may(pod, false, Channel::Plain), [true, true, false], "{pod}");
    }
    for stranger in ["192.0.2.7", "192.0.2.8", "10.244.2.5", "198.51.100.1", "2001:db8::1"] {
        assert_eq!(may(stranger, false, Channel::Plain), [false; 3], "{stranger}");
    }
    for (name, rights) in [
        ("node-n2", [true; 3]),
        ("reconciler-r1", [true; 3]),
        ("user-ada", [true, false, false]),
        ("etcd", [false; 3]),
    ] {
        assert_eq!(may("198.51.100.1", false, shows(name)), rights, "{name}");
        assert_eq!(may("127.0.0.1", true, shows(name)), rights, "{name} on the node");
    }
    assert_eq!(may("127.0.0.1", true, Channel::Tls(None)), [false; 3]);
}

// Would fail with an address of the node: what pods of other nodes send there arrives with their node's address.
#[tokio::test]
async fn heartbeats_go_to_the_bridge_wherever_the_gateway_listens() {
    let standby = functions(record(1));
    let comes_of = |functions: &Functions, caller: &Caller| {
        let slot = functions.register_heartbeats(TOKEN, caller);
        let url = slot.map(|slot| slot.url.to_str().unwrap().to_owned());
        url.map_err(|refused| (refused.status.as_u16(), refused.kind))
    };
    let own = caller("127.0.0.1", true, Channel::Plain);
    let (reconciler, user) = (shows("reconciler-r1"), shows("user-ada"));
    for listen in ["0.0.0.0:8081", "127.0.0.1:8081", "192.0.2.7:8081"] {
        let functions = standby.clone().listening(listen.parse().unwrap());
        let url = format!("http://10.244.0.1:8081/_/heartbeats/{TOKEN}");
        for caller in [&own, &caller("192.0.2.9", false, reconciler.clone())] {
            assert_eq!(comes_of(&functions, caller), Ok(url.clone()), "{listen} {caller:?}");
        }
        for caller in [caller("10.244.0.5", false, Channel::Plain), caller("192.0.2.9", false, user.clone())]
        {
            let refused = (403, "HeartbeatsForbidden");
            assert_eq!(comes_of(&functions, &caller), Err(refused), "{listen} {caller:?}");
        }
    }
    assert_eq!(comes_of(&standby, &own), Err((503, "NoHeartbeats")));
}

/// Starts a gateway that speaks TLS too, to a replica that answers with the body.
async fn speaking_tls(bounds: Limits, trust: TrustReader) -> (SocketAddr, JoinHandle<()>) {
    let SocketAddr::V4(address) = echoes().await else { panic!("no IPv4 address") };
    let replica = Replica { pod: "hello-0".to_owned(), node: "n1".to_owned(), address, start: None };
    let calls = CallLimits {
        timeout_seconds: 60,
        cold_start_timeout_seconds: 60,
        request_body_bytes: 1000,
        response_body_bytes: 1000,
        ..limits()
    };
    let functions = functions(FunctionRecord { replicas: vec![replica], calls, ..record(0) });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (listeners, opened) = mpsc::channel(1);
    listeners.send(listener).await.unwrap();
    let server = Server::new(functions, bounds, TaskTracker::new(), CancellationToken::new());
    (at, tokio::spawn(server.with_tls(Some(trust)).run(opened, CancellationToken::new())))
}

/// Calls the function with these further header lines; returns the status and the response.
async fn call(client: &mut MaybeTls, headers: &str) -> (u16, String) {
    let head =
        format!("POST /default/hello HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}Content-Length: 8\r\n\r\n");
    client.write_all((head + "{\"x\": 1}").as_bytes()).await.unwrap();
    // A small response comes as a whole.
    let mut response = vec![0; 4096];
    let length = client.read(&mut response).await.unwrap();
    let text = String::from_utf8_lossy(&response[..length]).into_owned();
    (text[9..12].parse().unwrap(), text)
}

#[tokio::test]
async fn one_port_serves_certified_callers_and_plain_ones() {
    let authority = TestAuthority::new();
    let (at, serving) = speaking_tls(Limits::default(), authority.reader("node-n1")).await;
    for name in ["node-n2", "reconciler-r1", "user-ada"] {
        let mut client = authority.connect(name, at).await;
        for turn in 0..2 {
            let (status, text) = call(&mut client, "").await;
            assert!(status == 200 && text.ends_with("{\"x\": 1}"), "{name} {turn}: {text}");
        }
    }
    let token = format!("X-Heartbeat-Token: {TOKEN}\r\n");
    let (status, text) = call(&mut authority.connect("user-ada", at).await, &token).await;
    assert!(status == 403 && text.contains("HeartbeatsForbidden"), "{text}");
    let url = format!("http://{at}/default/hello");
    let plain = reqwest::Client::new().post(url).body("{}").send().await.unwrap();
    assert_eq!(plain.status(), 200);
    let nobody = outgoing::to_probed("test", reqwest::redirect::Policy::none()).unwrap();
    let refused = nobody.post(format!("https://{at}/default/hello")).body("{}").send().await.unwrap();
    assert_eq!(refused.status(), 401);
    assert!(refused.text().await.unwrap().contains("CertificateMissing"));
    serving.abort();
}

#[tokio::test]
async fn a_revoked_key_counts_no_more_on_a_connection_that_began_before() {
    let (authority, folder) = (TestAuthority::new(), tempfile::tempdir().unwrap());
    let keeper = authority.keeper("node-n1", folder.path());
    let (at, serving) = speaking_tls(Limits::default(), keeper.reader()).await;
    let own = authority.credentials("node-n2");
    let mut client = connect_with(&own, at).await;
    assert_eq!(call(&mut client, "").await.0, 200);
    let key = own.certificate().public_key().unwrap().fingerprint().unwrap();
    keeper.revoke([(key, Timestamp::MAX)].into()).unwrap();
    assert_eq!(call(&mut client, "").await.0, 401);
    serving.abort();
}

// Would fail with a first byte, or a handshake, that is waited for without end.
#[tokio::test]
async fn a_client_has_the_time_of_one_head_for_its_first_byte_its_handshake_and_its_head() {
    let authority = TestAuthority::new();
    let limits = Limits { head: Duration::from_secs(1), ..Limits::default() };
    let (at, serving) = speaking_tls(limits, authority.reader("node-n1")).await;
    let ended = async |mut client: MaybeTls, sent: &[u8]| {
        client.write_all(sent).await.unwrap();
        let read = tokio::time::timeout(Duration::from_secs(20), client.read(&mut [0; 64])).await;
        assert_eq!(read.expect("in time").unwrap_or_default(), 0, "{sent:?}");
    };
    // The last begins a record with a handshake of 512 bytes.
    let starts: [&[u8]; 5] = [b"", b"P", b"POST / HT", &[22], &[22, 3, 1, 2, 0, 1]];
    for sent in starts {
        let began = Instant::now();
        ended(MaybeTls::Plain(TcpStream::connect(at).await.unwrap()), sent).await;
        assert!(began.elapsed() >= Duration::from_millis(900), "{sent:?}");
    }
    ended(authority.connect("node-n2", at).await, b"POST / HT").await;
    serving.abort();
}
