//! Packets on the link between a node and the others, as tcpdump captures them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail, ensure};
use nix::sys::signal::Signal;

use crate::node::Node;
use crate::process::{Daemon, outcome};
use crate::wait::{eventually, secs};

/// Kernel's buffer for packets that are not written yet, in KiB.
const BUFFER_KIB: &str = "65536";

/// A capture; ends when dropped.
#[derive(Debug)]
pub struct Capture {
    /// Name in messages.
    pub name: String,
    daemon: Daemon,
    file: PathBuf,
}

impl Capture {
    /// Captures packets that pass a filter of tcpdump on a node's link. Returns once it does; its file is in `dir`.
    pub fn start(node: &Node, dir: &Path, name: &str, filter: &str) -> Result<Self> {
        let (link, name) = (node.port()?, format!("{name}-{}", node.name));
        let file = dir.join(format!("{name}.pcap"));
        let path = file.to_string_lossy();
        let words = ["tcpdump", "-i", &link, "-n", "--immediate-mode", "-U", "-B", BUFFER_KIB];
        // It would become a user that may not write there.
        let more = ["-Z", "root", "-w", &path, filter];
        let command = words.iter().chain(&more).map(|word| (*word).to_owned()).collect();
        let mut daemon = Daemon::new(format!("tcpdump-{name}"), dir, command);
        daemon.start()?;
        eventually("tcpdump listens", secs(10), || {
            let said = daemon.log_tail();
            ensure!(said.contains("listening on"), "it says {said:?}");
            Ok(())
        })?;
        Ok(Self { name, daemon, file })
    }

    /// Returns true if a packet captured so far contains the text.
    pub fn has(&self, text: &str) -> Result<bool> {
        let mut grep = Command::new("grep");
        // As bytes, whatever the language of the machine.
        grep.env("LC_ALL", "C").args(["--text", "--quiet", "--fixed-strings", "-e", text]).arg(&self.file);
        match outcome(&mut grep, secs(120))? {
            said if said.code == 0 => Ok(true),
            said if said.code == 1 => Ok(false),
            said => bail!("grep failed: {said:?}"),
        }
    }

    /// Ends it; prints how many packets it captured and how many it lost. Its file stays.
    pub fn end(&mut self) -> Result<()> {
        self.daemon.end(Signal::SIGINT, secs(20))?;
        let said = self.daemon.log_tail();
        let counts: Vec<&str> = said.lines().filter(|line| line.contains("packets ")).collect();
        println!("{}: {}", self.name, counts.join(", "));
        Ok(())
    }
}
