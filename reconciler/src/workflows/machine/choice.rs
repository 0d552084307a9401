//! Choice: finds the matching rule, with the operators of the Amazon States Language.

use std::borrow::Cow;
use std::cmp::Ordering;

use schema::kinds::workflow::{ChoiceState, JsonPath, Operand, Operator, Rule, timestamp};
use serde_json::Value as Json;

use super::context::{Context, resolve};
use super::data::lookup;
use super::failure::{Failure, errors};

/// Returns the next state of the first matching rule, or the default.
pub(super) fn next<'a>(
    choice: &'a ChoiceState,
    input: &Json,
    context: &Context<'_>,
) -> Result<&'a str, Failure> {
    for rule in &choice.choices {
        if fits(rule, input, context)? {
            return rule.next.as_deref().ok_or_else(|| Failure::runtime("the matching rule has no `next`"));
        }
    }
    let none = || Failure::new(errors::NO_CHOICE, "no rule matches, and there is no default");
    choice.default.as_deref().ok_or_else(none)
}

fn fits(rule: &Rule, input: &Json, context: &Context<'_>) -> Result<bool, Failure> {
    if let Some(rules) = &rule.and {
        for rule in rules {
            if !fits(rule, input, context)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    if let Some(rules) = &rule.or {
        for rule in rules {
            if fits(rule, input, context)? {
                return Ok(true);
            }
        }
        return Ok(false);
    }
    if let Some(rule) = &rule.not {
        return Ok(!fits(rule, input, context)?);
    }
    let (Some(variable), Some((operator, operand))) = (&rule.variable, rule.comparisons.first_key_value())
    else {
        return Err(Failure::runtime("a rule has neither variable nor operator"));
    };
    if *operator == Operator::IsPresent {
        let path = JsonPath::parse(variable).map_err(|error| Failure::runtime(error.to_string()))?;
        return Ok(resolve(&path, input, context).is_some() == operand.as_bool().unwrap_or_default());
    }
    let variable = lookup("variable", variable, input, context)?;
    let operand = match (operator.operand(), operand) {
        (Operand::Path, Json::String(path)) => lookup(operator.as_str(), path, input, context)?,
        _ => Cow::Borrowed(operand),
    };
    Ok(compare(*operator, &variable, &operand))
}

/// True if a comparison holds. A comparison between different types never does.
fn compare(operator: Operator, variable: &Json, operand: &Json) -> bool {
    use Operator as O;
    let is = |holds: bool| operand.as_bool() == Some(holds);
    let ordering = match operator {
        O::IsPresent => return is(true),
        O::IsNull => return is(variable.is_null()),
        O::IsNumeric => return is(variable.is_number()),
        O::IsString => return is(variable.is_string()),
        O::IsBoolean => return is(variable.is_boolean()),
        O::IsTimestamp => return is(variable.as_str().and_then(timestamp).is_some()),
        O::BooleanEquals | O::BooleanEqualsPath => {
            return variable.as_bool().is_some_and(|value| operand.as_bool() == Some(value));
        }
        O::StringMatches => {
            let both = variable.as_str().zip(operand.as_str());
            return both.is_some_and(|(text, pattern)| matches(text, pattern));
        }
        operator if operator.as_str().starts_with("numeric") => {
            let both = variable.as_f64().zip(operand.as_f64());
            both.and_then(|(left, right)| left.partial_cmp(&right))
        }
        operator if operator.as_str().starts_with("timestamp") => {
            let both = variable.as_str().and_then(timestamp).zip(operand.as_str().and_then(timestamp));
            both.map(|(left, right)| left.cmp(&right))
        }
        _ => {
            // By UTF-16 units, as Java does; Rust's own order differs above U+FFFF.
            let both = variable.as_str().zip(operand.as_str());
            both.map(|(left, right)| left.encode_utf16().cmp(right.encode_utf16()))
        }
    };
    let name = operator.as_str();
    let name = name.strip_suffix("Path").unwrap_or(name);
    let wanted: &[Ordering] = match name {
        name if name.ends_with("LessThanEquals") => &[Ordering::Less, Ordering::Equal],
        name if name.ends_with("GreaterThanEquals") => &[Ordering::Greater, Ordering::Equal],
        name if name.ends_with("LessThan") => &[Ordering::Less],
        name if name.ends_with("GreaterThan") => &[Ordering::Greater],
        _ => &[Ordering::Equal],
    };
    ordering.is_some_and(|ordering| wanted.contains(&ordering))
}

/// True if the text matches a pattern: `*` is any text, `\*` a star, `\\` a backslash.
fn matches(text: &str, pattern: &str) -> bool {
    let mut wanted = Vec::new();
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        wanted.push(match char {
            '*' => None,
            '\\' => Some(chars.next().unwrap_or('\\')),
            plain => Some(plain),
        });
    }
    let text: Vec<char> = text.chars().collect();
    // Position to resume from if the rest after the last star does not match: one character further.
    let (mut at, mut place, mut star) = (0, 0, None);
    while at < text.len() {
        match wanted.get(place) {
            Some(None) => {
                star = Some((place, at));
                place += 1;
            }
            Some(Some(char)) if text.get(at) == Some(char) => {
                place += 1;
                at += 1;
            }
            _ => {
                let Some((star_place, star_at)) = star else { return false };
                star = Some((star_place, star_at + 1));
                (place, at) = (star_place + 1, star_at + 1);
            }
        }
    }
    wanted.iter().skip(place).all(Option::is_none)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stars_match_any_text_unless_escaped() {
        for (text, pattern, fits) in [
            ("foo23.log", "foo*.log", true),
            ("zebra.log", "*.log", true),
            ("foobar.zebra", "foo*.*", true),
            ("foobar", "foo*.*", false),
            ("a*c", r"a\*c", true),
            ("abc", r"a\*c", false),
            (r"a\c", r"a\\c", true),
            ("", "*", true),
            ("", "", true),
            ("abcbd", "a*b*d", true),
            ("abcbde", "a*b*d", false),
        ] {
            assert_eq!(matches(text, pattern), fits, "{text} {pattern}");
        }
    }

    /// Tests each operator with a value that fits, one that does not, and one of another type, which never does.
    #[test]
    fn each_operator_has_a_value_that_fits_and_one_that_does_not() {
        let early = json!("2026-01-01T00:00:00Z");
        let late = json!("2026-01-01T02:00:00+01:00");
        for operator in Operator::ALL {
            let name = operator.as_str();
            let plain = name.strip_suffix("Path").unwrap_or(name);
            let (low, high, other) = match plain {
                plain if plain.starts_with("numeric") => (json!(-1.5), json!(2), json!("2")),
                plain if plain.starts_with("timestamp") => (early.clone(), late.clone(), json!("soon")),
                _ => (json!("a"), json!("b"), json!(1)),
            };
            let (fits, fails, operand) = match plain {
                "isPresent" => continue, // Tests for the variable, not for its value.
                "isNull" => (json!(null), json!(0), json!(true)),
                "isNumeric" => (json!(0), json!("0"), json!(true)),
                "isString" => (json!(""), json!(0), json!(true)),
                "isBoolean" => (json!(false), json!(null), json!(true)),
                "isTimestamp" => (early.clone(), json!("2026-01-01"), json!(true)),
                "booleanEquals" => (json!(false), json!(true), json!(false)),
                "stringMatches" => (json!("abc"), json!("bc"), json!("a*")),
                plain if plain.ends_with("LessThan") => (low, high.clone(), high),
                plain if plain.ends_with("GreaterThan") => (high, low.clone(), low),
                plain if plain.ends_with("LessThanEquals") => (low.clone(), high, low),
                plain if plain.ends_with("GreaterThanEquals") => (high.clone(), low, high),
                _ => (low.clone(), high, low),
            };
            assert!(compare(*operator, &fits, &operand), "{name}: {fits} {operand}");
            assert!(!compare(*operator, &fails, &operand), "{name}: {fails} {operand}");
            if plain.starts_with("is") {
                assert!(compare(*operator, &fails, &json!(false)), "{name} turned around");
            } else {
                assert!(!compare(*operator, &other, &operand), "{name}: {other} is of another type");
            }
        }
    }

    #[test]
    fn texts_are_ordered_by_utf_16_units() {
        // Seen red with Rust's order of texts. U+FF5E is above the surrogates that U+1F600 is made of.
        let (tilde, face) = (Json::from("\u{ff5e}"), Json::from("\u{1f600}"));
        assert!(compare(Operator::StringGreaterThan, &tilde, &face));
        assert!(!compare(Operator::StringLessThan, &tilde, &face));
    }
}
