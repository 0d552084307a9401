//! Plans the listener of the functions gateway, and updates of the known functions and addresses.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use schema::control::Plan;
use schema::records::Subnet;

use super::caller_policy::ClusterAddresses;
use crate::catalog::Catalog;
use crate::converge::shared::control_plane::ControlPlane;
use crate::standby::Role;

/// Observed inputs of the loop.
#[derive(Debug, Clone)]
pub struct Observed {
    pub wanted: SocketAddr,
    /// Addresses of the open listeners.
    pub listens: BTreeMap<Role, SocketAddr>,
    pub catalog: Arc<Catalog>,
    pub subnet: Option<Subnet>,
    pub control: ControlPlane,
    /// Catalog in use.
    pub followed: Option<Arc<Catalog>>,
    pub(super) known: ClusterAddresses,
}

/// Changes to make.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FunctionsPlan {
    /// Listeners to open.
    pub listen: Vec<(Role, SocketAddr)>,
    /// Set if functions or their replicas changed.
    pub follow: bool,
    pub(super) known: Option<ClusterAddresses>,
}

impl Plan for FunctionsPlan {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns the addresses of the gateway: the one given and, if that is loopback, the bridge's, for the node's pods.
pub(super) fn addresses(given: SocketAddr, subnet: Option<&Subnet>) -> Vec<(Role, SocketAddr)> {
    let own = subnet.filter(|_| given.ip().is_loopback());
    let of_bridge = own.map(|own| (Role::PodFunctions, SocketAddr::new(own.bridge().into(), given.port())));
    [(Role::Functions, given)].into_iter().chain(of_bridge).collect()
}

pub(super) fn plan(observed: &Observed) -> FunctionsPlan {
    let known =
        ClusterAddresses::from_catalog(&observed.catalog, observed.subnet.as_ref(), &observed.control);
    let wanted = addresses(observed.wanted, observed.subnet.as_ref());
    let is_same = |former: &Arc<Catalog>| former.functions.ptr_eq(&observed.catalog.functions);
    FunctionsPlan {
        listen: wanted.into_iter().filter(|(role, at)| observed.listens.get(role) != Some(at)).collect(),
        follow: !observed.followed.as_ref().is_some_and(is_same),
        known: (known != observed.known).then_some(known),
    }
}
