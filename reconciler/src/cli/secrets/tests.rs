//! Life of a secrets folder: setup, a node that joins, a node that is lost, and user errors.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::inspect::{NodeRecipients, check_files, node_problems};
use super::manifests::seal;
use super::*;
use crate::args::{LineInFile, SealArgs, SecretFormat, SecretPlace};
use crate::crypt;

struct Fixture {
    dir: tempfile::TempDir,
    folder: SecretsFolder,
}

fn node() -> (Identity, String) {
    let identity = Identity::generate();
    let recipient = identity.to_public().to_string();
    (identity, recipient)
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let args = SecretsArgs {
            dir: dir.path().to_owned(),
            identity: Some(dir.path().join("own.txt")),
            command: SecretsCommand::Rotate,
        };
        let folder = SecretsFolder::from_args(&args).unwrap();
        Self { dir, folder }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join("secrets").join(file)
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap()
    }

    fn seal(&self, name: &str, values: &str, format: Option<SecretFormat>) -> anyhow::Result<String> {
        let from = self.dir.path().join("values");
        fs::write(&from, values).unwrap();
        seal(&self.folder, &SealArgs { from: Some(from), format, ..sealing(name) })
    }

    /// Decrypts a secret as a node does: first the cluster's identity, then the plaintext.
    fn as_node(&self, own: &Identity, file: &str) -> Option<String> {
        let own = std::slice::from_ref(own);
        let identity = crypt::decrypt(self.text(".identity/cluster.age").as_bytes(), own).unwrap()?;
        let identities = crypt::identities(&String::from_utf8(identity).unwrap(), &self.path("")).unwrap();
        let plain = crypt::decrypt(self.text(file).as_bytes(), &identities).unwrap()?;
        Some(String::from_utf8(plain).unwrap())
    }

    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let secrets = self.folder.secrets().unwrap().into_iter();
        secrets.map(|(_, name, path)| (name, fs::read(path).unwrap())).collect()
    }

    fn problems(&self) -> Vec<String> {
        check_files(&self.folder).unwrap().problems
    }
}

fn sealing(name: &str) -> SealArgs {
    let place = SecretPlace { namespace: "shop".to_owned(), shared: false, to: Vec::new() };
    let name = Some(name.to_owned());
    SealArgs { name, place, from: None, remove: false, from_env: None, format: None, source: None }
}

fn add_node(fixture: &Fixture, name: &str, recipient: &str) -> anyhow::Result<String> {
    let (name, recipient) = (name.to_owned(), recipient.to_owned());
    let change = RecipientsChange::Add { name, recipient, reconciler: false };
    recipients(&fixture.folder, Some(&change))
}

#[test]
fn a_node_that_joins_reads_all_and_changes_no_secret() {
    let fixture = Fixture::new();
    let ((one, one_is), (two, two_is)) = (node(), node());
    init(&fixture.folder, &[format!("node-1={one_is}")]).unwrap();
    fixture.seal("db", "user: app\npassword: hunter2\n", None).unwrap();
    fixture.seal("token", "A=b\n", Some(SecretFormat::Dotenv)).unwrap();
    assert_eq!(fixture.text("shop/db.keys"), "password\nuser\n");
    assert_eq!(
        fixture.as_node(&one, "shop/db.age").unwrap(),
        "namespace: shop\nname: db\nformat: map\n---\nuser: app\npassword: hunter2\n"
    );
    assert_eq!(fixture.as_node(&two, "shop/db.age"), None);
    assert_eq!(fixture.problems(), [""; 0]);
    assert!(init(&fixture.folder, &[]).is_err(), "never a second one in its place");

    let (before, recipient) = (fixture.files(), fixture.text(".identity/cluster.pub"));
    add_node(&fixture, "node-2", &two_is).unwrap();
    assert_eq!((fixture.files(), fixture.text(".identity/cluster.pub")), (before, recipient));
    for node in [&one, &two] {
        assert!(fixture.as_node(node, "shop/token.age").unwrap().ends_with("format: dotenv\n---\nA=b\n"));
    }
    assert!(fixture.text("recipients.txt").contains(&format!("# node-2\n{two_is}\n")));
    assert!(
        add_node(&fixture, "node-3", &two_is).is_err() && add_node(&fixture, "node-2", &node().1).is_err()
    );
    // A recipient added to the list by hand.
    let (three, three_is) = node();
    fs::write(
        fixture.path("recipients.txt"),
        // As an editor of Windows would save it.
        format!("\u{feff}{}# node-3\n{three_is}\n", fixture.text("recipients.txt")),
    )
    .unwrap();
    assert!(fixture.problems()[0].contains("recipients add"), "{:?}", fixture.problems());
    add_node(&fixture, "node-3", &three_is).unwrap();
    assert!(fixture.as_node(&three, "shop/token.age").is_some());
    assert_eq!(fixture.problems(), [""; 0]);
}

