//! Secrets taken out of files, and passwords replaced on their line; everything else stays as it was.

use super::*;

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\nspec:\n  containers:\n  - name: app\n    image: app:1\n    env:\n";

fn secret(name: &str) -> String {
    format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\nstringData: {{a: b}}\n")
}

/// The rest of a YAML file without its secrets of these numbers.
fn rest(text: &str, taken: &[usize]) -> Result<Option<String>, String> {
    let file = FileOfSecrets::read("a.yaml", text.as_bytes())?;
    let rest = file.without(taken)?;
    Ok(rest.map(|rest| String::from_utf8(rest).unwrap()))
}

fn read(text: &str) -> Result<SecretObject, String> {
    FileOfSecrets::read("a.yaml", text.as_bytes())?.secrets().next().ok_or("none")?.read()
}

/// Rules of `Secret` in `staging/src/k8s.io/api/core/v1/types.go` of kubernetes/kubernetes: `stringData` wins.
#[test]
fn a_secret_has_the_values_of_data_and_string_data() {
    let text = "# The login\napiVersion: v1\nkind: Secret\nmetadata:\n  name: db\n  namespace: shop\n  creationTimestamp: null\n  labels: {a: \
b}\ntype: kubernetes.io/basic-auth\ndata:\n  password: aHVudGVyMg==\n  key.bin: |\n    /wA\n    B\n  empty:\n  user: YXBw\nstringData:\n  user: \
root\n  text: |\n    one\n    two\n";
    let found = read(text).unwrap_or_else(|why| panic!("{why}"));
    let values: Vec<(&str, &[u8])> =
        found.values.iter().map(|(key, value)| (key.as_str(), value.as_slice())).collect();
    let wanted: [(&str, &[u8]); 5] = [
        ("empty", b""),
        ("key.bin", b"\xff\x00\x01"),
        ("password", b"hunter2"),
        ("text", b"one\ntwo\n"),
        ("user", b"root"),
    ];
    assert_eq!(values, wanted);
    assert_eq!((found.namespace.as_deref(), found.name.as_str()), (Some("shop"), "db"));
    assert_eq!(found.left_out, ["metadata.labels", "type"]);
    let json = SecretObject::from_json(
        r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"},"data":{"k":"eA=="}}"#,
    );
    assert_eq!(json.unwrap_or_else(|why| panic!("{why}")).values["k"], b"x");
}

#[test]
fn what_a_sealed_secret_cannot_hold_is_refused_without_its_values() {
    let secret = |rest: &str| format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: a}}\n{rest}\n");
    for (text, part) in [
        (secret("data: {k: canary!}"), "data.k is not base64"),
        (secret("stringData: {k: 12}"), "stringData.k is a number or a boolean"),
        (secret("stringData: {k: yes}"), "put it in quotes"),
        (secret("stringData: {k: {canary: 1}}"), "is not text"),
        (secret("stringData: {a/b: canary}"), "no file name"),
        (secret("stringDate: {k: canary}"), "did you mean `stringData`?"),
        (secret("data: canary"), "data must be a map"),
        (secret("data: {}"), "has no values"),
        (secret("type: kubernetes.io/service-account-token\ndata: {k: eA==}"), "no API of Kubernetes"),
        (secret("data: {k: eA==}").replace("v1", "v2"), "apiVersion must be v1"),
        (secret("data: {k: eA==}").replace("{name: a}", "{generateName: a}"), "metadata.name is missing"),
        (secret("data: {k: eA==, k: canary}"), "line 4: `k` is written twice"),
        (format!("{}---\na: [canary\n", secret("data: {k: eA==}")), "not valid YAML"),
    ] {
        let why = read(&text).err().unwrap_or_else(|| panic!("{text}"));
        assert!(why.contains(part) && !why.contains("canary"), "{text}: {why}");
    }
}

