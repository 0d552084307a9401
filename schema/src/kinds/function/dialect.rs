//! Older Function manifests: `userUploadFilePath` named a folder that a client uploaded; the folder is now in the
//! repository.

use crate::manifest::dialects::tree::{below, rename};
use crate::manifest::dialects::{Node, Notes};

pub(super) fn rewrite(node: &mut Node, notes: &mut Notes<'_>) {
    let Some(spec) = below(node, &["spec"]) else { return };
    if let Some(mark) = rename(spec, "userUploadFilePath", "source") {
        notes.older(mark, "spec.userUploadFilePath", "spec.source");
    }
}
