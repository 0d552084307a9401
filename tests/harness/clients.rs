//! Clients outside of the cluster that send requests without a pause: a network namespace with one address on a link
//! to the machine, and a thread in it for each target. Bounded in count and time, and paced.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, setns};

use crate::cluster::PodView;
use crate::http::http_get;
use crate::net_world::NetWorld;
use crate::node::Node;
use crate::outside::linked_namespace;
use crate::process::run;
use crate::slot::Slot;
use crate::wait::{eventually, secs};

/// Pause between two requests of one client: a steady stream that leaves the machine to the others.
const PACE: Duration = Duration::from_millis(10);
/// Maximum number of requests of a client.
const REQUESTS_MAX: u64 = 1_000_000;
/// Maximum running time of a client.
const TIME_MAX: Duration = Duration::from_secs(3600);
/// Failures kept per client for the error message.
const FAILURES_SHOWN: usize = 5;

/// Target of a client, and the answer required every time.
#[derive(Debug, Clone)]
pub struct Target {
    /// Name in messages.
    pub name: String,
    /// `address:port`.
    pub address: String,
    /// Required body.
    pub answer: String,
}

/// A namespace with its clients. The sweep of the slot removes it.
#[derive(Debug)]
pub struct Clients {
    gateway: String,
    namespace: String,
    running: Vec<Client>,
}

#[derive(Debug)]
struct Client {
    name: String,
    answered: Arc<AtomicU64>,
    stop: Sender<()>,
    thread: JoinHandle<Result<Tally>>,
}

/// Results of one client.
#[derive(Debug, Default)]
struct Tally {
    requests: u64,
    failed: u64,
    failures: Vec<String>,
}

impl Clients {
    /// Creates the namespace without any client yet.
    pub fn beyond(slot: &Slot) -> Result<Self> {
        let name = format!("{}c", slot.instance());
        let (gateway, address) = (slot.underlay(249), slot.underlay(250));
        linked_namespace(&name, &gateway, &address)?;
        run("ip", &["-n", &name, "route", "add", "default", "via", &gateway])?;
        Ok(Self { gateway, namespace: format!("/var/run/netns/{name}"), running: Vec::new() })
    }

    /// Clients on a node itself, in its own network namespace.
    pub fn on(node: &Node) -> Result<Self> {
        let (gateway, namespace) = (node.address()?.to_owned(), node.namespace()?);
        Ok(Self { gateway, namespace, running: Vec::new() })
    }

    /// Clients in a pod, in its network.
    pub fn in_pod(pod: &PodView) -> Result<Self> {
        let (gateway, namespace) = (String::new(), format!("/proc/{}/ns/net", pod.pause.pid));
        Ok(Self { gateway, namespace, running: Vec::new() })
    }

    /// Machine's address on the link, for requests to its host ports.
    pub fn machine_address(&self) -> &str {
        &self.gateway
    }

    /// Network of the clients.
    pub fn world(&self) -> NetWorld {
        NetWorld::of_file(&self.namespace)
    }

    /// Starts a client once the target has answered for the first time.
    pub fn ask(&mut self, target: Target) -> Result<()> {
        let namespace = File::open(&self.namespace)?;
        let (stop, stopped) = channel();
        let answered = Arc::new(AtomicU64::new(0));
        let (name, count) = (target.name.clone(), Arc::clone(&answered));
        let thread = std::thread::spawn(move || {
            // Only this thread changes its namespace.
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            eventually(&format!("{} answers", target.name), secs(20), || ask_once(&target))?;
            Ok(go_on_asking(&target, &count, &stopped))
        });
        self.running.push(Client { name, answered, stop, thread });
        Ok(())
    }

    /// Waits until every client has received `more` further answers.
    pub fn answered(&self, more: u64) -> Result<()> {
        let goals: Vec<_> = self.running.iter().map(|c| c.answered.load(Ordering::Relaxed) + more).collect();
        eventually("every client had its answers", secs(60), || {
            for (client, goal) in self.running.iter().zip(&goals) {
                let answered = client.answered.load(Ordering::Relaxed);
                ensure!(answered >= *goal, "{} had {answered} of {goal}", client.name);
            }
            Ok(())
        })
    }

    /// Stops all clients and returns the number of requests. Fails if a single one was not answered.
    pub fn end(&mut self) -> Result<u64> {
        let mut all = 0;
        for (name, tally) in self.tallies()? {
            ensure!(tally.failed == 0, "{} of {name}: {:?}", tally.failed, tally.failures);
            all += tally.requests;
        }
        Ok(all)
    }

    /// Stops all clients, some of which may have failures; returns the numbers of requests and of
    /// failures.
    pub fn end_anyhow(&mut self) -> Result<(u64, u64)> {
        let tallies = self.tallies()?;
        Ok(tallies.iter().fold((0, 0), |(all, bad), (_, t)| (all + t.requests, bad + t.failed)))
    }

    fn tallies(&mut self) -> Result<Vec<(String, Tally)>> {
        let mut all = Vec::new();
        for client in self.running.drain(..) {
            let _ = client.stop.send(());
            let joined = client.thread.join().map_err(|_| anyhow::anyhow!("{} panicked", client.name))?;
            let tally = joined?;
            println!("{}: {} requests, {} failed", client.name, tally.requests, tally.failed);
            all.push((client.name, tally));
        }
        Ok(all)
    }
}

fn go_on_asking(target: &Target, answered: &AtomicU64, stopped: &Receiver<()>) -> Tally {
    let (mut tally, start) = (Tally::default(), Instant::now());
    while tally.requests < REQUESTS_MAX && start.elapsed() < TIME_MAX {
        tally.requests += 1;
        match ask_once(target) {
            Ok(()) => {
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                tally.failed += 1;
                if tally.failures.len() < FAILURES_SHOWN {
                    tally.failures.push(format!(
                        "request {}, {:?}: {error:#}",
                        tally.requests,
                        start.elapsed()
                    ));
                }
            }
        }
        if stopped.recv_timeout(PACE) != Err(RecvTimeoutError::Timeout) {
            return tally;
        }
    }
    tally.failed += 1;
    tally.failures.push("the story was longer than the client's bounds".to_owned());
    tally
}

fn ask_once(target: &Target) -> Result<()> {
    let (code, body) = http_get(&target.address, "/").context(target.address.clone())?;
    ensure!(code == 200 && body.trim() == target.answer, "{code} {body:?}");
    Ok(())
}
