//! Walks a document along its shape: collects every mistake, and builds the value for serde.

use serde_json::{Map, Value as Json};

use super::words::{WalkPosition, describe_found, describe_wanted, list_of_states, mark_to_show, type_help};
use super::{Field, Record, Shape, Shapes, TaggedRecord};
use crate::document::nearest::{list, nearest, suggestion};
use crate::document::node::{Entry, Node, Problem, Value};
use crate::document::problems::{Faults, Problems, left_out};
use crate::kinds::cluster::secret_advice;
use crate::manifest::{states_language, unsupported};
use crate::secrets::is_secret_place;
use crate::violation::{Path, rules};

/// A walk over one document.
pub(crate) struct Walk<'a> {
    pub(crate) shapes: &'a Shapes,
    pub(crate) problems: Problems,
    /// Places of values that are not what the author meant: findings there would only follow from these.
    pub(crate) faults: Faults,
}

impl Walk<'_> {
    /// Returns the value at `node` as JSON for serde; `None` if it is a mistake. If something is missing, the
    /// message points at the mark of `here`, the key that owns the value.
    pub(crate) fn value(&mut self, shape: usize, node: &Node, here: WalkPosition<'_>) -> Option<Json> {
        let shapes = self.shapes;
        match (shapes.get(shape), &node.value) {
            (Shape::Record(record), Value::Mapping(entries)) => Some(self.record(record, entries, here)),
            (Shape::Map(values), Value::Mapping(entries)) => Some(self.map(*values, entries, here.path)),
            (Shape::Tagged(tagged), Value::Mapping(entries)) => {
                let value = self.tagged(tagged, entries, here);
                Some(value.unwrap_or_else(|| shapes.stand_in(shape)))
            }
            (Shape::Any, _) => self.any(node, here),
            (Shape::List(items) | Shape::TextOrList(items), Value::Sequence(nodes)) => {
                let mut item = |(index, item): (usize, &Node)| {
                    let path = here.path.index(index);
                    let value = self.value(*items, item, WalkPosition { path: &path, mark: item.mark });
                    // A stand-in keeps the others at their index.
                    value.unwrap_or_else(|| shapes.stand_in(*items))
                };
                Some(Json::Array(nodes.iter().enumerate().map(&mut item).collect()))
            }
            (Shape::List(_) | Shape::Map(_) | Shape::Record(_) | Shape::Tagged(_), _) => {
                self.wrong_type(shape, node, here)
            }
            _ => self.scalar(shape, node, here),
        }
    }

    fn record(&mut self, record: &Record, entries: &[Entry], here: WalkPosition<'_>) -> Json {
        let (mut object, at) = (Map::new(), here.path);
        for entry in entries {
            let path = at.field(&entry.key);
            match record.fields.get(&entry.key) {
                Some(field) if entry.value.is_null() => {
                    object.extend(self.null(field, entry, &path).map(|value| (entry.key.clone(), value)));
                }
                Some(field) => {
                    let value =
                        self.value(field.shape, &entry.value, WalkPosition { path: &path, mark: entry.mark });
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

    /// Reads null. It is absence, as in Kubernetes (a required field is then missing), unless the field gives it a
    /// meaning of its own. There it must be written: an empty place may be a forgotten value.
    fn null(&mut self, field: &Field, entry: &Entry, path: &Path<'_>) -> Option<Json> {
        if !self.shapes.takes_null(field.shape) {
            return None;
        }
        if entry.value.is_blank() {
            let message = format!("{path}: Required value: the field has no value");
            let problem = Problem::new(entry.mark, &rules::MISSING_FIELD, message);
            self.fault(path, problem.help("write null explicitly, or remove the field"));
        }
        Some(Json::Null)
    }

    /// Reads a mapping whose fields depend on its tag; `None` if the tag is unusable.
    fn tagged(&mut self, tagged: &TaggedRecord, entries: &[Entry], here: WalkPosition<'_>) -> Option<Json> {
        let path = here.path.field(&tagged.tag);
        let names = || tagged.variants.iter().map(|(name, _)| name.as_str());
        let Some(entry) = entries.iter().find(|entry| entry.key == tagged.tag) else {
            let typo = entries.iter().find(|entry| nearest(&entry.key, [tagged.tag.as_str()]).is_some());
            let (mark, message, help) = match typo {
                Some(entry) => (
                    entry.mark,
                    format!("{}: unknown field `{}`", here.path.field(&entry.key), entry.key),
                    format!("did you mean `{}`?", tagged.tag),
                ),
                None => (
                    here.mark,
                    format!("{path}: Required value: the field is missing"),
                    format!("one of {}", list(names())),
                ),
            };
            let rule = if typo.is_some() { &rules::UNKNOWN_FIELD } else { &rules::MISSING_FIELD };
            self.fault(here.path, Problem::new(mark, rule, message).help(help));
            return None;
        };
        let tag_here = WalkPosition { path: &path, mark: entry.mark };
        let Some(text) = entry.value.text().filter(|_| !entry.value.is_null()) else {
            let found = describe_found(&entry.value, is_secret_place(&path));
            let message = format!("{path}: expected text, found {found}");
            let problem = Problem::new(mark_to_show(&entry.value, tag_here), &rules::WRONG_TYPE, message);
            self.fault(here.path, problem.help(format!("one of {}", list(names()))));
            return None;
        };
        let Some(index) = tagged.variant(text) else {
            let words: Vec<String> = names().map(str::to_owned).collect();
            let mark = mark_to_show(&entry.value, tag_here);
            self.faults.push(here.path.steps());
            return self.one_of(&words, text, WalkPosition { mark, ..tag_here });
        };
        match self.shapes.get(index) {
            Shape::Record(record) => Some(self.record(record, entries, here)),
            _ => None,
        }
    }

    fn missing_field(&mut self, record: &Record, name: &str, entries: &[Entry], here: WalkPosition<'_>) {
        let path = here.path.field(name);
        let is_typo = |entry: &Entry| {
            let known = record.fields.keys().map(String::as_str);
            !record.fields.contains_key(&entry.key) && nearest(&entry.key, known) == Some(name)
        };
        let stands_for_it = |entry: &Entry| unsupported::stands_for(&record.name, name, entry);
        if entries.iter().any(|entry| is_typo(entry) || stands_for_it(entry)) {
            // `imgae` was reported as unknown already: one mistake, one message.
            return self.faults.push(path.steps());
        }
        let null = entries.iter().find(|entry| entry.key == *name);
        let why = if null.is_some() { "the field has no value" } else { "the field is missing" };
        let mark = null.map_or(here.mark, |entry| entry.mark);
        let message = format!("{path}: Required value: {why}");
        let help = states_language::missing(&record.name, name).unwrap_or_default();
        self.fault(&path, Problem::new(mark, &rules::MISSING_FIELD, message).help(help));
    }

    fn unknown_field(&mut self, record: &Record, entry: &Entry, at: &Path<'_>) {
        let path = at.field(&entry.key);
        if let Some(why) = unsupported::without_effect(&record.name, entry) {
            // Kubernetes' own tools write `creationTimestamp: null`.
            if !entry.value.is_null() {
                self.problems.push(left_out(entry.mark, &path.to_string(), why));
            }
            return;
        }
        if let Some(help) = unsupported::field_advice(&record.name, &entry.key) {
            if entry.value.is_null() {
                return;
            }
            let message = format!("{path}: a Kubernetes field that Minik8s does not support");
            let problem = Problem::new(entry.mark, &rules::UNSUPPORTED_FIELD, message);
            return self.fault(&path, problem.help(help));
        }
        if let Some(help) = states_language::unsupported(&record.name, &entry.key) {
            let message = format!("{path}: Minik8s does not support this part of the Amazon States Language");
            let problem = Problem::new(entry.mark, &rules::WORKFLOW_UNSUPPORTED, message);
            return self.fault(&path, problem.help(help));
        }
        if let Some(variant) = &record.variant
            && let Some(others) = variant.other_fields.get(&entry.key)
            && states_language::other_name(&record.name, &entry.key).is_none()
        {
            let message = format!("{path}: unknown field `{}` of a {} state", entry.key, variant.tag);
            let help = format!("only {} states have it", list_of_states(others));
            return self.fault(&path, Problem::new(entry.mark, &rules::UNKNOWN_FIELD, message).help(help));
        }
        let message = format!("{path}: unknown field `{}`", entry.key);
        let names = record.fields.keys().map(String::as_str);
        let help = states_language::other_name(&record.name, &entry.key)
            .map(str::to_owned)
            .or_else(|| secret_advice(&record.name, &entry.key))
            .or_else(|| record.fields.is_empty().then(|| "remove it: there are no fields here".to_owned()))
            .unwrap_or_else(|| suggestion(&entry.key, names));
        self.fault(&path, Problem::new(entry.mark, &rules::UNKNOWN_FIELD, message).help(help));
    }

    fn map(&mut self, values: usize, entries: &[Entry], at: &Path<'_>) -> Json {
        let mut object = Map::new();
        for entry in entries {
            let path = at.field(&entry.key);
            let value = if entry.value.is_null() && !self.shapes.takes_null(values) {
                // `disk:` without a value is the empty text, as for Kubernetes.
                if !matches!(self.shapes.get(values), Shape::Text) {
                    let message = format!("{path}: Required value: the field has no value");
                    self.fault(&path, Problem::new(entry.mark, &rules::MISSING_FIELD, message));
                }
                self.shapes.stand_in(values)
            } else {
                let value = self.value(values, &entry.value, WalkPosition { path: &path, mark: entry.mark });
                value.unwrap_or_else(|| self.shapes.stand_in(values))
            };
            object.insert(entry.key.clone(), value);
        }
        Json::Object(object)
    }

    pub(super) fn wrong_type(&mut self, shape: usize, node: &Node, here: WalkPosition<'_>) -> Option<Json> {
        let hidden = is_secret_place(here.path);
        let (wanted, found) = (describe_wanted(self.shapes, shape), describe_found(node, hidden));
        let message = format!("{}: expected {wanted}, found {found}", here.path);
        let help = type_help(self.shapes.get(shape), node, hidden);
        self.fault(here.path, Problem::new(mark_to_show(node, here), &rules::WRONG_TYPE, message).help(help));
        None
    }

    /// Reports a mistake that makes the value at `at` differ from the author's intent.
    pub(super) fn fault(&mut self, at: &Path<'_>, problem: Problem) {
        self.faults.push(at.steps());
        self.problems.push(problem);
    }
}
