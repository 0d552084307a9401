//! Real packets through real rules, in the test's own network namespaces: a node, its pods, and a neighbor of the
//! node
//! that stands for the world outside.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use schema::control::{Loop as _, Observation, Plan as _};
use schema::kinds::pod::{HostPortStatus, Protocol};
use schema::meta::NamespacedName;
use schema::records::Subnet;
use schema::testing::subnet;
use tokio::sync::watch;

use super::super::{NetworkLoop, NetworkSettings, Vxlan};
use super::network_loop;
use crate::converge::shared::node_network::{PodNet, PodTable};
use crate::testing::{TestNamespace, advertise_router, in_pod, inside};
use crate::worlds::iptables::{Iptables as _, RealIptables};
use crate::worlds::netlink::{Netlink as _, PodLink, RealNetlink, host_link_name};

const WAIT: Duration = Duration::from_secs(2);

struct Node {
    namespace: TestNamespace,
    netlink: Arc<RealNetlink>,
    iptables: Arc<RealIptables>,
    network: NetworkLoop,
    tables: watch::Sender<PodTable>,
    _subnets: watch::Sender<Option<Subnet>>,
    /// Process in the neighbor's network namespace.
    outside: i32,
}

impl Node {
    /// Creates a node at 192.0.2.1 whose FORWARD drops, as Docker leaves it, and a neighbor at 192.0.2.2.
    async fn new() -> Self {
        let mut namespace = TestNamespace::new();
        let outside = namespace.pod();
        namespace.run(
            "ip",
            &["link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", &outside.to_string()],
        );
        namespace.run("ip", &["addr", "add", "192.0.2.1/24", "dev", "up0"]);
        namespace.run("ip", &["link", "set", "up0", "up"]);
        for arguments in
            [["addr", "add", "192.0.2.2/24", "dev", "eth0"].as_slice(), &["link", "set", "eth0", "up"]]
        {
            in_pod(outside, "ip", arguments);
        }
        namespace.run("iptables", &["-P", "FORWARD", "DROP"]);
        let netlink = Arc::new(RealNetlink::open_at("mk8s", &namespace.path()).unwrap());
        let iptables = Arc::new(RealIptables::at(namespace.path()));
        let cidr = subnet("10.244.3.0/24");
        let (subnets, subnet) = watch::channel(Some(cidr));
        let (tables, table) = watch::channel::<PodTable>(Some(Arc::default()));
        let settings = NetworkSettings::new("mk8s", 1450);
        let network = network_loop(settings, netlink.clone(), iptables.clone(), subnet, table);
        Self { namespace, netlink, iptables, network, tables, _subnets: subnets, outside }
    }

    /// Runs the loop once; true if there was something to do.
    async fn converge(&mut self) -> bool {
        let Observation::Ready(observed) = self.network.observe().await.unwrap() else { panic!("ready") };
        let plan = NetworkLoop::plan(&observed, jiff::Timestamp::now());
        let acts = !plan.is_empty();
        let outcome = self.network.act(&observed, plan).await;
        self.network.report(observed, outcome).await.unwrap();
        acts
    }

    /// Runs the loop until there is something to do: the next read waits for a multiple of the time that the last
    /// took.
    async fn heals(&mut self) -> bool {
        let acts = async {
            while !self.converge().await {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), acts).await.is_ok()
    }

    /// Creates a pod whose address ends with this number.
    async fn pod(&mut self, number: u8) -> i32 {
        let pid = self.namespace.pod();
        let link = PodLink {
            pause_pid: pid,
            pause_id: None,
            host_name: host_link_name("mk8s", &number.to_string()),
            bridge: "mk8s0".into(),
            address: format!("10.244.3.{number}/24").parse().unwrap(),
            gateway: "10.244.3.1".parse().unwrap(),
            mtu: 1450,
        };
        self.netlink.ensure_pod_link(&link).await.unwrap();
        pid
    }

    /// Directs these ports of the node to port 80 of these pods.
    fn publish(&self, ports: &[(Protocol, u16, u8)]) {
        self.publish_at(None, ports);
    }