#[test]
fn after_a_rotation_a_removed_node_reads_nothing_new_and_the_others_what_there_was() {
    let fixture = Fixture::new();
    let ((kept, kept_is), (lost, lost_is)) = (node(), node());
    init(&fixture.folder, &[format!("kept={kept_is}"), format!("lost={lost_is}")]).unwrap();
    fixture.seal("db", "password: hunter2\n", None).unwrap();
    let former = fs::read(fixture.path("shop/db.age")).unwrap();
    recipients(&fixture.folder, Some(&RecipientsChange::Remove { name: "lost".to_owned() })).unwrap();
    rotate(&fixture.folder).unwrap();
    assert!(fixture.as_node(&kept, "shop/db.age").unwrap().contains("hunter2"));
    assert_eq!(fixture.as_node(&lost, "shop/db.age"), None);
    let identities = fixture.folder.cluster_identities().unwrap();
    assert_eq!(identities.len(), 2, "a pod may still start with the former file");
    assert!(crypt::decrypt(&former, &identities[1..]).unwrap().is_some());
    assert!(
        crypt::decrypt(&fs::read(fixture.path("shop/db.age")).unwrap(), &identities[1..]).unwrap().is_none()
    );
    rotate(&fixture.folder).unwrap();
    assert_eq!(fixture.folder.cluster_identities().unwrap().len(), 2);
    assert_eq!(fixture.problems(), [""; 0]);
}

#[test]
fn what_age_alone_made_is_bound_by_seal() {
    let fixture = Fixture::new();
    init(&fixture.folder, &[]).unwrap();
    fs::create_dir_all(fixture.path("shop")).unwrap();
    let cluster = [fixture.folder.cluster().unwrap()];
    fs::write(fixture.path("shop/db.age"), crypt::encrypt(b"password: hunter2\n", &cluster).unwrap())
        .unwrap();
    let shown = fixture.problems();
    assert!(shown[0].contains("minik8s secrets seal db -n shop") && shown.len() == 1, "{shown:?}");
    seal(&fixture.folder, &sealing("db")).unwrap();
    assert_eq!(fixture.problems(), [""; 0]);
    assert_eq!(fixture.text("shop/db.keys"), "password\n");

    // A copied secret is reported by the name inside it, and so is a hand-edited key list.
    fs::create_dir_all(fixture.path("other")).unwrap();
    fs::copy(fixture.path("shop/db.age"), fixture.path("other/db.age")).unwrap();
    fs::write(fixture.path("shop/db.keys"), "pasword\n").unwrap();
    fs::write(fixture.path("plain.age"), "password: canary\n").unwrap();
    let shown = fixture.problems().join("\n");
    let parts =
        ["other/db.age is for shop/db", "shop/db.keys lists different keys", "plain.age is not encrypted"];
    for part in parts {
        assert!(shown.contains(part), "{shown}");
    }
    assert!(!shown.contains("canary"), "{shown}");
}

