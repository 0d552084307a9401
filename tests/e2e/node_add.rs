//! `minik8s node add` makes a machine with nothing but Docker and sshd a node, changes nothing the second time, and starts
//! an agent again that has other settings or ended. Pods stay as they are.

use std::fs;
use std::path::{Path, PathBuf};

use harness::manifests::web;
use harness::{
    Change, Cluster, ClusterOptions, Context, Daemon, Node, Outcome, Result, Where, agent_binary, ensure,
    eventually, outcome, run, secs,
};
use schema::keys::prefix;

/// A machine that is added, as ssh reaches it.
struct Machine {
    name: String,
    destination: String,
    /// Folder of sshd, its keys, and what the machine has as /usr/local/bin.
    dir: PathBuf,
    state_dir: PathBuf,
    /// Flags of its agent.
    flags: Vec<String>,
    _sshd: Daemon,
}

#[test]
fn a_machine_becomes_a_node_over_ssh_and_stays_one_when_it_is_added_again() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(2), ..ClusterOptions::default() };
    Cluster::prepare(options)?.run_story(|cluster| {
        let fresh = cluster.nodes.pop().context("no node")?;
        fs::remove_dir_all(fresh.state_dir())?;
        cluster.start_all()?;
        let machine = Machine::new(&fresh, &cluster.dir("ssh"))?;
        let pod = web("there").on(&fresh.name).to_string();
        cluster.push(&[Change::write("there.yaml", pod)], "A pod for the node that is added")?;
        cluster.nodes.push(fresh);
        let told = machine.story(cluster);
        let log = fs::read_to_string(machine.state_dir.join("logs/agent.log")).unwrap_or_default();
        let ended = machine.end_agent();
        told.with_context(|| log)?;
        ended
    })
}

impl Machine {
    /// Starts sshd in the namespaces of a node, for root with a key.
    fn new(node: &Node, dir: &Path) -> Result<Self> {
        let bin = dir.join("bin");
        fs::create_dir_all(&bin)?;
        fs::create_dir_all(dir.join("home"))?;
        let at = |name: &str| dir.join(name).display().to_string();
        for key in ["host", "id"] {
            run("ssh-keygen", &["-q", "-N", "", "-C", "", "-t", "ed25519", "-f", &at(key)])?;
        }
        // Empty: sshd's shell runs the startup files in the home folder before each command.
        let settings = format!(
            "Port 22\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\nStrictModes no\n\
             PasswordAuthentication no\nPermitRootLogin yes\nSetEnv HOME={}\n",
            at("host"),
            at("id.pub"),
            at("home")
        );
        fs::write(dir.join("config"), settings)?;
        let address = node.address()?.to_owned();
        fs::write(
            dir.join("known_hosts"),
            format!("{address} {}", fs::read_to_string(dir.join("host.pub"))?),
        )?;
        // The folder is the machine's own, not that of the node.
        let script = format!("mkdir -p /run/sshd && mount --bind {} /usr/local/bin", bin.display());
        let prepare = node.command(&["sh", "-c", &script]);
        run(&prepare[0], &prepare[1..].iter().map(String::as_str).collect::<Vec<_>>())?;
        let mut sshd =
            Daemon::new("sshd", dir, node.command(&["/usr/sbin/sshd", "-D", "-e", "-f", &at("config")]));
        sshd.start()?;
        Ok(Self {
            name: node.name.clone(),
            destination: format!("root@{address}"),
            dir: dir.to_owned(),
            state_dir: node.state_dir().to_owned(),
            flags: flags(node),
            _sshd: sshd,
        })
    }

    /// Runs `minik8s node add` with further words.
    fn add(&self, cluster: &Cluster, more: &[&str]) -> Result<Outcome> {
        let state_dir = self.state_dir.to_string_lossy();
        let mut command = cluster.cli_command(&["node", "add", &self.destination, "--name", &self.name]);
        command.args(["--state-dir", &state_dir]);
        let file = |name: &str| self.dir.join(name).display().to_string();
        for option in [
            format!("IdentityFile={}", file("id")),
            format!("UserKnownHostsFile={}", file("known_hosts")),
            "IdentitiesOnly=yes".to_owned(),
            "StrictHostKeyChecking=yes".to_owned(),
        ] {
            command.args(["--ssh-option", &option]);
        }
        command.args(self.flags.iter().map(|flag| format!("--agent-arg={flag}"))).args(more);
        outcome(&mut command, secs(180))
    }

