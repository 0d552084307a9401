//! The `Node` kind: names, validation, defaults.

use super::super::{Descriptor, KindSpec, Links, OlderSpellings};
use super::{NodeSpec, Taint};
use crate::content_refs::is_digest;
use crate::document::edit::{entry, mapping, put, take};
use crate::manifest::dialects::{Node, Notes};
use crate::names::{check_qualified_name, is_label_value};
use crate::violation::{Findings, Path, rules};

impl KindSpec for NodeSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "nodes",
        short_names: &["no"],
        api_version: "v1",
        is_namespaced: false,
        fails_commits: false,
        older: OlderSpellings { may_lack_api_version: true, rewrite, ..OlderSpellings::NONE },
        ..Descriptor::DEFAULT
    };

    const LINKS: Links<Self> = Links::NONE;

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        let list = at.field("taints");
        for (index, taint) in self.taints.iter().enumerate() {
            let here = list.index(index);
            if let Err(why) = check_qualified_name(&taint.key) {
                let message = format!("Invalid value: `{}`: {why}", taint.key);
                findings.add(&rules::TAINT, &here.field("key"), message);
            }
            let value = taint.value.as_deref().unwrap_or_default();
            if !is_label_value(value) {
                let message = format!("Invalid value: `{value}`: not a valid taint value");
                findings
                    .add(&rules::TAINT, &here.field("value"), message)
                    .help("letters, digits, '-', '_' and '.', at most 63 characters");
            }
            // A key may occur twice only with different effects, as in Kubernetes.
            let is_same = |other: &Taint| other.key == taint.key && other.effect == taint.effect;
            if self.taints[..index].iter().any(is_same) {
                let message = format!("Duplicate value: `{}` with the same effect", taint.key);
                findings.add(&rules::TAINT, &here.field("key"), message).help("keep one of them");
            }
        }
        if let Some(identity) = self.identity.as_ref().filter(|identity| !is_fingerprint(identity)) {
            let message = format!("Invalid value: `{identity}`: not the fingerprint of a key");
            findings
                .add(&rules::NODE_IDENTITY, &at.field("identity"), message)
                .help("write 'sha256:' and 64 lower-case hex digits, as the event of its join shows it");
        }
    }

    fn fill_defaults(&mut self) {
        for taint in &mut self.taints {
            // An empty value means the same as a missing one.
            taint.value = taint.value.take().filter(|value| !value.is_empty());
        }
    }

    fn is_replaced_by(&self, _: &Self) -> bool {
        false
    }
}

/// True for `sha256:` and a digest.
fn is_fingerprint(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(is_digest)
}

// Older Node manifests, which have an address at the top level and no spec.

pub(super) fn rewrite(node: &mut Node, notes: &mut Notes<'_>) {
    if let Some(ip) = take(node, "ip") {
        notes.dropped(ip.mark, "ip", "the node's agent reports its address");
    }
    // A node may have only labels, as in Kubernetes.
    if node.entry("spec").is_none_or(|spec| spec.value.is_null()) {
        let mark = take(node, "spec").map_or(node.first_mark(), |spec| spec.mark);
        put(node, entry("spec", mark, mapping(mark, [])));
    }
}
