//! ConfigMaps and their users: replaced pods, refused commits, and values on their way to the agents.

use std::io::Read as _;

use schema::codec::VALUE_MAX_BYTES;
use schema::content_refs::BlobKind;
use schema::kinds::Kind;
use schema::records::SourceState;

use crate::blobs::Blobs;
use crate::gitops::offline::compare;
use crate::gitops::tests::kit::{Cluster, Files, Repo, merge_of, pod};

fn map(name: &str, data: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {data}\n")
}

fn env(pod_name: &str, map: &str, more: &str) -> String {
    let of = format!("{{name: {map}, key: COLOUR{more}}}");
    pod(pod_name, "one") + &format!("    env: [{{name: C, valueFrom: {{configMapKeyRef: {of}}}}}]\n")
}

fn env_from(pod_name: &str, map: &str, more: &str) -> String {
    pod(pod_name, "one") + &format!("    envFrom: [{{configMapRef: {{name: {map}{more}}}}}]\n")
}

fn volume(pod_name: &str, map: &str, more: &str) -> String {
    pod(pod_name, "one") + &format!("  volumes: [{{name: v, configMap: {{name: {map}{more}}}}}]\n")
}

fn set(name: &str, map: &str) -> String {
    let template = format!(
        "{{metadata: {{labels: {{app: {name}}}}}, spec: {{containers: [{{name: m, image: i}}], volumes: [{{name: v, configMap: {{name: {map}}}}}]}}}}"
    );
    format!(
        "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {{name: {name}}}\nspec: {{selector: {{matchLabels: {{app: {name}}}}}, template: {template}}}\n"
    )
}

fn repo(files: &[(&str, String)]) -> Repo {
    let files: Files = files.iter().map(|(path, text)| ((*path).to_owned(), text.clone())).collect();
    Repo::new(files)
}

/// Rule and message of every violation in the status.
async fn said(cluster: &Cluster) -> Vec<String> {
    let status = cluster.status().await;
    let all = status.quarantined.iter().flat_map(|file| &file.violations);
    all.map(|one| format!("{}: {}", one.rule, one.message)).collect()
}

/// Fails without `ContentRef::Object` in `in_hash`.
#[tokio::test]
async fn a_changed_value_replaces_the_users_of_its_map_and_no_others() {
    let mut repo = repo(&[
        ("a.yaml", env("a", "conf", "")),
        ("b.yaml", volume("b", "conf", "")),
        ("c.yaml", env_from("c", "other", "")),
        ("d.yaml", pod("d", "one")),
        ("e.yaml", env("e", "none", ", optional: true")),
        ("f.yaml", set("f", "conf")),
        ("maps.yaml", map("conf", "{COLOUR: red}") + "---\n" + &map("other", "{COLOUR: red}")),
    ]);
    let base = repo.git().refname_to_id("refs/heads/main").unwrap().to_string();
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let first = cluster.objects().await;
    assert_eq!(said(&cluster).await, [""; 0]);
    assert_eq!(first.len(), 8);
    assert_eq!(first["a"].files["maps.yaml//ConfigMap/default/conf"].kind, BlobKind::Object);
    assert!(first["e"].files.is_empty());
    assert!(!serde_json::to_string(&first["conf"]).unwrap().contains("red"), "etcd holds no value");

    repo.set("maps.yaml", map("conf", "{COLOUR: blue}") + "---\n" + &map("other", "{COLOUR: red}"));
    let head = repo.commit("Blue");
    let review = compare(&merge_of(&repo.path(), &base, &head)).unwrap();
    let changes: Vec<_> = review.changes.iter().map(|c| format!("{} {}", c.action, c.name)).collect();
    assert_eq!(changes, ["update conf", "replace a", "replace b", "replace f"]);
    let shown = crate::gitops::review::text(&review, false);
    assert!(shown.contains("spec.content.data.COLOUR") && shown.contains("restarts 1 pod"), "{shown}");
    cluster.settle().await;
    let second = cluster.objects().await;
    for name in ["c", "d", "e", "other"] {
        assert_eq!(second[name], first[name], "{name}");
    }
    for name in ["a", "b", "f"] {
        assert_ne!(second[name].hash, first[name].hash, "{name}");
    }

    // The file of a map is not part of its content; and an optional map appears.
    repo.remove("maps.yaml");
    repo.set("moved.yaml", map("conf", "{COLOUR: blue}") + "---\n" + &map("other", "{COLOUR: red}"));
    repo.set("none.yaml", map("none", "{COLOUR: green}")).commit("Moved");
    cluster.settle().await;
    let third = cluster.objects().await;
    assert_eq!(third["a"].hash, second["a"].hash);
    assert_ne!(third["e"].hash, second["e"].hash);
    let before = cluster.store.revision();
    cluster.restart();
    cluster.settle().await;
    assert_eq!(cluster.store.revision(), before, "nothing changed, nothing is written");
    repo.remove("none.yaml").commit("And goes");
    cluster.settle().await;
    assert_eq!(cluster.objects().await["e"].hash, second["e"].hash);
}

