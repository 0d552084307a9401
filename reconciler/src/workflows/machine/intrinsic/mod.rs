//! Evaluates the intrinsic functions of payload templates.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use openssl::hash::MessageDigest;
use schema::kinds::workflow::{Argument, Intrinsic, IntrinsicCall, unescaped};
use serde_json::{Map, Value as Json};

use super::context::{Context, resolve, size};
use super::failure::IntrinsicError;

/// Evaluates a call to at most `most` bytes of JSON; the same limit applies to the sum of its arguments.
pub(super) fn evaluate(
    call: &IntrinsicCall,
    data: &Json,
    context: &Context<'_>,
    most: usize,
) -> Result<Json, IntrinsicError> {
    let (mut values, mut left) = (Vec::with_capacity(call.arguments.len()), most);
    for argument in &call.arguments {
        let value = value(argument, data, context, left)?;
        if let Cow::Owned(made) = &value {
            left = left.checked_sub(size(made)).ok_or(IntrinsicError::TooLarge)?;
        }
        values.push(value);
    }
    let values: Vec<&Json> = values.iter().map(AsRef::as_ref).collect();
    let made = apply(call, &values, context, most)?;
    if size(&made) <= most { Ok(made) } else { Err(IntrinsicError::TooLarge) }
}

/// Applies a function to its arguments. Checks the size in advance where the result may be many times that of the
/// arguments.
fn apply(
    call: &IntrinsicCall,
    values: &[&Json],
    context: &Context<'_>,
    most: usize,
) -> Result<Json, IntrinsicError> {
    use Intrinsic as I;
    Ok(match (call.function, values) {
        (I::Format, [template, rest @ ..]) => match call.arguments.first() {
            Some(Argument::Text(raw)) => format(raw, true, rest, most)?,
            _ => format(text(template)?, false, rest, most)?,
        },
        (I::StringToJson, [text_]) => serde_json::from_str(text(text_)?)
            .map_err(|error| format!("the text is not valid JSON: {error}"))?,
        (I::JsonToString, [value]) => {
            check_size([*value], most)?;
            Json::String(value.to_string())
        }
        (I::StringSplit, [whole, at]) => split(text(whole)?, text(at)?),
        (I::Base64Encode, [plain]) => encode(text(plain)?)?,
        (I::Base64Decode, [encoded]) => decode(text(encoded)?)?,
        (I::Hash, [value, algorithm]) => hash(value, text(algorithm)?)?,
        (I::Uuid, []) => uuid(context.random.bytes()),
        (I::Array, items) => {
            check_size(items.iter().copied(), most)?;
            Json::Array(items.iter().map(|item| (*item).clone()).collect())
        }
        (I::ArrayLength, [items]) => Json::from(list(items)?.len()),
        (I::ArrayContains, [items, item]) => Json::Bool(list(items)?.iter().any(|one| is_same(one, item))),
        (I::ArrayGetItem, [items, index]) => item(list(items)?, number(index)?)?,
        (I::ArrayPartition, [items, size]) => {
            check_size([*items], most)?;
            partition(list(items)?, number(size)?)?
        }
        (I::ArrayRange, [first, last, step]) => range(number(first)?, number(last)?, number(step)?)?,
        (I::ArrayUnique, [items]) => unique(list(items)?),
        (I::JsonMerge, [left, right, deep]) => merge(left, right, deep)?,
        (I::MathAdd, [left, right]) => add(number(left)?, number(right)?)?,
        (I::MathRandom, [first, last]) => random(number(first)?, number(last)?, context.random.number())?,
        (I::MathRandom, [first, last, seed]) => {
            random(number(first)?, number(last)?, super::context::seeded(number(seed)?))?
        }
        (function, values) => {
            return Err(format!("{function} does not take {} arguments", values.len()).into());
        }
    })
}

/// Fails if the values together are larger than `most`.
fn check_size<'a>(values: impl IntoIterator<Item = &'a Json>, most: usize) -> Result<(), IntrinsicError> {
    let mut left = most;
    for value in values {
        left = left.checked_sub(size(value)).ok_or(IntrinsicError::TooLarge)?;
    }
    Ok(())
}

