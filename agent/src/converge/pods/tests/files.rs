//! Files of the repository and secrets in what is planned: where they are, and that no plan has a secret.

use std::path::Path;

use schema::files::{BlobKind, BlobRef};
use schema::kinds::pod::PodSpec;
use schema::records::Binding;

use super::super::render::{self, Placement, VolumePrep};
use super::{binding, node};

fn blob(digit: &str, kind: BlobKind) -> BlobRef {
    BlobRef { digest: digit.repeat(64), size: 1024, kind }
}

fn pod() -> Binding {
    let spec: PodSpec = serde_json::from_value(serde_json::json!({
        "containers": [{
            "name": "main", "image": "app:1", "args": ["--password=$(PASSWORD)"],
            "env": [
                {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "pw"}}},
                {"name": "URL", "value": "pg://$(PASSWORD)@db"},
            ],
            "volumeMounts": [
                {"name": "conf", "mountPath": "/etc/app"},
                {"name": "conf", "mountPath": "/one", "subPath": "a.conf"},
                {"name": "file", "mountPath": "/etc/motd"},
                {"name": "secret", "mountPath": "/run/db"},
            ],
        }],
        "volumes": [
            {"name": "conf", "repo": {"path": "./config/"}},
            {"name": "file", "repo": {"path": "motd.txt"}},
            {"name": "secret", "secret": {"secretName": "db"}},
        ],
        "securityContext": {"fsGroup": 7},
    }))
    .unwrap();
    let mut pod = binding("app", spec);
    pod.pod.files = [
        ("config".to_owned(), blob("a", BlobKind::Folder)),
        ("motd.txt".to_owned(), blob("b", BlobKind::File)),
        ("secrets/db.age".to_owned(), blob("c", BlobKind::Secret)),
    ]
    .into();
    pod
}

#[test]
fn what_comes_from_the_repository_is_mounted_read_only_from_where_it_is_cached() {
    let (node, binding) = (node(), pod());
    let at = Placement { node: &node, binding: &binding, address: None, ports: &[] };
    let rendered = render::container(at, &binding.pod.spec.containers[0], 0, 0).unwrap();
    let blobs = Path::new("/nonexistent/state/agent/blobs");
    let sources: Vec<_> = rendered.new.mounts.iter().map(|mount| mount.source.clone()).collect();
    assert_eq!(sources[0], blobs.join("a".repeat(64)));
    assert_eq!(sources[2], blobs.join("b".repeat(64)).join("motd.txt"));
    assert!(rendered.new.mounts.iter().all(|mount| mount.read_only), "{:?}", rendered.new.mounts);
    assert!(!rendered.sub_paths[0].create, "nothing is ever made in what is shared");
    let [VolumePrep::Secret { name, group, .. }] = &render::volumes(at)[..] else { panic!("one is made") };
    assert_eq!((name.as_str(), *group), ("db", Some(7)));
    let label = render::pause(at).labels["minik8s.io/files"].clone();
    assert_eq!(label, ["a", "b", "c"].map(|digit| digit.repeat(64)).join(","));
}

/// Red with the `$(NAME)` of a later variable expanded to nothing.
#[test]
fn a_plan_has_markers_where_secrets_will_be() {
    let (node, binding) = (node(), pod());
    let at = Placement { node: &node, binding: &binding, address: None, ports: &[] };
    let rendered = render::container(at, &binding.pod.spec.containers[0], 0, 0).unwrap();
    let [secret] = &rendered.secrets[..] else { panic!("one secret") };
    assert_eq!((secret.name.as_str(), secret.key.as_str()), ("db", "pw"));
    let marker = &secret.marker;
    let env = [format!("PASSWORD={marker}"), format!("URL=pg://{marker}@db")];
    assert_eq!(rendered.new.env, env);
    assert_eq!(rendered.new.args, [format!("--password={marker}")]);
}

#[test]
fn files_that_the_pod_does_not_bring_and_paths_below_a_file_are_told() {
    let (node, mut binding) = (node(), pod());
    binding.pod.files.remove("config");
    let at = Placement { node: &node, binding: &binding, address: None, ports: &[] };
    let why = render::container(at, &binding.pod.spec.containers[0], 0, 0).unwrap_err();
    assert!(why.contains("./config/"), "{why}");
    let mut binding = pod();
    let mut spec = (*binding.pod.spec).clone();
    spec.containers[0].volume_mounts[2].sub_path = Some("x".into());
    binding.pod.spec = spec.into();
    let at = Placement { node: &node, binding: &binding, address: None, ports: &[] };
    let why = render::container(at, &binding.pod.spec.containers[0], 0, 0).unwrap_err();
    assert!(why.contains("single file"), "{why}");
}