/// Fails without the wishes in `links::references`.
#[tokio::test]
async fn what_a_map_cannot_give_is_refused_unless_it_is_optional() {
    let binary = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\nbinaryData: {COLOUR: cmVk}\ndata: {OTHER: x, 1st: y}\n";
    let at = "spec.containers[0].env[0].valueFrom.configMapKeyRef";
    for (user, wanted) in [
        (env("a", "nome", ""), vec![format!("dangling-target: {at}.name: there is no ConfigMap/default/nome")]),
        (
            env("a", "conf", ""),
            vec![format!(
                "dangling-target: {at}.key: key `COLOUR` of ConfigMap/default/conf is binary, so it can't be a variable"
            )],
        ),
        (
            env("a", "other", ""),
            vec![format!("dangling-target: {at}.key: ConfigMap/default/other has no key `COLOUR`")],
        ),
        (env("a", "other", ", optional: true"), vec![]),
        (env("a", "nome", ", optional: true"), vec![]),
        (env_from("a", "nome", ""), vec![
            "dangling-target: spec.containers[0].envFrom[0].configMapRef.name: there is no ConfigMap/default/nome".to_owned(),
        ]),
        (env_from("a", "nome", ", optional: true"), vec![]),
        (volume("a", "conf", ", items: [{key: COLOUR, path: c/d}]"), vec![]),
        (volume("a", "conf", ", items: [{key: COLUOR, path: c/d}]"), vec![
            "dangling-target: spec.volumes[0].configMap.items[0].key: ConfigMap/default/conf has no key `COLUOR`".to_owned(),
        ]),
        (volume("a", "conf", ", optional: true, items: [{key: COLUOR, path: c/d}]"), vec![]),
        (volume("a", "elsewhere", ""), vec![
            "dangling-target: spec.volumes[0].configMap.name: there is no ConfigMap/default/elsewhere".to_owned(),
        ]),
    ] {
        let elsewhere = map("elsewhere", "{}").replace("elsewhere}", "elsewhere, namespace: far}");
        let maps = [binary, &map("other", "{}"), &elsewhere].join("---\n");
        let repo = repo(&[("a.yaml", user.clone()), ("m.yaml", maps)]);
        let mut cluster = Cluster::new(&repo).await;
        cluster.settle().await;
        assert_eq!(said(&cluster).await, wanted, "{user}");
        assert_eq!(cluster.names().await.contains(&"a".to_owned()), wanted.is_empty(), "{user}");
    }
}

/// Fails without `Scope::frozen`.
#[tokio::test]
async fn what_is_in_use_is_not_removed_and_if_immutable_not_changed() {
    let fixed = |data: &str| map("conf", data) + "immutable: true\n";
    let mut repo = repo(&[
        ("a.yaml", env("a", "conf", "")),
        ("conf.yaml", fixed("{COLOUR: red}")),
        ("idle.yaml", map("idle", "{A: b}") + "immutable: true\n"),
    ]);
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let first = cluster.objects().await;
    for text in [fixed("{COLOUR: blue}"), map("conf", "{COLOUR: red}")] {
        repo.set("conf.yaml", text).commit("Change it");
        cluster.settle().await;
        assert_eq!(cluster.objects().await, first);
        let said = said(&cluster).await.join("\n");
        let what = "ConfigMap/default/conf is immutable and in use";
        assert!(said.contains("immutable") && said.contains(what), "{said}");
    }
    repo.remove("conf.yaml").commit("Remove it");
    cluster.settle().await;
    assert_eq!(cluster.objects().await, first);
    let what = "dangling-target: spec.containers[0].env[0].valueFrom.configMapKeyRef.name: ConfigMap/default/conf is removed by this commit";
    assert_eq!(said(&cluster).await, [what]);

    // The same while the user's own file can't be read.
    repo.set("a.yaml", env("a", "conf", "").replace("image", "imgae"))
        .set("conf.yaml", fixed("{COLOUR: blue}"));
    repo.commit("Unreadable");
    cluster.settle().await;
    assert_eq!(cluster.objects().await, first);

    repo.remove("conf.yaml");
    // With the user moved to another map, and a change to a map without users.
    repo.set("idle.yaml", map("idle", "{A: c}") + "immutable: true\n");
    repo.set("a.yaml", env("a", "conf2", "")).set("conf2.yaml", map("conf2", "{COLOUR: blue}"));
    repo.commit("Another name");
    cluster.settle().await;
    assert_eq!(said(&cluster).await, [""; 0]);
    assert_eq!(cluster.names().await, ["a", "conf2", "idle"]);
}

