//! Volumes and variables whose content comes from secrets, ConfigMaps and the pod itself.

use schema::content_refs::{ContentRef, KeyUse};
use schema::kinds::Kind;
use schema::kinds::Resource;
use schema::kinds::pod::PodSpec;
use schema::object::Object;
use schema::violation::OwnedStep;

use crate::cases::{Case, check, messages};
use crate::{container, load, rules, with};

fn spec(text: &str) -> PodSpec {
    let loaded = load(text);
    assert_eq!(rules(&loaded), [""; 0], "{text}");
    let Resource::Pod(pod) = &loaded.documents[0].object.resource else { panic!("a pod") };
    PodSpec::clone(pod)
}

/// `a.b[0].c`.
fn dotted(path: &[OwnedStep]) -> String {
    let step = |step: &OwnedStep| match step {
        OwnedStep::Field(name) => format!(".{name}"),
        OwnedStep::Index(index) => format!("[{index}]"),
    };
    path.iter().map(step).collect::<String>().trim_start_matches('.').to_owned()
}

const ALL: &str = r#"volumes:
- name: tls
  secret: {secretName: cert, defaultMode: 0440, optional: true, items: [{key: tls.crt, path: cert.pem, mode: 0444}]}
- name: plain
  secret: {secretName: db}
- name: me
  downwardAPI:
    items:
    - {path: labels, fieldRef: {apiVersion: v1, fieldPath: metadata.labels}}
    - {path: note, mode: 0600, fieldRef: {fieldPath: "metadata.annotations['note']"}}
    - {path: node, fieldRef: {fieldPath: spec.nodeName}}
    - {path: deep/memory, resourceFieldRef: {containerName: web, resource: limits.memory, divisor: 1Mi}}
- name: all
  projected:
    defaultMode: 0400
    sources:
    - secret: {name: db, items: [{key: password, path: db/password}]}
    - configMap: {name: web, optional: true}
    - downwardAPI: {items: [{path: db/cpu, resourceFieldRef: {containerName: web, resource: requests.cpu, divisor: "0"}}]}
- name: none
  projected: {sources: []}
"#;

#[test]
fn every_source_is_read_and_names_its_content_with_its_place() {
    let pod = spec(&with(ALL));
    let modes: Vec<u32> =
        pod.volumes.iter().filter_map(|volume| volume.files()).map(|files| files.mode).collect();
    assert_eq!(
        modes,
        [0o440, 0o400, 0o644, 0o400, 0o644],
        "a secret's files are for their owner unless written"
    );
    let secrets: Vec<bool> = pod.volumes.iter().map(|volume| volume.files().unwrap().has_secret()).collect();
    assert_eq!(secrets, [true, true, false, true, false]);

    let uses = Resource::from(pod.clone()).files();
    let uses: Vec<_> = uses.iter().map(|one| (dotted(&one.field), &one.content, one.is_optional)).collect();
    let secret = |name: &str| ContentRef::Secret(name.to_owned());
    let at = |place: &str| format!("spec.volumes{place}");
    assert_eq!(
        uses,
        [
            (at("[0].secret.secretName"), &secret("cert"), true),
            (at("[1].secret.secretName"), &secret("db"), false),
            (at("[3].projected.sources[0].secret.name"), &secret("db"), false),
            (
                at("[3].projected.sources[1].configMap.name"),
                &ContentRef::Object(Kind::ConfigMap, "web".to_owned()),
                true
            ),
        ]
    );
    let keys = Resource::from(pod.clone()).files().into_iter().flat_map(|one| one.keys);
    let keys: Vec<_> = keys.map(|(at, key)| (dotted(&at), key)).collect();
    let key = |place: &str, key: &str| (at(place), KeyUse::File(key.to_owned()));
    assert_eq!(
        keys,
        [
            key("[0].secret.items[0].key", "tls.crt"),
            key("[3].projected.sources[0].secret.items[0].key", "password")
        ]
    );

    // 0 is the default, as in Kubernetes.
    let sources = &pod.volumes[3].projected.as_ref().unwrap().sources;
    let file = &sources[2].downward_api.as_ref().unwrap().items[0];
    assert_eq!(file.resource_field_ref.as_ref().unwrap().divisor, None);
    let again: PodSpec = serde_json::from_value(serde_json::to_value(&pod).unwrap()).unwrap();
    assert_eq!(again, pod);
}

