//! Environment variables, `$(NAME)` and the downward API, as in Kubernetes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use schema::content_refs::{ContentRef, find_content};
use schema::kinds::pod::keyed::{TextsSource, ValueSource, Variable};
use schema::kinds::pod::{Container, ContainerResource, EnvVarSource, FieldRef, ResourceFieldRef};
use schema::names::is_env_name;
use schema::records::PodInstance;

use super::rendered::{FieldValues, KeyedValue};

/// Sources of variables.
#[derive(Debug, Clone)]
pub struct FieldContext<'a> {
    pub pod: &'a PodInstance,
    pub place: &'a FieldValues,
    /// Keys of the secrets decrypted so far.
    pub secret_keys: &'a SecretKeys,
}

/// Keys of each secret.
pub type SecretKeys = BTreeMap<ContentRef, Vec<String>>;

/// Names and values of variables, and the values behind those that are markers.
pub type Variables = (Vec<(String, String)>, Vec<KeyedValue>);

/// Returns the variables in the order in which they are set, a later one replacing an earlier one of the same name,
/// and the values that they take by key.
pub fn variables(
    spec: &Container,
    context: &FieldContext<'_>,
    room: &mut usize,
) -> Result<Variables, String> {
    let mut list = VariableList::default();
    for variable in spec.variables() {
        let one = match variable {
            Variable::All(all) => {
                list.add_all(&all, context);
                continue;
            }
            Variable::One(one) => one,
        };
        let name = one.name.clone();
        let Some(source) = &one.value_from else {
            let value = expand(one.value.as_deref().unwrap_or_default(), &list.known, room)?;
            list.add(name, value);
            continue;
        };
        let FieldContext { pod, place, .. } = *context;
        let own = match (&source.field_ref, &source.resource_field_ref) {
            (Some(field), _) => Some(field_value(field, pod, place)),
            (None, Some(amount)) => Some(resource_value(amount, Some(spec), pod, place)),
            (None, None) => None,
        };
        match (own, EnvVarSource::keyed(source)) {
            (Some(own), _) => {
                let value = own.map_err(|why| format!("env {name}: {why}"))?;
                list.add(name, value);
            }
            (None, Some(value)) if value.is_optional && !has(&value, context) => {}
            (None, Some(value)) => list.add_keyed(name, KeyedValue::new(value.owner, value.key)),
            (None, None) => list.add(name, String::new()),
        }
    }
    Ok((list.in_order, list.values))
}

/// True if the pod carries the value, as far as known here.
fn has(value: &ValueSource<'_>, context: &FieldContext<'_>) -> bool {
    if matches!(value.owner, ContentRef::Secret(_)) {
        let keys = context.secret_keys.get(&value.owner);
        return keys.is_some_and(|keys| keys.iter().any(|key| key == value.key));
    }
    let found = find_content(&context.pod.files, &value.owner);
    found.is_some_and(|(_, blob)| blob.texts.iter().any(|key| key == value.key))
}

#[derive(Default)]
struct VariableList {
    in_order: Vec<(String, String)>,
    known: BTreeMap<String, String>,
    values: Vec<KeyedValue>,
}

impl VariableList {
    fn add(&mut self, name: String, value: String) {
        self.known.insert(name.clone(), value.clone());
        self.in_order.retain(|(known, _)| *known != name);
        self.in_order.push((name, value));
    }

    fn add_keyed(&mut self, name: String, value: KeyedValue) {
        self.add(name, value.marker.clone());
        self.values.push(value);
    }

    /// Adds every key; those that can't be names are skipped, as in Kubernetes.
    fn add_all(&mut self, all: &TextsSource<'_>, context: &FieldContext<'_>) {
        let keys = match &all.of {
            secret @ ContentRef::Secret(_) => context.secret_keys.get(secret),
            object => find_content(&context.pod.files, object).map(|(_, blob)| &blob.texts),
        };
        for key in keys.into_iter().flatten() {
            let name = format!("{}{key}", all.prefix);
            if is_env_name(&name) {
                self.add_keyed(name, KeyedValue::new(all.of.clone(), key));
            }
        }
    }
}

/// Maximum number of bytes of a container's variables, command and arguments together: the limit of Linux with its
/// usual stack limit.
pub const INPUTS_MAX: usize = 2 * 1024 * 1024;

