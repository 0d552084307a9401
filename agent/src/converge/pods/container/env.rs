//! Environment variables and `$(NAME)`, as Kubernetes expands them. Pure.

use std::collections::BTreeMap;

use schema::kinds::pod::EnvVar;
use schema::records::PodInstance;

use super::rendered::SecretValue;

/// What field references may name besides the pod itself.
#[derive(Debug, Clone)]
pub struct FieldContext<'a> {
    /// The pod.
    pub pod: &'a PodInstance,
    /// Its node.
    pub node: &'a str,
    /// The node's address.
    pub host_ip: String,
    /// The pod's address.
    pub pod_ip: String,
}

/// Variables in the order of the manifest; a later one of the same name takes the place of the former.
pub fn variables(env: &[EnvVar], context: &FieldContext<'_>) -> Result<Vec<(String, String)>, String> {
    let mut list: Vec<(String, String)> = Vec::new();
    let mut known = BTreeMap::new();
    for variable in env {
        let value = match (&variable.value, &variable.value_from) {
            (_, None) => expand(variable.value.as_deref().unwrap_or_default(), &known),
            (_, Some(source)) => match (&source.field_ref, &source.secret_key_ref) {
                (Some(field), _) => field_value(&field.field_path, context).ok_or_else(|| {
                    format!("env {}: there is no field {}", variable.name, field.field_path)
                })?,
                (None, Some(secret)) => SecretValue::of(secret).marker,
                (None, None) => String::new(),
            },
        };
        known.insert(variable.name.clone(), value.clone());
        list.retain(|(name, _)| *name != variable.name);
        list.push((variable.name.clone(), value));
    }
    Ok(list)
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
        "spec.nodeName" => Some(context.node.to_owned()),
        "status.podIP" => Some(context.pod_ip.clone()),
        "status.hostIP" => Some(context.host_ip.clone()),
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
