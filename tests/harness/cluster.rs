//! A whole cluster: etcd, a Git repository, reconcilers and nodes, each a separate process.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use schema::keys::{Key, prefix};
use schema::records::SourceStatus;
use schema::trust::{Identity, Role};

use crate::binaries::minik8s_binary;
use crate::docker_world::ContainerView;
use crate::etcd::Etcd;
use crate::git_http::GitHttp;
use crate::git_repo::{Change, GitRepo};
use crate::http::http_get;
use crate::image::ensure_python;
use crate::net_world::NetWorld;
use crate::node::Node;
use crate::process::{Daemon, Outcome, last_lines, outcome};
use crate::slot::Slot;
use crate::trust::Trust;
use crate::wait::{eventually, secs};

/// Bound of every wait in a story: far above the needs of the slowest machine, because a
/// bound that is met by luck is worse than none.
const PATIENCE: Duration = Duration::from_secs(45);
/// Password of the repository over HTTP.
const TOKEN: &str = "let-me-in";

/// Kind of the cluster's nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// The machine, with its own Docker.
    Host,
    /// This many nodes in namespaces, each with its own Docker.
    Namespaces(u8),
}

/// Access of the reconciler to the repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepoAccess {
    /// `file://`.
    File,
    /// HTTP with a token.
    HttpToken,
}

/// Options of a story's cluster.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    pub place: Where,
    /// Access to the repository.
    pub repo: RepoAccess,
    /// Number of reconcilers; the first starts first.
    pub reconcilers: u16,
    /// Interval of their polls of the repository.
    pub poll: &'static str,
    /// Folder of the repository that they read; empty for the whole repository.
    pub path: &'static str,
    /// Lets containers of nodes in namespaces outlive their Docker. Docker Swarm does not allow it.
    pub live_restore: bool,
    /// Gives nodes the base images of Python functions.
    pub python: bool,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            place: Where::Host,
            repo: RepoAccess::File,
            reconcilers: 1,
            poll: "500ms",
            path: "",
            live_restore: true,
            python: false,
        }
    }
}

/// A running cluster. Dropping it removes everything.
#[derive(Debug)]
pub struct Cluster {
    pub reconcilers: Vec<Daemon>,
    /// Nodes with their agents.
    pub nodes: Vec<Node>,
    pub etcd: Etcd,
    /// Repository that people push to.
    pub repo: GitRepo,
    /// Server of the repository, if it is reached over HTTP.
    pub forge: Option<GitHttp>,
    /// Certificates of its daemons, and of the tests.
    pub trust: Arc<Trust>,
    /// True if the story takes the user of an agent away from etcd.
    expects_denials: bool,
    options: ClusterOptions,
    slot: Slot,
}

/// A pod as Docker shows it: every container runs, exactly once.
#[derive(Debug, Clone)]
pub struct PodView {
    /// Container that owns the pod's namespaces.
    pub pause: ContainerView,
    /// Containers by their name in the pod.
    pub containers: BTreeMap<String, ContainerView>,
}

impl PodView {
    pub fn container(&self, name: &str) -> Result<&ContainerView> {
        self.containers.get(name).with_context(|| format!("the pod has no container {name}"))
    }

    /// Address of the pod, without the prefix length.
    pub fn address(&self) -> Result<&str> {
        self.pause.label("ip").split('/').next().filter(|ip| !ip.is_empty()).context("no address label")
    }

    /// Id and start time of every container: unchanged if nothing was touched.
    pub fn lives(&self) -> BTreeMap<String, String> {
        let all = self.containers.values().chain([&self.pause]);
        all.map(|container| (container.id.clone(), container.started_at.clone())).collect()
    }
}

impl Cluster {
    /// Runs a story on a fresh cluster; shows the daemons' logs if it fails.
    pub fn run(options: ClusterOptions, story: impl FnOnce(&mut Cluster) -> Result<()>) -> Result<()> {
        let mut cluster = Self::prepare(options)?;
        cluster.run_story(|cluster| {
            cluster.start_all()?;
            story(cluster)
        })
    }

