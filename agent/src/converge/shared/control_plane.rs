//! Addresses of etcd and the reconcilers: functions may not reach them, and no service takes them.
//!
//! Reads the known addresses of the cluster, and from etcd the leader; etcd knows no address of reconcilers that do not lead.
//! A source that can't be queried keeps its former result.

use std::collections::BTreeSet;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::Url;
use schema::store::{SharedStore, election};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::cluster::ClusterAddresses;

/// Interval between lookups.
pub const INTERVAL: Duration = election::LOOKUP_INTERVAL;
/// Maximum wait for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Known addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControlPlane {
    pub etcd: BTreeSet<SocketAddrV4>,
    /// The known ones, and the leader.
    pub reconcilers: BTreeSet<SocketAddrV4>,
}

impl ControlPlane {
    /// Derives the addresses from the URLs alone, as [`ControlPlane::from_urls`].
    pub fn from_addresses(known: &ClusterAddresses) -> Self {
        Self::from_urls(&known.etcd, &known.reconcilers)
    }

    /// Derives the addresses from these URLs alone: those with an address instead of a name.
    pub fn from_urls(etcd: &[String], reconcilers: &[String]) -> Self {
        let literal = |urls: &[String]| urls.iter().filter_map(|url| address(url)).collect();
        Self { etcd: literal(etcd), reconcilers: literal(reconcilers) }
    }
}

/// Returns the host and port of a URL, if the host is an address.
fn address(url: &str) -> Option<SocketAddrV4> {
    let (host, port) = host(url)?;
    Some(SocketAddrV4::new(host.parse().ok()?, port))
}

fn host(url: &str) -> Option<(String, u16)> {
    let url: Url = url.parse().ok()?;
    Some((url.host_str()?.to_owned(), url.port_or_known_default()?))
}

/// Returns the step of a follower: looks up the addresses, and publishes changes. Shutdown ends a lookup, which may
/// take seconds.
pub fn publish(
    addresses: watch::Receiver<ClusterAddresses>,
    store: SharedStore,
    known: watch::Sender<ControlPlane>,
    shutdown: CancellationToken,
) -> impl FnMut() -> BoxFuture<'static, ()> + Send {
    let shared = Arc::new((addresses, store, known, shutdown));
    move || {
        let shared = Arc::clone(&shared);
        Box::pin(async move {
            let (addresses, store, known, shutdown) = &*shared;
            let ClusterAddresses { etcd, reconcilers } = addresses.borrow().clone();
            // Cancel-safe: an aborted lookup is repeated.
            let looked = shutdown.run_until_cancelled(look_up(&etcd, &reconcilers, store, known)).await;
            if let Some(next) = looked.filter(|next| *known.borrow() != *next) {
                known.send_replace(next);
            }
        })
    }
}

async fn look_up(
    etcd: &[String],
    reconcilers: &[String],
    store: &SharedStore,
    known: &watch::Sender<ControlPlane>,
) -> ControlPlane {
    let former = known.borrow().clone();
    let leader = match timeout(ANSWER_MAX, election::leader(store.as_ref())).await {
        Ok(Ok(leader)) => Some(leader.and_then(|leader| leader.api)),
        Ok(Err(_)) | Err(_) => None,
    };
    let etcd = resolve(etcd).await.unwrap_or(former.etcd);
    let given = resolve(reconcilers).await;
    let reconcilers = match (given, leader) {
        (Some(mut given), Some(leader)) => {
            given.extend(resolve(leader.as_slice()).await.unwrap_or_default());
            given
        }
        _ => former.reconcilers,
    };
    ControlPlane { etcd, reconcilers }
}

/// Resolves the hosts of the URLs; `None` if some name has no address now.
async fn resolve(urls: &[String]) -> Option<BTreeSet<SocketAddrV4>> {
    let mut found = BTreeSet::new();
    for (host, port) in urls.iter().filter_map(|url| host(url)) {
        let all = timeout(ANSWER_MAX, tokio::net::lookup_host((host, port))).await.ok()?.ok()?;
        found.extend(all.filter_map(|address| match address {
            std::net::SocketAddr::V4(address) => Some(address),
            std::net::SocketAddr::V6(_) => None,
        }));
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::store::memory::MemoryStore;

    #[test]
    fn addresses_are_known_at_once_and_names_later() {
        let urls = ["http://10.0.0.1:2379".to_owned(), "http://etcd.lan:2379".to_owned()];
        let known = ControlPlane::from_urls(&urls, &["http://10.0.0.2".to_owned()]);
        assert_eq!(known.etcd, BTreeSet::from(["10.0.0.1:2379".parse().unwrap()]));
        assert_eq!(known.reconcilers, BTreeSet::from(["10.0.0.2:80".parse().unwrap()]));
    }

    #[tokio::test]
    async fn a_name_without_an_address_leaves_what_was_known() {
        let former = ControlPlane::from_urls(&["http://10.0.0.1:1".to_owned()], &[]);
        let known = watch::Sender::new(former.clone());
        let store: SharedStore = Arc::new(MemoryStore::new());
        let next = look_up(&["http://no.such.invalid:1".to_owned()], &[], &store, &known).await;
        assert_eq!(next.etcd, former.etcd);
    }
}
