//! A pod on the link that it shares with its node and its neighbours: it can't take the address of another, neither by
//! ARP nor as a sender, and its router advertisements reach nobody.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV6, UdpSocket};

use harness::manifests::web;
use harness::{Change, Cluster, ClusterOptions, Context, NetWorld, PodView, Result, ensure, secs};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
use schema::keys::Key;
use schema::records::Subnet;

/// Capabilities with which a pod may send what it likes and set its own addresses.
const ANY_FRAME: &str = "    securityContext: {capabilities: {add: [NET_ADMIN, NET_RAW]}}\n";
/// An address for documentation (RFC 5737).
const ELSEWHERE: &str = "192.0.2.77";

struct Link<'c> {
    cluster: &'c Cluster,
    attacker: PodView,
    bank: PodView,
    client: PodView,
    range: Subnet,
}

#[test]
fn a_pod_takes_the_place_of_nobody_on_its_link() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let attacker = web("attacker").container_fields(ANY_FRAME);
        let files = [
            Change::write("attacker.yaml", attacker.to_string()),
            Change::write("bank.yaml", web("bank").to_string()),
            Change::write("client.yaml", web("client").to_string()),
        ];
        cluster.push(&files, "A pod and its neighbours")?;
        let link = Link {
            cluster,
            attacker: cluster.serving("attacker", "hello from attacker")?,
            bank: cluster.serving("bank", "hello from bank")?,
            client: cluster.serving("client", "hello from client")?,
            range: cluster.etcd.value(Key::Subnet(cluster.node().name.clone()))?,
        };
        ipv6_is_off(cluster)?;
        link.answers_for_no_other_address()?;
        link.claims_no_address_of_another()?;
        link.sends_from_no_other_address()?;
        link.advertises_no_router()
    })
}

/// The node's bridge and its ports neither speak IPv6 nor listen to routers.
fn ipv6_is_off(cluster: &Cluster) -> Result<()> {
    let bridge = format!("{}0", cluster.slot().instance());
    let mut links = vec![bridge.clone()];
    for port in fs::read_dir(format!("/sys/class/net/{bridge}/brif"))? {
        links.push(port?.file_name().to_string_lossy().into_owned());
    }
    ensure!(links.len() >= 4, "{links:?}");
    for link in links {
        for (setting, wanted) in [("disable_ipv6", "1"), ("accept_ra", "0")] {
            let value = fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{link}/{setting}"))?;
            ensure!(value.trim() == wanted, "{setting} of {link} is {value}");
        }
    }
    Ok(())
}

