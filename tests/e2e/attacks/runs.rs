//! Requests for runs from anyone at the API: ids of triggers, bytes that fill etcd, and words for a terminal.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;

use harness::{
    Change, Clients, Cluster, ClusterOptions, Context, Outcome, Result, ensure, eventually, minik8s_binary,
    outcome, secs, tls_connect,
};
use nix::sys::signal::Signal;
use openssl::ssl::SslStream;
use schema::keys::prefix;
use serde_json::Value;

use super::apis::{connect_from, exchange, post};

const TOKEN: &str = "5b1e-token-of-the-shop";
/// SHA-256 of the token, from `sha256sum`.
const TOKEN_SHA256: &str = "243a6adb23169319b5b2aa3f0d9a3baa4a1b6d3aa999d221010b89ef23b2688e";

/// Workflow whose states, error and cause hold codes for a terminal: colors, a title, and text from right to left.
const ESCAPES: &str = r#"
apiVersion: minik8s.io/v1
kind: Workflow
metadata: {name: escapes, annotations: {note: "\e[31mRED\e[0m"}}
spec:
  params: {}
  startAt: "\e[31mA"
  states:
    "\e[31mA": {type: Fail, error: "E\e[32mX", cause: "C\e]0;pwn\a \u202Egnp"}
"#;

fn flow(name: &str, triggers: &str) -> Change {
    let text = format!(
        "apiVersion: minik8s.io/v1\nkind: Workflow\nmetadata: {{name: {name}}}\nspec:\n  triggers: {triggers}\n  \
         startAt: a\n  states: {{a: {{type: Pass, end: true}}}}\n"
    );
    Change::write(format!("{name}.yaml"), text)
}

/// Requests a run as anyone may who reaches the API.
fn ask(cluster: &Cluster, workflow: &str, id: &str, input: &str) -> Result<(u16, String)> {
    let body = format!(r#"{{"input": {{"by": {input:?}}}, "id": "{id}"}}"#);
    post(cluster, &format!("/v1/workflows/default/{workflow}/runs"), "", &body)
}

/// Ids of a workflow's runs in etcd, requested or begun.
fn ids(cluster: &Cluster, workflow: &str) -> Result<Vec<String>> {
    let mut ids = Vec::new();
    for root in [prefix::RUN_REQUESTS, prefix::RUN_HEADS] {
        let below = format!("{root}default/{workflow}/");
        ids.extend(cluster.etcd.list(&below)?.iter().map(|key| key.key[below.len()..].to_owned()));
    }
    ids.sort();
    ids.dedup();
    Ok(ids)
}

fn ended(cluster: &Cluster, run: &str) -> Result<Value> {
    eventually(&format!("{run} ends"), secs(30), || {
        let run: Value = serde_json::from_str(&cluster.cli(&["get", "run", run, "-o", "json"])?.ok()?)?;
        ensure!(run["phase"] != "Running", "{run}");
        Ok(run)
    })
}

#[test]
fn a_stranger_takes_no_triggers_run_fills_no_etcd_and_writes_to_no_terminal() -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions::default())?;
    let mut command = cluster.serve_command(0);
    command.extend(["--run-bytes-per-minute", "1Mi"].map(str::to_owned));
    cluster.reconcilers[0].set_command(command);
    // No node: runs of these workflows need none.
    cluster.run_story(|cluster| {
        cluster.etcd.start()?;
        cluster.reconcilers[0].start()?;
        cluster.wait_reconciler(0)?;
        let triggers = format!(
            "[{{name: paid, onCall: {{tokenSha256: {TOKEN_SHA256}}}}}, {{name: tick, schedule: {{cron: '0 0 1 1 *'}}}}]"
        );
        let changes = [
            flow("shop", &triggers),
            flow("bulk", "[]"),
            flow("other", "[]"),
            Change::write("escapes.yaml", ESCAPES),
        ];
        cluster.push(&changes, "Four workflows")?;
        eventually("the workflows are known", secs(30), || {
            cluster.cli(&["get", "workflow", "shop"])?.ok()?;
            cluster.cli(&["get", "workflow", "escapes"])?.ok()
        })?;
        ids_of_triggers_are_theirs(cluster)?;
        bytes_of_a_minute_end(cluster)?;
        no_code_reaches_a_terminal(cluster)?;
        open_requests_hold_up_nobody(cluster)?;
        cluster.reconcilers[0].end(Signal::SIGTERM, secs(30)).map(drop)
    })
}

