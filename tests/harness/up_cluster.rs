//! A cluster as people make it: `minik8s up --advertise` on the first machine, `minik8s join --etcd-member` and `up` on
//! further ones, and `minik8s-agent join` on the other nodes. Each machine is a node in namespaces of its own, and its
//! member of etcd and its reconciler are there, too.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use schema::trust::TrustDir;

use crate::binaries::minik8s_binary;
use crate::cluster::{Cluster, ClusterOptions, Where};
use crate::etcd::Etcd;
use crate::http::http_get;
use crate::process::{Daemon, last_lines, outcome, tail};
use crate::tokens::{PrintedToken, node_is_ready};
use crate::wait::{eventually, secs};

/// Programs that `up` runs.
const CHILDREN: [&str; 3] = ["etcd", "reconciler", "agent"];

/// The cluster. Dropping it removes everything.
#[derive(Debug)]
pub struct UpCluster {
    /// Nodes and repository; its etcd and its first reconciler are those of the machine that is asked.
    pub cluster: Cluster,
    /// `up` of each machine, by the number of its node.
    ups: BTreeMap<usize, Daemon>,
}

impl UpCluster {
    /// Port of a machine's API.
    pub const API_PORT: u16 = 7070;
    /// Port of an agent's API.
    pub const AGENT_PORT: u16 = 7071;
    /// Ports of a member of etcd for clients and for the other members.
    pub const ETCD_PORTS: [u16; 2] = [7079, 7080];

