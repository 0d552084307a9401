//! Images of functions, from the cluster's registry and from the nodes that have them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use reqwest::{Method, Request, Url};
use schema::control::error_chain;
use schema::kinds::function::image_hash;
use schema::records::{FunctionImage, RegistryCopy};
use schema::store::reflector::SnapshotReader;
use schema::trust::{Role, TrustReader};
use tokio::sync::watch;
use tokio::time::timeout;

use super::docker::{Docker, DockerError, ImageStream};
use super::registry::ClusterRegistry;
use crate::catalog::Catalog;
use crate::http::outgoing::{self, DaemonClient, Timeouts};

/// Longest time to connect to a node, and without a byte of an image: Docker packs a large one before it sends
/// anything.
const CONNECT_MAX: Duration = Duration::from_secs(3);
const SILENCE_MAX: Duration = Duration::from_secs(300);
const TIMEOUTS: Timeouts = Timeouts { connect: CONNECT_MAX, silence: SILENCE_MAX, whole: None };
/// Longest time for a whole image.
const FETCH_MAX: Duration = Duration::from_secs(600);

/// Source of images that no public registry has.
#[async_trait]
pub trait ImageSource: Send + Sync + 'static {
    /// Brings an image to this node. The error is a sentence.
    async fn fetch_image(&self, reference: &str) -> Result<(), DockerError>;
}

/// Image source that tries the registry first, then the other nodes' agents, `GET /v1/images/<hash>`.
pub struct Peers {
    deps: PeersDeps,
    client: DaemonClient,
}

/// Dependencies of [`Peers`].
pub struct PeersDeps {
    /// This node.
    pub node: String,
    pub docker: Arc<dyn Docker>,
    pub snapshot: SnapshotReader,
    pub catalog: watch::Receiver<Arc<Catalog>>,
    pub registry: Arc<ClusterRegistry>,
    /// Own credentials; `None` in tests, whose nodes have no TLS.
    pub trust: Option<TrustReader>,
}

impl Peers {
    pub fn new(mut deps: PeersDeps) -> Self {
        let client = outgoing::to_daemons(TIMEOUTS, deps.trust.take(), Role::Node);
        Self { deps, client }
    }

    fn known(&self, reference: &str) -> Option<FunctionImage> {
        let catalog = self.deps.catalog.borrow();
        let images = catalog.functions.values().flat_map(|function| &function.value.images);
        images.into_iter().find(|image| image.reference == reference && image.id.is_some()).cloned()
    }

    /// Fetches the image from a node as an archive.
    async fn archive(&self, node: &str, reference: &str) -> Result<ImageStream, String> {
        let record = self.deps.snapshot.current().nodes.get(node).map(|node| node.value.clone());
        let record = record.ok_or_else(|| format!("node {node} is not registered"))?;
        // An agent has no other node beside it, but in tests.
        let server = record.server(&record.api, cfg!(test))?;
        let hash = image_hash(reference).unwrap_or_default();
        let url = format!("{server}/v1/images/{hash}");
        let request = url.parse().map(|url: Url| Request::new(Method::GET, url));
        let request = request.map_err(|error| format!("{url}: {error}"))?;
        let answer = self.client.send(request).await.map_err(|error| error_chain(&error))?;
        if !answer.status().is_success() {
            return Err(format!("{url} answered {}", answer.status()));
        }
        let pieces = answer.bytes_stream().map(|piece| piece.map_err(|error| error_chain(&error)));
        Ok(pieces.boxed())
    }

    /// Ids of all images on this node, by name.
    async fn images_by_name(&self) -> Result<BTreeMap<String, String>, DockerError> {
        let images = self.deps.docker.images().await?.into_iter();
        Ok(images.flat_map(|image| image.tags.into_iter().map(move |tag| (tag, image.id.clone()))).collect())
    }

    /// Loads the image from a node, and keeps it only if it is the one that was built, and no other came with it.
    async fn fetch(&self, node: &str, reference: &str, built: Option<&str>) -> Result<(), String> {
        let archive = self.archive(node, reference).await?;
        let before = self.images_by_name().await.map_err(|error| error.to_string())?;
        let loading = timeout(FETCH_MAX, self.deps.docker.load_stream(archive)).await;
        let (names, loaded) = match loading {
            Ok((names, loaded)) => (names, loaded.map_err(|error| error.to_string())),
            Err(_) => (Vec::new(), Err(format!("it took longer than {FETCH_MAX:?}"))),
        };
        let after = self.images_by_name().await;
        let is_alone = loaded.is_ok() && !names.is_empty() && names.iter().all(|name| name == reference);
        let mut unwanted = vec![reference.to_owned()];
        // Docker may not report every name that it set. Then a name that another task set meanwhile is removed,
        // too, which costs that task one more pull.
        if !is_alone {
            let changed = |after: &BTreeMap<String, String>| {
                let changed = after.iter().filter(|(name, id)| before.get(*name) != Some(id));
                changed.map(|(name, _)| name.clone()).collect()
            };
            let brought = after.as_ref().map_or(names, changed);
            unwanted.extend(brought.into_iter().filter(|name| name != reference));
        }
        let found = after.ok().and_then(|after| after.get(reference).cloned());
        if loaded.is_ok() && unwanted.len() == 1 && found.is_some() && found.as_deref() == built {
            return Ok(());
        }
        let mut said =
            vec![loaded.err().unwrap_or_else(|| "it sent an image other than the one built".to_owned())];
        for name in unwanted {
            // Nothing may run such an image.
            said.extend(self.deps.docker.remove_image(&name).await.err().map(|error| error.to_string()));
        }
        Err(said.join("; "))
    }
}

