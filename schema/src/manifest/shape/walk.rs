//! Walks a document along its shape: collects every mistake, and gives the value that serde reads.

use serde_json::{Map, Value as Json};

use super::{Range, Record, Shape, Shapes};
use crate::manifest::foreign;
use crate::manifest::nearest::{list, nearest, suggestion};
use crate::manifest::node::{Entry, Mark, Node, Problem, Value};
use crate::manifest::scalar::{Plain, resolve};
use crate::quantity::{Cpu, Memory, QuantityError};
use crate::violation::{OwnedStep, Path, rules};

/// A plain `cpu` number from here on is nano-CPUs: no machine has a million cores, and older
/// Minik8s manifests wrote billionths.
const NANO_CPU_MIN: i128 = 1_000_000;

/// Where the walk is: the path, and the place to show for it.
#[derive(Clone, Copy)]
pub(crate) struct Here<'a> {
    pub(crate) path: &'a Path<'a>,
    pub(crate) mark: Mark,
}

/// One walk over one document.
pub(crate) struct Walk<'a> {
    pub(crate) shapes: &'a Shapes,
    pub(crate) problems: Vec<Problem>,
    /// Where the value is not what the author meant: findings there would only follow from these.
    pub(crate) faults: Vec<Vec<OwnedStep>>,
}

