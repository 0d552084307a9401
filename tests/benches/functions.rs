//! Functions: builds, cold starts, overhead of the gateway for a warm call, calls per second, bursts. Compared in the
//! same run with bare Docker, which starts the same image with the same limits, and with the replica called directly.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use harness::{Change, Cluster, ClusterOptions, Context, Result, ensure, eventually, http_get, secs};

use crate::Scale;
use crate::engine::{Engine, remove_bare};
use crate::figures::{Row, Series, Table, ms, ratio};
use crate::gateway::{Measured, has_tools, load};
use crate::pods::sync;

const CODE: &str = "def main(params):\n    return {}\n";
/// Code called by the burst.
const SLOW: &str = "import time\n\n\ndef main(params):\n    time.sleep(0.05)\n    return {}\n";
/// Functions called in turn.
const MANY: usize = 50;
/// Concurrent calls of the burst.
const BURST: usize = 200;
/// Phases of a cold start, as reported by the gateway.
const PHASES: [&str; 6] = ["scheduled", "created", "started", "imported", "routed", "handled"];

pub(crate) fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    if !has_tools(&["wrk"]) {
        println!("functions: not measured, there is no wrk (apt-get install wrk)");
        return Ok(());
    }
    let options = ClusterOptions { poll: "1h", python: true, ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let at = Place::of(cluster)?;
        builds(cluster, table)?;
        cold_starts(cluster, &at, scale, table)?;
        idle(cluster, &at, scale, table)?;
        warm(cluster, &at, scale, table)?;
        burst(cluster, &at, table)?;
        many(cluster, &at, scale, table)
    })
}

/// Address for calls, and the scripts for wrk.
struct Place {
    gateway: String,
    /// Script for an empty call.
    post: PathBuf,
    /// Script for an empty call of one function after another.
    turns: PathBuf,
}

impl Place {
    fn of(cluster: &Cluster) -> Result<Self> {
        let (post, turns) = (cluster.dir("post.lua"), cluster.dir("turns.lua"));
        std::fs::write(&post, "wrk.method = 'POST'\nwrk.body = '{}'\n")?;
        let text = format!(
            "local turn = 0\nrequest = function()\n  turn = turn + 1\n  \
             return wrk.format('POST', string.format('/default/many-%02d', turn % {MANY}), nil, '{{}}')\nend\n"
        );
        std::fs::write(&turns, text)?;
        Ok(Self { gateway: cluster.node().functions()?, post, turns })
    }

    /// Calls a function; returns the head of a successful answer.
    fn call(&self, name: &str) -> Result<String> {
        post(&self.gateway, &format!("/default/{name}"))
    }

    fn load(&self, connections: u32, url: &str, measured: &mut Measured) -> Result<()> {
        load(connections, url, &["-s", &self.post.to_string_lossy()], measured)
    }
}

/// Head of the answer to an empty call.
fn post(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(secs(100)))?;
    let head = format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nX-Timings: 1\r\n");
    stream.write_all(format!("{head}Content-Length: 2\r\n\r\n{{}}").as_bytes())?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    ensure!(said.starts_with("HTTP/1.1 200 "), "{path}: {said}");
    Ok(said)
}

fn function(name: &str, source: &str, spec: &str) -> Change {
    let text = format!(
        "apiVersion: minik8s.io/v1\nkind: Function\nmetadata: {{name: {name}}}\nspec:\n  source: code/{source}\n{spec}"
    );
    Change::write(format!("{name}.yaml"), text)
}

fn code(source: &str, text: &str) -> Change {
    Change::write(format!("code/{source}/main.py"), text)
}

fn push(cluster: &Cluster, changes: &[Change], message: &str) -> Result<()> {
    cluster.repo.push(changes, message)?;
    sync(cluster)
}

/// Measures from a push with sync until the node has the image.
fn builds(cluster: &Cluster, table: &mut Table) -> Result<()> {
    let spec = "  scaleToZeroAfterSeconds: 1\n";
    // Docker may have images of former runs.
    let own = format!("# {:?}\n{CODE}", std::time::SystemTime::now());
    let mut former = String::new();
    for (what, text) in [("at first", own.clone()), ("again, with other code", own.replace("{}", "{'n': 2}"))]
    {
        let began = Instant::now();
        push(cluster, &[function("hello", "hello", spec), code("hello", &text)], what)?;
        former = eventually("the image is built", secs(120), || {
            let found: serde_json::Value = cluster.etcd.value("/minik8s/functions/default/hello")?;
            let image = &found["images"][0];
            let reference = image["reference"].as_str().context("no image")?;
            ensure!(reference != former && image["id"].is_string(), "{image}");
            Ok(reference.to_owned())
        })?;
        let what = format!("push with sync → a function's image built, {what}");
        table.add(Row { what: &what, ours: ms(began.elapsed()), ..Row::default() });
    }
    Ok(())
}