/// Returns the error for inputs longer than `INPUTS_MAX`.
pub fn too_long() -> String {
    let most = INPUTS_MAX / 1024 / 1024;
    format!(
        "env, command and args exceed {most} MiB, which Linux does not accept; mount large values as files"
    )
}

/// Maximum number of bytes of a single variable, `NAME=value` with its end: Linux' MAX_ARG_STRLEN.
const VARIABLE_MAX: usize = 128 * 1024;

/// Returns the error for a variable that no process can have, without its value.
pub fn oversized<'e>(env: impl IntoIterator<Item = &'e String>) -> Option<String> {
    let longest = env.into_iter().find(|variable| variable.len() >= VARIABLE_MAX)?;
    let name = longest.split_once('=').map_or("", |(name, _)| name);
    let most = VARIABLE_MAX / 1024;
    Some(format!("env {name} exceeds {most} KiB, which Linux does not accept; mount the value as a file"))
}

/// Replaces `$(NAME)` of a known variable; `$$` becomes `$`; everything else stays as written. Subtracts the length
/// of the result from `room`.
pub fn expand(text: &str, known: &BTreeMap<String, String>, room: &mut usize) -> Result<String, String> {
    expand_with(text, |name| known.get(name).map(String::as_str), room)
}

fn expand_with<'v>(
    text: &str,
    mut value_of: impl FnMut(&str) -> Option<&'v str>,
    room: &mut usize,
) -> Result<String, String> {
    let mut out = String::new();
    let mut add = |part: &str| {
        *room = room.checked_sub(part.len()).ok_or_else(too_long)?;
        out.push_str(part);
        Ok::<(), String>(())
    };
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        add(&rest[..at])?;
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            add("$")?;
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
            match value_of(name) {
                Some(value) => add(value)?,
                None => {
                    add("$(")?;
                    add(name)?;
                    add(")")?;
                }
            }
            rest = after;
        } else {
            add("$")?;
        }
    }
    add(rest)?;
    Ok(out)
}

/// Expands a `subPathExpr` with the container's variables, as the kubelet does (`ExpandContainerVolumeMounts` in
/// pkg/kubelet/container/helpers.go): every variable in it must have a value, and the path must stay in its volume. The
/// error has no value, which may be a secret.
pub fn expand_path(expression: &str, env: &[String]) -> Result<String, String> {
    let known: BTreeMap<&str, &str> = env.iter().filter_map(|variable| variable.split_once('=')).collect();
    let mut missing = BTreeSet::new();
    let value_of = |name: &str| {
        let value = known.get(name).copied().filter(|value| !value.is_empty());
        if value.is_none() {
            missing.insert(name.to_owned());
        }
        value
    };
    let mut room = INPUTS_MAX;
    let path = expand_with(expression, value_of, &mut room)?;
    if !missing.is_empty() {
        let names: Vec<String> = missing.into_iter().collect();
        return Err(format!("subPathExpr {expression}: missing value for {}", names.join(", ")));
    }
    if path.starts_with('/') {
        return Err(format!("error SubPath `{expression}` must not be an absolute path"));
    }
    match path.split('/').any(|part| part == "..") {
        true => Err(format!("unable to provision SubPath `{expression}`: must not contain '..'")),
        false => Ok(path),
    }
}

// The downward API.

/// Returns a field of the pod.
pub fn field_value(field: &FieldRef, pod: &PodInstance, place: &FieldValues) -> Result<String, String> {
    let value = match field.field_path.as_str() {
        "metadata.name" => Some(pod.name.clone()),
        "metadata.namespace" => Some(pod.namespace.clone()),
        "metadata.uid" => Some(pod.uid.clone()),
        "spec.nodeName" => Some(place.node.clone()),
        "status.podIP" => Some(place.pod_ip.clone()),
        "status.hostIP" => Some(place.host_ip.clone()),
        _ => field.of_metadata(&pod.labels, &pod.annotations),
    };
    value.ok_or_else(|| format!("there is no field {}", field.field_path))
}

