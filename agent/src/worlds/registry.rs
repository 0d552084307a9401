//! The cluster's registry, to which function images are pushed and from which they are pulled. Docker does so with
//! the login that the Cluster object names; deletions, which Docker does not support, are requested here.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Certificate, StatusCode};
use schema::content_refs::Files;
use schema::control::error_chain;
use schema::image::ImageReference;
use schema::kinds::cluster::{Registry, cluster_reference};
use tokio::sync::watch;
use tokio::time::timeout;

use super::docker::{Docker, PullProgress, RegistryLogin};
use crate::catalog::Catalog;
use crate::files::PodFiles;
use crate::files::registry_logins::logins_of;
use crate::http::outgoing;

/// Longest time for a push or a pull.
const MOVE_MAX: Duration = Duration::from_secs(600);
/// Longest time until a pull makes progress: other nodes may have the image.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Longest time for a deletion, and for connecting to the registry.
const DELETE_MAX: Duration = Duration::from_secs(20);
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Directory in which Docker looks for the CAs of registries, by host.
const DOCKER_CAS: &str = "/etc/docker/certs.d";

/// Reason why an image stays in the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeletionFailure {
    /// The registry can't be reached now, or not with this login: try again later.
    Unavailable(String),
    /// The registry never deletes the image.
    Refused(String),
}

/// The cluster's registry as seen from this node.
pub struct ClusterRegistry {
    docker: Arc<dyn Docker>,
    files: Arc<PodFiles>,
    catalog: watch::Receiver<Arc<Catalog>>,
}

impl ClusterRegistry {
    /// Creates a client of the registry that the Cluster object names at the time of each call.
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

    /// Address of the registry, if there is one.
    pub fn address(&self) -> Option<String> {
        self.current().map(|registry| registry.address)
    }

    /// Returns the registry and the files of its login: an answer holds for these only.
    pub fn access(&self) -> (Option<Registry>, Files) {
        let settings = &self.catalog.borrow().settings;
        (settings.spec.registry.clone(), settings.logins.clone())
    }

    /// The registry, if it holds this repository.
    fn with(&self, repository: &str) -> Option<Registry> {
        self.current().filter(|registry| {
            let rest = repository.strip_prefix(registry.address.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.starts_with('/'))
        })
    }

    /// True if the image is in the cluster's registry.
    pub fn holds(&self, image: &str) -> bool {
        self.with(ImageReference::split(image).name).is_some()
    }

    /// Returns the logins for an image: those of the cluster's registry, if the image is in it.
    ///
    /// # Errors
    /// A sentence with what to do.
    pub async fn logins(&self, image: &str) -> Result<Vec<RegistryLogin>, String> {
        match self.with(ImageReference::split(image).name) {
            Some(registry) => Ok(self.login(&registry, image).await?.into_iter().collect()),
            None => Ok(Vec::new()),
        }
    }

    async fn login(&self, registry: &Registry, image: &str) -> Result<Option<RegistryLogin>, String> {
        let Some(secret) = &registry.login_secret else { return Ok(None) };
        let files = self.catalog.borrow().settings.logins.clone();
        let namespace = cluster_reference().namespace;
        let logins = logins_of(&self.files, &files, &namespace, &secret.name, image).await?;
        let none = || format!("secret {} has no login for {}", secret.name, registry.address);
        logins.into_iter().next().map(Some).ok_or_else(none)
    }

    /// Pushes an image of this node to the registry as `target`.
    ///
    /// # Errors
    /// A sentence with what to do.
    pub async fn push(&self, reference: &str, target: &str) -> Result<(), String> {
        let registry = self.current().ok_or("the cluster no longer has a registry")?;
        let login = self.login(&registry, target).await?;
        self.docker.tag(reference, target).await.map_err(|error| error.to_string())?;
        let pushed = timeout(MOVE_MAX, self.docker.push(target, login.as_ref())).await;
        let pushed = pushed.map_err(|_| format!("pushing {target} took longer than {MOVE_MAX:?}"))?;
        pushed.map_err(|error| with_help(&registry, &error.to_string()))
    }