/// Measures calls of a function without replicas, compared with a bare container of the same image.
fn cold_starts(cluster: &Cluster, at: &Place, scale: Scale, table: &mut Table) -> Result<()> {
    let engine = Engine::beside(cluster)?;
    at.call("hello")?;
    let replica = running(cluster, &engine)?.pop().context("no replica")?;
    let bare = engine.like(&replica)?;
    let (mut ours, mut theirs) = (Series::default(), Series::default());
    let mut phases = BTreeMap::<&str, Series>::new();
    for round in 0..scale.colds {
        eventually("it sleeps", secs(120), || {
            ensure!(running(cluster, &engine)?.is_empty(), "it runs");
            Ok(())
        })?;
        theirs.add(
            engine.first_answer(&bare, &format!("cold-{round}"), |address| post(address, "/").map(drop))?,
        );
        let began = Instant::now();
        let head = at.call("hello")?;
        ours.add(began.elapsed());
        for name in PHASES {
            let after =
                head.split(&format!("{name};dur=")).nth(1).with_context(|| format!("no {name} in {head}"))?;
            let millis: f64 = after.split([',', '\r']).next().unwrap_or_default().parse()?;
            phases.entry(name).or_default().add(Duration::from_secs_f64(millis / 1000.0));
        }
    }
    remove_bare(cluster)?;
    for (percent, budget) in [(50, "≤ 2 × bare docker run"), (95, "≤ 2 × bare docker run, ≤ 1.2 s")] {
        let what = format!("cold start of a function, n={}, p{percent}", ours.count());
        let (us, them) = (ours.percentile(percent), theirs.percentile(percent));
        table.add(Row { what: &what, ours: ms(us), bare: ms(them), ratio: ratio(us, them), budget });
    }
    for name in PHASES {
        let of = phases.get(name).cloned().unwrap_or_default();
        let what = format!("  of it {name}, p50");
        table.add(Row { what: &what, ours: ms(of.percentile(50)), ..Row::default() });
    }
    Ok(())
}

/// Measures calls of a replica that was idle, left running or paused meanwhile; the resume is part of the call.
fn idle(cluster: &Cluster, at: &Place, scale: Scale, table: &mut Table) -> Result<()> {
    let engine = Engine::beside(cluster)?;
    push(cluster, &[function("idle", "hello", "  minScale: 1\n")], "One that stays")?;
    eventually("it answers", secs(90), || at.call("idle"))?;
    let replica = eventually("it alone runs", secs(90), || match &running(cluster, &engine)?[..] {
        [replica] => Ok(replica.clone()),
        others => Err(harness::Error::msg(format!("{} run", others.len()))),
    })?;
    let (mut running, mut paused) = (Series::default(), Series::default());
    for _ in 0..scale.colds {
        for (is_paused, series) in [(false, &mut running), (true, &mut paused)] {
            if is_paused {
                engine.pause(&replica)?;
            }
            // Let the replica become idle.
            std::thread::sleep(Duration::from_millis(200));
            let began = Instant::now();
            if is_paused {
                engine.resume(&replica)?;
            }
            at.call("idle")?;
            series.add(began.elapsed());
        }
    }
    let text = |series: &Series| format!("{} ({})", ms(series.percentile(50)), ms(series.percentile(95)));
    table.add(Row {
        what: "call of an idle replica, p50 (p95), beside one that is paused meanwhile",
        ours: text(&running),
        bare: format!("paused {}", text(&paused)),
        ratio: ratio(running.percentile(50), paused.percentile(50)),
        budget: "",
    });
    push(cluster, &[Change::remove("idle.yaml")], "It goes")
}

/// Running containers of functions.
fn running(cluster: &Cluster, engine: &Engine) -> Result<Vec<String>> {
    let slot = cluster.slot().instance();
    engine.running(&[format!("minik8s.io/instance={slot}"), "minik8s.io/container=function".to_owned()])
}

