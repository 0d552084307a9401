//! How a function is.

use serde::{Deserialize, Serialize};

use super::FunctionSpec;
use crate::kinds::Health;

/// How a function is: its image and its replicas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionStatus {
    /// The image of the wanted source.
    pub image: ImageState,
    /// Replicas that the calls need.
    pub wanted: u32,
    /// Replicas that take calls.
    pub ready: u32,
}

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

impl FunctionSpec {
    /// How well the function is. Asleep, without a replica and without a call, it is well.
    pub fn health(&self, status: &FunctionStatus) -> Health {
        match &status.image {
            ImageState::Failed { why } => {
                Health::Degraded { why: format!("the image can't be built: {why}") }
            }
            ImageState::Waiting => Health::Progressing { why: "the image is to be built".to_owned() },
            ImageState::Building { node } => {
                Health::Progressing { why: format!("node {node} builds the image") }
            }
            // With fewer than the calls ask for, the others wait a little longer.
            ImageState::Ready if status.ready == 0 && status.wanted > 0 => {
                Health::Progressing { why: format!("none of {} replicas is ready", status.wanted) }
            }
            ImageState::Ready => Health::Healthy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_sleeps_is_healthy() {
        let function = FunctionSpec::default();
        let with =
            |image, wanted, ready| function.health(&FunctionStatus { image, wanted, ready }).to_string();
        assert_eq!(with(ImageState::Ready, 0, 0), "Healthy");
        assert_eq!(with(ImageState::Ready, 2, 1), "Healthy");
        assert_eq!(with(ImageState::Ready, 2, 0), "Progressing");
        assert_eq!(with(ImageState::Building { node: "a".to_owned() }, 0, 0), "Progressing");
        assert_eq!(with(ImageState::Failed { why: "no".to_owned() }, 1, 1), "Degraded");
    }
}