#[test]
fn a_secret_for_single_nodes_stays_theirs() {
    let fixture = Fixture::new();
    let (own, own_is) = node();
    init(&fixture.folder, &[format!("node-1={own_is}")]).unwrap();
    let mut args = sealing("only");
    args.place.to = vec!["node-1".to_owned()];
    args.from = Some(fixture.dir.path().join("values"));
    fs::write(args.from.as_ref().unwrap(), "x").unwrap();
    seal(&fixture.folder, &args).unwrap();
    let ciphertext = fs::read(fixture.path("shop/only.age")).unwrap();
    assert!(crypt::decrypt(&ciphertext, &[own]).unwrap().is_some());
    let checked = check_files(&fixture.folder).unwrap();
    assert!(checked.problems.is_empty() && checked.notes[0].contains("single recipients"), "{checked:?}");
    assert!(rotate(&fixture.folder).unwrap().contains("stays as it is"));
    assert_eq!(fs::read(fixture.path("shop/only.age")).unwrap(), ciphertext);
}

// Seen red without a check of the replaced file: the cluster can read both.
#[test]
fn new_values_of_a_secret_get_no_more_readers_and_stay_bound_to_its_source() {
    let fixture = Fixture::new();
    let (_, one_is) = node();
    init(&fixture.folder, &[format!("node-1={one_is}")]).unwrap();
    fs::write(fixture.dir.path().join("values"), "password: x\n").unwrap();
    let own = fixture.folder.own().unwrap().unwrap()[0].to_public().to_string();
    // A secret for one node only, and another that this person can also read.
    for (name, to) in [("only", vec!["node-1".to_owned()]), ("mine", vec!["node-1".to_owned(), own])] {
        let from = Some(fixture.dir.path().join("values"));
        let mut args = SealArgs { from, ..sealing(name) };
        args.place.to = to;
        seal(&fixture.folder, &args).unwrap();
        let before = fs::read(fixture.path(&format!("shop/{name}.age"))).unwrap();
        let why = format!("{:#}", fixture.seal(name, "password: y\n", None).unwrap_err());
        assert!(why.contains("--to"), "{why}");
        assert_eq!(fs::read(fixture.path(&format!("shop/{name}.age"))).unwrap(), before);
        // Naming the recipients explicitly is allowed.
        seal(&fixture.folder, &args).unwrap();
    }
    let from = Some(fixture.dir.path().join("values"));
    seal(&fixture.folder, &SealArgs { from, source: Some("apps".to_owned()), ..sealing("db") }).unwrap();
    fixture.seal("db", "password: y\n", None).unwrap();
    let (plain, _) = fixture.folder.open(&fixture.path("shop/db.age")).unwrap();
    assert_eq!(plain, b"namespace: shop\nname: db\nsource: apps\nformat: map\n---\npassword: y\n");
}

// Seen red with only one former identity kept: the secret that was left has no reader during the second rotation.
#[test]
fn a_rotation_that_is_killed_between_files_is_finished_by_the_next() {
    let fixture = Fixture::new();
    let (own, own_is) = node();
    init(&fixture.folder, &[format!("node-1={own_is}")]).unwrap();
    for name in ["a", "b", "c"] {
        fixture.seal(name, &format!("password: {name}\n"), None).unwrap();
    }
    let before = fixture.files();
    let recipient = fixture.text(".identity/cluster.pub");
    rotate(&fixture.folder).unwrap();
    let rotated = fixture.text(".identity/cluster.pub");
    // Killed before the recipient was written, and after the first secret.
    fs::write(fixture.path(".identity/cluster.pub"), &recipient).unwrap();
    for name in ["b", "c"] {
        fs::write(fixture.path(&format!("shop/{name}.age")), &before[name]).unwrap();
    }
    let is_readable = || {
        for name in ["a", "b", "c"] {
            let plain = fixture.as_node(&own, &format!("shop/{name}.age")).unwrap();
            assert!(plain.ends_with(&format!("password: {name}\n")), "{plain}");
        }
    };
    is_readable();
    let former = fixture.folder.cluster_identities().unwrap();
    let said = rotate(&fixture.folder).unwrap();
    assert!(said.contains("encrypted 3 secrets"), "{said}");
    // The newest identity is not one that a lost node may know, even if an earlier rotation did not finish.
    assert_ne!(fixture.text(".identity/cluster.pub"), rotated);
    let kept = fixture.folder.cluster_identities().unwrap();
    assert_eq!(kept.len(), 1 + former.len(), "all that decrypts what may still be there");
    is_readable();
    let newest = &fixture.folder.cluster_identities().unwrap()[..1];
    for name in ["a", "b", "c"] {
        let file = fs::read(fixture.path(&format!("shop/{name}.age"))).unwrap();
        assert!(crypt::decrypt(&file, newest).unwrap().is_some(), "{name} needs the former identity");
    }
    assert_eq!(fixture.problems(), [""; 0]);
    rotate(&fixture.folder).unwrap();
    assert_eq!(fixture.folder.cluster_identities().unwrap().len(), 2);
    is_readable();
}

