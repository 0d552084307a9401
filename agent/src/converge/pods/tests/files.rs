//! Repository files and secrets in plans: their locations, and plans without any secret.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;

use schema::content_refs::{BlobKind, BlobRef, ContentRef};
use schema::kinds::pod::{KeyToPath, PodSpec};
use schema::records::Binding;
use schema::testing::pod_spec;

use super::super::container::rendered::HIDDEN_MESSAGE;
use super::crash::Rig;
use super::{binding, node};
use crate::converge::pods::container::render;
use crate::converge::pods::facts::{ExitStatus, Observed, Placement, State};
use crate::converge::pods::sandbox;
use crate::converge::pods::status::wanted;
use crate::converge::pods::steps::{Decision, DecisionReason};
use crate::converge::pods::volume::spec::{FilesSource, FilesVolumeSpec, VolumeFile, VolumePrep};
use crate::converge::pods::volume::{self, folders, prepare};
use crate::names;
use crate::worlds::docker::Exit;

fn blob(digit: &str, kind: BlobKind) -> BlobRef {
    BlobRef { digest: digit.repeat(64), size: 1024, kind, texts: Vec::new(), source: String::new() }
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
    let [VolumePrep::Files(files)] = &volume::render::volumes(at)[..] else { panic!("one is made") };
    let of = ContentRef::Secret("db".to_owned());
    assert_eq!(files.sources, [FilesSource::Values { of, items: Vec::new(), is_optional: false }]);
    assert_eq!((files.group, files.mode, files.is_secret), (Some(7), 0o400, true));
    let label = sandbox::render::pause(at).labels["minik8s.io/files"].clone();
    assert_eq!(label, ["a", "b", "c"].map(|digit| digit.repeat(64)).join(","));
}

/// Red with the `$(NAME)` of a later variable expanded to nothing.
#[test]
fn a_plan_has_markers_where_secrets_will_be() {
    let (node, binding) = (node(), pod());
    let at = Placement { node: &node, binding: &binding, address: None, ports: &[] };
    let rendered = render::container(at, &binding.pod.spec.containers[0], 0, 0).unwrap();
    let [secret] = &rendered.values[..] else { panic!("one secret") };
    assert_eq!((&secret.source, secret.key.as_str()), (&ContentRef::Secret("db".to_owned()), "pw"));
    let marker = &secret.marker;
    let env = [format!("PASSWORD={marker}"), format!("URL=pg://{marker}@db")];
    assert_eq!(rendered.new.env, env);
    assert_eq!(rendered.new.args, [format!("--password={marker}")]);
}

