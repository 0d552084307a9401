//! Tests of the routes for desired objects.

use schema::manifest::load_file;
use schema::object::Provenance;

use super::*;

const SHOP: &str = "\
apiVersion: v1
kind: Service
metadata: {name: shop, labels: {tier: front}}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web, namespace: lab, labels: {tier: back}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: app, image: \"web:1\"}]}}
---
apiVersion: minik8s.io/v1
kind: Cluster
metadata: {name: cluster}
spec: {schedulerStrategy: spread}
";

/// A snapshot with a running pod `web`, a service, a set in another namespace and the Cluster object.
fn with_objects() -> Snapshot {
    let mut snapshot = with_web();
    let loaded = load_file("shop.yaml", SHOP.as_bytes());
    assert!(!loaded.has_errors() && loaded.documents.len() == 3, "{:#?}", loaded.violations);
    for document in loaded.documents {
        let (source, commit, author) = ("main".to_owned(), C2.to_owned(), "Ada <ada@example.org>".to_owned());
        let from = Provenance { source, commit, author, file: "shop.yaml".to_owned(), line: document.line };
        let object = Arc::unwrap_or_clone(document.object).into_object(from, 1);
        snapshot.objects.insert(object.reference(), versioned(object));
    }
    snapshot
}

#[tokio::test]
async fn objects_come_as_they_lie_in_etcd_as_rows_and_in_full() {
    let api = Api::over(with_objects()).await;
    for (path, pointer, wanted) in [
        ("/v1/objects", "/items/0/object/kind", "\"Cluster\""),
        ("/v1/objects", "/items/0/modRevision", "1"),
        ("/v1/objects", "/items/0/createRevision", "1"),
        ("/v1/objects?source=main&namespace=lab&selector=tier%3Dback", "/items/0/object/spec/replicas", "2"),
        ("/v1/objects?source=other", "/items", "[]"),
        ("/v1/objects/Service", "/items/0/name", "\"shop\""),
        ("/v1/objects/service", "/items/0/file", "\"shop.yaml\""),
        ("/v1/objects/ReplicaSet", "/items/0/line", "6"),
        ("/v1/objects/ReplicaSet", "/items/0/health", "\"Progressing\""),
        ("/v1/objects/ReplicaSet?namespace=default", "/items", "[]"),
        ("/v1/objects/Service?selector=tier%21%3Dfront", "/items", "[]"),
        ("/v1/objects/all?namespace=lab&selector=tier", "/items/0/kind", "\"ReplicaSet\""),
        ("/v1/objects/Service/default/shop", "/spec/ports/0/targetPort", "80"),
        ("/v1/objects/Service/default/shop", "/apiVersion", "\"v1\""),
        ("/v1/objects/replicaset/lab/web", "/generation", "1"),
        ("/v1/objects/Pod/default/web", "/health", "\"Healthy\""),
        // Cluster-scoped objects are found under any namespace.
        ("/v1/objects/Cluster/lab/cluster", "/spec/schedulerStrategy", "\"spread\""),
    ] {
        let (status, body) = api.get(path).await;
        assert_eq!(status, 200, "{path}: {body}");
        assert_eq!(body.pointer(pointer).map(ToString::to_string).as_deref(), Some(wanted), "{path}: {body}");
    }
    let all = api.get("/v1/objects/all").await.1;
    assert_eq!(all["items"].as_array().map(Vec::len), Some(4), "{all}");
}

#[tokio::test]
async fn wrong_questions_about_objects_say_what_is_right() {
    let api = Api::over(with_objects()).await;
    for (path, code, words) in [
        ("/v1/objects/Gizmo", 404, "Gizmo"),
        ("/v1/objects/Gizmo/default/a", 404, "Gizmo"),
        ("/v1/objects/Service/default/nobody", 404, "there is no Service nobody in namespace default"),
        ("/v1/objects/Cluster/default/nobody", 404, "there is no Cluster nobody"),
        ("/v1/objects/Service/-x/shop", 400, "-x"),
        ("/v1/objects/Service/default/..%2f..%2fleader", 400, "leader"),
        ("/v1/objects?selector=%21%21", 400, "!!"),
        ("/v1/objects?kind=Service", 400, "kind"),
        ("/v1/objects/Service?namespace=a/b", 400, "a/b"),
        ("/v1/objects/Service/default", 404, "/v1/objects/Service/default"),
    ] {
        let (status, body) = api.get(path).await;
        assert_eq!(status, code, "{path}: {body}");
        assert!(body["error"].as_str().is_some_and(|text| text.contains(words)), "{path}: {body}");
        assert!(body["help"].as_str().is_some_and(|text| !text.is_empty()), "{path}: {body}");
    }
    let api = Api::over(Snapshot::default()).await;
    for path in ["/v1/objects", "/v1/objects/all", "/v1/objects/Service/default/shop"] {
        assert_eq!(api.get(path).await.0, 503, "{path}");
    }
}
