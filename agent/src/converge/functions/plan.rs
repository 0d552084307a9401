//! Plans the listener of the functions gateway, and updates of the known functions and addresses.

use std::net::SocketAddr;
use std::sync::Arc;

use schema::control::Plan;
use schema::records::Subnet;

use super::caller_policy::ClusterAddresses;
use crate::catalog::Catalog;
use crate::converge::shared::control_plane::ControlPlane;

/// Observed inputs of the loop.
#[derive(Debug, Clone)]
pub struct Observed {
    pub wanted: SocketAddr,
    pub listens: Option<SocketAddr>,
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
    pub listen: Option<SocketAddr>,
    /// Set if functions or their replicas changed.
    pub follow: bool,
    pub(super) known: Option<ClusterAddresses>,
}

impl Plan for FunctionsPlan {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

pub(super) fn plan(observed: &Observed) -> FunctionsPlan {
    let known =
        ClusterAddresses::from_catalog(&observed.catalog, observed.subnet.as_ref(), &observed.control);
    let is_same = |former: &Arc<Catalog>| former.functions.ptr_eq(&observed.catalog.functions);
    FunctionsPlan {
        listen: (observed.listens != Some(observed.wanted)).then_some(observed.wanted),
        follow: !observed.followed.as_ref().is_some_and(is_same),
        known: (known != observed.known).then_some(known),
    }
}
