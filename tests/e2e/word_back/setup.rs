//! A cluster whose verdicts go to four forges, a webhook, two chats and a mailbox. It has a source for each forge,
//! all folders of one repository.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use harness::{Change, Cluster, Context, IMAGE, Result, encrypted_to, ensure, eventually, outcome, secs};
use schema::keys::prefix;
use serde::Deserialize;
use serde_json::Value;

use super::dice::Dice;
use super::forge::{Dialect, Forge};
use super::mail::Mailbox;
use super::receivers::{Receiver, Shape};
use crate::serving;

/// Address of the page in links.
pub(super) const PAGE: &str = "https://page.example.org/minik8s";
/// Source that brings the Cluster object.
pub(super) const HOME: &str = "github";
/// An image that no registry has.
const ABSENT: &str = "127.0.0.1:9/absent:1";

// Words that may be seen nowhere but at their servers.
const TOKEN: &str = "canary-Wb45-token";
const HOOK_PATH: &str = "/hooks/canary-Wb45-hook";
const HOOK_KEY: &str = "canary-Wb45-key-0123456789";
const CHAT_PATH: &str = "/services/T0/B0/canary-Wb45-chat";
const ROOM_TOKEN: &str = "canary-Wb45-room";
const PASSWORD: &str = "canary-Wb45-password";

const ROOM: &str = "!fleet:example.org";
const CLUSTER: &str = "apiVersion: minik8s.io/v1
kind: Cluster
metadata: {name: cluster}
spec:
  defaults: {progressDeadlineSeconds: 5}
  notifications:
  - {name: hook, secretName: hook, allowPrivate: true, webhook: {}}
  - {name: chat, secretName: chat, allowPrivate: true, slack: {}}
  - {name: room, secretName: room, allowPrivate: true, matrix: {room: '!fleet:example.org'}}
  - name: mail
    on: [verdict]
    secretName: mail
    allowPrivate: true
    smtp: {from: minik8s@example.org, to: [ada@example.org, ops@example.org]}
";

/// The servers that receive them.
#[derive(Debug)]
pub(super) struct World {
    pub(super) forges: Vec<Forge>,
    pub(super) hook: Receiver,
    pub(super) chat: Receiver,
    pub(super) room: Receiver,
    pub(super) mailbox: Mailbox,
    pub(super) dice: Dice,
}

/// A commit of a source as `minik8s history` shows it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    source: String,
    commit: String,
    pub(super) sequence: u64,
    /// The verdict.
    pub(super) status: String,
    pub(super) decided_at: Option<String>,
}

/// Rows by source and commit.
pub(super) type History = BTreeMap<(String, String), Row>;

impl World {
    /// Starts the servers, and prepares the reconcilers for the four sources.
    pub(super) fn attach(cluster: &mut Cluster, story: &str, patience: u32) -> Result<Self> {
        let dice = Dice::of(story, patience);
        let forges = Dialect::ALL.map(|dialect| Forge::serve(dialect, TOKEN, &dice));
        let key = format!("whsec_{}", STANDARD.encode(HOOK_KEY));
        let room = Shape::Matrix { token: ROOM_TOKEN.to_owned(), room: ROOM };
        let world = Self {
            forges: forges.into_iter().collect::<Result<_>>()?,
            hook: Receiver::serve(Shape::Webhook(key), HOOK_PATH, &dice)?,
            chat: Receiver::serve(Shape::Slack, CHAT_PATH, &dice)?,
            room: Receiver::serve(room, "", &dice)?,
            mailbox: Mailbox::start(cluster, 15, ("ada", PASSWORD), &dice)?,
            dice,
        };
        fs::write(cluster.dir("forge-token"), TOKEN)?;
        let repo = cluster.repo_url();
        let entry = |forge: &Forge| {
            let (name, api, project) = (forge.dialect.name(), forge.url(), forge.dialect.project());
            format!(
                "- name: {name}\n  repo: {repo}\n  path: {name}\n  poll: 500ms\n  commitStatus: {{forge: {name}, \
                 api: '{api}', repository: {project}, tokenFile: forge-token, allowPrivate: true}}\n"
            )
        };
        let list = cluster.dir("sources.yaml");
        fs::write(&list, world.forges.iter().map(entry).collect::<String>())?;
        for index in 0..cluster.reconcilers.len() {
            let command = command(cluster, u16::try_from(index)?, &list);
            cluster.reconcilers[index].set_command(command);
        }
        // A folder for each source, before they look for it.
        let first = world.propose(cluster, "Open", |_| Vec::new())?;
        cluster.repo.push_commit(&first)?;
        Ok(world)
    }

