//! Tracks draining pods. A leaving pod waits until no node sends it new connections: its endpoint leaves the
//! services, every node programs and reports that, the leader sums it up, then its containers are stopped. A function
//! replica also waits for its calls: it leaves the gateways' tables, then its connections end, because gateways close
//! unused ones. The wait is bounded: a service that is never changed, or a node that never reports, does not hold up a
//! pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use schema::codec::decode;
use schema::keys::Key;
use schema::kinds::function::PORT;
use schema::meta::NamespacedName;
use schema::records::ProgrammedRules;
use schema::snapshot::Snapshot;
use schema::store::SharedStore;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::catalog::Catalog;
use crate::converge::pods::facts::{Drain, DrainReason, PodFacts, REPLICA_DRAIN_MIN, Uid};
use crate::desired::{DesiredState, StateOrigin};
use crate::worlds::netlink::Netlink;

/// Maximum wait for the leader's record of the rules per run, so that the node's other pods are not held up.
const ASK_MAX: Duration = Duration::from_millis(500);

/// Listing of a pod as an endpoint in the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listing {
    Listed,
    /// No longer listed, from this revision of etcd on.
    Gone(i64),
}

/// Tracks which pods of this node are endpoints.
pub struct DrainBook {
    node: String,
    catalog: watch::Receiver<Arc<Catalog>>,
    /// Newest revision that this node's own rules reflect.
    programmed: watch::Receiver<i64>,
    netlink: Arc<dyn Netlink>,
    store: SharedStore,
    listings: BTreeMap<Uid, Listing>,
    since: BTreeMap<Uid, Timestamp>,
    is_first: bool,
}

impl DrainBook {
    /// Creates an empty book for `node`.
    pub fn new(
        node: &str,
        catalog: watch::Receiver<Arc<Catalog>>,
        programmed: watch::Receiver<i64>,
        (netlink, store): (Arc<dyn Netlink>, SharedStore),
    ) -> Self {
        let (listings, since) = (BTreeMap::new(), BTreeMap::new());
        Self { node: node.to_owned(), catalog, programmed, netlink, store, listings, since, is_first: true }
    }

