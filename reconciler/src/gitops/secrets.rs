//! Which values are never shown: passwords, tokens, keys, ciphertext. Pure.
//!
//! Reads values of objects, decides what of them is hidden; `schema::secrets` has the words. What refers to a secret (its name, its key, a
//! file) is shown; what may be one is not. Rather too much than too little: who reviews a change
//! of a password needs to know that it changes, not to what.

use schema::secrets::{holds_secret, is_plain_value, is_secret_name, is_secret_text};
use serde_json::{Map, Value};

/// Stands for a value that is not shown.
pub const HIDDEN: &str = "(hidden)";

/// Below `key` of `map` lies a secret: by the key itself, or by the name that stands beside a value.
/// Values of variables and headers are shown only if they are of a plain shape.
pub fn entry_is_secret(map: &Map<String, Value>, key: &str) -> bool {
    let text = map.get(key).and_then(Value::as_str);
    let named = ["name", "key"].into_iter().find_map(|name| map.get(name).and_then(Value::as_str));
    match (key, named, text) {
        ("value", Some(name), Some(text)) => holds_secret(name, text) || !is_plain_value(text),
        ("value", Some(name), None) => is_secret_name(name),
        (_, _, Some(text)) => holds_secret(key, text),
        _ => is_secret_name(key),
    }
}

/// Item `index` of `list` is the value of a flag before it: `["--password", "x"]`.
pub fn item_is_secret(list: &[Value], index: usize) -> bool {
    let before = index.checked_sub(1).and_then(|before| list.get(before)).and_then(Value::as_str);
    before.is_some_and(|flag| flag.starts_with('-') && !flag.contains('=') && is_secret_name(flag))
}

/// The value without what must not be shown. `secret`: its place says that it is one.
pub fn shown(value: &Value, secret: bool) -> Value {
    match value {
        Value::String(text) if secret || is_secret_text(text) => Value::from(HIDDEN),
        Value::Number(_) | Value::Bool(_) if secret => Value::from(HIDDEN),
        Value::Array(list) => {
            let items = list.iter().enumerate();
            items.map(|(index, item)| shown(item, secret || item_is_secret(list, index))).collect()
        }
        Value::Object(map) => Value::Object(
            map.iter().map(|(key, below)| (key.clone(), shown(below, entry_is_secret(map, key)))).collect(),
        ),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_canary_is_hidden_wherever_it_stands() {
        let canary = "canary-7f3a";
        for value in [
            json!({"env": [{"name": "DB_PASSWORD", "value": canary}]}),
            json!({"args": ["--token", canary]}),
            json!({"command": ["sh", "-c", format!("PGPASSWORD={canary} psql")]}),
            json!({"args": [format!("--db-password={canary}")]}),
            json!({"env": [{"name": "DB", "value": format!("postgres://app:{canary}@db/x")}]}),
            json!({"httpHeaders": [{"name": "Authorization", "value": format!("Basic {canary}")}]}),
            json!({"annotations": {"example.org/api-token": canary}}),
            json!({"env": [{"name": "KEY", "value": format!("-----BEGIN AGE ENCRYPTED FILE-----\n{canary}")}]}),
        ] {
            assert!(!shown(&value, false).to_string().contains(canary), "{value}");
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
            assert_eq!(shown(&env, false)["env"][0]["value"], HIDDEN, "{name}={value}");
        }
        for (name, value) in
            [("LOG_LEVEL", "INFO"), ("PORT", "8080"), ("DB_HOST", "db.default"), ("ON", "true")]
        {
            let env = json!({"env": [{"name": name, "value": value}]});
            assert_eq!(shown(&env, false), env);
        }
    }

    #[test]
    fn what_only_names_a_secret_is_shown() {
        let value = json!({
            "env": [{"name": "P", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}],
            "volumes": [{"name": "s", "secret": {"secretName": "db"}}],
            "image": "registry.example:5000/app@sha256:ab",
            "args": ["--listen=0.0.0.0:80", "http://web:8080/path"],
        });
        assert_eq!(shown(&value, false), value);
    }
}