    /// Pushes the Cluster object with the targets, and their secrets, encrypted to the reconcilers.
    pub(super) fn introduce(&self, cluster: &Cluster) -> Result<String> {
        let recipients = (0..cluster.reconcilers.len()).map(|index| recipient(cluster, index));
        let recipients = recipients.collect::<Result<Vec<_>>>()?;
        let ca = self.mailbox.ca()?.replace('\n', "\n  ");
        let key = STANDARD.encode(HOOK_KEY);
        let mut changes = vec![Change::write(format!("{HOME}/cluster.yaml"), CLUSTER)];
        for (name, values) in [
            ("hook", format!("url: {}\nkey: whsec_{key}\n", self.hook.url())),
            ("chat", format!("url: {}\n", self.chat.url())),
            ("room", format!("url: {}\ntoken: {ROOM_TOKEN}\n", self.room.url())),
            (
                "mail",
                format!(
                    "url: {}\nusername: ada\npassword: {PASSWORD}\nca: |\n  {}\n",
                    self.mailbox.url(),
                    ca.trim_end()
                ),
            ),
        ] {
            let plain = format!("namespace: .notifications\nname: {name}\nformat: map\n---\n{values}");
            let file = format!("secrets/.notifications/{name}.age");
            changes.push(Change::write(file, encrypted_to(&recipients, &plain)?));
        }
        let of = |source: &str| if source == HOME { changes.clone() } else { Vec::new() };
        self.push(cluster, "Add the targets", of)
    }

    /// Commits a change of every source, with those that `of` makes for a source, in the clone only; returns its id.
    pub(super) fn propose(
        &self,
        cluster: &Cluster,
        message: &str,
        of: impl Fn(&str) -> Vec<Change>,
    ) -> Result<String> {
        let mut changes = Vec::new();
        for source in self.forges.iter().map(|forge| forge.dialect.name()) {
            let notes = format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: notes-{source}}}\ndata: {{last: {message:?}}}\n"
            );
            changes.push(Change::write(format!("{source}/notes.yaml"), notes));
            changes.extend(of(source));
        }
        cluster.repo.propose(&changes, message)?;
        Ok(cluster.repo.git(&["rev-parse", "HEAD"])?.trim().to_owned())
    }

    /// Like `propose`, pushes the commit and waits until all sources have applied it.
    pub(super) fn push(
        &self,
        cluster: &Cluster,
        message: &str,
        of: impl Fn(&str) -> Vec<Change>,
    ) -> Result<String> {
        let commit = self.propose(cluster, message, of)?;
        cluster.repo.push_commit(&commit)?;
        self.applied(cluster, &commit)?;
        Ok(commit)
    }

    /// Waits until all sources have applied the commit, or its good part.
    pub(super) fn applied(&self, cluster: &Cluster, commit: &str) -> Result<()> {
        for forge in &self.forges {
            serving::source(cluster, forge.dialect.name(), |source| {
                source.applied_commit.as_deref() == Some(commit)
            })?;
        }
        Ok(())
    }

    pub(super) fn forge(&self, source: &str) -> Result<&Forge> {
        self.forges.iter().find(|forge| forge.dialect.name() == source).context("another source")
    }

    /// Waits until the commit has this verdict in all sources.
    pub(super) fn decided(&self, cluster: &Cluster, commit: &str, verdict: &str) -> Result<()> {
        eventually(&format!("{commit} is {verdict}"), secs(45), || {
            let history = history(cluster)?;
            let of_commit = history.values().filter(|row| row.commit == commit);
            let found: Vec<&str> = of_commit.map(|row| row.status.as_str()).collect();
            ensure!(found == vec![verdict; self.forges.len()], "{found:?}");
            Ok(())
        })
    }

    /// Checks that the forges have the state of every commit that the history has; returns the history.
    pub(super) fn agrees(&self, cluster: &Cluster) -> Result<History> {
        let history = history(cluster)?;
        for ((source, commit), row) in &history {
            let forge = self.forge(source)?;
            let all = forge.statuses(commit);
            let (state, wanted) =
                (all.last().map(|last| last.state.as_str()), forge.dialect.state_of(&row.status)?);
            ensure!(
                state == Some(wanted),
                "{source}: {commit} is {}, and its statuses are {all:?}",
                row.status
            );
        }
        Ok(history)
    }

    /// Checks that every request was as documented, that no state was set twice in a row, and that no id of a delivery
    /// stood for two messages.
    pub(super) fn is_content(&self) -> Result<()> {
        self.forges.iter().try_for_each(Forge::is_content)?;
        [&self.hook, &self.chat, &self.room].into_iter().try_for_each(Receiver::is_content)?;
        self.mailbox.is_content()
    }

    /// Checks that no secret of a target is in etcd, in a log of a reconciler, or in an answer of its API.
    pub(super) fn keeps_secrets(&self, cluster: &Cluster) -> Result<()> {
        let all = cluster.etcd.etcdctl(&["get", "--prefix", ""])?;
        ensure!(all.contains(prefix::OUTBOX), "etcd has no outbox");
        let mut texts = vec![("etcd".to_owned(), all)];
        for (index, reconciler) in (0..).zip(&cluster.reconcilers) {
            texts.push((reconciler.name().to_owned(), fs::read_to_string(reconciler.log_path())?));
            for args in [
                &["get", "notifications", "-o", "yaml"] as &[&str],
                &["get", "notifications", "-o", "wide"],
                &["get", "sources", "-o", "yaml"],
                &["events", "-A"],
                &["status"],
            ] {
                let mut command = cluster.cli_command(args);
                command.env("MINIK8S_SERVER", cluster.server(index));
                let said = outcome(&mut command, secs(60))?;
                texts.push((format!("{args:?}"), said.stdout + &said.stderr));
            }
        }
        let key = STANDARD.encode(HOOK_KEY);
        for secret in [TOKEN, HOOK_PATH, HOOK_KEY, &key, CHAT_PATH, ROOM_TOKEN, PASSWORD] {
            // Of an address, the part that nobody can guess.
            let word = secret.rsplit('/').next().unwrap_or(secret);
            for (place, text) in &texts {
                ensure!(!text.contains(word), "{word} is in {place}");
            }
        }
        Ok(())
    }
}

