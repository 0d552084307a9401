//! A folder of secrets from its beginning to a node that joins, one that is lost, and mistakes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::inspect::{Reported, of_files, of_nodes};
use super::seal::seal;
use super::*;
use crate::args::{SealArgs, SecretFormat, WhichSecret};
use crate::crypt;

struct World {
    dir: tempfile::TempDir,
    folder: Folder,
}

fn node() -> (Identity, String) {
    let identity = Identity::generate();
    let recipient = identity.to_public().to_string();
    (identity, recipient)
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let args = SecretsArgs {
            dir: dir.path().to_owned(),
            identity: Some(dir.path().join("own.txt")),
            command: SecretsCommand::Rotate,
        };
        let folder = Folder::of(&args).unwrap();
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

    /// What a node has of a secret: first the cluster's identity, then the plaintext.
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
        of_files(&self.folder).unwrap().problems
    }
}

fn sealing(name: &str) -> SealArgs {
    let which =
        WhichSecret { name: name.to_owned(), namespace: "shop".to_owned(), shared: false, to: Vec::new() };
    SealArgs { which, from: None, format: None, source: None }
}

fn add_node(world: &World, name: &str, recipient: &str) -> anyhow::Result<String> {
    let (name, recipient) = (name.to_owned(), recipient.to_owned());
    let change = RecipientsChange::Add { name, recipient, reconciler: false };
    recipients(&world.folder, Some(&change))
}

#[test]
fn a_node_that_joins_reads_all_and_changes_no_secret() {
    let world = World::new();
    let ((one, one_is), (two, two_is)) = (node(), node());
    init(&world.folder, &[format!("node-1={one_is}")]).unwrap();
    world.seal("db", "user: app\npassword: hunter2\n", None).unwrap();
    world.seal("token", "A=b\n", Some(SecretFormat::Dotenv)).unwrap();
    assert_eq!(world.text("shop/db.keys"), "password\nuser\n");
    assert_eq!(
        world.as_node(&one, "shop/db.age").unwrap(),
        "namespace: shop\nname: db\nformat: map\n---\nuser: app\npassword: hunter2\n"
    );
    assert_eq!(world.as_node(&two, "shop/db.age"), None);
    assert_eq!(world.problems(), [""; 0]);
    assert!(init(&world.folder, &[]).is_err(), "never a second one in its place");

    let (before, recipient) = (world.files(), world.text(".identity/cluster.pub"));
    add_node(&world, "node-2", &two_is).unwrap();
    assert_eq!((world.files(), world.text(".identity/cluster.pub")), (before, recipient));
    for node in [&one, &two] {
        assert!(world.as_node(node, "shop/token.age").unwrap().ends_with("format: dotenv\n---\nA=b\n"));
    }
    assert!(world.text("recipients.txt").contains(&format!("# node-2\n{two_is}\n")));
    assert!(add_node(&world, "node-3", &two_is).is_err() && add_node(&world, "node-2", &node().1).is_err());
    // One that was listed by hand.
    let (three, three_is) = node();
    fs::write(
        world.path("recipients.txt"),
        world.text("recipients.txt") + &format!("# node-3\n{three_is}\n"),
    )
    .unwrap();
    assert!(world.problems()[0].contains("recipients add"), "{:?}", world.problems());
    add_node(&world, "node-3", &three_is).unwrap();
    assert!(world.as_node(&three, "shop/token.age").is_some());
    assert_eq!(world.problems(), [""; 0]);
}

#[test]
fn after_a_rotation_a_removed_node_reads_nothing_new_and_the_others_what_there_was() {
    let world = World::new();
    let ((kept, kept_is), (lost, lost_is)) = (node(), node());
    init(&world.folder, &[format!("kept={kept_is}"), format!("lost={lost_is}")]).unwrap();
    world.seal("db", "password: hunter2\n", None).unwrap();
    let former = fs::read(world.path("shop/db.age")).unwrap();
    recipients(&world.folder, Some(&RecipientsChange::Remove { name: "lost".to_owned() })).unwrap();
    rotate(&world.folder).unwrap();
    assert!(world.as_node(&kept, "shop/db.age").unwrap().contains("hunter2"));
    assert_eq!(world.as_node(&lost, "shop/db.age"), None);
    let identities = world.folder.cluster_identities().unwrap();
    assert_eq!(identities.len(), 2, "a pod may still start with the former file");
    assert!(crypt::decrypt(&former, &identities[1..]).unwrap().is_some());
    assert!(
        crypt::decrypt(&fs::read(world.path("shop/db.age")).unwrap(), &identities[1..]).unwrap().is_none()
    );
    rotate(&world.folder).unwrap();
    assert_eq!(world.folder.cluster_identities().unwrap().len(), 2);
    assert_eq!(world.problems(), [""; 0]);
}

