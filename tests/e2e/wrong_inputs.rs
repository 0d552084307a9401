//! Wrong inputs: one line with the fault, its place and a remedy; a nonzero exit code; nothing left behind.
//!
//! Fails when a failed start does not undo its lock (`StateLock::undo`).

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{
    Change, Cluster, ClusterOptions, Context, Outcome, Result, agent_binary, ensure, eventually, outcome,
    secs,
};

/// A wrong input: the command, and the words required in its one line.
struct Case {
    what: &'static str,
    command: Vec<String>,
    says: Vec<String>,
}

#[test]
fn each_wrong_input_ends_with_one_line_that_says_what_where_and_what_to_do() -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions::default())?;
    cluster.etcd.start()?;
    let taken = TcpListener::bind(("127.0.0.1", cluster.slot().port(10)))?;
    let taken = taken.local_addr()?.to_string();
    for case in cases(&cluster, &taken)? {
        let mut command = Command::new(&case.command[0]);
        let said = outcome(command.args(&case.command[1..]), secs(40)).context(case.what)?;
        one_line(&said, &case).with_context(|| format!("{}: it said {said:?}", case.what))?;
        nothing_left(&cluster).with_context(|| format!("{} left something", case.what))?;
    }
    Ok(())
}

fn cases(cluster: &Cluster, taken: &str) -> Result<Vec<Case>> {
    let serve = |flag: &str, value: &str| with(cluster.serve_command(0), flag, value);
    let etcd = cluster.etcd_for_nodes();
    let agent = |flag: &str, value: &str| with(cluster.node().agent_command("run", &etcd), flag, value);
    let dead_etcd = agent("--etcd", "http://127.0.0.1:1");
    let file = cluster.dir("a-file");
    std::fs::write(&file, "in the way")?;
    let file = file.to_string_lossy().into_owned();
    let nowhere = format!("file://{}", cluster.dir("nowhere.git").display());
    let socket = cluster.dir("none.sock").to_string_lossy().into_owned();
    let case = |what, command, says: &[&str]| Case {
        what,
        command,
        says: says.iter().map(|word| (*word).to_owned()).collect(),
    };
    Ok(vec![
        case("repository that is not there", serve("--repo", &nowhere), &["nowhere.git", "--repo"]),
        case(
            "branch that is not there",
            serve("--branch", "no-such-branch"),
            &["no-such-branch", "--branch"],
        ),
        case("etcd that is not there", serve("--etcd", "http://127.0.0.1:1"), &["127.0.0.1:1", "etcd"]),
        case(
            "etcd that is not there, for an agent that knows nothing",
            dead_etcd,
            &["127.0.0.1:1", "--etcd"],
        ),
        case("port of the API taken", serve("--listen", taken), &[taken, "--listen"]),
        case("port of the agent taken", agent("--listen", taken), &[taken, "--listen"]),
        case("no Docker socket", agent("--docker", &format!("unix://{socket}")), &["none.sock", "Docker"]),
        case(
            "file as the reconciler's state directory",
            serve("--state-dir", &file),
            &["a-file", "--state-dir"],
        ),
        case("file as the agent's state directory", agent("--state-dir", &file), &["a-file", "--state-dir"]),
        case("agent that is not root", as_nobody(cluster)?, &["root"]),
    ])
}

/// The command with one flag's value replaced, or the flag added.
fn with(mut command: Vec<String>, flag: &str, value: &str) -> Vec<String> {
    match command.iter().position(|word| word == flag) {
        Some(at) => value.clone_into(&mut command[at + 1]),
        None => command.extend([flag.to_owned(), value.to_owned()]),
    }
    command
}

/// The agent as `nobody`, from a copy that `nobody` may read.
fn as_nobody(cluster: &Cluster) -> Result<Vec<String>> {
    let copy: PathBuf = cluster.dir("minik8s-agent");
    std::fs::copy(agent_binary(), &copy)?;
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755))?;
    let mut command = cluster.node().agent_command("run", &cluster.etcd_for_nodes());
    copy.to_string_lossy().as_ref().clone_into(&mut command[0]);
    let setpriv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    Ok(setpriv.iter().map(|word| (*word).to_owned()).chain(command).collect())
}

fn one_line(said: &Outcome, case: &Case) -> Result<()> {
    ensure!(said.code == 1, "exit code {}", said.code);
    let lines: Vec<&str> = said.stderr.lines().collect();
    ensure!(lines.len() == 1, "{} lines on standard error", lines.len());
    ensure!(lines[0].starts_with("minik8s: ") || lines[0].starts_with("minik8s-agent: "), "no program named");
    ensure!(lines[0].contains("; "), "it does not say what to do");
    for word in &case.says {
        ensure!(lines[0].contains(word.as_str()), "it does not name {word}");
    }
    Ok(())
}

/// Checks that there is no container, link, rule, key of etcd or file in a state directory, but what joining has left.
fn nothing_left(cluster: &Cluster) -> Result<()> {
    let slot = cluster.slot();
    ensure!(cluster.containers()?.is_empty(), "containers");
    let links = cluster.node().net.links()?;
    ensure!(links.iter().all(|link| !link.starts_with(&slot.instance())), "links: {links:?}");
    let rules = cluster.node().net.rules()?;
    ensure!(rules.iter().all(|rule| !rule.contains(&slot.chain_prefix())), "rules");
    let keys = cluster.etcd.list("/minik8s/")?;
    ensure!(keys.is_empty(), "keys of etcd: {keys:?}");
    let state = [cluster.dir("state-r0"), cluster.node().state_dir().to_owned()];
    // The lock is in the folder that joining has made.
    let is_left = |file: &PathBuf| {
        !file.to_string_lossy().contains("/pki/")
            && !file.ends_with("cluster.json")
            && !file.ends_with("agent/lock")
    };
    let files: Vec<_> = state.iter().flat_map(|dir| files_below(dir)).filter(is_left).collect();
    ensure!(files.is_empty(), "files: {files:?}");
    Ok(())
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            files.extend(files_below(&entry.path()));
        } else {
            files.push(entry.path());
        }
    }
    files
}

#[test]
fn an_image_that_is_not_there_is_named_with_what_to_do_and_leaves_no_container() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        let image = "localhost:1/no-such-image:9";
        let pod = harness::manifests::web("shop").image(image).to_string();
        let commit = cluster.push(&[Change::write("shop.yaml", pod)], "Wrong image")?;
        eventually("the table says why", secs(30), || {
            let said = cluster.cli(&["get", "pods"])?.ok()?;
            ensure!(said.contains("ErrImagePull") || said.contains("ImagePullBackOff"), "{said}");
            Ok(())
        })?;
        let said = cluster.cli(&["describe", "pod/shop"])?.ok()?;
        ensure!(said.contains(image), "{said}");

        let said = cluster.cli(&["wait", "--for", "healthy", "--commit", &commit, "--timeout", "3s"])?;
        ensure!(said.code == 1, "{said:?}");
        ensure!(said.stderr.lines().count() == 1, "{said:?}");
        ensure!(said.stderr.contains("shop") && said.stderr.contains(image), "{said:?}");

        cluster.push(&[Change::write("shop.yaml", harness::manifests::web("shop").to_string())], "Mend")?;
        cluster.serving("shop", "hello from shop")?;
        ensure!(cluster.containers()?.len() == 2, "{:?}", cluster.containers()?);
        Ok(())
    })
}
