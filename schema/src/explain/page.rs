//! `docs/manifests.md`: every kind and type with its fields. `docs/kubernetes.md`: what of Kubernetes runs, is left out, or is
//! refused.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value as Json;

use super::fields::SchemaView;
use super::{field_description, spellings};
use crate::document::nearest::list;
use crate::kinds::workflow::Spelling;
use crate::kinds::{DEPLOYMENT, Kind, OWN_API_VERSION, REPLICATION_CONTROLLER};
use crate::manifest::{json_schema, unsupported};

const HEAD: &str = "# Manifests

Made from the Rust types in `schema/src/kinds/` by `schema/tests/published.rs`; `MINIK8S_UPDATE=1 cargo test
-p minik8s-schema --test published` rewrites it. In a terminal: `minik8s explain pod.spec.containers`.

A manifest is a YAML or JSON file of the repository; several documents in a YAML file are separated by `---`.
Kinds whose apiVersion is not `minik8s.io/v1` are written as for Kubernetes. Fields not listed below are errors.
Older spellings are accepted, with a note that gives the current one. `kind: Deployment` is read as a ReplicaSet,
which does rolling updates itself; the CLI calls it a ReplicaSet. So is `kind: ReplicationController` of `v1`.

## In an editor

`schema/json/manifest.json` is a JSON Schema (draft 2020-12) for manifests of any kind; there is one per kind
next to it. `minik8s schema > manifest.json` prints the one for your version.

- Anything with yaml-language-server (VS Code, Neovim, Helix, Emacs): the first line of a file, with a path that
  is relative to the file, or a URL: `# yaml-language-server: $schema=../manifest.json`
- VS Code for a whole repository, in `.vscode/settings.json`:
  `{\"yaml.schemas\": {\"./manifest.json\": [\"apps/**/*.yaml\", \"*.yaml\"]}}`
- JetBrains: Settings, Languages & Frameworks, Schemas and DTDs, JSON Schema Mappings.

The schemas describe the recommended form: they reject older spellings, numbers in place of text and null, which the
loader accepts. `minik8s validate` also makes the checks that a schema can't express (`docs/rules.md`).

## Kinds

| kind | short | apiVersion | description |
|---|---|---|---|
";