fn value<'a>(
    argument: &'a Argument,
    data: &'a Json,
    context: &'a Context<'_>,
    most: usize,
) -> Result<Cow<'a, Json>, IntrinsicError> {
    match argument {
        Argument::Text(raw) => Ok(Cow::Owned(Json::String(unescaped(raw)))),
        Argument::Literal(literal) => Ok(Cow::Borrowed(literal)),
        Argument::Path(path) => resolve(path, data, context)
            .ok_or_else(|| format!("there is nothing at `{path}` in the data").into()),
        Argument::Call(call) => evaluate(call, data, context, most).map(Cow::Owned),
    }
}

fn text(value: &Json) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("expected a string, not {}", type_name(value)))
}

fn list(value: &Json) -> Result<&[Json], String> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| format!("expected a list, not {}", type_name(value)))
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
    number.ok_or_else(|| format!("expected a number, not {}", type_name(value)))
}

fn merge(left: &Json, right: &Json, deep: &Json) -> Result<Json, String> {
    let (Some(left), Some(right)) = (left.as_object(), right.as_object()) else {
        return Err("expected two objects".to_owned());
    };
    if *deep != Json::Bool(false) {
        return Err("the third argument must be false: the language has no deep merge".to_owned());
    }
    let both = left.iter().chain(right).map(|(name, value)| (name.clone(), value.clone()));
    Ok(Json::Object(both.collect::<Map<_, _>>()))
}

/// Returns the type of a value, for messages.
fn type_name(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

// Intrinsic functions on lists.

/// Maximum number of items in a range: the language's own limit.
const RANGE_MAX: usize = 1000;

pub(crate) fn item(items: &[Json], index: i64) -> Result<Json, String> {
    let found = usize::try_from(index).ok().and_then(|index| items.get(index));
    found.cloned().ok_or_else(|| format!("the list has no item {index}, but {} items", items.len()))
}

pub(crate) fn partition(items: &[Json], size: i64) -> Result<Json, String> {
    let size = usize::try_from(size).ok().filter(|size| *size > 0);
    let size = size.ok_or("the size of a part must be more than 0")?;
    Ok(Json::Array(items.chunks(size).map(|chunk| Json::Array(chunk.to_vec())).collect()))
}

/// Returns the numbers from the first to the last, which is included if the steps meet it.
pub(crate) fn range(first: i64, last: i64, step: i64) -> Result<Json, String> {
    if step == 0 {
        return Err("the step of a range must not be 0".to_owned());
    }
    let mut items = Vec::new();
    let mut next = Some(first);
    while let Some(number) = next.filter(|number| if step > 0 { *number <= last } else { *number >= last }) {
        if items.len() == RANGE_MAX {
            return Err(format!("a range has at most {RANGE_MAX} items"));
        }
        items.push(Json::from(number));
        next = number.checked_add(step);
    }
    Ok(Json::Array(items))
}

/// Returns each value once, at its first position.
pub(crate) fn unique(items: &[Json]) -> Json {
    // Keys are equal where `is_same` holds: comparing every pair takes minutes for the largest list.
    let key = |item: &Json| match item.as_f64() {
        // Zero has two signs.
        Some(number) => format!("{:x}", (number + 0.0).to_bits()),
        None => item.to_string(),
    };
    let mut seen = BTreeSet::new();
    Json::Array(items.iter().filter(|item| seen.insert(key(item))).cloned().collect())
}

/// True if the values are equal, where a number may be written `1` or `1.0`.
pub(crate) fn is_same(left: &Json, right: &Json) -> bool {
    left == right || (left.is_number() && left.as_f64() == right.as_f64())
}

// Intrinsic functions on numbers.

pub(crate) fn add(left: i64, right: i64) -> Result<Json, String> {
    left.checked_add(right).map(Json::from).ok_or_else(|| "the sum is too large".to_owned())
}

/// Returns a number from the first up to, but excluding, the last.
pub(crate) fn random(first: i64, last: i64, drawn: u64) -> Result<Json, String> {
    let span = i128::from(last) - i128::from(first);
    if span <= 0 {
        return Err("the second number must be greater than the first".to_owned());
    }
    let number = i128::from(first) + i128::from(drawn) % span;
    i64::try_from(number).map(Json::from).map_err(|error| error.to_string())
}

// Intrinsic functions on texts.

/// Maximum length of a text to encode, decode or hash, in characters: the language's own limit.
const TEXT_MAX_CHARS: usize = 10_000;

/// Replaces each `{}` of the template by a value, up to `most` bytes. In a template written in the workflow, `\{`
/// is a brace.
pub(crate) fn format(
    template: &str,
    has_escapes: bool,
    values: &[&Json],
    most: usize,
) -> Result<Json, IntrinsicError> {
    let mut formatted = String::new();
    let mut left = values.iter();
    let mut chars = template.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\\' if has_escapes => formatted.push(chars.next().unwrap_or(char)),
            '{' if chars.peek() == Some(&'}') => {
                chars.next();
                let value = left
                    .next()
                    .ok_or_else(|| "the template has more `{}` than there are values".to_owned())?;
                // The size of a text includes its two quotes, which only the whole result has.
                if formatted.len() + size(value) > most + 2 {
                    return Err(IntrinsicError::TooLarge);
                }
                match value {
                    Json::String(text) => formatted.push_str(text),
                    other => {
                        let _ = write!(formatted, "{other}");
                    }
                }
            }
            plain => formatted.push(plain),
        }
    }
    match left.len() {
        0 => Ok(Json::String(formatted)),
        left => Err(format!("the template has {left} `{{}}` fewer than there are values").into()),
    }
}

