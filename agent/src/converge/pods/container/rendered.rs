//! A container that is to be made.

use schema::files::ContentRef;
use schema::kinds::pod::keyed::Variable;
use schema::kinds::pod::{Container, EnvVarSource};

use crate::converge::pods::volume::spec::SubPath;
use crate::worlds::docker::NewContainer;

/// A value that takes the place of `marker` when the container is made: no plan holds a secret, or what is long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedValue {
    /// What stands for it in variables, command and arguments.
    pub marker: String,
    pub of: ContentRef,
    pub key: String,
}

impl KeyedValue {
    /// No program takes a NUL in a variable or argument, so nothing else reads like a marker.
    pub fn new(of: ContentRef, key: &str) -> Self {
        Self { marker: format!("\0{of}\0{key}\0"), of, key: key.to_owned() }
    }
}

/// The secrets in the variables of a container, and with them maybe in its command: a key of one, or all.
pub fn secrets_of(spec: &Container) -> Vec<(ContentRef, Option<String>)> {
    let keyed = spec.variables().filter_map(|variable| match variable {
        Variable::One(one) => {
            let value = one.value_from.as_ref().and_then(EnvVarSource::keyed)?;
            Some((value.of, Some(value.key.to_owned())))
        }
        Variable::All(all) => Some((all.of, None)),
    });
    keyed.filter(|(of, _)| matches!(of, ContentRef::Secret(_))).collect()
}

/// What field references may name besides the pod itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceFields {
    pub node: String,
    pub host_ip: String,
    pub pod_ip: String,
}

/// What a container starts with: `NAME=value`, command and arguments, and the values that their markers stand for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerInputs {
    pub env: Vec<String>,
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub values: Vec<KeyedValue>,
}

/// A container to be made, with what must be looked up or done first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    pub new: NewContainer,
    pub sub_paths: Vec<SubPath>,
    /// Its image's user must not be root.
    pub check_non_root: bool,
    /// Its image's user with this group.
    pub group_of_image_user: Option<i64>,
    pub never_pull: bool,
    /// Values that its variables take by key.
    pub values: Vec<KeyedValue>,
    /// All keys of some secret become variables. Which keys it has is known once it is decrypted; then this is
    /// rendered again.
    pub of_secrets: Option<Box<(Container, PlaceFields)>>,
}
