//! Proxy selection for a source: the proxy it names, else curl's variables: `https_proxy`, `http_proxy` (lower case
//! only, because a CGI server fills the upper-case one from a header), `all_proxy`, `no_proxy`. Not left to
//! libgit2, so that ls-remote and fetch take the same route.

use std::cell::Cell;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::git::config::{SourceConfig, Transport};
use crate::outgoing;

const NONE: &str = "none";

/// Returns the address of the proxy for `config`, with its login if it has one.
pub(in crate::git) fn proxy_of(
    config: &SourceConfig,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let Ok(Transport::Http { encrypted }) = config.transport() else { return None };
    let found = match config.credentials.proxy.as_deref() {
        Some(NONE) => return None,
        Some(named) => named.to_owned(),
        None => {
            let names: &[&str] = if encrypted {
                &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]
            } else {
                &["http_proxy", "all_proxy", "ALL_PROXY"]
            };
            let set = names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()))?;
            let except = ["no_proxy", "NO_PROXY"].iter().find_map(|name| variable(name));
            let port = config.http_port();
            if except.is_some_and(|list| list.split([',', ' ']).any(|one| excepts(one, config.host(), port)))
            {
                return None;
            }
            set
        }
    };
    Some(outgoing::with_scheme(&found))
}

/// Resolves the proxy with the environment of this process.
pub(in crate::git) fn from_environment(config: &SourceConfig) -> Option<String> {
    proxy_of(config, |name| std::env::var(name).ok())
}

/// True if an entry of `no_proxy` matches the host.
fn excepts(entry: &str, host: &str, port: u16) -> bool {
    let entry = entry.trim().to_ascii_lowercase();
    let host = host.to_ascii_lowercase();
    if entry.is_empty() {
        return false;
    }
    if entry == "*" {
        return true;
    }
    if let Ok(address) = host.parse::<IpAddr>() {
        if let Ok(network) = entry.parse::<ipnet::IpNet>() {
            return network.contains(&address);
        }
        if let Ok(one) = entry.trim_matches(['[', ']']).parse::<IpAddr>() {
            return one == address;
        }
    }
    let (name, only_port) = match entry.rsplit_once(':') {
        Some((name, digits)) if !name.contains(':') => (name.to_owned(), digits.parse::<u16>().ok()),
        _ => (entry, None),
    };
    let name = name.trim_start_matches('.');
    let same = host == name || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'));
    same && only_port.is_none_or(|only| only == port)
}

// A fetch in progress.

/// Transfer in progress: counts signs of life and can be cancelled.
#[derive(Debug, Default)]
pub struct Transfer {
    /// Number of packets and messages from the server.
    pub(in crate::git) progress_count: AtomicUsize,
    pub(in crate::git) cancelled: AtomicBool,
}

impl Transfer {
    /// Counts a sign of life; returns `false` if the transfer must end.
    pub(in crate::git) fn record_progress(&self) -> bool {
        self.progress_count.fetch_add(1, Ordering::Relaxed);
        !self.cancelled.load(Ordering::Relaxed)
    }
}

/// Most objects of a clone: libgit2 holds some hundred bytes of each in memory while it arrives.
const OBJECTS_MAX: usize = 5_000_000;

/// Limit on the size of a transfer, which a remote could otherwise go on with until the disk is full.
#[derive(Debug)]
pub(in crate::git) struct SizeLimit {
    /// Bytes that may still arrive.
    most: u64,
    /// Bytes of the packs that the mirror has already.
    pub(in crate::git) kept: u64,
    /// Set if free space is the limit.
    pub(in crate::git) is_by_disk: bool,
    messages: Cell<u64>,
    /// Set once the remote has sent too much.
    pub(in crate::git) is_exceeded: Cell<bool>,
}

impl SizeLimit {
    /// Limits a mirror to `clone_max` bytes of packs, and a transfer to half of the free space.
    pub(in crate::git) fn of(mirror: &Path, clone_max: u64) -> Self {
        let packs = fs::read_dir(mirror.join("objects/pack")).into_iter().flatten().flatten();
        let kept: u64 = packs.filter_map(|pack| Some(pack.metadata().ok()?.len())).sum();
        let disk = nix::sys::statvfs::statvfs(mirror);
        let free = disk.map_or(u64::MAX, |disk| disk.blocks_available().saturating_mul(disk.fragment_size()));
        let (left, half) = (clone_max.saturating_sub(kept), free / 2);
        let (messages, is_exceeded) = (Cell::new(0), Cell::new(false));
        Self { most: left.min(half), kept, is_by_disk: half < left, messages, is_exceeded }
    }

    /// Returns `false` once so much has arrived of the pack that the transfer must end.
    pub(in crate::git) fn fits(&self, bytes: usize, objects: usize) -> bool {
        let fits = bytes as u64 <= self.most && objects <= OBJECTS_MAX;
        if !fits {
            self.is_exceeded.set(true);
        }
        fits
    }

    /// Like [`Self::fits`], for a message beside the pack.
    pub(in crate::git) fn fits_message(&self, bytes: usize) -> bool {
        self.messages.set(self.messages.get().saturating_add(bytes as u64));
        self.fits(usize::try_from(self.messages.get()).unwrap_or(usize::MAX), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(url: &str, named: Option<&str>, variables: &[(&str, &str)]) -> Option<String> {
        let mut config = SourceConfig::branch("main", url, "main");
        config.credentials.proxy = named.map(str::to_owned);
        proxy_of(&config, |name| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_scheme_of_the_repository_chooses_the_variable() {
        let both = [("http_proxy", "http://plain:1"), ("https_proxy", "http://crypt:2")];
        assert_eq!(proxy("https://h/x", None, &both).as_deref(), Some("http://crypt:2"));
        assert_eq!(proxy("http://h/x", None, &both).as_deref(), Some("http://plain:1"));
        assert_eq!(proxy("git@h:x", None, &both), None);
        assert_eq!(proxy("http://h/x", None, &[("HTTP_PROXY", "http://forged:1")]), None);
        assert_eq!(proxy("https://h/x", None, &[("ALL_PROXY", "p:3")]).as_deref(), Some("http://p:3"));
        assert_eq!(proxy("https://h/x", Some("http://own:4"), &both).as_deref(), Some("http://own:4"));
        assert_eq!(proxy("https://h/x", Some("none"), &both), None);
        assert_eq!(proxy("https://h/x", None, &[("https_proxy", "")]), None);
    }

    #[test]
    fn exceptions_are_hosts_suffixes_ports_and_networks() {
        for (list, url, direct) in [
            ("*", "https://git.example/x", true),
            ("git.example", "https://git.example/x", true),
            ("example", "https://git.example/x", true),
            (".example", "https://git.example/x", true),
            ("ample", "https://git.example/x", false),
            ("a, git.example:443 ,b", "https://git.example/x", true),
            ("git.example:8443", "https://git.example/x", false),
            ("10.0.0.0/8", "https://10.1.2.3/x", true),
            ("10.0.0.0/8", "https://11.1.2.3/x", false),
            ("::1", "https://[::1]:8443/x", true),
            ("", "https://git.example/x", false),
        ] {
            let variables = [("https_proxy", "http://p:1"), ("no_proxy", list)];
            assert_eq!(proxy(url, None, &variables).is_none(), direct, "{list} {url}");
        }
    }
}