#[test]
fn what_nodes_report_is_compared_with_the_list() {
    let listed = |name: &str, recipient: &str| {
        let (name, recipient) = (name.into(), recipient.into());
        ListedRecipient { name, recipient, is_reconciler: false }
    };
    let node = |name: &str, recipient: Option<&str>, cluster: Option<&str>| NodeRecipients {
        name: name.into(),
        recipient: recipient.map(str::to_owned),
        cluster: cluster.map(str::to_owned),
    };
    let list = [listed("n1", "age1a"), listed("n2", "age1b")];
    assert_eq!(node_problems(&list, Some("age1c"), &[node("n1", Some("age1a"), Some("age1c"))]), [""; 0]);
    for (reported, part) in [
        (node("n3", Some("age1x"), None), "recipients add n3 age1x"),
        (node("n2", Some("age1b"), Some("age1old")), "does not have the newest cluster identity"),
        (node("n2", Some("age1b"), None), "does not have the newest cluster identity"),
        (node("n1", None, None), "has no identity"),
        (node("n1", Some("age1evil"), Some("age1c")), "the list has age1a for n1"),
    ] {
        let shown = node_problems(&list, Some("age1c"), &[reported]).join("\n");
        assert!(shown.contains(part), "{shown}");
    }
}

#[test]
fn a_reconciler_reads_credentials_of_sources_and_no_secret_of_a_pod() {
    let fixture = Fixture::new();
    let ((one, one_is), (reconciler, reconciler_is)) = (node(), node());
    init(&fixture.folder, &[format!("node-1={one_is}")]).unwrap();
    let token = || SealArgs {
        place: SecretPlace { namespace: ".sources".to_owned(), ..sealing("apps").place },
        from: Some(fixture.dir.path().join("values")),
        ..sealing("apps")
    };
    fs::write(fixture.dir.path().join("values"), "token: hunter2\n").unwrap();
    let why = seal(&fixture.folder, &token()).unwrap_err().to_string();
    assert!(why.contains("--reconciler"), "{why}");
    let identity = fixture.text(".identity/cluster.age");
    let (name, recipient) = ("r1".to_owned(), reconciler_is.clone());
    recipients(&fixture.folder, Some(&RecipientsChange::Add { name, recipient, reconciler: true })).unwrap();
    assert!(fixture.text("recipients.txt").contains(&format!("# reconciler r1: {reconciler_is}\n")));
    assert_eq!(fixture.text(".identity/cluster.age"), identity, "the cluster's identity is not for it");
    seal(&fixture.folder, &token()).unwrap();
    let ciphertext = fs::read(fixture.path(".sources/apps.age")).unwrap();
    let plain = crypt::decrypt(&ciphertext, std::slice::from_ref(&reconciler)).unwrap().unwrap();
    assert_eq!(plain, b"namespace: .sources\nname: apps\nformat: map\n---\ntoken: hunter2\n");
    let mut chat = token();
    chat.place.namespace = ".notifications".to_owned();
    seal(&fixture.folder, &chat).unwrap();
    let of_chat = fs::read(fixture.path(".notifications/apps.age")).unwrap();
    let plain = crypt::decrypt(&of_chat, std::slice::from_ref(&reconciler)).unwrap().unwrap();
    assert!(plain.starts_with(b"namespace: .notifications\nname: apps\n"));
    // Neither a new node nor a rotation gives it access to more.
    add_node(&fixture, "node-2", &node().1).unwrap();
    rotate(&fixture.folder).unwrap();
    assert_eq!(crypt::recipients_of(fixture.text(".identity/cluster.age").as_bytes()).unwrap(), 3);
    assert!(crypt::decrypt(&ciphertext, &[one]).unwrap().is_none());
    assert_eq!(fixture.problems(), [""; 0]);
}

