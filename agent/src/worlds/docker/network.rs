//! Docker networks.

use std::collections::HashMap;

use bollard::models::NetworkCreateRequest;

use super::DockerError;
use super::error::{READ, WRITE, within};
use crate::names;

/// Docker's names of the options that a network is created with.
const BRIDGE_OPTION: &str = "com.docker.network.bridge.name";
const MTU_OPTION: &str = "com.docker.network.driver.mtu";

/// A Docker bridge with its own addresses, which reaches everything the machine reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineNetwork {
    pub name: String,
    pub bridge: String,
    pub mtu: u32,
    pub instance: String,
}

/// Creates the network if missing, or again if its MTU changed; true if it was created.
pub(super) async fn ensure(client: &bollard::Docker, network: &EngineNetwork) -> Result<bool, DockerError> {
    let act = "to inspect a network";
    match within(act, READ, client.inspect_network(&network.name, None)).await {
        Ok(there) => {
            let mut options = there.options.unwrap_or_default();
            let bridge = options.remove(BRIDGE_OPTION).unwrap_or_default();
            let has_mtu = options.remove(MTU_OPTION).is_some_and(|mtu| mtu == network.mtu.to_string());
            if bridge == network.bridge && has_mtu {
                return Ok(false);
            }
            if bridge == network.bridge {
                // The uplink's MTU changed. Refused while a build uses the network: the build goes on with the old
                // one.
                return match remove(client, &network.name).await {
                    Ok(_) => create(client, network).await,
                    Err(DockerError::Refused { .. }) => Ok(false),
                    Err(other) => Err(other),
                };
            }
            let message = format!(
                "network {} has bridge '{bridge}' instead of {}; remove it with 'docker network rm {}'",
                network.name, network.bridge, network.name
            );
            Err(DockerError::Refused { act, status: 0, message })
        }
        Err(DockerError::Refused { status: 404, .. }) => create(client, network).await,
        Err(other) => Err(other),
    }
}

async fn create(client: &bollard::Docker, network: &EngineNetwork) -> Result<bool, DockerError> {
    let options = HashMap::from([
        (BRIDGE_OPTION.to_owned(), network.bridge.clone()),
        (MTU_OPTION.to_owned(), network.mtu.to_string()),
    ]);
    let request = NetworkCreateRequest {
        name: network.name.clone(),
        driver: Some("bridge".to_owned()),
        enable_ipv6: Some(false),
        options: Some(options),
        labels: Some([(names::INSTANCE.to_owned(), network.instance.clone())].into()),
        ..NetworkCreateRequest::default()
    };
    within("to create a network", WRITE, client.create_network(request)).await.map(|_| true)
}

/// Removes the network; true if it existed.
pub(super) async fn remove(client: &bollard::Docker, name: &str) -> Result<bool, DockerError> {
    match within("to remove a network", WRITE, client.remove_network(name)).await {
        Ok(()) => Ok(true),
        Err(DockerError::Refused { status: 404, .. }) => Ok(false),
        Err(other) => Err(other),
    }
}
