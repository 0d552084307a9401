//! The manifest loader from outside: valid files, invalid files, broken bytes.

mod bad;
mod beside;
mod broken_bytes;
mod cases;
mod files;
mod good;
mod hostile;
mod kinds;
mod kubernetes;
mod older;
mod quoting;
mod round_trip;
mod sample;
mod sources;
mod workflow;

use schema::manifest::{ManifestFile, load_file};
use schema::violation::{Severity, Violation};

/// A pod whose spec is `spec`, indented by two.
fn pod(spec: &str) -> String {
    let mut text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n".to_owned();
    for line in spec.lines() {
        text.push_str("  ");
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// A pod with a single container that also has these fields.
fn container(fields: &str) -> String {
    let mut spec = "containers:\n- name: web\n  image: nginx\n".to_owned();
    for line in fields.lines() {
        spec.push_str("  ");
        spec.push_str(line);
        spec.push('\n');
    }
    pod(&spec)
}

/// A pod with a single valid container and these pod fields.
fn with(fields: &str) -> String {
    pod(&format!("containers:\n- name: web\n  image: nginx\n{fields}"))
}

/// Loads YAML.
fn load(text: &str) -> ManifestFile {
    load_file("apps/web.yaml", text.as_bytes())
}

/// `rule line:column` of everything but notes.
fn rules(loaded: &ManifestFile) -> Vec<String> {
    let reported = loaded.violations.iter().filter(|violation| violation.severity != Severity::Note);
    reported.map(rule_at).collect()
}

/// `rule line:column`.
fn rule_at(violation: &Violation) -> String {
    format!("{} {}:{}", violation.rule, violation.line, violation.column)
}
