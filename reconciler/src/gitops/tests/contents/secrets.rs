//! The cluster's identity next to the secrets, and the lists of their keys.

use schema::content_refs::BlobKind;
use schema::records::SourceState;

use crate::gitops::tests::kit::{Cluster, Files, Repo, pod};

const AGE: &str = "age-encryption.org/v1\n-> X25519 abc\n--- mac\n";
const IDENTITY: &str = "secrets/.identity/cluster.age";
const CLUSTER: &str = "apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {name: cluster}\nspec: {}\n";

fn repo(files: &[(&str, &str)]) -> Repo {
    let files: Files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    Repo::new(files)
}

#[tokio::test]
async fn a_new_version_of_the_identity_reaches_agents_and_changes_no_hash() {
    let whole = pod("whole", "one") + "  volumes:\n  - {name: v, repo: {path: secrets}}\n";
    let mut repo = repo(&[
        ("cluster.yaml", CLUSTER),
        ("whole.yaml", &whole),
        ("secrets/db.age", AGE),
        ("secrets/.identity/cluster.pub", "age1x\n"),
        ("secrets/recipients.txt", "# node-1\nage1x\n"),
    ]);
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let before = cluster.objects().await;
    assert!(before["cluster"].files.is_empty());
    repo.set(IDENTITY, AGE).commit("An identity");
    cluster.settle().await;
    let first = cluster.objects().await;
    let blob = first["cluster"].files[IDENTITY].clone();
    assert_eq!((blob.kind, blob.source.as_str()), (BlobKind::Secret, "main"));
    // Seen red with the list of recipients mounted by volumes.
    repo.set("secrets/recipients.txt", "# node-1\nage1x\n# node-4\nage1y\n");
    repo.set(IDENTITY, format!("{AGE}of four nodes")).commit("A fourth node");
    cluster.settle().await;
    let second = cluster.objects().await;
    assert_ne!(second["cluster"].files[IDENTITY].digest, blob.digest, "agents learn of it");
    for objects in [&first, &second] {
        assert_eq!(objects["cluster"].hash, before["cluster"].hash);
        assert_eq!(objects["cluster"].generation, 1);
        assert_eq!(objects["whole"], before["whole"], "no volume has it");
    }
    assert_eq!(cluster.status().await.state, SourceState::Synced);

    repo.set(IDENTITY, "AGE-SECRET-KEY-1CANARY\n").commit("In plain text");
    cluster.settle().await;
    let reported = format!("{:?}", cluster.status().await);
    assert!(reported.contains("is not encrypted") && !reported.contains("CANARY"), "{reported}");

    // Two people added nodes, and Git merged one version into the other.
    let armour =
        "-----BEGIN AGE ENCRYPTED FILE-----\n<<<<<<< HEAD\nYWdl\n=======\n-----END AGE ENCRYPTED FILE-----\n";
    repo.set(IDENTITY, armour).commit("A merge");
    cluster.settle().await;
    let reported = format!("{:?}", cluster.status().await);
    assert!(reported.contains("is a damaged age file"), "{reported}");
}

#[tokio::test]
async fn no_volume_can_be_the_identity_itself() {
    let volume = |name: &str, path: &str| {
        pod(name, "one") + &format!("  volumes:\n  - {{name: v, repo: {{path: {path}}}}}\n")
    };
    let repo = repo(&[
        ("a.yaml", &volume("a", IDENTITY)),
        ("b.yaml", &volume("b", "secrets/.identity")),
        ("c.yaml", &pod("c", "one")),
        (IDENTITY, AGE),
    ]);
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["c"]);
}

