//! The effective spec: defaults that follow from other fields, so that equal meaning hashes equal.

use super::PodSpec;

impl PodSpec {
    /// Fills in what Kubernetes' API server would.
    pub fn fill_defaults(&mut self) {}
}
