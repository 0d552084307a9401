//! State of the kernel in one network namespace: links, addresses, rules.

use std::fs::File;

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns};
use serde::Deserialize;

use crate::process::run;

/// A network namespace.
#[derive(Debug, Clone)]
pub struct NetWorld {
    enter: Vec<String>,
}

#[derive(Deserialize)]
struct Link {
    ifname: String,
    #[serde(default)]
    addr_info: Vec<Address>,
}

#[derive(Deserialize)]
struct Address {
    family: String,
    local: String,
    prefixlen: u8,
}

impl NetWorld {
    /// The machine's own namespace.
    pub fn of_machine() -> Self {
        Self { enter: Vec::new() }
    }

    /// Namespace of a process.
    pub fn of_process(pid: u32) -> Self {
        Self { enter: vec!["nsenter".to_owned(), format!("--net=/proc/{pid}/ns/net")] }
    }

    /// Namespace behind a file such as `/var/run/netns/NAME`.
    pub fn of_file(path: &str) -> Self {
        Self { enter: vec!["nsenter".to_owned(), format!("--net={path}")] }
    }

    /// Command line that starts a program in the namespace.
    pub fn command(&self, program: &str) -> Vec<String> {
        self.enter.iter().cloned().chain([program.to_owned()]).collect()
    }

    /// Runs a command in the namespace.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        let command = self.command(program);
        let mut words: Vec<&str> = command.iter().map(String::as_str).collect();
        words.extend(args);
        run(words[0], &words[1..])
    }

    /// Runs `what` on a thread in the namespace: sockets created there stay in it.
    pub fn within<T: Send>(&self, what: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let file = self.enter.get(1).and_then(|word| word.strip_prefix("--net="));
        let namespace = file.map(|path| File::open(path).with_context(|| path.to_owned())).transpose()?;
        std::thread::scope(|scope| {
            let inside = scope.spawn(move || {
                if let Some(namespace) = namespace {
                    setns(namespace, CloneFlags::CLONE_NEWNET)?;
                }
                what()
            });
            inside.join().expect("the thread in the namespace")
        })
    }

    /// Names of all links.
    pub fn links(&self) -> Result<Vec<String>> {
        Ok(self.shown()?.into_iter().map(|link| link.ifname).collect())
    }

    /// IPv4 addresses as `interface address/prefix`.
    pub fn addresses(&self) -> Result<Vec<String>> {
        Ok(self
            .shown()?
            .iter()
            .flat_map(|link| link.addr_info.iter().map(move |address| (link, address)))
            .filter(|(_, address)| address.family == "inet")
            .map(|(link, address)| format!("{} {}/{}", link.ifname, address.local, address.prefixlen))
            .collect())
    }

    fn shown(&self) -> Result<Vec<Link>> {
        // An interface without addresses shows as an empty object in some versions of iproute2.
        let text = self.run("ip", &["-j", "addr", "show"])?;
        let shown: Vec<serde_json::Value> = serde_json::from_str(&text)?;
        Ok(shown.into_iter().filter_map(|link| serde_json::from_value(link).ok()).collect())
    }

    /// Every iptables rule and chain as `table: line`, without counters.
    pub fn rules(&self) -> Result<Vec<String>> {
        let mut table = String::new();
        let mut rules = Vec::new();
        for line in self.run("iptables-save", &[])?.lines() {
            match line.as_bytes().first() {
                Some(b'*') => table = line[1..].to_owned(),
                Some(b':') => {
                    let chain = line.split(" [").next().unwrap_or(line);
                    rules.push(format!("{table}: {chain}"));
                }
                Some(b'-') => rules.push(format!("{table}: {line}")),
                _ => {}
            }
        }
        Ok(rules)
    }
}

/// Kernel's name of a process's network namespace.
pub fn netns_of(pid: u32) -> Result<String> {
    let link =
        std::fs::read_link(format!("/proc/{pid}/ns/net")).with_context(|| format!("no process {pid}"))?;
    Ok(link.to_string_lossy().into_owned())
}
