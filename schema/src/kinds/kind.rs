//! The kinds of objects, by name.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::document::nearest::{nearest, suggestion};

macro_rules! define_kind {
    ($($(#[$doc:meta])* $kind:ident $module:ident::$spec:ident,)*) => {
        /// Kind of an object. Ordered as objects are applied; removals run in reverse order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            /// Every kind, in the order in which objects are applied.
            pub const ALL: [Kind; [$(Kind::$kind),*].len()] = [$(Kind::$kind),*];

            /// Returns the name used in manifests and keys.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Kind::$kind => stringify!($kind),)*
                }
            }
        }
    };
}
kinds!(define_kind);

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// Kinds of Kubernetes that are read as a [`Kind::ReplicaSet`].

pub(crate) const DEPLOYMENT: &str = "Deployment";
pub(crate) const REPLICATION_CONTROLLER: &str = "ReplicationController";

impl Kind {
    /// Returns the kind that `word` stands for in a manifest, if any.
    pub fn from_manifest_word(word: &str) -> Option<Self> {
        match word {
            DEPLOYMENT | REPLICATION_CONTROLLER => Some(Kind::ReplicaSet),
            _ => word.parse().ok(),
        }
    }

    /// Suggests a replacement for `word`, which is not a kind.
    pub(crate) fn suggestion(word: &str) -> String {
        // These two are read as a ReplicaSet, so they are not among the kinds.
        nearest(word, [DEPLOYMENT, REPLICATION_CONTROLLER]).map_or_else(
            || suggestion(word, Kind::ALL.iter().map(|kind| kind.as_str())),
            |near| format!("did you mean `{near}`?"),
        )
    }
}

/// Error for text that is not the name of a kind.
#[derive(Debug, thiserror::Error)]
#[error("unknown kind `{0}`")]
pub struct UnknownKind(pub String);

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        Kind::ALL.into_iter().find(|k| k.as_str() == text).ok_or_else(|| UnknownKind(text.to_owned()))
    }
}