#[tokio::test]
async fn a_key_that_the_list_beside_a_secret_has_not_keeps_its_user_from_being_applied() {
    let user = |name: &str, key: &str| {
        let value = format!("{{name: X, valueFrom: {{secretKeyRef: {{name: db, key: {key}}}}}}}");
        pod(name, "one").replace("    image:", &format!("    env: [{value}]\n    image:"))
    };
    let mut repo = repo(&[
        ("a.yaml", &user("a", "password")),
        ("b.yaml", &user("b", "pasword")),
        ("secrets/default/db.age", AGE),
    ]);
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "b"], "without a list nothing is known of its keys");
    let before = cluster.objects().await;
    repo.set("secrets/default/db.keys", "# of db\npassword\nuser\n").commit("A list");
    cluster.settle().await;
    let reported = format!("{:?}", cluster.status().await);
    for part in ["secret-key", "b.yaml", "`pasword`", "password, user"] {
        assert!(reported.contains(part), "{part}: {reported}");
    }
    assert_eq!(cluster.objects().await["a"], before["a"], "the list is in no hash");
    repo.set("b.yaml", user("b", "user")).commit("Mend");
    cluster.settle().await;
    assert_eq!(cluster.status().await.state, SourceState::Synced);
}

/// Optional secrets are as optional ConfigMaps; the sources of a projected volume are named by their numbers.
#[tokio::test]
async fn an_optional_secret_may_be_absent_and_replaces_the_pod_once_it_is_there() {
    let with = |name: &str, volume: &str| pod(name, "one") + &format!("  volumes: [{{name: v, {volume}}}]\n");
    let env = |name: &str, more: &str| {
        let of = format!("{{name: late, key: pin{more}}}");
        pod(name, "one") + &format!("    env: [{{name: X, valueFrom: {{secretKeyRef: {of}}}}}]\n")
    };
    let projected =
        |sources: &str| format!("projected: {{sources: [{{configMap: {{name: conf}}}}, {sources}]}}");
    let items = "items: [{key: pin, path: p}]";
    let mut repo = repo(&[
        ("a.yaml", &env("a", ", optional: true")),
        ("b.yaml", &with("b", &format!("secret: {{secretName: late, optional: true, {items}}}"))),
        ("c.yaml", &with("c", &projected("{secret: {name: late, optional: true}}"))),
        ("d.yaml", &env("d", "")),
        ("e.yaml", &with("e", &projected("{secret: {name: late}}"))),
        ("f.yaml", &with("f", &projected("{configMap: {name: none}}"))),
        ("g.yaml", &with("g", &projected("{configMap: {name: conf, items: [{key: b, path: b}]}}"))),
        ("conf.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {a: b}\n"),
    ]);
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "b", "c", "conf"]);
    let first = cluster.objects().await;
    let status = cluster.status().await;
    let said = status.quarantined.iter().flat_map(|file| &file.violations);
    let said: Vec<_> = said.map(|one| format!("{}: {}", one.rule, one.message)).collect();
    let sources = "spec.volumes[0].projected.sources[1]";
    let no_file = "there is no encrypted file of secret late in the repository";
    assert_eq!(
        said,
        [
            format!("secret-file: spec.containers[0].env[0].valueFrom.secretKeyRef.name: {no_file}"),
            format!("secret-file: {sources}.secret.name: {no_file}"),
            format!("dangling-target: {sources}.configMap.name: there is no ConfigMap/default/none"),
            format!(
                "dangling-target: {sources}.configMap.items[0].key: ConfigMap/default/conf has no key `b`"
            ),
        ]
    );

    repo.set("secrets/default/late.keys", "other\n");
    repo.set("secrets/default/late.age", AGE).commit("The secret");
    cluster.settle().await;
    let second = cluster.objects().await;
    for name in ["a", "b", "c"] {
        assert_ne!(second[name].hash, first[name].hash, "{name}");
        assert!(second[name].files.contains_key("secrets/default/late.age"), "{name}");
    }
    let reported = format!("{:?}", cluster.status().await);
    assert!(
        reported.contains("secret-key") && !reported.contains("b.yaml"),
        "d alone needs the key: {reported}"
    );
    repo.remove("secrets/default/late.keys");
    repo.remove("secrets/default/late.age").commit("And goes");
    cluster.settle().await;
    let third = cluster.objects().await;
    assert!(["a", "b", "c"].iter().all(|name| third[*name].hash == first[*name].hash));
}