#[test]
fn what_age_alone_made_is_bound_by_seal() {
    let world = World::new();
    init(&world.folder, &[]).unwrap();
    fs::create_dir_all(world.path("shop")).unwrap();
    let cluster = [world.folder.cluster().unwrap()];
    fs::write(world.path("shop/db.age"), crypt::encrypt(b"password: hunter2\n", &cluster).unwrap()).unwrap();
    let shown = world.problems();
    assert!(shown[0].contains("minik8s secrets seal db -n shop") && shown.len() == 1, "{shown:?}");
    seal(&world.folder, &sealing("db")).unwrap();
    assert_eq!(world.problems(), [""; 0]);
    assert_eq!(world.text("shop/db.keys"), "password\n");

    // A copy says what it is for, and a list that was changed by hand is reported.
    fs::create_dir_all(world.path("other")).unwrap();
    fs::copy(world.path("shop/db.age"), world.path("other/db.age")).unwrap();
    fs::write(world.path("shop/db.keys"), "pasword\n").unwrap();
    fs::write(world.path("plain.age"), "password: canary\n").unwrap();
    let shown = world.problems().join("\n");
    for part in ["other/db.age is for shop/db", "shop/db.keys lists other keys", "plain.age is not encrypted"]
    {
        assert!(shown.contains(part), "{shown}");
    }
    assert!(!shown.contains("canary"), "{shown}");
}

#[test]
fn a_secret_for_single_nodes_stays_theirs() {
    let world = World::new();
    let (own, own_is) = node();
    init(&world.folder, &[format!("node-1={own_is}")]).unwrap();
    let mut args = sealing("only");
    args.which.to = vec!["node-1".to_owned()];
    args.from = Some(world.dir.path().join("values"));
    fs::write(args.from.as_ref().unwrap(), "x").unwrap();
    seal(&world.folder, &args).unwrap();
    let ciphertext = fs::read(world.path("shop/only.age")).unwrap();
    assert!(crypt::decrypt(&ciphertext, &[own]).unwrap().is_some());
    let checked = of_files(&world.folder).unwrap();
    assert!(checked.problems.is_empty() && checked.notes[0].contains("single recipients"), "{checked:?}");
    assert!(rotate(&world.folder).unwrap().contains("stays as it is"));
    assert_eq!(fs::read(world.path("shop/only.age")).unwrap(), ciphertext);
}

// Seen red without a look at what is replaced: the cluster can read both.
#[test]
fn new_values_of_a_secret_get_no_more_readers_and_stay_bound_to_its_source() {
    let world = World::new();
    let (_, one_is) = node();
    init(&world.folder, &[format!("node-1={one_is}")]).unwrap();
    fs::write(world.dir.path().join("values"), "password: x\n").unwrap();
    let own = world.folder.own().unwrap().unwrap()[0].to_public().to_string();
    // One that only a node reads, and one that this person reads, too.
    for (name, to) in [("only", vec!["node-1".to_owned()]), ("mine", vec!["node-1".to_owned(), own])] {
        let from = Some(world.dir.path().join("values"));
        let mut args = SealArgs { from, ..sealing(name) };
        args.which.to = to;
        seal(&world.folder, &args).unwrap();
        let before = fs::read(world.path(&format!("shop/{name}.age"))).unwrap();
        let why = format!("{:#}", world.seal(name, "password: y\n", None).unwrap_err());
        assert!(why.contains("--to"), "{why}");
        assert_eq!(fs::read(world.path(&format!("shop/{name}.age"))).unwrap(), before);
        // Who says for whom it is may.
        seal(&world.folder, &args).unwrap();
    }
    let from = Some(world.dir.path().join("values"));
    seal(&world.folder, &SealArgs { from, source: Some("apps".to_owned()), ..sealing("db") }).unwrap();
    world.seal("db", "password: y\n", None).unwrap();
    let (plain, _) = world.folder.open(&world.path("shop/db.age")).unwrap();
    assert_eq!(plain, b"namespace: shop\nname: db\nsource: apps\nformat: map\n---\npassword: y\n");
}

