//! A container that is to be made.

use schema::kinds::pod::{Container, SecretKeyRef};

use crate::converge::pods::volume::spec::SubPath;
use crate::worlds::docker::NewContainer;

/// A value that takes the place of `marker` when the container is made: no plan holds a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretValue {
    /// What stands for it in variables, command and arguments.
    pub marker: String,
    /// Name of the secret.
    pub name: String,
    /// Its key.
    pub key: String,
}

impl SecretValue {
    /// No program takes a NUL in a variable or argument, so nothing else reads like a marker.
    pub fn of(reference: &SecretKeyRef) -> Self {
        let (name, key) = (reference.name.clone(), reference.key.clone());
        Self { marker: format!("\0{name}\0{key}\0"), name, key }
    }
}

/// The secrets in the variables of a container, and with them maybe in its command.
pub fn secrets_of(spec: &Container) -> Vec<SecretValue> {
    let sources = spec.env.iter().filter_map(|variable| variable.value_from.as_ref());
    sources.filter_map(|source| source.secret_key_ref.as_ref()).map(SecretValue::of).collect()
}

/// A container to be made, with what must be looked up or done first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The container.
    pub new: NewContainer,
    /// Paths within volumes.
    pub sub_paths: Vec<SubPath>,
    /// Its image's user must not be root.
    pub check_non_root: bool,
    /// Its image's user with this group.
    pub group_of_image_user: Option<i64>,
    /// Its image is never fetched.
    pub never_pull: bool,
    /// Secrets in its variables.
    pub secrets: Vec<SecretValue>,
}