fn ids_of_triggers_are_theirs(cluster: &Cluster) -> Result<()> {
    let refused = |id: &str| -> Result<()> {
        let (status, text) = ask(cluster, "shop", id, "a stranger")?;
        ensure!(status == 409 && text.contains("belong to trigger"), "{id}: {text}");
        Ok(())
    };
    for id in ["paid.order-1", "paid.", "tick.20261129T0839Z", "tick.20990101T0000Z"] {
        refused(id)?;
    }
    ensure!(ids(cluster, "shop")?.is_empty(), "{:?}", ids(cluster, "shop")?);
    let (call, key) = ("/v1/calls/workflow/default/shop/paid", "Idempotency-Key: order-1\r\n");
    let (status, text) = post(cluster, call, &format!("Authorization: Bearer x\r\n{key}"), "{}")?;
    ensure!(status == 401, "{text}");
    let login = format!("Authorization: Bearer {TOKEN}\r\n{key}");
    let (status, text) = post(cluster, call, &login, r#"{"by": "the shop"}"#)?;
    ensure!(status == 202 && text.contains("paid.order-1"), "{text}");
    let run = ended(cluster, "shop/paid.order-1")?;
    ensure!(run["phase"] == "Succeeded" && run["output"]["by"] == "the shop", "{run}");
    refused("paid.order-1")?;
    // An id that only resembles those of a trigger.
    let (status, text) = ask(cluster, "shop", "paid-order-1", "a stranger")?;
    ensure!(status == 202, "{text}");
    Ok(())
}

/// Requests whose body does not come, from all of loopback: another address still gets its run.
fn open_requests_hold_up_nobody(cluster: &Cluster) -> Result<()> {
    let (api, pki) = (cluster.listen(0), cluster.trust.user()?);
    let elsewhere: Ipv4Addr = Clients::beyond(cluster.slot())?.machine_address().parse()?;
    let head = |more: &str| {
        format!(
            "POST /v1/workflows/default/other/runs HTTP/1.1\r\nHost: {api}\r\nContent-Type: application/json\r\n\
             Connection: close\r\n{more}\r\n"
        )
    };
    let open = |_| -> Result<SslStream<TcpStream>> {
        let mut stream = tls_connect(TcpStream::connect(&api)?, &pki)?;
        stream.write_all(head("Content-Length: 100\r\n").as_bytes())?;
        Ok(stream)
    };
    let held = (0..60).map(open).collect::<Result<Vec<_>>>()?;
    let request = head("Content-Length: 2\r\n") + "{}";
    let other = tls_connect(connect_from(elsewhere, &api)?, &pki)?;
    let (status, text) = exchange(other, request.as_bytes())?;
    ensure!(status == 202, "beside {} open requests: {text}", held.len());
    Ok(())
}

fn bytes_of_a_minute_end(cluster: &Cluster) -> Result<()> {
    let large = "x".repeat(250_000);
    for id in ["r1", "r2", "r3", "r4"] {
        let (status, text) = ask(cluster, "bulk", id, &large)?;
        ensure!(status == 202, "{id}: {text}");
    }
    let (status, text) = ask(cluster, "bulk", "r5", &large)?;
    let head = text.to_ascii_lowercase();
    let wait = head.lines().find_map(|line| line.strip_prefix("retry-after: ")?.trim().parse::<u64>().ok());
    ensure!(status == 429 && wait.is_some_and(|wait| (1..=61).contains(&wait)), "{text}");
    ensure!(ids(cluster, "bulk")? == ["r1", "r2", "r3", "r4"], "{:?}", ids(cluster, "bulk")?);
    // A repeated request costs nothing, and other workflows have their own bytes.
    let (status, text) = ask(cluster, "bulk", "r1", &large)?;
    ensure!(status == 200, "{text}");
    let (status, text) = ask(cluster, "other", "r1", &large)?;
    ensure!(status == 202, "{text}");
    Ok(())
}

/// Checks that the output shows the codes of `ESCAPES`, and holds none.
fn is_clean(words: &[&str], said: &Outcome) -> Result<()> {
    let text = format!("{}{}", said.stdout, said.stderr);
    let raw = text.chars().find(|c| (c.is_control() && *c != '\n') || ('\u{202a}'..='\u{202e}').contains(c));
    ensure!(raw.is_none(), "{words:?} prints {raw:?}: {text:?}");
    ensure!(text.contains(r"\u{1b}[3"), "{words:?} does not show it: {text}");
    Ok(())
}

fn no_code_reaches_a_terminal(cluster: &Cluster) -> Result<()> {
    let waits =
        ["run", "escapes", "-d", r#"{"x": "\u001b[31m"}"#, "--id", "e1", "--wait", "--timeout", "50s"];
    is_clean(&waits, &cluster.cli(&waits)?)?;
    let run = ended(cluster, "escapes/e1")?;
    ensure!(run["phase"] == "Failed" && run.to_string().contains("pwn"), "{run}");
    for words in [
        &["get", "runs"][..],
        &["get", "runs", "-o", "wide"],
        &["get", "workflows"],
        &["describe", "run", "escapes/e1"],
        &["describe", "workflow", "escapes"],
    ] {
        is_clean(words, &cluster.cli(words)?)?;
    }
    let file = cluster.repo.work().join("escapes.yaml");
    let file = file.to_string_lossy();
    let words = ["simulate", "workflow", &*file];
    let said = outcome(Command::new(minik8s_binary()).args(words), secs(30)).context("simulate")?;
    is_clean(&words, &said)
}