/// The keys of a SOPS file are in clear text; the keys for a job's login are checked like those for a pod.
#[tokio::test]
async fn a_file_of_sops_is_ciphertext_with_keys_and_one_in_clear_is_refused() {
    const SOPS: &str = include_str!("../../../../../schema/src/secrets/format/sops/testdata/db.sops.yaml");
    let user = |name: &str, key: &str| {
        let value = format!("{{name: X, valueFrom: {{secretKeyRef: {{name: db, key: {key}}}}}}}");
        pod(name, "one").replace("    image:", &format!("    env: [{value}]\n    image:"))
    };
    let job = "apiVersion: minik8s.io/v1\nkind: Job\nmetadata: {name: sum}\nspec:\n  runCommands: [\"true\"]\n  login: {host: h, \
               username: u, sshKey: {name: db, key: id}}\n";
    let all = "  - {name: Y, image: app, envFrom: [{secretRef: {name: db}}, {secretRef: {name: gone, optional: true}}]}\n";
    let mut repo = repo(&[
        ("a.yaml", &user("a", "pin")),
        ("b.yaml", &user("b", "pni")),
        ("c.yaml", job),
        ("d.yaml", &(pod("d", "one") + &all.replace("name: Y", "name: y"))),
        ("e.yaml", &(pod("e", "one") + &all.replace("name: Y", "name: y").replace(", optional: true", ""))),
        ("secrets/default/db.sops.yaml", SOPS),
    ]);
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    assert_eq!(cluster.names().await, ["a", "d"]);
    let reported = format!("{:?}", cluster.status().await);
    for part in ["no key `pni`", "login.sshKey.key", "secret gone", "db.sops.yaml has active"] {
        assert!(reported.contains(part), "{part}: {reported}");
    }
    let objects = cluster.objects().await;
    assert_eq!(objects["a"].files["secrets/default/db.sops.yaml"].kind, BlobKind::Secret);
    repo.set("secrets/default/db.sops.yaml", "namespace: default\nname: db\npin: canary\n")
        .commit("In clear");
    cluster.settle().await;
    let reported = format!("{:?}", cluster.status().await);
    assert!(reported.contains("not encrypted with SOPS") && !reported.contains("canary"), "{reported}");
}

// Would fail if the file were not read, or were content of the object.
#[tokio::test]
async fn a_secret_of_notifications_is_checked_where_it_is_named_and_is_in_no_object() {
    const OPS: &str = "secrets/.notifications/ops.age";
    let targets = "spec:\n  notifications:\n  - {name: a, secretName: ops, slack: {}}\n";
    let text = CLUSTER.replace("spec: {}\n", targets);
    let mut repo = repo(&[("cluster.yaml", &text), ("secrets/ops.age", AGE)]);
    let mut cluster = Cluster::new(&repo).await;
    cluster.settle().await;
    let status = cluster.status().await;
    let missing = &status.quarantined[0].violations[0];
    assert_eq!((missing.rule.as_str(), missing.line, missing.column), ("secret-file", 6, 27));
    assert_eq!(
        missing.message,
        format!("spec.notifications[0].secretName: there is no {OPS} in the repository")
    );
    repo.set(OPS, "url: https://canary\n").commit("In plain text");
    cluster.settle().await;
    let reported = format!("{:?}", cluster.status().await);
    assert!(reported.contains("ops.age is not encrypted") && !reported.contains("canary"), "{reported}");
    repo.set(OPS, AGE).commit("Sealed");
    cluster.settle().await;
    let sealed = cluster.objects().await;
    assert!(sealed["cluster"].files.is_empty());
    repo.set(OPS, format!("{AGE}for another reconciler")).commit("Sealed again");
    cluster.settle().await;
    assert_eq!(cluster.objects().await["cluster"], sealed["cluster"]);
    assert_eq!(cluster.status().await.state, SourceState::Synced);
}
