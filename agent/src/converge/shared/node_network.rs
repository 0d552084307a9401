//! Network facts of the node that loops publish to each other: name servers of pods, pods with an address, readiness of the
//! rules for builds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use schema::control::lock;
use schema::kinds::pod::HostPortStatus;
use schema::meta::NamespacedName;
use tokio::sync::watch;
use tokio::time::timeout;

use schema::control::publish;

/// DNS settings for pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeDns {
    /// The cluster's server; `None` before the node has a range.
    pub server: Option<Ipv4Addr>,
    /// The zone, without a trailing dot.
    pub domain: String,
    /// The machine's own resolver, without servers that only the machine itself can reach.
    pub machine: ResolvConf,
}

/// The addresses of systemd-resolved's stub.
const RESOLVED_STUBS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 53)), IpAddr::V4(Ipv4Addr::new(127, 0, 0, 54))];

/// Settings of a resolver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvConf {
    pub nameservers: Vec<IpAddr>,
    pub searches: Vec<String>,
    /// Options, `name` or `name:value`.
    pub options: Vec<String>,
}

impl ResolvConf {
    /// Parses a file as libc does: unknown keywords are ignored, the last `search` wins.
    pub fn parse(text: &str) -> Self {
        let mut conf = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let Some(keyword) = words.next().filter(|word| !word.starts_with(['#', ';'])) else { continue };
            match keyword {
                "nameserver" => {
                    conf.nameservers.extend(words.next().and_then(|word| word.parse::<IpAddr>().ok()));
                }
                "search" | "domain" => conf.searches = words.map(str::to_owned).collect(),
                "options" => conf.options.extend(words.map(str::to_owned)),
                _ => {}
            }
        }
        conf
    }

    /// True if systemd-resolved answers in front of the real servers.
    pub fn is_resolved_stub(&self) -> bool {
        self.nameservers.iter().any(|server| RESOLVED_STUBS.contains(server))
    }
}

// Pods that run or are about to, for the network loop: published after every complete listing.

/// Network of one pod that has its own address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodNet {
    pub pod: NamespacedName,
    pub uid: String,
    pub address: Ipv4Addr,
    /// True for a replica of a function.
    pub is_function: bool,
    /// Ports of the node that lead to the pod.
    pub ports: Vec<HostPortStatus>,
}

/// Addresses of function pods whose rules are in place, which keep them from the control plane. Their containers
/// start only then.
pub type SandboxedPods = Arc<BTreeSet<Ipv4Addr>>;

/// Running pods by uid, and function pods that are about to run; `None` until Docker has been listed once, so that
/// no rules are removed before.
pub type PodTable = Option<Arc<BTreeMap<String, PodNet>>>;

// Contract between the builds loop and the network loop before a build gets the network: the first names the
// package index that builds may reach, the second writes the rules and confirms them.

/// Maximum wait for the rules.
const RULES_MAX: Duration = Duration::from_secs(60);

/// Addresses of the package index, which builds reach even in the cluster; `None` until a build needs the network.
/// The rules stay until another build needs another index: they restrict only builds.
pub type ReachableIndex = Option<Arc<BTreeSet<SocketAddrV4>>>;

/// The network loop's end of the contract.
#[derive(Debug)]
pub struct BuildConfinement {
    pub wanted: watch::Receiver<ReachableIndex>,
    /// Index whose rules are in place.
    pub in_place: watch::Sender<ReachableIndex>,
}

/// The builds loop's end of the contract.
#[derive(Debug)]
pub struct BuildRequests {
    pub wanted: watch::Sender<ReachableIndex>,
    pub in_place: watch::Receiver<ReachableIndex>,
    /// Indexes of the builds in progress.
    needed: Mutex<Vec<Weak<BTreeSet<SocketAddrV4>>>>,
}

impl BuildRequests {
    /// Requests the rules for builds that reach `index`, and waits for them. Other builds leave the index reachable
    /// while the returned value lives.
    ///
    /// # Errors
    /// The rules were not written in time: no build may begin.
    pub async fn until_confined(
        &self,
        index: BTreeSet<SocketAddrV4>,
    ) -> Result<Arc<BTreeSet<SocketAddrV4>>, String> {
        let index = Arc::new(index);
        let mut stands = self.in_place.clone();
        {
            let mut needed = lock(&self.needed);
            needed.push(Arc::downgrade(&index));
            needed.retain(|index| index.strong_count() > 0);
            let all = needed.iter().filter_map(Weak::upgrade);
            let all = all.flat_map(|index| index.iter().copied().collect::<Vec<_>>()).collect();
            publish(&self.wanted, Some(Arc::new(all)));
        }
        let has_all =
            |stands: &ReachableIndex| stands.as_ref().is_some_and(|stands| stands.is_superset(&index));
        match timeout(RULES_MAX, stands.wait_for(has_all)).await {
            Ok(Ok(_)) => Ok(Arc::clone(&index)),
            Ok(Err(_)) => Err("the agent is stopping".to_owned()),
            Err(_) => Err(format!(
                "the rules that keep builds from the cluster were not written within {RULES_MAX:?}; the agent's log \
                 says why"
            )),
        }
    }
}

/// Creates both ends.
pub fn channel() -> (BuildRequests, BuildConfinement) {
    let (wants, wanted) = watch::channel(None);
    let (stands, stand) = watch::channel(None);
    let needed = Mutex::default();
    (BuildRequests { wanted: wants, in_place: stand, needed }, BuildConfinement { wanted, in_place: stands })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Seen red without the wait, and with rules of any index accepted.
    #[tokio::test(start_paused = true)]
    async fn no_build_begins_before_the_rules_of_its_own_index_stand() {
        let (requests, confinement) = channel();
        let index = |port: u16| BTreeSet::from([SocketAddrV4::new([10, 96, 0, 7].into(), port)]);
        let why = requests.until_confined(index(1)).await.unwrap_err();
        assert!(why.contains("were not written within 60s"), "{why}");
        assert_eq!(*confinement.wanted.borrow(), Some(Arc::new(index(1))));
        confinement.in_place.send_replace(Some(Arc::new(index(2))));
        assert!(requests.until_confined(index(1)).await.is_err(), "the rules of another index");
        confinement.in_place.send_replace(Some(Arc::new(index(1))));
        let first = requests.until_confined(index(1)).await.unwrap();
        // Seen red with the second build's index alone.
        let both = Arc::new(index(1).union(&index(2)).copied().collect::<BTreeSet<_>>());
        confinement.in_place.send_replace(Some(Arc::clone(&both)));
        let second = requests.until_confined(index(2)).await.unwrap();
        assert_eq!(*confinement.wanted.borrow(), Some(both), "the first build still runs");
        drop((first, second));
        requests.until_confined(index(2)).await.unwrap();
        assert_eq!(*confinement.wanted.borrow(), Some(Arc::new(index(2))));
    }
}
