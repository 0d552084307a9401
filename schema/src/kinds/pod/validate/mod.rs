//! What the schema can't say about a pod: one file per part, in Kubernetes' words where people search
//! for them. Reads the typed spec, adds findings by path, changes nothing.

mod container;
mod env;
mod image;
mod ports;
mod probe;
mod resources;
mod scheduling;
mod security;
mod shared;
mod volume;

use super::{EnvVar, PodSpec, ResourceRequirements};
use crate::violation::{Findings, Path};

impl PodSpec {
    /// Checks a spec as it is written, before [`PodSpec::fill_defaults`], at the path `at`.
    pub fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        volume::validate(self, at, findings);
        container::validate(self, at, findings);
        ports::validate(self, at, findings);
        security::validate(self, at, findings);
        scheduling::validate(self, at, findings);
    }
}

/// Checks the environment of something that becomes a container.
pub(crate) fn check_env(env: &[EnvVar], at: &Path<'_>, findings: &mut Findings) {
    env::validate(env, at, findings);
}

/// Checks the requests and limits of something that becomes a container.
pub(crate) fn check_resources(resources: &ResourceRequirements, at: &Path<'_>, findings: &mut Findings) {
    resources::validate(resources, at, findings);
}

/// Says what is wrong with an image reference.
pub(crate) fn check_image(image: &str) -> Result<(), String> {
    image::check(image)
}
