//! Commits while leaders are killed, and pushes while a target never answers.
//!
//! `MINIK8S_ROUNDS` sets the numbers: half of the commits (1, and 100 in a soak), the most faults for a message (2 and 4),
//! and the pushes of each kind (3 and 20).

use std::collections::BTreeMap;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::spawn;
use std::time::{Duration, Instant};

use harness::manifests::sleeper;
use harness::{Chance, Change, Cluster, ClusterOptions, Result, ensure, eventually, rounds, secs};
use nix::sys::signal::Signal;
use schema::control::lock;
use serde_json::Value;

use super::setup::{HOME, World, bad, broken, nothing_waits};
use crate::a_long::master_killed::kill_leader;

/// Longest wait until all messages are sent.
const SENT_WITHIN: Duration = Duration::from_secs(240);
/// Commits between two comparisons: the history has 100 commits of a source.
const BATCH: usize = 20;
/// Time within which a leader is killed after a push.
const MOMENTS: Duration = Duration::from_secs(2);

/// Files beside the notes that each source has.
#[derive(Default)]
struct Files {
    broken: bool,
    bad: bool,
}

impl Files {
    /// Changes of the next commit in the folder of a source. There is no node: a pod is never healthy.
    fn next(&mut self, chance: &mut Chance, number: usize) -> impl Fn(&str) -> Vec<Change> + use<> {
        let (was_broken, was_bad, roll) = (self.broken, self.bad, chance.below(10));
        self.broken = !was_broken && roll < 2;
        self.bad = if roll >= 8 { !was_bad } else { was_bad || matches!(roll, 6 | 7) };
        let (is_broken, is_bad) = (self.broken, self.bad);
        move |source: &str| {
            let mut changes = Vec::new();
            match (was_broken, is_broken) {
                (false, true) => changes.push(broken(source)),
                (true, false) => changes.push(Change::remove(format!("{source}/broken.yaml"))),
                _ => {}
            }
            match (was_bad, is_bad) {
                (true, false) => changes.push(Change::remove(format!("{source}/bad.yaml"))),
                // Another version each time, so that the one before may be superseded.
                (_, true) if roll >= 6 => changes.push(bad(source, number.is_multiple_of(2))),
                _ => {}
            }
            changes
        }
    }
}

#[test]
fn each_commit_ends_as_in_the_history_although_leaders_are_killed_and_answers_fail() -> Result<()> {
    let (commits, mut chance) = (2 * rounds(1, 100), Chance::of("word back: leaders killed"));
    // Waits of 5, 10, 20 and 40 s.
    let patience = u32::try_from(rounds(2, 4))?;
    let mut cluster = Cluster::prepare(ClusterOptions { reconcilers: 2, ..ClusterOptions::default() })?;
    let world = World::attach(&mut cluster, "word back: faults", patience)?;
    cluster.run_story(|cluster| {
        cluster.start_etcd()?;
        for index in 0..cluster.reconcilers.len() {
            cluster.reconcilers[index].start()?;
            cluster.wait_reconciler(index)?;
        }
        world.introduce(cluster)?;
        let (mut files, mut kills) = (Files::default(), 0);
        // Final verdicts by source and commit.
        let mut verdicts: BTreeMap<(String, String), String> = BTreeMap::new();
        for number in 1..=commits {
            let of = files.next(&mut chance, number);
            let commit = world.propose(cluster, &format!("Commit {number}"), of)?;
            cluster.repo.push_commit(&commit)?;
            // In every check, too.
            if number == 2 || chance.below(4) == 0 {
                chance.moment(MOMENTS);
                kill_leader(cluster, kills)?;
                kills += 1;
            }
            world.applied(cluster, &commit)?;
            if number.is_multiple_of(BATCH) || number == commits {
                let history = eventually("the forges show the final verdicts", SENT_WITHIN, || {
                    let history = world.agrees(cluster)?;
                    let open = history.values().find(|row| row.decided_at.is_none());
                    ensure!(open.is_none(), "{open:?}");
                    Ok(history)
                })?;
                verdicts.extend(history.into_iter().map(|(key, row)| (key, row.status)));
            }
        }
        eventually("nothing waits", SENT_WITHIN, || nothing_waits(cluster))?;
        for ((source, commit), verdict) in &verdicts {
            let forge = world.forge(source)?;
            let all = forge.statuses(commit);
            let state = all.last().map(|last| last.state.as_str());
            ensure!(state == Some(forge.dialect.state_of(verdict)?), "{source}: {commit} is {verdict}: {all:?}");
        }
        let of_home = verdicts.keys().filter(|(source, _)| source == HOME).count();
        // With the two that set it up.
        ensure!(of_home == commits + 2, "{of_home} of {commits} commits have a verdict");
        world.is_content()?;
        world.keeps_secrets(cluster)?;
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        verdicts.values().for_each(|verdict| *counts.entry(verdict).or_default() += 1);
        let (messages, mails) = (world.hook.received().len(), world.mailbox.kept()?.len());
        println!(
            "word back: {commits} commits in four sources, {kills} leaders killed, {} faults, {counts:?}, {messages} \
             messages, {mails} mails",
            world.dice.faults()
        );
        Ok(())
    })
}

