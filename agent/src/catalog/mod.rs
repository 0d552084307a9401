//! The node's view of the rest of the cluster: services, routes, functions, settings, other nodes. From etcd once
//! it has been listed, else from the node's own disk.
//!
//! Reads the snapshot and `<state>/agent/catalog.json`; publishes the catalog. Until a lost etcd is complete again,
//! nothing leaves the catalog for being absent, and a node missing from a complete etcd stays for a grace period:
//! its agent may be about to register again.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ipnet::Ipv4Net;
use jiff::{SignedDuration, Timestamp};
use schema::control::{DiskRecord, Fsync};
use schema::keys::Key;
use schema::meta::NamespacedName;
use schema::records::{ClusterSettings, FunctionRecord, NodeRecord, RouteRecord, ServiceRecord, Vtep};
use schema::snapshot::{Snapshot, Table};
use schema::store::reflector::SnapshotReader;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::desired::StateOrigin;

/// Time for which a node no longer listed in etcd is still sent packets: twice what an agent takes to register with
/// an etcd that was lost, plus a margin.
pub const PEER_GRACE: SignedDuration = SignedDuration::from_secs(60);

/// Interval at which absent peers are checked for expiry.
pub const PEER_CHECK: Duration = Duration::from_secs(5);
/// Minimum interval between two writes of the file: endpoints may change many times a second.
pub const SPACING: Duration = Duration::from_secs(1);

/// Known state of the cluster; also the format of the file. Clones in constant time except for the peers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Catalog {
    /// Origin of the data; with [`StateOrigin::Unknown`] nothing may be inferred.
    #[serde(skip)]
    pub known_from: StateOrigin,
    /// Every service, with its endpoints. Revisions are 0 when loaded from disk.
    #[serde(with = "rows")]
    pub services: Table<NamespacedName, ServiceRecord>,
    /// Every host and its paths.
    #[serde(with = "rows")]
    pub routes: Table<NamespacedName, RouteRecord>,
    /// Every function, with its replicas.
    #[serde(default, with = "rows")]
    pub functions: Table<NamespacedName, FunctionRecord>,
    /// Settings of the cluster, as last read from etcd.
    #[serde(default)]
    pub settings: ClusterSettings,
    /// Other nodes with a known range and tunnel.
    pub peers: BTreeMap<String, Peer>,
    /// This node's own address, as last read from etcd. Missing in the files of older agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_address: Option<Ipv4Addr>,
    /// Newest revision of the services in this catalog; 0 from disk. Not etcd's own: unrelated writes say nothing
    /// about how current the services are.
    #[serde(skip)]
    pub revision: i64,
}

/// Another node, as far as packets for its pods need it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Pod range.
    pub cidr: Ipv4Net,
    /// Tunnel endpoint.
    pub vtep: Vtep,
    /// Address for everything but the tunnel.
    pub address: Option<Ipv4Addr>,
    /// Time since which etcd no longer lists the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent_since: Option<Timestamp>,
}

/// Maintains the [`Catalog`] from one snapshot to the next. Pure.
#[derive(Debug)]
pub struct CatalogStore {
    node: String,
    current: Catalog,
    last_snapshot: Option<Snapshot>,
}

impl CatalogStore {
    /// Creates a store that starts from the catalog loaded from disk.
    pub fn new(node: &str, loaded: Option<Catalog>) -> Self {
        Self { node: node.to_owned(), current: loaded.unwrap_or_default(), last_snapshot: None }
    }

    pub fn current(&self) -> &Catalog {
        &self.current
    }

