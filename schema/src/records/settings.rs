//! `settings`: the Cluster object as agents need it.

use serde::{Deserialize, Serialize};

use crate::files::{BlobRef, Files};
use crate::kinds::Health;
use crate::kinds::cluster::ClusterSpec;

/// Settings of the cluster as agents need them. Written by the settings controller even without a Cluster object,
/// so that absence never means "defaults".
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterSettings {
    /// Generation of the Cluster object; 0 without one.
    pub generation: u64,
    /// Spec of the Cluster object; all defaults without one.
    pub spec: ClusterSpec,
    /// Source of the Cluster object, or without one the first configured source: it owns the secrets that name no
    /// source.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// Identity of the cluster, encrypted to its nodes, if the source of the Cluster object has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<BlobRef>,
    /// Secrets with logins that the Cluster object names, by path.
    #[serde(default, skip_serializing_if = "Files::is_empty")]
    pub logins: Files,
}

impl ClusterSettings {
    /// Returns the health of the Cluster object of this generation: healthy once published.
    pub fn health(published: Option<&Self>, generation: u64) -> Health {
        match published {
            Some(settings) if settings.generation == generation => Health::Healthy,
            _ => Health::Progressing { why: "the settings are not in force yet".to_owned() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Seen red with `>=`.
    #[test]
    fn settings_are_well_once_they_are_published() {
        let of = |generation| ClusterSettings { generation, ..ClusterSettings::default() };
        assert_eq!(ClusterSettings::health(Some(&of(2)), 2), Health::Healthy);
        for published in [None, Some(&of(2)), Some(&of(4))] {
            assert!(matches!(ClusterSettings::health(published, 3), Health::Progressing { .. }));
        }
    }
}
