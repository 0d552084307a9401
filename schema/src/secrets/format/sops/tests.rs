//! Files written by SOPS 3.11, intact and tampered with.

use super::super::{Format, entries, split};
use super::*;

const YAML: &str = include_str!("testdata/db.sops.yaml");
const JSON: &str = include_str!("testdata/two.sops.json");
/// Output of `age -d -i testdata/identity.txt` for `sops.age[].enc`.
const YAML_KEY: &str = "4fc178406a353cfdf9a336ef2c83291abb9c44c5ae1059584cf66b9acb257b22";
const JSON_KEY: &str = "255a5801ceebf0e28b42d9ec67217a815bddd7ef89e3379aecec55e3015ede2c";

fn key(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn open(text: &str, hex: &str) -> Result<Vec<u8>, SopsError> {
    SopsFile::parse(text.as_bytes())?.plaintext(&key(hex))
}

/// The file with `other` in place of the lines that begin with `begins`.
fn with(begins: &str, other: impl Fn(&str) -> String) -> String {
    YAML.lines()
        .map(|line| if line.starts_with(begins) { other(line) } else { format!("{line}\n") })
        .collect()
}

#[test]
fn what_sops_wrote_is_read_as_a_secret_with_a_header() {
    let plain = open(YAML, YAML_KEY).unwrap();
    let (header, values) = split(&plain).unwrap();
    let wanted = Header { namespace: "shop".into(), name: "db".into(), source: None, format: Format::Map };
    assert_eq!(header, wanted);
    let entries = entries(header.format, values).unwrap();
    let texts: Vec<(&str, &str)> =
        entries.iter().map(|(key, value)| (key.as_str(), str::from_utf8(value).unwrap())).collect();
    let wanted = [
        ("active", "true"),
        ("certificate", "line one\nline two\n"),
        ("empty", ""),
        ("password", "hunter2 öß: \"x\""),
        ("pin", "42"),
        ("rate", "1.5"),
        ("user", "app"),
    ];
    assert_eq!(texts, wanted);
    let sealed = SopsFile::parse(YAML.as_bytes()).unwrap();
    let keys = ["user", "password", "pin", "rate", "active", "empty", "certificate"];
    assert_eq!((sealed.keys().collect::<Vec<_>>(), sealed.data_keys().len()), (keys.to_vec(), 1));

    let plain = open(JSON, JSON_KEY).unwrap();
    assert_eq!(
        String::from_utf8(plain).unwrap(),
        "namespace: \"*\"\nname: db\nsource: extra\nformat: map\n---\n{\"password\":\"a<b>&c\"}"
    );
    assert_eq!(SopsFile::parse(JSON.as_bytes()).unwrap().data_keys().len(), 2);
}

#[test]
fn what_was_changed_afterwards_is_refused() {
    let line = |begins: &str| YAML.lines().find(|line| line.starts_with(begins)).unwrap().to_owned();
    let value = |begins: &str| line(begins).split_once(": ").unwrap().1.to_owned();
    let damaged = |key: &str| Some(SopsError::Value(key.to_owned()));
    for (what, text, wanted) in [
        (
            "a value under another key",
            with("user:", |_| format!("user: {}\n", value("password"))),
            damaged("user"),
        ),
        ("a key renamed", with("user:", |line| line.replace("user:", "login:") + "\n"), damaged("login")),
        (
            "the header moved",
            with("namespace:", |_| format!("namespace: {}\n", value("name:"))),
            damaged("namespace"),
        ),
        ("a value removed", with("user:", |_| String::new()), Some(SopsError::Mac)),
        (
            "another order",
            with("user:", |_| String::new()).replace("sops:\n", &format!("{}\nsops:\n", line("user:"))),
            Some(SopsError::Mac),
        ),
        ("another time", YAML.replace("2026-11-23T", "2026-11-24T"), damaged("sops.mac")),
        ("a type", with("pin:", |line| line.replace("type:int", "type:str") + "\n"), None),
        ("only a comment", YAML.replacen("#ENC", "#CNE", 1), None),
    ] {
        assert_eq!(open(&text, YAML_KEY).err(), wanted, "{what}");
    }
    assert_eq!(open(YAML, JSON_KEY).err(), damaged("namespace"), "another data key");
    assert_eq!(open(YAML, "00").err(), damaged("sops.age"));
}

#[test]
fn what_does_not_say_for_whom_it_is_and_what_is_in_clear_is_refused() {
    let name_only = with("namespace:", |_| String::new());
    // Without the namespace the MAC differs: the values are checked first.
    assert_eq!(open(&name_only, YAML_KEY).err(), Some(SopsError::Mac));
    for (text, wanted) in [
        (with("namespace:", |_| "namespace: shop\n".to_owned()), SopsError::Clear("namespace".into())),
        (with("pin:", |_| "pin_unencrypted: 42\n".to_owned()), SopsError::Clear("pin_unencrypted".into())),
        (with("pin:", |_| "pin: {a: b}\n".to_owned()), SopsError::Nested("pin".into())),
        ("namespace: a\nname: db\npassword: canary\n".to_owned(), SopsError::NotEncrypted("mac")),
        ("sops: {mac: x, lastmodified: y}\n".to_owned(), SopsError::NoAge),
        (YAML.replace("    mac:", "    mac_only_encrypted: true\n    mac:"), SopsError::PartialMac),
        (with("    mac:", |_| String::new()), SopsError::NotEncrypted("mac")),
    ] {
        assert_eq!(open(&text, YAML_KEY).err(), Some(wanted), "{text}");
    }
}

/// Each text is rejected immediately, with an error that reveals none of its values.
#[test]
fn bombs_and_nonsense_are_refused() {
    let mut bomb = format!("a: &a \"{}\"\n", "canary".repeat(4000));
    (0..45_000).for_each(|number| bomb += &format!("k{number}: *a\n"));
    let many: String = (0..11_000).map(|number| format!("k{number}: canary\n")).collect();
    let deep = "a: ".to_owned() + &"[".repeat(5000) + "canary";
    for text in [
        &bomb,
        &many,
        &deep,
        "canary",
        "- canary",
        "",
        "a: canary\n---\nb: c\n",
        "a: canary\na: b\n",
        "a: 'canary",
        "\u{1}",
    ] {
        let error = SopsFile::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.len() < 200 && !error.contains("canary"), "{error}");
    }
    assert!(SopsFile::parse(b"\xff").is_err());
}