    fn story(&self, cluster: &Cluster) -> Result<()> {
        let said = self.first_add(cluster)?;
        println!("{said}");
        let pod = cluster.running("there", &["web"])?;
        cluster.serving("there", "hello from there")?;

        let (pid, tokens) = (self.pid()?, cluster.etcd.list(prefix::JOINS)?.len());
        let again = self.add(cluster, &[])?.ok()?;
        ensure!(again.contains("nothing to change") && again.contains("is Ready"), "{again}");
        ensure!(self.pid()? == pid, "the agent was started again");
        ensure!(cluster.etcd.list(prefix::JOINS)?.len() == tokens, "another token was made");

        let changed = self.add(cluster, &["--agent-arg=--image-gc-high=90"])?.ok()?;
        ensure!(changed.contains("wrote the settings") && changed.contains("started"), "{changed}");
        ensure!(!changed.contains("copied") && !changed.contains("joined"), "{changed}");
        let next = self.pid()?;
        ensure!(next != pid && self.command_line()?.contains("--image-gc-high=90"), "{next}");

        self.end_agent()?;
        let ended = self.add(cluster, &["--agent-arg=--image-gc-high=90"])?.ok()?;
        ensure!(ended.contains("started") && !ended.contains("wrote"), "{ended}");
        let there = cluster.running("there", &["web"])?;
        ensure!(there.lives() == pod.lives(), "a container was touched");
        Ok(())
    }

    fn first_add(&self, cluster: &Cluster) -> Result<String> {
        let stranger = self.add(cluster, &["--ssh-option", "Port=1"])?;
        ensure!(stranger.code == 1 && stranger.stderr.contains("cannot log in"), "{stranger:?}");
        let said = self.add(cluster, &[])?.ok()?;
        for words in
            ["copied the agent to /usr/local/bin", "joined as node-", "started the agent", "is Ready"]
        {
            ensure!(said.contains(words), "no {words:?} in {said}");
        }
        run(
            "cmp",
            &[&agent_binary().to_string_lossy(), &self.dir.join("bin/minik8s-agent").to_string_lossy()],
        )?;
        let nodes = cluster.cli(&["get", "nodes"])?.ok()?;
        let row = nodes.lines().find(|row| row.starts_with(&self.name)).context("it is not listed")?;
        ensure!(row.contains("Ready") && !row.contains("NotReady"), "{row}");
        ensure!(self.command_line()?.starts_with("/usr/local/bin/minik8s-agent run"), "it runs otherwise");
        Ok(said)
    }

    fn pid(&self) -> Result<String> {
        Ok(fs::read_to_string(self.state_dir.join("run/agent.pid"))?.trim().to_owned())
    }

    fn command_line(&self) -> Result<String> {
        Ok(fs::read_to_string(format!("/proc/{}/cmdline", self.pid()?))?.replace('\0', " "))
    }

    /// Kills the agent, which is no child of this program.
    fn end_agent(&self) -> Result<()> {
        let Ok(pid) = self.pid() else { return Ok(()) };
        let program = format!("/proc/{pid}/exe");
        if fs::read_link(&program).is_ok_and(|path| path.ends_with("minik8s-agent")) {
            run("kill", &["-KILL", &pid])?;
        }
        eventually("the agent is gone", secs(10), || {
            ensure!(fs::read_link(&program).is_err(), "it runs");
            Ok(())
        })
    }
}

/// Flags of a node's agent, each as one word, without those that `node add` gives itself.
fn flags(node: &Node) -> Vec<String> {
    let command = node.agent_command("run", "");
    let words = command.iter().skip_while(|word| *word != "run").skip(1).collect::<Vec<_>>();
    let pairs = words.chunks_exact(2).filter(|pair| !["--state-dir", "--node"].contains(&pair[0].as_str()));
    pairs.map(|pair| format!("{}={}", pair[0], pair[1])).collect()
}
