//! Plans the gateway's listener and routing table.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::Ipv4Net;
use schema::control::Plan;
use schema::records::gateway_address;

use super::route::{self, Table};
use crate::catalog::Catalog;

/// Observed inputs of the loop.
#[derive(Debug, Clone)]
pub struct Observed {
    pub node: String,
    pub service_cidr: Ipv4Net,
    pub port: u16,
    pub listens: Option<SocketAddr>,
    pub catalog: Arc<Catalog>,
    /// Catalog from which the current table was built.
    pub routed: Option<Arc<Catalog>>,
}

/// Changes to make.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GatewayPlan {
    pub listen: Option<Listen>,
    pub table: Option<Arc<Table>>,
}

/// New address to listen on, with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    pub at: SocketAddr,
    pub why: &'static str,
}

impl Plan for GatewayPlan {
    fn is_empty(&self) -> bool {
        self.listen.is_none() && self.table.is_none()
    }
}

/// Plans from the observed state. The new table is installed before the new address, so that no client gets "no
/// routes".
pub(super) fn plan(observed: &Observed) -> GatewayPlan {
    let wanted = address(observed.service_cidr).map(|address| SocketAddr::new(address, observed.port));
    let listen = wanted.filter(|wanted| observed.listens != Some(*wanted)).map(|at| {
        let why = match observed.listens {
            None => "nothing listens yet",
            Some(_) => "the service range has changed",
        };
        Listen { at, why }
    });
    let current =
        observed.routed.as_ref().is_some_and(|routed| route::yields_same_table(routed, &observed.catalog));
    let table = (!current).then(|| Arc::new(Table::from_catalog(&observed.catalog, &observed.node)));
    GatewayPlan { listen, table }
}

/// Returns the gateway's address; `None` if the range is too small.
fn address(range: Ipv4Net) -> Option<IpAddr> {
    Some(gateway_address(range)).filter(|address| range.contains(address)).map(IpAddr::V4)
}