#[test]
fn a_secret_leaves_a_file_that_is_otherwise_the_same() {
    let [a, b] = ["a", "b"].map(secret);
    let pod = "# A pod\nkind: Pod   # kept\n\n";
    for (text, taken, left) in [
        (format!("{pod}---\n{a}"), vec![1], Some(pod.to_owned())),
        (format!("{a}---\n{pod}"), vec![0], Some(format!("---\n{pod}"))),
        (
            format!("---\n{a}--- # next\n{pod}---\n{b}---\n{pod}"),
            vec![0, 2],
            Some(format!("--- # next\n{pod}---\n{pod}")),
        ),
        (format!("{pod}---\n{a}---\n{b}"), vec![2], Some(format!("{pod}---\n{a}"))),
        (format!("\u{feff}{a}---\r\n{pod}"), vec![0], Some(format!("\u{feff}---\r\n{pod}"))),
        (format!("{pod}---\n{}", a.trim_end()), vec![1], Some(pod.to_owned())),
        (format!("text: |\n  ---\n  a\n---\n{a}"), vec![1], Some("text: |\n  ---\n  a\n".to_owned())),
        (a.clone(), vec![0], None),
        (
            format!("# Logins\n---\n{a}---\n---\n{b}---\n"),
            vec![1, 3],
            Some("# Logins\n---\n---\n".to_owned()),
        ),
        (
            "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: a}}\n"
                .to_owned(),
            vec![0],
            None,
        ),
    ] {
        assert_eq!(rest(&text, &taken).unwrap(), left, "{text}");
    }
    let list = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: a}}\n- {apiVersion: v1, kind: Pod}\n";
    for (text, taken) in [
        (list.to_owned(), 0),
        (format!("%YAML 1.2\n---\n{a}---\n{pod}"), 0),
        (format!("{pod}---\n{a}...\n"), 0),
    ] {
        let why = rest(&text, &[taken]).unwrap_err();
        assert!(why.contains("by hand"), "{text}: {why}");
    }
    let found = FileOfSecrets::read(
        "a.json",
        br#"{"apiVersion":"v1","kind":"Secret"} {"apiVersion":"v1","kind":"Pod"}"#,
    )
    .unwrap_or_else(|why| panic!("{why}"));
    assert!(found.secrets().count() == 1 && found.without(&[0]).is_err());
}

fn sealed(path: &str, text: &str, line: u32) -> Result<String, String> {
    seal_line(path, text.as_bytes(), line, None).map(|sealed| {
        let values: Vec<String> = sealed.values.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!((sealed.namespace.as_deref(), sealed.secret.as_str()), (Some("shop"), "web"));
        format!("{}\n{}", values.join(","), sealed.text.strip_prefix(POD).unwrap_or(&sealed.text))
    })
}

