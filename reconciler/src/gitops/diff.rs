//! Differences between two versions of an object, field by field. Pure.
//!
//! Reads both versions, decides which fields to name and how much of them to show: secrets only as changed, so that
//! no log, event or comment carries one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schema::content_refs::{BlobRef, Files, parse_object_path};
use schema::kinds::Resource;
use schema::meta::ObjectMeta;
use schema::secrets::{
    holds_secret, is_checked_by_word, is_pass_state_name, is_plain_text, is_plain_value, is_secret_flag,
    is_secret_name, is_secret_text,
};
use schema::violation::{OwnedStep, Path};
use serde_json::{Map, Value};

/// A field that differs.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldChange {
    /// Path from the document's root. List items have their number after the change, removed items their number
    /// before it.
    pub steps: Vec<OwnedStep>,
    /// Value before; `None` if absent. Secrets are hidden.
    pub from: Option<Value>,
    /// Value after.
    pub to: Option<Value>,
    /// Set if both values are hidden.
    pub hidden: bool,
}

/// Length above which a value is cut when shown.
const SHOWN_CHARS_MAX: usize = 60;

impl FieldChange {
    /// Formats the path as `spec.containers[0].image`; for content of another object, as
    /// `ConfigMap/default/settings`.
    pub fn path(&self) -> String {
        match self.steps.as_slice() {
            [OwnedStep::Field(first), OwnedStep::Field(path)] if first == FILES => {
                parse_object_path(path).map_or_else(|| dotted(&self.steps), |(_, object)| object.to_string())
            }
            steps => dotted(steps),
        }
    }
}

/// Formats a path for display.
pub(super) fn dotted(steps: &[OwnedStep]) -> String {
    fn below(steps: &[OwnedStep], at: &Path<'_>) -> String {
        match steps.split_first() {
            None => at.to_string(),
            Some((OwnedStep::Field(name), rest)) => below(rest, &at.field(name)),
            Some((OwnedStep::Index(index), rest)) => below(rest, &at.index(*index)),
        }
    }
    below(steps, &Path::ROOT)
}

impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.hidden {
            return write!(f, "{}: changed, not shown", self.path());
        }
        write!(f, "{}: {} -> {}", self.path(), brief(self.from.as_ref()), brief(self.to.as_ref()))
    }
}

/// Formats a value in one line, truncated if long.
pub fn brief(value: Option<&Value>) -> String {
    let Some(value) = value else { return "nothing".to_owned() };
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// Returns all fields in which two versions differ, in order of their paths.
pub fn changes(before: (&ObjectMeta, &Resource), after: (&ObjectMeta, &Resource)) -> Vec<FieldChange> {
    let mut walk = Walk { steps: Vec::new(), found: Vec::new() };
    walk.compare(Some(&as_json(before)), Some(&as_json(after)), Visibility::Open);
    walk.found
}

/// Returns repository files whose content differs between two versions, as fields under [`FILES`].
pub fn file_changes(before: &Files, after: &Files) -> Vec<FieldChange> {
    let paths: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let digest = |blob: &BlobRef| Value::from(blob.digest.get(..SHOWN_DIGITS).unwrap_or(&blob.digest));
    let changed = paths.into_iter().filter(|path| before.get(*path) != after.get(*path));
    let change = |path: &String| FieldChange {
        steps: vec![OwnedStep::Field(FILES.to_owned()), OwnedStep::Field(path.clone())],
        from: before.get(path).map(digest),
        to: after.get(path).map(digest),
        hidden: false,
    };
    changed.map(change).collect()
}

/// Name under which repository files appear among changed fields.
pub const FILES: &str = "files";
/// Number of digits shown of a file's digest.
const SHOWN_DIGITS: usize = 12;

fn as_json((metadata, resource): (&ObjectMeta, &Resource)) -> Value {
    let mut object = match serde_json::to_value(resource) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    };
    object.insert("metadata".to_owned(), serde_json::to_value(metadata).unwrap_or_default());
    Value::Object(object)
}

struct Walk {
    steps: Vec<OwnedStep>,
    found: Vec<FieldChange>,
}