/// A Secret in the form that SOPS gives it with `encrypted_regex: ^(data|stringData)$`.
const OBJECT: &str = include_str!("testdata/object.yaml");
const OBJECT_KEY: &str = "6d1f0b8a5e3c49b7a2d4e6f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c";

#[test]
fn a_secret_of_kubernetes_is_decrypted_whole_and_its_mac_covers_what_is_in_clear() {
    let decrypt = |text: &str| SopsObject::parse(text)?.decrypt(&key(OBJECT_KEY));
    let found: Value = serde_json::from_str(&decrypt(OBJECT).unwrap()).unwrap();
    let wanted = serde_json::json!({
        "apiVersion": "v1", "kind": "Secret", "immutable": true,
        "metadata": {"name": "db", "namespace": "shop", "creationTimestamp": null},
        "data": {"key": "/wA=", "none": ""}, "stringData": {"user": "app"},
    });
    assert_eq!(found, wanted);
    let value = |begins: &str| OBJECT.lines().find_map(|line| line.strip_prefix(begins)).unwrap();
    let (of_key, of_user) = (value("    key: "), value("    user: "));
    for (other, wanted) in [
        (OBJECT.replace("name: db", "name: cache"), SopsError::Mac),
        (OBJECT.replace("immutable: true", "immutable: false"), SopsError::Mac),
        (OBJECT.replace("    user:", "    login:"), SopsError::Value("stringData.login".into())),
        (OBJECT.replace(of_key, of_user), SopsError::Value("data.key".into())),
        (OBJECT.replace(of_key, "YXBw"), SopsError::Clear("data.key".into())),
        (OBJECT.replace(of_user, "true"), SopsError::Clear("stringData.user".into())),
        (OBJECT.replace("    version", "    mac_only_encrypted: true\n    version"), SopsError::PartialMac),
        (OBJECT.replace("sops:", "sop:"), SopsError::NotEncrypted("mac")),
        (OBJECT.replace("    age:", "    pgp:"), SopsError::NoAge),
    ] {
        assert_eq!(decrypt(&other).err(), Some(wanted), "{other}");
    }
    // Why no node reads it: the MAC holds for other names of the same letters.
    let moved = OBJECT.replace("name: db\n    namespace: shop", "namespace: dbs\n    name: hop");
    assert!(decrypt(&moved).unwrap().contains("\"hop\""));
    assert_eq!(SopsFile::parse(OBJECT.as_bytes()).err(), Some(SopsError::Object));
    // Documents of one file have one MAC.
    assert!(matches!(decrypt(&format!("{OBJECT}---\n{OBJECT}")), Err(SopsError::Syntax(_))));
}