#[test]
fn files_that_the_pod_does_not_bring_and_paths_below_a_file_are_reported() {
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

/// Red with the engine's message unchanged.
#[test]
fn what_docker_says_of_a_failed_start_is_not_shown_where_a_secret_may_be_in_it() {
    let (mut world, mut binding) = (super::wants(&[]), pod());
    let shown = |world: &Observed, binding: &Binding| {
        let facts = &world.pods[&binding.pod.uid];
        let decision = Decision::idle(binding.pod.reference(), DecisionReason::Finished);
        let seen =
            wanted::WantedPod { node: &world.node, binding, facts, decision: &decision, lacks_image: false };
        serde_json::to_string(&wanted::wanted_status(seen, None, super::at(1))).unwrap()
    };
    let State::Exited(end) = super::exited(127, 0, 0) else { panic!("it is exited") };
    let error = "exec: \"hunter2\": executable file not found".to_owned();
    let failed = super::container("main", 0, State::Exited(ExitStatus { error, started_at: None, ..end }));
    world.pods.insert(binding.pod.uid.clone(), super::facts(&binding, Vec::new(), vec![failed]));
    let hidden = shown(&world, &binding);
    assert!(!hidden.contains("hunter2") && hidden.contains(HIDDEN_MESSAGE), "{hidden}");
    let State::Exited(end) = super::exited(1, 0, 0) else { panic!("it is exited") };
    let wrote = "login hunter2 refused".to_owned();
    let crashed = super::container("main", 0, State::Exited(ExitStatus { last_output: wrote, ..end }));
    world.pods.insert(binding.pod.uid.clone(), super::facts(&binding, Vec::new(), vec![crashed]));
    let hidden = shown(&world, &binding);
    assert!(!hidden.contains("hunter2"), "{hidden}");
    let mut spec = (*binding.pod.spec).clone();
    spec.containers[0].env.clear();
    spec.volumes.retain(|volume| volume.secret.is_none());
    binding.pod.spec = spec.into();
    assert!(shown(&world, &binding).contains("hunter2"), "nothing there is a secret");
    let mut spec = (*binding.pod.spec).clone();
    let volume = serde_json::json!({"name": "login", "secret": {"secretName": "login"}});
    spec.volumes.push(serde_json::from_value(volume).unwrap());
    binding.pod.spec = spec.into();
    assert!(!shown(&world, &binding).contains("hunter2"), "a file of the pod is a secret");
}

fn configured() -> Binding {
    let spec: PodSpec = serde_json::from_value(serde_json::json!({
        "containers": [{
            "name": "main", "image": "app:1", "args": ["$(COLOUR) $(X_COLOUR) $(GONE)"],
            "envFrom": [
                {"configMapRef": {"name": "web"}},
                {"prefix": "X_", "configMapRef": {"name": "web"}},
                {"configMapRef": {"name": "gone", "optional": true}},
            ],
            "env": [
                {"name": "SIZE", "value": "own"},
                {"name": "GONE", "valueFrom": {"configMapKeyRef": {"name": "gone", "key": "K", "optional": true}}},
                {"name": "NO_KEY", "valueFrom": {"configMapKeyRef": {"name": "web", "key": "K", "optional": true}}},
                {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "web", "key": "COLOUR"}}},
            ],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "gone", "mountPath": "/gone"}],
        }],
        "volumes": [
            {"name": "v", "configMap": {"name": "web", "defaultMode": 0o600, "items": [
                {"key": "COLOUR", "path": "deep/colour"}, {"key": "SIZE", "path": "size", "mode": 0o644}]}},
            {"name": "gone", "configMap": {"name": "gone", "optional": true}},
        ],
    }))
    .unwrap();
    let mut binding = binding("app", spec);
    let texts = ["1st", "COLOUR", "SIZE"].map(str::to_owned).to_vec();
    let blob = BlobRef { texts, ..blob("a", BlobKind::Object) };
    binding.pod.files = [("m.yaml//ConfigMap/default/web".to_owned(), blob)].into();
    binding
}

/// Red with `env` before `envFrom`, with keys that are not valid names, and with optional keys not left out.
#[test]
fn all_texts_of_a_map_are_variables_and_explicit_ones_win() {
    let (node, binding) = (node(), configured());
    let at = Placement { node: &node, binding: &binding, address: None, ports: &[] };
    let rendered = render::container(at, &binding.pod.spec.containers[0], 0, 0).unwrap();
    let marker = |key: &str| format!("\0ConfigMap web\0{key}\0");
    let [colour, size] = [marker("COLOUR"), marker("SIZE")];
    let wanted = [
        format!("COLOUR={colour}"),
        format!("X_1st={}", marker("1st")),
        format!("X_COLOUR={colour}"),
        format!("X_SIZE={size}"),
        "SIZE=own".to_owned(),
        format!("C={colour}"),
    ];
    assert_eq!(rendered.new.env, wanted);
    assert_eq!(rendered.new.args, [format!("{colour} {colour} $(GONE)")]);
    assert!(rendered.new.mounts.iter().all(|mount| mount.read_only));
}

/// A secret's keys are known only once it is decrypted: until then the plan has none of its variables.
#[test]
fn all_keys_of_a_secret_are_variables_once_they_are_known() {
    let (node, mut binding) = (node(), configured());
    let mut spec = (*binding.pod.spec).clone();
    let secret = serde_json::json!([
        {"configMapRef": {"name": "web"}}, {"prefix": "DB_", "secretRef": {"name": "db"}}]);
    spec.containers[0].env_from = serde_json::from_value(secret).unwrap();
    spec.containers[0].args = vec!["$(DB_USER) $(SIZE)".to_owned()];
    binding.pod.spec = spec.into();
    let at = Placement { node: &node, binding: &binding, address: None, ports: &[] };
    let rendered = render::container(at, &binding.pod.spec.containers[0], 0, 0).unwrap();
    assert_eq!(rendered.new.args, ["$(DB_USER) own"]);
    let (spec, place) = *rendered.secret_inputs.clone().unwrap();
    let keys = [(ContentRef::Secret("db".to_owned()), ["USER", "a b"].map(str::to_owned).to_vec())].into();
    let inputs = render::inputs(&spec, &binding.pod, &place, &keys).unwrap();
    let marker = "\0secret db\0USER\0";
    assert!(inputs.env.contains(&format!("DB_USER={marker}")), "{:?}", inputs.env);
    assert_eq!((inputs.env.len(), inputs.args), (rendered.new.env.len() + 1, vec![format!("{marker} own")]));
    assert!(inputs.values.iter().any(|value| value.marker == marker && value.key == "USER"));
}