    /// Runs a story, in which no agent may want more of etcd than its role; shows the daemons' logs if it fails.
    pub fn run_story(&mut self, story: impl FnOnce(&mut Cluster) -> Result<()>) -> Result<()> {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            story(self)?;
            self.agents_kept_to_their_roles()
        }));
        if !matches!(outcome, Ok(Ok(()))) {
            self.show_logs();
        }
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Prepares everything without starting the daemons: etcd, reconcilers and agents.
    pub fn prepare(options: ClusterOptions) -> Result<Self> {
        let slot = Slot::take()?;
        let underlay = slot.underlay(1);
        let trust = Arc::new(Trust::create(slot.dir(), &["127.0.0.1", "localhost", &underlay])?);
        let mut nodes = match options.place {
            Where::Host => vec![Node::host(&slot, &trust)?],
            Where::Namespaces(count) => namespaces(&slot, count, options.live_restore, &trust)?,
        };
        if options.python {
            side_by_side(&nodes, |node| ensure_python(&node.docker))?;
        }
        let also = (options.place != Where::Host).then_some(underlay.as_str());
        let etcd = Etcd::new(slot.dir(), slot.port(4), slot.port(5), also, &trust)?;
        let repo = GitRepo::create(slot.dir())?;
        let forge = match options.repo {
            RepoAccess::File => None,
            RepoAccess::HttpToken => Some(GitHttp::serve(slot.dir(), slot.port(6), TOKEN)?),
        };
        std::fs::write(slot.dir().join("token"), TOKEN)?;
        if !options.path.is_empty() {
            let note = Change::write(format!("{}/README.md", options.path), "# Manifests\n");
            repo.push(&[note], "Make the folder")?;
        }
        let mut cluster = Self {
            reconcilers: Vec::new(),
            nodes: Vec::new(),
            etcd,
            repo,
            forge,
            trust,
            expects_denials: false,
            options,
            slot,
        };
        let all = 0..cluster.options.reconcilers;
        for index in all.clone() {
            cluster.fill_reconciler(index)?;
            let (name, command) = (format!("serve-{index}"), cluster.serve_command(index));
            cluster.reconcilers.push(Daemon::new(name, cluster.slot.dir(), command));
        }
        let urls: Vec<String> = all.map(|index| format!("https://{}", cluster.listen(index))).collect();
        for node in &mut nodes {
            node.reconcilers.clone_from(&urls);
            node.fill_state()?;
        }
        cluster.nodes = nodes;
        Ok(cluster)
    }

    /// Gives reconciler `index` its certificate and the authority, unless it has them.
    pub fn fill_reconciler(&self, index: u16) -> Result<()> {
        self.trust.fill_reconciler(&self.dir(&format!("state-r{index}")), &format!("r{index}"))
    }

    /// Gives a further reconciler what its join would have given it; etcd runs.
    pub fn admit_reconciler(&self, index: u16) -> Result<()> {
        self.fill_reconciler(index)?;
        let (key, record) = self.trust.record(&Identity::new(Role::Reconciler, &format!("r{index}"))?)?;
        self.etcd.put(key, &record)?;
        eventually("the leader has made its user", secs(20), || {
            self.etcd.etcdctl(&["user", "get", &format!("reconciler-r{index}")]).map(drop)
        })
    }

    /// Starts etcd, which then knows all nodes, as if they had joined.
    pub fn start_etcd(&mut self) -> Result<()> {
        self.etcd.start()?;
        let nodes = self.nodes.iter().map(|node| (Role::Node, node.name.clone()));
        let reconcilers = (0..self.options.reconcilers).map(|index| (Role::Reconciler, format!("r{index}")));
        for (role, name) in nodes.chain(reconcilers) {
            let (key, record) = self.trust.record(&Identity::new(role, &name)?)?;
            self.etcd.put(key, &record)?;
        }
        Ok(())
    }

    /// Starts everything that [`Cluster::prepare`] prepared, and waits until it answers.
    pub fn start_all(&mut self) -> Result<()> {
        self.start_etcd()?;
        for index in 0..self.reconcilers.len() {
            self.reconcilers[index].start()?;
            self.wait_reconciler(index)?;
        }
        let etcd = self.etcd_for_nodes();
        self.nodes.iter_mut().try_for_each(|node| node.begin_agent(&etcd))?;
        self.nodes.iter().try_for_each(|node| node.wait_agent().with_context(|| node.agent.log_tail()))?;
        self.registered()
    }

    /// Waits until every node can take pods: it beats, and has a range of addresses.
    fn registered(&self) -> Result<()> {
        eventually("all nodes are registered", PATIENCE, || {
            for node in &self.nodes {
                for key in [Key::Heartbeat(node.name.clone()), Key::Subnet(node.name.clone())] {
                    ensure!(self.etcd.key(&key)?.is_some(), "no {key}");
                }
            }
            Ok(())
        })
    }

    /// Lets agents be refused by etcd in this story.
    pub fn expect_denials(&mut self) {
        self.expects_denials = true;
    }

    /// Checks that no agent made an etcd request outside of its node's role.
    pub(crate) fn agents_kept_to_their_roles(&self) -> Result<()> {
        for node in self.nodes.iter().filter(|_| !self.expects_denials) {
            let log = std::fs::read_to_string(node.agent.log_path()).unwrap_or_default();
            let refused: Vec<&str> =
                log.lines().filter(|line| line.contains("etcdserver: permission denied")).collect();
            ensure!(refused.is_empty(), "{} wants more than its role: {refused:#?}", node.name);
        }
        Ok(())
    }

    /// Command line of reconciler `index`.
    pub fn serve_command(&self, index: u16) -> Vec<String> {
        let state = self.slot.dir().join(format!("state-r{index}"));
        let mut command = vec![minik8s_binary().to_string_lossy().into_owned(), "serve".to_owned()];
        for (flag, value) in [
            ("--repo", self.repo_url()),
            ("--etcd", self.etcd.endpoint().to_owned()),
            ("--state-dir", state.to_string_lossy().into_owned()),
            ("--listen", self.listen(index)),
            ("--socket", self.socket(index).to_string_lossy().into_owned()),
            ("--poll", self.options.poll.to_owned()),
            ("--cluster-cidr", self.slot.cluster_cidr()),
            ("--service-cidr", self.slot.service_cidr()),
            ("--name", format!("r{index}")),
            ("--local-node", format!("{}n0", self.slot.instance())),
        ] {
            command.extend([flag.to_owned(), value]);
        }
        // Its users are the reconcilers' to make.
        command.push("--own-etcd".to_owned());
        if !self.options.path.is_empty() {
            command.extend(["--path".to_owned(), self.options.path.to_owned()]);
        }
        if self.forge.is_some() {
            command.extend(["--token-file".to_owned(), self.dir("token").to_string_lossy().into_owned()]);
        }
        command
    }

    /// URL of the repository.
    pub fn repo_url(&self) -> String {
        match &self.forge {
            Some(forge) => forge.url("repo.git"),
            None => format!("file://{}", self.repo.bare().display()),
        }
    }

    /// API of reconciler `index` as this machine reaches it, for [`http_get`]: `unix:path`.
    pub fn api(&self, index: u16) -> String {
        format!("unix:{}", self.socket(index).display())
    }

    /// The same for the CLI.
    pub fn server(&self, index: u16) -> String {
        format!("unix://{}", self.socket(index).display())
    }

    /// Socket of reconciler `index`.
    pub fn socket(&self, index: u16) -> PathBuf {
        self.dir(&format!("r{index}.sock"))
    }

    /// Address of reconciler `index` with TLS, also reachable by nodes, which fetch content there.
    pub fn listen(&self, index: u16) -> String {
        let port = self.slot.port(index);
        match self.options.place {
            Where::Host => format!("127.0.0.1:{port}"),
            Where::Namespaces(_) => format!("{}:{port}", self.slot.underlay(1)),
        }
    }

    /// Node by its number, counted from 1 as in its name.
    pub fn numbered(&self, number: usize) -> Result<&Node> {
        self.nodes.get(number - 1).with_context(|| format!("there is no node {number}"))
    }

    /// Node whose Docker runs the pod.
    pub fn node_of(&self, pod: &PodView) -> Result<&Node> {
        for node in &self.nodes {
            let there = node.docker.containers(&self.slot.instance())?;
            if there.iter().any(|container| container.id == pod.pause.id) {
                return Ok(node);
            }
        }
        anyhow::bail!("no node runs {}", pod.pause.name)
    }

    /// Output of a command in a container of a pod, on whichever node it is.
    pub fn exec(&self, pod: &PodView, container: &str, command: &[&str]) -> Result<String> {
        self.node_of(pod)?.docker.exec(pod.container(container)?, command)
    }

    /// Network of a pod, on whichever node it is.
    pub fn net_of(pod: &PodView) -> NetWorld {
        NetWorld::of_process(pod.pause.pid)
    }

    /// Slot, for names and ports.
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// The first node.
    pub fn node(&self) -> &Node {
        &self.nodes[0]
    }

    /// The first node, for starting and stopping its parts.
    pub fn node_mut(&mut self) -> &mut Node {
        &mut self.nodes[0]
    }

    /// Path in the cluster's own folder.
    pub fn dir(&self, name: &str) -> PathBuf {
        self.slot.dir().join(name)
    }

    /// Address of etcd as nodes reach it.
    pub fn etcd_for_nodes(&self) -> String {
        match self.options.place {
            Where::Host => self.etcd.endpoint().to_owned(),
            Where::Namespaces(_) => format!("https://{}:{}", self.slot.underlay(1), self.slot.port(4)),
        }
    }

    /// Starts the first node's agent (again).
    pub fn start_agent(&mut self) -> Result<()> {
        let etcd = self.etcd_for_nodes();
        self.nodes[0].start_agent(&etcd)
    }

    /// Stops etcd and the first reconciler, and starts etcd empty: without its users, and without a login until a
    /// reconciler leads.
    pub fn lose_etcd(&mut self) -> Result<()> {
        self.expect_denials();
        self.reconcilers[0].kill()?;
        self.etcd.daemon.kill()?;
        std::fs::remove_dir_all(self.etcd.data_dir())?;
        self.etcd.start()
    }

    /// Waits until etcd is settled for all nodes: before that no pod is stopped, because etcd may just have been
    /// lost.
    pub fn settled(&self) -> Result<()> {
        eventually("etcd is settled", secs(60), || {
            for node in &self.nodes {
                let settled = Key::Settled(node.name.clone());
                ensure!(self.etcd.key(&settled)?.is_some(), "no {settled}");
            }
            Ok(())
        })
    }

    /// Waits until reconciler `index` answers.
    pub fn wait_reconciler(&self, index: usize) -> Result<()> {
        let api = self.api(u16::try_from(index)?);
        eventually("the reconciler answers", PATIENCE, || {
            let (code, body) = http_get(&api, "/v1/healthz")?;
            ensure!(code == 200, "{code} {body}");
            Ok(())
        })
    }

    /// Runs `minik8s ARGS` against the first reconciler.
    pub fn cli(&self, args: &[&str]) -> Result<Outcome> {
        outcome(&mut self.cli_command(args), secs(60))
    }

    /// Prepares `minik8s ARGS` against the first reconciler.
    pub fn cli_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(minik8s_binary());
        command.args(args).env("MINIK8S_SERVER", self.server(0));
        command
    }

    /// Pushes, and waits until the reconciler reports the commit as applied.
    pub fn push(&self, changes: &[Change], message: &str) -> Result<String> {
        let commit = self.repo.push(changes, message)?;
        self.applied(&commit)?;
        Ok(commit)
    }

    /// Waits until the commit, or its good part, is applied.
    pub fn applied(&self, commit: &str) -> Result<SourceStatus> {
        self.source_where(&format!("commit {commit} is applied"), |source| {
            source.applied_commit.as_deref() == Some(commit)
        })
    }

    /// Waits until the source's status in etcd is as wanted.
    pub fn source_where(&self, what: &str, wanted: impl Fn(&SourceStatus) -> bool) -> Result<SourceStatus> {
        eventually(what, PATIENCE, || {
            let source: SourceStatus = self.etcd.value(Key::Source("main".to_owned()))?;
            ensure!(wanted(&source), "{source:?}");
            Ok(source)
        })
    }

    /// Every container of the cluster, on all nodes.
    pub fn containers(&self) -> Result<Vec<ContainerView>> {
        let mut all = Vec::new();
        for node in &self.nodes {
            all.extend(node.docker.containers(&self.slot.instance())?);
        }
        Ok(all)
    }

    /// Id and start time of every container of the cluster.
    pub fn lives(&self) -> Result<BTreeMap<String, String>> {
        Ok(self.containers()?.into_iter().map(|container| (container.id, container.started_at)).collect())
    }

    /// The pod `name` of namespace `default` as it is in Docker at this moment; an error if it
    /// does not run completely or if a container exists twice.
    pub fn pod(&self, name: &str) -> Result<PodView> {
        let mut pause = None;
        let mut containers = BTreeMap::new();
        for container in self.containers()? {
            // An ended container may be kept next to its successor, for its log.
            let of_pod = (container.label("namespace"), container.label("pod")) == ("default", name);
            if !of_pod || !container.running {
                continue;
            }
            let second = match container.label("container") {
                "POD" => pause.replace(container),
                own => containers.insert(own.to_owned(), container),
            };
            ensure!(second.is_none(), "there are two of {:?}", second.map(|container| container.name));
        }
        let pause = pause.with_context(|| format!("pod {name} has no pause container"))?;
        ensure!(!containers.is_empty(), "pod {name} has only a pause container");
        Ok(PodView { pause, containers })
    }

    /// Waits until the pod runs with exactly these containers.
    pub fn running(&self, name: &str, containers: &[&str]) -> Result<PodView> {
        eventually(&format!("pod {name} runs with {containers:?}"), PATIENCE, || {
            let pod = self.pod(name)?;
            ensure!(pod.containers.keys().eq(containers), "it has {:?}", pod.containers.keys());
            Ok(pod)
        })
    }

    /// Waits until the pod runs and answers `text` at its own address, port 8080.
    pub fn serving(&self, name: &str, text: &str) -> Result<PodView> {
        eventually(&format!("pod {name} says {text:?}"), PATIENCE, || {
            let (code, body) = self.get_from_node(self.pod(name)?.address()?, 8080, "/")?;
            ensure!(code == 200 && body.trim() == text, "it says {code} {body:?}");
            // Read after the answer: the process that gave it may have started just before.
            self.pod(name)
        })
    }

    /// Requests an address from the first node's network.
    pub fn get_from_node(&self, host: &str, port: u16, path: &str) -> Result<(u16, String)> {
        match self.options.place {
            Where::Host => http_get(&format!("{host}:{port}"), path),
            Where::Namespaces(_) => {
                let url = format!("http://{host}:{port}{path}");
                let text = self.node().net.run("curl", &["-s", "-m", "5", "-w", "\n%{http_code}", &url])?;
                let (body, code) = text.rsplit_once('\n').context("curl said nothing")?;
                Ok((code.parse()?, body.to_owned()))
            }
        }
    }

    /// Waits until no container of the pod is left.
    pub fn gone(&self, name: &str) -> Result<()> {
        eventually(&format!("pod {name} is gone"), PATIENCE, || {
            let left: Vec<_> = self.containers()?.into_iter().filter(|c| c.label("pod") == name).collect();
            ensure!(left.is_empty(), "{:?} are left", left.iter().map(|c| &c.name).collect::<Vec<_>>());
            Ok(())
        })
    }

    pub(crate) fn show_logs(&self) {
        let agents = self.nodes.iter().map(|node| &node.agent);
        let dockers = self.nodes.iter().filter_map(|node| node.dockerd.as_ref());
        // Other daemons come first and short: the important part is last.
        let others = [&self.etcd.daemon].into_iter().chain(dockers).map(|daemon| (daemon, 5));
        let ours = self.reconcilers.iter().chain(agents).map(|daemon| (daemon, 40));
        for (daemon, lines) in others.chain(ours) {
            eprintln!("---- end of {} ----", daemon.log_path().display());
            eprintln!("{}", last_lines(&daemon.log_tail(), lines));
        }
        // Events about objects, which are not in the logs.
        match self.etcd.list(prefix::EVENTS) {
            Ok(mut events) => {
                events.retain(|event| event.value.contains(r#""Warning""#));
                events.sort_by_key(|event| event.mod_revision);
                eprintln!("---- the last of {} warnings ----", events.len());
                events.iter().skip(events.len().saturating_sub(40)).for_each(|e| eprintln!("{}", e.value));
            }
            Err(error) => eprintln!("events: {error:#}"),
        }
        match self.containers() {
            Ok(containers) => containers.iter().for_each(|c| eprintln!("{} running={}", c.name, c.running)),
            Err(error) => eprintln!("docker: {error:#}"),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for reconciler in &mut self.reconcilers {
            let _ = reconciler.kill();
        }
        // In parallel: each takes seconds, mostly waiting.
        std::thread::scope(|scope| {
            let ends: Vec<_> = self.nodes.drain(..).map(|node| scope.spawn(move || end(node))).collect();
            // A panic here would end all tests.
            ends.into_iter().for_each(|end| drop(end.join()));
        });
        let _ = self.etcd.daemon.kill();
    }
}

fn end(mut node: Node) {
    let _ = node.agent.kill();
    // The product's own cleanup first; the sweep after it covers the case that it is broken.
    match node.reset() {
        Ok(said) if said.code == 0 => {}
        Ok(said) => eprintln!("minik8s-agent reset failed: {}", said.stderr),
        Err(error) => eprintln!("minik8s-agent reset failed: {error:#}"),
    }
}

/// Starts nodes in parallel. Daemons die with the thread that starts them, so only the waiting is done in others.
fn namespaces(slot: &Slot, count: u8, live_restore: bool, trust: &Arc<Trust>) -> Result<Vec<Node>> {
    let nodes = (1..=count).map(|index| Node::in_namespace(slot, index, live_restore, trust));
    let nodes: Vec<Node> = nodes.collect::<Result<_>>()?;
    side_by_side(&nodes, Node::wait_ready)?;
    Ok(nodes)
}

fn side_by_side(nodes: &[Node], act: impl Fn(&Node) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let acts: Vec<_> = nodes.iter().map(|node| scope.spawn(|| act(node))).collect();
        acts.into_iter().try_for_each(|act| act.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}
