//! Objects that wait for each other in a circle. Pure.

use std::collections::BTreeMap;

use schema::meta::{ObjectMeta, ObjectRef};
use schema::violation::OwnedStep;

use super::reference::{Reference, dependencies};
use super::scene::Scene;

/// So many objects of a circle are named.
const SHOWN_MAX: usize = 50;

/// Circles among what will be there, each as the objects along it. Every object that waits for
/// itself in the end is on one of them, or on one that shows once these are gone.
pub(super) fn find(scene: &Scene<'_>) -> Vec<Vec<ObjectRef>> {
    let waits = |metadata: &ObjectMeta| !metadata.depends_on.is_empty();
    let claimed = scene.claims.iter().filter(|claim| waits(&claim.draft.object.metadata));
    let live = scene.live.iter().filter(|(_, live)| waits(&live.value.metadata));
    let objects = claimed.map(|claim| &claim.draft.reference).chain(live.map(|(object, _)| object));
    let edges = objects.map(|object| {
        let present = scene.present(object);
        let targets = present.into_iter().flat_map(|present| dependencies(present.metadata()));
        (object.clone(), targets.collect())
    });
    circles(&edges.collect())
}

/// Walks depth first and takes each way back to where the walk came from as a circle.
fn circles(edges: &BTreeMap<ObjectRef, Vec<ObjectRef>>) -> Vec<Vec<ObjectRef>> {
    let mut found = Vec::new();
    // By object: where it is on the present way, or none once all behind it was walked.
    let mut seen: BTreeMap<&ObjectRef, Option<usize>> = BTreeMap::new();
    for start in edges.keys() {
        if seen.contains_key(start) {
            continue;
        }
        let mut way: Vec<(&ObjectRef, std::slice::Iter<'_, ObjectRef>)> = vec![(start, edges[start].iter())];
        seen.insert(start, Some(0));
        while let Some((object, targets)) = way.last_mut() {
            let Some(target) = targets.next() else {
                seen.insert(object, None);
                way.pop();
                continue;
            };
            match seen.get(target) {
                Some(Some(at)) => {
                    found.push(way[*at..].iter().map(|(object, _)| (*object).clone()).collect());
                }
                Some(None) => {}
                None => {
                    let Some((target, next)) = edges.get_key_value(target) else { continue };
                    seen.insert(target, Some(way.len()));
                    way.push((target, next.iter()));
                }
            }
        }
    }
    found
}

/// `A → B → A`, from the object at `at`.
pub(super) fn chain(cycle: &[ObjectRef], at: usize) -> String {
    let around = cycle.iter().cycle().skip(at).take(cycle.len());
    let mut names: Vec<String> = around.take(SHOWN_MAX).map(ToString::to_string).collect();
    if cycle.len() > SHOWN_MAX {
        names.push(format!("… {} more …", cycle.len() - SHOWN_MAX));
    }
    names.push(cycle[at].to_string());
    names.join(" → ")
}

/// The field is the one of `dependsOn` that names `object`.
pub(super) fn is_dependency(reference: &Reference<'_>, object: &ObjectRef) -> bool {
    let step = reference.path.get(1);
    let is_list = matches!(step, Some(OwnedStep::Field(name)) if name == "dependsOn");
    is_list && reference.target == *object
}