/// A secret's keys are known only once it is decrypted, and until then a variable of an optional one is left out.
#[test]
fn an_optional_key_of_a_secret_is_a_variable_if_the_secret_has_it() {
    let (node, mut binding) = (node(), pod());
    let mut spec = (*binding.pod.spec).clone();
    let optional = |name: &str, secret: &str, key: &str| {
        let of = serde_json::json!({"name": secret, "key": key, "optional": true});
        serde_json::json!({"name": name, "valueFrom": {"secretKeyRef": of}})
    };
    let env = [optional("HAS", "db", "pw"), optional("LACKS", "db", "no"), optional("GONE", "gone", "pw")];
    spec.containers[0].env = serde_json::from_value(serde_json::json!(env)).unwrap();
    spec.containers[0].args = vec!["$(HAS) $(LACKS)".to_owned()];
    binding.pod.spec = spec.into();
    let at = Placement { node: &node, binding: &binding, address: None, ports: &[] };
    let rendered = render::container(at, &binding.pod.spec.containers[0], 0, 0).unwrap();
    assert_eq!(rendered.new.env, [""; 0]);
    let (spec, place) = *rendered.secret_inputs.unwrap();
    let keys = [(ContentRef::Secret("db".to_owned()), vec!["pw".to_owned()])].into();
    let inputs = render::inputs(&spec, &binding.pod, &place, &keys).unwrap();
    let marker = "\0secret db\0pw\0";
    assert_eq!(
        (inputs.env, inputs.args),
        (vec![format!("HAS={marker}")], vec![format!("{marker} $(LACKS)")])
    );
}

