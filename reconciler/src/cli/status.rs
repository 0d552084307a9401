//! `minik8s status`: the cluster on one page.

use std::fmt::Write;
use std::time::Duration;

use jiff::Timestamp;
use schema::violation::visible;

use super::client::Client;
use super::error::CliError;
use super::output::{Screen, json, watch, write_out, yaml};
use crate::args::{Format, StatusArgs};
use crate::view::{ClusterStatus, EtcdView, SourceView, age, short};
use schema::violation::plural;

/// Interval of `-w`.
const WATCH_EVERY: Duration = Duration::from_secs(1);

pub(super) async fn run(args: &StatusArgs) -> Result<(), CliError> {
    let format = args.output.output;
    if format == Format::Name {
        return Err(CliError::Usage("status has no names; write -o table, json or yaml".to_owned()));
    }
    let client = Client::new(args.server.given())?;
    if args.watch {
        let shown = async || {
            let status: ClusterStatus = client.get(&["status"], &[]).await?;
            Ok::<_, CliError>(page(&status, Screen::stdout(), Timestamp::now()))
        };
        return watch(format, WATCH_EVERY, shown).await;
    }
    let status: ClusterStatus = client.get(&["status"], &[]).await?;
    match format {
        Format::Json => write_out(&json(&status)?),
        Format::Yaml => write_out(&yaml(&status)?),
        _ => write_out(&page(&status, Screen::stdout(), Timestamp::now())),
    }
}

