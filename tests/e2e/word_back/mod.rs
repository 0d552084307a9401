//! Word back: forges show the verdict of each commit, chats and mailboxes receive those that someone should look at,
//! although 30 % of their answers are errors, requests to come back later, too late, or cut connections.
//!
//! `long.rs` has the stories with killed leaders and with a target that never answers.

mod dice;
mod forge;
mod long;
mod mail;
mod receivers;
mod setup;

use std::collections::BTreeSet;

use harness::{Change, Cluster, ClusterOptions, Context, Result, ensure, eventually, secs};
use serde_json::Value;

use forge::{Dialect, EARLIER};
use setup::{HOME, History, PAGE, World, bad, broken, nothing_waits, slow};

/// Most faults for one status or message: at most two waits, of 5 and 10 s.
const PATIENCE: u32 = 2;

/// Pushes a commit for each verdict; returns the ids of the superseded one, the one that replaced it, and the bad one.
fn push_all(world: &World, cluster: &Cluster) -> Result<[String; 3]> {
    world.push(cluster, "A file that cannot be applied", |source| vec![broken(source)])?;
    let superseded = world.push(cluster, "One that takes its time", |source| {
        vec![Change::remove(format!("{source}/broken.yaml")), slow(source)]
    })?;
    let newer =
        world.push(cluster, "Without it", |source| vec![Change::remove(format!("{source}/slow.yaml"))])?;
    // Before the next one changes what it changed.
    world.decided(cluster, &newer, "Good")?;
    let bad = world.push(cluster, "Pods that do not work", |source| {
        vec![bad(source, matches!(source, "gitea" | "forgejo"))]
    })?;
    // GitLab shows it as pending already, and refuses to set that again.
    let open = world.propose(cluster, "One that is not decided", |source| vec![slow(source)])?;
    let gitlab = world.forge("gitlab")?;
    gitlab.preset(&open, "minik8s/gitlab", "pending");
    cluster.repo.push_commit(&open)?;
    world.applied(cluster, &open)?;
    Ok([superseded, newer, bad])
}

/// Checks names, links and reasons of all statuses.
fn statuses_say_what_and_why(world: &World, history: &History, newer: &str) -> Result<()> {
    for ((source, commit), row) in history {
        let all = world.forge(source)?.statuses(commit);
        for status in all.iter().filter(|status| status.description != EARLIER) {
            let link = format!("{PAGE}/history/{source}/{}", row.sequence);
            ensure!(status.context == format!("minik8s/{source}") && status.target_url == link, "{status:?}");
            ensure!(!status.description.is_empty(), "{status:?}");
        }
        let reason = match row.status.as_str() {
            "Superseded" => format!("superseded by {}", &newer[..7]),
            "Bad" => "not healthy within 5 s".to_owned(),
            "Degraded" => format!("{source}/broken.yaml"),
            _ => continue,
        };
        let last = all.last().context("no status")?;
        ensure!(last.description.contains(&reason), "{reason:?} is not in {last:?}");
    }
    Ok(())
}

/// Checks that the webhook, both chats and the mailbox received the verdict on the bad commit.
fn people_receive(world: &World, commit: &str, link: &str) -> Result<()> {
    let short = &commit[..7];
    let is_it = |body: &Value| {
        let fields = ["event", "state", "source", "commit", "link"]
            .map(|name| body[name].as_str().unwrap_or_default());
        fields == ["verdict", "failure", HOME, commit, link]
    };
    ensure!(world.hook.received().iter().any(|message| is_it(&message.body)), "not the webhook");
    for (receiver, field) in [(&world.chat, "text"), (&world.room, "body")] {
        let is_it = |text: &str| text.contains(short) && text.contains("not healthy") && text.contains(link);
        let received = receiver.received();
        let is_there = received.iter().any(|message| message.body[field].as_str().is_some_and(is_it));
        ensure!(is_there, "not the chat with {field}");
    }
    let mails = world.mailbox.kept()?;
    let mail = mails.iter().find(|mail| mail.subject.contains(short) && mail.text.contains(link));
    let mail = mail.with_context(|| format!("not in {mails:?}"))?;
    ensure!(mail.subject.contains(HOME) && mail.text.contains("not healthy"), "{mail:?}");
    ensure!(
        mail.from == "minik8s@example.org" && mail.to == ["ada@example.org", "ops@example.org"],
        "{mail:?}"
    );
    Ok(())
}

#[test]
fn forges_show_the_history_and_people_receive_bad_verdicts_although_answers_fail() -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions { reconcilers: 2, ..ClusterOptions::default() })?;
    let world = World::attach(&mut cluster, "word back", PATIENCE)?;
    cluster.run_story(|cluster| {
        cluster.start_all()?;
        world.introduce(cluster)?;
        let [superseded, newer, bad] = push_all(&world, cluster)?;
        let row = |history: &History, commit: &str| {
            history.get(&(HOME.to_owned(), commit.to_owned())).cloned().context("not in the history")
        };
        let history = eventually("the forges show the history", secs(120), || {
            let history = world.agrees(cluster)?;
            for dialect in Dialect::ALL {
                let verdict = |commit: &str| {
                    let key = (dialect.name().to_owned(), commit.to_owned());
                    history.get(&key).map_or("", |row| row.status.as_str())
                };
                let found = [&superseded, &newer, &bad].map(|commit| verdict(commit));
                ensure!(found == ["Superseded", "Good", "Bad"], "{found:?}");
            }
            Ok(history)
        })?;
        let verdicts: BTreeSet<&str> = history.values().map(|row| row.status.as_str()).collect();
        ensure!(verdicts.iter().eq(&["Applied", "Bad", "Degraded", "Good", "Superseded"]), "{verdicts:?}");
        statuses_say_what_and_why(&world, &history, &newer)?;

        let link = format!("{PAGE}/history/{HOME}/{}", row(&history, &bad)?.sequence);
        eventually("people receive the bad verdict", secs(60), || people_receive(&world, &bad, &link))?;
        let rows = eventually("nothing waits", secs(60), || nothing_waits(cluster))?;
        let targets: BTreeSet<&str> = rows.iter().filter_map(|row| row["target"].as_str()).collect();
        let sources = Dialect::ALL.map(|dialect| format!("source.{}", dialect.name()));
        let wanted: BTreeSet<&str> =
            sources.iter().map(String::as_str).chain(["chat", "hook", "mail", "room"]).collect();
        ensure!(targets == wanted, "{targets:?}");

        world.is_content()?;
        world.keeps_secrets(cluster)?;
        let hasty: Vec<String> = world.forges.iter().flat_map(forge::Forge::hasty).collect();
        ensure!(hasty.is_empty(), "asked again within the pause that a 429 named: {hasty:?}");
        ensure!(world.forge("gitlab")?.refused() > 0, "GitLab refused no state");
        ensure!(world.dice.faults() > 0, "no answer was a fault");
        println!("word back: {} messages, {} faults", rows.len(), world.dice.faults());
        Ok(())
    })
}
