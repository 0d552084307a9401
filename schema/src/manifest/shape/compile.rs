//! Compiles the JSON Schema that schemars writes to shapes.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use schemars::{Schema, SchemaGenerator, schema_for};
use serde_json::Value as Json;

use super::{Bounds, Field, Range, Record, Shape, Shapes, TaggedRecord, UnknownSchema, Variant};
use crate::kinds::{Kind, KindSpec, Resource, SpecVisitor};
use crate::meta::ObjectMeta;

type Definitions = serde_json::Map<String, Json>;

/// Keywords without constraints: a schema of these alone takes anything.
const ANNOTATIONS: [&str; 7] =
    ["$schema", "$defs", "title", "description", "default", "writeOnly", "examples"];

impl Shapes {
    /// Compiles the schema of one type.
    pub(crate) fn compile(name: &str, schema: &Schema) -> Result<Self, UnknownSchema> {
        let json = schema.as_value();
        let empty = Definitions::new();
        let definitions = json.get("$defs").and_then(Json::as_object).unwrap_or(&empty);
        let mut shapes = Self::default();
        shapes.root = shapes.add(name, json, definitions)?;
        Ok(shapes)
    }

    fn push(&mut self, shape: Shape) -> usize {
        self.arena.push(shape);
        self.arena.len() - 1
    }

    fn add(&mut self, name: &str, json: &Json, definitions: &Definitions) -> Result<usize, UnknownSchema> {
        let unknown = || UnknownSchema(name.to_owned(), json.to_string());
        if takes_anything(json) {
            return Ok(self.push(Shape::Any));
        }
        if let Some(reference) = json.get("$ref").and_then(Json::as_str) {
            return self.reference(reference.trim_start_matches("#/$defs/"), definitions);
        }
        if let Some(branches) = json.get("oneOf").and_then(Json::as_array) {
            return self.one_of(name, branches, definitions)?.ok_or_else(unknown);
        }
        if let Some(branches) = json.get("anyOf").and_then(Json::as_array) {
            return self.any_of(name, branches, definitions)?.ok_or_else(unknown);
        }
        if json.get("format").and_then(Json::as_str) == Some("nullable") {
            return Ok(self.push(Shape::NullableText));
        }
        let kind = json.get("type").and_then(|kind| {
            // `["string", "null"]`: null is absence for every optional field.
            kind.as_str()
                .or_else(|| kind.as_array()?.iter().filter_map(Json::as_str).find(|kind| *kind != "null"))
        });
        let shape = match kind.ok_or_else(unknown)? {
            "string" => text(json),
            "boolean" => Shape::Bool,
            "integer" if json.get("format").and_then(Json::as_str) == Some("file-mode") => Shape::FileMode,
            "integer" => Shape::Integer(range(json).ok_or_else(unknown)?),
            "number" => Shape::Number(bounds(json)),
            "array" => Shape::List(self.add(name, json.get("items").ok_or_else(unknown)?, definitions)?),
            "object" => return self.object(name, json, definitions),
            _ => return Err(unknown()),
        };
        Ok(self.push(shape))
    }

    /// Compiles a named definition, once. Its place is reserved first, so that it may be recursive.
    fn reference(&mut self, target: &str, definitions: &Definitions) -> Result<usize, UnknownSchema> {
        if let Some(index) = self.by_name.get(target) {
            return Ok(*index);
        }
        let json = definitions
            .get(target)
            .ok_or_else(|| UnknownSchema(target.to_owned(), "no such definition".to_owned()))?;
        let place = self.push(Shape::Any);
        self.by_name.insert(target.to_owned(), place);
        let index = self.add(target, json, definitions)?;
        if index < place {
            // Another name for a definition that was compiled before.
            self.by_name.insert(target.to_owned(), index);
            return Ok(index);
        }
        self.arena.swap(place, index);
        Ok(place)
    }

    /// Compiles words, or structs distinguished by a tag.
    fn one_of(
        &mut self,
        name: &str,
        branches: &[Json],
        definitions: &Definitions,
    ) -> Result<Option<usize>, UnknownSchema> {
        let word = |branch: &Json| Some(branch.get("const")?.as_str()?.to_owned());
        if let Some(words) = branches.iter().map(word).collect::<Option<Vec<String>>>() {
            return Ok(Some(self.push(Shape::OneOf(words))));
        }
        let Some(tag) = branches.first().and_then(tag_of) else { return Ok(None) };
        let mut tagged = TaggedRecord { tag, variants: Vec::new() };
        for branch in branches {
            let value = branch.pointer(&format!("/properties/{}/const", tagged.tag)).and_then(Json::as_str);
            let Some(value) = value else { return Ok(None) };
            let index = self.object(&format!("{value}{name}"), branch, definitions)?;
            tagged.variants.push((value.to_owned(), index));
        }
        self.link_variants(&tagged);
        Ok(Some(self.push(Shape::Tagged(tagged))))
    }

