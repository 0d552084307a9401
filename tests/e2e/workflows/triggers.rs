//! Triggers that start runs: commits, calls and times, each once, under any leader and whatever is down.

use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::*;
use harness::{http_post_body, rounds};
use jiff::Timestamp;
use schema::keys::prefix;

const NOTE: &str =
    "def main(params):\n    print('called note', params.get('sum'))\n    return {'sum': params.get('sum')}\n";
const TOKEN: &str = "3f0c4c1d-token-of-the-story";

fn flow(name: &str, triggers: &str) -> Change {
    let head = "apiVersion: minik8s.io/v1\nkind: Workflow\nmetadata:";
    let states = "  startAt: a\n  states: {a: {type: Pass, end: true}}\n";
    Change::write(
        format!("{name}.yaml"),
        format!("{head} {{name: {name}}}\nspec:\n  triggers: {triggers}\n{states}"),
    )
}

fn two_reconcilers() -> ClusterOptions {
    ClusterOptions { reconcilers: 2, ..one_node() }
}

/// Ids of a workflow's runs in etcd.
fn runs_of(cluster: &Cluster, workflow: &str) -> Result<Vec<String>> {
    let below = format!("{}default/{workflow}/", prefix::RUN_HEADS);
    let heads = cluster.etcd.list(&below)?;
    Ok(heads.iter().map(|head| head.key[below.len()..].to_owned()).collect())
}

fn call(cluster: &Cluster, reconciler: u16, path: &str, headers: &[(&str, &str)]) -> Result<(u16, Value)> {
    let (code, answer) = http_post_body(&cluster.api(reconciler), path, headers, r#"{"sum": 7}"#)?;
    Ok((code, serde_json::from_str(&answer)?))
}

#[test]
fn commits_and_calls_start_one_run_each() -> Result<()> {
    Cluster::run(two_reconcilers(), |cluster| {
        let digest = sha256_of(TOKEN)?;
        let on_call = format!("[{{name: paid, onCall: {{tokenSha256: {digest}}}}}]");
        let spec = format!("  public: true\n  minScale: 1\n  maxScale: 1\n  triggers: {on_call}\n");
        let mut changes = vec![manifest("note", &spec), code("note", "main.py", NOTE)];
        changes.push(flow("import", "[{name: data, onCommit: {paths: [/data/]}}]"));
        let commit = cluster.push(&changes, "Triggers")?;
        cluster.applied(&commit)?;

        let mut wanted = Vec::new();
        for number in 1..=20 {
            let is_data = number % 4 == 0;
            let path = if is_data { format!("data/{number}") } else { format!("docs/data/{number}") };
            let commit = cluster.repo.push(&[Change::write(&path, "x")], &format!("Push {number}"))?;
            if is_data {
                wanted.push((commit, path));
            }
            if number == 10 {
                // The leader is killed in the middle of it.
                cluster.reconcilers[0].kill()?;
            }
        }
        let (last, _) = wanted.last().context("five touch it")?;
        cluster.applied(last)?;
        cluster.reconcilers[0].start()?;
        cluster.wait_reconciler(0)?;
        for (commit, path) in &wanted {
            let run = ended(cluster, "import", &format!("data.{}", &commit[..12]))?;
            ensure!(run["input"]["commit"] == **commit, "{run:#}");
            ensure!(run["input"]["paths"] == serde_json::json!([path]), "{run:#}");
        }
        let found = runs_of(cluster, "import")?;
        ensure!(found.len() == 5, "{found:?}");

        let path = "/v1/calls/function/default/note/paid";
        let token = format!("Bearer {TOKEN}");
        let wrong = call(cluster, 0, path, &[("Authorization", "Bearer of-no-use")])?;
        ensure!(wrong.0 == 401 && runs_of(cluster, "function:note")?.is_empty(), "{wrong:?}");
        let headers = [("Authorization", token.as_str()), ("Idempotency-Key", "order-17")];
        for (reconciler, expected) in [(1, 202), (0, 200), (1, 200)] {
            let (code, answer) = call(cluster, reconciler, path, &headers)?;
            ensure!(code == expected && answer["id"] == "paid.order-17", "{code} {answer}");
        }
        let run = ended(cluster, "function:note", "paid.order-17")?;
        ensure!(run["phase"] == "Succeeded" && run["output"]["sum"] == 7, "{run:#}");
        ensure!(calls(cluster, "note")? == ["note 7"], "{:?}", calls(cluster, "note")?);
        let table = cluster.cli(&["get", "triggers", "-o", "wide"])?.ok()?;
        println!("{table}");
        ensure!(table.contains("paid.order-17") && table.contains("commits to /data/"), "{table}");
        println!("{}", cluster.cli(&["describe", "trigger", "data"])?.ok()?);
        Ok(())
    })
}

fn sha256_of(text: &str) -> Result<String> {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let mut made = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    made.stdin.take().context("it has an input")?.write_all(text.as_bytes())?;
    let said = String::from_utf8(made.wait_with_output()?.stdout)?;
    Ok(said.split_whitespace().next().context("sha256sum says nothing")?.to_owned())
}

fn now() -> Result<Duration> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?)
}

