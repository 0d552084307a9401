//! The agent's binary on the real engine and a real etcd: pods outlive the agent, it heals from its own disk, and a
//! reset leaves the machine as it was.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use schema::codec::encode;
use schema::keys::Key;
use schema::records::{SettledRecord, Subnet};
use schema::store::etcd::{Access, EtcdStore};
use schema::store::{Op, Store as _, TxnOutcome};
use schema::testing::{binding, instance};
use schema::trust::JoinToken;
use serde_json::json;
use support::ports::free_port;

mod support;

const WAIT: Duration = Duration::from_secs(60);

/// A test's share of the machine: etcd, agent and state of its own instance.
struct Rig {
    dir: tempfile::TempDir,
    instance: String,
    etcd_port: u16,
    peer_port: u16,
    api_port: u16,
    host_port: u16,
    children: Vec<Child>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = self.agent(&["reset"]).output();
    }
}

impl Rig {
    fn new() -> Self {
        support::ensure_image();
        Self {
            dir: tempfile::tempdir().unwrap(),
            instance: format!("t{:05x}", rand::random::<u32>() & 0xf_ffff),
            etcd_port: free_port(),
            peer_port: free_port(),
            api_port: free_port(),
            host_port: free_port(),
            children: Vec::new(),
        }
    }