// Would fail if only secrets of pods were checked, or if all of them needed the cluster's identity.
#[test]
fn a_secret_of_reconcilers_needs_all_of_them_nobody_else_and_no_cluster() {
    let fixture = Fixture::new();
    let add = |name: &str| {
        let (name, recipient) = (name.to_owned(), node().1);
        let change = RecipientsChange::Add { name, recipient, reconciler: true };
        recipients(&fixture.folder, Some(&change)).unwrap();
    };
    let mut ops = sealing("ops");
    ops.place.namespace = ".notifications".to_owned();
    ops.from = Some(fixture.dir.path().join("values"));
    fs::write(fixture.dir.path().join("values"), "url: https://hunter2\n").unwrap();
    add("r1");
    assert!(seal(&fixture.folder, &ops).unwrap().ends_with("ops.age with the key url\n"));
    assert_eq!(fixture.problems(), [""; 0]);
    add("r2");
    let shown = fixture.problems().join("\n");
    assert!(shown.contains("to 1 recipient, but the list has 2 reconcilers"), "{shown}");
    seal(&fixture.folder, &ops).unwrap();
    assert_eq!(fixture.problems(), [""; 0]);
    init(&fixture.folder, &[]).unwrap();
    ops.place.to = vec!["cluster".to_owned(), "r1".to_owned()];
    seal(&fixture.folder, &ops).unwrap();
    let shown = fixture.problems().join("\n");
    assert!(shown.contains("not to reconcilers alone") && shown.lines().count() == 1, "{shown}");
}

#[test]
fn a_file_of_sops_is_checked_as_the_others() {
    let fixture = Fixture::new();
    init(&fixture.folder, &[]).unwrap();
    let file = include_str!("../../../../schema/src/secrets/format/sops/testdata/db.sops.yaml");
    fs::create_dir_all(fixture.path("shop")).unwrap();
    fs::write(fixture.path("shop/db.sops.yaml"), file).unwrap();
    let checked = check_files(&fixture.folder).unwrap();
    assert!(checked.problems.is_empty() && checked.notes.len() == 1, "{checked:?}");
    // Use the identity that the test file is encrypted to.
    let own = include_str!("../../../../schema/src/secrets/format/sops/testdata/identity.txt");
    let own: Identity = own.lines().last().unwrap().parse().unwrap();
    fixture.folder.write_cluster(&[own], &fixture.folder.listed().unwrap()).unwrap();
    assert_eq!(check_files(&fixture.folder).unwrap().notes, [""; 0]);
    assert_eq!(fixture.problems(), [""; 0]);
    fs::create_dir_all(fixture.path("other")).unwrap();
    fs::write(fixture.path("other/db.sops.yaml"), file).unwrap();
    fs::write(fixture.path("shop/bad.sops.yaml"), file.replace("2026-11-23T", "2026-11-24T")).unwrap();
    let shown = fixture.problems().join("\n");
    assert!(
        shown.contains("other/db.sops.yaml is for shop/db") && shown.contains("bad.sops.yaml can't"),
        "{shown}"
    );
    assert!(rotate(&fixture.folder).unwrap().contains("sops rotate"));
}

