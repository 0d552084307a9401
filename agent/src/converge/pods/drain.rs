//! A pod that goes is given time until nobody sends it new connections: its endpoint leaves the services,
//! every node programs that, then its containers are told to end.
//!
//! What is known comes from the catalog and from what nodes say of their rules; the plan decides. It is
//! bounded: a service that is never changed, or a node that never answers, holds no pod.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schema::codec::decode;
use schema::keys::Key;
use schema::meta::PodRef;
use schema::records::RulesStatus;
use schema::store::SharedStore;
use schema::world::World;
use tokio::sync::watch;

use super::facts::{PodFacts, Uid};
use crate::catalog::Catalog;
use crate::desired::Desired;

/// Longest time for which a pod waits for the nodes' rules: what etcd, the reconciler and an agent take
/// on a busy machine, and no more than a person who removes a pod bears.
pub const DRAIN_MAX: SignedDuration = SignedDuration::from_secs(5);
/// How soon it is looked at again.
pub const DRAIN_CHECK: SignedDuration = SignedDuration::from_millis(100);

/// A pod that is not wanted any more and that clients may still be led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// Since when it is not wanted.
    pub since: Timestamp,
    /// Who may still lead clients to it.
    pub by: DrainedBy,
}

/// Who may still lead clients to a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrainedBy {
    /// It is an endpoint of a service.
    Services,
    /// The rules of these nodes are of before.
    Nodes(Vec<String>),
}

impl Drain {
    /// Until when it waits at most.
    pub fn until(&self) -> Timestamp {
        self.since.checked_add(DRAIN_MAX).unwrap_or(Timestamp::MAX)
    }
}

/// What has become of a pod's endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listing {
    Listed,
    /// Not any more, from this revision of etcd on.
    Gone(i64),
}

/// Follows which pods of this node are endpoints.
pub struct DrainBook {
    node: String,
    catalog: watch::Receiver<Arc<Catalog>>,
    /// Newest revision that this node's own rules follow.
    programmed: watch::Receiver<i64>,
    store: SharedStore,
    listings: BTreeMap<Uid, Listing>,
    since: BTreeMap<Uid, Timestamp>,
}

impl DrainBook {
    /// A book of `node` in which nothing stands.
    pub fn new(
        node: &str,
        catalog: watch::Receiver<Arc<Catalog>>,
        programmed: watch::Receiver<i64>,
        store: SharedStore,
    ) -> Self {
        let (listings, since) = (BTreeMap::new(), BTreeMap::new());
        Self { node: node.to_owned(), catalog, programmed, store, listings, since }
    }

    /// The pods that run, are not wanted, and may still be led to.
    pub async fn look(
        &mut self,
        pods: &BTreeMap<Uid, PodFacts>,
        desired: &Desired,
        world: &World,
        now: Timestamp,
    ) -> BTreeMap<Uid, Drain> {
        let catalog = Arc::clone(&self.catalog.borrow_and_update());
        self.follow(pods, &catalog);
        let wanted: Vec<&Uid> = desired.pods.values().map(|binding| &binding.pod.uid).collect();
        let runs = |facts: &PodFacts| facts.containers.values().flatten().any(|c| c.is_running());
        let going: Vec<&Uid> = pods
            .iter()
            .filter(|(uid, facts)| !wanted.contains(uid) && runs(facts))
            .map(|(uid, _)| uid)
            .collect();
        self.since.retain(|uid, _| going.contains(&uid));
        let mut drains = BTreeMap::new();
        for uid in going {
            let since = *self.since.entry(uid.clone()).or_insert(now);
            let by = match self.listings.get(uid) {
                None => continue,
                Some(Listing::Listed) => DrainedBy::Services,
                Some(Listing::Gone(revision)) => {
                    let behind = self.behind(*revision, &catalog, world).await;
                    if behind.is_empty() {
                        continue;
                    }
                    DrainedBy::Nodes(behind)
                }
            };
            drains.insert(uid.clone(), Drain { since, by });
        }
        drains
    }

    fn follow(&mut self, pods: &BTreeMap<Uid, PodFacts>, catalog: &Catalog) {
        let listed = endpoints_of(&self.node, catalog);
        self.listings.retain(|uid, _| pods.contains_key(uid));
        for (uid, facts) in pods {
            let address = facts.live_pause().and_then(|pause| pause.address).map(|address| address.addr());
            let is_listed = facts.pod.as_ref().and_then(|pod| listed.get(pod)).is_some_and(|at| {
                // A pod of the host's network has the node's address.
                address.is_none_or(|address| at.contains(&address))
            });
            match (is_listed, self.listings.get(uid)) {
                (true, _) => drop(self.listings.insert(uid.clone(), Listing::Listed)),
                (false, Some(Listing::Listed)) => {
                    self.listings.insert(uid.clone(), Listing::Gone(catalog.revision));
                }
                (false, _) => {}
            }
        }
    }

    /// The nodes that are alive and whose rules are of before `revision`.
    async fn behind(&self, revision: i64, catalog: &Catalog, world: &World) -> Vec<String> {
        if *self.programmed.borrow() < revision {
            return vec![self.node.clone()];
        }
        let alive = catalog.peers.keys().filter(|peer| world.heartbeats.contains_key(*peer));
        let asked = alive.map(|peer| async move {
            let key = Key::Rules(peer.clone()).to_string();
            let stored = self.store.get(&key).await.ok().flatten();
            let status = stored.and_then(|stored| decode::<RulesStatus>(&stored.value).ok());
            // A node that has said nothing programs nothing.
            status.is_some_and(|status| status.revision < revision).then(|| peer.clone())
        });
        futures::future::join_all(asked).await.into_iter().flatten().collect()
    }
}

/// The addresses at which pods of a node are endpoints.
fn endpoints_of(node: &str, catalog: &Catalog) -> BTreeMap<PodRef, Vec<Ipv4Addr>> {
    let mut listed: BTreeMap<PodRef, Vec<Ipv4Addr>> = BTreeMap::new();
    for (service, record) in &catalog.services {
        for endpoint in &record.value.endpoints {
            if let (Some(there), Some(pod)) = (&endpoint.node, &endpoint.pod)
                && there == node
            {
                listed.entry(PodRef::new(&service.namespace, pod)).or_default().push(endpoint.address);
            }
        }
    }
    listed
}
