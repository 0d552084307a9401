//! Shapes: a type's JSON Schema, compiled once into a tree along which documents are checked.
//!
//! Our own walk instead of a JSON Schema validator: it knows the line of each value, reads plain scalars as the
//! schema wants them, names the nearest field, and gives one message per mistake where `anyOf` gives one per
//! branch. The schema dialect is what schemars writes for our types; any other keyword fails to compile, which a
//! test catches. Shapes of Rust types:
//!
//! | Rust | shape |
//! |---|---|
//! | `String`, `bool`, integers with a range, `f64` | `Text`, `Bool`, `Integer`, `Number` |
//! | `Option<T>` | that of `T`; null and absence are one |
//! | `Vec<T>`, `BTreeMap<String, T>` | `List`, `Map` |
//! | `u32` with the format `file-mode` | `FileMode` |
//! | enum of words | `OneOf` |
//! | enum with `#[serde(tag = "…")]`, all variants of one struct | `Tagged` |
//! | untagged enum of a `String` and a `Vec<T>`, or of an integer and a `String` | `TextOrList`, `IntegerOrText` |
//! | `serde_json::Value` | `Any` |
//! | a type whose schema is `{"type": ["string", "null"], "format": "nullable"}` | `NullableText` |

use std::collections::BTreeMap;

use serde_json::Value as Json;

pub(crate) mod compile;
mod scalars;
mod walk;
mod words;

pub(crate) use walk::Walk;
pub(crate) use words::{WalkPosition, describe_found};

/// Allowed form of a value.
#[derive(Debug)]
pub(crate) enum Shape {
    Text,
    /// Text from a list of words.
    OneOf(Vec<String>),
    Bool,
    Integer(Range),
    /// Mode of a file: also octal as YAML 1.1 writes it, `0644`.
    FileMode,
    Cpu,
    Memory,
    /// A whole number, also in the notation of quantities.
    Count,
    List(usize),
    /// A mapping with any keys, and values of one shape.
    Map(usize),
    Record(Record),
    /// A number or a name: ports.
    IntegerOrText(Range),
    /// A text, or a list.
    TextOrList(usize),
    /// A number that may have a fraction.
    Number(Bounds),
    /// Text, or null, which is not the same as absence.
    NullableText,
    /// Any JSON value; plain scalars mean what YAML 1.2 says. Null is not the same as absence.
    Any,
    /// A mapping whose fields depend on one of them.
    Tagged(TaggedRecord),
}

/// Bounds of a number with a fraction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// A mapping whose fields depend on the one called `tag`.
#[derive(Debug)]
pub(crate) struct TaggedRecord {
    pub(crate) tag: String,
    /// Values of the tag, each with its record.
    pub(crate) variants: Vec<(String, usize)>,
}

impl TaggedRecord {
    /// Returns the record for a value of the tag.
    pub(crate) fn variant(&self, tag: &str) -> Option<usize> {
        self.variants.iter().find(|(name, _)| name == tag).map(|(_, index)| *index)
    }
}

/// Largest mode of a file.
pub(crate) const FILE_MODE_MAX: u16 = 0o777;

/// Bounds of an integer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) min: i128,
    pub(crate) max: i128,
}

/// A mapping with known fields.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Name of the Rust type, for the table of foreign fields.
    pub(crate) name: String,
    pub(crate) fields: BTreeMap<String, Field>,
    /// For a variant of a [`TaggedRecord`]: its tag, and the other variants' fields that it lacks.
    pub(crate) variant: Option<Variant>,
}

/// A variant's knowledge of the others.
#[derive(Debug, Default)]
pub(crate) struct Variant {
    /// Tag of the variant itself.
    pub(crate) tag: String,
    /// Fields of the other variants, and their tags.
    pub(crate) other_fields: BTreeMap<String, Vec<String>>,
}

/// A field of a record.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) shape: usize,
    pub(crate) required: bool,
}

/// Shapes of one type; they refer to each other by index, so that types may be recursive.
#[derive(Debug, Default)]
pub(crate) struct Shapes {
    arena: Vec<Shape>,
    by_name: BTreeMap<String, usize>,
    pub(crate) root: usize,
}

/// Error for a schema keyword that the walk does not know.
#[derive(Debug, thiserror::Error)]
#[error("schema of {0} is not understood: {1}")]
pub(crate) struct UnknownSchema(String, String);

impl Shapes {
    pub(crate) fn get(&self, index: usize) -> &Shape {
        &self.arena[index]
    }

    /// True if null means something other than absence.
    fn takes_null(&self, index: usize) -> bool {
        matches!(self.get(index), Shape::NullableText | Shape::Any)
    }

    /// Returns a value of the shape in place of a mistake, so that the rest can be checked too.
    fn stand_in(&self, index: usize) -> Json {
        match self.get(index) {
            Shape::Text => Json::from(""),
            Shape::OneOf(words) => Json::from(words.first().map_or("", String::as_str)),
            Shape::Bool => Json::from(false),
            Shape::Integer(_) | Shape::IntegerOrText(_) | Shape::FileMode => Json::from(1),
            Shape::Cpu | Shape::Memory | Shape::Count => Json::from("1"),
            Shape::Number(_) => Json::from(1.0),
            Shape::NullableText | Shape::Any => Json::Null,
            Shape::Tagged(tagged) => {
                // The variant with the fewest demands breaks the fewest rules.
                let stand_ins = tagged.variants.iter().map(|(_, index)| self.stand_in(*index));
                stand_ins
                    .min_by_key(|json| json.as_object().map_or(0, serde_json::Map::len))
                    .unwrap_or_default()
            }
            Shape::List(_) | Shape::TextOrList(_) => Json::Array(Vec::new()),
            Shape::Map(_) => Json::Object(serde_json::Map::new()),
            Shape::Record(record) => {
                let required = record.fields.iter().filter(|(_, field)| field.required);
                Json::Object(
                    required.map(|(name, field)| (name.clone(), self.stand_in(field.shape))).collect(),
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schemas_of_all_kinds_are_understood_and_strict() {
        assert!(Shapes::compile("ObjectMeta", &schemars::schema_for!(crate::meta::ObjectMeta)).is_ok());
        for kind in crate::kinds::Kind::ALL {
            let compiled = Shapes::compile(kind.as_str(), &compile::schema(kind));
            assert!(compiled.is_ok(), "{kind}: {compiled:?}");
        }
    }

    #[test]
    fn a_type_that_takes_unknown_fields_is_refused() {
        let open = schemars::json_schema!({"type": "object", "properties": {"a": {"type": "string"}}});
        assert!(Shapes::compile("Open", &open).is_err());
    }
}