    /// Tells each variant which fields the others have.
    fn link_variants(&mut self, tagged: &TaggedRecord) {
        let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (tag, index) in &tagged.variants {
            let Shape::Record(record) = self.get(*index) else { continue };
            for field in record.fields.keys() {
                owners.entry(field.clone()).or_default().push(tag.clone());
            }
        }
        for (tag, index) in &tagged.variants {
            let Shape::Record(record) = &mut self.arena[*index] else { continue };
            let mut of_others = owners.clone();
            of_others.retain(|field, _| !record.fields.contains_key(field));
            record.variant = Some(Variant { tag: tag.clone(), other_fields: of_others });
        }
    }

    /// Compiles `Option<T>`, a quantity, a port reference, or one text or several.
    fn any_of(
        &mut self,
        name: &str,
        branches: &[Json],
        definitions: &Definitions,
    ) -> Result<Option<usize>, UnknownSchema> {
        let is = |branch: &Json, kind: &str| branch.get("type").and_then(Json::as_str) == Some(kind);
        let format = |branch: &Json| branch.get("format").and_then(Json::as_str).map(str::to_owned);
        let [first, second] = branches else { return Ok(None) };
        if is(second, "null") {
            return self.add(name, first, definitions).map(Some);
        }
        let shape = match (format(first).as_deref(), range(first)) {
            (Some("cpu-quantity"), _) => Shape::Cpu,
            (Some("memory-quantity" | "quantity"), _) => Shape::Memory,
            (Some("count-quantity"), _) => Shape::Count,
            (_, Some(range)) if is(first, "integer") && is(second, "string") => Shape::IntegerOrText(range),
            _ if is(first, "string") && is(second, "array") => {
                let Some(items) = second.get("items") else { return Ok(None) };
                Shape::TextOrList(self.add(name, items, definitions)?)
            }
            _ => return Ok(None),
        };
        Ok(Some(self.push(shape)))
    }

    fn object(&mut self, name: &str, json: &Json, definitions: &Definitions) -> Result<usize, UnknownSchema> {
        let unknown = || UnknownSchema(name.to_owned(), json.to_string());
        let additional = json.get("additionalProperties");
        let Some(properties) = json.get("properties").and_then(Json::as_object) else {
            if additional.and_then(Json::as_bool) == Some(false) {
                return Ok(self.push(Shape::Record(Record { name: name.to_owned(), ..Record::default() })));
            }
            let values = self.add(name, additional.ok_or_else(unknown)?, definitions)?;
            return Ok(self.push(Shape::Map(values)));
        };
        if additional.and_then(Json::as_bool) != Some(false) {
            // Strictness is the point: a type without `deny_unknown_fields` is our own mistake.
            return Err(unknown());
        }
        let required: Vec<&str> = json
            .get("required")
            .and_then(Json::as_array)
            .map(|names| names.iter().filter_map(Json::as_str).collect())
            .unwrap_or_default();
        let mut record = Record { name: name.to_owned(), ..Record::default() };
        for (field, schema) in properties {
            let shape = self.add(&format!("{name}.{field}"), schema, definitions)?;
            record
                .fields
                .insert(field.clone(), Field { shape, required: required.contains(&field.as_str()) });
        }
        Ok(self.push(Shape::Record(record)))
    }
}

/// True for `true` and for a schema of annotations alone.
fn takes_anything(json: &Json) -> bool {
    let only_annotations = |keys: &Definitions| keys.keys().all(|key| ANNOTATIONS.contains(&key.as_str()));
    json.as_bool() == Some(true) || json.as_object().is_some_and(only_annotations)
}

/// Returns the required field with a fixed value by which variants are distinguished.
fn tag_of(branch: &Json) -> Option<String> {
    let mut fields = branch.get("properties")?.as_object()?.iter();
    let (tag, _) = fields.find(|(_, schema)| schema.get("const").is_some_and(Json::is_string))?;
    let required = branch.get("required")?.as_array()?;
    required.iter().any(|name| name.as_str() == Some(tag)).then(|| tag.clone())
}

fn text(json: &Json) -> Shape {
    let word = |word: &Json| word.as_str().map(str::to_owned);
    match (json.get("enum").and_then(Json::as_array), json.get("const").and_then(word)) {
        (Some(words), _) => Shape::OneOf(words.iter().filter_map(word).collect()),
        (None, Some(only)) => Shape::OneOf(vec![only]),
        (None, None) => Shape::Text,
    }
}