// Seen red with only one former identity kept: the secret that was left has no reader while the second runs.
#[test]
fn a_rotation_that_is_killed_between_files_is_finished_by_the_next() {
    let world = World::new();
    let (own, own_is) = node();
    init(&world.folder, &[format!("node-1={own_is}")]).unwrap();
    for name in ["a", "b", "c"] {
        world.seal(name, &format!("password: {name}\n"), None).unwrap();
    }
    let before = world.files();
    let recipient = world.text(".identity/cluster.pub");
    rotate(&world.folder).unwrap();
    let rotated = world.text(".identity/cluster.pub");
    // It was killed: before the recipient was written, and after the first secret.
    fs::write(world.path(".identity/cluster.pub"), &recipient).unwrap();
    for name in ["b", "c"] {
        fs::write(world.path(&format!("shop/{name}.age")), &before[name]).unwrap();
    }
    let is_readable = || {
        for name in ["a", "b", "c"] {
            let plain = world.as_node(&own, &format!("shop/{name}.age")).unwrap();
            assert!(plain.ends_with(&format!("password: {name}\n")), "{plain}");
        }
    };
    is_readable();
    let former = world.folder.cluster_identities().unwrap();
    let said = rotate(&world.folder).unwrap();
    assert!(said.contains("encrypted 3 secrets"), "{said}");
    // What a lost node may know is not the newest, also where a rotation before was not finished.
    assert_ne!(world.text(".identity/cluster.pub"), rotated);
    let kept = world.folder.cluster_identities().unwrap();
    assert_eq!(kept.len(), 1 + former.len(), "all that decrypts what may still be there");
    is_readable();
    let newest = &world.folder.cluster_identities().unwrap()[..1];
    for name in ["a", "b", "c"] {
        let file = fs::read(world.path(&format!("shop/{name}.age"))).unwrap();
        assert!(crypt::decrypt(&file, newest).unwrap().is_some(), "{name} needs the former identity");
    }
    assert_eq!(world.problems(), [""; 0]);
    rotate(&world.folder).unwrap();
    assert_eq!(world.folder.cluster_identities().unwrap().len(), 2);
    is_readable();
}

#[test]
fn what_nodes_report_is_compared_with_the_list() {
    let listed = |name: &str, recipient: &str| {
        let (name, recipient) = (name.into(), recipient.into());
        Listed { name, recipient, is_reconciler: false }
    };
    let node = |name: &str, recipient: Option<&str>, cluster: Option<&str>| Reported {
        name: name.into(),
        recipient: recipient.map(str::to_owned),
        cluster: cluster.map(str::to_owned),
    };
    let list = [listed("n1", "age1a"), listed("n2", "age1b")];
    assert_eq!(of_nodes(&list, Some("age1c"), &[node("n1", Some("age1a"), Some("age1c"))]), [""; 0]);
    for (reported, part) in [
        (node("n3", Some("age1x"), None), "recipients add n3 age1x"),
        (node("n2", Some("age1b"), Some("age1old")), "does not have the newest cluster identity"),
        (node("n2", Some("age1b"), None), "does not have the newest cluster identity"),
        (node("n1", None, None), "has no identity"),
        (node("n1", Some("age1evil"), Some("age1c")), "the list has age1a for n1"),
    ] {
        let shown = of_nodes(&list, Some("age1c"), &[reported]).join("\n");
        assert!(shown.contains(part), "{shown}");
    }
}

#[test]
fn a_reconciler_reads_credentials_of_sources_and_no_secret_of_a_pod() {
    let world = World::new();
    let ((one, one_is), (reconciler, reconciler_is)) = (node(), node());
    init(&world.folder, &[format!("node-1={one_is}")]).unwrap();
    let token = || SealArgs {
        which: WhichSecret { namespace: ".sources".to_owned(), ..sealing("apps").which },
        from: Some(world.dir.path().join("values")),
        ..sealing("apps")
    };
    fs::write(world.dir.path().join("values"), "token: hunter2\n").unwrap();
    let why = seal(&world.folder, &token()).unwrap_err().to_string();
    assert!(why.contains("--reconciler"), "{why}");
    let identity = world.text(".identity/cluster.age");
    let (name, recipient) = ("r1".to_owned(), reconciler_is.clone());
    recipients(&world.folder, Some(&RecipientsChange::Add { name, recipient, reconciler: true })).unwrap();
    assert!(world.text("recipients.txt").contains(&format!("# reconciler r1: {reconciler_is}\n")));
    assert_eq!(world.text(".identity/cluster.age"), identity, "the cluster's identity is not for it");
    seal(&world.folder, &token()).unwrap();
    let ciphertext = fs::read(world.path(".sources/apps.age")).unwrap();
    let plain = crypt::decrypt(&ciphertext, &[reconciler]).unwrap().unwrap();
    assert_eq!(plain, b"namespace: .sources\nname: apps\nformat: map\n---\ntoken: hunter2\n");
    // Neither another node nor a rotation lets it read more.
    add_node(&world, "node-2", &node().1).unwrap();
    rotate(&world.folder).unwrap();
    assert_eq!(crypt::recipients_of(world.text(".identity/cluster.age").as_bytes()).unwrap(), 3);
    assert!(crypt::decrypt(&ciphertext, &[one]).unwrap().is_none());
    assert_eq!(world.problems(), [""; 0]);
}

