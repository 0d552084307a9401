//! Network of builds: a Docker bridge for this instance alone, which builds get only once the rules are in place
//! that keep them from the cluster and this node.

use std::collections::BTreeSet;
use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;

use reqwest::Url;
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::BuildsLoop;
use crate::packet_rules::names::Names;
use crate::worlds::docker::EngineNetwork;

/// Maximum time to resolve the index's addresses.
const RESOLVE_MAX: Duration = Duration::from_secs(5);

impl BuildsLoop {
    /// Returns the network's name, once its rules are in place.
    pub(super) async fn confined_network(&self, index: Option<&str>) -> Result<String, String> {
        let index = addresses(index).await?;
        self.deps.network.until_confined(index).await?;
        let names = Names::of(&self.deps.instance);
        let network = EngineNetwork {
            name: names.build_network,
            bridge: names.build_bridge,
            mtu: self.deps.mtu,
            instance: self.deps.instance.clone(),
        };
        self.deps.docker.ensure_network(&network).await.map_err(|error| error.to_string())?;
        Ok(network.name)
    }
}

/// Resolves the addresses of an index, which builds must reach even inside the cluster.
async fn addresses(index: Option<&str>) -> Result<BTreeSet<SocketAddrV4>, String> {
    let url: Option<Url> = index.and_then(|index| index.parse().ok());
    let at = url.as_ref().and_then(|url| Some((url.host_str()?, url.port_or_known_default()?)));
    let Some((host, port)) = at else { return Ok(BTreeSet::new()) };
    let refused = |why: String| {
        format!(
            "cannot resolve {host}, the host of the package index: {why}; correct functions.packageIndex of the Cluster object or \
             this node's DNS, or put the wheels into a `wheels` folder beside requirements.txt"
        )
    };
    let found = match timeout(RESOLVE_MAX, lookup_host((host, port))).await {
        Ok(found) => found.map_err(|error| refused(error.to_string()))?,
        Err(_) => return Err(refused(format!("no answer within {RESOLVE_MAX:?}"))),
    };
    let of_four = |address| match address {
        SocketAddr::V4(address) => Some(address),
        SocketAddr::V6(_) => None,
    };
    Ok(found.filter_map(of_four).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_index_that_has_no_address_is_named_before_pip_is_asked() {
        assert_eq!(addresses(None).await, Ok(BTreeSet::new()));
        let known = addresses(Some("http://192.0.2.1:3141/simple")).await;
        assert_eq!(known, Ok(["192.0.2.1:3141".parse().unwrap()].into()));
        let why = addresses(Some("https://index.invalid/simple")).await.unwrap_err();
        assert!(why.starts_with("cannot resolve index.invalid") && why.contains("`wheels`"), "{why}");
    }
}