/// Renders `docs/manifests.md`.
pub fn manifests_page() -> String {
    let any = json_schema::for_any_kind();
    let mut page = HEAD.to_owned();
    for kind in Kind::ALL {
        let what = json_schema::description(kind);
        let _ = writeln!(
            page,
            "| [{kind}](#{}) | `{}` | `{}` | {what} |",
            kind.as_str().to_lowercase(),
            kind.short_name(),
            kind.api_version()
        );
    }
    page.push_str("\nAll kinds have the same `metadata`:\n\n");
    let definition =
        |name: &str| any.pointer(&format!("/$defs/{name}")).map(|_| SchemaView::definition(&any, name));
    page.push_str(&definition("ObjectMeta").map(|shape| table(&any, shape)).unwrap_or_default());
    let mut covered = BTreeSet::from(["ObjectMeta".to_owned()]);
    for kind in Kind::ALL {
        let names = [format!("{kind}Spec"), format!("{kind}Manifest")];
        let Some((name, spec)) = names.into_iter().find_map(|name| Some((name.clone(), definition(&name)?)))
        else {
            continue;
        };
        let _ = write!(page, "\n## {kind}\n\n{}\n\n", json_schema::description(kind));
        page.push_str(&table(&any, spec));
        for Spelling { title, what, example } in spellings(kind) {
            let _ = write!(page, "\n### {title}\n\n{what}\n\n```yaml\n{example}```\n");
        }
        covered.insert(name);
    }
    page.push_str("\n## Types\n");
    let names =
        any["$defs"].as_object().map(|all| all.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    for name in names.into_iter().filter(|name| !covered.contains(name) && !name.ends_with("Manifest")) {
        let Some(shape) = definition(&name) else { continue };
        if shape.object().is_none() {
            continue;
        }
        let _ = write!(page, "\n### {name}\n\n{}\n\n", shape.description());
        page.push_str(&table(&any, shape));
    }
    page
}

fn table(any: &Json, object: SchemaView<'_>) -> String {
    let fields = object.fields();
    if fields.is_empty() {
        return "No fields.\n".to_owned();
    }
    let mut text = String::from("| field | type | default | what |\n|---|---|---|---|\n");
    for field in fields {
        let name = if field.required { format!("**`{}`**", field.name) } else { format!("`{}`", field.name) };
        // `[][Container](#container)` would be another kind of link.
        let type_name = field.shape.type_name().replace("[]", "list of ").replace("map[string]", "map of ");
        let own =
            |name: &str| any["$defs"].get(format!("{}Manifest", name.trim_end_matches("Spec"))).is_some();
        let type_name = match field.shape.object_name() {
            Some(target) => {
                let anchor = if own(target) { target.trim_end_matches("Spec") } else { target };
                type_name.replace(target, &format!("[{target}](#{})", anchor.to_lowercase()))
            }
            None => type_name,
        };
        let required = if field.required { "Required. " } else { "" };
        let default = field.shape.default().map(|default| format!("`{default}`")).unwrap_or_default();
        let what = field_description(&field).replace('\n', " ").replace('|', "\\|");
        let _ = writeln!(text, "| {name} | {type_name} | {default} | {required}{what} |");
    }
    text
}

// What of Kubernetes runs here, is left out with a note, or is refused.

const KUBERNETES_HEAD: &str = "# What of Kubernetes runs

Made from the Rust types in `schema/src/kinds/` and the tables in `schema/src/manifest/unsupported.rs` by
`schema/tests/published.rs`; `MINIK8S_UPDATE=1 cargo test -p minik8s-schema --test published` rewrites it.
`schema/tests/kubernetes_fields.rs` compares it with Kubernetes' own types: each of their fields has a place here.

What a manifest says either runs, or one error at its line says what takes its place. What would change nothing here is
**left out**, with a note (rule `no-effect`). [manifests.md](manifests.md) explains the fields that run, and those that
Kubernetes lacks; `minik8s validate FILE` says it of a file.

## Kinds

| kind | apiVersion | here |
|---|---|---|
";

/// Returns true if the field of Kubernetes, which the type `record` lacks, is left out with a note or refused with advice.
pub fn is_known_field(record: &str, field: &str) -> bool {
    let mut rows = unsupported::fields_without_effect(record).chain(unsupported::refused_fields(record));
    rows.any(|(names, ..)| names.contains(&field))
}

/// Renders `docs/kubernetes.md`.
pub fn kubernetes_page() -> String {
    let mut page = KUBERNETES_HEAD.to_owned();
    let ours = |kind: &Kind| kind.api_version() != OWN_API_VERSION;
    for kind in Kind::ALL.iter().filter(|kind| ours(kind)) {
        let _ = writeln!(page, "| {kind} | `{}` | runs |", kind.api_version());
        if *kind == Kind::ReplicaSet {
            let _ = writeln!(page, "| {DEPLOYMENT} | `{}` | runs, as a {kind} |", kind.api_version());
            let _ = writeln!(page, "| {REPLICATION_CONTROLLER} | `v1` | runs, as a {kind} |");
        }
    }
    for (group, kind, why) in unsupported::kinds_without_effect() {
        let _ = writeln!(page, "| {kind} | {} | left out: {why} |", of_group(group));
    }
    for (kind, help) in unsupported::refused_kinds() {
        let _ = writeln!(page, "| {kind} | | refused: {help} |");
    }
    page.push_str("\n## Fields\n\nBy type, as in Kubernetes' reference.\n");
    let (any, mut covered) = (json_schema::for_any_kind(), BTreeSet::new());
    for kind in Kind::ALL.into_iter().filter(ours) {
        let names = [format!("{kind}Spec"), format!("{kind}Manifest")];
        let types = any["$defs"].as_object();
        if let Some((name, _)) = names.iter().find_map(|name| types?.get_key_value(name)) {
            record(&any, name, &mut covered, &mut page);
        }
    }
    page.push_str("\n## Values\n\n| value | in place of it |\n|---|---|\n");
    for (value, help) in unsupported::refused_values() {
        let _ = writeln!(page, "| `{value}` | {help} |");
    }
    page
}

fn of_group(group: &str) -> String {
    let version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
    format!("`{version}`")
}

/// Adds a type, and the types of its fields behind it, each once.
fn record<'a>(any: &'a Json, name: &'a str, covered: &mut BTreeSet<&'a str>, page: &mut String) {
    if !covered.insert(name) {
        return;
    }
    let fields = SchemaView::definition(any, name).fields();
    let runs: Vec<String> = fields.iter().map(|field| format!("`{}`", field.name)).collect();
    let heading = name.strip_suffix("Manifest").unwrap_or(name);
    let _ = write!(page, "\n### {heading}\n\nRuns: {}.\n", runs.join(", "));
    let left_out = unsupported::fields_without_effect(name).map(|row| ("left out", row));
    let refused = unsupported::refused_fields(name).map(|row| ("refused", row));
    for (index, (treatment, (names, why, values))) in left_out.chain(refused).enumerate() {
        if index == 0 {
            page.push_str("\n| field | here |\n|---|---|\n");
        }
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let only =
            if values.is_empty() { String::new() } else { format!(" with {}", list(values.iter().copied())) };
        let _ = writeln!(page, "| {}{only} | {treatment}: {why} |", names.join(", "));
    }
    for field in fields {
        if let Some((below, _)) = field.shape.object()
            && let Some(name) = below.object_name()
        {
            record(any, name, covered, page);
        }
    }
}