#[async_trait]
impl ImageSource for Peers {
    async fn fetch_image(&self, reference: &str) -> Result<(), DockerError> {
        let failed = |message: String| DockerError::Pull { image: reference.to_owned(), message };
        let Some(image) = self.known(reference) else {
            return Err(failed("no node has built it yet".to_owned()));
        };
        let mut said = Vec::new();
        if let Some(RegistryCopy::Pushed { digest }) = &image.registry {
            match self.deps.registry.pull(digest, reference, image.id.as_deref()).await {
                Ok(()) => return Ok(()),
                Err(why) => said.push(why),
            }
        }
        for node in image.nodes.iter().filter(|node| **node != self.deps.node) {
            match self.fetch(node, reference, image.id.as_deref()).await {
                Ok(()) => return Ok(()),
                Err(why) => said.push(format!("node {node}: {why}")),
            }
        }
        if image.nodes.iter().all(|node| *node == self.deps.node) {
            said.push("no other node has it".to_owned());
        }
        Err(failed(said.join("; ")))
    }
}

/// Image source without any image.
#[cfg(any(test, feature = "fakes"))]
pub struct NoPeers;

#[cfg(any(test, feature = "fakes"))]
#[async_trait]
impl ImageSource for NoPeers {
    async fn fetch_image(&self, reference: &str) -> Result<(), DockerError> {
        Err(DockerError::Pull { image: reference.to_owned(), message: "no node has it".to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use schema::keys::Key;
    use schema::kinds::function::ImageState;
    use schema::meta::NamespacedName;
    use schema::records::{FunctionRecord, NodeRecord};
    use schema::store::memory::MemoryStore;
    use schema::testing::{SnapshotBuilder, node_record, versioned};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::files::{Keys, PodFiles};
    use crate::worlds::blobs::Reconcilers;
    use crate::worlds::docker::FakeDocker;

    const HASH: &str = "0123456789abcdef0123456789abcdef";

    /// Serves as the agent of another node; the archive of the image is its name, for the fake engine.
    async fn other_node(reference: String) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut said = vec![0; 1024];
            let read = stream.read(&mut said).await.unwrap();
            let asked = String::from_utf8_lossy(&said[..read]).into_owned();
            assert!(asked.starts_with(&format!("GET /v1/images/{HASH} ")), "{asked}");
            let length = reference.len();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
            stream.write_all((head + &reference).as_bytes()).await.unwrap();
        });
        api
    }

    // Seen red without the comparison of ids, and of names: whatever another node sends would run.
    #[tokio::test]
    async fn what_another_node_gives_is_kept_only_if_it_is_what_was_built() {
        let (state, reference) = (tempfile::tempdir().unwrap(), format!("minik8s.local/function:{HASH}"));
        // The fake engine gives loaded images no id.
        let (damaged, unnamed) = (FakeDocker::DAMAGED, FakeDocker::UNNAMED);
        for (built, given, is_kept) in [
            ("", reference.clone(), true),
            ("", format!("{unnamed}{reference}"), true),
            ("sha256:built", reference.clone(), false),
            ("sha256:built", format!("{unnamed}{reference}"), false),
            ("", format!("{reference}\nnginx:1.27"), false),
            ("", format!("{unnamed}{reference}\n{unnamed}nginx:1.27"), false),
            ("", format!("{reference}\nnginx:1.27\n{damaged}"), false),
        ] {
            let docker = Arc::new(FakeDocker::default());
            let (api, addresses) =
                (other_node(given.clone()).await, vec![std::net::Ipv4Addr::LOCALHOST.into()]);
            let node = NodeRecord { api, addresses, ..node_record("n2") };
            let snapshot = SnapshotBuilder::new().put(&Key::Node("n2".to_owned()), &node).snapshot;
            let image = FunctionImage {
                reference: reference.clone(),
                id: Some(built.to_owned()),
                state: ImageState::Ready,
                nodes: vec!["n2".to_owned()],
                registry: None,
            };
            let value = FunctionRecord { images: vec![image], ..FunctionRecord::default() };
            let mut catalog = Catalog::default();
            catalog.functions.insert(NamespacedName::new("default", "hello"), versioned(value));
            let catalog = watch::channel(Arc::new(catalog)).1;
            let keys = Keys::open_or_without(&state.path().join("age.txt"));
            let blobs = Reconcilers::new(Vec::new(), Arc::new(MemoryStore::new()));
            let files = Arc::new(PodFiles::new(state.path(), Arc::new(blobs), keys));
            let registry = Arc::new(ClusterRegistry::new(docker.clone(), files, catalog.clone()));
            let peers = Peers::new(PeersDeps {
                node: "n1".to_owned(),
                docker: docker.clone(),
                snapshot: SnapshotReader::fixed(snapshot),
                catalog,
                registry,
                trust: None,
            });
            let brought = peers.fetch_image(&reference).await;
            assert_eq!(docker.engine().images.contains_key(&reference), is_kept, "{brought:?}");
            assert!(
                !docker.engine().images.contains_key("nginx:1.27"),
                "a name of another image is taken back"
            );
            let why = brought.err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(why.contains("node n2: "), !is_kept, "{why}");
            assert_eq!(why.is_empty(), is_kept, "{why}");
        }
    }
}
