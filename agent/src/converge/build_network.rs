//! What the builds loop and the network loop agree on before a build reaches the network: the first says what builds may
//! reach, the second writes the rules and says for what they stand.

use std::collections::BTreeSet;
use std::net::SocketAddrV4;
use std::sync::Arc;

use tokio::sync::watch;

/// Where the package index is, which builds reach even in the cluster; none until a build needs the network. What stands then stays
/// until another build needs another index: it keeps nothing from anyone but builds.
pub type ReachableIndex = Option<Arc<BTreeSet<SocketAddrV4>>>;

/// The network loop's end of it.
#[derive(Debug)]
pub struct BuildConfinement {
    pub wanted: watch::Receiver<ReachableIndex>,
    /// For what the rules stand.
    pub stands: watch::Sender<ReachableIndex>,
}

/// The builds loop's end.
#[derive(Debug)]
pub struct BuildRequests {
    pub wanted: watch::Sender<ReachableIndex>,
    pub stands: watch::Receiver<ReachableIndex>,
}

/// Both ends.
pub fn channel() -> (BuildRequests, BuildConfinement) {
    let (wants, wanted) = watch::channel(None);
    let (stands, stand) = watch::channel(None);
    (BuildRequests { wanted: wants, stands: stand }, BuildConfinement { wanted, stands })
}
