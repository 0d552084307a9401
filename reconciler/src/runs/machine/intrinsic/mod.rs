//! Evaluates the intrinsic functions of payload templates.

use std::borrow::Cow;

use schema::kinds::workflow::{Argument, Intrinsic, IntrinsicCall, unescaped};
use serde_json::{Map, Value as Json};

use super::context::{Context, resolve};
use super::failure::Refused;
use super::limits::size;

mod lists;
mod numbers;
mod texts;

/// Evaluates a call to at most `most` bytes of JSON; the same limit applies to the sum of its arguments.
pub(super) fn evaluate(
    call: &IntrinsicCall,
    data: &Json,
    context: &Context<'_>,
    most: usize,
) -> Result<Json, Refused> {
    let (mut values, mut left) = (Vec::with_capacity(call.arguments.len()), most);
    for argument in &call.arguments {
        let value = value(argument, data, context, left)?;
        if let Cow::Owned(made) = &value {
            left = left.checked_sub(size(made)).ok_or(Refused::TooLarge)?;
        }
        values.push(value);
    }
    let values: Vec<&Json> = values.iter().map(AsRef::as_ref).collect();
    let made = apply(call, &values, context, most)?;
    if size(&made) <= most { Ok(made) } else { Err(Refused::TooLarge) }
}

/// Applies a function to its arguments. Checks the size in advance where the result may be many times that of the
/// arguments.
fn apply(
    call: &IntrinsicCall,
    values: &[&Json],
    context: &Context<'_>,
    most: usize,
) -> Result<Json, Refused> {
    use Intrinsic as I;
    Ok(match (call.function, values) {
        (I::Format, [template, rest @ ..]) => match call.arguments.first() {
            Some(Argument::Text(raw)) => texts::format(raw, true, rest, most)?,
            _ => texts::format(text(template)?, false, rest, most)?,
        },
        (I::StringToJson, [text_]) => serde_json::from_str(text(text_)?)
            .map_err(|error| format!("the text is not valid JSON: {error}"))?,
        (I::JsonToString, [value]) => {
            fit([*value], most)?;
            Json::String(value.to_string())
        }
        (I::StringSplit, [whole, at]) => texts::split(text(whole)?, text(at)?),
        (I::Base64Encode, [plain]) => texts::encode(text(plain)?)?,
        (I::Base64Decode, [encoded]) => texts::decode(text(encoded)?)?,
        (I::Hash, [value, algorithm]) => texts::hash(value, text(algorithm)?)?,
        (I::Uuid, []) => texts::uuid(context.random.bytes()),
        (I::Array, items) => {
            fit(items.iter().copied(), most)?;
            Json::Array(items.iter().map(|item| (*item).clone()).collect())
        }
        (I::ArrayLength, [items]) => Json::from(list(items)?.len()),
        (I::ArrayContains, [items, item]) => {
            Json::Bool(list(items)?.iter().any(|one| lists::is_same(one, item)))
        }
        (I::ArrayGetItem, [items, index]) => lists::item(list(items)?, number(index)?)?,
        (I::ArrayPartition, [items, size]) => {
            fit([*items], most)?;
            lists::partition(list(items)?, number(size)?)?
        }
        (I::ArrayRange, [first, last, step]) => lists::range(number(first)?, number(last)?, number(step)?)?,
        (I::ArrayUnique, [items]) => lists::unique(list(items)?),
        (I::JsonMerge, [left, right, deep]) => merge(left, right, deep)?,
        (I::MathAdd, [left, right]) => numbers::add(number(left)?, number(right)?)?,
        (I::MathRandom, [first, last]) => {
            numbers::random(number(first)?, number(last)?, context.random.number())?
        }
        (I::MathRandom, [first, last, seed]) => {
            numbers::random(number(first)?, number(last)?, super::random::seeded(number(seed)?))?
        }
        (function, values) => {
            return Err(format!("{function} does not take {} arguments", values.len()).into());
        }
    })
}

/// Fails if the values together are larger than `most`.
fn fit<'a>(values: impl IntoIterator<Item = &'a Json>, most: usize) -> Result<(), Refused> {
    let mut left = most;
    for value in values {
        left = left.checked_sub(size(value)).ok_or(Refused::TooLarge)?;
    }
    Ok(())
}

fn value<'a>(
    argument: &'a Argument,
    data: &'a Json,
    context: &'a Context<'_>,
    most: usize,
) -> Result<Cow<'a, Json>, Refused> {
    match argument {
        Argument::Text(raw) => Ok(Cow::Owned(Json::String(unescaped(raw)))),
        Argument::Literal(literal) => Ok(Cow::Borrowed(literal)),
        Argument::Path(path) => resolve(path, data, context)
            .ok_or_else(|| format!("there is nothing at `{path}` of the data").into()),
        Argument::Call(call) => evaluate(call, data, context, most).map(Cow::Owned),
    }
}

fn text(value: &Json) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("expected a text, not {}", shown(value)))
}

fn list(value: &Json) -> Result<&[Json], String> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| format!("expected a list, not {}", shown(value)))
}

/// Returns a whole number; others are rounded, as in Step Functions.
fn number(value: &Json) -> Result<i64, String> {
    let rounded = || {
        let float = value.as_f64()?.round();
        // Exact up to this number, so the conversion loses nothing.
        #[allow(clippy::cast_possible_truncation, reason = "whole, and within 2^53")]
        (float.abs() <= 9_007_199_254_740_992.0).then_some(float as i64)
    };
    let number = value.as_i64().or_else(rounded);
    number.ok_or_else(|| format!("expected a number, not {}", shown(value)))
}

fn merge(left: &Json, right: &Json, deep: &Json) -> Result<Json, String> {
    let (Some(left), Some(right)) = (left.as_object(), right.as_object()) else {
        return Err("two objects are wanted".to_owned());
    };
    if *deep != Json::Bool(false) {
        return Err("the third argument must be false: the language has no deep merge".to_owned());
    }
    let both = left.iter().chain(right).map(|(name, value)| (name.clone(), value.clone()));
    Ok(Json::Object(both.collect::<Map<_, _>>()))
}

/// Returns the type of a value, for messages.
fn shown(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a text",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}
