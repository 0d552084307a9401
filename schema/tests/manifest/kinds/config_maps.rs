//! ConfigMaps, and the fields of pods that name them: valid ones with their loaded form, and the violations of
//! invalid
//! ones.

use schema::kinds::content::Values;
use schema::kinds::{Kind, Resource};
use schema::manifest::values_of;

use crate::cases::{Case, check, messages};
use crate::{container, load, rules, with};

/// Output of `kubectl create configmap`.
const KUBERNETES: &str = "apiVersion: v1
kind: ConfigMap
metadata:
  creationTimestamp: null
  name: web
binaryData:
  logo.png: |
    iVBO
    Rw0KGgo=
data:
  LOG_LEVEL: info
  empty:
  nginx.conf: |
    server {
      listen 80;
    }
immutable: true
";

#[test]
fn the_object_has_digests_in_place_of_values_and_the_values_can_be_read_again() {
    let loaded = load(KUBERNETES);
    assert_eq!(rules(&loaded), [""; 0]);
    let document = &loaded.documents[0];
    let Resource::ConfigMap(map) = &document.object.resource else { panic!("a ConfigMap") };
    assert!(map.data.is_empty() && map.binary_data.is_empty() && map.immutable);
    let content = map.content.as_ref().unwrap();
    assert_eq!(content.data["LOG_LEVEL"], "4 bytes, sha256 06271baf4953");
    assert_eq!(content.data["empty"], "0 bytes, sha256 e3b0c44298fc");
    assert!(content.has_key("logo.png") && !content.data.contains_key("logo.png"));
    let json = serde_json::to_value(&document.object.resource).unwrap();
    let again = Resource::from_json(Kind::ConfigMap, json["spec"].clone()).unwrap();
    assert_eq!(again, document.object.resource);

    let other = format!("{}---\n{KUBERNETES}", KUBERNETES.replace("info", "debug").replace("web", "api"));
    let Values { texts, binaries } = values_of("a.yaml", other.as_bytes(), &document.reference).unwrap();
    assert_eq!(texts["LOG_LEVEL"], b"info");
    assert_eq!(texts["nginx.conf"], b"server {\n  listen 80;\n}\n");
    assert_eq!(binaries["logo.png"], b"\x89PNG\r\n\x1a\n");
    assert_eq!(values_of("a.yaml", b"kind: Pod\nmetadata: {name: web}\n", &document.reference), None);
}

/// Red with the leading zero read as a decimal number.
#[test]
fn modes_are_octal_with_a_leading_zero_as_in_kubernetes() {
    for (written, mode) in [("0640", 0o640), ("0o640", 0o640), ("416", 0o640), ("0", 0)] {
        let text = with(&format!("volumes: [{{name: v, configMap: {{name: web, defaultMode: {written}}}}}]"));
        let loaded = load(&text);
        assert_eq!(rules(&loaded), [""; 0], "{written}");
        let Resource::Pod(pod) = &loaded.documents[0].object.resource else { panic!("a pod") };
        assert_eq!(pod.volumes[0].files().unwrap().mode, mode, "{written}");
    }
    let text = with("volumes: [{name: v, configMap: {name: web}}]");
    let Resource::Pod(pod) = &load(&text).documents[0].object.resource else { panic!("a pod") };
    assert_eq!(pod.volumes[0].files().unwrap().mode, 0o644);
}

fn cases() -> Vec<Case> {
    let map = |rule, fields: &str| {
        (rule, format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: web}}\n{fields}\n"))
    };
    let volume =
        |rule, volume: &str| (rule, with(&format!("volumes: [{{name: v, configMap: {{{volume}}}}}]")));
    let long = "k".repeat(254);
    vec![
        map("unknown-field", "§dta: {a: b}"),
        map("unknown-field", "§spec: {data: {a: b}}"),
        map("no-effect", "§status: {a: b}"),
        map("wrong-type", "data: {PORT: §8080}"),
        map("wrong-type", "data: {a: §[b]}"),
        map("wrong-type", "binaryData: {a: §'%%%'}"),
        map("wrong-type", "immutable: §maybe"),
        map("invalid-name", "data: {§a/b: c}"),
        map("invalid-name", "data: {§..: c}"),
        map("invalid-name", &format!("data: {{§{long}: c}}")),
        map("duplicate-name", "data: {a: b}\nbinaryData: {§a: Yg==}"),
        map(
            "literal-secret",
            "data: {LOG: info, §DB_PASSWORD: hunter2, reset-password: 'Dear $NAME, this is yours'}",
        ),
        map("literal-secret", "binaryData: {§key: LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQp4Cg==}"),
        map("too-large", &format!("§data: {{a: {}, b: c}}", "x".repeat(1024 * 1024))),
        map(
            "too-large",
            &format!("§data:\n{}", (0..501).map(|n| format!("  k{n}: v\n")).collect::<String>()),
        ),
        volume("out-of-range", "name: web, defaultMode: §01000"),
        volume("wrong-type", "name: web, defaultMode: §0999"),
        volume("wrong-type", "name: web, defaultMode: §'0644'"),
        volume("invalid-path", "name: web, items: [{key: a, path: §../b}]"),
        volume("invalid-path", "name: web, items: [{key: a, path: §/b}]"),
        volume("invalid-name", "name: web, items: [{key: §a/b, path: b}]"),
        volume("duplicate-name", "name: web, items: [{key: a, path: b}, {key: c, path: §b}]"),
        volume("duplicate-name", "name: web, items: [{key: a, path: b}, {key: c, path: §./b}]"),
        volume("invalid-path", "name: web, items: [{key: a, path: b}, {key: c, path: §b/c}]"),
        volume("invalid-path", "name: web, items: [{key: a, path: b/c}, {key: c, path: §b}]"),
        volume("invalid-name", "name: §a/b"),
        ("exclusive", with("volumes: [{name: v, secret: {secretName: s}, §configMap: {name: web}}]")),
        ("invalid-env-name", container("envFrom: [{prefix: §1a, configMapRef: {name: web}}]")),
        ("exclusive", container("envFrom: [{configMapRef: {name: web}, §secretRef: {name: s}}]")),
        ("exclusive", container("envFrom: [§{prefix: A_}]")),
        ("invalid-name", container("envFrom: [{secretRef: {name: §a/b}}]")),
        (
            "exclusive",
            container(
                "env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}, §configMapKeyRef: {name: w, key: k}}}]",
            ),
        ),
        ("invalid-name", container("env: [{name: A, valueFrom: {configMapKeyRef: {name: w, key: §a/b}}}]")),
    ]
}

#[test]
fn each_mistake_is_reported_at_its_place() {
    check(&cases());
}

#[test]
fn messages_say_what_is_wrong_and_what_to_do() {
    let cases: Vec<Case> = cases().into_iter().filter(|(_, text)| text.len() < 1000).collect();
    insta::assert_snapshot!(messages(&cases));
}