/// Seen red with everything that YAML parses as a map treated as a map: the password ends up in the list of keys.
#[test]
fn values_are_taken_for_what_they_are() {
    let fixture = Fixture::new();
    init(&fixture.folder, &[]).unwrap();
    for (file, values, keys) in [
        ("values", "hunter2:", "value\n"),
        ("values", "user: app\npassword: x\n", "password\nuser\n"),
        (".env", "A=b\nC=d\n", "A\nC\n"),
        (".env.prod", "A=b\n", "A\n"),
        ("db.yaml", "user: app\nhint: ''\n", "hint\nuser\n"),
        ("config.json", "{\"auths\": {}}", "value\n"),
    ] {
        let from = fixture.dir.path().join(file);
        fs::write(&from, values).unwrap();
        seal(&fixture.folder, &SealArgs { from: Some(from), ..sealing("db") }).unwrap();
        assert_eq!(fixture.text("shop/db.keys"), keys, "{file}: {values}");
    }
    let from = fixture.dir.path().join("values");
    fs::write(&from, "name: ada\npassword: x\n").unwrap();
    let args = |format, source: Option<&str>| SealArgs {
        from: Some(from.clone()),
        format,
        source: source.map(str::to_owned),
        ..sealing("db")
    };
    let why = seal(&fixture.folder, &args(None, None)).unwrap_err().to_string();
    assert!(why.contains("--format"), "{why}");
    assert!(seal(&fixture.folder, &args(Some(SecretFormat::Map), Some("a b"))).is_err());
    seal(&fixture.folder, &args(Some(SecretFormat::Map), None)).unwrap();
    assert_eq!(fixture.text("shop/db.keys"), "name\npassword\n");
}

/// An emergency key in addition to the cluster's. Seen red with a secret that counts as the cluster's alone.
#[test]
fn further_recipients_are_not_lost_by_chance() {
    let fixture = Fixture::new();
    init(&fixture.folder, &[]).unwrap();
    let (safe, safe_is) = node();
    let mut args = SealArgs { from: Some(fixture.dir.path().join("values")), ..sealing("db") };
    fs::write(args.from.as_ref().unwrap(), "password: x\n").unwrap();
    args.place.to = vec!["cluster".to_owned(), safe_is];
    seal(&fixture.folder, &args).unwrap();
    let why = fixture.seal("db", "password: y\n", None).unwrap_err().to_string();
    assert!(why.contains("--to"), "{why}");
    seal(&fixture.folder, &args).unwrap();
    let readable = || {
        crypt::decrypt(&fs::read(fixture.path("shop/db.age")).unwrap(), std::slice::from_ref(&safe)).unwrap()
    };
    assert!(readable().is_some() && fixture.problems().is_empty(), "{:?}", fixture.problems());
    assert!(rotate(&fixture.folder).unwrap().contains("recipients other than"));
    assert!(readable().is_none());
}

#[test]
fn a_reconciler_that_is_written_wrong_is_no_comment() {
    let fixture = Fixture::new();
    init(&fixture.folder, &[]).unwrap();
    let list = fixture.text("recipients.txt");
    fs::write(fixture.path("recipients.txt"), format!("{list}# reconciler r1: age1abc\n")).unwrap();
    let why = format!("{:#}", fixture.folder.listed().unwrap_err());
    assert!(why.contains("line 3") && why.contains("no valid age recipient"), "{why}");
}

#[test]
fn names_lead_nowhere_else() {
    let fixture = Fixture::new();
    for name in ["../x", ".identity/cluster", "", "a/b", ".x", "A"] {
        assert!(fixture.folder.secret(Some("shop"), name).is_err(), "{name}");
        assert!(fixture.folder.secret(Some(name), "db").is_err(), "{name}");
    }
}

impl Fixture {
    /// Seals what a file of the work tree holds in clear.
    fn seal_file(
        &self,
        file: &str,
        text: &str,
        change: impl FnOnce(&mut SealArgs),
    ) -> anyhow::Result<String> {
        let from = self.dir.path().join(file);
        fs::write(&from, text).unwrap();
        let mut args = SealArgs { name: None, from: Some(from), remove: true, ..sealing("") };
        args.place.namespace = "default".to_owned();
        change(&mut args);
        seal(&self.folder, &args)
    }