/// A pod with files of several sources, with fields of its own, and with one that does not exist.
fn sourced() -> Binding {
    let mut binding = configured();
    let mut spec = (*binding.pod.spec).clone();
    spec.volumes = serde_json::from_value(serde_json::json!([
        {"name": "all", "projected": {"sources": [
            {"configMap": {"name": "web"}},
            {"secret": {"name": "db", "items": [{"key": "pw", "path": "db/pw", "mode": 0o400}]}},
            {"secret": {"name": "gone", "optional": true, "items": [{"key": "pw", "path": "gone"}]}},
            {"downwardAPI": {"items": [
                {"path": "me/labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "me/node", "fieldRef": {"fieldPath": "spec.nodeName"}}]}},
            {"secret": {"name": "more"}}]}},
        {"name": "me", "downwardAPI": {"defaultMode": 0o600, "items": [
            {"path": "uid", "fieldRef": {"fieldPath": "metadata.uid"}},
            {"path": "ip", "mode": 0o444, "fieldRef": {"fieldPath": "status.podIP"}},
            {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}}]}},
        {"name": "bad", "downwardAPI": {"items": [
            {"path": "cpu", "resourceFieldRef": {"containerName": "none", "resource": "limits.cpu"}}]}},
    ]))
    .unwrap();
    let mounts =
        serde_json::json!([{"name": "all", "mountPath": "/all"}, {"name": "me", "mountPath": "/me"}]);
    spec.containers[0].volume_mounts = serde_json::from_value(mounts).unwrap();
    binding.pod.spec = spec.into();
    binding.pod.labels = [("app".to_owned(), "web".to_owned()), ("a".to_owned(), "\"".to_owned())].into();
    binding
}

#[test]
fn one_volume_has_files_of_secrets_maps_and_the_pod_itself() {
    let (node, binding) = (node(), sourced());
    let address = Some("10.244.3.7/24".parse().unwrap());
    let at = Placement { node: &node, binding: &binding, address, ports: &[] };
    let [VolumePrep::Files(all), VolumePrep::Files(me), VolumePrep::Files(bad)] =
        &volume::render::volumes(at)[..]
    else {
        panic!("all are written")
    };
    assert_eq!((all.is_secret, me.is_secret), (true, false));
    assert_eq!(all.path, names::secret_dir(&node.state_dir, &binding.pod.uid, "all"), "in memory");
    let rendered = render::container(at, &binding.pod.spec.containers[0], 0, 0).unwrap();
    assert_eq!(rendered.new.mounts[0].source, all.path);
    assert!(rendered.new.mounts[..2].iter().all(|mount| mount.read_only));

    let text = |files: BTreeMap<String, VolumeFile>| -> Vec<String> {
        let line = |(path, VolumeFile { value, mode }): (String, VolumeFile)| {
            format!("{path} {mode:o} {}", String::from_utf8(value).unwrap())
        };
        files.into_iter().map(line).collect()
    };
    let values =
        |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), key.as_bytes().to_vec())).collect();
    let last = BTreeMap::from([("COLOUR".to_owned(), b"red".to_vec())]);
    let read = |db: &[&str]| vec![values(&["COLOUR", "SIZE"]), values(db), values(&[]), last.clone()];
    let files = prepare::volume_files(all, read(&["pw", "other"])).unwrap();
    assert_eq!(
        text(files.clone()),
        [
            "COLOUR 644 red",
            "SIZE 644 SIZE",
            "db/pw 400 pw",
            "me/labels 644 a=\"\\\"\"\napp=\"web\"",
            "me/node 644 n1"
        ]
    );
    let refused = prepare::volume_files(all, read(&["other"])).unwrap_err().to_string();
    assert_eq!(refused, "references non-existent secret key: pw of secret db");
    let own = prepare::volume_files(me, Vec::new()).unwrap();
    let uid = format!("uid 600 {}", binding.pod.uid);
    assert_eq!(text(own), ["cpu 600 8", "ip 444 10.244.3.7", &uid]);
    let refused = prepare::volume_files(bad, Vec::new()).unwrap_err().to_string();
    assert_eq!(refused, "file cpu: container none not found");

    let state = tempfile::tempdir().unwrap();
    let written = FilesVolumeSpec { path: names::secret_dir(state.path(), "u", "all"), ..all.clone() };
    prepare::write_files(&written, &files).unwrap();
    let pw = written.path.join("db/pw");
    assert_eq!((fs::read(&pw).unwrap(), fs::metadata(&pw).unwrap().mode() & 0o7777), (b"pw".to_vec(), 0o400));
    folders::unmount_pod(state.path(), "u").unwrap();
    assert!(!pw.exists() && written.path.exists(), "it was in memory alone");
    folders::remove_pod(state.path(), "u").unwrap();
}

