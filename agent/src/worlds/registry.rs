//! The cluster's registry: where images of functions are pushed to and pulled from. Docker speaks with it, with the login
//! that the Cluster object names; deletions, which Docker has no words for, are asked for here.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Certificate, StatusCode};
use schema::control::error_chain;
use schema::kinds::cluster::{Registry, cluster_reference};
use schema::kinds::function::registry_image;
use tokio::sync::watch;
use tokio::time::timeout;

use super::docker::{Docker, PullProgress, RegistryLogin};
use crate::catalog::Catalog;
use crate::converge::pods::image::credentials::logins_of;
use crate::files::PodFiles;

/// Longest time for a push or a pull.
const MOVE_MAX: Duration = Duration::from_secs(600);
/// Longest time for a deletion.
const DELETE_MAX: Duration = Duration::from_secs(20);
/// Where Docker looks for the CAs of registries, by their host.
const DOCKER_CAS: &str = "/etc/docker/certs.d";

/// Why an image stays in the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotDeleted {
    /// It does not answer: to be tried again.
    Away(String),
    /// It does not permit it.
    Refused(String),
}

/// The registry as this node reaches it.
pub struct ClusterRegistry {
    docker: Arc<dyn Docker>,
    files: Arc<PodFiles>,
    catalog: watch::Receiver<Arc<Catalog>>,
}

impl ClusterRegistry {
    /// That of the Cluster object, whichever that is at the time.
    pub fn new(
        docker: Arc<dyn Docker>,
        files: Arc<PodFiles>,
        catalog: watch::Receiver<Arc<Catalog>>,
    ) -> Self {
        Self { docker, files, catalog }
    }

    fn current(&self) -> Option<Registry> {
        self.catalog.borrow().settings.spec.registry.clone()
    }

    /// Its address, if there is one.
    pub fn address(&self) -> Option<String> {
        self.current().map(|registry| registry.address)
    }

    async fn login(&self, registry: &Registry, image: &str) -> Result<Option<RegistryLogin>, String> {
        let Some(secret) = &registry.login_secret else { return Ok(None) };
        let files = self.catalog.borrow().settings.logins.clone();
        let namespace = cluster_reference().namespace;
        let logins = logins_of(&self.files, &files, &namespace, &secret.name, image).await?;
        let none = || format!("secret {} has no login for {}", secret.name, registry.address);
        logins.into_iter().next().map(Some).ok_or_else(none)
    }

    /// Brings an image of this node there, under the name `target`.
    ///
    /// # Errors
    /// A sentence with what to do.
    pub async fn push(&self, reference: &str, target: &str) -> Result<(), String> {
        let registry = self.current().ok_or("the cluster has no registry any more")?;
        let login = self.login(&registry, target).await?;
        self.docker.tag(reference, target).await.map_err(|error| error.to_string())?;
        let pushed = timeout(MOVE_MAX, self.docker.push(target, login.as_ref())).await;
        let pushed = pushed.map_err(|_| format!("pushing {target} took longer than {MOVE_MAX:?}"))?;
        pushed.map_err(|error| with_help(&registry, &error.to_string()))
    }

    /// Brings the image with this hash and id here, and calls it `reference`.
    ///
    /// # Errors
    /// A sentence with what to do.
    pub async fn pull(&self, hash: &str, reference: &str, id: Option<&str>) -> Result<(), String> {
        let registry = self.current().ok_or("the cluster has no registry any more")?;
        let name = registry_image(&registry.address, hash);
        let login = self.login(&registry, &name).await?;
        let progress = watch::channel(PullProgress::default()).0;
        let pulled = timeout(MOVE_MAX, self.docker.pull(&name, login.as_ref(), &progress)).await;
        let pulled = pulled.map_err(|_| format!("pulling {name} took longer than {MOVE_MAX:?}"))?;
        pulled.map_err(|error| with_help(&registry, &error.to_string()))?;
        let failed = |error: super::docker::DockerError| error.to_string();
        let found = self.docker.image(&name).await.map_err(failed)?.map(|facts| facts.id);
        let is_right = found.as_deref() == id && id.is_some();
        if is_right {
            self.docker.tag(&name, reference).await.map_err(failed)?;
        }
        // Who has pushed it deletes it, so no other node keeps its name there.
        self.docker.remove_image(&name).await.map_err(failed)?;
        if is_right { Ok(()) } else { Err(format!("{name} is another image than was built")) }
    }

    /// Deletes an image there.
    pub async fn delete(&self, repository: &str, digest: &str) -> Result<(), NotDeleted> {
        let registry = self.current().filter(|registry| {
            repository
                .strip_prefix(registry.address.trim_end_matches('/'))
                .is_some_and(|rest| rest.starts_with('/'))
        });
        let Some((registry, (host, path))) = registry.zip(repository.split_once('/')) else {
            return Err(NotDeleted::Refused("the cluster has another registry now".to_owned()));
        };
        let login = self.login(&registry, repository).await.map_err(NotDeleted::Refused)?;
        let scheme = if registry.insecure || is_loopback(host) { "http" } else { "https" };
        let url = format!("{scheme}://{host}/v2/{path}/manifests/{digest}");
        let client = client(&Path::new(DOCKER_CAS).join(host)).map_err(NotDeleted::Refused)?;
        let request = client.delete(&url);
        let request = match &login {
            Some(login) => request.basic_auth(&login.username, Some(&login.password)),
            None => request,
        };
        let answer = request.send().await.map_err(|error| NotDeleted::Away(error_chain(&error)))?;
        match answer.status() {
            StatusCode::NOT_FOUND => Ok(()),
            status if status.is_success() => Ok(()),
            StatusCode::METHOD_NOT_ALLOWED => Err(NotDeleted::Refused(
                "it permits no deletion (of Docker's own registry that is storage.delete.enabled)".to_owned(),
            )),
            status if status.is_server_error() => Err(NotDeleted::Away(format!("it answered {status}"))),
            status => Err(NotDeleted::Refused(format!("it answered {status}"))),
        }
    }
}

