//! Finds the images that a Dockerfile names: on the node already, or pulled from a registry that builds may use. The
//! builder gets their ids, so it pulls nothing itself.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use schema::dockerfile::{self, Dockerfile, Fault, LABEL_PREFIX, PinnedImage};
use schema::image::{DOCKER_HUB, ImageName};
use schema::names::is_public_address;
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::BuildsDeps;
use crate::names;
use crate::worlds::docker::DockerError;
use crate::worlds::host::own_addresses;

/// Maximum time to resolve the addresses of the index, or of a registry.
pub(super) const RESOLVE_MAX: Duration = Duration::from_secs(5);

/// Port of registries whose names have none.
const HTTPS: u16 = 443;

/// Permission to pull an image.
#[derive(Debug, PartialEq, Eq)]
enum Permission {
    Granted,
    /// Only if this host has no other than public addresses.
    IfPublic(String, u16),
}

/// Decides whether builds may pull from an image's registry, by the list of the Cluster object.
fn permission(image: &ImageName, registries: &[String]) -> Result<Permission, String> {
    let full = format!("{}/{}", image.registry, image.repository);
    let is_below = |registry: &String| {
        full.strip_prefix(registry.trim_end_matches('/')).is_some_and(|rest| rest.starts_with('/'))
    };
    if registries.iter().any(is_below) {
        return Ok(Permission::Granted);
    }
    if !registries.is_empty() {
        let known = registries.join(", ");
        return Err(format!(
            "builds may pull from {known} (functions.registries of the Cluster object) only"
        ));
    }
    // Its name is Docker's own, whatever mirror an engine has for it.
    if image.registry == DOCKER_HUB {
        return Ok(Permission::Granted);
    }
    let (host, port) = match image.registry.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().unwrap_or(HTTPS)),
        _ => (image.registry.as_str(), HTTPS),
    };
    Ok(Permission::IfPublic(host.trim_matches(['[', ']']).to_owned(), port))
}

/// Parses a Dockerfile; the error lists its faults with their lines.
pub(super) fn parse(text: &str) -> Result<Dockerfile, String> {
    dockerfile::parse(text).map_err(|faults| {
        let line = |fault: &Fault| match fault.help {
            "" => format!("Dockerfile:{}: {}", fault.line, fault.message),
            help => format!("Dockerfile:{}: {} ({help})", fault.line, fault.message),
        };
        faults.iter().map(line).collect::<Vec<_>>().join("\n")
    })
}

impl BuildsDeps {
    /// Returns the text for the builder, with the ids of images on the node. `base` is an image that the Cluster
    /// object names.
    pub(super) async fn pinned(
        &self,
        dockerfile: &Dockerfile,
        base: Option<&str>,
        log: &(dyn for<'t> Fn(&'t str) + Send + Sync),
    ) -> Result<String, String> {
        let mut pins = BTreeMap::new();
        for name in dockerfile.images() {
            let pin = self.pin(name, base == Some(name), log).await?;
            log(&format!("{name} is {}\n", pin.id));
            pins.insert(name.to_owned(), pin);
        }
        Ok(dockerfile.pinned(&pins, &names::LABELS))
    }

    async fn pin(
        &self,
        name: &str,
        is_base: bool,
        log: &(dyn for<'t> Fn(&'t str) + Send + Sync),
    ) -> Result<PinnedImage, String> {
        let failed = |error: DockerError| format!("cannot use {name}, which the Dockerfile names: {error}");
        let logins = self.registry.logins(name).await?;
        let here = self.docker.image(name).await.map_err(failed)?;
        let facts = match here.filter(|facts| self.pulls.book().may_use(name, &facts.id, &logins)) {
            Some(facts) => facts,
            None => {
                if !is_base && !self.registry.holds(name) {
                    self.check_registry(name).await?;
                }
                log(&format!("pulls {name}\n"));
                let has_login = !logins.is_empty();
                let pulled = self.pulls.join(name, logins).pull.await;
                pulled.map_err(|error| match error {
                    DockerError::LoginRefused { .. } if !has_login => format!(
                        "{}; builds have no login but that of the cluster's registry: push the image there, or load \
                         it on the nodes that build",
                        failed(error)
                    ),
                    error => failed(error),
                })?;
                let pulled = self.docker.image(name).await.map_err(failed)?;
                pulled.ok_or_else(|| format!("{name} was pulled, and Docker has no image of this name"))?
            }
        };
        if facts.has_triggers {
            return Err(format!(
                "{name} has ONBUILD instructions, which would run unchecked; name an image without them"
            ));
        }
        let has_agent_labels = facts.labels.keys().any(|label| label.starts_with(LABEL_PREFIX));
        Ok(PinnedImage { id: facts.id, has_agent_labels })
    }

    /// Checks that builds may pull an image that is not on the node.
    async fn check_registry(&self, name: &str) -> Result<(), String> {
        let image = ImageName::parse(name);
        let refused = |why: String| {
            format!("the Dockerfile names {name}, which is not on this node and may not be pulled: {why}")
        };
        let registries = self.catalog.borrow().settings.spec.functions.registries.clone();
        let Permission::IfPublic(host, port) = permission(&image, &registries).map_err(refused)? else {
            return Ok(());
        };
        let found = timeout(RESOLVE_MAX, lookup_host((host.as_str(), port))).await;
        let found = found.map_err(|_| refused(format!("the name {host} was not resolved in time")))?;
        let found = found.map_err(|error| refused(format!("cannot resolve {host}: {error}")))?;
        let addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
        let own = own_addresses()
            .map_err(|error| refused(format!("cannot list this node's addresses: {error}")))?;
        let is_allowed =
            |address: &IpAddr| is_public_address(*address) && !own.contains(&address.to_canonical());
        match addresses.iter().find(|address| !is_allowed(address)) {
            None if !addresses.is_empty() => Ok(()),
            None => Err(refused(format!("{host} has no address"))),
            Some(address) => Err(refused(format!(
                "{host} is at {address}, which is this node or no public address; list it in functions.registries of the Cluster \
                 object if builds may pull from it"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Seen red with a list that is only added to the public registries, and with prefixes of names.
    #[test]
    fn without_a_list_only_public_registries_count_and_with_one_only_its_own() {
        let of = |image: &str, registries: &[&str]| {
            let registries: Vec<String> = registries.iter().map(|one| (*one).to_owned()).collect();
            permission(&ImageName::parse(image), &registries)
        };
        let if_public = |host: &str, port| Ok(Permission::IfPublic(host.to_owned(), port));
        assert_eq!(of("busybox", &[]), Ok(Permission::Granted));
        assert_eq!(of("quay.io/a/b:1", &[]), if_public("quay.io", 443));
        assert_eq!(of("127.0.0.1:5000/a", &[]), if_public("127.0.0.1", 5000));
        assert_eq!(of("[::1]:5000/a", &[]), if_public("::1", 5000));
        assert_eq!(of("[::1]/a", &[]), if_public("::1", 443));
        let own = ["r.lan:5000/team/", "docker.io"];
        for image in ["r.lan:5000/team/a:1", "busybox", "docker.io/a/b"] {
            assert_eq!(of(image, &own), Ok(Permission::Granted), "{image}");
        }
        for image in ["r.lan:5000/teams/a", "r.lan/team/a", "r.lan:5000/a", "quay.io/a/b"] {
            assert!(of(image, &own).is_err(), "{image}");
        }
    }
}
