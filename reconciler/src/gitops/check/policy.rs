//! Restrictions that the Cluster object puts on every pod. Pure.

use schema::kinds::{Kind, Resource, cluster};
use schema::violation::{Finding, Findings, Path};

use super::declaration::{Declaration, problem};
use super::scene::{Present, Scene};

/// Finds pods and templates that violate the policy.
pub(super) fn check(scene: &mut Scene<'_>) {
    let Some(policy) = policy(scene) else { return };
    for declared in scene.declarations {
        let Some(pod) = declared.document.object.resource.pod(&declared.document.object.metadata) else {
            continue;
        };
        let mut findings = Findings::default();
        let spec = Path::ROOT.field("spec");
        let template = spec.field("template");
        let of_template = template.field("spec");
        policy.check(pod.spec, if pod.at.len() > 1 { &of_template } else { &spec }, &mut findings);
        for Finding { at, rule, message, help, .. } in findings.into_vec() {
            scene.add(declared, problem(declared, rule, declared.document.place(&at), message, help));
        }
    }
}

/// Returns the policy of the expected Cluster object; of several, which the check of clashes reports, that of the
/// live one.
fn policy(scene: &Scene<'_>) -> Option<cluster::PodSecurity> {
    let of_kind = |declared: &&Declaration<'_>| declared.document.reference.kind == Kind::Cluster;
    let named = scene.declarations.iter().filter(of_kind).map(|declared| &declared.document.reference);
    let live = scene.live.keys().filter(|object| object.kind == Kind::Cluster);
    let present = named.chain(live).filter_map(|object| scene.present(object));
    let first = present.min_by_key(|present| match present {
        Present::Stays(_) => (0, None),
        Present::Wanted(declared) => {
            (1 + u8::from(declared.live.is_none()), Some((declared.file.clone(), declared.document.line)))
        }
    })?;
    match first.resource() {
        Resource::Cluster(cluster) => Some(cluster.pod_security.clone()),
        _ => None,
    }
    .filter(|policy| *policy != cluster::PodSecurity::default())
}
