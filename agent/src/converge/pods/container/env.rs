//! Environment variables and `$(NAME)`, as Kubernetes expands them. Pure.

use std::collections::BTreeMap;

use schema::files::{ContentRef, of_content};
use schema::kinds::names::is_env_name;
use schema::kinds::pod::keyed::{AllOf, ValueOf, Variable};
use schema::kinds::pod::{Container, EnvVarSource};
use schema::records::PodInstance;

use super::rendered::{KeyedValue, PlaceFields};

/// What variables are made from.
#[derive(Debug, Clone)]
pub struct FieldContext<'a> {
    /// The pod.
    pub pod: &'a PodInstance,
    /// Where it is.
    pub place: &'a PlaceFields,
    /// The keys of secrets, as far as these are decrypted.
    pub secret_keys: &'a SecretKeys,
}

/// Which keys secrets have.
pub type SecretKeys = BTreeMap<ContentRef, Vec<String>>;

/// Names and values, and which of these are markers.
pub type Variables = (Vec<(String, String)>, Vec<KeyedValue>);

/// Variables in the order in which they are set; a later one of the same name takes the place of the former. With
/// them the values that they take by key.
pub fn variables(spec: &Container, context: &FieldContext<'_>) -> Result<Variables, String> {
    let mut list = List::default();
    for (_, _, variable) in spec.variables() {
        let one = match variable {
            Variable::All(all) => {
                list.add_all(&all, context);
                continue;
            }
            Variable::One(one) => one,
        };
        let name = one.name.clone();
        let Some(source) = &one.value_from else {
            let value = expand(one.value.as_deref().unwrap_or_default(), &list.known);
            list.add(name, value);
            continue;
        };
        match (&source.field_ref, EnvVarSource::keyed(source)) {
            (Some(field), _) => {
                let value = field_value(&field.field_path, context);
                let absent = || format!("env {name}: there is no field {}", field.field_path);
                list.add(name.clone(), value.ok_or_else(absent)?);
            }
            (None, Some(value)) if value.is_optional && !has(&value, context) => {}
            (None, Some(value)) => list.add_keyed(name, KeyedValue::new(value.of, value.key)),
            (None, None) => list.add(name, String::new()),
        }
    }
    Ok((list.in_order, list.values))
}

/// The pod brings the value along, as far as is known here.
fn has(value: &ValueOf<'_>, context: &FieldContext<'_>) -> bool {
    let found = of_content(&context.pod.files, &value.of);
    found.is_some_and(|(_, blob)| blob.texts.iter().any(|key| key == value.key))
}

#[derive(Default)]
struct List {
    in_order: Vec<(String, String)>,
    known: BTreeMap<String, String>,
    values: Vec<KeyedValue>,
}

impl List {
    fn add(&mut self, name: String, value: String) {
        self.known.insert(name.clone(), value.clone());
        self.in_order.retain(|(known, _)| *known != name);
        self.in_order.push((name, value));
    }

    fn add_keyed(&mut self, name: String, value: KeyedValue) {
        self.add(name, value.marker.clone());
        self.values.push(value);
    }

    /// Keys that can't be names are left out, as in Kubernetes.
    fn add_all(&mut self, all: &AllOf<'_>, context: &FieldContext<'_>) {
        let keys = match &all.of {
            secret @ ContentRef::Secret(_) => context.secret_keys.get(secret),
            object => of_content(&context.pod.files, object).map(|(_, blob)| &blob.texts),
        };
        for key in keys.into_iter().flatten() {
            let name = format!("{}{key}", all.prefix);
            if is_env_name(&name) {
                self.add_keyed(name, KeyedValue::new(all.of.clone(), key));
            }
        }
    }
}

/// Replaces `$(NAME)` of a known variable; `$$` is a `$`; anything else stays as it is written.
pub fn expand(text: &str, known: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
            match known.get(name) {
                Some(value) => out.push_str(value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

fn field_value(path: &str, context: &FieldContext<'_>) -> Option<String> {
    let pod = context.pod;
    let in_map = |map: &BTreeMap<String, String>, prefix: &str| {
        let key = path.strip_prefix(prefix)?.strip_prefix("['")?.strip_suffix("']")?;
        Some(map.get(key).cloned().unwrap_or_default())
    };
    match path {
        "metadata.name" => Some(pod.name.clone()),
        "metadata.namespace" => Some(pod.namespace.clone()),
        "metadata.uid" => Some(pod.uid.clone()),
        "spec.nodeName" => Some(context.place.node.clone()),
        "status.podIP" => Some(context.place.pod_ip.clone()),
        "status.hostIP" => Some(context.place.host_ip.clone()),
        _ => in_map(&pod.labels, "metadata.labels")
            .or_else(|| in_map(&pod.annotations, "metadata.annotations")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_expand_as_in_kubernetes() {
        let known = BTreeMap::from([("A".to_owned(), "one".to_owned())]);
        for (text, expected) in [
            ("$(A)", "one"),
            ("x$(A)y$(A)", "xoneyone"),
            ("$(B)", "$(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$one"),
            ("$A", "$A"),
            ("$(A", "$(A"),
            ("100$", "100$"),
        ] {
            assert_eq!(expand(text, &known), expected, "{text}");
        }
    }
}
