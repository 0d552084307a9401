//! Function: `userUploadFilePath` named the folder that a client uploaded; today the folder lies in the repository.

use super::tree::{below, rename};
use super::{Node, Notes};

pub(super) fn rewrite(node: &mut Node, notes: &mut Notes<'_>) {
    let Some(spec) = below(node, &["spec"]) else { return };
    if let Some(mark) = rename(spec, "userUploadFilePath", "source") {
        notes.older(mark, "spec.userUploadFilePath", "spec.source");
    }
}
