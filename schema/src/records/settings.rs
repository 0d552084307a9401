//! `settings`.

use serde::{Deserialize, Serialize};

use crate::files::{BlobRef, Files};
use crate::kinds::Health;
use crate::kinds::cluster::ClusterSpec;

/// The settings of the cluster as agents need them: written by the settings controller, also without a
/// Cluster object, so that absence never means "as by default".
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterSettings {
    /// Generation of the Cluster object; 0 without one.
    pub generation: u64,
    /// What it says; all defaults without one.
    pub spec: ClusterSpec,
    /// The source of the Cluster object, or without one the first that is configured: secrets that name none are its.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// The cluster's identity, encrypted to its nodes, if the source of the Cluster object has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<BlobRef>,
    /// The secrets with logins that the Cluster object names, by their paths.
    #[serde(default, skip_serializing_if = "Files::is_empty")]
    pub logins: Files,
}

impl ClusterSettings {
    /// How well the Cluster object of this generation is: well once it is what is published.
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
