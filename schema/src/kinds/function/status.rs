//! How far a function's image is.

use serde::{Deserialize, Serialize};

/// How far the image of the wanted source is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum ImageState {
    /// No node has begun.
    #[default]
    Waiting,
    /// A node builds it.
    Building {
        /// Which.
        node: String,
    },
    /// It is there.
    Ready,
    /// It can't be built; the source before goes on answering.
    Failed {
        /// The end of what the build said.
        why: String,
    },
}
