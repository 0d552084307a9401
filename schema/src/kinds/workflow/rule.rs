//! One rule of a Choice: a comparison, or others joined by and, or, not.

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
    /// For people; has no effect and is not stored.
    pub comment: Option<String>,
    /// The state to go to if the rule fits; only in the rules of a Choice, not in those inside.
    pub next: Option<String>,
    /// All of these fit.
    pub and: Option<Vec<Rule>>,
    /// One of these fits.
    pub or: Option<Vec<Rule>>,
    /// This one does not fit.
    pub not: Option<Box<Rule>>,
    /// Path of the value to compare.
    pub variable: Option<String>,
    /// The operator with what it compares with. A checked rule with a variable has exactly one.
    #[serde(flatten)]
    pub comparisons: BTreeMap<Operator, Json>,
}

/// A point in time as the language takes it: RFC 3339 with `T` and `Z` in upper case.
pub fn timestamp(text: &str) -> Option<Timestamp> {
    let is_written_so = text.as_bytes().get(10) == Some(&b'T') && !text.contains(['z', '[', ' ']);
    is_written_so.then(|| text.parse().ok()).flatten()
}

/// By hand, as schemars writes no strict schema for a flattened map: one field for each operator.
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
