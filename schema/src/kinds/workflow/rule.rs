//! A rule of a Choice: a comparison, or rules joined by and, or, not.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use serde_with::skip_serializing_none;

/// A rule: exactly one of `and`, `or`, `not`, or `variable` with exactly one operator.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// Comment for people; has no effect and is not stored.
    pub comment: Option<String>,
    /// State to go to if the rule matches; only in the rules of a Choice, not in nested ones.
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
            "next": {"type": "string", "description": "The state to go to if the rule matches; only in the rules of a Choice, not in nested ones."},
            "and": {"type": "array", "items": rule, "description": "All of these match."},
            "or": {"type": "array", "items": rule, "description": "One of these matches."},
            "not": {"anyOf": [rule, {"type": "null"}], "description": "This one does not match."},
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

// Comparison operators of Choice rules.

/// Type of an operator's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// A text.
    Text,
    /// A number.
    Number,
    /// `true` or `false`.
    Bool,
    /// A point in time, RFC 3339.
    Timestamp,
    /// The path of the value to compare with.
    Path,
}

macro_rules! operators {
    ($($name:ident $text:literal $operand:ident $doc:literal)*) => {
        /// A comparison. A value of another type than the operator's never matches.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Operator {
            $(#[doc = $doc] #[serde(rename = $text)] $name,)*
        }

        impl Operator {
            /// Every operator.
            pub const ALL: &[Operator] = &[$(Operator::$name),*];

            /// Returns the name of the field in a rule.
            pub fn as_str(self) -> &'static str {
                match self { $(Operator::$name => $text,)* }
            }

            /// Returns the type of the value.
            pub fn operand(self) -> Operand {
                match self { $(Operator::$name => Operand::$operand,)* }
            }

            fn doc(self) -> &'static str {
                match self { $(Operator::$name => $doc,)* }
            }
        }
    };
}

operators! {
    BooleanEquals "booleanEquals" Bool "The variable is this boolean."
    BooleanEqualsPath "booleanEqualsPath" Path "As `booleanEquals`, with the value at a path."
    IsBoolean "isBoolean" Bool "Whether the variable is a boolean."
    IsNull "isNull" Bool "Whether the variable is null."
    IsNumeric "isNumeric" Bool "Whether the variable is a number."
    IsPresent "isPresent" Bool "Whether the variable exists; only this operator accepts a missing one."
    IsString "isString" Bool "Whether the variable is text."
    IsTimestamp "isTimestamp" Bool "Whether the variable is a timestamp of RFC 3339."
    NumericEquals "numericEquals" Number "The variable is this number."
    NumericEqualsPath "numericEqualsPath" Path "As `numericEquals`, with the value at a path."
    NumericGreaterThan "numericGreaterThan" Number "The variable is a greater number."
    NumericGreaterThanEquals "numericGreaterThanEquals" Number "The variable is this number or greater."
    NumericGreaterThanEqualsPath "numericGreaterThanEqualsPath" Path "As `numericGreaterThanEquals`, with the value at a path."
    NumericGreaterThanPath "numericGreaterThanPath" Path "As `numericGreaterThan`, with the value at a path."
    NumericLessThan "numericLessThan" Number "The variable is a smaller number."
    NumericLessThanEquals "numericLessThanEquals" Number "The variable is this number or smaller."
    NumericLessThanEqualsPath "numericLessThanEqualsPath" Path "As `numericLessThanEquals`, with the value at a path."
    NumericLessThanPath "numericLessThanPath" Path "As `numericLessThan`, with the value at a path."
    StringEquals "stringEquals" Text "The variable is this text."
    StringEqualsPath "stringEqualsPath" Path "As `stringEquals`, with the value at a path."
    StringGreaterThan "stringGreaterThan" Text "The variable sorts after this text, by UTF-16 code units."
    StringGreaterThanEquals "stringGreaterThanEquals" Text "The variable is this text or sorts after it."
    StringGreaterThanEqualsPath "stringGreaterThanEqualsPath" Path "As `stringGreaterThanEquals`, with the value at a path."
    StringGreaterThanPath "stringGreaterThanPath" Path "As `stringGreaterThan`, with the value at a path."
    StringLessThan "stringLessThan" Text "The variable sorts before this text, by UTF-16 code units."
    StringLessThanEquals "stringLessThanEquals" Text "The variable is this text or sorts before it."
    StringLessThanEqualsPath "stringLessThanEqualsPath" Path "As `stringLessThanEquals`, with the value at a path."
    StringLessThanPath "stringLessThanPath" Path "As `stringLessThan`, with the value at a path."
    StringMatches "stringMatches" Text "The variable matches this pattern, in which `*` is any text and `\\\\*` a star."
    TimestampEquals "timestampEquals" Timestamp "The variable is this point in time."
    TimestampEqualsPath "timestampEqualsPath" Path "As `timestampEquals`, with the value at a path."
    TimestampGreaterThan "timestampGreaterThan" Timestamp "The variable is a later point in time."
    TimestampGreaterThanEquals "timestampGreaterThanEquals" Timestamp "The variable is this point in time or a later one."
    TimestampGreaterThanEqualsPath "timestampGreaterThanEqualsPath" Path "As `timestampGreaterThanEquals`, with the value at a path."
    TimestampGreaterThanPath "timestampGreaterThanPath" Path "As `timestampGreaterThan`, with the value at a path."
    TimestampLessThan "timestampLessThan" Timestamp "The variable is an earlier point in time."
    TimestampLessThanEquals "timestampLessThanEquals" Timestamp "The variable is this point in time or an earlier one."
    TimestampLessThanEqualsPath "timestampLessThanEqualsPath" Path "As `timestampLessThanEquals`, with the value at a path."
    TimestampLessThanPath "timestampLessThanPath" Path "As `timestampLessThan`, with the value at a path."
}

impl Operator {
    /// Returns the JSON Schema of the value.
    pub(super) fn schema(self) -> Schema {
        let mut schema = match self.operand() {
            Operand::Text | Operand::Path => json_schema!({"type": "string"}),
            Operand::Timestamp => json_schema!({"type": "string", "format": "date-time"}),
            Operand::Number => json_schema!({"type": "number", "format": "double"}),
            Operand::Bool => json_schema!({"type": "boolean"}),
        };
        schema.insert("description".to_owned(), self.doc().into());
        schema
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