#[test]
fn a_password_becomes_a_reference_on_its_line() {
    const REFERENCE: &str = "valueFrom: {secretKeyRef: {name: web, key: DB_PASSWORD}}";
    for (written, line, value, rewritten) in [
        (
            "    - name: DB_PASSWORD\n      value: hunter2   # old\n    - {name: A, value: b}\n",
            10,
            "hunter2",
            "    - name: DB_PASSWORD\n      REF   # old\n    - {name: A, value: b}\n",
        ),
        (
            "    - value: 'it''s: x'\n      name: DB_PASSWORD\n",
            9,
            "it's: x",
            "    - REF\n      name: DB_PASSWORD\n",
        ),
        (
            "    - name: DB_PASSWORD\n      value: \"a\\\"b\\\\\"\n",
            10,
            "a\"b\\",
            "    - name: DB_PASSWORD\n      REF\n",
        ),
        ("    - {name: DB_PASSWORD, value: hunter2}\n", 9, "hunter2", "    - {name: DB_PASSWORD, REF}\n"),
        (
            "    - {value: hunter2, name: DB_PASSWORD} # x\n",
            9,
            "hunter2",
            "    - {REF, name: DB_PASSWORD} # x\n",
        ),
        (
            "    - name: DB_PASSWORD\n      value: |\n        one\n\n        two\n\n    - {name: A, value: b}\n",
            10,
            "one\n\ntwo\n",
            "    - name: DB_PASSWORD\n      REF\n\n    - {name: A, value: b}\n",
        ),
        (
            "    - name: DB_PASSWORD\n      value:\n        hunter2\n",
            10,
            "hunter2",
            "    - name: DB_PASSWORD\n      REF\n",
        ),
    ] {
        let found = sealed("a.yaml", &format!("{POD}{written}"), line)
            .unwrap_or_else(|why| panic!("{written}: {why}"));
        assert_eq!(
            found,
            format!("DB_PASSWORD={value}\n{}", rewritten.replace("REF", REFERENCE)),
            "{written}"
        );
    }
    // A value that is alone on its line is taken, whatever it is.
    let found = sealed("a.yaml", &format!("{POD}    - name: \"ON\"\n      value: x\n"), 10).unwrap();
    assert_eq!(
        found,
        "ON=x\n    - name: \"ON\"\n      valueFrom: {secretKeyRef: {name: web, key: \"ON\"}}\n"
    );
    // Two on one line, between others, in a template and in JSON.
    let json = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop"}, "spec": {"containers": [{"name": "a", "image": "a:1", "env": [{"name": "A_PASSWORD", "value": "x"}, {"name": "B", "value": "y"}, {"name": "C_PASSWORD", "value": "z"}]}]}}"#;
    let wanted = json
        .replace(r#""value": "x""#, r#""valueFrom": {"secretKeyRef": {"name": "web", "key": "A_PASSWORD"}}"#)
        .replace(r#""value": "z""#, r#""valueFrom": {"secretKeyRef": {"name": "web", "key": "C_PASSWORD"}}"#);
    assert_eq!(sealed("a.json", json, 1).unwrap(), format!("A_PASSWORD=x,C_PASSWORD=z\n{wanted}"));
}

// Seen red with the text as it is written: a container gets `$` for `$$`, but not from a secret.
#[test]
fn a_sealed_value_is_what_the_container_got() {
    let sealed_as = |value: &str| {
        let text = format!("{POD}    - {{name: A_PASSWORD, value: '{value}'}}\n");
        seal_line("a.yaml", text.as_bytes(), 9, None).map(|sealed| sealed.values["A_PASSWORD"].clone())
    };
    assert_eq!(sealed_as("pa$$word$"), Ok("pa$word$".to_owned()));
    assert_eq!(sealed_as("$$(HOST)"), Ok("$(HOST)".to_owned()));
    assert!(sealed_as("$$$(HOST)").is_err());
}

#[test]
fn a_line_that_cannot_be_rewritten_safely_is_left_alone() {
    let pod = |env: &str| format!("{POD}{env}");
    let second =
        "---\napiVersion: v1\nkind: Pod\nmetadata: {name: b}\nspec: {containers: [{name: b, image: b}]}\n";
    for (text, line, part) in [
        (pod("    - {name: DB_PASSWORD, value: canary}\n"), 8, "no `value` of a variable"),
        (pod("    - name: DB_PASSWORD\n      value: canary\n        two\n"), 10, "put it in quotes"),
        (
            pod("    - name: DB_PASSWORD\n      value: &a canary\n    - {name: B, value: *a}\n"),
            10,
            "put it in quotes",
        ),
        (pod("    - name: DB_PASSWORD\n      value: !!str canary\n"), 10, "put it in quotes"),
        (pod("    - {name: A_PASSWORD, value: canary, value: canary2}\n"), 9, "another error"),
        (
            pod(
                "    - {name: A_PASSWORD, value: canary, valueFrom: {fieldRef: {fieldPath: metadata.name}}}\n",
            ),
            9,
            "another error",
        ),
        (
            pod("    - {name: A_PASSWORD, value: canary, x: [{name: A_PASSWORD, value: canary2}]}\n")
                .replace("x:", "env:"),
            9,
            "two values of A_PASSWORD",
        ),
        (format!("{}{second}{{{{", pod("    - {name: A_PASSWORD, value: canary}\n")), 9, "not valid YAML"),
        (pod("    - {name: A_PASSWORD, value: canary$(HOST)}\n"), 9, "not expanded in a secret"),
    ] {
        let why = seal_line("a.yaml", text.as_bytes(), line, None).err().unwrap_or_else(|| panic!("{text}"));
        assert!(why.contains(part) && !why.contains("canary"), "{text}: {why}");
    }
    let two = r#"[{"name": "A", "value": "x"}, {"name": "B", "value": "y"}]"#;
    let pods = r#"{"env": [{"name": "A", "value": "x"}]}"#;
    let list = format!(r#"{{"kind": "List", "items": [{pods}, {pods}]}}"#)
        .replace(r#"{"env"#, r#"{"kind": "Pod", "env"#);
    for (path, text, line, part) in [
        ("a.yaml", POD.replace("env:\n", &format!("env: {two}\n")), 8, "several values"),
        ("a.json", list, 1, "several objects"),
        ("a.txt", String::new(), 1, "neither"),
    ] {
        let why = seal_line(path, text.as_bytes(), line, None).err().unwrap_or_else(|| panic!("{text}"));
        assert!(why.contains(part), "{why}");
    }
    // No secret can have this name.
    let named =
        seal_line("a.yaml", pod("    - {name: A_PASSWORD, value: x}\n").as_bytes(), 9, Some("Bad Name"));
    assert!(named.err().is_some_and(|why| why.contains("another error")));
}

/// Commands as they can be copied.
#[test]
fn an_error_names_the_command_that_seals() {
    let errors = |path: &str, text: &str| -> Vec<(String, u32, String)> {
        load_file(path, text.as_bytes()).violations.into_iter().map(|v| (v.rule, v.line, v.help)).collect()
    };
    let found = errors("my apps/db.yaml", &format!("{}type: 5\nfoo: canary\n", secret("db")));
    let [(rule, 2, help)] = found.as_slice() else { panic!("{found:?}") };
    assert!(
        rule == "unknown-kind"
            && help.starts_with("'minik8s secrets seal --from \"my apps/db.yaml\" --remove'"),
        "{help}"
    );
    let found = errors("a.yaml", &format!("{}sops: {{mac: x}}\n", secret("db")));
    let [(_, 2, help)] = found.as_slice() else { panic!("{found:?}") };
    assert!(help.starts_with("'minik8s secrets seal --from a.yaml --remove' decrypts"), "{help}");
    let found = errors("apps/web.yaml", &format!("{POD}    - name: DB_PASSWORD\n      value: hunter2\n"));
    let [(rule, 10, help)] = found.as_slice() else { panic!("{found:?}") };
    assert!(
        rule == "literal-secret"
            && help.starts_with("'minik8s secrets seal --from-env apps/web.yaml:10' seals"),
        "{help}"
    );
}