    /// Returns the pods that run, are not wanted, and may still receive connections.
    pub async fn draining(
        &mut self,
        pods: &BTreeMap<Uid, PodFacts>,
        desired: &DesiredState,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> BTreeMap<Uid, Drain> {
        let catalog = Arc::clone(&self.catalog.borrow_and_update());
        self.follow(pods, desired, &catalog);
        let wanted: BTreeSet<&Uid> = desired.pods.values().map(|binding| &binding.pod.uid).collect();
        let runs = |facts: &PodFacts| facts.containers.values().flatten().any(|c| c.is_running());
        let going: BTreeSet<&Uid> = pods
            .iter()
            .filter(|(uid, facts)| !wanted.contains(uid) && runs(facts))
            .map(|(uid, _)| uid)
            .collect();
        self.since.retain(|uid, _| going.contains(uid));
        let is_gone = |uid: &&Uid| matches!(self.listings.get(*uid), Some(Listing::Gone(_)));
        let programmed = match going.iter().any(is_gone) {
            true => self.programmed_everywhere(&catalog, snapshot).await,
            false => None,
        };
        let mut drains = BTreeMap::new();
        for uid in going {
            let since = *self.since.entry(uid.clone()).or_insert(now);
            let mut drain = Drain { since, reason: DrainReason::Services };
            match self.listings.get(uid) {
                // Never was an endpoint, or its time is up.
                None => continue,
                Some(Listing::Listed) if drain.until() <= now => continue,
                Some(Listing::Listed) => {}
                Some(Listing::Gone(revision)) => {
                    drain.reason = match programmed.is_some_and(|programmed| programmed >= *revision) {
                        false => DrainReason::Nodes,
                        true if self.may_be_called(&pods[uid], since, now).await => {
                            drain_for_calls(&pods[uid])
                        }
                        true => continue,
                    };
                    if drain.until() <= now {
                        continue;
                    }
                }
            }
            drains.insert(uid.clone(), drain);
        }
        drains
    }

    /// True if a function replica may still have a call, or get one from a gateway that has not learned that it is
    /// leaving.
    async fn may_be_called(&self, facts: &PodFacts, since: Timestamp, now: Timestamp) -> bool {
        let Some(pause) = facts.live_pause().filter(|pause| pause.is_function) else { return false };
        // Connections that can't be read count as none.
        now.duration_since(since) < REPLICA_DRAIN_MIN
            || self.netlink.connections(pause.pid, PORT).await.is_ok_and(|count| count > 0)
    }

    fn follow(&mut self, pods: &BTreeMap<Uid, PodFacts>, desired: &DesiredState, catalog: &Catalog) {
        if catalog.known_from == StateOrigin::Unknown {
            return;
        }
        let listed = endpoints_of(&self.node, catalog);
        let is_wanted = |uid: &Uid| desired.pods.values().any(|binding| binding.pod.uid == *uid);
        self.listings.retain(|uid, _| pods.contains_key(uid));
        for (uid, facts) in pods {
            let address = facts.live_pause().and_then(|pause| pause.address).map(|address| address.addr());
            let is_listed = facts.pod.as_ref().and_then(|pod| listed.get(pod)).is_some_and(|at| {
                // A pod on the host's network has the node's address.
                address.is_none_or(|address| at.contains(&address))
            });
            match (is_listed, self.listings.get(uid)) {
                (true, _) => drop(self.listings.insert(uid.clone(), Listing::Listed)),
                (false, Some(Listing::Listed)) => {
                    self.listings.insert(uid.clone(), Listing::Gone(catalog.revision));
                }
                // The former agent may have ended while others still routed clients to the pod.
                (false, None) if self.is_first && !is_wanted(uid) => {
                    self.listings.insert(uid.clone(), Listing::Gone(catalog.revision));
                }
                (false, _) => {}
            }
        }
        self.is_first = false;
    }

    /// Returns the oldest revision of the rules on this node and on every live one. `None` if the leader's record is
    /// missing or can't be read, from which nothing follows except that a node may be behind.
    async fn programmed_everywhere(&self, catalog: &Catalog, snapshot: &Snapshot) -> Option<i64> {
        let own = *self.programmed.borrow();
        if !catalog.peers.keys().any(|peer| snapshot.node_is_ready(peer)) {
            return Some(own);
        }
        let stored = timeout(ASK_MAX, self.store.get(&Key::Programmed.to_string())).await.ok()?.ok()??;
        let record: ProgrammedRules = decode(&stored.value).ok()?;
        Some(own.min(record.revision))
    }
}

/// Grants calls in progress as much time as the replica has to end by itself.
fn drain_for_calls(facts: &PodFacts) -> DrainReason {
    let grace = facts.containers.values().flatten().map(|container| container.grace).max();
    DrainReason::Calls(SignedDuration::from_secs(grace.unwrap_or_default().into()))
}

/// Returns the addresses at which pods of a node are endpoints, or replicas of functions.
fn endpoints_of(node: &str, catalog: &Catalog) -> BTreeMap<NamespacedName, Vec<Ipv4Addr>> {
    let mut listed: BTreeMap<NamespacedName, Vec<Ipv4Addr>> = BTreeMap::new();
    for (service, record) in &catalog.services {
        for endpoint in &record.value.endpoints {
            if let (Some(there), Some(pod)) = (&endpoint.node, &endpoint.pod)
                && there == node
            {
                listed
                    .entry(NamespacedName::new(&service.namespace, pod))
                    .or_default()
                    .push(endpoint.address);
            }
        }
    }
    for (function, record) in &catalog.functions {
        for replica in record.value.replicas.iter().filter(|replica| replica.node == node) {
            let pod = NamespacedName::new(&function.namespace, &replica.pod);
            listed.entry(pod).or_default().push(*replica.address.ip());
        }
    }
    listed
}
