//! Quotes from manifests in messages: never long, and never a possible secret.

use schema::manifest::load_file;
use schema::violation::TEXT_MAX_CHARS;

use crate::{container, pod};

#[test]
fn a_message_is_short_however_long_the_text_that_it_quotes() {
    let long = "x".repeat(100_000);
    for text in [
        format!("apiVersion: {long}\nkind: Pod\nmetadata:\n  name: a\nspec: {{}}\n"),
        format!("apiVersion: v1\nkind: {long}\nmetadata:\n  name: {long}\nspec: {{}}\n"),
        pod(&format!("{long}: 1")),
        container(&format!("imagePullPolicy: {long}")),
        container(&format!("resources: {{limits: {{memory: {long}}}}}")),
    ] {
        let violations = load_file("a.yaml", text.as_bytes()).violations;
        assert!(!violations.is_empty());
        for violation in violations {
            let object = violation.object.unwrap_or_default();
            for text in [&violation.message, &violation.help, &object] {
                assert!(text.chars().count() <= TEXT_MAX_CHARS + 1, "{} characters", text.chars().count());
            }
        }
    }
}

#[test]
fn a_value_that_may_be_a_secret_is_in_no_message() {
    for canary in ["12345678", "0773551", "[canary12345678]", "{a: canary12345678}", "true"] {
        for text in [
            container(&format!("env:\n- {{name: DB_PASSWORD, value: {canary}}}")),
            container(&format!("env:\n- name: LOGIN\n  value: {canary}")),
            container(&format!("args: [--pin, {canary}]")),
            container(&format!("command: {canary}")),
            pod(&format!("containers: []\npassword: {canary}")),
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: a, annotations: {{n: {canary}}}}}\nspec: {{}}\n"
            ),
        ] {
            for violation in load_file("a.yaml", text.as_bytes()).violations {
                let reported = violation.to_string();
                let value = canary.trim_matches(['[', ']']).trim_start_matches('0');
                assert!(value == "true" || !reported.contains(value), "{reported}");
            }
        }
    }
}

#[test]
fn a_mistake_in_a_value_that_is_not_shown_still_says_what_to_write() {
    let text = container("env:\n- {name: DB_PASSWORD, value: 12345678}");
    let violations = load_file("a.yaml", text.as_bytes()).violations;
    let reported: Vec<_> = violations.iter().map(|v| (v.message.as_str(), v.help.as_str())).collect();
    assert_eq!(
        reported,
        [("spec.containers[0].env[0].value: expected text, found a number", "write it in quotes")]
    );
}
