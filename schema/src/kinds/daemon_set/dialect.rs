//! Older DaemonSet manifests: the spellings that all workloads share, and fields that Git makes needless.

use crate::kinds::Kind;
use crate::kinds::replica_set::dialect;
use crate::manifest::dialects::tree::below;
use crate::manifest::dialects::{Node, Notes};

pub(super) fn rewrite(document: &mut Node, notes: &mut Notes<'_>) {
    dialect::workload(Kind::DaemonSet, document, notes);
    if let Some(spec) = below(document, &["spec"]) {
        dialect::without_history(spec, notes);
    }
}
