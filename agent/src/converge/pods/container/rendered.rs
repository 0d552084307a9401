//! Rendered containers: everything needed to create one.

use schema::content_refs::ContentRef;
use schema::kinds::pod::keyed::Variable;
use schema::kinds::pod::{Container, EnvVarSource};
use schema::quantity::{Cpu, Memory};

use crate::converge::pods::facts::Placement;
use crate::converge::pods::volume::spec::SubPath;
use crate::worlds::docker::NewContainer;

/// A value that replaces `marker` when the container is created: no plan holds a secret, or a long value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedValue {
    /// Placeholder in variables, command and arguments.
    pub marker: String,
    pub source: ContentRef,
    pub key: String,
}

impl KeyedValue {
    /// Creates a value with its marker. No program accepts a NUL in a variable or argument, so nothing else looks
    /// like a marker.
    pub fn new(source: ContentRef, key: &str) -> Self {
        Self { marker: format!("\0{source}\0{key}\0"), source, key: key.to_owned() }
    }
}

/// Returns the secrets in the variables of a container, and so possibly in its command: one key of each, or all.
pub fn secrets_of(spec: &Container) -> Vec<(ContentRef, Option<String>)> {
    let keyed = spec.variables().filter_map(|variable| match variable {
        Variable::One(one) => {
            let value = one.value_from.as_ref().and_then(EnvVarSource::keyed)?;
            Some((value.owner, Some(value.key.to_owned())))
        }
        Variable::All(all) => Some((all.of, None)),
    });
    keyed.filter(|(of, _)| matches!(of, ContentRef::Secret(_))).collect()
}

/// Values for field references other than those to the pod itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldValues {
    pub node: String,
    pub host_ip: String,
    pub pod_ip: String,
    /// CPU of the node for pods.
    pub cpu: Cpu,
    /// Memory of the node for pods; 0 if unknown.
    pub memory: Memory,
}

impl FieldValues {
    pub fn of(at: Placement<'_>) -> Self {
        Self {
            node: at.node.node.clone(),
            host_ip: at.node.node_ip.to_string(),
            pod_ip: at.address.map_or_else(|| at.node.node_ip.to_string(), |a| a.addr().to_string()),
            cpu: at.node.cpu,
            memory: Memory { bytes: at.node.memory.bytes },
        }
    }
}

/// Inputs of a container: `NAME=value`, command and arguments, and the values behind their markers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerInputs {
    pub env: Vec<String>,
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub values: Vec<KeyedValue>,
}

/// A container to create, with everything that must be looked up or done first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedContainer {
    pub new: NewContainer,
    pub sub_paths: Vec<SubPath>,
    /// True if the image's user must not be root.
    pub check_non_root: bool,
    /// Group to run the image's user with.
    pub group_of_image_user: Option<i64>,
    pub never_pull: bool,
    /// Values that the variables take by key.
    pub values: Vec<KeyedValue>,
    /// Set if the variables depend on the keys of some secret: all become variables, or one is optional. The keys are
    /// known once it is decrypted; then the inputs are rendered again.
    pub secret_inputs: Option<Box<(Container, FieldValues)>>,
}

// Removes secrets from the engine's messages, which repeat a command that can't run. Pure.

/// Replaces a message that may contain a secret which is unavailable for redaction.
pub const HIDDEN_MESSAGE: &str = "Docker could not run it; its message is hidden because it may contain a secret of the container; see 'docker inspect' on the node";

/// Returns the text with `***` for each of the values. A value that the engine quotes in another form can't be
/// found: then nothing of the text is shown.
pub fn redact_secrets(text: &str, values: &[String]) -> String {
    let mut values: Vec<&str> = values.iter().map(|value| value.trim()).collect();
    values.retain(|value| !value.is_empty());
    let is_plain = |c: char| (c.is_ascii_graphic() || c == ' ') && !matches!(c, '"' | '\\');
    if !values.iter().all(|value| value.chars().all(is_plain)) {
        return HIDDEN_MESSAGE.to_owned();
    }
    // A value that contains another one is replaced as a whole.
    values.sort_by_key(|value| std::cmp::Reverse(value.len()));
    values.iter().fold(text.to_owned(), |text, value| text.replace(value, "***"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_is_left_however_it_is_quoted() {
        let values = |list: &[&str]| list.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        for (said, secrets, shown) in [
            (r#"exec: "hunter2": not found"#, &["hunter2"][..], r#"exec: "***": not found"#),
            ("exec: hunter2", &["hunter2\n"], "exec: ***"),
            (r#"exec: "a\"b\n12": no"#, &["a\"b\n12"], HIDDEN_MESSAGE),
            ("stat /bin/hunter2: no", &["hunter2", "hunter"], "stat /bin/***: no"),
            ("line second is bad", &["first\nsecond\n"], HIDDEN_MESSAGE),
            ("nothing of it", &["", "\n", "hunter2"], "nothing of it"),
        ] {
            assert_eq!(redact_secrets(said, &values(secrets)), shown, "{said}");
        }
    }
}