pub(super) fn page(status: &ClusterStatus, screen: Screen, now: Timestamp) -> String {
    let mut lines = Vec::new();
    for source in &status.sources {
        source_lines(&mut lines, source, screen);
    }
    if status.sources.is_empty() {
        push(&mut lines, "source   starting: no repository is fetched yet");
    }
    let pods = &status.pods;
    let kinds: Vec<String> =
        pods.by_status.iter().map(|(word, n)| format!("{n} {}", screen.paint(word))).collect();
    let kinds = if kinds.is_empty() { String::new() } else { format!(": {}", kinds.join(", ")) };
    lines.push(format!("pods     {}/{} ready{kinds}", pods.ready, pods.total));
    pods.waiting.iter().for_each(|pod| push(&mut lines, &format!("         {pod}")));
    for (position, object) in status.degraded.iter().enumerate() {
        let title = if position == 0 { "degraded" } else { "" };
        push(&mut lines, &format!("{title:<9}{object}"));
    }
    let nodes = &status.nodes;
    let silent = if nodes.not_ready.is_empty() {
        String::new()
    } else {
        let more = (nodes.total - nodes.ready).saturating_sub(nodes.not_ready.len() as u64);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("; no heartbeat of {}{more}", nodes.not_ready.join(", "))
    };
    push(&mut lines, &format!("nodes    {}/{} ready{silent}", nodes.ready, nodes.total));
    match &status.leader {
        Some(leader) => {
            let since = leader.since.map(|then| format!(", for {}", age(then, now))).unwrap_or_default();
            push(&mut lines, &format!("leader   {}{since}", leader.id));
        }
        // Without etcd's answer, the leader is unknown.
        None if status.etcd_error.is_some() => {}
        None if status.sources.is_empty() => push(&mut lines, "leader   starting: no reconciler leads yet"),
        None => {
            push(&mut lines, "leader   none: nothing new is applied until a reconciler leads");
        }
    }
    if let Some(etcd) = &status.etcd {
        etcd_lines(&mut lines, etcd, now);
    }
    if let Some(error) = &status.etcd_error {
        push(&mut lines, &format!("etcd     {error}; this page is as of revision {}", status.revision));
    }
    if status.failing_targets > 0 {
        let targets = plural(status.failing_targets, "target");
        let what = "did not accept the last message; see 'minik8s get notifications'";
        push(&mut lines, &format!("outbox   {targets} of notifications {what}"));
    }
    for bad in &status.malformed {
        push(&mut lines, &format!("etcd     {} can't be read: {}", bad.key, bad.why));
    }
    let more = status.malformed_total.saturating_sub(status.malformed.len() as u64);
    if more > 0 {
        push(&mut lines, &format!("         and {more} more"));
    }
    let mut text = String::new();
    for line in lines {
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Adds the size of the fullest member, and what is wrong.
fn etcd_lines(lines: &mut Vec<String>, etcd: &EtcdView, now: Timestamp) {
    if let Some(member) = etcd.members.iter().max_by_key(|member| member.size_bytes) {
        let compacted = etcd.compacted_at.map(|at| format!(", compacted {} ago", age(at, now)));
        let upkeep = if etcd.upkeep {
            compacted.unwrap_or_default()
        } else {
            ", not maintained by Minik8s".to_owned()
        };
        let members = plural(etcd.members.len(), "member");
        push(lines, &format!("etcd     {}, {members}{upkeep}", member.usage()));
    }
    etcd.problems.iter().for_each(|problem| push(lines, &format!("         {problem}")));
}

/// Adds a text, its further lines indented, with control characters made visible.
fn push(lines: &mut Vec<String>, text: &str) {
    for (position, line) in text.lines().enumerate() {
        let indent = if position == 0 { "" } else { "           " };
        lines.push(format!("{indent}{}", visible(line)));
    }
}

fn source_lines(lines: &mut Vec<String>, source: &SourceView, screen: Screen) {
    let status = &source.status;
    let word = screen.paint(&format!("{:?}", status.state));
    let at = match &status.applied_commit {
        None => "no commit applied yet".to_owned(),
        Some(commit) => {
            let by = if source.author.is_empty() { String::new() } else { format!(" by {}", source.author) };
            format!("{}{by}, {} ago", short(commit), source.age)
        }
    };
    lines.push(format!("source   {}: {word} at {}", visible(&status.name), visible(&at)));
    let path = if status.path.is_empty() { String::new() } else { format!(", folder {}", status.path) };
    let objects = plural(status.objects, "object");
    push(lines, &format!("         {objects} of {}, {}{path}", status.url, status.reference));
    if status.observed_commit != status.applied_commit
        && let Some(observed) = &status.observed_commit
    {
        push(lines, &format!("         newest commit {} is not applied", short(observed)));
    }
    // An applied commit has no verdict yet.
    if !["", "Applied"].contains(&source.verdict.as_str()) {
        let gap = if source.verdict_why.is_empty() { "" } else { ": " };
        let mut why = Vec::new();
        push(&mut why, &format!("{gap}{}", source.verdict_why));
        let mut why = why.into_iter();
        let word = screen.paint(&source.verdict);
        lines.push(format!("         verdict {word}{}", why.next().unwrap_or_default()));
        lines.extend(why);
    }
    source.problems.iter().for_each(|problem| push(lines, &format!("         {problem}")));
}

#[cfg(test)]
mod tests {
    use schema::keys::Key;
    use schema::kinds::function::ImageState;
    use schema::kinds::{Kind, Resource};
    use schema::meta::NamespacedName;
    use schema::object::Object;
    use schema::records::{FunctionImage, FunctionRecord, Revision, ScaleRecord, Verdict};
    use schema::snapshot::Snapshot;

    use super::*;
    use crate::view::cluster_status;
    use crate::view::testing::*;

    const PIPE: Screen = Screen { width: None, color: false };

    /// The line of the page that begins with `title`, and the indented ones below it.
    fn block(snapshot: &Snapshot, title: &str) -> String {
        let page = page(&cluster_status(snapshot, None, at(100)), PIPE, at(100));
        let lines = page.lines().skip_while(|line| !line.starts_with(title)).enumerate();
        let lines = lines.take_while(|(position, line)| *position == 0 || line.starts_with(' '));
        lines.map(|(_, line)| format!("{line}\n")).collect()
    }

    fn replica_set(name: &str) -> Object {
        let pod = serde_json::json!({"metadata": {"labels": {"app": name}},
            "spec": {"containers": [{"name": "app", "image": "x"}]}});
        let spec = serde_json::json!({"selector": {"matchLabels": {"app": name}}, "template": pod});
        object_of(name, Resource::from_json(Kind::ReplicaSet, spec).unwrap())
    }

    /// Puts an object whose rollout was given up: the pods of its last good template serve again.
    fn put_given_up(snapshot: &mut Snapshot, object: &Object, why: &str) {
        let condition = serde_json::json!({"type": "Progressing", "status": "False", "reason": "ErrImagePull",
            "message": why, "lastTransitionTime": at(60)});
        let rollout = serde_json::json!({"objectHash": object.hash, "commit": C2, "wanted": "b", "good": "a",
            "startedAt": at(60), "progressedAt": at(60), "best": {"updated": 0, "available": 0, "old": 0},
            "status": {"observedGeneration": object.generation, "conditions": [condition]}});
        let rollout = serde_json::from_value(rollout).unwrap();
        snapshot.rollouts.insert(object.reference(), versioned(rollout));
        snapshot.objects.insert(object.reference(), versioned(object.clone()));
    }

    #[test]
    fn a_reason_is_shown_once_with_the_pods_that_have_it() {
        let mut snapshot = snapshot();
        for number in 0..12 {
            let status = pod_waiting("ErrImagePull", "no such image");
            put_pod(&mut snapshot, &format!("p{number:02}"), status);
        }
        put_pod(&mut snapshot, "q", pod_waiting("CrashLoopBackOff", "it ends"));
        insta::assert_snapshot!(block(&snapshot, "pods"), @r"
        pods     0/13 ready: 1 CrashLoopBackOff, 12 ErrImagePull
                 default/p00, default/p01, default/p02, default/p03, default/p04, default/p05, default/p06, default/p07, default/p08, default/p09 and 2 more: ErrImagePull: container app: no such image
                 default/q: CrashLoopBackOff: container app: it ends
        ");
    }

    #[test]
    fn what_is_degraded_is_shown_with_its_whole_reason_although_all_pods_are_ready() {
        let mut snapshot = snapshot();
        put_pod(&mut snapshot, "web", running());
        let web = snapshot.objects.values().next().map(|object| object.value.clone()).unwrap();
        put_given_up(&mut snapshot, &web, "no copy starts");
        let scale = ScaleRecord { replicas: 3, scaler: String::new() };
        snapshot.scales.insert(web.reference(), versioned(scale));
        let hello = put_function(&mut snapshot, "hello");
        let why = "no matching distribution\nhint: it is called requests".to_owned();
        let image = FunctionImage {
            reference: "minik8s.local/function:0".to_owned(),
            id: None,
            state: ImageState::Failed { why },
            nodes: Vec::new(),
            registry: None,
        };
        let record = FunctionRecord { hash: hello.hash, images: vec![image], ..FunctionRecord::default() };
        snapshot.functions.insert(NamespacedName::new("default", "hello"), versioned(record));
        put_given_up(&mut snapshot, &replica_set("shop"), "no such image; template a serves again");
        let why = "ReplicaSet/default/shop: not healthy within 120 s: no such image; template a serves again";
        let bad = Revision { verdict: Verdict::Bad { why: why.to_owned() }, ..revision(2, C2) };
        snapshot.revisions.insert(("main".to_owned(), 2), versioned(bad));
        insta::assert_snapshot!(block(&snapshot, "source"), @r"
        source   main: Synced at 2222222 by Ada <ada@example.org>, 40s ago
                 1 object of /srv/repo.git, branch `main`
                 verdict Bad: ReplicaSet/default/shop: not healthy within 120 s: no such image; template a serves again
        ");
        insta::assert_snapshot!(block(&snapshot, "pods"), @"pods     1/1 ready: 1 Running");
        // What the verdict says is not repeated.
        insta::assert_snapshot!(block(&snapshot, "degraded"), @r"
        degraded Function/default/hello: the image can't be built: no matching distribution
                   hint: it is called requests
                 Pod/default/web: no copy starts
        ");
    }

    #[test]
    fn before_the_first_commit_is_applied_the_page_says_that_it_starts() {
        let snapshot = Snapshot { synced: true, ..Snapshot::default() };
        let status = cluster_status(&snapshot, None, at(100));
        insta::assert_snapshot!(page(&status, PIPE, at(100)), @r"
        source   starting: no repository is fetched yet
        pods     0/0 ready
        nodes    0/0 ready
        leader   starting: no reconciler leads yet
        ");
    }

    // Would fail with the line for a target that has all its messages.
    #[test]
    fn a_target_that_did_not_accept_the_last_message_is_mentioned() {
        let mut snapshot = snapshot();
        assert_eq!(block(&snapshot, "outbox"), "");
        let message =
            serde_json::json!({"event": "node", "state": "failure", "title": "node n1 is not ready"});
        let entry = serde_json::json!({"target": "ops", "subject": "nodes", "wanted": message, "sequence": 1,
            "since": at(0), "failures": 3, "error": "connection refused"});
        let key = Key::Outbox("ops".to_owned(), "nodes".to_owned());
        snapshot.put(&key, &entry, 43);
        assert_eq!(
            block(&snapshot, "outbox"),
            "outbox   1 target of notifications did not accept the last message; see 'minik8s get notifications'\n"
        );
    }

    #[test]
    fn what_is_not_shown_is_counted() {
        let mut snapshot = snapshot();
        for number in 10..22 {
            put_given_up(&mut snapshot, &replica_set(&format!("s{number}")), &format!("reason {number}"));
            put_node(&mut snapshot, &format!("silent{number}"));
            snapshot.heartbeats.remove(&format!("silent{number}"));
            snapshot.malformed.insert(format!("/minik8s/pods/default/p{number}"), "no JSON".into());
        }
        let degraded = block(&snapshot, "degraded");
        assert_eq!(degraded.lines().count(), 11, "{degraded}");
        assert!(degraded.ends_with("ReplicaSet/default/s19: reason 19\n         and 2 more\n"), "{degraded}");
        let nodes = block(&snapshot, "nodes");
        assert!(nodes.ends_with("silent18, silent19 and 2 more\n"), "{nodes}");
        let page = page(&cluster_status(&snapshot, None, at(100)), PIPE, at(100));
        assert!(page.ends_with("p19 can't be read: no JSON\n         and 2 more\n"), "{page}");
    }
}