    /// Pulls the image that was pushed as `copy`, `repository@digest`, and tags it `reference`. Pulls by digest,
    /// because another cluster may have pushed its own image under the same tag.
    ///
    /// # Errors
    /// A sentence with what to do.
    pub async fn pull(&self, copy: &str, reference: &str, id: Option<&str>) -> Result<(), String> {
        let registry =
            self.with(copy).ok_or_else(|| format!("{copy} does not belong to the cluster's registry"))?;
        let login = self.login(&registry, copy).await?;
        let (progress, said) = watch::channel(PullProgress::default());
        let pulling = timeout(MOVE_MAX, self.docker.pull(copy, login.as_ref(), &progress));
        let pulled = with_answer_limit(said, pulling).await;
        let pulled =
            pulled.ok_or_else(|| format!("the registry of {copy} did not answer within {ANSWER_MAX:?}"))?;
        let pulled = pulled.map_err(|_| format!("pulling {copy} took longer than {MOVE_MAX:?}"))?;
        pulled.map_err(|error| with_help(&registry, &error.to_string()))?;
        let failed = |error: super::docker::DockerError| error.to_string();
        let found = self.docker.image(copy).await.map_err(failed)?.map(|facts| facts.id);
        let is_right = found.as_deref() == id && id.is_some();
        if is_right {
            self.docker.tag(copy, reference).await.map_err(failed)?;
        }
        // Only the node that pushed the image deletes it, so no other node keeps its name in the registry.
        self.docker.remove_image(copy).await.map_err(failed)?;
        if is_right { Ok(()) } else { Err(format!("{copy} is not the image that was built")) }
    }

    /// Deletes an image from the registry.
    pub async fn delete(&self, repository: &str, digest: &str) -> Result<(), DeletionFailure> {
        let Some((registry, (host, path))) = self.with(repository).zip(repository.split_once('/')) else {
            return Err(DeletionFailure::Refused("the cluster has another registry now".to_owned()));
        };
        let login = self.login(&registry, repository).await.map_err(DeletionFailure::Unavailable)?;
        let scheme = if registry.insecure || is_loopback(host) { "http" } else { "https" };
        let url = format!("{scheme}://{host}/v2/{path}/manifests/{digest}");
        let client = client(&Path::new(DOCKER_CAS).join(host)).map_err(DeletionFailure::Unavailable)?;
        let request = client.delete(&url);
        let request = match &login {
            Some(login) => request.basic_auth(&login.username, Some(&login.password)),
            None => request,
        };
        let answer = request.send().await;
        let answer = answer.map_err(|error| DeletionFailure::Unavailable(error_chain(&error)))?;
        match answer.status() {
            StatusCode::NOT_FOUND => Ok(()),
            status if status.is_success() => Ok(()),
            StatusCode::METHOD_NOT_ALLOWED => Err(DeletionFailure::Refused(
                "it does not allow deletion (Docker's own registry: set storage.delete.enabled)".to_owned(),
            )),
            // Also for a wrong login, which may be corrected: the image keeps its names here, by which it is found
            // again.
            status => Err(DeletionFailure::Unavailable(format!("it answered {status}"))),
        }
    }
}

/// Returns the result of a pull, `None` if it makes no progress for long.
async fn with_answer_limit<T>(
    mut said: watch::Receiver<PullProgress>,
    pull: impl Future<Output = T>,
) -> Option<T> {
    let silence = async {
        if timeout(ANSWER_MAX, said.changed()).await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        done = pull => Some(done),
        () = silence => None,
    }
}

/// Creates a client that also trusts Docker's CAs for the registry.
fn client(cas: &Path) -> Result<reqwest::Client, String> {
    let files = std::fs::read_dir(cas).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut certificates = Vec::new();
    for file in files.filter(|file| file.extension().is_some_and(|ending| ending == "crt")) {
        let unreadable = |why: String| format!("cannot read the CA in {}: {why}", file.display());
        let pem = std::fs::read(&file).map_err(|error| unreadable(error.to_string()))?;
        let read = Certificate::from_pem_bundle(&pem).map_err(|error| unreadable(error_chain(&error)))?;
        certificates.extend(read);
    }
    outgoing::to_registry(CONNECT_MAX, DELETE_MAX, certificates).map_err(|error| error_chain(&error))
}

/// True for hosts with which Docker speaks HTTP by default.
fn is_loopback(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name == "localhost" || name.starts_with("127.")
}

/// Adds advice to Docker's error about the registry.
fn with_help(registry: &Registry, message: &str) -> String {
    let host = registry.address.split('/').next().unwrap_or_default();
    let lower = message.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let help = if says(&["http response to https"]) {
        format!(
            "add {host} to `insecure-registries` of this node's Docker, or give the registry a certificate"
        )
    } else if says(&["x509", "certificate"]) {
        format!("put the registry's CA at {DOCKER_CAS}/{host}/ca.crt on this node")
    } else if says(&["unauthorized", "authentication required", "no basic auth", "denied"]) {
        match &registry.login_secret {
            Some(secret) => format!("correct the login in secret {}, or its permissions", secret.name),
            None => "name a secret with a login in the Cluster object's registry.loginSecret".to_owned(),
        }
    } else {
        "check the registry, and this node's connection to it".to_owned()
    };
    format!("{message}; {help}")
}

#[cfg(test)]
mod tests {
    use schema::records::ClusterSettings;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

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

