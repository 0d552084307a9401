//! Function: `userUploadFilePath` named the folder that a client uploaded; today the folder lies in the repository.

use crate::manifest::dialects::tree::{below, rename};
use crate::manifest::dialects::{Node, Notes};

pub(super) fn rewrite(node: &mut Node, notes: &mut Notes<'_>) {
    let Some(spec) = below(node, &["spec"]) else { return };
    if let Some(mark) = rename(spec, "userUploadFilePath", "source") {
        notes.older(mark, "spec.userUploadFilePath", "spec.source");
    }
}
