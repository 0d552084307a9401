//! Files that are not manifests or can't be parsed: their classification, and every limit.

use schema::kinds::cluster::PodSecurityLevel;
use schema::manifest::{is_manifest_path, limits, load_file, load_pod_security};

use super::{container, load, rules};

#[test]
fn files_without_kinds_are_left_alone() {
    for text in [
        "",
        "# only a comment\n",
        "---\n---\n",
        "replicas: 3\nimage: nginx\nimage: twice\n",
        "- hosts: all\n  tasks: []\n",
        "just text\n",
        "Bucket: !Ref bucket\n",
        "spec: {a: b}\n",
        "bind: 0.0.0.0\nmetadata: {}\n",
    ] {
        let loaded = load(text);
        assert_eq!((loaded.is_manifest, loaded.violations), (false, vec![]), "{text}");
    }
    assert!(!load_file("package.json", br#"{"name": "x", "version": "1"}"#).is_manifest);
    assert!(!load_file("README.md", container("").as_bytes()).is_manifest);
    assert!(is_manifest_path("a/b.YML") && !is_manifest_path("yaml") && !is_manifest_path("a.yaml/b"));
}

#[test]
fn a_file_that_cannot_be_read_may_have_been_a_manifest() {
    let cases: [(&[u8], &str); 15] = [
        (b"a: [1\n", "yaml-syntax 2:1"),
        (b"a: b: c\n", "yaml-syntax 1:5"),
        (b"a:\n\tb: c\n", "yaml-syntax 2:1"),
        (b"a: *nowhere\n", "yaml-syntax 1:4"),
        (b"a: &a [*a]\n", "yaml-syntax 1:8"),
        (b"{{ .Values.x }}: 1\n", "yaml-syntax 1:2"),
        (b"a: b\nc: \xff\n", "not-utf8 2:4"),
        (b"\xff\xfea\0:\0", "not-utf8 0:0"),
        (b"a: b\0\nkind: Pod\n", "control-character 1:5"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "lfs-pointer 1:1"),
        (b"\0GITCRYPT\0\xff", "not-utf8 0:0"),
        (
            b"#{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{},\"spec\":{}}\n",
            "commented-manifest 1:1",
        ),
        (b"- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n", "not-a-mapping 1:1"),
        (b"? apiVersion: v1\n  kind: Pod\n  metadata: {}\n", "yaml-syntax 1:3"),
        (b"foo: bar\n---\napiVersion: v1\nkind: Service\n---\n# nothing\n", "missing-kind 1:1"),
    ];
    for (bytes, wanted) in cases {
        let loaded = load_file("a.yaml", bytes);
        let text = String::from_utf8_lossy(bytes);
        assert!(loaded.is_manifest && loaded.has_errors() && loaded.documents.is_empty(), "{text}");
        assert_eq!(rules(&loaded)[0], wanted, "{text}");
    }
}

#[test]
fn json_errors_have_a_place() {
    for (text, wanted) in [
        ("{\"kind\": 1,}", "json-syntax 1:12"),
        ("{\n  // comment\n\"kind\": 1}", "json-syntax 2:3"),
        ("{\"kind\": True}", "json-syntax 1:10"),
        ("{\"kind\": \"b\n\"}", "json-syntax 1:12"),
        ("{\"kind\": \"Pod\", \"kind\": \"Pod\"}", "api-version 1:2"),
    ] {
        assert_eq!(rules(&load_file("a.json", text.as_bytes()))[0], wanted, "{text}");
    }
}

#[test]
fn byte_order_marks_and_crlf_are_accepted() {
    let text = format!("\u{feff}{}", container("tt: true").replace('\n', "\r\n"));
    assert_eq!(rules(&load(&text)), ["unknown-field 9:5"]);
    assert_eq!(load(&text.replace("tt:", "tty:")).documents.len(), 1);
}

#[test]
fn every_bound_is_named() {
    let large = format!("a: {}\n", "x".repeat(limits::FILE_MAX_BYTES));
    let deep = format!("a:\n  {}1{}\n", "[".repeat(100), "]".repeat(100));
    let very_deep = "[".repeat(500_000);
    let documents = "--- 1\n".repeat(limits::DOCUMENTS_MAX + 1);
    let many = format!("a: [{}]\n", "1,".repeat(300_000));
    let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, before) in "bcdefghi".chars().zip("abcdefgh".chars()) {
        bomb.push_str(&format!("{name}: &{name} [{}]\n", vec![format!("*{before}"); 10].join(", ")));
    }
    let mut alias_depth = "k: &a0 [x]\n".to_owned();
    for i in 0..100 {
        alias_depth.push_str(&format!("k{i}: &a{} [*a{i}]\n", i + 1));
    }
    for (text, rule) in [
        (&large, "too-large"),
        (&deep, "too-deep"),
        (&very_deep, "too-deep"),
        (&documents, "too-many-documents"),
        (&many, "too-many-nodes"),
        (&bomb, "too-many-nodes"),
        (&alias_depth, "too-deep"),
    ] {
        let loaded = load(text);
        assert_eq!(loaded.violations.len(), 1, "{rule}");
        assert_eq!(loaded.violations[0].rule, rule, "{}", loaded.violations[0]);
    }
    let json = "[".repeat(500_000);
    assert_eq!(load_file("a.json", json.as_bytes()).violations[0].rule, "too-deep");
}

#[test]
fn of_very_many_violations_the_first_errors_are_reported() {
    let text = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\n{}x: 1\n", "x: 1\n".repeat(5000));
    let loaded = load(&text);
    assert_eq!(loaded.violations.len(), limits::VIOLATIONS_MAX + 1);
    assert_eq!(loaded.violations[0].rule, "more-violations");
    assert!(loaded.violations[0].message.starts_with("9002 more"), "{}", loaded.violations[0].message);
    assert!(loaded.has_errors());
}

#[test]
fn an_object_must_fit_under_one_key() {
    let text = container(&format!("args: [\"{}\"]", "x".repeat(limits::OBJECT_MAX_BYTES)));
    assert_eq!(rules(&load(&text)), ["too-large 1:0"]);
}

#[test]
fn brackets_may_end_at_the_column_of_their_key() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {\n  name: web\n}\nspec:\n  containers: [\n    {\n    name: web, image: nginx, args: [\n  \"--a\",\n  b\n  ], tty: maybe\n  }\n  ]\n  hostNetwork: perhaps\n";
    // The columns are those of the file.
    assert_eq!(rules(&load(text)), ["wrong-type 12:11", "wrong-type 15:16"]);
    let text = text.replace("maybe", "true").replace("perhaps", "true");
    assert_eq!(load(&text).documents.len(), 1);
    // Each such line requires parsing the whole file again, so their number is limited.
    let long = format!("a:\n  b:\n{}", "    - [\n1\n  ]\n".repeat(1000));
    assert_eq!(rules(&load(&long)).len(), 1);
    // Outside brackets, indentation is significant.
    assert_eq!(rules(&load("a:\n    b: c\n  d: e\n")), ["yaml-syntax 3:3"]);
}

#[test]
fn a_comment_that_speaks_of_manifests_is_a_comment() {
    for comment in [
        "# kind, metadata and spec are as in Kubernetes",
        "# apiVersion, kind and metadata: see {docs}",
        "--- # kind: Pod; of metadata and spec see below",
        "# spec (see metadata and kind) is {whole}",
    ] {
        let loaded = load(&format!("{comment}\n{}", container("")));
        assert_eq!((rules(&loaded), loaded.documents.len()), (vec![], 1), "{comment}");
    }
    let gone = r#"#"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}"#;
    assert_eq!(rules(&load(&format!("{gone}\n{}", container("")))), ["commented-manifest 1:1"]);
    // Text inside a block is not a comment of the file.
    let loaded = load(&container(&format!("args:\n- |\n  cat > a.yaml\n  {gone}")));
    assert_eq!((rules(&loaded), loaded.documents.len()), (vec![], 1));
}

// Seen red with every unreadable file taken for a manifest.
#[test]
fn what_cannot_be_read_and_has_no_word_of_a_manifest_is_another_programs() {
    let foreign = |path: &str, text: &str| {
        let loaded = load_file(path, text.as_bytes());
        let rules: Vec<&str> = loaded.violations.iter().map(|violation| violation.rule.as_str()).collect();
        (loaded.is_manifest, rules.join(","))
    };
    let other = (false, "foreign-file".to_owned());
    assert_eq!(foreign(".vscode/settings.json", "{\n  // tabs\n  \"editor.tabSize\": 2\n}\n"), other);
    assert_eq!(
        foreign(
            ".config.yml",
            "a: [
"
        ),
        other
    );
    assert_eq!(foreign("a/.b/c/data.json", &format!("[\"{}\"]", "x".repeat(2 << 20))), other);
    // One word is enough for doubt.
    for word in ["kind", "apiVersion", "metadata", "spec"] {
        assert!(foreign(".a/a.yaml", &format!("{word}: x\nb: [\n")).0, "{word}");
        assert!(foreign(".a/a.json", &format!("{{\"{word}\": 1, }}")).0, "{word}");
    }
    assert!(foreign(".a/a.yaml", "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n").0);
    assert!(foreign(".a/a.yaml", "\0\0\0\0").0);
    assert!(foreign("config.yml", "a: [\n").0, "it may have been a manifest");
}

/// Seen red with serde alone, which ignores a field that it does not know.
#[test]
fn restrictions_on_pods_in_a_file_of_their_own_are_read_strictly() {
    let text = "# of this node\nlevel: baseline\nexemptNamespaces:\n- kube-tools\n";
    for text in
        [text.to_owned(), format!("---\n{text}"), "{level: baseline, exemptNamespaces: [kube-tools]}".into()]
    {
        let policy = load_pod_security("/etc/pods.yaml", &text).unwrap();
        assert_eq!(
            (policy.level, policy.exempt_namespaces),
            (PodSecurityLevel::Baseline, vec!["kube-tools".into()])
        );
    }
    for (text, place, rule) in [
        ("level: baseline\nforbidHostNetwrk: true\n", "/etc/pods.yaml:2:1: ", "unknown-field"),
        ("---\nlevel: none\n", "/etc/pods.yaml:2:8: ", "unknown-value"),
        ("allowHostPaths: [/srv, srv]\n", "/etc/pods.yaml:1:24: ", "invalid-path"),
        ("podSecurity: {level: baseline}\n", "/etc/pods.yaml:1:1: ", "unknown-field"),
        ("- level\n", "/etc/pods.yaml:1:1: ", "wrong-type"),
        ("level: {\n", "/etc/pods.yaml:", "yaml-syntax"),
    ] {
        let errors = load_pod_security("/etc/pods.yaml", text).unwrap_err();
        let first = errors[0].to_string();
        assert!(first.starts_with(place) && errors[0].rule == rule, "{text:?}: {first}");
    }
    assert!(load_pod_security("/etc/pods.yaml", "").is_err(), "an empty file is a mistake");
}