    /// Registry `r` as the cluster's registry.
    fn registry(docker: &Arc<FakeDocker>, state: &Path, r: Registry) -> ClusterRegistry {
        let keys = Keys::open_or_without(&state.join("age.txt"));
        let files = Arc::new(PodFiles::new(state, Arc::new(NoBlobs), keys));
        let mut settings = ClusterSettings::default();
        settings.spec.registry = Some(r);
        let catalog = watch::channel(Arc::new(Catalog { settings, ..Catalog::default() })).1;
        ClusterRegistry::new(docker.clone(), files, catalog)
    }

    // Seen red without the comparison of ids: what the registry has under the name would run.
    #[tokio::test]
    async fn what_the_registry_has_is_taken_only_if_it_is_what_was_built() {
        let (state, docker) = (tempfile::tempdir().unwrap(), Arc::new(FakeDocker::default()));
        let copy = "r.lan/team/function@sha256:0";
        docker.engine().registry.insert(copy.to_owned());
        let there = Registry { address: "r.lan/team".to_owned(), ..Registry::default() };
        let registry = registry(&docker, state.path(), there);
        let here = || docker.engine().images.keys().cloned().collect::<Vec<_>>();
        let other = registry.pull(copy, "local:0", Some("sha256:other")).await;
        assert!(other.unwrap_err().contains("not the image that was built") && here().is_empty());
        let right = Some("sha256:r.lan/team/function@sha256:0");
        registry.pull(copy, "local:0", right).await.unwrap();
        assert_eq!(here(), ["local:0"], "its name in the registry is the pusher's alone");
        let none = registry.pull("r.lan/team/function@sha256:1", "local:1", right).await;
        assert!(none.unwrap_err().contains("check the registry"));
        let elsewhere = registry.pull("r.lan/teams/function@sha256:0", "local:1", right).await;
        assert!(elsewhere.unwrap_err().contains("does not belong to the cluster's registry"));
    }

    // Seen red with every other status taken for a refusal.
    #[tokio::test]
    async fn only_what_a_registry_never_deletes_is_given_up() {
        let (state, docker) = (tempfile::tempdir().unwrap(), Arc::new(FakeDocker::default()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("{}/team", listener.local_addr().unwrap());
        let there = Registry { address: address.clone(), ..Registry::default() };
        let open = registry(&docker, state.path(), there.clone());
        let repository = format!("{address}/function");
        for (status, refused) in [
            (202, None),
            (404, None),
            (405, Some(true)),
            (401, Some(false)),
            (403, Some(false)),
            (408, Some(false)),
            (429, Some(false)),
            (503, Some(false)),
        ] {
            let answer = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
                let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(head.as_bytes()).await.unwrap();
            };
            let (deleted, ()) = tokio::join!(open.delete(&repository, "sha256:2"), answer);
            let found = deleted.as_ref().err().map(|error| matches!(error, DeletionFailure::Refused(_)));
            assert_eq!(found, refused, "{status}: {deleted:?}");
        }
        let login_secret = Some(schema::kinds::pod::LocalReference { name: "reg".to_owned() });
        let closed = registry(&docker, state.path(), Registry { login_secret, ..there });
        let deleted = closed.delete(&repository, "sha256:2").await;
        assert!(
            matches!(deleted, Err(DeletionFailure::Unavailable(_))),
            "the secret is not here: {deleted:?}"
        );
    }

    // Seen red with a pull that waits for its first word without end.
    #[tokio::test(start_paused = true)]
    async fn a_registry_that_says_nothing_is_given_up_and_a_slow_one_is_not() {
        let long = ANSWER_MAX * 3;
        let (_progress, silent) = watch::channel(PullProgress::default());
        assert_eq!(with_answer_limit(silent, tokio::time::sleep(long)).await, None);
        let (progress, slow) = watch::channel(PullProgress::default());
        let pull = async {
            progress.send_modify(|progress| progress.note("layer", "Downloading", Some((1, 2))));
            tokio::time::sleep(long).await;
        };
        assert_eq!(with_answer_limit(slow, pull).await, Some(()));
    }

    #[test]
    fn what_the_registry_says_comes_with_what_to_do() {
        let mut registry = Registry { address: "r.lan:5000/team".to_owned(), ..Registry::default() };
        for (message, help) in [
            ("http: server gave HTTP response to HTTPS client", "add r.lan:5000 to `insecure-registries`"),
            ("x509: certificate signed by unknown authority", "/etc/docker/certs.d/r.lan:5000/ca.crt"),
            ("no basic auth credentials", "registry.loginSecret"),
            ("connection refused", "this node's connection to it"),
        ] {
            assert!(with_help(&registry, message).contains(help), "{message}");
        }
        registry.login_secret = Some(schema::kinds::pod::LocalReference { name: "reg".to_owned() });
        assert!(with_help(&registry, "denied: requested access").contains("secret reg"));
        assert!(is_loopback("127.0.0.1:5000") && is_loopback("localhost") && !is_loopback("r.lan:5000"));
    }
}
