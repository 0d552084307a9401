//! `docs/manifests.md`: every kind and type with its fields.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value as Json;

use super::fields::SchemaView;
use super::{field_description, spellings};
use crate::kinds::Kind;
use crate::kinds::workflow::Spelling;
use crate::manifest::json_schema;

const HEAD: &str = "# Manifests

Made from the Rust types in `schema/src/kinds/` by `schema/tests/published.rs`; `MINIK8S_UPDATE=1 cargo test
-p minik8s-schema --test published` rewrites it. In a terminal: `minik8s explain pod.spec.containers`.

A manifest is a YAML or JSON file of the repository; several documents in a YAML file are separated by `---`.
Kinds whose apiVersion is not `minik8s.io/v1` are written as for Kubernetes. Fields not listed below are errors.
Older spellings are accepted, with a note that gives the current one. `kind: Deployment` is read as a ReplicaSet,
which does rolling updates itself; messages and the CLI call it a ReplicaSet.

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