    fn etcd_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.etcd_port)
    }

    fn state_dir(&self) -> std::path::PathBuf {
        self.dir.path().join("state")
    }

    fn start_etcd(&mut self) -> usize {
        let (client, peer) = (self.etcd_url(), format!("http://127.0.0.1:{}", self.peer_port));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(self.dir.path().join("etcd"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}")]);
        self.start(command)
    }

    fn agent(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_minik8s-agent"));
        command.args(words).arg("--state-dir").arg(self.state_dir()).args(["--instance", &self.instance]);
        command
    }

    fn start_agent(&mut self) -> usize {
        let mut command = self.agent(&["run", "--node", "n1", "--etcd", &self.etcd_url()]);
        command.arg("--listen").arg(format!("127.0.0.1:{}", self.api_port));
        self.start(command)
    }

    fn start(&mut self, mut command: Command) -> usize {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.children.push(child);
        self.children.len() - 1
    }

    fn kill(&mut self, child: usize) {
        self.children[child].kill().unwrap();
        self.children[child].wait().unwrap();
    }

    /// Fetches the page of a web server at the host port; waits until there is one.
    fn page(&self) -> String {
        wait_for("the host port answers", || {
            let mut stream = TcpStream::connect(("127.0.0.1", self.host_port)).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
            let mut page = String::new();
            stream.read_to_string(&mut page).ok()?;
            page.contains("200 OK").then_some(page)
        })
    }

    fn containers(&self, format: &str) -> Vec<String> {
        let label = format!("label=minik8s.io/instance={}", self.instance);
        let output =
            Command::new("docker").args(["ps", "-a", "--filter", &label, "--format", format]).output();
        let mut lines: Vec<String> =
            String::from_utf8_lossy(&output.unwrap().stdout).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    fn started_at(&self, container: &str) -> String {
        let output =
            Command::new("docker").args(["inspect", "-f", "{{.State.StartedAt}}", container]).output();
        String::from_utf8_lossy(&output.unwrap().stdout).trim().to_owned()
    }

    /// Links and rules of this instance in the kernel, one per line.
    fn kernel_traces(&self) -> Vec<String> {
        let prefixes = [
            self.instance.to_uppercase(),
            format!("{}0", self.instance),
            format!("{}v", &self.instance[..4]),
        ];
        let texts = [run("iptables-save", &[]), run("ip", &["-o", "link"])]
            .map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        let ours = |line: &&str| prefixes.iter().any(|prefix| line.contains(prefix.as_str()));
        texts.iter().flat_map(|text| text.lines()).filter(ours).map(str::to_owned).collect()
    }

    /// Assigns the node a range of addresses and a web server on it.
    async fn assign(&self) {
        let store = EtcdStore::connect(&Access::anonymous(&[self.etcd_url()]), WAIT).await.unwrap();
        // A range that no other test uses.
        let third = self.host_port % 250;
        let cidr = format!("10.{}.{third}.0/24", 100 + self.etcd_port % 100);
        let subnet = Subnet::new(cidr.parse().unwrap(), cidr.parse().unwrap());
        let spec = json!({"containers": [{
            "name": "web", "image": support::IMAGE, "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", "mkdir -p /tmp/www; echo hello > /tmp/www/index.html; exec httpd -f -p 80 -h /tmp/www"],
            "ports": [{"containerPort": 80, "hostPort": self.host_port}],
        }], "terminationGracePeriodSeconds": 1});
        let pod = instance("web", serde_json::from_value(spec).unwrap());
        let ops = vec![
            Op::put(Key::Subnet("n1".into()), encode(&subnet).unwrap()),
            Op::put(Key::Settled("n1".into()), encode(&SettledRecord::default()).unwrap()),
            Op::put(Key::Binding("n1".into(), pod.reference()), encode(&binding("n1", &pod)).unwrap()),
        ];
        assert!(matches!(store.txn(vec![], ops).await.unwrap(), TxnOutcome::Committed(_)));
    }
}

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {WAIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_outlive_agent_and_etcd_and_a_reset_leaves_nothing() {
    let mut rig = Rig::new();
    assert_eq!(rig.kernel_traces(), Vec::<String>::new());
    support::join(&rig.state_dir(), "n1");
    let etcd = rig.start_etcd();
    Box::pin(rig.assign()).await;
    let agent = rig.start_agent();
    assert!(rig.page().contains("hello"));
    let names = rig.containers("{{.Names}}");
    assert_eq!(names.len(), 2, "{names:?}");
    let pause = names.iter().find(|name| name.contains("_POD_")).unwrap().clone();
    let started_at = rig.started_at(&pause);

    // Reset does not remove the pods of a running agent.
    let refused = rig.agent(&["reset"]).output().unwrap();
    assert!(!refused.status.success() && text(&refused).contains("another agent runs"), "{}", text(&refused));

    // Everything together: agent and etcd killed, a container removed, a chain flushed.
    rig.kill(agent);
    rig.kill(etcd);
    let web = names.iter().find(|name| **name != pause).unwrap();
    run("docker", &["rm", "-f", web]);
    let chain = format!("{}-HOSTPORT", rig.instance.to_uppercase());
    assert!(run("iptables", &["-t", "nat", "-F", &chain]).status.success());
    let agent = rig.start_agent();
    assert!(rig.page().contains("hello"), "healed from the node's own disk");
    assert_eq!(rig.started_at(&pause), started_at, "what was right was left alone");

    // A stop leaves pods and rules in place.
    let pid = rig.children[agent].id().to_string();
    run("kill", &["-TERM", &pid]);
    assert!(rig.children[agent].wait().unwrap().success());
    assert!(rig.page().contains("hello"));

    let reset = rig.agent(&["reset"]).output().unwrap();
    assert!(reset.status.success(), "{}", text(&reset));
    assert_eq!(rig.containers("{{.Names}}"), Vec::<String>::new());
    assert_eq!(rig.kernel_traces(), Vec::<String>::new());
    assert!(!Path::new(&rig.state_dir()).exists());
    let again = rig.agent(&["reset"]).output().unwrap();
    assert!(
        again.status.success() && text(&again).starts_with("this machine has nothing of instance"),
        "{}",
        text(&again)
    );
}

#[test]
fn wrong_surroundings_are_reported_in_one_line_and_leave_nothing_behind() {
    let rig = Rig::new();
    let dead = format!("http://127.0.0.1:{}", free_port());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let token = JoinToken::create(&"ab".repeat(32)).unwrap().to_string();
    let nobody = dead.replace("http", "https");
    let joining = ["join", &nobody, "--node", "n1", "--token", &token, "--log-level", "error"];
    let not_joined: [(&[&str], i32, &str); 4] = [
        (&["run", "--node", "n1"], 1, "run 'minik8s token create --node n1' on a reconciler"),
        (&joining, 1, "cannot join: https://127.0.0.1:"),
        (&["run", "--state-dir", "/proc/nope"], 1, "writable --state-dir"),
        (&["run", "--node", "a/b"], 2, "--node a/b"),
    ];
    let joined: [(&[&str], i32, &str); 4] = [
        (&["run", "--etcd", &dead], 1, "check --etcd"),
        (&["run", "--docker", "/none/docker.sock"], 1, "cannot use Docker at unix:///none/docker.sock"),
        (&["run", "--listen", &taken], 1, "another --listen"),
        (&["run", "--node", "n2"], 1, "this node's certificate is that of node-n1"),
    ];
    let fails = |(words, code, part): (&[&str], i32, &str)| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_minik8s-agent"));
        command.args(words).args(["--instance", &rig.instance]);
        command.env("MINIK8S_STATE_DIR", rig.state_dir()).env("MINIK8S_AGENT_LISTEN", "127.0.0.1:0");
        let output = command.output().unwrap();
        let said = text(&output);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert!(said.contains(part) && said.trim_end().lines().count() == 1, "{words:?}: {said}");
        assert!(said.starts_with("minik8s-agent: "), "{said}");
        assert_eq!(rig.kernel_traces(), Vec::<String>::new(), "{words:?}");
    };
    for case in not_joined {
        fails(case);
        assert!(!rig.state_dir().exists(), "{case:?} leaves files behind");
    }
    support::join(&rig.state_dir(), "n1");
    joined.into_iter().for_each(fails);
}
