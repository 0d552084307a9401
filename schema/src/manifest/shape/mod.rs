//! The shape that a type's JSON Schema gives a document, compiled once into a tree to walk.
//!
//! Our own walk instead of a JSON Schema validator: it knows the line of each value, reads plain
//! scalars as the schema wants them, names the nearest field, and gives one message per mistake where
//! `anyOf` gives one per branch. The schema dialect is what schemars writes for our types; any other
//! keyword fails to compile, which a test sees.

use std::collections::BTreeMap;

use serde_json::Value as Json;

mod walk;

pub(crate) use walk::{Here, Walk, found};

/// What a value may be.
#[derive(Debug)]
pub(crate) enum Shape {
    Text,
    /// Text out of a list.
    OneOf(Vec<String>),
    Bool,
    Integer(Range),
    Cpu,
    Memory,
    List(usize),
    /// Any keys, values of one shape.
    Map(usize),
    Record(Record),
    /// A number or a name: ports.
    IntegerOrText(Range),
}

/// The least and the greatest number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) min: i128,
    pub(crate) max: i128,
}

/// A mapping with known fields.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// The Rust type's name, for the table of foreign fields.
    pub(crate) name: String,
    pub(crate) fields: BTreeMap<String, Field>,
}

/// A field of a record.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) shape: usize,
    pub(crate) required: bool,
}

/// All shapes of one type; they refer to each other by index, so that types may be recursive.
#[derive(Debug, Default)]
pub(crate) struct Shapes {
    arena: Vec<Shape>,
    by_name: BTreeMap<String, usize>,
    pub(crate) root: usize,
}

/// The schema says something that the walk does not know.
#[derive(Debug, thiserror::Error)]
#[error("schema of {0} is not understood: {1}")]
pub(crate) struct UnknownSchema(String, String);

impl Shapes {
    /// Compiles the schema of one type.
    pub(crate) fn compile(name: &str, schema: &schemars::Schema) -> Result<Self, UnknownSchema> {
        let json = schema.as_value();
        let empty = serde_json::Map::new();
        let definitions = json.get("$defs").and_then(Json::as_object).unwrap_or(&empty);
        let mut shapes = Self::default();
        shapes.root = shapes.add(name, json, definitions)?;
        Ok(shapes)
    }

    pub(crate) fn get(&self, index: usize) -> &Shape {
        &self.arena[index]
    }

    /// Something of the shape, in place of a value that is a mistake: the rest can then be checked too.
    fn stand_in(&self, index: usize) -> Json {
        match self.get(index) {
            Shape::Text => Json::from(""),
            Shape::OneOf(words) => Json::from(words.first().map_or("", String::as_str)),
            Shape::Bool => Json::from(false),
            Shape::Integer(_) | Shape::IntegerOrText(_) => Json::from(1),
            Shape::Cpu | Shape::Memory => Json::from("1"),
            Shape::List(_) => Json::Array(Vec::new()),
            Shape::Map(_) => Json::Object(serde_json::Map::new()),
            Shape::Record(record) => {
                let required = record.fields.iter().filter(|(_, field)| field.required);
                Json::Object(
                    required.map(|(name, field)| (name.clone(), self.stand_in(field.shape))).collect(),
                )
            }
        }
    }

    fn push(&mut self, shape: Shape) -> usize {
        self.arena.push(shape);
        self.arena.len() - 1
    }

