//! JSON Schema (draft 2020-12) of whole manifests, for editors, `minik8s schema` and `minik8s explain`.
//!
//! Combines and simplifies the schemas of the Rust types. They describe the recommended form: the loader also takes
//! older spellings, numbers where text is wanted, and null for absent.

use schemars::{Schema, SchemaGenerator, schema_for};
use serde_json::{Map, Value as Json, json};

use super::shape::{FILE_MODE_MAX, compile};
use crate::kinds::{FieldPlacement, Kind};
use crate::meta::ObjectMeta;

/// A number with an optional suffix, as [`crate::quantity`] reads it.
const QUANTITY: &str = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][0-9]+)?$";

/// Returns the schema of a kind's manifest.
pub fn for_kind(kind: Kind) -> Json {
    let mut generator = SchemaGenerator::default();
    let mut whole = manifest(kind, &mut generator);
    finish(&mut whole, generator);
    sorted(whole)
}

/// Returns the schema of a manifest of any kind.
pub fn for_any_kind() -> Json {
    let mut generator = SchemaGenerator::default();
    let manifests: Vec<(Kind, Json)> =
        Kind::ALL.into_iter().map(|kind| (kind, manifest(kind, &mut generator))).collect();
    let refs = manifests.iter().map(|(kind, _)| json!({"$ref": format!("#/$defs/{}", definition(*kind))}));
    let mut whole = json!({
        "title": "Manifest",
        "description": "A Minik8s object of any kind.",
        "oneOf": refs.collect::<Vec<_>>(),
    });
    finish(&mut whole, generator);
    for (kind, mut manifest) in manifests {
        simplify(&mut manifest);
        whole["$defs"][definition(kind)] = manifest;
    }
    sorted(whole)
}

/// Formats a schema as text: keywords in the order in which people read them, the rest in the order of names.
pub fn text(schema: &Json) -> String {
    let schema = Schema::try_from(schema.clone()).expect("a schema is an object");
    serde_json::to_string_pretty(&schema).expect("JSON has only text keys") + "\n"
}

/// Returns a one-sentence description of a kind.
pub fn description(kind: Kind) -> String {
    let kinds = schema_for!(Kind);
    let branches = kinds.get("oneOf").and_then(Json::as_array);
    let branch = branches.and_then(|all| all.iter().find(|branch| branch["const"] == kind.as_str()));
    branch.and_then(|branch| branch["description"].as_str()).unwrap_or_default().to_owned()
}

/// Returns the name of a kind's whole manifest among the definitions; no type has this name.
fn definition(kind: Kind) -> String {
    format!("{kind}Manifest")
}

fn manifest(kind: Kind, generator: &mut SchemaGenerator) -> Json {
    let metadata = generator.subschema_for::<ObjectMeta>();
    let described = |schema: Schema, text: &str| {
        let mut schema = schema.to_value();
        schema["description"] = Json::from(text);
        schema
    };
    let mut whole = json!({
        "title": kind.as_str(),
        "description": description(kind),
        "type": "object",
        "properties": {
            "apiVersion": {"const": kind.api_version(), "description": "Version of the kind."},
            "kind": {"const": kind.as_str(), "description": "The kind."},
            "metadata": described(metadata, "Name, namespace, labels and the like."),
        },
        "required": ["apiVersion", "kind", "metadata"],
        "additionalProperties": false,
    });
    match kind.descriptor().fields {
        FieldPlacement::InSpec => {
            let spec = compile::schema_within(kind, generator);
            whole["properties"]["spec"] = described(spec, "Desired state of the object.");
            if let Json::Array(required) = &mut whole["required"] {
                required.push(Json::from("spec"));
            }
        }
        FieldPlacement::AtTop => {
            let own = compile::schema(kind).to_value();
            for (name, field) in own["properties"].as_object().into_iter().flatten() {
                whole["properties"][name] = field.clone();
            }
        }
    }
    whole
}

/// Adds the dialect and the definitions.
fn finish(whole: &mut Json, mut generator: SchemaGenerator) {
    whole["$schema"] = Json::from("https://json-schema.org/draft/2020-12/schema");
    whole["$defs"] = Json::Object(generator.take_definitions(true));
    simplify(whole);
}

/// Rewrites schemars' output for Rust types into an equivalent that people and any validator understand.
fn simplify(schema: &mut Json) {
    match schema {
        Json::Array(items) => items.iter_mut().for_each(simplify),
        Json::Object(keys) => {
            without_null(keys);
            without_formats(keys);
            let is_empty =
                |value: &Json| value.is_null() || value == "" || *value == json!([]) || *value == json!({});
            // Rust has no place for a comment on the field that distinguishes variants.
            if let Some(word) = keys.get("const").cloned() {
                let text = format!("The type: `{}`.", word.as_str().unwrap_or_default());
                keys.entry("description").or_insert(Json::from(text));
            }
            // An empty default is the same as absence.
            if keys.get("default").is_some_and(is_empty) {
                keys.remove("default");
            }
            keys.iter_mut()
                .filter(|(key, _)| *key != "default" && *key != "const")
                .for_each(|(_, below)| simplify(below));
        }
        _ => {}
    }
}

