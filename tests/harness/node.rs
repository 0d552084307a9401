//! A node, with an agent and a Docker daemon: the machine itself, or a network namespace
//! with its own dockerd.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::binaries::agent_binary;
use crate::docker_world::DockerWorld;
use crate::http::tls_get;
use crate::image::ensure_images;
use crate::net_world::NetWorld;
use crate::process::{Daemon, Outcome, outcome, run};
use crate::slot::Slot;
use crate::trust::Trust;
use crate::wait::{eventually, secs};

/// Port of every agent in a namespace.
const AGENT_PORT: u16 = 7071;
/// Port for calls of functions on nodes in namespaces; on the machine itself, the offset of the slot's port for them.
const FUNCTIONS_PORT: u16 = 8081;
const FUNCTIONS_OFFSET: u16 = 19;

/// A node of a cluster.
#[derive(Debug)]
pub struct Node {
    /// Name in the cluster.
    pub name: String,
    pub docker: DockerWorld,
    /// Kernel network of the node.
    pub net: NetWorld,
    pub agent: Daemon,
    /// Own dockerd; `None` on the machine itself.
    pub dockerd: Option<Daemon>,
    state_dir: PathBuf,
    instance: String,
    listen: String,
    /// Address for calls of functions.
    calls: String,
    enter: Vec<String>,
    holder: Option<Daemon>,
    node_ip: Option<String>,
    /// True if its agent gets no address and must find it.
    finds_address: bool,
    /// Number and port of the VXLAN network: no two slots share them.
    vxlan: (String, String),
    /// Certificates of its cluster.
    trust: Arc<Trust>,
    /// URLs of the reconcilers that its agent knows.
    pub(crate) reconcilers: Vec<String>,
}

impl Node {
    /// The machine itself, with its own Docker daemon.
    pub fn host(slot: &Slot, trust: &Arc<Trust>) -> Result<Self> {
        let docker = DockerWorld::of_machine();
        ensure_images(&docker)?;
        let dir = slot.dir().join("n0");
        fs::create_dir_all(&dir)?;
        Ok(Self {
            name: format!("{}n0", slot.instance()),
            docker,
            net: NetWorld::of_machine(),
            agent: Daemon::new("agent-n0", slot.dir(), Vec::new()),
            dockerd: None,
            state_dir: dir.join("state"),
            instance: slot.instance(),
            listen: format!("127.0.0.1:{}", slot.port(3)),
            calls: format!("127.0.0.1:{}", slot.port(FUNCTIONS_OFFSET)),
            enter: Vec::new(),
            holder: None,
            node_ip: None,
            finds_address: false,
            vxlan: vxlan(slot),
            trust: Arc::clone(trust),
            reconcilers: Vec::new(),
        })
    }

    /// Node `index` (from 1) in a separate network namespace and mount namespace, attached to
    /// the slot's host bridge, with a dockerd that is starting. With `live_restore`, its containers outlive it.
    pub fn in_namespace(slot: &Slot, index: u8, live_restore: bool, trust: &Arc<Trust>) -> Result<Self> {
        let name = format!("{}n{index}", slot.instance());
        let dir = slot.dir().join(format!("n{index}"));
        fs::create_dir_all(&dir)?;
        let address = slot.underlay(10 + index);
        join_bridge(slot, &name, index, &address)?;

        // The holder keeps both namespaces while dockerd is away. The machine's mounts are
        // slaves here: anything that Docker unmounts outside is not kept busy inside.
        let ready = dir.join("holder.ready");
        let script = format!(
            "mount --make-rslave / && mount -t tmpfs none /run && mkdir -p /run/docker && \
             touch {} && exec sleep infinity",
            ready.display()
        );
        let command =
            ["nsenter", &format!("--net=/var/run/netns/{name}"), "unshare", "-m", "sh", "-c", &script];
        let mut holder = Daemon::new(format!("holder-n{index}"), slot.dir(), words(&command));
        holder.start()?;
        eventually("the node's namespaces are there", secs(10), || {
            ready.exists().then_some(()).context("not yet")
        })?;
        let pid = holder.pid()?;
        let enter = words(&[
            "nsenter",
            &format!("--net=/proc/{pid}/ns/net"),
            &format!("--mount=/proc/{pid}/ns/mnt"),
            "--",
        ]);

        let docker = DockerWorld::new(format!("unix://{}/docker.sock", dir.display()));
        let command = dockerd(&enter, &dir, docker.host(), live_restore);
        let dockerd = Daemon::new(format!("dockerd-n{index}"), slot.dir(), command);
        let mut node = Self {
            net: NetWorld::of_process(pid),
            agent: Daemon::new(format!("agent-n{index}"), slot.dir(), Vec::new()),
            dockerd: Some(dockerd),
            state_dir: dir.join("state"),
            instance: slot.instance(),
            listen: format!("{address}:{AGENT_PORT}"),
            calls: format!("0.0.0.0:{FUNCTIONS_PORT}"),
            holder: Some(holder),
            node_ip: Some(address),
            finds_address: false,
            vxlan: vxlan(slot),
            trust: Arc::clone(trust),
            reconcilers: Vec::new(),
            name,
            docker,
            enter,
        };
        node.dockerd_mut()?.start()?;
        Ok(node)
    }