impl Link<'_> {
    /// Runs a command in the attacker's container, with its own capabilities.
    fn attack(&self, command: &str) -> Result<String> {
        self.cluster.exec(&self.attacker, "web", &["sh", "-c", command])
    }

    /// Answers at this address within so many seconds, asked by the node and by another pod.
    fn answers(&self, address: &str, seconds: &str) -> [Result<String>; 2] {
        let url = format!("http://{address}:8080/");
        let ask = |from: &NetWorld| from.run("curl", &["-sSf", "-m", seconds, &url]);
        [&self.cluster.node().net, &Cluster::net_of(&self.client)].map(ask)
    }

    fn both_hear(&self, address: &str, expected: &str) -> Result<()> {
        for answer in self.answers(address, "5") {
            let answer = answer?;
            ensure!(answer.trim() == expected, "{address} says {answer}");
        }
        Ok(())
    }

    /// ARP for an address that no pod has: its answer is not heard.
    fn answers_for_no_other_address(&self) -> Result<()> {
        let free = Ipv4Addr::from_bits(self.range.cidr.network().to_bits() + 200);
        self.attack(&format!("ip addr add {free}/32 dev eth0"))?;
        // It serves on each of its addresses.
        let own = Cluster::net_of(&self.attacker);
        ensure!(own.run("curl", &["-sSf", "-m", "5", &format!("http://{free}:8080/")])?.contains("attacker"));
        self.both_hear(self.attacker.address()?, "hello from attacker")?;
        for answer in self.answers(&free.to_string(), "1") {
            ensure!(answer.is_err(), "{free} says {answer:?}");
        }
        Ok(())
    }

    /// ARP that takes over the address of a neighbour changes no entry.
    fn claims_no_address_of_another(&self) -> Result<()> {
        let bank = self.bank.address()?;
        self.both_hear(bank, "hello from bank")?;
        self.attack(&format!("ip addr add {bank}/32 dev eth0"))?;
        // Answers and requests, two of each: for a second the kernel keeps a young entry as it is.
        let claim = |kind: &str| format!("arping -q {kind} -c 2 -I eth0 {bank}");
        self.attack(&format!("{} & {}; wait", claim("-A"), claim("-U")))?;
        let shown = Cluster::net_of(&self.bank).run("ip", &["-o", "link", "show", "eth0"])?;
        let own = shown.split_whitespace().skip_while(|word| *word != "link/ether").nth(1);
        let own = own.context("no hardware address")?;
        for (who, net) in [("the node", &self.cluster.node().net), ("a pod", &Cluster::net_of(&self.client))]
        {
            let entry = net.run("ip", &["neigh", "show", bank])?;
            ensure!(entry.contains(own), "{who} has {bank} at {entry}, not at {own}");
        }
        self.both_hear(bank, "hello from bank")
    }

    /// Datagrams in another's name do not arrive; those in its own do. All of a pod go the same way, so the first one
    /// that arrives tells.
    fn sends_from_no_other_address(&self) -> Result<()> {
        let node = UdpSocket::bind((self.range.bridge(), 0))?;
        node.set_read_timeout(Some(secs(5)))?;
        let to = node.local_addr()?;
        self.attack(&format!("ip addr add {ELSEWHERE}/32 dev eth0"))?;
        let (bank, own) = (self.bank.address()?, self.attacker.address()?);
        Cluster::net_of(&self.attacker).within(|| {
            for from in [bank, ELSEWHERE, own] {
                UdpSocket::bind((from, 0))?.send_to(from.as_bytes(), to)?;
            }
            Ok(())
        })?;
        let mut text = [0; 32];
        let length = node.recv(&mut text)?;
        let first = String::from_utf8_lossy(&text[..length]);
        ensure!(first == own, "a datagram from {first} arrived");
        Ok(())
    }

    /// A router advertisement becomes no route of the node or of a pod that speaks IPv6.
    fn advertises_no_router(&self) -> Result<()> {
        let (attacker, client) = (Cluster::net_of(&self.attacker), Cluster::net_of(&self.client));
        for setting in ["all.disable_ipv6=0", "eth0.disable_ipv6=0", "eth0.accept_ra=2"] {
            for net in [&attacker, &client] {
                net.run("sysctl", &["-qw", &format!("net.ipv6.conf.{setting}")])?;
            }
        }
        attacker.run("ip", &["-6", "addr", "add", "fe80::bad/64", "dev", "eth0", "nodad"])?;
        let shown = attacker.run("ip", &["-o", "link", "show", "eth0"])?;
        let index: u32 = shown.split(':').next().context("no index")?.parse()?;
        attacker.within(|| advertise(index))?;
        // Later than the advertisement, on the same way.
        let url = format!("http://{}:8080/", self.client.address()?);
        ensure!(attacker.run("curl", &["-sSf", "-m", "5", &url])?.contains("hello from client"));
        for (who, net) in [("the node", &self.cluster.node().net), ("a pod", &client)] {
            let routes = net.run("ip", &["-6", "route", "show", "default"])?;
            ensure!(!routes.contains("fe80::bad"), "{who} has {routes}");
        }
        Ok(())
    }
}

/// Sends the advertisement of a router to all nodes of a link.
fn advertise(link: u32) -> Result<()> {
    let socket = socket(AddressFamily::INET6, SocketType::RAW, Some(ipproto::ICMPV6))?;
    // Others are ignored: they may come from beyond a router.
    rustix::net::sockopt::set_ipv6_multicast_hops(&socket, 255)?;
    rustix::net::bind(&socket, &SocketAddrV6::new("fe80::bad".parse()?, 0, 0, link))?;
    // Type 134, hop limit 64, a router for 1,800 s; the kernel adds the checksum.
    let lifetime = 1_800_u16.to_be_bytes();
    let message = [134, 0, 0, 0, 64, 0, lifetime[0], lifetime[1], 0, 0, 0, 0, 0, 0, 0, 0];
    let all_nodes = SocketAddrV6::new("ff02::1".parse()?, 0, 0, link);
    sendto(&socket, &message, SendFlags::empty(), &all_nodes)?;
    Ok(())
}