/// Measures the overhead of the gateway for a running replica, and the throughput of one replica and of the defaults.
fn warm(cluster: &Cluster, at: &Place, scale: Scale, table: &mut Table) -> Result<()> {
    let wide = "  minScale: 1\n  maxScale: 1\n  concurrency: 20\n  resources: {limits: {cpu: 1}}\n";
    let changes = [function("wide", "hello", wide), function("usual", "hello", "  minScale: 1\n")];
    push(cluster, &changes, "Warm ones")?;
    let replica = eventually("both answer", secs(90), || {
        at.call("wide").and_then(|_| at.call("usual"))?;
        let found: serde_json::Value = cluster.etcd.value("/minik8s/functions/default/wide")?;
        Ok(found["replicas"][0]["address"].as_str().context("no replica")?.to_owned())
    })?;
    let (direct, through) = (format!("http://{replica}/"), format!("http://{}/default/wide", at.gateway));
    for connections in [1, 20] {
        let (mut bare, mut ours) = (Measured::default(), Measured::default());
        for _ in 0..scale.gateway_rounds {
            at.load(connections, &direct, &mut bare)?;
            at.load(connections, &through, &mut ours)?;
        }
        let what = format!("warm call, one replica, {connections} kept connections");
        for (name, us, them, budget) in [
            ("p50", ours.half.percentile(50), bare.half.percentile(50), "+ ≤ 1 ms"),
            ("p99", ours.most.percentile(50), bare.most.percentile(50), "+ ≤ 5 ms"),
        ] {
            let budget = if connections == 1 { budget } else { "" };
            let (what, ratio) = (format!("{what}, {name}"), format!("+ {}", ms(us.saturating_sub(them))));
            table.add(Row { what: &what, ours: ms(us), bare: ms(them), ratio, budget });
        }
        let (us, them) = (ours.per_second(), bare.per_second());
        table.add(Row {
            what: &format!("{what}, calls/s"),
            ours: format!("{us:.0}"),
            bare: format!("direct {them:.0}"),
            ratio: format!("{:.2} ×", us / them.max(1.0)),
            budget: if connections == 20 { "≥ 2,000" } else { "" },
        });
    }
    let mut ours = Measured::default();
    for _ in 0..scale.gateway_rounds {
        at.load(20, &format!("http://{}/default/usual", at.gateway), &mut ours)?;
    }
    let ours = format!("{:.0}", ours.per_second());
    table.add(Row { what: "the same of a function without settings, calls/s", ours, ..Row::default() });
    Ok(())
}

/// Calls of many functions in turn.
fn many(cluster: &Cluster, at: &Place, scale: Scale, table: &mut Table) -> Result<()> {
    let name = |number: usize| format!("many-{number:02}");
    let spec = "  minScale: 1\n  maxScale: 1\n  concurrency: 20\n  \
        resources: {requests: {cpu: 1m, memory: 16Mi}, limits: {cpu: 1, memory: 64Mi}}\n";
    let changes: Vec<_> = (0..MANY).map(|number| function(&name(number), "hello", spec)).collect();
    push(cluster, &changes, "Many")?;
    eventually("all answer", secs(300), || {
        (0..MANY).try_for_each(|number| at.call(&name(number)).map(drop))
    })?;
    let (mut one, mut all) = (Measured::default(), Measured::default());
    let (url, base) =
        (format!("http://{}/default/{}", at.gateway, name(0)), format!("http://{}/", at.gateway));
    for _ in 0..scale.gateway_rounds {
        at.load(20, &url, &mut one)?;
        load(20, &base, &["-s", &at.turns.to_string_lossy()], &mut all)?;
    }
    let (one, all) = (one.per_second(), all.per_second());
    table.add(Row {
        what: &format!("{MANY} functions in turn, 20 connections, calls/s"),
        ours: format!("{all:.0}"),
        bare: format!("one of them {one:.0}"),
        ratio: format!("{:.2} ×", all / one.max(1.0)),
        budget: "≥ 0.5 × of one",
    });
    Ok(())
}

/// Many concurrent calls of a function without a replica.
fn burst(cluster: &Cluster, at: &Place, table: &mut Table) -> Result<()> {
    let spec = "  scaleToZeroAfterSeconds: 1\n  queueLength: 1000\n";
    push(cluster, &[function("burst", "burst", spec), code("burst", SLOW)], "A burst")?;
    eventually("it answers", secs(120), || at.call("burst"))?;
    eventually("it sleeps", secs(120), || {
        let (_, state) = http_get(&at.gateway, "/default/burst")?;
        ensure!(state.contains("\"Asleep\""), "{state}");
        Ok(())
    })?;
    let began = Instant::now();
    let mut series = Series::default();
    std::thread::scope(|threads| -> Result<()> {
        let call = || at.call("burst").map(|_| began.elapsed());
        let running: Vec<_> = (0..BURST).map(|_| threads.spawn(call)).collect();
        for one in running {
            series.add(one.join().map_err(|_| harness::Error::msg("a caller panicked"))??);
        }
        Ok(())
    })?;
    for (name, percent) in [("half of them are", 50), ("the last is", 100)] {
        let what = format!("0 → {BURST} calls of 50 ms at once, until {name} answered");
        table.add(Row { what: &what, ours: ms(series.percentile(percent)), ..Row::default() });
    }
    Ok(())
}
