//! Runs one reconciler after another on a cluster's etcd, each with its own flags: for stories about
//! access to a repository, which need no node.

use std::fs;
use std::process::Command;

use harness::{Cluster, Daemon, Outcome, Result, ensure, eventually, minik8s_binary, outcome, secs};
use nix::sys::signal::Signal;
use schema::keys::Key;
use schema::records::SourceStatus;

/// Command line of a reconciler with its own state directory.
pub(crate) fn command(cluster: &Cluster, name: &str, flags: &[String]) -> Vec<String> {
    let state = cluster.dir(&format!("state-{name}"));
    cluster.trust.fill_reconciler(&state, "r0").expect("the slot's folder can be written");
    let mut command: Vec<String> =
        [&*minik8s_binary().to_string_lossy(), "serve", "--own-etcd"].map(str::to_owned).into();
    for (flag, value) in [
        ("--etcd", cluster.etcd.endpoint().to_owned()),
        ("--state-dir", state.to_string_lossy().into_owned()),
        ("--listen", cluster.listen(0)),
        ("--socket", cluster.socket(0).to_string_lossy().into_owned()),
        ("--cluster-cidr", cluster.slot().cluster_cidr()),
        ("--name", "r0".to_owned()),
        ("--local-node", format!("{}n0", cluster.slot().instance())),
    ] {
        command.extend([flag.to_owned(), value]);
    }
    command.extend(flags.iter().cloned());
    command
}

/// Runs a reconciler that can't start, and checks its message.
pub(crate) fn refused(cluster: &Cluster, name: &str, flags: &[String], says: &[&str]) -> Result<()> {
    let words = command(cluster, name, flags);
    let said: Outcome = outcome(Command::new(&words[0]).args(&words[1..]), secs(60))?;
    ensure!(said.code != 0, "{name}: it started");
    let line = said.stderr.lines().last().unwrap_or_default();
    for word in says {
        ensure!(line.contains(word), "{name}: {word:?} is not in {line:?}");
    }
    Ok(())
}

/// Runs a reconciler until `story` is over, then stops it so that the next one may lead immediately.
pub(crate) fn with(
    cluster: &Cluster,
    name: &str,
    flags: &[String],
    story: impl FnOnce(&Daemon) -> Result<()>,
) -> Result<()> {
    let mut daemon = Daemon::new(format!("serve-{name}"), &cluster.dir(""), command(cluster, name, flags));
    daemon.start()?;
    let outcome = story(&daemon);
    if outcome.is_err() {
        eprintln!("---- {name} ----\n{}", daemon.log_tail());
    }
    daemon.end(Signal::SIGTERM, secs(30))?;
    outcome
}

/// Waits until the status of `source` is as wanted.
pub(crate) fn source(
    cluster: &Cluster,
    name: &str,
    wanted: impl Fn(&SourceStatus) -> bool,
) -> Result<SourceStatus> {
    eventually(&format!("source {name} is as it should"), secs(45), || {
        let status: SourceStatus = cluster.etcd.value(Key::Source(name.to_owned()))?;
        ensure!(wanted(&status), "{status:?}");
        Ok(status)
    })
}

/// Checks that the word is in no log of the cluster.
pub(crate) fn nowhere_in_logs(cluster: &Cluster, word: &str) -> Result<()> {
    for entry in fs::read_dir(cluster.dir(""))?.flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "log") {
            let text = String::from_utf8_lossy(&fs::read(entry.path())?).into_owned();
            ensure!(!text.contains(word), "{word} stands in {}", entry.path().display());
        }
    }
    Ok(())
}

/// Checks that the word is nowhere: no log, no key or value of etcd, no output of the CLI, no command line.
pub(crate) fn nowhere(cluster: &Cluster, word: &str) -> Result<()> {
    nowhere_in_logs(cluster, word)?;
    let all = cluster.etcd.etcdctl(&["get", "--prefix", ""])?;
    ensure!(!all.contains(word), "{word} stands in etcd");
    for args in [&["status"] as &[&str], &["get", "sources", "-o", "json"], &["events", "-A"]] {
        let said = cluster.cli(args)?;
        ensure!(!format!("{}{}", said.stdout, said.stderr).contains(word), "{word} is said by {args:?}");
    }
    for process in fs::read_dir("/proc")?.flatten() {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        ensure!(!String::from_utf8_lossy(&line).contains(word), "{word} is on a command line");
    }
    Ok(())
}

/// Formats flags for the command line.
pub(crate) fn flags(pairs: &[(&str, &str)]) -> Vec<String> {
    pairs.iter().flat_map(|(flag, value)| [(*flag).to_owned(), (*value).to_owned()]).collect()
}
