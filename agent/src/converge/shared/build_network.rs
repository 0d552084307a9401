//! Contract between the builds loop and the network loop before a build gets the network: the first names the
//! package index that builds may reach, the second writes the rules and confirms them.

use std::collections::BTreeSet;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::publish::publish;

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
}

impl BuildRequests {
    /// Requests the rules for builds that reach `index`, and waits for them.
    ///
    /// # Errors
    /// The rules were not written in time: no build may begin.
    pub async fn until_confined(&self, index: BTreeSet<SocketAddrV4>) -> Result<(), String> {
        let index = Arc::new(index);
        let mut stands = self.in_place.clone();
        publish(&self.wanted, Some(Arc::clone(&index)));
        match timeout(RULES_MAX, stands.wait_for(|stands| stands.as_ref() == Some(&index))).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err("the agent is ending".to_owned()),
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
    (BuildRequests { wanted: wants, in_place: stand }, BuildConfinement { wanted, in_place: stands })
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
        assert_eq!(requests.until_confined(index(1)).await, Ok(()));
    }
}
