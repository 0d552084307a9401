//! Checks of a pod beyond the schema, one file per part, in Kubernetes' wording where people search for it. Reads
//! the typed spec, adds findings by path, changes nothing.

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

use super::PodSpec;
use crate::violation::{Findings, Path};

pub(crate) use {
    env::validate as check_env, image::check as check_image, resources::validate as check_resources,
};

impl PodSpec {
    /// Checks a spec as written, before [`PodSpec::fill_defaults`], at the path `at`.
    pub fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        volume::validate(self, at, findings);
        container::validate(self, at, findings);
        ports::validate(self, at, findings);
        security::validate(self, at, findings);
        scheduling::validate(self, at, findings);
    }
}
