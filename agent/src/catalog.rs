//! What this node knows of the rest of the cluster: services, routes, functions, settings, the other nodes. From etcd when
//! it has been listed, else from the node's own disk.
//!
//! Reads the snapshot and `<state>/agent/catalog.json`; publishes what holds. While an etcd is not
//! complete again nothing leaves the catalog for being absent, and a node that is gone from a complete
//! one stays for a while: its agent may be about to register again.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::Ipv4Net;
use jiff::{SignedDuration, Timestamp};
use schema::keys::Key;
use schema::meta::NamespacedName;
use schema::records::{ClusterSettings, FunctionRecord, NodeRecord, RouteRecord, ServiceRecord, Vtep};
use schema::snapshot::{Snapshot, Table};
use schema::store::reflector::SnapshotReader;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::desired::KnownFrom;

mod disk;
mod rows;
#[cfg(test)]
mod tests;

pub use disk::CatalogDisk;

/// How long a node that etcd does not list any more is still sent packets: twice what an agent takes to
/// register with an etcd that was lost, and some.
pub const PEER_GRACE: SignedDuration = SignedDuration::from_secs(60);

/// How often it is looked whether an absent peer's time is over.
pub const PEER_CHECK: Duration = Duration::from_secs(5);
/// Between two writes of the file: endpoints may change many times a second.
pub const SPACING: Duration = Duration::from_secs(1);

/// What is known of the cluster, and the form of the file. Clones in constant time but for the peers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Catalog {
    /// Where it is known from; of [`KnownFrom::Unknown`] nothing follows.
    #[serde(skip)]
    pub known_from: KnownFrom,
    /// Every service, with its endpoints. Revisions are 0 from the disk.
    #[serde(with = "rows")]
    pub services: Table<NamespacedName, ServiceRecord>,
    /// Every host and its paths.
    #[serde(with = "rows")]
    pub routes: Table<NamespacedName, RouteRecord>,
    /// Every function, with its replicas.
    #[serde(default, with = "rows")]
    pub functions: Table<NamespacedName, FunctionRecord>,
    /// The settings of the cluster, as etcd has them or had them last.
    #[serde(default)]
    pub settings: ClusterSettings,
    /// The other nodes of which both a range and a tunnel are known.
    pub peers: BTreeMap<String, Peer>,
    /// This node's own address, as etcd has it or had it last. Files of older agents have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_address: Option<Ipv4Addr>,
    /// Newest revision of the services in here; 0 from the disk. Not etcd's: what else happens says
    /// nothing of how far the services are.
    #[serde(skip)]
    pub revision: i64,
}

/// Another node, as far as packets for its pods need it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// The range of its pods.
    pub cidr: Ipv4Net,
    /// The end of its tunnel.
    pub vtep: Vtep,
    /// Its address for everything else.
    pub address: Option<Ipv4Addr>,
    /// Since when etcd does not list it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent_since: Option<Timestamp>,
}

/// Keeps [`Catalog`] between runs. Pure.
#[derive(Debug)]
pub struct CatalogStore {
    node: String,
    current: Catalog,
    taken: Option<Snapshot>,
}

impl CatalogStore {
    /// A store that begins with what the disk had.
    pub fn new(node: &str, loaded: Option<Catalog>) -> Self {
        Self { node: node.to_owned(), current: loaded.unwrap_or_default(), taken: None }
    }

    /// What holds now.
    pub fn current(&self) -> &Catalog {
        &self.current
    }

    /// Takes a listed snapshot in; true if something changed.
    pub fn take(&mut self, snapshot: &Snapshot, now: Timestamp) -> bool {
        let same = |taken: &Snapshot| {
            taken.services.ptr_eq(&snapshot.services)
                && taken.routes.ptr_eq(&snapshot.routes)
                && taken.functions.ptr_eq(&snapshot.functions)
                && taken.settings.ptr_eq(&snapshot.settings)
                && taken.nodes.ptr_eq(&snapshot.nodes)
                && taken.subnets.ptr_eq(&snapshot.subnets)
                && taken.settled.ptr_eq(&snapshot.settled)
                && taken.malformed.ptr_eq(&snapshot.malformed)
        };
        let waits = self.current.peers.values().any(|peer| peer.absent_since.is_some());
        if !snapshot.synced || (!waits && self.taken.as_ref().is_some_and(same)) {
            return false;
        }
        let next = self.read(snapshot, now);
        self.taken = Some(snapshot.clone());
        let changed = next.known_from != self.current.known_from
            || !next.services.ptr_eq(&self.current.services)
            || !next.routes.ptr_eq(&self.current.routes)
            || !next.functions.ptr_eq(&self.current.functions)
            || next.settings != self.current.settings
            || next.peers != self.current.peers
            || next.own_address != self.current.own_address
            || next.revision != self.current.revision;
        self.current = next;
        changed
    }