    /// [`Self::publish`] at only one address of the node.
    fn publish_at(&self, address: Option<&str>, ports: &[(Protocol, u16, u8)]) {
        let host_ip = address.map(|address| address.parse().unwrap());
        let net = |(protocol, port, number): &(Protocol, u16, u8)| {
            let uid = number.to_string();
            let (host_port, protocol) = (*port, *protocol);
            let port = HostPortStatus { host_port, host_ip, container_port: 80, protocol };
            let address = format!("10.244.3.{number}").parse().unwrap();
            let pod = NamespacedName::new("default", format!("pod{number}"));
            (uid.clone(), PodNet { pod, uid, address, is_function: false, ports: vec![port] })
        };
        self.tables.send_replace(Some(Arc::new(ports.iter().map(net).collect())));
    }
}

/// Answers every connection to port 80 of the pod with the client's address, until the test ends.
fn serve_tcp(pid: i32) {
    serve_at(pid, 80);
}

/// [`serve_tcp`] at this port.
fn serve_at(pid: i32, port: u16) {
    let listener = inside(pid, || TcpListener::bind(("0.0.0.0", port))).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, from)) = listener.accept() {
            let _ = stream.write_all(from.ip().to_string().as_bytes());
        }
    });
}

/// Returns the answer of the server at `target` to a client in the network namespace of `pid`.
fn ask_tcp(pid: i32, target: &str) -> Result<String, String> {
    let target: SocketAddr = target.parse().unwrap();
    let talk = || {
        let mut stream = TcpStream::connect_timeout(&target, WAIT)?;
        stream.set_read_timeout(Some(WAIT))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    inside(pid, talk).map_err(|error| error.to_string())
}

/// Id of a process in the node's own network namespace.
fn own(node: &mut Node) -> i32 {
    node.namespace.process()
}

#[tokio::test]
async fn pods_reach_the_outside_with_the_nodes_address_and_each_other_with_their_own() {
    let mut node = Node::new().await;
    assert!(node.converge().await);
    assert!(!node.converge().await, "what is right is left alone");
    let (a, b) = (node.pod(2).await, node.pod(3).await);
    serve_tcp(node.outside);
    serve_tcp(b);
    assert_eq!(ask_tcp(a, "192.0.2.2:80"), Ok("192.0.2.1".into()), "masqueraded");
    assert_eq!(ask_tcp(a, "10.244.3.3:80"), Ok("10.244.3.2".into()), "not masqueraded");
    let own = own(&mut node);
    assert_eq!(ask_tcp(own, "10.244.3.3:80"), Ok("10.244.3.1".into()), "from the node");
}

// Would fail with an address that is no part of the rule.
#[tokio::test]
async fn a_host_port_at_one_address_does_not_answer_at_another() {
    let mut node = Node::new().await;
    node.converge().await;
    let (server, other) = (node.pod(2).await, node.pod(3).await);
    serve_tcp(server);
    let own = own(&mut node);
    for (address, answers) in
        [("192.0.2.1", [true, true, false, false]), ("127.0.0.1", [false, false, false, true])]
    {
        node.publish_at(Some(address), &[(Protocol::Tcp, 8080, 2)]);
        assert!(node.converge().await);
        assert!(!node.converge().await, "iptables prints the rule as it was written");
        let clients = [
            (node.outside, "192.0.2.1:8080"),
            (other, "192.0.2.1:8080"),
            (other, "10.244.3.1:8080"),
            (own, "127.0.0.1:8080"),
        ];
        assert_eq!(clients.map(|(pid, target)| ask_tcp(pid, target).is_ok()), answers, "at {address}");
    }
}

// Seen red with clients of the same node masqueraded in both cases, and without the rule for a pod that connects to
// itself.
#[tokio::test]
async fn a_host_port_answers_from_everywhere() {
    for bridged_frames in ["0", "1"] {
        let mut node = Node::new().await;
        // With 1, as Docker sets it, frames within the bridge also pass the rules.
        node.namespace
            .run("sysctl", &["-w", &format!("net.bridge.bridge-nf-call-iptables={bridged_frames}")]);
        node.converge().await;
        let (server, other) = (node.pod(2).await, node.pod(3).await);
        serve_tcp(server);
        node.publish(&[(Protocol::Tcp, 8080, 2)]);
        assert!(node.converge().await);
        let own = own(&mut node);
        for (what, pid, target) in [
            ("a neighbour", node.outside, "192.0.2.1:8080"),
            ("the node by its address", own, "192.0.2.1:8080"),
            ("the node by loopback", own, "127.0.0.1:8080"),
            ("another pod", other, "192.0.2.1:8080"),
            ("another pod by the gateway", other, "10.244.3.1:8080"),
            ("the pod itself", server, "192.0.2.1:8080"),
        ] {
            let answer = ask_tcp(pid, target);
            assert!(answer.is_ok(), "{what} gets {answer:?} with bridge-nf-call-iptables={bridged_frames}");
        }
        let seen = if bridged_frames == "1" { "10.244.3.3" } else { "10.244.3.1" };
        assert_eq!(ask_tcp(other, "192.0.2.1:8080"), Ok(seen.into()), "another pod's address");
        assert_eq!(ask_tcp(server, "192.0.2.1:8080"), Ok("10.244.3.1".into()), "the pod itself");
        assert_eq!(
            ask_tcp(node.outside, "192.0.2.1:8080"),
            Ok("192.0.2.2".into()),
            "the client's own address"
        );
        node.publish(&[]);
        assert!(node.converge().await);
        assert!(ask_tcp(node.outside, "192.0.2.1:8080").is_err());
    }
}

// Would fail without the rules: with the reverse path open, as here, the neighbor is answered as a pod.
#[tokio::test]
async fn nobody_outside_calls_functions_or_hosts_from_an_address_of_a_pod() {
    let mut node = Node::new().await;
    node.converge().await;
    let pod = node.pod(2).await;
    let own = own(&mut node);
    for port in [80, 8081, 8082] {
        serve_at(own, port);
    }
    // An address of another node's pods, to which the node would answer.
    node.namespace.run("ip", &["route", "add", "10.244.9.9/32", "via", "192.0.2.2"]);
    for arguments in [
        ["addr", "add", "10.244.9.9/32", "dev", "eth0"].as_slice(),
        &["route", "add", "10.244.3.1/32", "via", "192.0.2.1", "src", "10.244.9.9"],
        &["route", "add", "10.96.0.11/32", "via", "192.0.2.1", "src", "10.244.9.9"],
    ] {
        assert!(in_pod(node.outside, "ip", arguments).0, "{arguments:?}");
    }
    assert_eq!(ask_tcp(node.outside, "10.244.3.1:8082"), Ok("10.244.9.9".into()), "another port");
    assert!(ask_tcp(node.outside, "10.244.3.1:8081").is_err());
    assert!(ask_tcp(node.outside, "10.96.0.11:80").is_err());
    assert_eq!(ask_tcp(node.outside, "192.0.2.1:8081"), Ok("192.0.2.2".into()), "by its own address");
    for target in ["10.244.3.1:8081", "192.0.2.1:8081", "10.96.0.11:80"] {
        assert_eq!(ask_tcp(pod, target), Ok("10.244.3.2".into()), "a pod at {target}");
        assert!(ask_tcp(own, target).is_ok(), "the node at {target}");
    }
}

#[tokio::test]
async fn no_pod_reaches_the_nodes_loopback() {
    let mut node = Node::new().await;
    node.converge().await;
    let pod = node.pod(2).await;
    let own = own(&mut node);
    let secret = inside(own, || UdpSocket::bind("127.0.0.1:7777")).unwrap();
    secret.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    // The pod sends to 127.0.0.1 through the bridge.
    for (name, value) in [("conf.all.route_localnet", "1"), ("conf.eth0.route_localnet", "1")] {
        assert!(in_pod(pod, "sysctl", &["-w", &format!("net.ipv4.{name}={value}")]).0);
    }
    for arguments in [
        ["route", "del", "local", "127.0.0.0/8", "table", "local"].as_slice(),
        &["route", "del", "local", "127.0.0.1", "table", "local"],
        &["route", "add", "127.0.0.1", "via", "10.244.3.1", "src", "10.244.3.2"],
    ] {
        in_pod(pod, "ip", arguments);
    }
    let send = || {
        let socket = UdpSocket::bind("10.244.3.2:0")?;
        socket.send_to(b"let me in", "127.0.0.1:7777")
    };
    inside(pod, send).unwrap();
    let mut buffer = [0; 32];
    assert!(secret.recv(&mut buffer).is_err(), "a packet from a pod reached the node's loopback");
    // Without the guard the same packet gets through, so it is as harmful as intended.
    node.namespace.run("iptables", &["-F", "MK8S-INPUT"]);
    inside(pod, send).unwrap();
    assert!(secret.recv(&mut buffer).is_ok(), "the test's packet does not test anything");
}

#[tokio::test]
async fn who_routes_to_the_pods_from_outside_does_not_reach_a_function_past_the_gateway() {
    let mut node = Node::new().await;
    let function = |number: u8, is_function| {
        let (uid, address) = (number.to_string(), [10, 244, 3, number].into());
        let pod = NamespacedName::new("default", format!("pod{number}"));
        (uid.clone(), PodNet { pod, uid, address, is_function, ports: Vec::new() })
    };
    node.tables.send_replace(Some(Arc::new([function(2, true), function(3, false)].into())));
    node.converge().await;
    let (replica, other) = (node.pod(2).await, node.pod(3).await);
    for pod in [replica, other] {
        serve_tcp(pod);
        let listener = inside(pod, || TcpListener::bind("0.0.0.0:8080")).unwrap();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let _ = stream.write_all(b"called");
            }
        });
    }
    in_pod(node.outside, "ip", &["route", "add", "10.244.3.0/24", "via", "192.0.2.1"]);
    let own = own(&mut node);
    for (from, to, reached) in [
        (node.outside, "10.244.3.2:8080", false),
        (node.outside, "10.244.3.2:80", true),
        (node.outside, "10.244.3.3:8080", true),
        (other, "10.244.3.2:8080", true),
        (own, "10.244.3.2:8080", true),
    ] {
        assert_eq!(ask_tcp(from, to).is_ok(), reached, "{to} from {from}");
    }
}

