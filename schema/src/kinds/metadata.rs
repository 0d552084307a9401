//! Names, labels and annotations: what every kind checks alike.

use super::Kind;
use crate::meta::ObjectMeta;
use crate::violation::{Findings, Path};

/// Checks an object's metadata.
pub fn validate(_kind: Kind, _metadata: &ObjectMeta, _at: &Path<'_>, _findings: &mut Findings) {}