/// A server that accepts connections and never answers.
struct BlackHole {
    port: u16,
    held: Arc<Mutex<Vec<TcpStream>>>,
}

impl BlackHole {
    fn open() -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let (port, held) = (listener.local_addr()?.port(), Arc::new(Mutex::new(Vec::new())));
        let kept = Arc::clone(&held);
        spawn(move || listener.incoming().flatten().for_each(|stream| lock(&kept).push(stream)));
        Ok(Self { port, held })
    }

    /// Number of connections so far.
    fn connections(&self) -> usize {
        lock(&self.held).len()
    }
}

/// Time from the push of a pod, with a sync, until its container runs.
fn push_to_running(cluster: &Cluster, name: &str) -> Result<Duration> {
    let began = Instant::now();
    cluster.repo.push(&[Change::write(format!("{name}.yaml"), sleeper(name))], name)?;
    cluster.cli(&["sync"])?.ok()?;
    cluster.running(name, &["main"])?;
    Ok(began.elapsed())
}

/// The median, and all of them.
fn measure(cluster: &Cluster, kind: &str, pushes: usize) -> Result<(Duration, Vec<Duration>)> {
    let times = (0..pushes).map(|number| push_to_running(cluster, &format!("{kind}-{number}")));
    let mut times = times.collect::<Result<Vec<_>>>()?;
    times.sort();
    Ok((times[times.len() / 2], times))
}

#[test]
fn a_target_that_never_answers_holds_no_push_up() -> Result<()> {
    let pushes = rounds(3, 20);
    let options = ClusterOptions { poll: "1h", ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let (before, all_before) = measure(cluster, "before", pushes)?;
        let hole = BlackHole::open()?;
        let url = format!("http://127.0.0.1:{}/", hole.port);
        let targets: String = (1..=4)
            .map(|number| {
                format!("  - {{name: hole-{number}, allowPrivate: true, webhook: {{url: '{url}'}}}}\n")
            })
            .collect();
        let settings = format!(
            "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {{name: cluster}}\nspec:\n  notifications:\n{targets}"
        );
        fs::write(cluster.dir("forge-token"), "none")?;
        let token = cluster.dir("forge-token").to_string_lossy().into_owned();
        let mut command = cluster.serve_command(0);
        for (flag, value) in [
            ("--commit-status", "github"),
            ("--commit-status-api", &url),
            ("--commit-status-repository", "lab/fleet"),
            ("--commit-status-token-file", &token),
            ("--commit-status-allow-private", "true"),
        ] {
            command.extend([flag.to_owned(), value.to_owned()]);
        }
        // It gives its lease back, so that the next one leads immediately.
        cluster.reconcilers[0].end(Signal::SIGTERM, secs(30))?;
        cluster.reconcilers[0].set_command(command);
        cluster.reconcilers[0].start()?;
        cluster.wait_reconciler(0)?;
        cluster.repo.push(&[Change::write("cluster.yaml", settings)], "Add the targets")?;
        cluster.cli(&["sync"])?.ok()?;
        eventually("all targets are tried", secs(30), || {
            ensure!(hole.connections() >= 5, "{} connections", hole.connections());
            Ok(())
        })?;
        let (after, all_after) = measure(cluster, "after", pushes)?;
        println!("push to running: p50 {before:?} before, {after:?} with targets that never answer");
        println!("before {all_before:?}, after {all_after:?}");
        let most = before.mul_f64(1.5) + Duration::from_millis(200);
        ensure!(
            after <= most,
            "targets that never answer hold pushes up: {after:?}, without them {before:?}"
        );
        eventually("the errors are shown", secs(30), || {
            let shown = cluster.cli(&["get", "notifications", "-o", "json"])?.ok()?;
            let shown: Value = serde_json::from_str(&shown)?;
            let rows = shown["items"].as_array().cloned().unwrap_or_default();
            let failing = rows.iter().filter(|row| {
                row["error"].as_str().is_some_and(|why| why.contains("did not answer within 5 s"))
            });
            ensure!(failing.count() >= 5, "{rows:?}");
            Ok(())
        })
    })
}