    /// Accepts a listed snapshot; true if the catalog changed.
    pub fn accept(&mut self, snapshot: &Snapshot, now: Timestamp) -> bool {
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
        if !snapshot.synced || (!waits && self.last_snapshot.as_ref().is_some_and(same)) {
            return false;
        }
        let next = self.read(snapshot, now);
        self.last_snapshot = Some(snapshot.clone());
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
        let mut services = with_retained(&self.current.services, &snapshot.services, |id| {
            !settled || unreadable(Key::Service(id.clone()).to_string())
        });
        if !settled {
            services = keep_filled(&self.current.services, &services, |service| service.endpoints.is_empty());
        }
        let routes = with_retained(&self.current.routes, &snapshot.routes, |id| {
            !settled || unreadable(Key::Route(id.clone()).to_string())
        });
        let mut functions = with_retained(&self.current.functions, &snapshot.functions, |id| {
            !settled || unreadable(Key::Function(id.clone()).to_string())
        });
        if !settled {
            functions =
                keep_filled(&self.current.functions, &functions, |function| function.replicas.is_empty());
        }
        // Unchanged records keep their former revision, so etcd's own revisions count too.
        let known = snapshot.services.values().chain(services.values());
        let revision = known.map(|found| found.mod_revision).max().unwrap_or_default();
        let settings = snapshot.settings.get(&()).map_or(&self.current.settings, |found| &found.value);
        let own = snapshot.nodes.get(&self.node).and_then(|node| first_v4(&node.value));
        Catalog {
            known_from: StateOrigin::Etcd,
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
            // The packets belong to whichever node has the range now.
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

/// Keeps the former value of a record that an incomplete etcd lists without endpoints or replicas: its pods are not
/// bound again yet, or their nodes have not reported them.
fn keep_filled<V: Clone>(
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

/// Merges etcd's table with the former entries that are absent from it but for which `stays` holds.
fn with_retained<V: Clone + PartialEq>(
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
    // Kept entries have come back, or nothing changed: comparison by identity must find no change.
    let unchanged = next.len() == former.len()
        && next.iter().all(|(id, value)| {
            former.get(id).is_some_and(|there| Arc::ptr_eq(there, value) || there.value == value.value)
        });
    if unchanged { former.clone() } else { next }
}

/// Creates a step that publishes the catalog of the newest snapshot if it changed.
pub fn publish(
    mut store: CatalogStore,
    snapshot: SnapshotReader,
    catalogs: watch::Sender<Arc<Catalog>>,
) -> impl FnMut() + Send {
    move || {
        let before = store.current().known_from;
        if store.accept(&snapshot.current(), Timestamp::now()) {
            let newest = store.current();
            if newest.known_from != before {
                let (services, routes, functions) =
                    (newest.services.len(), newest.routes.len(), newest.functions.len());
                let (peers, from) = (newest.peers.len(), newest.known_from);
                tracing::info!(?from, ?before, services, routes, functions, peers, "catalog listed");
            }
            catalogs.send_replace(Arc::new(newest.clone()));
        }
    }
}

/// Creates a step that saves the newest catalog to disk, also at shutdown, for the process that answers in the
/// agent's place.
///
/// Saving comes after publishing: an agent that dies within [`SPACING`] and comes back without etcd knows the
/// endpoints and the valid identity as of a second ago, like every node that is cut off from etcd.
pub fn keep(disk: CatalogDisk, catalogs: watch::Receiver<Arc<Catalog>>) -> impl Fn() + Send + Sync {
    move || {
        let newest = Arc::clone(&catalogs.borrow());
        // The disk already has it, or nothing is known.
        if newest.known_from != StateOrigin::Etcd {
            return;
        }
        if let Err(error) = disk.store(&newest) {
            tracing::error!(%error, "catalog not saved; the next change tries again");
        }
    }
}

// `<state>/agent/catalog.json`: the catalog of the last agent, for one that starts without etcd.

/// File that holds the catalog.
#[derive(Debug, Clone)]
pub struct CatalogDisk(DiskRecord);

impl CatalogDisk {
    /// Reads the file. An unreadable file counts as empty, with a warning in the log.
    pub fn open(agent_dir: &Path) -> (Self, Option<Catalog>) {
        // If a power failure loses the directory entry, etcd still has the content.
        let record = DiskRecord::new(agent_dir.join("catalog.json")).fsync(Fsync::Content);
        let loaded: Option<Catalog> = record.read_or_warn("what was known of the cluster");
        let catalog = loaded.map(|known| Catalog { known_from: StateOrigin::Disk, ..known });
        (Self(record), catalog)
    }

    /// Replaces the content of the file.
    pub fn store(&self, catalog: &Catalog) -> io::Result<()> {
        self.0.write(catalog)
    }
}

/// Serialized form of a table: pairs of name and value, without revisions.
mod rows {
    use std::sync::Arc;

    use schema::meta::NamespacedName;
    use schema::snapshot::{Table, VersionedValue};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<V: Serialize, S: Serializer>(
        table: &Table<NamespacedName, V>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(table.iter().map(|(id, found)| (id, &found.value)))
    }

    pub(super) fn deserialize<'de, V: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Table<NamespacedName, V>, D::Error> {
        let rows: Vec<(NamespacedName, V)> = Vec::deserialize(from)?;
        let versioned = |value| Arc::new(VersionedValue { value, create_revision: 0, mod_revision: 0 });
        Ok(rows.into_iter().map(|(id, value)| (id, versioned(value))).collect())
    }
}