/// Answers requests to the cluster's DNS address in the namespace of `pid`, over UDP and TCP, until the test ends.
fn serve_dns(pid: i32) {
    let socket = inside(pid, || UdpSocket::bind("10.96.0.10:53")).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(b"here", from);
        }
    });
    let listener = inside(pid, || TcpListener::bind("10.96.0.10:53")).unwrap();
    std::thread::spawn(move || while listener.accept().is_ok() {});
}

// Seen red with DROP in place of each REJECT (both clients wait until their timeout), and without the rules (a
// stranger
// gets an answer).
#[tokio::test]
async fn who_is_no_pod_is_refused_by_dns_at_once() {
    use std::io::ErrorKind::ConnectionRefused;
    let mut node = Node::new().await;
    assert!(node.converge().await);
    assert!(!node.converge().await, "rules that are refusals are known again");
    let count = node.iptables.generation().await;
    let (pod, own) = (node.pod(2).await, own(&mut node));
    serve_dns(own);
    // Another network of the machine, such as Docker's bridge.
    let route = ["route", "add", "10.96.0.0/16", "via", "192.0.2.1"];
    assert!(in_pod(node.outside, "ip", &route).0);
    let udp = |pid| {
        inside(pid, || {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.set_read_timeout(Some(WAIT))?;
            socket.connect("10.96.0.10:53")?;
            socket.send(b"?")?;
            socket.recv(&mut [0; 64]).map(drop)
        })
        .map_err(|error| error.kind())
    };
    let tcp = |pid| {
        let target = "10.96.0.10:53".parse().unwrap();
        inside(pid, || TcpStream::connect_timeout(&target, WAIT).map(drop)).map_err(|error| error.kind())
    };
    for (what, pid, wanted) in
        [("a pod", pod, Ok(())), ("the node", own, Ok(())), ("others", node.outside, Err(ConnectionRefused))]
    {
        assert_eq!(udp(pid), wanted, "{what}, UDP");
        assert_eq!(tcp(pid), wanted, "{what}, TCP");
    }
    assert!(!node.converge().await);
    assert_eq!(node.iptables.generation().await, count, "no rule was written again");
}