/// Returns an amount of a container's resources by the arithmetic of Kubernetes (`ExtractContainerResourceValue` in
/// pkg/api/v1/resource/helpers.go): in whole units, rounded up. Without a limit it is what the node has for pods. `own`
/// is the container with the variable.
pub fn resource_value(
    amount: &ResourceFieldRef,
    own: Option<&Container>,
    pod: &PodInstance,
    place: &FieldValues,
) -> Result<String, String> {
    let mut all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let spec = match &amount.container_name {
        Some(name) => all.find(|container| container.name == *name),
        None => own,
    };
    let not_found =
        || format!("container {} not found", amount.container_name.as_deref().unwrap_or_default());
    let (resources, thousand) = (&spec.ok_or_else(not_found)?.resources, 1000);
    let thousandths = match amount.resource {
        ContainerResource::RequestsCpu => resources.requested_cpu().millis.into(),
        ContainerResource::RequestsMemory => u128::from(resources.requested_memory().bytes) * thousand,
        // A limit of 0 is none.
        ContainerResource::LimitsCpu => {
            let limit = resources.limits.cpu.filter(|limit| limit.millis > 0);
            limit.unwrap_or(place.cpu).millis.into()
        }
        ContainerResource::LimitsMemory => {
            let limit = resources.limits.memory.filter(|limit| limit.bytes > 0).unwrap_or(place.memory);
            if limit.bytes == 0 {
                return Err("this node's memory is not known; set limits.memory".to_owned());
            }
            u128::from(limit.bytes) * thousand
        }
    };
    let unit = amount.divisor.map_or(0, |divisor| divisor.thousandths);
    Ok(thousandths.div_ceil(if unit == 0 { thousand } else { unit }).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_expand_as_in_kubernetes() {
        let known = BTreeMap::from([("A".to_owned(), "one".to_owned())]);
        let mut room = INPUTS_MAX;
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
            assert_eq!(expand(text, &known, &mut room).unwrap(), expected, "{text}");
        }
    }

    /// Cases of `TestExpandVolumeMountsWithSubpath` in pkg/kubelet/container/helpers_test.go of Kubernetes.
    #[test]
    fn a_path_is_expanded_as_in_kubernetes() {
        let env = ["POD_NAME=bar", "A=1", "EMPTY=", "ROOT=/", "UP=.."].map(str::to_owned);
        for (expression, expected) in [
            ("foo", Ok("foo")),
            ("foo/$(POD_NAME)", Ok("foo/bar")),
            ("foo/$$(POD_NAME)", Ok("foo/$(POD_NAME)")),
            ("$(POD_NAME)$(A)/$", Ok("bar1/$")),
            ("foo/$(NAMESPACE)", Err("missing value for NAMESPACE")),
            ("$(EMPTY)$(Z)$(B)", Err("missing value for B, EMPTY, Z")),
            ("$(ROOT)etc", Err("error SubPath `$(ROOT)etc` must not be an absolute path")),
            ("foo/$(UP)", Err("unable to provision SubPath `foo/$(UP)`: must not contain '..'")),
            ("$(UP)$(UP)", Ok("....")),
        ] {
            match (expand_path(expression, &env), expected) {
                (Ok(path), Ok(expected)) => assert_eq!(path, expected, "{expression}"),
                (Err(why), Err(expected)) => assert!(why.ends_with(expected), "{expression}: {why}"),
                (found, expected) => panic!("{expression}: {found:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn a_variable_that_no_process_can_have_is_named() {
        let of = |bytes: usize| format!("BIG={}", "x".repeat(bytes));
        assert_eq!(oversized([&of(VARIABLE_MAX - 5)]), None);
        let refused = oversized([&"A=1".to_owned(), &of(VARIABLE_MAX - 4)]).unwrap();
        assert!(refused.starts_with("env BIG exceeds 128 KiB") && refused.len() < 200, "{refused}");
    }

    /// Each variable is the previous one twice: the last would be a terabyte.
    #[test]
    fn what_no_kernel_takes_is_refused_before_it_is_made() {
        let (mut known, mut room) = (BTreeMap::from([("A0".to_owned(), "x".to_owned())]), INPUTS_MAX);
        let refused = (1..=40).find(|number| {
            let text = format!("$(A{0})$(A{0})", number - 1);
            let value = expand(&text, &known, &mut room);
            value.map(|value| known.insert(format!("A{number}"), value)).is_err()
        });
        assert_eq!(refused, Some(21), "the sum of all is bounded");
    }
}