impl Walk<'_> {
    /// The value at `node` as JSON for serde; none where it is a mistake. The mark of `here` is shown
    /// when something is missing: the key that owns the value.
    pub(crate) fn value(&mut self, shape: usize, node: &Node, here: Here<'_>) -> Option<Json> {
        let shapes = self.shapes;
        match (shapes.get(shape), &node.value) {
            (Shape::Record(record), Value::Mapping(entries)) => Some(self.record(record, entries, here)),
            (Shape::Map(values), Value::Mapping(entries)) => Some(self.map(*values, entries, here.path)),
            (Shape::List(items), Value::Sequence(nodes)) => {
                let mut item = |(index, item): (usize, &Node)| {
                    let path = here.path.index(index);
                    let value = self.value(*items, item, Here { path: &path, mark: item.mark });
                    // A stand-in keeps the others at their index.
                    value.unwrap_or_else(|| shapes.stand_in(*items))
                };
                Some(Json::Array(nodes.iter().enumerate().map(&mut item).collect()))
            }
            (Shape::List(_) | Shape::Map(_) | Shape::Record(_), _) => self.wrong_type(shape, node, here),
            _ => self.scalar(shape, node, here),
        }
    }

    fn record(&mut self, record: &Record, entries: &[Entry], here: Here<'_>) -> Json {
        let (mut object, at) = (Map::new(), here.path);
        for entry in entries {
            let path = at.field(&entry.key);
            match record.fields.get(&entry.key) {
                // Null is absence, as in Kubernetes; a required field is then missed below.
                Some(_) if entry.value.is_null() => {}
                Some(field) => {
                    let value = self.value(field.shape, &entry.value, Here { path: &path, mark: entry.mark });
                    let stand_in = || field.required.then(|| self.shapes.stand_in(field.shape));
                    object.extend(value.or_else(stand_in).map(|value| (entry.key.clone(), value)));
                }
                None => self.unknown_field(record, entry, at),
            }
        }
        for (name, field) in &record.fields {
            if !field.required || object.contains_key(name) {
                continue;
            }
            object.insert(name.clone(), self.shapes.stand_in(field.shape));
            self.missing_field(record, name, entries, here);
        }
        Json::Object(object)
    }

    fn missing_field(&mut self, record: &Record, name: &str, entries: &[Entry], here: Here<'_>) {
        let path = here.path.field(name);
        let is_typo = |entry: &Entry| {
            let known = record.fields.keys().map(String::as_str);
            !record.fields.contains_key(&entry.key) && nearest(&entry.key, known) == Some(name)
        };
        if entries.iter().any(is_typo) {
            // `imgae` was told as unknown already: one mistake, one message.
            return self.faults.push(path.steps());
        }
        let null = entries.iter().find(|entry| entry.key == *name);
        let why = if null.is_some() { "the field is there but has no value" } else { "the field is missing" };
        let mark = null.map_or(here.mark, |entry| entry.mark);
        let message = format!("{path}: Required value: {why}");
        self.fault(&path, Problem::new(mark, &rules::MISSING_FIELD, message));
    }

    fn unknown_field(&mut self, record: &Record, entry: &Entry, at: &Path<'_>) {
        let path = at.field(&entry.key);
        if let Some(field) = foreign::field(&record.name, &entry.key) {
            // Kubernetes' own tools write `creationTimestamp: null`: nothing is lost without it.
            if entry.value.is_null() {
                return;
            }
            let message = format!("{path}: a Kubernetes field that Minik8s does not support");
            let problem = Problem::new(entry.mark, &rules::UNSUPPORTED_FIELD, message);
            return self.fault(&path, problem.help(field.help));
        }
        let message = format!("{path}: unknown field `{}`", entry.key);
        let names = record.fields.keys().map(String::as_str);
        let help = suggestion(&entry.key, names);
        self.fault(&path, Problem::new(entry.mark, &rules::UNKNOWN_FIELD, message).help(help));
    }

    fn map(&mut self, values: usize, entries: &[Entry], at: &Path<'_>) -> Json {
        let mut object = Map::new();
        for entry in entries {
            let path = at.field(&entry.key);
            let value = if entry.value.is_null() {
                // `disk:` without a value is the empty text, as for Kubernetes.
                Json::String(String::new())
            } else {
                let value = self.value(values, &entry.value, Here { path: &path, mark: entry.mark });
                value.unwrap_or_else(|| self.shapes.stand_in(values))
            };
            object.insert(entry.key.clone(), value);
        }
        Json::Object(object)
    }

    fn scalar(&mut self, shape: usize, node: &Node, here: Here<'_>) -> Option<Json> {
        let Value::Scalar { text, plain } = &node.value else { return self.wrong_type(shape, node, here) };
        let meaning = if *plain { resolve(text) } else { Plain::Text };
        let here = Here { mark: shown(node, here), ..here };
        let (shapes, at) = (self.shapes, here.path);
        match (shapes.get(shape), meaning) {
            (Shape::Text, Plain::Text) => Some(Json::from(text.as_str())),
            (Shape::Text, Plain::OldBool(_)) => {
                let message = format!("{at}: `{text}` is taken as text; older YAML reads it as a boolean");
                let problem = Problem::new(here.mark, &rules::AMBIGUOUS_SCALAR, message);
                self.problems.push(problem.help(format!("write \"{text}\" in quotes")));
                Some(Json::from(text.as_str()))
            }
            (Shape::OneOf(words), _) => self.one_of(words, text, here),
            (Shape::Bool, Plain::Bool(value)) => Some(Json::from(value)),
            (Shape::Integer(range) | Shape::IntegerOrText(range), Plain::Integer(number)) => {
                self.integer(number, *range, here)
            }
            (Shape::IntegerOrText(_), Plain::Text) => Some(Json::from(text.as_str())),
            (Shape::Cpu, Plain::Integer(number)) if number >= NANO_CPU_MIN => self.nano_cpu(number, here),
            (Shape::Cpu, Plain::Text | Plain::Integer(_) | Plain::Float) => {
                self.quantity(text, text.parse::<Cpu>().err(), here)
            }
            (Shape::Memory, Plain::Text | Plain::Integer(_) | Plain::Float) => {
                self.quantity(text, text.parse::<Memory>().err(), here)
            }
            _ => self.wrong_type(shape, node, here),
        }
    }

    fn one_of(&mut self, words: &[String], text: &str, here: Here<'_>) -> Option<Json> {
        if words.iter().any(|word| word == text) {
            return Some(Json::from(text));
        }
        let known = || words.iter().map(String::as_str).filter(|word| !word.is_empty());
        let help = match nearest(text, known()) {
            Some(word) => format!("did you mean `{word}`? supported values: {}", list(known())),
            None => format!("supported values: {}", list(known())),
        };
        let message = format!("{}: Unsupported value: `{text}`", here.path);
        self.fault(here.path, Problem::new(here.mark, &rules::UNKNOWN_VALUE, message).help(help));
        None
    }

    fn integer(&mut self, number: i128, range: Range, here: Here<'_>) -> Option<Json> {
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

    fn nano_cpu(&mut self, number: i128, here: Here<'_>) -> Option<Json> {
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

    fn quantity(&mut self, text: &str, error: Option<QuantityError>, here: Here<'_>) -> Option<Json> {
        let Some(error) = error else { return Some(Json::from(text)) };
        let message = format!("{}: Invalid value: {error}", here.path);
        self.fault(here.path, Problem::new(here.mark, &rules::QUANTITY, message));
        None
    }

    fn wrong_type(&mut self, shape: usize, node: &Node, here: Here<'_>) -> Option<Json> {
        let message =
            format!("{}: {} is wanted, found {}", here.path, wanted(self.shapes, shape), found(node));
        let help = type_help(self.shapes.get(shape), node);
        self.fault(here.path, Problem::new(shown(node, here), &rules::WRONG_TYPE, message).help(help));
        None
    }

    /// Notes a mistake after which the value at `at` is not the author's.
    fn fault(&mut self, at: &Path<'_>, problem: Problem) {
        self.faults.push(at.steps());
        self.problems.push(problem);
    }
}

/// A value that is not written has no place of its own: its key is shown.
fn shown(node: &Node, here: Here<'_>) -> Mark {
    if node.is_blank() { here.mark } else { node.mark }
}

/// What the schema wants, in words.
fn wanted(shapes: &Shapes, shape: usize) -> &'static str {
    match shapes.get(shape) {
        Shape::Text | Shape::OneOf(_) => "text",
        Shape::Bool => "`true` or `false`",
        Shape::Integer(_) => "an integer",
        Shape::IntegerOrText(_) => "a port's number or name",
        Shape::Cpu | Shape::Memory => "a quantity",
        Shape::List(_) => "a list",
        Shape::Map(_) | Shape::Record(_) => "a mapping",
    }
}