#[tokio::test]
async fn what_others_flush_is_healed_and_theirs_is_left_alone() {
    let mut node = Node::new().await;
    node.converge().await;
    let whole = node.iptables.save().await.unwrap();
    let flushes: [&[&str]; 5] = [
        &["-t", "nat", "-F"],
        &["-F"],
        &["-t", "nat", "-D", "PREROUTING", "1"],
        &["-D", "FORWARD", "1"],
        &["-F", "MK8S-FORWARD"],
    ];
    for arguments in flushes {
        node.namespace.run("iptables", arguments);
        assert!(node.heals().await, "{arguments:?} went unseen");
        assert!(!node.converge().await, "{arguments:?} is not healed at once");
        let rules = |text: &str| {
            text.lines().filter(|line| line.starts_with('-')).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(rules(&node.iptables.save().await.unwrap()), rules(&whole), "{arguments:?}");
    }
    node.namespace.run("iptables", &["-I", "FORWARD", "-s", "198.51.100.1/32", "-j", "DROP"]);
    node.namespace.run("iptables", &["-t", "nat", "-N", "THEIRS"]);
    assert!(!node.converge().await, "a rule of another is no reason to act");
    node.namespace.run("iptables", &["-t", "nat", "-F", "MK8S-POSTROUTING"]);
    assert!(node.heals().await);
    let text = node.iptables.save().await.unwrap();
    assert!(text.contains("198.51.100.1/32") && text.contains(":THEIRS"), "{text}");
}

#[tokio::test]
async fn a_udp_client_follows_a_replaced_pod() {
    let mut node = Node::new().await;
    node.converge().await;
    let (first, second) = (node.pod(2).await, node.pod(3).await);
    for (pid, name) in [(first, "first"), (second, "second")] {
        let socket = inside(pid, || UdpSocket::bind("0.0.0.0:80")).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(name.as_bytes(), from);
            }
        });
    }
    // The same socket throughout: to the kernel, one connection.
    let client = inside(node.outside, || UdpSocket::bind("192.0.2.2:0")).unwrap();
    client.set_read_timeout(Some(WAIT)).unwrap();
    let ask = || {
        client.send_to(b"?", "192.0.2.1:53").unwrap();
        let mut buffer = [0; 64];
        client.recv(&mut buffer).map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned())
    };
    assert!(ask().is_err(), "no server is there yet, and the kernel remembers that");
    node.publish(&[(Protocol::Udp, 53, 2)]);
    node.converge().await;
    assert_eq!(ask().unwrap(), "first");
    node.publish(&[(Protocol::Udp, 53, 3)]);
    node.converge().await;
    assert_eq!(ask().unwrap(), "second");
}

