//! Order in which objects are applied: by kind, refined by `dependsOn`. Pure.

use std::collections::{BTreeMap, BTreeSet};

use schema::meta::{ObjectMeta, ObjectRef};
use schema::object::Object;
use schema::snapshot::Table;

use super::Declaration;
use schema::kinds::links::dependencies;

/// Sorts declarations, given in the order of objects, into the order in which they are applied.
pub(super) fn applied<'a>(declarations: &[Declaration<'a>]) -> Vec<(&'a ObjectRef, Declaration<'a>)> {
    let objects = declarations
        .iter()
        .map(|declared| (&declared.document.reference, &declared.document.object.metadata));
    let order = topological(&objects.collect::<Vec<_>>());
    order.into_iter().map(|at| (&declarations[at].document.reference, declarations[at])).collect()
}

/// Sorts objects into the order in which they are removed, the reverse of the order in which they are applied.
pub(crate) fn removed(objects: &mut [ObjectRef], live: &Table<ObjectRef, Object>) {
    objects.sort();
    let nothing = ObjectMeta::default();
    let metadata = |object: &ObjectRef| live.get(object).map_or(&nothing, |live| &live.value.metadata);
    let listed: Vec<_> = objects.iter().map(|object| (object, metadata(object))).collect();
    let order = topological(&listed);
    let ordered: Vec<ObjectRef> = order.into_iter().rev().map(|at| objects[at].clone()).collect();
    objects.clone_from_slice(&ordered);
}

/// Returns positions in an order that puts every dependency before its dependents and otherwise keeps the given
/// order. `objects` must be sorted. Objects on a cycle come last: checks keep them away from here.
fn topological(objects: &[(&ObjectRef, &ObjectMeta)]) -> Vec<usize> {
    if objects.iter().all(|(_, metadata)| metadata.depends_on.is_empty()) {
        return (0..objects.len()).collect();
    }
    let at = |object: &ObjectRef| objects.binary_search_by(|(one, _)| (*one).cmp(object)).ok();
    let mut waits_for = vec![0_usize; objects.len()];
    let mut followers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, (_, metadata)) in objects.iter().enumerate() {
        let targets: BTreeSet<usize> = dependencies(metadata).filter_map(|target| at(&target)).collect();
        waits_for[index] = targets.len();
        for target in targets {
            followers.entry(target).or_default().push(index);
        }
    }
    let mut ready: BTreeSet<usize> = (0..objects.len()).filter(|index| waits_for[*index] == 0).collect();
    let mut order = Vec::with_capacity(objects.len());
    while let Some(index) = ready.pop_first() {
        order.push(index);
        for follower in followers.remove(&index).unwrap_or_default() {
            waits_for[follower] -= 1;
            if waits_for[follower] == 0 {
                ready.insert(follower);
            }
        }
    }
    order.extend((0..objects.len()).filter(|index| waits_for[*index] > 0));
    order
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use schema::kinds::Kind;

    use super::*;

    fn object(number: usize) -> ObjectRef {
        let kind = [Kind::Service, Kind::Pod, Kind::Job][number % 3];
        ObjectRef { kind, namespace: "default".into(), name: format!("o{number:02}") }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Each edge goes from the later of a random order to the earlier, so there is no cycle.
        #[test]
        fn an_order_is_always_topological_and_else_as_given(
            rank in Just((0..20_usize).collect::<Vec<_>>()).prop_shuffle(),
            edges in proptest::collection::vec((0..20_usize, 0..20_usize), 0..40),
        ) {
            let mut nodes: BTreeMap<ObjectRef, ObjectMeta> =
                (0..20).map(|number| (object(number), ObjectMeta::default())).collect();
            for (one, other) in edges.into_iter().filter(|(one, other)| rank[*one] < rank[*other]) {
                let target = object(one);
                let text = format!("{}/{}/{}", target.kind, target.namespace, target.name);
                nodes.get_mut(&object(other)).unwrap().depends_on.push(text);
            }
            let listed: Vec<_> = nodes.iter().collect();
            let order = topological(&listed);
            let place = |at: usize| order.iter().position(|one| *one == at).unwrap();
            prop_assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), listed.len());
            for (at, (_, metadata)) in listed.iter().enumerate() {
                for target in dependencies(metadata) {
                    let target = listed.iter().position(|(one, _)| **one == target).unwrap();
                    prop_assert!(place(target) < place(at));
                }
            }
            // What comes earlier than its place has nothing smaller that was ready before it.
            for pair in order.windows(2) {
                let waits = dependencies(listed[pair[1]].1).any(|target| *listed[pair[0]].0 == target);
                prop_assert!(pair[0] < pair[1] || waits || dependencies(listed[pair[1]].1).next().is_some());
            }
            let mut gone: Vec<ObjectRef> = nodes.keys().cloned().collect();
            let live = Table::new();
            removed(&mut gone, &live);
            prop_assert!(gone.windows(2).all(|pair| pair[0] > pair[1]), "in reverse");
        }
    }
}
