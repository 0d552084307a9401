//! A path whose requests are shared by several backends, through the gateways of three nodes: by weight and by
//! header, with a function as one backend, and with shares changed by a push under load.

use std::collections::BTreeMap;

use harness::{Change, Cluster, ClusterOptions, Context, Result, Where, ensure, eventually, secs};

use crate::gateway::{Gateway, HOST, Steady, exchange, pod, ready, service};

/// Requests through each of three gateways.
const REQUESTS: usize = 3_334;
const HELLO: &str = "def main(params):\n    return {'greeting': 'hello ' + params.get('name', 'you')}\n";

/// The Dns object with the weights of `old` and `new` at `/`.
fn dns(old: u32, new: u32) -> Change {
    let text = format!(
        "apiVersion: minik8s.io/v1\nkind: Dns\nmetadata: {{name: shop}}\nspec:\n  host: {HOST}\n  paths:\n  \
         - path: /\n    backends:\n    \
         - {{service: old, port: http, weight: {old}}}\n    \
         - {{service: new, port: http, weight: {new}}}\n    \
         - {{service: new, port: 80, headers: {{X-Canary: \"yes\"}}}}\n  \
         - path: /hello\n    backends: [{{function: hello}}]\n"
    );
    Change::write("dns.yaml", text)
}

/// Number of answers by body for `count` requests through each gateway.
fn answers(gateway: &Gateway, count: usize, headers: &str) -> Result<BTreeMap<String, usize>> {
    let request = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n{headers}\r\n");
    let (at, request) = (gateway.socket(), request.as_str());
    let clients: Vec<_> = std::thread::scope(|threads| {
        let clients: Vec<_> = gateway
            .nodes
            .iter()
            .map(|net| {
                threads.spawn(move || {
                    net.within(|| {
                        let mut stream = None;
                        let said = (0..count).map(|_| exchange(at, request, &mut stream));
                        said.collect::<Result<Vec<_>>>()
                    })
                })
            })
            .collect();
        clients.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    let mut counts = BTreeMap::new();
    for client in clients {
        let said = client.map_err(|_| harness::Error::msg("a client panicked"))??;
        said.into_iter().for_each(|body| *counts.entry(body).or_default() += 1);
    }
    Ok(counts)
}

/// Checks that `new` got this percentage of the requests, to within `off`.
fn shares(counts: &BTreeMap<String, usize>, percent: usize, off: usize) -> Result<()> {
    let total: usize = counts.values().sum();
    let new = counts.get("this is new").copied().unwrap_or_default();
    ensure!(counts.len() <= 2 && (new * 100).abs_diff(total * percent) <= total * off, "{counts:?}");
    Ok(())
}

#[test]
fn backends_share_a_path_by_weight_and_header_and_a_push_that_changes_shares_fails_no_request() -> Result<()>
{
    let options = ClusterOptions { place: Where::Namespaces(3), python: true, ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let mut changes = vec![service("old"), service("new"), dns(90, 10)];
        for (name, node) in ["old", "new"].iter().zip(&cluster.nodes) {
            changes.push(pod(name, name, &format!("this is {name}"), node));
        }
        let function =
            "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {name: hello}\nspec: {source: code}\n";
        changes.push(Change::write("hello.yaml", function.to_owned()));
        changes.push(Change::write("code/main.py", HELLO.to_owned()));
        let commit = cluster.push(&changes, "A canary")?;
        cluster.applied(&commit)?;
        for name in ["old", "new"] {
            ready(cluster, name, 1)?;
        }
        let gateway = Gateway::of(cluster)?;
        gateway.says("/", 200, "this is")?;
        eventually("both backends are there", secs(30), || shares(&answers(&gateway, 100, "")?, 10, 1))?;
        let counts = answers(&gateway, REQUESTS, "")?;
        println!("measured: {counts:?} at 90/10");
        shares(&counts, 10, 1)?;
        let canaries = answers(&gateway, 20, "X-Canary: yes\r\n")?;
        ensure!(canaries == BTreeMap::from([("this is new".to_owned(), 60)]), "{canaries:?}");
        behind_a_host(&gateway)?;
        changed_under_load(cluster, &gateway)
    })
}

/// Checks that the body is the call's input, and the answer the function's output.
fn behind_a_host(gateway: &Gateway) -> Result<()> {
    let ask = |body: &str| -> Result<Vec<String>> {
        let length = body.len();
        let request =
            format!("POST /hello HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {length}\r\n\r\n{body}");
        let asked = gateway.nodes.iter();
        asked.map(|net| net.within(|| exchange(gateway.socket(), &request, &mut None))).collect()
    };
    // The first call waits for the build of the image.
    eventually("the function answers", secs(120), || ask("{}"))?;
    for said in ask(r#"{"name": "Ada"}"#)? {
        ensure!(said.contains("hello ada"), "{said}");
    }
    let wrong = ask("[1]").err().context("a list is not a call")?;
    let wrong = format!("{wrong:#}");
    ensure!(wrong.contains("400") && wrong.contains("notanobject"), "{wrong}");
    Ok(())
}

fn changed_under_load(cluster: &Cluster, gateway: &Gateway) -> Result<()> {
    let steady = Steady::start(&gateway.nodes, gateway.socket(), "/", "this is ");
    for (old, new, percent) in [(1, 1, 50), (0, 7, 100), (3, 1, 25)] {
        cluster.push(&[dns(old, new)], "Other shares")?;
        // The old and new shares may both be counted here.
        eventually("the new shares hold", secs(45), || shares(&answers(gateway, 100, "")?, percent, 10))?;
    }
    let requests = steady.end()?;
    println!("measured: {requests} requests while shares changed, none failed");
    ensure!(requests >= 30, "{requests} requests");
    for words in [&["get", "dns"][..], &["describe", "dns/shop"]] {
        let said = cluster.cli(words)?.stdout;
        ensure!(
            said.contains("75%") && said.contains("25%") && said.contains("with x-canary: yes"),
            "{said}"
        );
    }
    Ok(())
}