/// What is written, in words.
pub(crate) fn found(node: &Node) -> String {
    match &node.value {
        Value::Sequence(_) => "a list".to_owned(),
        Value::Mapping(_) => "a mapping".to_owned(),
        Value::Scalar { text, plain: false } => format!("the text \"{}\"", shortened(text)),
        Value::Scalar { text, plain: true } => match resolve(text) {
            Plain::Null => "null".to_owned(),
            Plain::Bool(_) => format!("the boolean `{text}`"),
            Plain::Integer(_) | Plain::Float | Plain::LeadingZero => format!("the number `{text}`"),
            Plain::Text | Plain::OldBool(_) => format!("the text `{}`", shortened(text)),
        },
    }
}

/// What to write instead.
fn type_help(shape: &Shape, node: &Node) -> String {
    let Value::Scalar { text, plain } = &node.value else {
        return match (shape, &node.value) {
            (Shape::List(_), Value::Mapping(_)) => "begin each item with `- `".to_owned(),
            (Shape::Record(_) | Shape::Map(_), Value::Sequence(_)) => "leave out the `- `".to_owned(),
            _ => String::new(),
        };
    };
    match (shape, resolve(text), *plain) {
        (Shape::Text, Plain::Null, _) => "write \"\" for empty text".to_owned(),
        (Shape::Text, _, true) => format!("write \"{text}\" in quotes"),
        (Shape::Bool, Plain::Bool(value) | Plain::OldBool(value), _) => {
            format!("write {value} without quotes")
        }
        (Shape::Integer(_) | Shape::IntegerOrText(_), Plain::Integer(number), false) => {
            format!("write {number} without quotes")
        }
        (_, Plain::LeadingZero, true) => {
            format!(
                "a leading zero makes it octal in older YAML and decimal in newer: write {} or 0o{}",
                text.trim_start_matches('0'),
                text.trim_start_matches('0')
            )
        }
        _ => String::new(),
    }
}

fn shortened(text: &str) -> String {
    // Enough to recognise the value, short enough for one line of a terminal.
    const SHOWN: usize = 40;
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= SHOWN && line.len() == text.trim_end().len() {
        return line.to_owned();
    }
    format!("{}…", line.chars().take(SHOWN).collect::<String>())
}