#[tokio::test]
async fn two_instances_on_one_node_leave_each_other_alone() {
    let mut node = Node::new().await;
    node.converge().await;
    let cidr = Subnet {
        service_cidr: "10.97.0.0/16".parse().unwrap(),
        ..Subnet::new("10.245.0.0/24".parse().unwrap(), "10.245.0.0/16".parse().unwrap())
    };
    let (_subnets, subnet) = watch::channel(Some(cidr));
    let (_tables, table) = watch::channel::<PodTable>(Some(Arc::default()));
    let vxlan = Vxlan { vni: 2, port: 8473 };
    let settings = NetworkSettings { vxlan, ..NetworkSettings::new("mk8sb", 1450) };
    let netlink = Arc::new(RealNetlink::open_at("mk8sb", &node.namespace.path()).unwrap());
    let mut other = network_loop(settings, netlink, node.iptables.clone(), subnet, table);
    std::mem::swap(&mut node.network, &mut other);
    assert!(node.converge().await, "the second makes its own");
    assert!(!node.converge().await);
    std::mem::swap(&mut node.network, &mut other);
    assert!(!node.converge().await, "the first finds all as it was");
}

/// Socket of the node for [`sends`].
fn gateway_socket(node: &mut Node) -> UdpSocket {
    let own = own(node);
    let socket = inside(own, || UdpSocket::bind("0.0.0.0:7777")).unwrap();
    socket.set_read_timeout(Some(WAIT)).unwrap();
    socket
}

/// Sends a datagram from this address of a pod to the gateway.
fn sends(pid: i32, from: &str, text: &str) {
    inside(pid, || UdpSocket::bind((from, 0))?.send_to(text.as_bytes(), "10.244.3.1:7777")).unwrap();
}

