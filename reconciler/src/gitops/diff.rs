//! What changed between two versions of an object, field by field. Pure.

use std::collections::BTreeSet;
use std::fmt;

use schema::kinds::Resource;
use schema::meta::ObjectMeta;
use serde_json::{Map, Value};

/// One field that differs. `None` is absent.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldChange {
    /// JSON pointer (RFC 6901) into the object: `/spec/containers/0/image`.
    pub path: String,
    /// Before.
    pub from: Option<Value>,
    /// After.
    pub to: Option<Value>,
}

/// A longer value is cut when shown.
const SHOWN_CHARS_MAX: usize = 60;

impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Option<Value>| match value {
            None => "nothing".to_owned(),
            Some(value) => {
                let text = value.to_string();
                match text.char_indices().nth(SHOWN_CHARS_MAX) {
                    Some((at, _)) => format!("{}…", &text[..at]),
                    None => text,
                }
            }
        };
        write!(f, "{}: {} -> {}", self.path, shown(&self.from), shown(&self.to))
    }
}

/// All fields in which two versions differ, in order of their paths.
pub fn changes(before: (&ObjectMeta, &Resource), after: (&ObjectMeta, &Resource)) -> Vec<FieldChange> {
    let mut found = Vec::new();
    compare(&mut String::new(), Some(&as_json(before)), Some(&as_json(after)), &mut found);
    found
}

fn as_json((metadata, resource): (&ObjectMeta, &Resource)) -> Value {
    let mut object = match serde_json::to_value(resource) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    };
    object.insert("metadata".to_owned(), serde_json::to_value(metadata).unwrap_or_default());
    Value::Object(object)
}

fn compare(path: &mut String, from: Option<&Value>, to: Option<&Value>, found: &mut Vec<FieldChange>) {
    if from == to {
        return;
    }
    match (from, to) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
                let part = key.replace('~', "~0").replace('/', "~1");
                descend(path, &part, old.get(key), new.get(key), found);
            }
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) => {
            for index in 0..old.len().max(new.len()) {
                descend(path, &index.to_string(), old.get(index), new.get(index), found);
            }
        }
        _ => found.push(FieldChange { path: path.clone(), from: from.cloned(), to: to.cloned() }),
    }
}

fn descend(
    path: &mut String,
    part: &str,
    from: Option<&Value>,
    to: Option<&Value>,
    found: &mut Vec<FieldChange>,
) {
    let length = path.len();
    path.push('/');
    path.push_str(part);
    compare(path, from, to, found);
    path.truncate(length);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(spec: &Value) -> (ObjectMeta, Resource) {
        let metadata =
            ObjectMeta { name: "web".into(), namespace: "default".into(), ..ObjectMeta::default() };
        (metadata, serde_json::from_value(serde_json::json!({ "kind": "Pod", "spec": spec })).unwrap())
    }

    fn shown(before: &(ObjectMeta, Resource), after: &(ObjectMeta, Resource)) -> Vec<String> {
        changes((&before.0, &before.1), (&after.0, &after.1)).iter().map(FieldChange::to_string).collect()
    }

    #[test]
    fn a_change_is_named_by_its_path() {
        let before = object(&serde_json::json!({ "containers": [{ "name": "a", "image": "one" }] }));
        let mut after = object(&serde_json::json!({
            "containers": [{ "name": "a", "image": "two" }, { "name": "b", "image": "x" }],
        }));
        after.0.labels.insert("app/tier".into(), "front".into());
        let all = shown(&before, &after);
        assert!(all.contains(&"/spec/containers/0/image: \"one\" -> \"two\"".to_owned()), "{all:?}");
        assert!(all.iter().any(|line| line.starts_with("/spec/containers/1: nothing -> {")), "{all:?}");
        assert!(all.contains(&"/metadata/labels: nothing -> {\"app/tier\":\"front\"}".to_owned()), "{all:?}");
        assert_eq!(all.len(), 3, "{all:?}");
    }

    #[test]
    fn equal_objects_have_no_changes() {
        let one = object(&serde_json::json!({ "containers": [{ "name": "a", "image": "one" }] }));
        assert!(shown(&one, &one.clone()).is_empty());
    }
}