    fn plain(&self, file: &str) -> String {
        String::from_utf8(self.folder.open(&self.path(file)).unwrap().0).unwrap()
    }
}

const POD: &str = "apiVersion: v1\nkind: Pod   # kept\nmetadata: {name: web, namespace: shop}\nspec:\n  containers:\n  - name: app\n    \
image: app:1\n    env:\n    - {name: DB_PASSWORD, value: hunter2}\n    - {name: API_TOKEN, value: ghp_x}\n";

fn secret(name: &str, values: &str) -> String {
    format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: shop}}\n{values}\n")
}

#[test]
fn secrets_in_a_manifest_are_sealed_and_taken_out_of_it() {
    let fixture = Fixture::new();
    let (node, node_is) = node();
    init(&fixture.folder, &[format!("node-1={node_is}")]).unwrap();
    let (db, key) = (secret("db", "stringData: {user: app}"), secret("key", "data: {k: /wA=}"));
    let said = fixture.seal_file("a.yaml", &format!("{db}---\n{POD}---\n{key}"), |_| ()).unwrap();
    assert!(said.contains("shop/db.age with the key user\n") && said.contains("took it out of"), "{said}");
    assert!(!said.contains("app"), "{said}");
    assert_eq!(fs::read_to_string(fixture.dir.path().join("a.yaml")).unwrap(), format!("---\n{POD}"));
    let plain = fixture.as_node(&node, "shop/db.age").unwrap();
    assert_eq!(plain, "namespace: shop\nname: db\nformat: map\n---\nuser: \"app\"\n");
    assert!(fixture.plain("shop/key.age").ends_with("format: base64\n---\nk: /wA=\n"));
    assert_eq!((fixture.text("shop/key.keys"), fixture.problems()), ("k\n".to_owned(), Vec::new()));

    // A sealed secret is replaced if it is named, and stays bound to its source.
    let (before, other) = (fixture.files(), db.replace("app", "root"));
    let why = format!("{:#}", fixture.seal_file("a.yaml", &other, |_| ()).unwrap_err());
    assert!(why.contains("secrets seal db -n shop --from"), "{why}");
    let named = |args: &mut SealArgs| args.name = Some("db".to_owned());
    let to_source =
        |args: &mut SealArgs| (args.name, args.source) = (Some("db".to_owned()), Some("apps".to_owned()));
    for wrong in [
        format!("{}---\n{}", secret("new", "stringData: {a: b}"), secret("bad", "data: {a: '!'}")),
        format!("{}---\n{}", secret("new", "stringData: {a: b}"), secret("new", "stringData: {a: c}")),
        secret("A", "stringData: {a: b}"),
        POD.to_owned(),
    ] {
        fixture.seal_file("b.yaml", &wrong, |_| ()).unwrap_err();
        assert_eq!(fs::read_to_string(fixture.dir.path().join("b.yaml")).unwrap(), wrong);
    }
    assert!(fixture.seal_file("b.yaml", &other, |args| args.place.namespace = "else".to_owned()).is_err());
    assert_eq!(fixture.files(), before);
    fixture.seal_file("a.yaml", &db, to_source).unwrap();
    fixture.seal_file("a.yaml", &format!("{other}---\n{key}"), named).unwrap();
    assert_eq!(fs::read_to_string(fixture.dir.path().join("a.yaml")).unwrap(), format!("---\n{key}"));
    assert_eq!(
        fixture.plain("shop/db.age"),
        "namespace: shop\nname: db\nsource: apps\nformat: map\n---\nuser: \"root\"\n"
    );
    let fewer = other.replace("user", "login");
    assert!(fixture.seal_file("a.yaml", &fewer, named).unwrap().contains("it has no longer: user\n"));
    assert!(fixture.seal_file("a.yaml", &other, named).unwrap().contains("nothing else was in it"));
    let (link, file) = (fixture.dir.path().join("link.yaml"), fixture.dir.path().join("c.yaml"));
    fs::write(&file, secret("late", "stringData: {a: b}")).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let by_link = SealArgs { name: None, from: Some(link), remove: true, ..sealing("") };
    assert!(seal(&fixture.folder, &by_link).is_err() && file.exists());
    assert!(!fixture.dir.path().join("a.yaml").exists());
}

