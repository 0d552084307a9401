//! Functions: Dockerfiles that fetch from the node's loopback, processes of a step, and calls that never end.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use harness::manifests::sleeper;
use harness::{
    Change, Cluster, ClusterOptions, Context, IMAGE, NetWorld, Result, Where, ensure, eventually, secs,
};

use super::apis::{answer, exchange};
use crate::functions::{code, manifest};

/// Largest body of a call by default.
const BODY: usize = 1 << 20;
/// Bytes of bodies that one address may have at a node: a quarter of 256 MiB.
const SHARE: usize = 64 << 20;

/// Answers a call once its body is there. One with this idempotency key is redirected.
const ANSWER: &str = r#"end=$(printf '\r')
status='200 OK'
read line
while read header && [ "$header" != "$end" ]; do
  case "$header" in
    [Cc]ontent-[Ll]ength:*) length=${header#*: }; length=${length%$end};;
    *send-me-on*) status="302 Found\r\nLocation: http://TARGET/";;
  esac
done
head -c ${length:-0} >/dev/null
printf "HTTP/1.1 $status\r\nContent-Length: 14\r\nConnection: close\r\n\r\n"
printf '{"made": true}'
"#;

/// Listens on the node's loopback until the test ends; returns its address and the number of connections.
fn loopback(net: &NetWorld) -> Result<(SocketAddr, Arc<AtomicUsize>)> {
    let listener = net.within(|| Ok(TcpListener::bind("127.0.0.1:0")?))?;
    let (at, count) = (listener.local_addr()?, Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ =
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nstolen");
        }
    });
    Ok((at, count))
}

#[test]
fn no_dockerfile_reaches_the_nodes_loopback_and_no_open_call_holds_up_another() -> Result<()> {
    let options = ClusterOptions { place: Where::Namespaces(1), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let (loopback, connections) = loopback(&cluster.node().net)?;
        cluster.node().net.within(|| Ok(TcpStream::connect(loopback)?))?;
        eventually("the node itself reaches it", secs(5), || {
            ensure!(connections.swap(0, Ordering::SeqCst) == 1);
            Ok(())
        })?;
        processes_of_a_step_are_bounded(cluster, loopback)?;
        let idle = open_calls_hold_up_nobody(cluster)?;
        redirected_calls_end(cluster, &connections)?;
        dockerfiles_fetch_nothing(cluster, loopback, &connections)?;
        let (status, text) = answer(idle, secs(20))?;
        ensure!(status == 408 && text.contains("BodyLate"), "{text}");
        Ok(())
    })
}

/// Builds the function that is called later. A step of it waits until its bound has been read.
fn processes_of_a_step_are_bounded(cluster: &Cluster, target: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind((cluster.slot().underlay(1), 0))?;
    listener.set_nonblocking(true)?;
    let at = listener.local_addr()?;
    let dockerfile = format!(
        "FROM {IMAGE}\nRUN echo waits | nc {} {} >/word && grep go /word\nCOPY answer /answer\n\
         CMD [\"nc\", \"-ll\", \"-p\", \"8080\", \"-e\", \"sh\", \"/answer\"]\n",
        at.ip(),
        at.port()
    );
    let changes = [
        Change::write("attacker.yaml", sleeper("attacker")),
        Change::write("neighbour.yaml", sleeper("neighbour")),
        manifest("made", "  minScale: 1\n"),
        code("made", "Dockerfile", &dockerfile),
        code("made", "answer", &ANSWER.replace("TARGET", &target.to_string())),
    ];
    cluster.push(&changes, "A function and two pods")?;
    let (mut step, _) = eventually("a step waits", secs(60), || Ok(listener.accept()?))?;
    step.set_nonblocking(false)?;
    let command = format!("nc\0{}\0{}\0", at.ip(), at.port());
    let bound = pids_max(process_of(&command)?)?;
    ensure!(bound.is_some_and(|bound| bound <= 4096), "a step may start {bound:?} processes");
    let _ = step.read(&mut [0; 64])?;
    step.write_all(b"go\n")?;
    Ok(())
}

/// The process with this command line.
fn process_of(command: &str) -> Result<u32> {
    let ids = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let runs = |id: &u32| fs::read_to_string(format!("/proc/{id}/cmdline")).is_ok_and(|line| line == command);
    ids.into_iter().find(runs).context("no step runs")
}

/// Smallest bound of processes from the cgroup of this process upwards.
fn pids_max(pid: u32) -> Result<Option<u64>> {
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let find = |controller: &str| {
        let mut lines = cgroups.lines().map(|line| line.splitn(3, ':').collect::<Vec<_>>());
        lines.find_map(|line| (line.len() == 3 && line[1] == controller).then(|| line[2].to_owned()))
    };
    let (root, own) = match find("pids") {
        Some(own) => ("/sys/fs/cgroup/pids", own),
        None => ("/sys/fs/cgroup", find("").context("no cgroup of processes")?),
    };
    let folders = Path::new(&own)
        .ancestors()
        .map(|folder| Path::new(root).join(folder.strip_prefix("/").unwrap_or(folder)));
    let bounds = folders.filter_map(|folder| fs::read_to_string(folder.join("pids.max")).ok());
    Ok(bounds.filter_map(|bound| bound.trim().parse().ok()).min())
}

// Calls whose body does not come.

fn head(at: &str, length: usize, more: &str) -> String {
    format!(
        "POST /default/made HTTP/1.1\r\nHost: {at}\r\nContent-Type: application/json\r\nConnection: close\r\n{more}\
         Content-Length: {length}\r\n\r\n"
    )
}