    /// Waits until the node's own dockerd has the images that pods need.
    pub fn wait_ready(&self) -> Result<()> {
        self.wait_docker()?;
        ensure_images(&self.docker)
    }

    /// Starts the node's own dockerd and waits until it answers.
    pub fn start_docker(&mut self) -> Result<()> {
        self.dockerd_mut()?.start()?;
        self.wait_docker()
    }

    fn dockerd_mut(&mut self) -> Result<&mut Daemon> {
        self.dockerd.as_mut().context("the machine's own dockerd is not ours to start")
    }

    fn wait_docker(&self) -> Result<()> {
        let dockerd = self.dockerd.as_ref().context("the machine's own dockerd is not ours to wait for")?;
        eventually("dockerd answers", secs(30), || {
            self.docker.run(&["version", "--format", "{{.Server.Version}}"]).map(|_| ())
        })
        .with_context(|| dockerd.log_tail())
    }

    /// Sends SIGTERM to the node's own dockerd, and waits until it exits.
    pub fn stop_docker(&mut self) -> Result<()> {
        let dockerd = self.dockerd.as_mut().context("the machine's own dockerd is not ours to stop")?;
        dockerd.end(Signal::SIGTERM, secs(30)).map(|_| ())
    }

    /// Gives the agent its certificate and the addresses of the reconcilers, unless it has them, as if it had joined.
    pub(crate) fn fill_state(&self) -> Result<()> {
        self.trust.fill_node(&self.state_dir, &self.name)?;
        let file = self.state_dir.join("agent/cluster.json");
        if file.exists() {
            return Ok(());
        }
        Ok(fs::write(file, json!({"etcd": [], "reconcilers": self.reconcilers}).to_string())?)
    }

    /// Starts the agent against this etcd.
    pub fn begin_agent(&mut self, etcd: &str) -> Result<()> {
        self.fill_state()?;
        self.agent.set_command(self.agent_command("run", etcd));
        self.agent.start()
    }

    /// Starts the agent against this etcd and waits until it answers.
    pub fn start_agent(&mut self, etcd: &str) -> Result<()> {
        self.begin_agent(etcd)?;
        self.wait_agent().with_context(|| self.agent.log_tail())
    }

    /// Waits until the agent answers.
    pub fn wait_agent(&self) -> Result<()> {
        eventually("the agent answers", secs(30), || {
            let (code, body) = self.get("/v1/healthz")?;
            ensure!(code == 200, "{code} {body}");
            Ok(())
        })
    }