    fn read(&self, snapshot: &Snapshot, now: Timestamp) -> Catalog {
        let settled = snapshot.settled.contains_key(&self.node);
        let unreadable = |key: String| snapshot.malformed.contains_key(&key);
        let mut services = kept(&self.current.services, &snapshot.services, |id| {
            !settled || unreadable(Key::Service(id.clone()).to_string())
        });
        if !settled {
            services = not_emptied(&self.current.services, &services, |service| service.endpoints.is_empty());
        }
        let routes = kept(&self.current.routes, &snapshot.routes, |id| {
            !settled || unreadable(Key::Route(id.clone()).to_string())
        });
        let mut functions = kept(&self.current.functions, &snapshot.functions, |id| {
            !settled || unreadable(Key::Function(id.clone()).to_string())
        });
        if !settled {
            functions =
                not_emptied(&self.current.functions, &functions, |function| function.replicas.is_empty());
        }
        // What is the same keeps the revision that it had before, so etcd's own are asked, too.
        let known = snapshot.services.values().chain(services.values());
        let revision = known.map(|found| found.mod_revision).max().unwrap_or_default();
        let settings = snapshot.settings.get(&()).map_or(&self.current.settings, |found| &found.value);
        let own = snapshot.nodes.get(&self.node).and_then(|node| first_v4(&node.value));
        Catalog {
            known_from: KnownFrom::Etcd,
            services,
            routes,
            functions,
            settings: settings.clone(),
            peers: self.peers(snapshot, settled, now),
            own_address: own.or(self.current.own_address),
            revision,
        }
    }

    fn peers(&self, snapshot: &Snapshot, settled: bool, now: Timestamp) -> BTreeMap<String, Peer> {
        let mut peers = BTreeMap::new();
        for (name, node) in snapshot.nodes.iter().filter(|(name, _)| **name != self.node) {
            let (Some(subnet), Some(vtep)) = (snapshot.subnets.get(name), &node.value.vtep) else { continue };
            let (address, cidr, vtep) = (first_v4(&node.value), subnet.value.cidr, vtep.clone());
            peers.insert(name.clone(), Peer { cidr, vtep, address, absent_since: None });
        }
        for (name, former) in &self.current.peers {
            // Who has its range now has its packets, too.
            if peers.contains_key(name) || peers.values().any(|peer| peer.cidr == former.cidr) {
                continue;
            }
            let since = former.absent_since.unwrap_or(now);
            if !settled || now.duration_since(since) < PEER_GRACE {
                peers.insert(name.clone(), Peer { absent_since: Some(since), ..former.clone() });
            }
        }
        peers
    }
}

fn first_v4(node: &NodeRecord) -> Option<Ipv4Addr> {
    node.addresses.iter().find_map(|address| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    })
}

/// A record that an etcd on its way to being complete again has without endpoints or replicas stands as it was: the
/// pods behind it are not bound again yet, or their nodes have not reported them.
fn not_emptied<V: Clone>(
    former: &Table<NamespacedName, V>,
    now: &Table<NamespacedName, V>,
    is_empty: impl Fn(&V) -> bool,
) -> Table<NamespacedName, V> {
    let mut next = now.clone();
    for (id, there) in former {
        let emptied = now.get(id).is_some_and(|found| is_empty(&found.value));
        if emptied && !is_empty(&there.value) {
            next.insert(id.clone(), Arc::clone(there));
        }
    }
    next
}

/// What etcd has now, and what it had before and `stays` though it is absent.
fn kept<V: Clone + PartialEq>(
    former: &Table<NamespacedName, V>,
    now: &Table<NamespacedName, V>,
    stays: impl Fn(&NamespacedName) -> bool,
) -> Table<NamespacedName, V> {
    let mut next = now.clone();
    for (id, value) in former {
        if !now.contains_key(id) && stays(id) {
            next.insert(id.clone(), Arc::clone(value));
        }
    }
    // What was kept has come back, or nothing changed at all: who compares by identity sees no change.
    let unchanged = next.len() == former.len()
        && next.iter().all(|(id, value)| {
            former.get(id).is_some_and(|there| Arc::ptr_eq(there, value) || there.value == value.value)
        });
    if unchanged { former.clone() } else { next }
}

/// A step that publishes the catalog of the newest snapshot if it is another one.
pub fn publish(
    mut store: CatalogStore,
    snapshot: SnapshotReader,
    catalogs: watch::Sender<Arc<Catalog>>,
) -> impl FnMut() + Send {
    move || {
        if store.take(&snapshot.current(), Timestamp::now()) {
            catalogs.send_replace(Arc::new(store.current().clone()));
        }
    }
}

/// A step that keeps the newest catalog on disk; also at the end, for the process that answers in the agent's
/// place.
///
/// It comes after what nodes act on: an agent that dies within [`SPACING`] and comes back without etcd
/// knows the endpoints and the valid identity as of a second ago, as every node does whose etcd is away.
pub fn keep(disk: CatalogDisk, catalogs: watch::Receiver<Arc<Catalog>>) -> impl Fn() + Send + Sync {
    move || {
        let newest = Arc::clone(&catalogs.borrow());
        // Another one is there already, or nothing is known.
        if newest.known_from != KnownFrom::Etcd {
            return;
        }
        if let Err(error) = disk.store(&newest) {
            tracing::error!(%error, "could not save what is known of the cluster; the next change tries again");
        }
    }
}