#[test]
fn variables_take_optional_keys_and_amounts_and_paths_take_variables() {
    let pod = spec(&container(
        "env:\n- {name: T, valueFrom: {secretKeyRef: {name: api, key: token, optional: true}}}\n\
         - {name: M, valueFrom: {resourceFieldRef: {resource: limits.memory}}}\n\
         - {name: C, valueFrom: {resourceFieldRef: {containerName: web, resource: requests.cpu, divisor: 1m}}}\n\
         volumeMounts:\n- {name: v, mountPath: /v, subPathExpr: $(T)/x}\nvolumeMounts2: 0",
    )
    .replace("    volumeMounts2: 0\n", "  volumes:\n  - {name: v, emptyDir: {}}\n"));
    assert_eq!(pod.containers[0].volume_mounts[0].sub_path_expr.as_deref(), Some("$(T)/x"));
    let uses = Resource::from(pod).files();
    assert!(uses[0].is_optional, "{uses:?}");
}

/// An upgrade must not replace running pods: what was written before has the same template.
#[test]
fn a_pod_without_the_new_fields_is_stored_as_before() {
    let pod = spec(&with(
        "  env:\n  - {name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}\nvolumes:\n- {name: v, secret: {secretName: s}}",
    ));
    let json = serde_json::to_value(&pod).unwrap();
    assert_eq!(json["volumes"][0], serde_json::json!({"name": "v", "secret": {"secretName": "s"}}));
    let key = serde_json::json!({"secretKeyRef": {"name": "s", "key": "k"}});
    assert_eq!(json["containers"][0]["env"][0]["valueFrom"], key);
}

/// Files of a running container never change: other labels in them mean another pod.
#[test]
fn labels_and_annotations_are_in_the_hash_if_they_are_in_a_file() {
    let hash = |path: &str, metadata: &str| {
        let volume = format!(
            "volumes: [{{name: v, downwardAPI: {{items: [{{path: a, fieldRef: {{fieldPath: {path}}}}}]}}}}]"
        );
        let text = with(&volume).replace("  name: web\nspec", &format!("  name: web\n  {metadata}\nspec"));
        let loaded = load(&text);
        assert_eq!(rules(&loaded), [""; 0], "{text}");
        let document = &loaded.documents[0];
        let object = &document.object;
        assert_eq!(document.hash, Object::hash_of(&object.metadata, &object.resource, &document.files));
        document.hash.clone()
    };
    let label = "\"metadata.labels['a']\"";
    let [one, other, more] = ["labels: {a: x}", "labels: {a: other}", "labels: {a: x, b: z}"];
    assert_ne!(hash("metadata.labels", one), hash("metadata.labels", other));
    assert_ne!(hash(label, one), hash(label, other));
    assert_eq!(hash(label, one), hash(label, more), "another label is not in the file");
    assert_eq!(hash("metadata.name", one), hash("metadata.name", other));
    let [one, other] = ["annotations: {a: x}", "annotations: {a: other}"];
    assert_ne!(hash("metadata.annotations", one), hash("metadata.annotations", other));
    assert_eq!(hash("metadata.labels", one), hash("metadata.labels", other));
}