/// Fails without `held_content`: the pod has the new value, and the map does not.
#[tokio::test]
async fn users_wait_for_a_map_whose_file_waits() {
    let mut repo = repo(&[("a.yaml", env("a", "conf", "")), ("m.yaml", map("conf", "{COLOUR: red}"))]);
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let first = cluster.objects().await;
    let bad = env("b", "nome", "");
    repo.set("m.yaml", map("conf", "{COLOUR: blue}") + "---\n" + &bad).commit("Half of it");
    cluster.settle().await;
    assert_eq!(cluster.objects().await, first);
    let said = said(&cluster).await.join("\n");
    assert!(said.contains("ConfigMap/default/conf is in m.yaml, which can't be applied"), "{said}");
    // An unreadable document gives no value: users stay unchanged and out of quarantine.
    repo.set("m.yaml", map("conf", "{COLOUR: [blue]}")).commit("Unreadable");
    cluster.settle().await;
    assert_eq!(cluster.objects().await, first);
    assert_eq!(cluster.status().await.state, SourceState::Degraded);
    assert_eq!(cluster.status().await.quarantined.len(), 1);
}

/// Fails without the keys of `envFrom` in the size, and with every key in the record of a user that mounts them
/// as files.
#[tokio::test]
async fn keys_that_do_not_fit_into_the_record_of_their_user_are_a_violation() {
    let keys: Vec<String> = (0..480).map(|n| format!("{}{n}: x", "K".repeat(80))).collect();
    let big = map("conf", &format!("{{{}}}", keys.join(", ")));
    let twice = |text: String| {
        text.replace(
            "containers:\n",
            "containers:\n  - {name: x, image: app, envFrom: [{configMapRef: {name: more}}]}\n",
        )
    };
    let more = big.replace("name: conf", "name: more");
    let repo = repo(&[
        ("a.yaml", twice(env_from("a", "conf", ""))),
        ("b.yaml", volume("b", "conf", "")),
        ("c.yaml", env_from("c", "conf", "")),
        ("conf.yaml", big),
        ("more.yaml", more),
    ]);
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let said = said(&cluster).await;
    assert!(matches!(&said[..], [one] if one.starts_with("too-large: the object has ")), "{said:?}");
    assert_eq!(cluster.names().await, ["b", "c", "conf", "more"]);
    let objects = cluster.objects().await;
    let keys_of = |name: &str| objects[name].files.values().next().unwrap().texts.len();
    assert_eq!((keys_of("b"), keys_of("c")), (0, 480));
}

/// Fails without `values_of` in `Blobs::make`.
#[tokio::test]
async fn a_megabyte_travels_by_digest() {
    let big: String = (0..64 * 1024).map(|line| format!("line {line:010}\n")).collect();
    assert_eq!(big.len(), 1024 * 1024);
    let text = map("conf", "") + "  big: |\n    " + &big.trim_end().replace('\n', "\n    ") + "\n";
    let repo = repo(&[("a.yaml", volume("a", "conf", "")), ("conf.yaml", text)]);
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let objects = cluster.objects().await;
    let object = serde_json::to_string(&objects["conf"]).unwrap();
    assert!(object.contains("1048576 bytes") && object.len() < VALUE_MAX_BYTES / 8, "{object}");
    let blob = objects["a"].files.values().next().unwrap();
    assert!(blob.texts.is_empty(), "a file needs no key in the pod's record");
    let snapshot = cluster.reflect().await;
    let (mut file, size) = Blobs::new(&repo.state()).open(snapshot, &blob.digest).unwrap();
    let mut archive = Vec::new();
    file.read_to_end(&mut archive).unwrap();
    assert_eq!((archive.len() as u64, size), (blob.size, blob.size));
    assert!(archive.windows(big.len()).any(|part| part == big.as_bytes()), "byte for byte");
    assert!(objects["conf"].kind() == Kind::ConfigMap && objects["conf"].files.is_empty());
}
