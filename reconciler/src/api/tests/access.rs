//! Callers of the API beside the users of its machine.

use jiff::SignedDuration;
use schema::content_refs::{BlobKind, BlobRef};
use schema::records::PodInstance;
use schema::trust::{Authority, Credentials, KeyPair, LeafRequest, Peer, TrustReader};

use super::*;

fn certified(identity: &str) -> Caller {
    Caller::Certified(Peer { identity: identity.parse().unwrap(), key: format!("sha256:{identity}") })
}

/// Serves the API to this caller, at the reconciler with these credentials.
async fn serving(caller: Option<Caller>, trust: Option<TrustReader>, snapshot: SnapshotReader) -> String {
    let deps = ApiDeps { trust, ..deps(snapshot, &Arc::new(MemoryStore::new())) };
    let router = router(deps);
    let address = match caller {
        Some(caller) => bind_and_serve(router.layer(axum::Extension(caller))).await,
        None => bind_and_serve(router).await,
    };
    format!("http://{address}")
}

async fn get(url: &str) -> (u16, Value) {
    let answer = reqwest::get(url).await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

#[tokio::test]
async fn whoever_has_no_certificate_learns_how_to_get_one() {
    let url = serving(Some(Caller::Anonymous), None, SnapshotReader::fixed(with_web())).await;
    for path in ["/v1/pods", "/v1/status", "/", "/nothing", "/v1/blobs/x"] {
        let (status, body) = get(&format!("{url}{path}")).await;
        assert_eq!(status, 401, "{path}: {body}");
        assert!(body["help"].as_str().unwrap().contains("minik8s user add NAME"), "{body}");
    }
}

/// Credentials of a reconciler that has revoked the key of `user-eve`.
fn trust() -> TrustReader {
    let lifetime = SignedDuration::from_hours(1);
    let authority = Authority::create(lifetime, Timestamp::now()).unwrap();
    let (key, identity) = (KeyPair::generate().unwrap(), "reconciler-r1".parse().unwrap());
    let leaf = LeafRequest { identity: &identity, key: &key.public_key().unwrap(), addresses: &[], lifetime };
    let certificate = authority.sign(&leaf, Timestamp::now()).unwrap();
    let revoked = [("sha256:user-eve".to_owned(), Timestamp::MAX)].into();
    let trusted = vec![authority.certificate().clone()];
    TrustReader::fixed(Credentials::new(&key, certificate, trusted, revoked).unwrap())
}

#[tokio::test]
async fn a_revoked_key_opens_nothing() {
    for (name, expected) in [("user-ada", 200), ("user-eve", 401)] {
        let snapshot = SnapshotReader::fixed(with_web());
        let url = serving(Some(certified(name)), Some(trust()), snapshot).await;
        let (status, body) = get(&format!("{url}/v1/pods")).await;
        assert_eq!(status, expected, "{name}: {body}");
    }
}

/// Digest of a pod's content, which is on no reconciler's disk: whoever may read it learns that.
fn digest() -> String {
    "ab".repeat(32)
}

/// A pod with that content, not bound to a node yet.
fn with_content() -> (Snapshot, PodInstance) {
    let (mut snapshot, size) = (snapshot(), 1);
    let blob =
        BlobRef { digest: digest(), size, kind: BlobKind::File, texts: Vec::new(), source: String::new() };
    let mut object = put_object(&mut snapshot, "web", C2);
    object.files = [("web.txt".to_owned(), blob)].into();
    snapshot.objects.insert(object.reference(), versioned(object.clone()));
    let pod = PodInstance { files: object.files.clone(), ..instance_of(&object) };
    (snapshot, pod)
}

#[tokio::test]
async fn a_node_learns_nothing_of_content_that_is_not_for_it() {
    let (mut snapshot, pod) = with_content();
    bind(&mut snapshot, &pod, "n1");
    for (caller, expected) in [
        (None, "this reconciler does not have"),
        (Some(certified("node-n1")), "this reconciler does not have"),
        (Some(certified("node-n2")), "nothing in this cluster refers to"),
    ] {
        let url = serving(caller, None, SnapshotReader::fixed(snapshot.clone())).await;
        let (status, body) = get(&format!("{url}/v1/blobs/{}", digest())).await;
        assert_eq!(status, 404, "{body}");
        assert!(body["error"].as_str().unwrap().starts_with(expected), "{body}");
    }
}

/// The watch of a node may be ahead of that of the reconciler.
#[tokio::test]
async fn content_is_served_as_soon_as_the_binding_is_known() {
    let (mut snapshot, pod) = with_content();
    let (publisher, reader) = SnapshotReader::channel(snapshot.clone());
    let url = serving(Some(certified("node-n1")), None, reader).await;
    let asked = tokio::spawn(async move { get(&format!("{url}/v1/blobs/{}", digest())).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    bind(&mut snapshot, &pod, "n1");
    publisher.publish(snapshot);
    let (_, body) = asked.await.unwrap();
    assert!(body["error"].as_str().unwrap().starts_with("this reconciler does not have"), "{body}");
}