/// Rewrites `Option<T>` to `T`: the field is simply left out.
fn without_null(keys: &mut Map<String, Json>) {
    if keys.get("format").and_then(Json::as_str) == Some("nullable") {
        // Here null has a meaning: Amazon's `"ResultPath": null`.
        keys.remove("format");
        return;
    }
    if let Some(Json::Array(types)) = keys.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            keys.insert("type".to_owned(), only);
        }
    }
    let Some(Json::Array(branches)) = keys.get("anyOf") else { return };
    if let [Json::Object(value), null] = branches.as_slice()
        && null["type"] == "null"
    {
        let value = value.clone();
        keys.remove("anyOf");
        for (key, below) in value {
            // The field's own description says more than its type's.
            keys.entry(key).or_insert(below);
        }
    }
}

/// Rewrites formats of Rust's integers and of our quantities to bounds and patterns.
fn without_formats(keys: &mut Map<String, Json>) {
    let bounds = match keys.get("format").and_then(Json::as_str) {
        Some("cpu-quantity" | "memory-quantity" | "count-quantity") => {
            keys.remove("format");
            keys.insert("pattern".to_owned(), Json::from(QUANTITY));
            return;
        }
        Some("file-mode") => (Some(0), Some(i64::from(FILE_MODE_MAX))),
        Some("uint8") => (Some(0), Some(i64::from(u8::MAX))),
        Some("uint16") => (Some(0), Some(i64::from(u16::MAX))),
        Some("uint32") => (Some(0), Some(i64::from(u32::MAX))),
        Some("int32") => (Some(i64::from(i32::MIN)), Some(i64::from(i32::MAX))),
        Some("uint64" | "uint") => (Some(0), None),
        Some("int64" | "int" | "double" | "float") => (None, None),
        _ => return,
    };
    keys.remove("format");
    for (key, bound) in [("minimum", bounds.0), ("maximum", bounds.1)] {
        if let Some(bound) = bound {
            keys.entry(key).or_insert(Json::from(bound));
        }
    }
}

/// Sorts keys by name, whatever map serde_json was built with.
fn sorted(value: Json) -> Json {
    match value {
        Json::Object(keys) => {
            let mut keys: Vec<(String, Json)> = keys.into_iter().collect();
            keys.sort_by(|one, other| one.0.cmp(&other.0));
            Json::Object(keys.into_iter().map(|(key, value)| (key, sorted(value))).collect())
        }
        Json::Array(items) => Json::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `look` on every subschema, with its path.
    fn each(schema: &Json, at: &str, look: &mut impl FnMut(&str, &Map<String, Json>)) {
        match schema {
            Json::Object(keys) => {
                look(at, keys);
                for (key, below) in keys.iter().filter(|(key, _)| *key != "default") {
                    each(below, &format!("{at}/{key}"), look);
                }
            }
            Json::Array(items) => {
                items.iter().enumerate().for_each(|(i, item)| each(item, &format!("{at}/{i}"), look));
            }
            _ => {}
        }
    }

    #[test]
    fn every_field_says_what_it_is_for() {
        let mut silent = Vec::new();
        let any = for_any_kind();
        each(&any, "", &mut |at, keys| {
            for (name, field) in keys.get("properties").and_then(Json::as_object).into_iter().flatten() {
                let text = field["description"].as_str().unwrap_or_default();
                // Text that only rustdoc understands is no text for people.
                if text.is_empty() || text.contains("::") && !text.contains("`::`") || text.contains("[`") {
                    silent.push(format!("{at}/{name}: {text:?}"));
                }
            }
        });
        assert!(silent.is_empty(), "{silent:#?}");
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_definition_is_used() {
        for schema in Kind::ALL.into_iter().map(for_kind).chain([for_any_kind()]) {
            let mut used = std::collections::BTreeSet::new();
            each(&schema, "", &mut |at, keys| {
                if let Some(Json::String(reference)) = keys.get("$ref") {
                    let name = reference.strip_prefix("#/$defs/").unwrap();
                    assert!(schema["$defs"].get(name).is_some(), "{at}: {reference}");
                    used.insert(name.to_owned());
                }
            });
            let all: Vec<&String> = schema["$defs"].as_object().unwrap().keys().collect();
            assert_eq!(all, used.iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn nothing_of_rust_is_left_in_it() {
        let text = text(&for_any_kind());
        for word in ["\"uint", "\"int3", "-quantity", "\"double\"", "\"nullable\""] {
            assert!(!text.contains(word), "{word}");
        }
        let replicas = &for_kind(Kind::ReplicaSet)["$defs"]["ReplicaSetSpec"]["properties"]["replicas"];
        assert_eq!(replicas["minimum"], 0, "{replicas}");
    }

    #[test]
    fn quantities_are_distinguished_from_other_text() {
        let cpu = &for_kind(Kind::Pod)["$defs"]["Cpu"];
        assert_eq!(cpu["anyOf"][0], json!({"type": "string", "pattern": QUANTITY}));
        assert_eq!(cpu["anyOf"][1]["type"], "number");
    }
}