/// Command line of a reconciler that reads the list of sources in place of one repository.
fn command(cluster: &Cluster, index: u16, list: &Path) -> Vec<String> {
    let mut command = cluster.serve_command(index);
    for flag in ["--repo", "--poll"] {
        if let Some(at) = command.iter().position(|word| word == flag) {
            command.drain(at..at + 2);
        }
    }
    let list = list.display().to_string();
    command.extend(["--sources", &list, "--page-url", PAGE].map(str::to_owned));
    command
}

/// Recipient for secrets of a reconciler, which it creates at its first start.
fn recipient(cluster: &Cluster, index: usize) -> Result<String> {
    let file = cluster.dir(&format!("state-r{index}")).join("reconciler/age-identity.txt");
    eventually("the reconciler has an identity", secs(20), || {
        let text = fs::read_to_string(&file)?;
        let public = text.lines().find_map(|line| line.strip_prefix("# public key: "));
        Ok(public.context("no public key")?.to_owned())
    })
}

/// Commits of all sources as `minik8s history` shows them.
fn history(cluster: &Cluster) -> Result<History> {
    let shown: Value = serde_json::from_str(&cluster.cli(&["history", "-o", "json"])?.ok()?)?;
    let mut history = History::new();
    // The newest is first. A commit that was applied again counts as it was the last time.
    for row in shown["items"].as_array().context("no list")? {
        let row: Row = serde_json::from_value(row.clone())?;
        history.entry((row.source.clone(), row.commit.clone())).or_insert(row);
    }
    Ok(history)
}

/// Checks that every message was sent; returns what `minik8s get notifications` shows.
pub(super) fn nothing_waits(cluster: &Cluster) -> Result<Vec<Value>> {
    let shown: Value = serde_json::from_str(&cluster.cli(&["get", "notifications", "-o", "json"])?.ok()?)?;
    let rows = shown["items"].as_array().context("no list")?.clone();
    let waiting: Vec<&Value> = rows.iter().filter(|row| !row["waiting"].is_null()).collect();
    ensure!(waiting.is_empty(), "{waiting:?}");
    Ok(rows)
}

/// A file that cannot be applied.
pub(super) fn broken(source: &str) -> Change {
    Change::write(format!("{source}/broken.yaml"), "apiVersion: v1\nkind: Nonsense\nmetadata: {name: x}\n")
}

/// A pod that does not get healthy: without its image, or never ready.
pub(super) fn bad(source: &str, has_image: bool) -> Change {
    let image = if has_image { IMAGE } else { ABSENT };
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: bad-{source}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  \
         containers:\n  - name: main\n    image: {image}\n    command: [sleep, '100000']\n    \
         readinessProbe: {{tcpSocket: {{port: 9}}, periodSeconds: 1}}\n"
    );
    Change::write(format!("{source}/bad.yaml"), text)
}

/// A deployment without its image that has ten minutes to get healthy.
pub(super) fn slow(source: &str) -> Change {
    let name = format!("slow-{source}");
    let text = format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: 1\n  \
         progressDeadlineSeconds: 600\n  selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    \
         metadata: {{labels: {{app: {name}}}}}\n    spec:\n      containers: [{{name: main, image: '{ABSENT}'}}]\n"
    );
    Change::write(format!("{source}/slow.yaml"), text)
}
