//! Decides where the gateway listens and by which table it routes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::Ipv4Net;
use schema::control::Plan;
use schema::records::gateway_address;

use super::route::{self, Table};
use crate::catalog::Catalog;

/// What the loop decides on.
#[derive(Debug, Clone)]
pub struct Observed {
    pub node: String,
    pub service_cidr: Ipv4Net,
    pub port: u16,
    pub listens: Option<SocketAddr>,
    pub catalog: Arc<Catalog>,
    /// What the table in use was made of.
    pub routed: Option<Arc<Catalog>>,
}

/// What is to be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GatewayPlan {
    pub listen: Option<Listen>,
    pub table: Option<Arc<Table>>,
}

/// A change of where the gateway listens.
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

/// The plan. A new table comes before a new address, so that no client hears "no routes".
pub(super) fn plan(observed: &Observed) -> GatewayPlan {
    let wanted = address(observed.service_cidr).map(|address| SocketAddr::new(address, observed.port));
    let listen = wanted.filter(|wanted| observed.listens != Some(*wanted)).map(|at| {
        let why = match observed.listens {
            None => "nothing listens yet",
            Some(_) => "the range of services is another one",
        };
        Listen { at, why }
    });
    let current = observed.routed.as_ref().is_some_and(|routed| route::same(routed, &observed.catalog));
    let table = (!current).then(|| Arc::new(Table::of(&observed.catalog, &observed.node)));
    GatewayPlan { listen, table }
}

/// The gateway's address. A range too small has none.
fn address(range: Ipv4Net) -> Option<IpAddr> {
    Some(gateway_address(range)).filter(|address| range.contains(address)).map(IpAddr::V4)
}