    /// Runs a story on nodes that have joined nothing yet; shows all logs if it fails.
    pub fn run(nodes: u8, story: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let place = Where::Namespaces(nodes);
        let cluster =
            Cluster::prepare(ClusterOptions { place, reconcilers: 0, ..ClusterOptions::default() })?;
        // Certificates of another authority.
        cluster.nodes.iter().try_for_each(|node| fs::remove_dir_all(node.state_dir()))?;
        let mut all = Self { cluster, ups: BTreeMap::new() };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            story(&mut all)?;
            all.cluster.agents_kept_to_their_roles()
        }));
        if !matches!(outcome, Ok(Ok(()))) {
            all.show_logs();
        }
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Begins the cluster on the first node.
    pub fn start_first(&mut self) -> Result<()> {
        let address = self.cluster.numbered(1)?.address()?.to_owned();
        self.ask_machine(1)?;
        self.start_up(1, &["--advertise", &address])
    }

    /// Makes a node a machine with a reconciler, a member of etcd and an agent.
    pub fn join_machine(&mut self, number: usize) -> Result<()> {
        let node = self.cluster.numbered(number)?;
        let printed = PrintedToken::create(&self.cluster, &["--reconciler", &node.name])?;
        let (program, token) = (minik8s_binary(), printed.token.to_string());
        let (program, state_dir) = (program.to_string_lossy(), node.state_dir().to_string_lossy());
        let words = [&*program, "join", &printed.url, "--name", &node.name, "--token", &token];
        let command = node.command(&[&words[..], &["--etcd-member", "--state-dir", &state_dir]].concat());
        outcome(Command::new(&command[0]).args(&command[1..]), secs(60))?.ok()?;
        self.start_up(number, &[])
    }

    /// Lets a node's agent join, and waits until it is ready.
    pub fn join_node(&mut self, number: usize) -> Result<()> {
        let name = self.cluster.numbered(number)?.name.clone();
        let printed = PrintedToken::create(&self.cluster, &["--node", &name])?;
        let node = &mut self.cluster.nodes[number - 1];
        let mut command = node.agent_command("join", "");
        command.extend([printed.url, "--token".to_owned(), printed.token.to_string()]);
        node.agent.set_command(command);
        node.agent.start()?;
        eventually("the node is ready", secs(60), || node_is_ready(&self.cluster, &name))
    }

    /// Asks the reconciler and the member of etcd of this machine from now on.
    pub fn ask_machine(&mut self, number: usize) -> Result<()> {
        let node = self.cluster.numbered(number)?;
        let socket = self.cluster.socket(0);
        // There is none at first.
        let _ = fs::remove_file(&socket);
        symlink(node.state_dir().join("run/api.sock"), &socket)?;
        let client = format!("https://{}:{}", node.address()?, Self::ETCD_PORTS[0]);
        let etcd = Etcd::foreign(self.cluster.slot().dir(), client, self.reconciler_pki(number)?)?;
        self.cluster.etcd = etcd;
        Ok(())
    }

    /// Kills all processes of a machine at once, but for those of its containers.
    pub fn lose_machine(&mut self, number: usize) -> Result<()> {
        let mut up = self.ups.remove(&number).context("it is not up")?;
        // First, because it starts the others again.
        up.kill()?;
        for name in CHILDREN {
            kill(Pid::from_raw(self.child(number, name)?), Signal::SIGKILL)?;
        }
        Ok(())
    }

    /// Process id of a program that a machine's `up` runs: `etcd`, `reconciler` or `agent`.
    pub fn child(&self, number: usize, name: &str) -> Result<i32> {
        let file = self.cluster.numbered(number)?.state_dir().join(format!("run/{name}.pid"));
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Ok(text.trim().parse()?)
    }

    /// `address:port` of a node.
    pub fn at(&self, number: usize, port: u16) -> Result<String> {
        Ok(format!("{}:{port}", self.cluster.numbered(number)?.address()?))
    }

    /// Certificates of a node's agent.
    pub fn node_pki(&self, number: usize) -> Result<TrustDir> {
        self.pki(number, "agent/pki")
    }

    /// Certificates of a machine's reconciler.
    pub fn reconciler_pki(&self, number: usize) -> Result<TrustDir> {
        self.pki(number, "reconciler/pki")
    }

    /// Certificates of a machine's member of etcd.
    pub fn member_pki(&self, number: usize) -> Result<TrustDir> {
        self.pki(number, "reconciler/pki/etcd")
    }

    fn pki(&self, number: usize, folder: &str) -> Result<TrustDir> {
        Ok(TrustDir::new(self.cluster.numbered(number)?.state_dir().join(folder)))
    }

    /// Starts `up` on a machine, and waits until its reconciler answers and its node is ready.
    fn start_up(&mut self, number: usize, flags: &[&str]) -> Result<()> {
        let mut command = self.up_command(number)?;
        command.extend(flags.iter().map(|word| (*word).to_owned()));
        let mut up = Daemon::new(format!("up-n{number}"), self.cluster.slot().dir(), command);
        up.start()?;
        self.ups.insert(number, up);
        let node = self.cluster.numbered(number)?;
        let api = format!("unix:{}", node.state_dir().join("run/api.sock").display());
        eventually(&format!("machine {number} is up"), secs(120), || {
            let (code, said) = http_get(&api, "/v1/healthz")?;
            ensure!(code == 200, "{code} {said}");
            node_is_ready(&self.cluster, &node.name)
        })
    }

    fn up_command(&self, number: usize) -> Result<Vec<String>> {
        let (node, slot) = (self.cluster.numbered(number)?, self.cluster.slot());
        let program = minik8s_binary();
        let mut command = node.command(&[&*program.to_string_lossy(), "up"]);
        for (flag, value) in [
            ("--repo", self.cluster.repo_url()),
            ("--poll", "500ms".to_owned()),
            ("--state-dir", node.state_dir().to_string_lossy().into_owned()),
            ("--node", node.name.clone()),
            ("--instance", slot.instance()),
            ("--docker", node.docker.host().to_owned()),
            ("--cluster-cidr", slot.cluster_cidr()),
            ("--service-cidr", slot.service_cidr()),
            // As those of the nodes that join.
            ("--agent-arg", format!("--vxlan-vni={}", slot.vxlan_vni())),
            ("--agent-arg", format!("--vxlan-port={}", slot.port(8))),
        ] {
            command.extend([flag.to_owned(), value]);
        }
        Ok(command)
    }

    fn show_logs(&self) {
        for (number, up) in &self.ups {
            eprintln!("---- end of {} ----\n{}", up.log_path().display(), last_lines(&up.log_tail(), 10));
            let Ok(node) = self.cluster.numbered(*number) else { continue };
            for name in CHILDREN {
                let log = node.state_dir().join(format!("logs/{name}.log"));
                let end = tail(&log, 16 * 1024).unwrap_or_default();
                eprintln!("---- end of {} ----\n{}", log.display(), last_lines(&end, 30));
            }
        }
        self.cluster.show_logs();
    }
}

impl Drop for UpCluster {
    fn drop(&mut self) {
        // All at once: a reconciler gives its lease back while etcd still has a majority.
        for up in self.ups.values() {
            let _ = up.signal(Signal::SIGTERM);
        }
        for up in self.ups.values_mut() {
            if let Err(error) = up.wait_end(secs(60)) {
                eprintln!("{}: {error:#}", up.name());
            }
        }
    }
}