impl Walk {
    fn compare(&mut self, from: Option<&Value>, to: Option<&Value>, place: Visibility) {
        if from == to {
            return;
        }
        match (from, to) {
            (Some(Value::Object(old)), Some(Value::Object(new))) => {
                for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
                    let (before, after) = (old.get(key), new.get(key));
                    // Most fields did not change, and the check for a secret is slow.
                    if before != after {
                        let place = place.for_entry(old, key).max(place.for_entry(new, key));
                        self.below(OwnedStep::Field(key.clone()), before, after, place);
                    }
                }
            }
            (Some(Value::Array(old)), Some(Value::Array(new))) => {
                for (step, before, after) in pairs(old, new) {
                    let from = before.and_then(|at| old.get(at));
                    let to = after.and_then(|at| new.get(at));
                    if from != to {
                        let was = before.map_or(place, |index| place.for_item(old, index));
                        let place = after.map_or(was, |index| was.for_item(new, index));
                        self.below(OwnedStep::Index(step), from, to, place);
                    }
                }
            }
            _ => self.found.push(self.change(from, to, place)),
        }
    }

    fn below(&mut self, step: OwnedStep, from: Option<&Value>, to: Option<&Value>, place: Visibility) {
        self.steps.push(step);
        self.compare(from, to, place);
        self.steps.pop();
    }

    fn change(&self, from: Option<&Value>, to: Option<&Value>, place: Visibility) -> FieldChange {
        let scalar = |value: Option<&Value>| value.is_none_or(|v| !v.is_object() && !v.is_array());
        let text = |value: Option<&Value>| value.and_then(Value::as_str).is_some_and(is_secret_text);
        let scalars = scalar(from) && scalar(to);
        // If one side looks like a secret, the other is one, too.
        let place = if scalars && (text(from) || text(to)) { Visibility::Secret } else { place };
        let [from, to] = [from, to].map(|value| value.map(|value| place.shown(value)));
        // Equal once shown: the difference is hidden.
        let hidden = scalars && (place == Visibility::Secret || from == to);
        FieldChange { steps: self.steps.clone(), from, to, hidden }
    }
}

/// Pairs the items of two lists: by name if all have one and the items in both keep their order, so that an
/// insertion in front does not make all others differ; else by number.
fn pairs(old: &[Value], new: &[Value]) -> Vec<(usize, Option<usize>, Option<usize>)> {
    let by_number = || {
        let there = |index: usize, list: &[Value]| (index < list.len()).then_some(index);
        (0..old.len().max(new.len())).map(|i| (i, there(i, old), there(i, new))).collect()
    };
    let (Some(old_names), Some(new_names)) = (by_name(old), by_name(new)) else { return by_number() };
    let stay = |list: &[Value], other: &BTreeMap<&str, usize>| -> Vec<String> {
        let names = list.iter().filter_map(name);
        names.filter(|name| other.contains_key(name)).map(str::to_owned).collect()
    };
    let both = stay(old, &new_names);
    if both.is_empty() || both != stay(new, &old_names) {
        return by_number();
    }
    let gone =
        old.iter().enumerate().filter(|(_, item)| name(item).is_none_or(|n| !new_names.contains_key(n)));
    let gone = gone.map(|(index, _)| (index, Some(index), None));
    let here = new
        .iter()
        .enumerate()
        .map(|(index, item)| (index, name(item).and_then(|name| old_names.get(name)).copied(), Some(index)));
    let mut all: Vec<_> = gone.chain(here).collect();
    all.sort_by_key(|(step, _, after)| (*step, after.is_some()));
    all
}

fn name(item: &Value) -> Option<&str> {
    item.get("name").and_then(Value::as_str)
}

fn by_name(list: &[Value]) -> Option<BTreeMap<&str, usize>> {
    let names: BTreeMap<&str, usize> =
        list.iter().enumerate().filter_map(|(index, item)| Some((name(item)?, index))).collect();
    (names.len() == list.len()).then_some(names)
}

// Values that are never shown: passwords, tokens, keys, ciphertext. Pure.
//
// Reads values of objects, decides which parts are hidden; `schema::secrets` has the words. References to a secret
// (its name, its key, a file) are shown; possible secrets are not. When in doubt, a value is hidden: the reviewer
// of a changed password needs to know that it changes, not to what.

/// Placeholder for a hidden value.
pub const HIDDEN: &str = "(hidden)";

/// Visibility of values at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Visibility {
    /// Shows everything that does not look like a secret.
    Open,
    /// Shows text in which no word could be a secret: a command, a note.
    Words,
    /// Shows nothing.
    Secret,
}

impl Visibility {
    /// Returns the visibility below `key` of `map`: by the key itself, or by the name next to a value. Values of
    /// variables and headers are shown only if they have a plain shape.
    pub fn for_entry(self, map: &Map<String, Value>, key: &str) -> Self {
        let text = map.get(key).and_then(Value::as_str);
        let named = ["name", "key"].into_iter().find_map(|name| map.get(name).and_then(Value::as_str));
        let is_secret = match (key, named, text) {
            ("value", Some(name), Some(text)) => holds_secret(name, text) || !is_plain_value(text),
            ("value", Some(name), None) => is_secret_name(name),
            (_, _, Some(text)) => holds_secret(key, text),
            // A workflow state of this name.
            _ if is_pass_state_name(key) && map.get(key).is_some_and(Value::is_object) => false,
            _ => is_secret_name(key),
        };
        match is_secret {
            true => Self::Secret,
            // `secret: {secretName: db}` names a secret without containing it.
            false if is_checked_by_word(key) || self == Self::Words => Self::Words,
            false => Self::Open,
        }
    }