/// Sleeps until this many seconds after the epoch: the time itself is the condition.
fn until(second: u64) -> Result<()> {
    sleep(Duration::from_secs(second).saturating_sub(now()?));
    Ok(())
}

/// Cron expression for this minute of today, and the id of its run.
fn at_minute(second: u64) -> Result<(String, String)> {
    let time = Timestamp::from_second(i64::try_from(second)?)?;
    let run = format!("tick.{}", time.strftime("%Y%m%dT%H%MZ"));
    Ok((time.strftime("%-M %-H * * *").to_string(), run))
}

/// Takes four real minutes, so it runs only in a soak.
#[test]
fn times_start_one_run_over_a_change_of_leader_and_over_a_minute_with_all_down() -> Result<()> {
    if rounds(0, 1) == 0 {
        return Ok(());
    }
    Cluster::run(two_reconcilers(), |cluster| {
        let begin = (now()?.as_secs() / 60 + 1) * 60;
        let (first, second) = (begin + 60, begin + 120);
        let ((led, led_run), (missed, missed_run)) = (at_minute(first)?, at_minute(second)?);
        let of = |cron: &str, more: &str| format!("[{{name: tick, schedule: {{cron: '{cron}'{more}}}}}]");
        let changes = [
            flow("led", &of(&led, "")),
            flow("once", &of(&missed, "")),
            flow("none", &of(&missed, ", missed: skip")),
        ];
        let commit = cluster.push(&changes, "At times")?;
        cluster.applied(&commit)?;
        until(first - 2)?;
        let leader = cluster.etcd.key(schema::keys::Key::Leader)?.context("no reconciler leads")?;
        let leads = usize::from(!leader.value.contains("\"r0\""));
        cluster.reconcilers[leads].kill()?;
        eventually("the other one starts the run", secs(40), || {
            ensure!(runs_of(cluster, "led")? == [led_run.as_str()], "{:?}", runs_of(cluster, "led")?);
            Ok(())
        })?;
        cluster.reconcilers[1 - leads].kill()?;
        until(second + 62)?;
        for index in [0, 1] {
            cluster.reconcilers[index].start()?;
        }
        cluster.wait_reconciler(0)?;
        eventually("one run stands for what was missed, and one is skipped", secs(40), || {
            let table = cluster.cli(&["get", "triggers"])?.ok()?;
            ensure!(runs_of(cluster, "once")? == [missed_run.as_str()], "{table}");
            ensure!(table.contains("1 time was missed since the last run"), "{table}");
            Ok(())
        })?;
        println!("{}", cluster.cli(&["get", "triggers"])?.ok()?);
        ensure!(runs_of(cluster, "none")?.is_empty(), "{:?}", runs_of(cluster, "none")?);
        ensure!(runs_of(cluster, "led")?.len() == 1, "{:?}", runs_of(cluster, "led")?);
        Ok(())
    })
}
