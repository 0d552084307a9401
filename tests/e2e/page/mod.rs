//! The page over HTTP, as its script uses it: what the pages hold, and what their streams send after a push, a crash,
//! lines of a log, and the end of two side by side.
//!
//! Seen red when `event` in `reconciler/src/api/page/changes.rs` renders only once.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use harness::manifests::web;
use harness::{
    Change, Cluster, ClusterOptions, Context, IMAGE, Result, bail, ensure, eventually, http_get, secs,
};

mod browser;

/// A line that must stay text.
const HOSTILE: &str = "<script>alert(1)</script> \\033[31mred\\033[0m \\033]0;title\\007";

#[test]
fn streams_of_the_page_show_a_push_a_crash_and_lines_of_a_log() -> Result<()> {
    Cluster::run(ClusterOptions::default(), |cluster| {
        cluster.push(&[Change::write("shop.yaml", web("shop").to_string())], "Open the shop")?;
        cluster.serving("shop", "hello from shop")?;
        eventually("the overview shows the commit", secs(20), || {
            let html = get(cluster, "/")?;
            ensure!(html.contains("Open the shop") && html.contains("Every object is healthy"), "{html}");
            Ok(())
        })?;
        for path in ["/tree", "/network", "/history", "/history/main/1", "/object/Pod/default/shop"] {
            let html = get(cluster, path)?;
            ensure!(html.contains("</html>"), "{path}: {html}");
        }
        let node = format!("/nodes/{}", cluster.node().name);
        ensure!(get(cluster, &node)?.contains("default/shop"), "{node}");
        a_push_and_a_crash_are_seen(cluster)?;
        lines_are_seen(cluster)?;
        two_logs_are_seen_until_both_end(cluster)
    })
}

fn get(cluster: &Cluster, path: &str) -> Result<String> {
    let (code, html) = http_get(&cluster.api(0), path)?;
    ensure!(code == 200, "{path}: {code} {html}");
    Ok(html)
}

/// A stream of events.
struct Stream(BufReader<UnixStream>);

impl Stream {
    fn open(cluster: &Cluster, of: &str) -> Result<Self> {
        let html = get(cluster, of)?;
        let have =
            html.split("data-have=\"").nth(1).and_then(|rest| rest.split('"').next()).context("no hashes")?;
        let mut stream = UnixStream::connect(cluster.socket(0))?;
        stream.set_read_timeout(Some(secs(30)))?;
        let of = of.replace('?', "%3F").replace('=', "%3D");
        write!(stream, "GET /changes?of={of}&have={have} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Reads until a line has this text.
    fn wait_for(&mut self, wanted: &str) -> Result<String> {
        let (mut seen, end) = (String::new(), Instant::now() + secs(60));
        loop {
            // Comments keep an idle stream alive, so a read need not fail.
            ensure!(Instant::now() < end, "no {wanted}: {seen}");
            let mut line = String::new();
            match self.0.read_line(&mut line) {
                Ok(0) => bail!("the stream ended before {wanted}: {seen}"),
                Ok(_) if line.contains(wanted) => return Ok(line),
                Ok(_) => seen.push_str(&line),
                Err(error) => bail!("no {wanted}: {error}; {seen}"),
            }
        }
    }
}

fn a_push_and_a_crash_are_seen(cluster: &Cluster) -> Result<()> {
    let mut overview = Stream::open(cluster, "/")?;
    cluster.push(&[Change::write("second.yaml", web("second").to_string())], "Open another")?;
    overview.wait_for("Open another")?;
    cluster.running("second", &["web"])?;
    let mut object = Stream::open(cluster, "/object/Pod/default/second")?;
    let container = cluster.running("second", &["web"])?.container("web")?.id.clone();
    cluster.node().docker.run(&["kill", &container])?;
    object.wait_for("1 restart")?;
    Ok(())
}

fn lines_are_seen(cluster: &Cluster) -> Result<()> {
    let pod = cluster.running("shop", &["web"])?;
    let say = |text: &str| {
        let command = format!("printf '%b\\n' '{text}' > /proc/1/fd/1");
        cluster.node().docker.exec(pod.container("web")?, &["sh", "-c", &command])
    };
    say("first")?;
    let path = "/logs/default/shop?container=web";
    eventually("the page has the line", secs(20), || {
        let html = get(cluster, path)?;
        ensure!(html.contains("first"), "{html}");
        Ok(())
    })?;
    let mut log = Stream::open(cluster, path)?;
    say(HOSTILE)?;
    let line = log.wait_for("alert(1)")?;
    ensure!(line.contains("&#60;script&#62;") && !line.contains("<script>"), "{line}");
    ensure!(line.contains("ansi bad") && !line.contains('\u{1b}') && !line.contains('\u{7}'), "{line}");
    ensure!(!line.contains("first"), "a line that the page has is sent again: {line}");
    Ok(())
}

fn two_logs_are_seen_until_both_end(cluster: &Cluster) -> Result<()> {
    let pair = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: pair}}\nspec:\n  restartPolicy: Never\n  \
         terminationGracePeriodSeconds: 0\n  containers:\n  - name: one\n    image: {IMAGE}\n    \
         command: [echo, from one]\n  - name: two\n    image: {IMAGE}\n    \
         command: [sh, -c, 'echo from two; sleep 5; echo later from two']\n"
    );
    cluster.push(&[Change::write("pair.yaml", pair)], "Two that end")?;
    let path = "/logs/default/pair?container=*";
    let have = |lines: &[&str]| {
        eventually("both logs are on the page", secs(60), || {
            let html = get(cluster, path)?;
            ensure!(lines.iter().all(|line| html.contains(line)), "{html}");
            Ok(())
        })
    };
    have(&["> from one\n", "> from two\n", "id=\"lines-1\""])?;
    Stream::open(cluster, path)?.wait_for("event: end")?;
    have(&["> later from two\n"])
}
