//! What the Cluster object forbids to every pod. Pure.

use schema::kinds::{Kind, Resource, cluster};
use schema::violation::{Finding, Findings, Path};

use super::claim::{Claim, problem};
use super::scene::{Present, Scene};

/// Finds pods and templates that ask for what is forbidden.
pub(super) fn check(scene: &mut Scene<'_>) {
    let Some(policy) = policy(scene) else { return };
    for claim in scene.claims {
        let Some(pod) = claim.document.object.resource.pod(&claim.document.object.metadata) else { continue };
        let mut findings = Findings::default();
        let spec = Path::ROOT.field("spec");
        let template = spec.field("template");
        let of_template = template.field("spec");
        policy.check(pod.spec, if pod.at.len() > 1 { &of_template } else { &spec }, &mut findings);
        for Finding { at, rule, message, help, .. } in findings.into_vec() {
            scene.add(claim, problem(claim, rule, claim.document.place(&at), message, help));
        }
    }
}

/// The Cluster object that will be there; of several, which the check of clashes reports, the one
/// that is live.
fn policy(scene: &Scene<'_>) -> Option<cluster::PodSecurity> {
    let of_kind = |claim: &&Claim<'_>| claim.document.reference.kind == Kind::Cluster;
    let claimed = scene.claims.iter().filter(of_kind).map(|claim| &claim.document.reference);
    let live = scene.live.keys().filter(|object| object.kind == Kind::Cluster);
    let present = claimed.chain(live).filter_map(|object| scene.present(object));
    let first = present.min_by_key(|present| match present {
        Present::Stays(_) => (0, None),
        Present::Wanted(claim) => {
            (1 + u8::from(claim.live.is_none()), Some((claim.file.clone(), claim.document.line)))
        }
    })?;
    match first.resource() {
        Resource::Cluster(cluster) => Some(cluster.pod_security.clone()),
        _ => None,
    }
    .filter(|policy| *policy != cluster::PodSecurity::default())
}