#[test]
fn a_file_of_sops_is_checked_as_the_others() {
    let world = World::new();
    init(&world.folder, &[]).unwrap();
    let file = include_str!("../../../../schema/src/plaintext/sops/testdata/db.sops.yaml");
    fs::create_dir_all(world.path("shop")).unwrap();
    fs::write(world.path("shop/db.sops.yaml"), file).unwrap();
    let checked = of_files(&world.folder).unwrap();
    assert!(checked.problems.is_empty() && checked.notes.len() == 1, "{checked:?}");
    // As the identity to which it is encrypted.
    let own = include_str!("../../../../schema/src/plaintext/sops/testdata/identity.txt");
    let own: Identity = own.lines().last().unwrap().parse().unwrap();
    world.folder.write_cluster(&[own], &world.folder.listed().unwrap()).unwrap();
    assert_eq!(of_files(&world.folder).unwrap().notes, [""; 0]);
    assert_eq!(world.problems(), [""; 0]);
    fs::create_dir_all(world.path("other")).unwrap();
    fs::write(world.path("other/db.sops.yaml"), file).unwrap();
    fs::write(world.path("shop/bad.sops.yaml"), file.replace("2026-11-23T", "2026-11-24T")).unwrap();
    let shown = world.problems().join("\n");
    assert!(
        shown.contains("other/db.sops.yaml is for shop/db") && shown.contains("bad.sops.yaml can't"),
        "{shown}"
    );
    assert!(rotate(&world.folder).unwrap().contains("sops rotate"));
}

/// Seen red with a map for all that YAML takes for one: the password is in the list of keys.
#[test]
fn values_are_taken_for_what_they_are() {
    let world = World::new();
    init(&world.folder, &[]).unwrap();
    for (file, values, keys) in [
        ("values", "hunter2:", "value\n"),
        ("values", "user: app\npassword: x\n", "password\nuser\n"),
        (".env", "A=b\nC=d\n", "A\nC\n"),
        (".env.prod", "A=b\n", "A\n"),
        ("db.yaml", "user: app\nhint: ''\n", "hint\nuser\n"),
        ("config.json", "{\"auths\": {}}", "value\n"),
    ] {
        let from = world.dir.path().join(file);
        fs::write(&from, values).unwrap();
        seal(&world.folder, &SealArgs { from: Some(from), ..sealing("db") }).unwrap();
        assert_eq!(world.text("shop/db.keys"), keys, "{file}: {values}");
    }
    let from = world.dir.path().join("values");
    fs::write(&from, "name: ada\npassword: x\n").unwrap();
    let args = |format, source: Option<&str>| SealArgs {
        from: Some(from.clone()),
        format,
        source: source.map(str::to_owned),
        ..sealing("db")
    };
    let why = seal(&world.folder, &args(None, None)).unwrap_err().to_string();
    assert!(why.contains("--format"), "{why}");
    assert!(seal(&world.folder, &args(Some(SecretFormat::Map), Some("a b"))).is_err());
    seal(&world.folder, &args(Some(SecretFormat::Map), None)).unwrap();
    assert_eq!(world.text("shop/db.keys"), "name\npassword\n");
}

/// A key for emergencies beside the cluster's. Seen red with a secret that counts as the cluster's alone.
#[test]
fn further_recipients_are_not_lost_by_chance() {
    let world = World::new();
    init(&world.folder, &[]).unwrap();
    let (safe, safe_is) = node();
    let mut args = SealArgs { from: Some(world.dir.path().join("values")), ..sealing("db") };
    fs::write(args.from.as_ref().unwrap(), "password: x\n").unwrap();
    args.which.to = vec!["cluster".to_owned(), safe_is];
    seal(&world.folder, &args).unwrap();
    let why = world.seal("db", "password: y\n", None).unwrap_err().to_string();
    assert!(why.contains("--to"), "{why}");
    seal(&world.folder, &args).unwrap();
    let readable = || {
        crypt::decrypt(&fs::read(world.path("shop/db.age")).unwrap(), std::slice::from_ref(&safe)).unwrap()
    };
    assert!(readable().is_some() && world.problems().is_empty(), "{:?}", world.problems());
    assert!(rotate(&world.folder).unwrap().contains("other recipients"));
    assert!(readable().is_none());
}

#[test]
fn a_reconciler_that_is_written_wrong_is_no_comment() {
    let world = World::new();
    init(&world.folder, &[]).unwrap();
    let list = world.text("recipients.txt");
    fs::write(world.path("recipients.txt"), format!("{list}# reconciler r1: age1abc\n")).unwrap();
    let why = format!("{:#}", world.folder.listed().unwrap_err());
    assert!(why.contains("line 3") && why.contains("no valid age recipient"), "{why}");
}

#[test]
fn names_lead_nowhere_else() {
    let world = World::new();
    for name in ["../x", ".identity/cluster", "", "a/b", ".x", "A"] {
        assert!(world.folder.secret(Some("shop"), name).is_err(), "{name}");
        assert!(world.folder.secret(Some(name), "db").is_err(), "{name}");
    }
}