fn received(socket: &UdpSocket) -> String {
    let mut buffer = [0; 64];
    let length = socket.recv(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

/// Runs `ip` in a pod.
fn ip(pid: i32, arguments: &str) {
    let (done, text) = in_pod(pid, "ip", &arguments.split(' ').collect::<Vec<_>>());
    assert!(done, "{arguments}: {text}");
}

// Seen red without the table (each forged datagram arrives), and for the last groups without the chain `input` and
// without `FORWARDED_GROUPS`.
#[tokio::test]
async fn a_pod_sends_under_no_address_but_its_own() {
    let mut node = Node::new().await;
    node.converge().await;
    let (_victim, pod) = (node.pod(2).await, node.pod(3).await);
    let socket = gateway_socket(&mut node);
    // What arrives first tells: all datagrams of a pod go the same way.
    let refused = |forged: &str, to_forge: &[&str], from: &str, to_restore: &[&str]| {
        to_forge.iter().for_each(|arguments| ip(pod, arguments));
        sends(pod, from, forged);
        to_restore.iter().for_each(|arguments| ip(pod, arguments));
        sends(pod, "10.244.3.3", "own");
        assert_eq!(received(&socket), "own");
    };
    let gateway = "neigh replace 10.244.3.1 lladdr 0a:58:0a:f4:03:01 dev eth0 nud permanent";
    refused("its address", &["addr add 10.244.3.2/32 dev eth0"], "10.244.3.2", &[]);
    refused("an address beyond", &["addr add 192.0.2.2/32 dev eth0"], "192.0.2.2", &[]);
    for hardware in ["0a:58:0a:f4:03:02", "0a:58:0a:f4:03:01", "02:00:00:00:00:01"] {
        let set = |hardware: &str| format!("link set eth0 address {hardware}");
        let (forge, restore) = (set(hardware), set("0a:58:0a:f4:03:03"));
        refused("its hardware address", &[&forge, gateway], "10.244.3.3", &[&restore, gateway]);
    }
    // Such frames reach the link, not the bridge.
    for group in ["00", "03", "0e"] {
        let past = format!("neigh replace 10.244.3.1 lladdr 01:80:c2:00:00:{group} dev eth0 nud permanent");
        refused("past the bridge", &[&past], "10.244.3.3", &[gateway]);
    }
}

// Seen red without the table: the stranger answers both.
#[tokio::test]
async fn a_pod_that_answers_for_the_address_of_another_is_not_heard() {
    let mut node = Node::new().await;
    node.converge().await;
    let (pod, stranger) = (node.pod(2).await, node.pod(3).await);
    serve_tcp(stranger);
    ip(stranger, "addr add 10.244.3.9/32 dev eth0");
    let own = own(&mut node);
    for (who, pid) in [("a pod", pod), ("the node", own)] {
        assert_eq!(ask_tcp(pid, "10.244.3.3:80").map(drop), Ok(()), "{who}");
        assert!(ask_tcp(pid, "10.244.3.9:80").is_err(), "{who} believes the stranger");
    }
}

// Seen red without the table.
#[tokio::test]
async fn a_router_advertisement_of_a_pod_reaches_no_other_pod() {
    let mut node = Node::new().await;
    node.converge().await;
    let (pod, other) = (node.pod(2).await, node.pod(3).await);
    serve_tcp(other);
    advertise_router(pod);
    // Later than the advertisement on the same way.
    assert_eq!(ask_tcp(pod, "10.244.3.3:80"), Ok("10.244.3.2".into()));
    assert_eq!(in_pod(other, "ip", &["-6", "route", "show", "default"]), (true, String::new()));
}

// Seen red without the comparison in `frames_are_right`.
#[tokio::test]
async fn the_table_for_frames_is_healed() {
    let mut node = Node::new().await;
    node.converge().await;
    let list = ["list", "table", "bridge", "mk8s-senders"];
    let whole = node.namespace.run("nft", &list);
    assert!(!node.converge().await);
    for spoil in
        ["flush ruleset", "delete table bridge mk8s-senders", "flush chain bridge mk8s-senders input"]
    {
        node.namespace.run("nft", &spoil.split(' ').collect::<Vec<_>>());
        assert!(node.heals().await, "{spoil} went unseen");
        assert_eq!(node.namespace.run("nft", &list), whole, "{spoil}");
        while node.converge().await {}
    }
}
