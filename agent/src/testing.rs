//! Support for tests: containers of the fake engine, certificates, and network namespaces of the real kernel, which are
//! removed with the test, panic or not.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use jiff::{SignedDuration, Timestamp};
use schema::meta::NamespacedName;
use schema::trust::{
    Authority, Certificate, Credentials, Expected, KeyPair, LeafRequest, MaybeTls, Protocol, Role, TrustDir,
    TrustKeeper, TrustReader, connect,
};
use tokio::net::TcpStream;

use crate::names;
use crate::worlds::docker::NewContainer;

/// Returns a container with the agent's own name and labels, of instance `mk8s` and namespace `default`.
pub(crate) fn own_container(
    image: &str,
    pod: &str,
    uid: &str,
    container: &str,
    attempt: u32,
) -> NewContainer {
    let labels = [
        (names::INSTANCE, "mk8s"),
        (names::NAMESPACE, "default"),
        (names::POD, pod),
        (names::UID, uid),
        (names::CONTAINER, container),
        (names::ATTEMPT, &attempt.to_string()),
    ];
    let reference = NamespacedName::new("default", pod);
    NewContainer {
        name: names::container_name("mk8s", container, &reference, uid, attempt),
        image: image.to_owned(),
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        ..NewContainer::default()
    }
}

/// An authority, and the certificates that it signs.
pub(crate) struct TestAuthority(Authority);

impl TestAuthority {
    const LIFETIME: SignedDuration = SignedDuration::from_hours(1);

    pub(crate) fn new() -> Self {
        Self(Authority::create(Self::LIFETIME, Timestamp::now()).unwrap())
    }

    fn sign(&self, name: &str, key: &KeyPair) -> Certificate {
        let (identity, key) = (name.parse().unwrap(), key.public_key().unwrap());
        let request =
            LeafRequest { identity: &identity, key: &key, addresses: &[], lifetime: Self::LIFETIME };
        self.0.sign(&request, Timestamp::now()).unwrap()
    }

    /// Credentials with a new key.
    pub(crate) fn credentials(&self, name: &str) -> Credentials {
        let key = KeyPair::generate().unwrap();
        let certificate = self.sign(name, &key);
        Credentials::new(&key, certificate, vec![self.0.certificate().clone()], BTreeMap::new()).unwrap()
    }

    /// Reader of credentials with a new key.
    pub(crate) fn reader(&self, name: &str) -> TrustReader {
        TrustReader::fixed(self.credentials(name))
    }

    /// Keeper of credentials in this folder.
    pub(crate) fn keeper(&self, name: &str, folder: &Path) -> TrustKeeper {
        let dir = TrustDir::new(folder);
        let certificate = self.sign(name, &dir.ensure_key().unwrap());
        dir.write_authorities(std::slice::from_ref(self.0.certificate())).unwrap();
        dir.write_certificate(&certificate).unwrap();
        TrustKeeper::open(dir).unwrap()
    }

    /// Connects to a node under this name.
    pub(crate) async fn connect(&self, name: &str, to: SocketAddr) -> MaybeTls {
        connect_with(&self.credentials(name), to).await
    }
}

/// Connects to a node with these credentials.
pub(crate) async fn connect_with(own: &Credentials, to: SocketAddr) -> MaybeTls {
    let stream = TcpStream::connect(to).await.unwrap();
    let tls = connect(stream, own, &Expected::Role(Role::Node), Protocol::Http1).await;
    MaybeTls::Tls(tls.unwrap())
}

/// A test's own network namespace, with `lo` up; removed when dropped.
pub(crate) struct TestNamespace {
    /// Name in `ip netns`.
    pub(crate) name: String,
    children: Vec<Child>,
}