#[test]
fn a_secret_that_sops_encrypted_is_sealed_with_its_key() {
    let fixture = Fixture::new();
    init(&fixture.folder, &[]).unwrap();
    let object = include_str!("../../../../schema/src/secrets/format/sops/testdata/object.yaml");
    let why = format!("{:#}", fixture.seal_file("db.yaml", object, |_| ()).unwrap_err());
    assert!(why.contains("none of your age keys") && why.contains("sops decrypt"), "{why}");
    let own = include_str!("../../../../schema/src/secrets/format/sops/testdata/identity.txt");
    fs::write(fixture.dir.path().join("own.txt"), own).unwrap();
    let said = fixture.seal_file("db.yaml", object, |_| ()).unwrap();
    assert!(said.contains("the keys key, none, user") && !said.contains("history"), "{said}");
    let cluster = include_str!("../../../../schema/src/secrets/format/sops/testdata/identity.txt");
    let cluster: Identity = cluster.lines().last().unwrap().parse().unwrap();
    fixture.folder.write_cluster(&[cluster], &fixture.folder.listed().unwrap()).unwrap();
    assert!(fixture.seal_file("db.yaml", &object.replace("name: db", "name: x"), |_| ()).is_err());
}

#[test]
fn a_password_of_a_manifest_is_sealed_and_its_line_refers_to_it() {
    let fixture = Fixture::new();
    init(&fixture.folder, &[]).unwrap();
    let file = fixture.dir.path().join("web.yaml");
    let line = |line| {
        move |args: &mut SealArgs| {
            let file = args.from.take().unwrap();
            (args.remove, args.from_env) = (false, Some(LineInFile { file, line }));
        }
    };
    let said = fixture.seal_file("web.yaml", POD, line(9)).unwrap();
    assert!(
        said.contains("line 9, now takes DB_PASSWORD from secret web") && !said.contains("hunter2"),
        "{said}"
    );
    // The second one becomes another key of the same secret.
    let text = fs::read_to_string(&file).unwrap();
    fixture.seal_file("web.yaml", &text, line(10)).unwrap();
    assert_eq!(
        fixture.plain("shop/web.age"),
        "namespace: shop\nname: web\nformat: map\n---\nAPI_TOKEN: \"ghp_x\"\nDB_PASSWORD: \"hunter2\"\n"
    );
    let rewritten = fs::read_to_string(&file).unwrap();
    let reference = "valueFrom: {secretKeyRef: {name: web, key: DB_PASSWORD}}";
    assert_eq!(rewritten.matches("value: ").count() + rewritten.matches(reference).count(), 1, "{rewritten}");
    assert_eq!(schema::manifest::load_file("web.yaml", rewritten.as_bytes()).violations, []);

    // Neither another value nor another file of the same secret is lost.
    let before = fixture.files();
    let other = POD.replace("hunter2", "hunter3");
    let why = format!("{:#}", fixture.seal_file("web.yaml", &other, line(9)).unwrap_err());
    assert!(why.contains("has another value of DB_PASSWORD") && !why.contains("hunter"), "{why}");
    fs::write(fixture.path("shop/api.sops.yaml"), "x").unwrap();
    let why = format!(
        "{:#}",
        fixture.seal_file("web.yaml", &POD.replace("name: web", "name: api"), line(9)).unwrap_err()
    );
    assert!(why.contains("api.sops.yaml exists"), "{why}");
    fs::remove_file(fixture.path("shop/api.sops.yaml")).unwrap();
    assert_eq!(fixture.files(), before);
    let named = |args: &mut SealArgs| {
        line(9)(args);
        args.name = Some("login".to_owned());
    };
    fixture.seal_file("web.yaml", &other, named).unwrap();
    assert!(fixture.plain("shop/login.age").ends_with("DB_PASSWORD: \"hunter3\"\n"));
}
