//! Plans the listeners of the functions gateway, and updates of the known functions and addresses.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use schema::control::Plan;
use schema::records::Subnet;

use super::caller_policy::PodAddresses;
use crate::catalog::Catalog;
use crate::standby::Role;

/// Observed inputs of the loop.
#[derive(Debug, Clone)]
pub struct Observed {
    pub wanted: SocketAddr,
    /// Addresses of the open listeners.
    pub listens: BTreeMap<Role, SocketAddr>,
    pub catalog: Arc<Catalog>,
    pub subnet: Option<Subnet>,
    /// Catalog in use.
    pub followed: Option<Arc<Catalog>>,
    pub(super) known: PodAddresses,
}

/// Changes to make.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FunctionsPlan {
    /// Listeners to open.
    pub listen: Vec<(Role, SocketAddr)>,
    /// Set if functions or their replicas changed.
    pub follow: bool,
    pub(super) known: Option<PodAddresses>,
}

impl Plan for FunctionsPlan {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns the addresses of the gateway: the one given and, unless that includes it, the bridge's, at which pods call and
/// send heartbeats.
pub(super) fn addresses(given: SocketAddr, subnet: Option<&Subnet>) -> Vec<(Role, SocketAddr)> {
    let bridge = subnet.map(|own| SocketAddr::new(own.bridge().into(), given.port()));
    let further = bridge.filter(|bridge| !given.ip().is_unspecified() && given != *bridge);
    [(Role::Functions, given)].into_iter().chain(further.map(|at| (Role::PodFunctions, at))).collect()
}

pub(super) fn plan(observed: &Observed) -> FunctionsPlan {
    let known = PodAddresses::from_catalog(&observed.catalog, observed.subnet.as_ref());
    let wanted = addresses(observed.wanted, observed.subnet.as_ref());
    let is_same = |former: &Arc<Catalog>| former.functions.ptr_eq(&observed.catalog.functions);
    FunctionsPlan {
        listen: wanted.into_iter().filter(|(role, at)| observed.listens.get(role) != Some(at)).collect(),
        follow: !observed.followed.as_ref().is_some_and(is_same),
        known: (known != observed.known).then_some(known),
    }
}