/// Splits at any of the characters of `at`, without empty parts.
pub(crate) fn split(whole: &str, at: &str) -> Json {
    let parts = whole.split(|char| at.contains(char)).filter(|part| !part.is_empty());
    Json::Array(parts.map(Json::from).collect())
}

pub(crate) fn encode(plain: &str) -> Result<Json, String> {
    bounded(plain)?;
    Ok(Json::String(STANDARD.encode(plain)))
}

pub(crate) fn decode(encoded: &str) -> Result<Json, String> {
    bounded(encoded)?;
    let bytes = STANDARD.decode(encoded).map_err(|error| format!("not Base64: {error}"))?;
    String::from_utf8(bytes).map(Json::String).map_err(|_| "the decoded data is not UTF-8 text".to_owned())
}

/// Returns the hash in hexadecimal; for a value that is not text, the hash of its JSON.
pub(crate) fn hash(value: &Json, algorithm: &str) -> Result<Json, String> {
    let digest = match algorithm {
        "MD5" => MessageDigest::md5(),
        "SHA-1" => MessageDigest::sha1(),
        "SHA-256" => MessageDigest::sha256(),
        "SHA-384" => MessageDigest::sha384(),
        "SHA-512" => MessageDigest::sha512(),
        other => {
            return Err(format!("unknown algorithm `{other}`; use MD5, SHA-1, SHA-256, SHA-384 or SHA-512"));
        }
    };
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    bounded(&text)?;
    let hash = openssl::hash::hash(digest, text.as_bytes()).map_err(|error| error.to_string())?;
    Ok(Json::String(hex::encode(hash)))
}

/// Returns a version 4 UUID from random bytes.
pub(crate) fn uuid(mut bytes: [u8; 16]) -> Json {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = hex::encode(bytes);
    for at in [20, 16, 12, 8] {
        text.insert(at, '-');
    }
    Json::String(text)
}

fn bounded(text: &str) -> Result<(), String> {
    let length = text.chars().count();
    if length <= TEXT_MAX_CHARS {
        return Ok(());
    }
    Err(format!("the text has {length} characters; at most {TEXT_MAX_CHARS} are allowed"))
}