impl TestNamespace {
    /// Creates a namespace. Panics without root: these tests prove nothing on a fake.
    pub(crate) fn new() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "this test makes network namespaces and must run as root");
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mk8st{}x{number}", std::process::id());
        run("ip", &["netns", "add", &name]);
        let namespace = Self { name, children: Vec::new() };
        namespace.run("ip", &["link", "set", "lo", "up"]);
        namespace
    }

    /// File of the namespace.
    pub(crate) fn path(&self) -> std::path::PathBuf {
        format!("/var/run/netns/{}", self.name).into()
    }

    /// Runs a program inside and returns its standard output; panics if it fails. Standard error is ignored: `ip
    /// link` complains there about namespaces that other tests remove at the same time, and succeeds.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.output(program, arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a program inside; returns its success, and its output with standard error.
    pub(crate) fn try_run(&self, program: &str, arguments: &[&str]) -> (bool, String) {
        let output = self.output(program, arguments);
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    fn output(&self, program: &str, arguments: &[&str]) -> Output {
        let net = format!("--net={}", self.path().display());
        Command::new("nsenter").arg(net).arg(program).args(arguments).output().unwrap()
    }

    /// Starts a process in its own network namespace, like a pause container, and returns its id. The process
    /// inherits nothing but the namespace, and ends with the test.
    pub(crate) fn pod(&mut self) -> i32 {
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo ready; exec sleep 300"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        self.children.push(child);
        pid
    }
}

impl TestNamespace {
    /// Starts a process in this namespace and returns its id.
    pub(crate) fn process(&mut self) -> i32 {
        let net = format!("--net={}", self.path().display());
        let child = Command::new("nsenter").args([net.as_str(), "sleep", "300"]).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        self.children.push(child);
        // Until nsenter has entered, the process is still outside.
        let wanted = std::fs::metadata(self.path()).unwrap();
        for _ in 0..500 {
            use std::os::unix::fs::MetadataExt as _;
            let there = std::fs::metadata(format!("/proc/{pid}/ns/net")).unwrap();
            if (there.ino(), there.dev()) == (wanted.ino(), wanted.dev()) {
                return pid;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("process {pid} did not enter {}", self.name);
    }
}

impl Drop for TestNamespace {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).status();
    }
}

/// Runs a program inside the network namespace of a process.
pub(crate) fn in_pod(pid: i32, program: &str, arguments: &[&str]) -> (bool, String) {
    let net = format!("--net=/proc/{pid}/ns/net");
    let output = Command::new("nsenter").arg(net).arg(program).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs `work` on a thread inside the network namespace of a process; sockets it makes stay there.
pub(crate) fn inside<T: Send>(
    pid: i32,
    work: impl FnOnce() -> std::io::Result<T> + Send,
) -> std::io::Result<T> {
    crate::worlds::netlink::in_namespace_of(pid, work)
}

/// Sends a router advertisement (RFC 4861) from the `eth0` of a pod, whose namespace has IPv6: who accepts it takes
/// `fe80::bad` for its default router.
pub(crate) fn advertise_router(pid: i32) {
    let router = ["-6", "addr", "add", "fe80::bad/64", "dev", "eth0", "nodad"];
    let (done, text) = in_pod(pid, "ip", &router);
    assert!(done, "{text}");
    let (_, text) = in_pod(pid, "ip", &["-o", "link", "show", "eth0"]);
    let index: u32 = text.split(':').next().unwrap().parse().unwrap();
    let address = |text: &str| std::net::SocketAddrV6::new(text.parse().unwrap(), 0, 0, index);
    let send = || {
        let kind = (socket2::Type::RAW, Some(socket2::Protocol::ICMPV6));
        let socket = socket2::Socket::new(socket2::Domain::IPV6, kind.0, kind.1)?;
        socket.bind(&address("fe80::bad").into())?;
        // Others are ignored: they may come from beyond a router.
        socket.set_multicast_hops_v6(255)?;
        // Type 134, hop limit 64, a router for 1,800 s; the kernel adds the checksum.
        let lifetime = 1_800_u16.to_be_bytes();
        let message = [134, 0, 0, 0, 64, 0, lifetime[0], lifetime[1], 0, 0, 0, 0, 0, 0, 0, 0];
        socket.send_to(&message, &address("ff02::1").into())
    };
    inside(pid, send).unwrap();
}