/// Red with the volume's mode for every file, and with the group without its bit.
#[test]
fn items_are_files_with_their_modes() {
    let (node, binding) = (node(), configured());
    let at = Placement { node: &node, binding: &binding, address: None, ports: &[] };
    let [VolumePrep::Files(first), VolumePrep::Files(gone)] = &volume::render::volumes(at)[..] else {
        panic!("two are made")
    };
    let [FilesSource::Values { of, items, is_optional: false }] = &first.sources[..] else {
        panic!("one is required")
    };
    assert!(matches!(gone.sources[..], [FilesSource::Values { is_optional: true, .. }]) && !first.is_secret);
    let with = |items| {
        let sources = vec![FilesSource::Values { of: of.clone(), items, is_optional: false }];
        FilesVolumeSpec { sources, ..first.clone() }
    };
    let values = || ["1st", "COLOUR", "SIZE"].map(|key| (key.to_owned(), key.as_bytes().to_vec())).into();
    let dir = tempfile::tempdir().unwrap();
    for (group, modes) in [(None, [0o600, 0o644]), (Some(7), [0o640, 0o644])] {
        let path = dir.path().join(format!("{group:?}"));
        let volume = FilesVolumeSpec { path: path.clone(), group, ..first.clone() };
        let files = prepare::volume_files(&volume, vec![values()]).unwrap();
        assert_eq!(files.keys().collect::<Vec<_>>(), ["deep/colour", "size"]);
        prepare::write_files(&volume, &files).unwrap();
        prepare::write_files(&volume, &files).unwrap();
        let found = ["deep/colour", "size"].map(|file| fs::metadata(path.join(file)).unwrap());
        assert_eq!(found.each_ref().map(|meta| meta.mode() & 0o7777), modes);
        assert!(group.is_none_or(|group| found.iter().all(|meta| meta.gid() == group)));
        assert_eq!(fs::read(path.join("deep/colour")).unwrap(), b"COLOUR");
    }
    let many = (0..3000).map(|number| KeyToPath { path: format!("f{number}"), ..items[0].clone() }).collect();
    let refused = prepare::volume_files(&with(many), vec![values()]).unwrap_err().to_string();
    assert!(refused.contains("8 MiB"), "{refused}");
    let refused = prepare::volume_files(first, vec![BTreeMap::new()]).unwrap_err().to_string();
    assert_eq!(refused, "references non-existent config key: COLOUR of ConfigMap web");
    let all = prepare::volume_files(&with(Vec::new()), vec![values()]).unwrap();
    assert_eq!(all.into_keys().collect::<Vec<_>>(), ["1st", "COLOUR", "SIZE"]);
    assert_eq!(prepare::volume_files(gone, vec![BTreeMap::new()]).unwrap(), BTreeMap::new());
}

// Seen red with `down` before `fetch_files` in `up`: the container is stopped.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_fetched_takes_nothing_down_that_runs() {
    let mut rig = Rig::new();
    // The pause container has run long enough to be recreated when it ends.
    rig.docker.engine().now = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(60);
    let mut web = binding("web", pod_spec(&["a"]));
    rig.want_pod(web.clone(), true);
    rig.agent_until("complete", Rig::complete).await;
    let name = |of: &str| names::container_name("mk8s", of, &web.pod.reference(), &web.pod.uid, 0);
    let (app, pause) = (name("a"), name(names::PAUSE));
    rig.docker.end(&pause, Exit { code: 137, oom_killed: false });
    web.pod.files = [("motd.txt".to_owned(), blob("b", BlobKind::File))].into();
    rig.want_pod(web.clone(), true);
    let began = tokio::time::Instant::now();
    rig.agent_until("a while", |_| began.elapsed() > std::time::Duration::from_secs(20)).await;
    assert_eq!(rig.docker.running().get(&app), Some(&true), "{:?}", rig.docker.running());
    web.pod.files.clear();
    rig.want_pod(web.clone(), true);
    rig.agent_until("made anew", |rig| rig.docker.running().get(&pause) == Some(&true)).await;
}

/// The state left by an agent that ends between two calls.
#[test]
fn a_half_made_file_of_a_secret_is_made_whole() {
    let state = tempfile::tempdir().unwrap();
    let path = names::secret_dir(state.path(), "u", "db");
    let of = ContentRef::Secret("db".to_owned());
    let sources = vec![FilesSource::Values { of, items: Vec::new(), is_optional: false }];
    let volume =
        FilesVolumeSpec { path: path.clone(), sources, mode: 0o400, is_secret: true, group: Some(7) };
    let values = BTreeMap::from([("pw".to_owned(), b"x".to_vec())]);
    let files = prepare::volume_files(&volume, vec![values]).unwrap();
    prepare::write_files(&volume, &files).unwrap();
    let file = path.join("pw");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).unwrap();
    chown(&file, Some(0), Some(0)).unwrap();
    fs::write(path.join("..new"), "half").unwrap();
    prepare::write_files(&volume, &files).unwrap();
    let meta = fs::metadata(&file).unwrap();
    let there = fs::read_dir(&path).unwrap().count();
    folders::unmount_pod(state.path(), "u").unwrap();
    assert!(!file.exists() && path.exists(), "it was in memory alone");
    folders::remove_pod(state.path(), "u").unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.gid(), there), (0o440, 7, 1));
    assert!(!path.starts_with(names::volume_dir(state.path(), "u", "")), "its size would be counted");
    assert!(crate::mounts::at_or_below(state.path()).unwrap().is_empty());
}