    fn add(
        &mut self,
        name: &str,
        json: &Json,
        definitions: &serde_json::Map<String, Json>,
    ) -> Result<usize, UnknownSchema> {
        let unknown = || UnknownSchema(name.to_owned(), json.to_string());
        if let Some(reference) = json.get("$ref").and_then(Json::as_str) {
            return self.reference(reference.trim_start_matches("#/$defs/"), definitions);
        }
        if let Some(branches) = json.get("oneOf").and_then(Json::as_array) {
            let words: Option<Vec<String>> =
                branches.iter().map(|branch| Some(branch.get("const")?.as_str()?.to_owned())).collect();
            return words.map(|words| self.push(Shape::OneOf(words))).ok_or_else(unknown);
        }
        if let Some(branches) = json.get("anyOf").and_then(Json::as_array) {
            return self.any_of(name, branches, definitions)?.ok_or_else(unknown);
        }
        let kind = json.get("type").and_then(|kind| {
            // `["string", "null"]`: null is absence for every optional field.
            kind.as_str()
                .or_else(|| kind.as_array()?.iter().filter_map(Json::as_str).find(|kind| *kind != "null"))
        });
        let shape = match kind.ok_or_else(unknown)? {
            "string" => match json.get("enum").and_then(Json::as_array) {
                Some(words) => {
                    Shape::OneOf(words.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect())
                }
                None => Shape::Text,
            },
            "boolean" => Shape::Bool,
            "integer" => Shape::Integer(range(json).ok_or_else(unknown)?),
            "array" => Shape::List(self.add(name, json.get("items").ok_or_else(unknown)?, definitions)?),
            "object" => return self.object(name, json, definitions),
            _ => return Err(unknown()),
        };
        Ok(self.push(shape))
    }

    fn reference(
        &mut self,
        target: &str,
        definitions: &serde_json::Map<String, Json>,
    ) -> Result<usize, UnknownSchema> {
        if let Some(index) = self.by_name.get(target) {
            return Ok(*index);
        }
        let json = definitions
            .get(target)
            .ok_or_else(|| UnknownSchema(target.to_owned(), "no such definition".to_owned()))?;
        let index = self.add(target, json, definitions)?;
        self.by_name.insert(target.to_owned(), index);
        Ok(index)
    }

    /// `Option<T>`, a quantity, or a port reference: all that our types have.
    fn any_of(
        &mut self,
        name: &str,
        branches: &[Json],
        definitions: &serde_json::Map<String, Json>,
    ) -> Result<Option<usize>, UnknownSchema> {
        let is = |branch: &Json, kind: &str| branch.get("type").and_then(Json::as_str) == Some(kind);
        let format = |branch: &Json| branch.get("format").and_then(Json::as_str).map(str::to_owned);
        let [first, second] = branches else { return Ok(None) };
        if is(second, "null") {
            return self.add(name, first, definitions).map(Some);
        }
        let shape = match (format(first).as_deref(), range(first)) {
            (Some("cpu-quantity"), _) => Shape::Cpu,
            (Some("memory-quantity"), _) => Shape::Memory,
            (_, Some(range)) if is(first, "integer") && is(second, "string") => Shape::IntegerOrText(range),
            _ => return Ok(None),
        };
        Ok(Some(self.push(shape)))
    }

    fn object(
        &mut self,
        name: &str,
        json: &Json,
        definitions: &serde_json::Map<String, Json>,
    ) -> Result<usize, UnknownSchema> {
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
            // Strictness is the point: a type without `deny_unknown_fields` is a mistake of ours.
            return Err(unknown());
        }
        let required: Vec<&str> = json
            .get("required")
            .and_then(Json::as_array)
            .map(|names| names.iter().filter_map(Json::as_str).collect())
            .unwrap_or_default();
        let mut record = Record { name: name.to_owned(), fields: BTreeMap::new() };
        for (field, schema) in properties {
            let shape = self.add(&format!("{name}.{field}"), schema, definitions)?;
            record
                .fields
                .insert(field.clone(), Field { shape, required: required.contains(&field.as_str()) });
        }
        Ok(self.push(Shape::Record(record)))
    }
}

/// The range of an integer: what the schema says, within what its format holds.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schemas_of_all_kinds_are_understood_and_strict() {
        let schemas = [
            ("ObjectMeta", schemars::schema_for!(crate::meta::ObjectMeta)),
            ("PodSpec", schemars::schema_for!(crate::kinds::pod::PodSpec)),
        ];
        for (name, schema) in schemas {
            assert!(Shapes::compile(name, &schema).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_type_that_takes_unknown_fields_is_refused() {
        let open = schemars::json_schema!({"type": "object", "properties": {"a": {"type": "string"}}});
        assert!(Shapes::compile("Open", &open).is_err());
    }
}
