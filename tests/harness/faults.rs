//! A bad link between nodes: frames that are lost or late. For a link that is down, a stopped daemon and
//! a Docker restart see `Node::cut_off`, `Daemon::signal` and `Node::stop_docker`.

use anyhow::{Context, Result};

use crate::net_world::NetWorld;
use crate::node::Node;
use crate::process::run;

/// Error of a kernel built without `netem`.
const UNKNOWN: &str = "qdisc kind is unknown";

/// A fault of a node's link. It ends when dropped.
#[derive(Debug)]
#[must_use = "it ends when dropped"]
pub struct BadLink {
    undo: Vec<(NetWorld, Vec<String>)>,
}

impl BadLink {
    /// Loses this percentage of the frames to the node, and also of those from it if the kernel has `netem`;
    /// otherwise the node drops incoming frames.
    pub fn losing(node: &Node, percent: u8) -> Result<Self> {
        if let Some(bad) = Self::netem(node, &["loss", &format!("{percent}%")])? {
            return Ok(bad);
        }
        let probability = format!("{:.2}", f64::from(percent) / 100.0);
        let rule = |what: &str| -> Vec<String> {
            let rule = ["-w", "-t", "raw", what, "PREROUTING", "-i", "eth0", "-m", "statistic", "--mode"];
            let more = ["random", "--probability", &probability, "-j", "DROP"];
            rule.iter().chain(&more).map(|word| (*word).to_owned()).collect()
        };
        let (add, mut remove) = (rule("-I"), rule("-D"));
        let add: Vec<&str> = add.iter().map(String::as_str).collect();
        node.net.run("iptables", &add)?;
        remove.insert(0, "iptables".to_owned());
        Ok(Self { undo: vec![(node.net.clone(), remove)] })
    }

    /// Delays every frame to and from the node by `delay_ms`; `None` if the kernel has no `netem`, because nothing
    /// else can delay.
    pub fn slow(node: &Node, delay_ms: u32) -> Result<Option<Self>> {
        Self::netem(node, &["delay", &format!("{delay_ms}ms")])
    }

    /// Sets `netem` at both ends of the link; `None` if the kernel lacks it.
    fn netem(node: &Node, how: &[&str]) -> Result<Option<Self>> {
        let mut bad = Self { undo: Vec::new() };
        let (outer, machine) = (node.port()?, NetWorld::of_machine());
        for (world, link) in [(&machine, outer.as_str()), (&node.net, "eth0")] {
            let mut words = vec!["qdisc", "add", "dev", link, "root", "netem"];
            words.extend(how);
            match world.run("tc", &words) {
                Ok(_) => {}
                Err(error) if format!("{error:#}").contains(UNKNOWN) => return Ok(None),
                Err(error) => return Err(error).with_context(|| format!("tc {}", words.join(" "))),
            }
            let undo = ["tc", "qdisc", "del", "dev", link, "root"].map(str::to_owned).to_vec();
            bad.undo.push((world.clone(), undo));
        }
        Ok(Some(bad))
    }
}

impl Drop for BadLink {
    fn drop(&mut self) {
        for (world, command) in self.undo.drain(..) {
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            if let Err(error) = world.run(words[0], &words[1..]) {
                eprintln!("the link stays bad: {error:#}");
            }
        }
    }
}

impl Node {
    /// Takes the node's link down: no frame reaches or leaves it.
    pub fn cut_off(&self) -> Result<()> {
        run("ip", &["link", "set", &self.port()?, "down"]).map(|_| ())
    }

    /// Brings the node's link up again.
    pub fn reconnect(&self) -> Result<()> {
        run("ip", &["link", "set", &self.port()?, "up"]).map(|_| ())
    }
}
