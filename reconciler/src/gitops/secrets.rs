//! Values that are never shown: passwords, tokens, keys, ciphertext. Pure.
//!
//! Reads values of objects, decides which parts are hidden; `schema::secrets` has the words. References to a secret
//! (its name, its key, a file) are shown; possible secrets are not. When in doubt, a value is hidden: the reviewer
//! of a changed password needs to know that it changes, not to what.

use schema::secrets::{
    holds_secret, is_called_pass, is_plain_text, is_plain_value, is_secret_flag, is_secret_name,
    is_secret_text, is_wordy_field,
};
use serde_json::{Map, Value};

/// Placeholder for a hidden value.
pub const HIDDEN: &str = "(hidden)";

/// Visibility of values at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Shows everything that does not look like a secret.
    Open,
    /// Shows text in which no word could be a secret: a command, a note.
    Words,
    /// Shows nothing.
    Secret,
}

impl Place {
    /// Returns the visibility below `key` of `map`: by the key itself, or by the name next to a value. Values of
    /// variables and headers are shown only if they have a plain shape.
    pub fn of_entry(self, map: &Map<String, Value>, key: &str) -> Self {
        let text = map.get(key).and_then(Value::as_str);
        let named = ["name", "key"].into_iter().find_map(|name| map.get(name).and_then(Value::as_str));
        let is_secret = match (key, named, text) {
            ("value", Some(name), Some(text)) => holds_secret(name, text) || !is_plain_value(text),
            ("value", Some(name), None) => is_secret_name(name),
            (_, _, Some(text)) => holds_secret(key, text),
            // A workflow state of this name.
            _ if is_called_pass(key) && map.get(key).is_some_and(Value::is_object) => false,
            _ => is_secret_name(key),
        };
        match is_secret {
            true => Self::Secret,
            // `secret: {secretName: db}` names a secret without containing it.
            false if is_wordy_field(key) || self == Self::Words => Self::Words,
            false => Self::Open,
        }
    }

    /// Returns the visibility of item `index` of `list`: it may be the value of the flag before it, as in
    /// `["--password", "x"]`.
    pub fn of_item(self, list: &[Value], index: usize) -> Self {
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
                items.map(|(index, item)| self.of_item(list, index).shown(item)).collect()
            }
            Value::Object(map) => {
                let below = map.iter();
                Value::Object(
                    below.map(|(key, below)| (key.clone(), self.of_entry(map, key).shown(below))).collect(),
                )
            }
            other => other.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
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
            assert!(!Place::Open.shown(&value).to_string().contains(canary), "{value}");
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
            assert!(!Place::Open.shown(&value).to_string().contains("12345"), "{value}");
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
            assert_eq!(Place::Open.shown(&env)["env"][0]["value"], HIDDEN, "{name}={value}");
        }
        for (name, value) in
            [("LOG_LEVEL", "INFO"), ("PORT", "8080"), ("DB_HOST", "db.default"), ("ON", "true")]
        {
            let env = json!({"env": [{"name": name, "value": value}]});
            assert_eq!(Place::Open.shown(&env), env);
        }
    }

    #[test]
    fn a_state_that_is_called_after_its_type_is_shown() {
        let states = json!({"states": {"Pass": {"type": "Pass", "end": true}}});
        assert_eq!(Place::Open.shown(&states), states);
        assert_eq!(Place::Open.shown(&json!({"Pass": "Canary"})), json!({"Pass": HIDDEN}));
    }

    #[test]
    fn what_only_names_a_secret_is_shown() {
        let value = json!({
            "env": [{"name": "P", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}],
            "volumes": [{"name": "s", "secret": {"secretName": "db"}}],
            "image": "registry.example:5000/app@sha256:ab",
            "args": ["--listen=0.0.0.0:80", "http://web:8080/path"],
        });
        assert_eq!(Place::Open.shown(&value), value);
    }
}
