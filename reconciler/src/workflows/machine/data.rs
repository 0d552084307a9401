//! Input and output of states: paths, payload templates, placement of results.

use std::borrow::Cow;

use schema::kinds::workflow::{Expression, JsonPath, NullablePath, Segment};
use serde_json::{Map, Value as Json};

use super::context::{Context, DEPTH_MAX, PAYLOAD_MAX_BYTES, resolve, size};
use super::failure::{Failure, IntrinsicError, errors};
use super::intrinsic;

/// Resolves the path in a field; an error if it leads nowhere.
pub(super) fn lookup<'a>(
    field: &str,
    text: &str,
    data: &'a Json,
    context: &'a Context<'_>,
) -> Result<Cow<'a, Json>, Failure> {
    let path =
        JsonPath::parse(text).map_err(|error| Failure::runtime(format!("{field}: `{text}`: {error}")))?;
    resolve(&path, data, context)
        .ok_or_else(|| Failure::runtime(format!("{field}: there is nothing at `{text}` in the data")))
}

/// Applies `inputPath` or `outputPath`: all data if absent, `{}` if null.
pub(super) fn select<'a>(
    field: &str,
    path: Option<&NullablePath>,
    data: &'a Json,
    context: &'a Context<'_>,
) -> Result<Cow<'a, Json>, Failure> {
    match path.map(|path| path.0.as_deref()) {
        None => Ok(Cow::Borrowed(data)),
        Some(None) => Ok(Cow::Owned(Json::Object(Map::new()))),
        Some(Some(text)) => lookup(field, text, data, context),
    }
}

/// Fills in a payload template. The result never exceeds the maximum size of a state's data, not even while it is
/// built.
pub(super) fn fill(template: &Json, data: &Json, context: &Context<'_>) -> Result<Json, Failure> {
    let mut left = PAYLOAD_MAX_BYTES;
    fill_within(template, data, context, &mut left)
}

fn fill_within(
    template: &Json,
    data: &Json,
    context: &Context<'_>,
    left: &mut usize,
) -> Result<Json, Failure> {
    match template {
        Json::Array(items) => {
            let filled = items.iter().map(|item| fill_within(item, data, context, left));
            filled.collect::<Result<_, _>>().map(Json::Array)
        }
        Json::Object(fields) => {
            let mut filled = Map::new();
            for (name, value) in fields {
                match (name.strip_suffix(".$"), value) {
                    (Some(plain), Json::String(text)) => {
                        spend(left, plain.len(), plain)?;
                        filled.insert(plain.to_owned(), expression(plain, text, data, context, left)?);
                    }
                    _ => {
                        spend(left, name.len(), name)?;
                        filled.insert(name.clone(), fill_within(value, data, context, left)?);
                    }
                }
            }
            Ok(Json::Object(filled))
        }
        plain => {
            spend(left, size(plain), "the template")?;
            Ok(plain.clone())
        }
    }
}

/// Subtracts `bytes` from the size that is left.
fn spend(left: &mut usize, bytes: usize, name: &str) -> Result<(), Failure> {
    *left = left.checked_sub(bytes).ok_or_else(|| too_large(name))?;
    Ok(())
}

fn too_large(name: &str) -> Failure {
    let cause = format!("with {name}, the resulting data has more than {PAYLOAD_MAX_BYTES} bytes as JSON");
    Failure::new(errors::DATA_LIMIT, cause)
}

/// Evaluates a path or an intrinsic function for the field `name`. Subtracts the size of the result from `left`,
/// and fails if it is larger.
pub(super) fn expression(
    name: &str,
    text: &str,
    data: &Json,
    context: &Context<'_>,
    left: &mut usize,
) -> Result<Json, Failure> {
    let value = match Expression::parse(text) {
        Ok(Expression::Path(path)) => resolve(&path, data, context).ok_or_else(|| {
            Failure::new(errors::PARAMETER_PATH, format!("{name}: there is nothing at `{text}` in the data"))
        })?,
        Ok(Expression::Call(call)) => {
            let made = intrinsic::evaluate(&call, data, context, *left).map_err(|refused| match refused {
                IntrinsicError::Because(why) => {
                    Failure::new(errors::INTRINSIC, format!("{name}: {text}: {why}"))
                }
                IntrinsicError::TooLarge => too_large(name),
            });
            Cow::Owned(made?)
        }
        Err(error) => return Err(Failure::runtime(format!("{name}: `{text}`: {error}"))),
    };
    // Before the value is copied.
    spend(left, size(&value), name)?;
    Ok(value.into_owned())
}

/// Applies `resultPath`: if absent, the result replaces the input; if null, the input stays; otherwise the result
/// is placed in the input.
pub(super) fn place_result(path: Option<&NullablePath>, input: &Json, result: Json) -> Result<Json, Failure> {
    let text = match path.map(|path| path.0.as_deref()) {
        None => return Ok(result),
        Some(None) => return Ok(input.clone()),
        Some(Some(text)) => text,
    };
    let path = JsonPath::parse(text).map_err(|error| Failure::runtime(format!("resultPath: {error}")))?;
    let mut whole = input.clone();
    let mut here = &mut whole;
    for segment in &path.segments {
        let below = match (segment, here) {
            (Segment::Name(name), Json::Object(fields)) => Some(fields.entry(name).or_insert(Json::Null)),
            (Segment::Name(name), other @ Json::Null) => {
                *other = Json::Object(Map::new());
                other.as_object_mut().map(|fields| fields.entry(name).or_insert(Json::Null))
            }
            (Segment::Index(index), Json::Array(items)) => {
                usize::try_from(*index).ok().and_then(|index| items.get_mut(index))
            }
            _ => None,
        };
        here = below.ok_or_else(|| {
            Failure::new(
                errors::RESULT_PATH,
                format!("the result can't be put at `{text}` of the state's input"),
            )
        })?;
    }
    *here = result;
    Ok(whole)
}

/// Returns the value, or an error if it is larger or nested deeper than a state's data may be.
pub(super) fn within_limits(what: &str, value: Json) -> Result<Json, Failure> {
    if is_deeper_than(&value, DEPTH_MAX) {
        let cause = format!("the {what} is nested more than {DEPTH_MAX} levels deep");
        return Err(Failure::new(errors::DATA_LIMIT, cause));
    }
    let bytes = size(&value);
    if bytes <= PAYLOAD_MAX_BYTES {
        return Ok(value);
    }
    let cause = format!("the {what} has {bytes} bytes as JSON; at most {PAYLOAD_MAX_BYTES} are allowed");
    Err(Failure::new(errors::DATA_LIMIT, cause))
}

/// True if lists and objects are nested more than `levels` deep.
pub fn is_deeper_than(value: &Json, levels: usize) -> bool {
    let Some(inside) = levels.checked_sub(1) else { return value.is_array() || value.is_object() };
    match value {
        Json::Array(items) => items.iter().any(|item| is_deeper_than(item, inside)),
        Json::Object(fields) => fields.values().any(|field| is_deeper_than(field, inside)),
        _ => false,
    }
}