/// With the CAs that Docker trusts for the registry, too.
fn client(cas: &Path) -> Result<reqwest::Client, String> {
    let builder = reqwest::Client::builder().timeout(DELETE_MAX).redirect(reqwest::redirect::Policy::none());
    let files = std::fs::read_dir(cas).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut certificates = Vec::new();
    for file in files.filter(|file| file.extension().is_some_and(|ending| ending == "crt")) {
        let unreadable = |why: String| format!("cannot read the CA in {}: {why}", file.display());
        let pem = std::fs::read(&file).map_err(|error| unreadable(error.to_string()))?;
        let read = Certificate::from_pem_bundle(&pem).map_err(|error| unreadable(error_chain(&error)))?;
        certificates.extend(read);
    }
    builder.tls_certs_merge(certificates).no_proxy().build().map_err(|error| error_chain(&error))
}

/// Docker speaks HTTP with these without being told.
fn is_loopback(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name == "localhost" || name.starts_with("127.")
}

/// What to do about what Docker said of the registry.
fn with_help(registry: &Registry, message: &str) -> String {
    let host = registry.address.split('/').next().unwrap_or_default();
    let lower = message.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let help = if says(&["http response to https"]) {
        format!(
            "name {host} in `insecure-registries` of this node's Docker, or give the registry a certificate"
        )
    } else if says(&["x509", "certificate"]) {
        format!("put the registry's CA at {DOCKER_CAS}/{host}/ca.crt of this node")
    } else if says(&["unauthorized", "authentication required", "no basic auth", "denied"]) {
        match &registry.login_secret {
            Some(secret) => format!("correct the login in secret {}, or what it may do", secret.name),
            None => "name a secret with a login in the Cluster object's registry.loginSecret".to_owned(),
        }
    } else {
        "see the registry, and this node's way to it".to_owned()
    };
    format!("{message}; {help}")
}

#[cfg(test)]
mod tests {
    use schema::records::ClusterSettings;

    use super::*;
    use crate::files::Keys;
    use crate::worlds::blobs::BlobSource;
    use crate::worlds::docker::FakeDocker;

    struct NoBlobs;

    #[async_trait::async_trait]
    impl BlobSource for NoBlobs {
        async fn fetch(&self, _: &str, _: u64, _: std::fs::File) -> Result<(), String> {
            Err("none".to_owned())
        }
    }

    // To be red (not tried yet) without the comparison of ids: what the registry has under the name would run.
    #[tokio::test]
    async fn what_the_registry_has_is_taken_only_if_it_is_what_was_built() {
        let state = tempfile::tempdir().unwrap();
        let keys = Keys::open_or_without(&state.path().join("age.txt"));
        let files = Arc::new(PodFiles::new(state.path(), Arc::new(NoBlobs), keys));
        let mut settings = ClusterSettings::default();
        settings.spec.registry = Some(Registry { address: "r.lan/team".to_owned(), ..Registry::default() });
        let catalog = watch::channel(Arc::new(Catalog { settings, ..Catalog::default() })).1;
        let docker = Arc::new(FakeDocker::default());
        docker.engine().registry.insert("r.lan/team/function:0".to_owned());
        let registry = ClusterRegistry::new(docker.clone(), files, catalog);
        let here = || docker.engine().images.keys().cloned().collect::<Vec<_>>();
        let other = registry.pull("0", "local:0", Some("sha256:other")).await;
        assert!(other.unwrap_err().contains("another image than was built") && here().is_empty());
        let right = Some("sha256:r.lan/team/function:0");
        registry.pull("0", "local:0", right).await.unwrap();
        assert_eq!(here(), ["local:0"], "its name in the registry is the pusher's alone");
        assert!(registry.pull("1", "local:1", right).await.unwrap_err().contains("see the registry"));
    }

    #[test]
    fn what_the_registry_says_comes_with_what_to_do() {
        let mut registry = Registry { address: "r.lan:5000/team".to_owned(), ..Registry::default() };
        for (message, help) in [
            ("http: server gave HTTP response to HTTPS client", "name r.lan:5000 in `insecure-registries`"),
            ("x509: certificate signed by unknown authority", "/etc/docker/certs.d/r.lan:5000/ca.crt"),
            ("no basic auth credentials", "registry.loginSecret"),
            ("connection refused", "this node's way to it"),
        ] {
            assert!(with_help(&registry, message).contains(help), "{message}");
        }
        registry.login_secret = Some(schema::kinds::pod::LocalReference { name: "reg".to_owned() });
        assert!(with_help(&registry, "denied: requested access").contains("secret reg"));
        assert!(is_loopback("127.0.0.1:5000") && is_loopback("localhost") && !is_loopback("r.lan:5000"));
    }
}
