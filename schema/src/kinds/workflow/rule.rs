//! A rule of a Choice: a comparison, or rules joined by and, or, not.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_with::skip_serializing_none;

use super::Operator;

/// A rule: exactly one of `and`, `or`, `not`, or `variable` with exactly one operator.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// Comment for people; has no effect and is not stored.
    pub comment: Option<String>,
    /// State to go to if the rule matches; only in the rules of a Choice, not in those inside.
    pub next: Option<String>,
    /// Rules that must all match.
    pub and: Option<Vec<Rule>>,
    /// Rules of which at least one must match.
    pub or: Option<Vec<Rule>>,
    /// Rule that must not match.
    pub not: Option<Box<Rule>>,
    /// Path of the value to compare.
    pub variable: Option<String>,
    /// Operator with the value that it compares with. A valid rule with a variable has exactly one.
    #[serde(flatten)]
    pub comparisons: BTreeMap<Operator, Json>,
}

/// Parses a point in time as the language accepts it: RFC 3339 with `T` and `Z` in upper case.
pub fn timestamp(text: &str) -> Option<Timestamp> {
    let is_written_so = text.as_bytes().get(10) == Some(&b'T') && !text.contains(['z', '[', ' ']);
    is_written_so.then(|| text.parse().ok()).flatten()
}

/// Written by hand, because schemars generates no strict schema for a flattened map: one field for each operator.
impl JsonSchema for Rule {
    fn schema_name() -> Cow<'static, str> {
        "Rule".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let rule = generator.subschema_for::<Rule>();
        let mut properties = json_schema!({
            "comment": {"type": "string", "description": "For people; has no effect and is not stored."},
            "next": {"type": "string", "description": "The state to go to if the rule fits; only in the rules of a Choice, not in those inside."},
            "and": {"type": "array", "items": rule, "description": "All of these fit."},
            "or": {"type": "array", "items": rule, "description": "One of these fits."},
            "not": {"anyOf": [rule, {"type": "null"}], "description": "This one does not fit."},
            "variable": {"type": "string", "description": "Path of the value to compare."},
        });
        for operator in Operator::ALL {
            properties.insert(operator.as_str().to_owned(), operator.schema().to_value());
        }
        json_schema!({
            "type": "object",
            "description": "A rule: exactly one of `and`, `or`, `not`, or `variable` with exactly one operator.",
            "properties": properties,
            "additionalProperties": false,
        })
    }
}