/// Calls with a body that needs room, from this network.
fn call(from: &NetWorld, at: &str, more: &str) -> Result<(u16, String)> {
    let body = format!(r#"{{"x": "{}"}}"#, "y".repeat(100_000));
    let request = head(at, body.len(), more) + &body;
    from.within(|| exchange(TcpStream::connect(at)?, request.as_bytes()))
}

/// Holds the room of one address, and as many calls without any byte; returns one of the latter.
fn open_calls_hold_up_nobody(cluster: &Cluster) -> Result<TcpStream> {
    let (node, at) = (&cluster.node().net, cluster.node().functions()?);
    let attacker = Cluster::net_of(&cluster.running("attacker", &["main"])?);
    let neighbour = Cluster::net_of(&cluster.running("neighbour", &["main"])?);
    eventually("the function answers", secs(60), || {
        let (status, text) = call(&neighbour, &at, "")?;
        ensure!(status == 200 && text.contains("made"), "{text}");
        Ok(())
    })?;
    let open = |count: usize| -> Result<Vec<TcpStream>> {
        attacker.within(|| {
            let open = |_| -> Result<TcpStream> {
                let mut stream = TcpStream::connect(&at)?;
                stream.write_all(head(&at, BODY, "").as_bytes())?;
                Ok(stream)
            };
            (0..count).map(open).collect()
        })
    };
    let mut idle = open(260)?;
    let slow = open(2 * SHARE / BODY)?;
    let (body, mut written) = (vec![b' '; BODY - 1], vec![0; slow.len()]);
    for stream in &slow {
        stream.set_nonblocking(true)?;
    }
    eventually("the attacker holds its share", secs(8), || {
        for (mut stream, written) in slow.iter().zip(&mut written) {
            while *written < body.len() {
                match stream.write(&body[*written..]) {
                    Ok(length) => *written += length,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        let sent: usize = written.iter().sum();
        ensure!(sent > SHARE, "{sent} bytes are sent");
        Ok(())
    })?;
    for from in [&neighbour, node] {
        let (status, text) = call(from, &at, "").with_context(|| format!("from {from:?}"))?;
        ensure!(status == 200, "from {from:?}: {text}");
    }
    idle.pop().context("260 are open")
}

/// A replica's redirect is an error of the function, and nobody follows it.
fn redirected_calls_end(cluster: &Cluster, connections: &AtomicUsize) -> Result<()> {
    let at = cluster.node().functions()?;
    let (status, text) = call(&cluster.node().net, &at, "Idempotency-Key: send-me-on\r\n")?;
    ensure!(status == 500 && text.contains("302"), "{text}");
    ensure!(connections.load(Ordering::SeqCst) == 0, "the gateway went where the function sent it");
    Ok(())
}

// Dockerfiles that make Docker itself fetch something.

fn dockerfiles_fetch_nothing(cluster: &Cluster, at: SocketAddr, connections: &AtomicUsize) -> Result<()> {
    let docker = &cluster.node().docker;
    let base = docker.run(&["create", IMAGE, "true"])?;
    let trigger = format!("ONBUILD ADD http://{at}/onbuild /x");
    docker.run(&["commit", "--change", &trigger, base.trim(), "minik8s-e2e/onbuild:1"])?;
    docker.run(&["rm", base.trim()])?;
    let pushed = [
        ("add", format!("FROM {IMAGE}\nADD http://{at}/add /x\n"), "ADD would fetch"),
        (
            "hidden",
            format!("FROM {IMAGE}\nARG A=http\nENV B=${{A}}://{at}\nADD $B/x /x\n"),
            "ADD would fetch",
        ),
        ("syntax", format!("# syntax={at}/syntax:1\nFROM {IMAGE}\n"), "# syntax="),
        ("mounts", format!("FROM {IMAGE}\nRUN --mount=type=bind,from={at}/m,target=/m ls\n"), "--mount"),
        ("trigger", format!("FROM {IMAGE}\nONBUILD ADD http://{at}/later /x\n"), "ONBUILD"),
    ];
    let built = [
        ("base", format!("FROM {at}/base:1\n"), "no public address"),
        ("chosen", format!("ARG FROM={at}/chosen\nFROM ${{FROM}}:1\n"), "no public address"),
        ("copies", format!("FROM {IMAGE}\nCOPY --from={at}/copied:1 /x /x\n"), "no public address"),
        ("inherits", "FROM minik8s-e2e/onbuild:1\n".to_owned(), "has ONBUILD instructions"),
    ];
    let mut changes = Vec::new();
    for (name, text, _) in pushed.iter().chain(&built) {
        let text = format!("{text}CMD [\"sleep\", \"infinity\"]\n");
        changes.extend([manifest(name, ""), code(name, "Dockerfile", &text)]);
    }
    let commit = cluster.repo.push(&changes, "Nine attacks")?;
    let source = cluster.source_where("the push is judged", |source| {
        source.observed_commit.as_deref() == Some(&*commit) && !source.quarantined.is_empty()
    })?;
    for (name, _, why) in &pushed {
        let said = source.quarantined.iter().find(|held| held.file == format!("{name}.yaml"));
        let said = format!("{said:?}");
        ensure!(said.contains(why), "{name}: {said}, {} connections", connections.load(Ordering::SeqCst));
    }
    for (name, _, why) in &built {
        eventually(&format!("{name} is refused"), secs(30), || {
            let described = cluster.cli(&["describe", &format!("function/{name}")])?.ok()?;
            ensure!(
                described.contains(why),
                "{} connections: {described}",
                connections.load(Ordering::SeqCst)
            );
            Ok(())
        })?;
    }
    ensure!(connections.load(Ordering::SeqCst) == 0, "Docker fetched something from the node's loopback");
    Ok(())
}