    /// Sends a GET to the agent's API as the reconciler `r0`, from the node's network; returns status code and body.
    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        let pki = self.trust.reconciler("r0")?;
        self.net.within(|| tls_get(&self.listen, path, &pki))
    }

    /// Full command line of the agent, including the way into the node's namespaces. Without an address of etcd, it
    /// takes that which it learned when it joined.
    pub fn agent_command(&self, subcommand: &str, etcd: &str) -> Vec<String> {
        let mut command = self.enter.clone();
        command.push(agent_binary().to_string_lossy().into_owned());
        command.push(subcommand.to_owned());
        command.extend(self.place());
        if subcommand != "reset" {
            if !etcd.is_empty() {
                command.extend(words(&["--etcd", etcd]));
            }
            command.extend(words(&["--node", &self.name, "--listen", &self.listen]));
            command.extend(words(&["--functions-listen", &self.calls]));
            command.extend(words(&["--vxlan-vni", &self.vxlan.0, "--vxlan-port", &self.vxlan.1]));
            if let Some(ip) = self.node_ip.as_ref().filter(|_| !self.finds_address) {
                command.extend(words(&["--node-ip", ip]));
            }
        }
        command
    }

    /// Runs `minik8s-agent reset` on this node.
    pub fn reset(&self) -> Result<Outcome> {
        let command = self.agent_command("reset", "");
        outcome(std::process::Command::new(&command[0]).args(&command[1..]), secs(60))
    }

    /// Gives its agent no address from the next start on: the agent finds it, and its API listens on every address.
    pub fn find_address(&mut self) {
        self.finds_address = true;
        self.listen = format!("0.0.0.0:{AGENT_PORT}");
    }

    /// Gives the node another address among the nodes, and removes the former one.
    pub fn move_to(&mut self, address: &str, gateway: &str) -> Result<()> {
        let script = format!(
            "ip addr flush dev eth0 && ip addr add {address}/24 dev eth0 && ip route add default via {gateway}"
        );
        self.net.run("sh", &["-c", &script])?;
        self.node_ip = Some(address.to_owned());
        Ok(())
    }

    /// Gives its Docker and its agent the CA of a registry, but not the machine.
    pub fn trust(&self, registry: &str, ca: &Path) -> Result<()> {
        let script = format!(
            "mkdir -p /etc/docker && mount -t tmpfs none /etc/docker && mkdir -p /etc/docker/certs.d/{registry} && \
             cp {} /etc/docker/certs.d/{registry}/ca.crt",
            ca.display()
        );
        let mut command = self.enter.clone();
        command.extend(words(&["sh", "-c", &script]));
        let args: Vec<&str> = command.iter().map(String::as_str).collect();
        run(args[0], &args[1..]).map(drop)
    }

    /// Machine's end of its link.
    pub(crate) fn port(&self) -> Result<String> {
        let number = self.name.strip_prefix(&format!("{}n", self.instance));
        let number =
            number.filter(|_| self.holder.is_some()).context("the machine itself can't be cut off")?;
        Ok(format!("{}h{number}", self.instance))
    }

    /// File of its network namespace.
    pub fn namespace(&self) -> Result<String> {
        let holder = self.holder.as_ref().context("the machine itself has no namespace of its own")?;
        Ok(format!("/proc/{}/ns/net", holder.pid()?))
    }

    /// Command line that starts a program in its namespaces.
    pub fn command(&self, program: &[&str]) -> Vec<String> {
        self.enter.iter().cloned().chain(words(program)).collect()
    }

    /// Root directory of the node, as the machine reaches it.
    pub fn root(&self) -> Result<PathBuf> {
        let holder = self.holder.as_ref().context("the machine itself has no mounts of its own")?;
        Ok(format!("/proc/{}/root", holder.pid()?).into())
    }

    /// Address among the nodes.
    pub fn address(&self) -> Result<&str> {
        self.node_ip.as_deref().context("the machine itself has no address of its own")
    }

    /// Directory of the agent's files.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// Mount points, as the node sees them.
    pub fn mounts(&self) -> Result<Vec<String>> {
        let process =
            self.holder.as_ref().map_or_else(|| Ok("self".to_owned()), |h| h.pid().map(|p| p.to_string()))?;
        let table = fs::read_to_string(format!("/proc/{process}/mounts"))?;
        Ok(table.lines().filter_map(|line| line.split(' ').nth(1)).map(str::to_owned).collect())
    }

    /// Address for callers of functions outside of its namespaces: `address:port`.
    pub fn functions(&self) -> Result<String> {
        match self.enter.is_empty() {
            true => Ok(self.calls.clone()),
            false => Ok(format!("{}:{FUNCTIONS_PORT}", self.address()?)),
        }
    }

    /// Listen address of its agent's API.
    pub fn listen(&self) -> &str {
        &self.listen
    }

    fn place(&self) -> Vec<String> {
        let state = self.state_dir.to_string_lossy();
        words(&["--state-dir", &state, "--instance", &self.instance, "--docker", self.docker.host()])
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        if let Some(mut dockerd) = self.dockerd.take() {
            // Containers that the agent left must go before their daemon.
            let _ = self.docker.remove_by_filter("status=running");
            let _ = self.docker.remove_by_filter("status=exited");
            let _ = dockerd.end(Signal::SIGTERM, secs(30));
        }
        drop(self.holder.take());
    }
}

fn vxlan(slot: &Slot) -> (String, String) {
    (slot.vxlan_vni().to_string(), slot.port(8).to_string())
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn dockerd(enter: &[String], dir: &Path, host: &str, live_restore: bool) -> Vec<String> {
    let mut command = enter.to_vec();
    // Without this, Docker Swarm queries a registry for the image of every task.
    let environment = (!live_restore).then_some("DOCKER_SERVICE_PREFER_OFFLINE_IMAGE=1");
    command.extend(["env"].into_iter().chain(environment).map(str::to_owned));
    command.extend(words(&[
        "dockerd",
        "--data-root",
        &dir.join("data").to_string_lossy(),
        "--exec-root",
        "/run/docker",
        "--pidfile",
        "/run/docker.pid",
        "-H",
        host,
    ]));
    command.extend(live_restore.then(|| "--live-restore".to_owned()));
    command
}

/// Creates the namespace, and a veth from it into the slot's host bridge, which is created if missing.
fn join_bridge(slot: &Slot, name: &str, index: u8, address: &str) -> Result<()> {
    let bridge = format!("{}h", slot.instance());
    let port = format!("{bridge}{index}");
    if !NetWorld::of_machine().links()?.contains(&bridge) {
        run("ip", &["link", "add", &bridge, "type", "bridge"])?;
        run("ip", &["addr", "add", &format!("{}/24", slot.underlay(1)), "dev", &bridge])?;
        run("ip", &["link", "set", &bridge, "up"])?;
        // Docker drops forwarded packets; frames between nodes pass there, too.
        for direction in ["-i", "-o"] {
            run("iptables", &["-w", "-I", "FORWARD", direction, &bridge, "-j", "ACCEPT"])?;
        }
    }
    run("ip", &["netns", "add", name])?;
    run("ip", &["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", name])?;
    run("ip", &["link", "set", &port, "master", &bridge, "up"])?;
    let inside = |args: &[&str]| {
        let mut command = vec!["-n", name];
        command.extend(args);
        run("ip", &command)
    };
    inside(&["link", "set", "lo", "up"])?;
    inside(&["addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
    inside(&["link", "set", "eth0", "up"])?;
    inside(&["route", "add", "default", "via", &slot.underlay(1)])?;
    Ok(())
}
