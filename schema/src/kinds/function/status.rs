//! Build state of a function's image.

use serde::{Deserialize, Serialize};

/// Build state of the image for the desired source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum ImageState {
    /// No node has started a build.
    #[default]
    Waiting,
    /// A node builds the image.
    Building {
        /// Name of the node.
        node: String,
    },
    /// The image exists.
    Ready,
    /// The build failed; the previous source keeps answering calls.
    Failed {
        /// End of the build output.
        why: String,
    },
}