    /// Returns the visibility of item `index` of `list`: it may be the value of the flag before it, as in
    /// `["--password", "x"]`.
    pub fn for_item(self, list: &[Value], index: usize) -> Self {
        let before = index.checked_sub(1).and_then(|before| list.get(before)).and_then(Value::as_str);
        if before.is_some_and(is_secret_flag) { Self::Secret } else { self }
    }

    /// Returns the value with everything hidden that must not be shown.
    pub fn shown(self, value: &Value) -> Value {
        match value {
            Value::String(text) if self == Self::Secret || is_secret_text(text) => Value::from(HIDDEN),
            Value::String(text) if self == Self::Words && !is_plain_text(text) => Value::from(HIDDEN),
            Value::Number(_) | Value::Bool(_) if self == Self::Secret => Value::from(HIDDEN),
            Value::Array(list) => {
                let items = list.iter().enumerate();
                items.map(|(index, item)| self.for_item(list, index).shown(item)).collect()
            }
            Value::Object(map) => {
                let below = map.iter();
                Value::Object(
                    below.map(|(key, below)| (key.clone(), self.for_entry(map, key).shown(below))).collect(),
                )
            }
            other => other.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(spec: &Value) -> (ObjectMeta, Resource) {
        let metadata =
            ObjectMeta { name: "web".into(), namespace: "default".into(), ..ObjectMeta::default() };
        (metadata, Resource::from_json(schema::kinds::Kind::Pod, spec.clone()).unwrap())
    }

    fn lines(before: &(ObjectMeta, Resource), after: &(ObjectMeta, Resource)) -> Vec<String> {
        changes((&before.0, &before.1), (&after.0, &after.1)).iter().map(FieldChange::to_string).collect()
    }

    #[test]
    fn a_change_is_named_by_its_path() {
        let before = object(&serde_json::json!({ "containers": [{ "name": "a", "image": "one" }] }));
        let mut after = object(&serde_json::json!({
            "containers": [{ "name": "a", "image": "two" }, { "name": "b", "image": "x" }],
        }));
        after.0.labels.insert("app/tier".into(), "front".into());
        let all = lines(&before, &after);
        assert!(all.contains(&"spec.containers[0].image: \"one\" -> \"two\"".to_owned()), "{all:?}");
        assert!(all.iter().any(|line| line.starts_with("spec.containers[1]: nothing -> {")), "{all:?}");
        assert!(all.contains(&"metadata.labels: nothing -> {\"app/tier\":\"front\"}".to_owned()), "{all:?}");
        assert_eq!(all.len(), 3, "{all:?}");
    }

    #[test]
    fn equal_objects_have_no_changes() {
        let one = object(&serde_json::json!({ "containers": [{ "name": "a", "image": "one" }] }));
        assert!(lines(&one, &one.clone()).is_empty());
    }

    fn env(names: &[(&str, &str)]) -> (ObjectMeta, Resource) {
        let env: Vec<Value> =
            names.iter().map(|(name, value)| serde_json::json!({"name": name, "value": value})).collect();
        object(&serde_json::json!({ "containers": [{ "name": "a", "image": "one", "env": env }] }))
    }

    #[test]
    fn an_item_in_front_of_named_ones_is_the_only_change() {
        let all = lines(&env(&[("B", "1"), ("C", "1")]), &env(&[("A", "1"), ("B", "1"), ("C", "2")]));
        assert_eq!(
            all,
            [
                "spec.containers[0].env[0]: nothing -> {\"name\":\"A\",\"value\":\"1\"}",
                "spec.containers[0].env[2].value: \"1\" -> \"2\""
            ]
        );
    }

    #[test]
    fn content_of_a_config_map_is_shown_by_its_name() {
        let path = |of: &str| {
            let steps = [FILES, of].map(|step| OwnedStep::Field(step.to_owned())).into();
            FieldChange { steps, from: None, to: None, hidden: false }.path()
        };
        assert_eq!(path("maps.yaml//ConfigMap/default/conf"), "ConfigMap/default/conf");
        assert_eq!(path("conf/app.ini"), "files['conf/app.ini']");
    }

    #[test]
    fn another_order_is_a_change() {
        assert!(!lines(&env(&[("A", "1"), ("B", "1")]), &env(&[("B", "1"), ("A", "1")])).is_empty());
    }

    #[test]
    fn of_a_secret_only_that_it_changed_is_shown() {
        let all = lines(&env(&[("DB_PASSWORD", "canary-1")]), &env(&[("DB_PASSWORD", "canary-2")]));
        assert_eq!(all, ["spec.containers[0].env[0].value: changed, not shown"]);
        let all = lines(&env(&[]), &env(&[("DB_PASSWORD", "canary-2")]));
        assert!(!all.concat().contains("canary"), "{all:?}");
        let command = |command: &str| {
            object(
                &serde_json::json!({"containers": [{"name": "a", "image": "one", "command": ["sh", "-c", command]}]}),
            )
        };
        let all = lines(&command("curl -u b:canary-1 http://web"), &command("curl -u b:canary-2 http://web"));
        assert_eq!(all, ["spec.containers[0].command[2]: changed, not shown"]);
        let all = lines(&command("curl -u b:canary-1 http://web"), &command("curl -u b:canary-1 http://db"));
        assert_eq!(all, ["spec.containers[0].command[2]: changed, not shown"]);
        let all = lines(&env(&[("DB", "x")]), &env(&[("DB", "pg://a:canary@b/c")]));
        assert_eq!(all, ["spec.containers[0].env[0].value: changed, not shown"]);
    }
}

#[cfg(test)]
mod secrets_tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_canary_is_hidden_wherever_it_stands() {
        let canary = "Canary+7f3a9Q";
        for value in [
            json!({"env": [{"name": "DB_PASSWORD", "value": canary}]}),
            json!({"args": ["--token", canary]}),
            json!({"command": ["sh", "-c", format!("PGPASSWORD={canary} psql")]}),
            json!({"args": [format!("--db-password={canary}")]}),
            json!({"env": [{"name": "DB", "value": format!("postgres://app:{canary}@db/x")}]}),
            json!({"httpHeaders": [{"name": "Authorization", "value": format!("Basic {canary}")}]}),
            json!({"annotations": {"example.org/api-token": canary}}),
            json!({"annotations": {"note": format!("pw is {canary}")}}),
            json!({"command": ["curl", "-u", format!("bob:{canary}")]}),
            json!({"args": [format!("mysql -p{canary}")]}),
            json!({"args": ["login", "--password", "correct horse ".to_owned() + canary]}),
            json!({"args": [format!("login --password 'correct horse {canary}'")]}),
            json!({"annotations": {"note": format!("Authorization: Bearer {canary}")}}),
            json!({"runCommands": [format!("export K={canary}")]}),
            json!({"env": [{"name": "KEY", "value": format!("-----BEGIN AGE ENCRYPTED FILE-----\n{canary}")}]}),
        ] {
            assert!(!Visibility::Open.shown(&value).to_string().contains(canary), "{value}");
        }
    }

    /// Words that would be shown anywhere else. Seen red with flags of secrets alone.
    #[test]
    fn a_login_in_plain_words_is_hidden() {
        for value in [
            json!({"command": ["curl", "-u", "bob:12345"]}),
            json!({"command": ["curl", "--user", "bob:12345"]}),
            json!({"command": ["sh", "-c", "curl -u bob:12345 http://web"]}),
        ] {
            assert!(!Visibility::Open.shown(&value).to_string().contains("12345"), "{value}");
        }
    }

    #[test]
    fn of_an_environment_only_plain_values_are_shown() {
        for (name, value) in [
            ("DB_PASS", "swordfish"),
            ("ENCRYPTION_KEY", "abc"),
            ("REDIS_AUTH", "on"),
            ("LOGIN", "Tr0ub4dor&3"),
            ("DB", "app:hunter2@tcp(db:3306)/shop"),
            ("HOOK", "https://hooks.example/T024/B0AbCd"),
            ("DB_PASSWORD_FILE", "Tr0ub4dor&3"),
        ] {
            let env = json!({"env": [{"name": name, "value": value}]});
            assert_eq!(Visibility::Open.shown(&env)["env"][0]["value"], HIDDEN, "{name}={value}");
        }
        for (name, value) in
            [("LOG_LEVEL", "INFO"), ("PORT", "8080"), ("DB_HOST", "db.default"), ("ON", "true")]
        {
            let env = json!({"env": [{"name": name, "value": value}]});
            assert_eq!(Visibility::Open.shown(&env), env);
        }
    }

    #[test]
    fn a_state_that_is_called_after_its_type_is_shown() {
        let states = json!({"states": {"Pass": {"type": "Pass", "end": true}}});
        assert_eq!(Visibility::Open.shown(&states), states);
        assert_eq!(Visibility::Open.shown(&json!({"Pass": "Canary"})), json!({"Pass": HIDDEN}));
    }

    #[test]
    fn what_only_names_a_secret_is_shown() {
        let value = json!({
            "env": [{"name": "P", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}],
            "volumes": [{"name": "s", "secret": {"secretName": "db"}}],
            "image": "registry.example:5000/app@sha256:ab",
            "args": ["--listen=0.0.0.0:80", "http://web:8080/path"],
        });
        assert_eq!(Visibility::Open.shown(&value), value);
    }
}