fn cases() -> Vec<Case> {
    let volume = |rule, source: &str| (rule, with(&format!("volumes: [{{name: v, {source}}}]")));
    let projected = |rule, sources: &str| volume(rule, &format!("projected: {{sources: [{sources}]}}"));
    let file = |rule, file: &str| volume(rule, &format!("downwardAPI: {{items: [{{{file}}}]}}"));
    let env = |rule, source: &str| (rule, container(&format!("env: [{{name: A, valueFrom: {{{source}}}}}]")));
    let mount = |rule, mount: &str| {
        (
            rule,
            with(&format!("  volumeMounts: [{{name: v, mountPath: /v, {mount}}}]\nvolumes: [{{name: v}}]")),
        )
    };
    let name = "fieldRef: {fieldPath: metadata.name}";
    vec![
        volume("out-of-range", "secret: {secretName: s, defaultMode: §01000}"),
        volume("invalid-name", "secret: {secretName: s, items: [{key: §a/b, path: b}]}"),
        volume("invalid-path", "secret: {secretName: s, items: [{key: a, path: §../b}]}"),
        volume("invalid-path", "secret: {secretName: s, items: [{key: a, path: §..b}]}"),
        volume("duplicate-name", "secret: {secretName: s, items: [{key: a, path: b}, {key: c, path: §b}]}"),
        volume("exclusive", "secret: {secretName: s}, §projected: {sources: []}"),
        volume("exclusive", "configMap: {name: s}, §downwardAPI: {items: []}"),
        projected("exclusive", "§{}"),
        projected("exclusive", "{secret: {name: s}, §configMap: {name: m}}"),
        projected("missing-field", "{§secret: {items: []}}"),
        projected("unknown-field", "{secret: {§secretName: s, name: s}}"),
        projected("invalid-name", "{configMap: {name: §a/b}}"),
        projected("unsupported-field", "{§serviceAccountToken: {path: token}}"),
        projected("unsupported-field", "{§clusterTrustBundle: {path: a}}"),
        projected(
            "duplicate-name",
            "{secret: {name: s, items: [{key: a, path: b}]}}, {configMap: {name: m, items: [{key: a, path: §./b}]}}",
        ),
        projected(
            "duplicate-name",
            &format!(
                "{{secret: {{name: s, items: [{{key: a, path: b}}]}}}}, {{downwardAPI: {{items: [{{path: §b, {name}}}]}}}}"
            ),
        ),
        projected(
            "invalid-path",
            "{secret: {name: s, items: [{key: a, path: b}]}}, {configMap: {name: m, items: [{key: a, path: §b/c}]}}",
        ),
        volume("exclusive", "downwardAPI: {items: [§{path: a}]}"),
        file(
            "exclusive",
            &format!("path: a, {name}, §resourceFieldRef: {{containerName: web, resource: limits.cpu}}"),
        ),
        file("invalid-path", &format!("path: §/a, {name}")),
        file("field-path", "path: a, fieldRef: {fieldPath: §metadata.whoops}"),
        file("field-path", "path: a, fieldRef: {fieldPath: §\"metadata.annotations['a b']\"}"),
        file("required", "path: a, §resourceFieldRef: {resource: limits.cpu}"),
        file("not-found", "path: a, resourceFieldRef: {containerName: §db, resource: limits.cpu}"),
        env("field-path", "fieldRef: {fieldPath: §metadata.labels}"),
        env("not-found", "resourceFieldRef: {containerName: §db, resource: limits.cpu}"),
        env("unknown-value", "resourceFieldRef: {resource: §limits.ephemeral-storage}"),
        env("unknown-value", "resourceFieldRef: {resource: §limits.disk}"),
        env("unknown-value", "resourceFieldRef: {resource: limits.cpu, divisor: §1Mi}"),
        env("unknown-value", "resourceFieldRef: {resource: limits.memory, divisor: §1m}"),
        env("quantity", "resourceFieldRef: {resource: limits.memory, divisor: §some}"),
        env("exclusive", "fieldRef: {fieldPath: metadata.name}, §resourceFieldRef: {resource: limits.cpu}"),
        env("unsupported-field", "§fileKeyRef: {path: a, key: b, volumeName: v}"),
        mount("exclusive", "subPath: a, §subPathExpr: $(A)"),
        mount("invalid-path", "subPathExpr: §/$(A)"),
        mount("invalid-path", "subPathExpr: §$(A)/../b"),
    ]
}

#[test]
fn each_mistake_is_reported_at_its_place() {
    check(&cases());
}

/// Words that people search for.
#[test]
fn messages_are_those_of_kubernetes() {
    let all = messages(&cases());
    for part in [
        "projected.sources[1].configMap.items[0].path: Invalid value: `./b`: conflicting duplicate paths",
        "projected.sources[0].serviceAccountToken: a Kubernetes field that Minik8s does not support (there is no API of \
         Kubernetes that pods could log in to)",
        "projected.sources[0].clusterTrustBundle: a Kubernetes field that Minik8s does not support (there is no API of \
         Kubernetes that has bundles: put the certificates into a ConfigMap)",
        "only divisor's values 1m, 1 are supported with the cpu resource",
        "subPathExpr and subPath are mutually exclusive",
        "secret.items[0].path: Invalid value: `..b`: must not start with '..'",
        "containerName: Not found: `db` (the pod's containers: `web`)",
        "Unsupported value: `limits.ephemeral-storage` (the disk of a node is not divided)",
    ] {
        assert!(all.contains(part), "{part}:\n{all}");
    }
}