/// Returns the range of an integer: the schema's, within that of its format.
fn range(json: &Json) -> Option<Range> {
    let (least, most) = match json.get("format").and_then(Json::as_str)? {
        "uint16" => (0, i128::from(u16::MAX)),
        "uint32" => (0, i128::from(u32::MAX)),
        "uint64" => (0, i128::from(u64::MAX)),
        "int32" => (i128::from(i32::MIN), i128::from(i32::MAX)),
        "int64" => (i128::from(i64::MIN), i128::from(i64::MAX)),
        _ => return None,
    };
    let bound = |key: &str| json.get(key).and_then(Json::as_i64).map(i128::from);
    Some(Range {
        min: bound("minimum").unwrap_or(least).max(least),
        max: bound("maximum").unwrap_or(most).min(most),
    })
}

fn bounds(json: &Json) -> Bounds {
    let bound = |key: &str| json.get(key).and_then(Json::as_f64);
    Bounds { min: bound("minimum").unwrap_or(f64::MIN), max: bound("maximum").unwrap_or(f64::MAX) }
}

// Compiled shapes of all kinds, each compiled when first needed.

/// Returns the shape of `metadata`.
pub(crate) fn metadata() -> &'static Shapes {
    static SHAPES: OnceLock<Shapes> = OnceLock::new();
    SHAPES.get_or_init(|| compiled("ObjectMeta", &schema_for!(ObjectMeta)))
}

/// Returns the shape of a kind's `spec`.
pub(crate) fn for_kind(kind: Kind) -> &'static Shapes {
    static SHAPES: [OnceLock<Shapes>; Kind::ALL.len()] = [const { OnceLock::new() }; Kind::ALL.len()];
    SHAPES[kind as usize].get_or_init(|| compiled(&format!("{kind}Spec"), &schema(kind)))
}

/// Returns the JSON Schema of a kind's `spec`, as schemars writes it.
pub(crate) fn schema(kind: Kind) -> Schema {
    kind.visit(RootSchema)
}

/// Returns the same as part of a larger schema: its definitions go into the generator.
pub(crate) fn schema_within(kind: Kind, generator: &mut SchemaGenerator) -> Schema {
    kind.visit(Subschema(generator))
}

struct RootSchema;

impl SpecVisitor for RootSchema {
    type Output = Schema;

    fn visit<S: KindSpec>(self, _: fn(S) -> Resource) -> Schema {
        schema_for!(S)
    }
}

struct Subschema<'g>(&'g mut SchemaGenerator);

impl SpecVisitor for Subschema<'_> {
    type Output = Schema;

    fn visit<S: KindSpec>(self, _: fn(S) -> Resource) -> Schema {
        self.0.subschema_for::<S>()
    }
}

fn compiled(name: &str, schema: &Schema) -> Shapes {
    Shapes::compile(name, schema).expect("a test compiles the schema of every kind")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_may_hold_itself() {
        let schema = schemars::json_schema!({
            "type": "object", "additionalProperties": false, "properties": {"node": {"$ref": "#/$defs/Node"}},
            "$defs": {"Node": {"type": "object", "additionalProperties": false, "properties": {
                "below": {"type": "array", "items": {"$ref": "#/$defs/Node"}}}}}
        });
        let shapes = Shapes::compile("Tree", &schema).unwrap();
        let Shape::Record(tree) = shapes.get(shapes.root) else { panic!() };
        let Shape::Record(node) = shapes.get(tree.fields["node"].shape) else { panic!() };
        let Shape::List(items) = shapes.get(node.fields["below"].shape) else { panic!() };
        assert_eq!(*items, tree.fields["node"].shape);
    }

    #[test]
    fn variants_know_the_fields_of_the_others() {
        let branch = |tag: &str, field: &str| {
            serde_json::json!({"type": "object", "additionalProperties": false, "required": ["type"],
                "properties": {"type": {"type": "string", "const": tag}, field: {"type": "boolean"}}})
        };
        let schema = schemars::json_schema!({"oneOf": [branch("A", "a"), branch("B", "b")]});
        let shapes = Shapes::compile("State", &schema).unwrap();
        let Shape::Tagged(tagged) = shapes.get(shapes.root) else { panic!() };
        assert_eq!((tagged.tag.as_str(), tagged.variants.len()), ("type", 2));
        let Shape::Record(record) = shapes.get(tagged.variant("A").unwrap()) else { panic!() };
        assert_eq!(record.name, "AState");
        assert_eq!(record.variant.as_ref().unwrap().other_fields["b"], ["B"]);
    }
}
