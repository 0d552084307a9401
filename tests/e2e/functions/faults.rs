//! Calls through three gateways while parts of the cluster are killed: only calls under way in a killed
//! gateway fail. While a node's agent is away, its standby answers for running functions.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use harness::{NetWorld, eventually, secs};

use super::*;
use crate::gateway::exchange;

const WORK: &str = "import time\n\n\ndef main(params):\n    time.sleep(0.02)\n    return {'done': True}\n";
/// Answers that each caller gets between two faults.
const ANSWERS: usize = 10;

/// The node whose agent is killed.
const KILLED: usize = 1;

/// A client that calls all the time, through its node's own gateway.
struct Caller {
    net: NetWorld,
    node: usize,
    /// Uses one connection as long as the gateway keeps it. A gateway that hands over closes idle connections, and
    /// one used at that very moment may be among them.
    keeps: bool,
    answered: AtomicUsize,
}

impl Caller {
    /// Calls until `stop` is set; returns the failures.
    fn call_until(&self, stop: &AtomicBool) -> Result<Vec<String>> {
        let at = SocketAddr::from(([127, 0, 0, 1], 8081));
        let request = "POST /default/work HTTP/1.1\r\nHost: functions\r\nContent-Length: 2\r\n\r\n{}";
        self.net.within(|| {
            let (mut stream, mut failed) = (None, Vec::new());
            while !stop.load(Ordering::Relaxed) {
                match exchange(at, request, &mut stream) {
                    Ok(_) => drop(self.answered.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => failed.push(format!("node {}: {error:#}", self.node)),
                }
                stream = stream.filter(|_| self.keeps);
            }
            Ok(failed)
        })
    }
}

/// Waits until each caller got some more answers.
fn go_on(callers: &[Caller]) -> Result<()> {
    let count = |caller: &Caller| caller.answered.load(Ordering::Relaxed);
    let goals: Vec<usize> = callers.iter().map(|caller| count(caller) + ANSWERS).collect();
    eventually("every caller is answered", secs(60), || {
        for (caller, goal) in callers.iter().zip(&goals) {
            ensure!(count(caller) >= *goal, "node {}, keeps {}", caller.node, caller.keeps);
        }
        Ok(())
    })
}

// Seen red without the standby's socket: the port refuses connections while the agent is away.
#[test]
fn only_calls_in_a_gateway_that_is_killed_fail() -> Result<()> {
    Cluster::run(three_nodes(), |cluster| {
        let work = manifest("work", "  minScale: 2\n  maxScale: 4\n  concurrency: 10\n");
        let naps = manifest("naps", "  scaleToZeroAfterSeconds: 3\n");
        let changes =
            [other_object(), work, naps, code("work", "main.py", WORK), code("naps", "main.py", WORK)];
        let commit = cluster.push(&changes, "Work")?;
        cluster.applied(&commit)?;
        eventually(
            "two replicas answer through each node, and the other function sleeps",
            secs(120),
            || {
                let found = (calls::containers(cluster, "work")?, calls::containers(cluster, "naps")?);
                ensure!(found == (2, 0), "{found:?}");
                for node in &cluster.nodes {
                    let answer = call(node, "work", "{}")?;
                    ensure!(answer.status == 200, "{}: {answer:?}", node.name);
                }
                Ok(())
            },
        )?;
        let nodes = cluster.nodes.iter().enumerate();
        let callers: Vec<Caller> = nodes
            .flat_map(|(node, one)| {
                [true, false].map(|keeps| Caller {
                    net: one.net.clone(),
                    node,
                    keeps: keeps && node != KILLED,
                    answered: AtomicUsize::new(0),
                })
            })
            .collect();
        let stop = AtomicBool::new(false);
        let (outcome, failed) = std::thread::scope(|threads| {
            let running: Vec<_> =
                callers.iter().map(|caller| threads.spawn(|| caller.call_until(&stop))).collect();
            let outcome = kill_and_bring_back(cluster, &callers);
            stop.store(true, Ordering::Relaxed);
            (outcome, running.into_iter().map(|one| one.join()).collect::<Vec<_>>())
        });
        outcome?;
        let mut calls = 0;
        for (caller, failed) in callers.iter().zip(failed) {
            let failed = failed.map_err(|_| harness::Error::msg("a caller panicked"))??;
            // One call at a time, one kill.
            let most = usize::from(caller.node == KILLED);
            ensure!(failed.len() <= most, "{failed:?}");
            calls += caller.answered.load(Ordering::Relaxed);
        }
        println!("measured: {calls} calls while reconciler, etcd and an agent were killed");
        Ok(())
    })
}

fn kill_and_bring_back(cluster: &mut Cluster, callers: &[Caller]) -> Result<()> {
    go_on(callers)?;
    cluster.reconcilers[0].kill()?;
    go_on(callers)?;
    cluster.etcd.daemon.kill()?;
    go_on(callers)?;
    cluster.etcd.start()?;
    cluster.reconcilers[0].start()?;
    cluster.wait_reconciler(0)?;
    go_on(callers)?;
    cluster.nodes[KILLED].agent.kill()?;
    go_on(callers)?;
    let (status, said) = refusals::whole(&cluster.nodes[KILLED].net, "127.0.0.1", "naps", &["-d", "{}"])?;
    ensure!(status == 503 && said.contains("noreplica") && said.contains("retry-after: 1\r"), "{said}");
    // The standby knows its callers by their certificates, and nobody by an address.
    let address = cluster.nodes[KILLED].address()?.to_owned();
    for known in [cluster.trust.reconciler("r0")?, cluster.trust.node(&cluster.nodes[0].name)?] {
        let (status, said) = call_as(&known, &cluster.nodes[KILLED], "work", &[])?;
        ensure!(status == 200 && said.contains("done"), "{known:?}: {said}");
    }
    let (status, said) = refusals::whole(&cluster.nodes[0].net, &address, "work", &["-d", "{}"])?;
    ensure!(status != 200, "a node's address is enough: {said}");
    let etcd = cluster.etcd_for_nodes();
    cluster.nodes[KILLED].start_agent(&etcd)?;
    go_on(callers)?;
    eventually("it is woken by the agent that is back", secs(60), || {
        let awake = call(&cluster.nodes[KILLED], "naps", "{}")?;
        ensure!(awake.status == 200, "{awake:?}");
        Ok(())
    })
}
