//! Reads scalars: the meaning of a text depends on the shape that is wanted.

use serde_json::{Map, Number, Value as Json};

use super::walk::Walk;
use super::words::{WalkPosition, mark_to_show};
use super::{Bounds, FILE_MODE_MAX, Range, Shape};
use crate::document::nearest::{list, nearest};
use crate::document::node::{Node, PlainScalar, Problem, Value, resolve};
use crate::manifest::unsupported;
use crate::quantity::{Count, Cpu, Memory, QuantityError};
use crate::secrets::is_secret_place;
use crate::violation::rules;

/// Smallest plain `cpu` number read as nano-CPUs: no machine has a million cores, and older Minik8s manifests wrote
/// billionths.
const NANO_CPU_MIN: i128 = 1_000_000;

impl Walk<'_> {
    pub(super) fn scalar(&mut self, shape: usize, node: &Node, here: WalkPosition<'_>) -> Option<Json> {
        let Value::Scalar { text, plain } = &node.value else { return self.wrong_type(shape, node, here) };
        let meaning = if *plain { resolve(text) } else { PlainScalar::Text };
        let here = WalkPosition { mark: mark_to_show(node, here), ..here };
        let shapes = self.shapes;
        match (shapes.get(shape), meaning) {
            (Shape::Text | Shape::TextOrList(_) | Shape::NullableText, PlainScalar::Text) => {
                Some(Json::from(text.as_str()))
            }
            (Shape::Text | Shape::TextOrList(_) | Shape::NullableText, PlainScalar::OldBool(_)) => {
                Some(self.old_bool_as_text(text, here))
            }
            (Shape::OneOf(words), _) => self.one_of(words, text, here),
            (Shape::Bool, PlainScalar::Bool(value)) => Some(Json::from(value)),
            (Shape::Bool, PlainScalar::OldBool(value)) => Some(self.old_bool_as_bool(text, value, here)),
            (Shape::Integer(range) | Shape::IntegerOrText(range), PlainScalar::Integer(number)) => {
                self.integer(number, *range, here)
            }
            (Shape::IntegerOrText(_), PlainScalar::Text) => Some(Json::from(text.as_str())),
            (Shape::FileMode, PlainScalar::Integer(number)) => self.file_mode(number, here),
            // As Kubernetes reads it.
            (Shape::FileMode, PlainScalar::LeadingZero) => match i128::from_str_radix(text, 8) {
                Ok(number) => self.file_mode(number, here),
                Err(_) => self.wrong_type(shape, node, here),
            },
            (Shape::Number(bounds), PlainScalar::Integer(_) | PlainScalar::Float) => {
                self.number(text, *bounds, here)
            }
            (Shape::Cpu, PlainScalar::Integer(number)) if number >= NANO_CPU_MIN => {
                self.nano_cpu(number, here)
            }
            (Shape::Cpu, PlainScalar::Text | PlainScalar::Integer(_) | PlainScalar::Float) => {
                self.quantity(text, text.parse::<Cpu>().err(), here)
            }
            (Shape::Memory, PlainScalar::Text | PlainScalar::Integer(_) | PlainScalar::Float) => {
                self.quantity(text, text.parse::<Memory>().err(), here)
            }
            (Shape::Count, PlainScalar::Text | PlainScalar::Integer(_) | PlainScalar::Float) => {
                self.quantity(text, text.parse::<Count>().err(), here)
            }
            _ => self.wrong_type(shape, node, here),
        }
    }

    pub(super) fn one_of(&mut self, words: &[String], text: &str, here: WalkPosition<'_>) -> Option<Json> {
        if words.iter().any(|word| word == text) {
            return Some(Json::from(text));
        }
        let known = || words.iter().map(String::as_str).filter(|word| !word.is_empty());
        let help = match (unsupported::value_advice(words, text), nearest(text, known())) {
            (Some(help), _) => help.to_owned(),
            (None, Some(word)) => format!("did you mean `{word}`? supported values: {}", list(known())),
            (None, None) => format!("supported values: {}", list(known())),
        };
        let message = format!("{}: Unsupported value: `{text}`", here.path);
        self.fault(here.path, Problem::new(here.mark, &rules::UNKNOWN_VALUE, message).help(help));
        None
    }

    fn integer(&mut self, number: i128, range: Range, here: WalkPosition<'_>) -> Option<Json> {
        let json = i64::try_from(number).map(Json::from).or_else(|_| u64::try_from(number).map(Json::from));
        let Range { min, max } = range;
        match json {
            Ok(json) if (min..=max).contains(&number) => Some(json),
            _ => {
                let path = here.path;
                let message =
                    format!("{path}: Invalid value: {number}: must be between {min} and {max}, inclusive");
                self.fault(path, Problem::new(here.mark, &rules::OUT_OF_RANGE, message));
                None
            }
        }
    }

    fn file_mode(&mut self, number: i128, here: WalkPosition<'_>) -> Option<Json> {
        self.integer(number, Range { min: 0, max: i128::from(FILE_MODE_MAX) }, here)
    }

    fn nano_cpu(&mut self, number: i128, here: WalkPosition<'_>) -> Option<Json> {
        let text = format!("{number}n");
        match text.parse::<Cpu>() {
            Err(error) => self.quantity(&text, Some(error), here),
            Ok(cpu) => {
                let message =
                    format!("{}: {number} is read as billionths of a core, which is `{cpu}`", here.path);
                let problem = Problem::new(here.mark, &rules::NANO_CPU, message);
                self.problems.push(problem.help(format!("write `{cpu}`")));
                Some(Json::from(text))
            }
        }
    }

    fn quantity(&mut self, text: &str, error: Option<QuantityError>, here: WalkPosition<'_>) -> Option<Json> {
        let Some(error) = error else { return Some(Json::from(text)) };
        let message = format!("{}: Invalid value: {error}", here.path);
        self.fault(here.path, Problem::new(here.mark, &rules::QUANTITY, message));
        None
    }

    /// Reads any value as JSON: plain scalars mean what YAML 1.2 says.
    pub(super) fn any(&mut self, node: &Node, here: WalkPosition<'_>) -> Option<Json> {
        match &node.value {
            Value::Mapping(entries) => {
                let mut object = Map::new();
                for entry in entries {
                    let path = here.path.field(&entry.key);
                    let value = self.any(&entry.value, WalkPosition { path: &path, mark: entry.mark });
                    object.insert(entry.key.clone(), value.unwrap_or_default());
                }
                Some(Json::Object(object))
            }
            Value::Sequence(nodes) => {
                let mut item = |(index, item): (usize, &Node)| {
                    let path = here.path.index(index);
                    self.any(item, WalkPosition { path: &path, mark: item.mark }).unwrap_or_default()
                };
                Some(Json::Array(nodes.iter().enumerate().map(&mut item).collect()))
            }
            Value::Scalar { text, plain: false } => Some(Json::from(text.as_str())),
            Value::Scalar { text, plain: true } => self.plain(text, node, here),
        }
    }

    fn plain(&mut self, text: &str, node: &Node, here: WalkPosition<'_>) -> Option<Json> {
        let here = WalkPosition { mark: mark_to_show(node, here), ..here };
        match resolve(text) {
            PlainScalar::Null => Some(Json::Null),
            PlainScalar::Bool(value) => Some(Json::from(value)),
            PlainScalar::OldBool(_) => Some(self.old_bool_as_text(text, here)),
            PlainScalar::Text => Some(Json::from(text)),
            PlainScalar::Integer(number) => i64::try_from(number)
                .map(Json::from)
                .or_else(|_| u64::try_from(number).map(Json::from))
                .ok()
                .or_else(|| self.number(text, Bounds { min: f64::MIN, max: f64::MAX }, here)),
            PlainScalar::Float => self.number(text, Bounds { min: f64::MIN, max: f64::MAX }, here),
            PlainScalar::LeadingZero => {
                let mut message = format!("{}: the number `{text}` has a leading zero", here.path);
                let digits = text.trim_start_matches(['+', '-']).trim_start_matches('0');
                let mut help = format!(
                    "it is octal in older YAML and decimal in newer: write {digits}, 0o{digits} or \"{text}\""
                );
                if is_secret_place(here.path) {
                    message = format!("{}: the number has a leading zero", here.path);
                    "it is octal in older YAML and decimal in newer: write it without, or in quotes"
                        .clone_into(&mut help);
                }
                self.fault(here.path, Problem::new(here.mark, &rules::WRONG_TYPE, message).help(help));
                None
            }
        }
    }

    fn old_bool_as_bool(&mut self, text: &str, value: bool, here: WalkPosition<'_>) -> Json {
        let message = format!("{}: `{text}` is taken as `{value}`; newer YAML reads it as text", here.path);
        let problem = Problem::new(here.mark, &rules::AMBIGUOUS_SCALAR, message);
        self.problems.push(problem.help(format!("write {value}")));
        Json::from(value)
    }

    fn old_bool_as_text(&mut self, text: &str, here: WalkPosition<'_>) -> Json {
        let message = format!("{}: `{text}` is taken as text; older YAML reads it as a boolean", here.path);
        let problem = Problem::new(here.mark, &rules::AMBIGUOUS_SCALAR, message);
        self.problems.push(problem.help(format!("write \"{text}\" in quotes")));
        Json::from(text)
    }

    fn number(&mut self, text: &str, bounds: Bounds, here: WalkPosition<'_>) -> Option<Json> {
        let Bounds { min, max } = bounds;
        let number = text.parse::<f64>().ok().filter(|number| (min..=max).contains(number));
        if let Some(number) = number.and_then(Number::from_f64) {
            return Some(Json::Number(number));
        }
        let wanted = match (min > f64::MIN, max < f64::MAX) {
            (true, true) => format!("between {min} and {max}, inclusive"),
            (true, false) => format!("{min} or more"),
            (false, true) => format!("{max} or less"),
            (false, false) => "a number that fits 64 bits".to_owned(),
        };
        let shown = if is_secret_place(here.path) { "" } else { text };
        let message = format!("{}: Invalid value: {shown}: must be {wanted}", here.path);
        self.fault(here.path, Problem::new(here.mark, &rules::OUT_OF_RANGE, message));
        None
    }
}
