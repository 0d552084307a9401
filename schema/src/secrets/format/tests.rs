//! Headers and values as people write them, and rejected ones.

use super::*;

fn keys(format: Format, values: &str) -> Result<String, PlaintextError> {
    entries(format, values.as_bytes()).map(|entries| {
        let shown = entries.iter().map(|(key, value)| format!("{key}={}", String::from_utf8_lossy(value)));
        shown.collect::<Vec<_>>().join(",")
    })
}

#[test]
fn a_header_reads_back_as_it_is_written() {
    for header in [
        Header { namespace: "shop".into(), name: "db".into(), source: None, format: Format::Map },
        Header {
            namespace: ANY.into(),
            name: "registry".into(),
            source: Some(ANY.into()),
            format: Format::Guess,
        },
        Header {
            namespace: "a".into(),
            name: "b".into(),
            source: Some("extra".into()),
            format: Format::Opaque,
        },
    ] {
        let text = format!("{header}values\n");
        assert_eq!(split(text.as_bytes()).unwrap(), (header, b"values\n".as_slice()), "{text}");
    }
    let by_hand = b"# The login\r\nname: 'db'\r\nnamespace: \"*\"\r\n---\r\nx";
    let (header, values) = split(by_hand).unwrap();
    assert_eq!((header.namespace.as_str(), header.name.as_str(), values), (ANY, "db", b"x".as_slice()));
}

#[test]
fn what_says_not_for_whom_it_is_is_unbound_and_half_a_header_is_wrong() {
    for plain in
        ["", "hunter2", "user: app\npassword: x\n", "---\nx", "name: db\n---\nx", "{\"a\": \"b\"}\n---\n"]
    {
        assert_eq!(split(plain.as_bytes()), Err(PlaintextError::Unbound), "{plain:?}");
    }
    assert_eq!(split(b"\xff\xfe\n---\n"), Err(PlaintextError::Unbound));
    for plain in [
        "namespace: a\nname: b\nname: c\n---\n",
        "namespace: a\nname: b\nformat: xml\n---\n",
        "namespace: a\nname: b\nuser: x\n---\n",
        "namespace: a\nname: a b\n---\n",
    ] {
        assert!(matches!(split(plain.as_bytes()), Err(PlaintextError::Header { .. })), "{plain:?}");
    }
}

#[test]
fn a_map_of_texts_has_keys_and_anything_else_is_one_value() {
    let guess = |values: &str| keys(Format::Guess, values).unwrap();
    assert_eq!(guess("user: app\npassword: \"1\"\n"), "password=1,user=app");
    assert_eq!(guess("{\"a\": \"b\\/\"}"), "a=b/");
    // Numbers are texts, exactly as written.
    assert_eq!(guess("pin: 0042\nrate: 1e5\n"), "pin=0042,rate=1e5");
    for whole in
        ["hunter2", "{\"auths\": {\"r\": {}}}", "- a\n", "", "\u{1}", "bXk=", "*secret", "a: b\n---\nc: d\n"]
    {
        assert_eq!(guess(whole), format!("value={whole}"));
    }
    assert!(keys(Format::Map, "- a\n").is_err());
    assert_eq!(keys(Format::Opaque, "a: b").unwrap(), "value=a: b");
    assert_eq!(entries(Format::Guess, b"\xff").unwrap()[WHOLE], b"\xff");
}

/// The first text, of 1 MiB, expands to 1 GB.
#[test]
fn aliases_doubled_keys_and_too_many_are_refused_without_their_text() {
    let mut bomb = format!("a: &a \"{}\"\n", "canary".repeat(4000));
    (0..45_000).for_each(|number| bomb += &format!("k{number}: *a\n"));
    assert!(bomb.len() <= 1024 * 1024);
    let many: String = (0..1001).map(|number| format!("k{number}: canary\n")).collect();
    for format in [Format::Guess, Format::Map] {
        for refused in [bomb.as_str(), "a: &a canary\n<<: *a\n", "a: canary\na: canary\n", &many] {
            let error = keys(format, refused).unwrap_err().to_string();
            assert!(error.len() < 200 && !error.contains("canary"), "{error}");
        }
    }
    assert!(!keys(Format::Map, "a: 'canary").unwrap_err().to_string().contains("canary"));
}

#[test]
fn dotenv_takes_quotes_and_comments_and_substitutes_nothing() {
    let text = "# login\nexport USER=app\nPASSWORD='a $HOME b' # kept\nURL=\"x\\n\\\"$Y\\\"\"\nPLAIN=a b # comment\nEMPTY=\n";
    assert_eq!(
        keys(Format::Dotenv, text).unwrap(),
        "EMPTY=,PASSWORD=a $HOME b,PLAIN=a b,URL=x\n\"$Y\",USER=app"
    );
    assert_eq!(keys(Format::Dotenv, "\u{feff}A=b\n").unwrap(), "A=b");
    for wrong in ["canary", "1A=canary", "A='canary", "A=\"canary", "A=canary\nA=canary", "a b=canary"] {
        let error = keys(Format::Dotenv, wrong).unwrap_err().to_string();
        assert!(error.contains("line") && !error.contains("canary"), "{error}");
    }
}

#[test]
fn values_by_key_are_written_so_that_they_read_back() {
    let of = |pairs: &[(&str, &[u8])]| -> BTreeMap<String, Vec<u8>> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), value.to_vec())).collect()
    };
    let texts = of(&[
        ("tls.crt", b"-----BEGIN\nline\n"),
        (".dockerconfigjson", b"{\"auths\": {}}"),
        ("---", b"a"),
        ("null", b""),
        ("password", "öß: \"x\" #\u{7f}\u{85}\u{2028}😀\t\r\n".as_bytes()),
    ]);
    let bytes = of(&[("key.bin", b"\xff\x00\n"), ("user", b"app")]);
    for (values, format) in [(texts, Format::Map), (bytes, Format::Base64)] {
        let (written, text) = format_entries(&values);
        assert_eq!((written, entries(written, &text).unwrap()), (format, values));
    }
    let wrong = keys(Format::Base64, "a: Zm9v\nb: canary!\n").unwrap_err().to_string();
    assert!(wrong.contains("b is not base64") && !wrong.contains("canary"), "{wrong}");
    assert_eq!(keys(Format::Base64, "a: Zm9v\n").unwrap(), "a=foo");
}
