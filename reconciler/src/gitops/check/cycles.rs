//! Dependency cycles: objects that wait for each other. Pure.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use schema::kinds::links::{FieldLocation, dependencies};
use schema::kinds::metadata::parse_reference;
use schema::meta::{ObjectMeta, ObjectRef};
use schema::object::Object;
use schema::snapshot::Table;
use schema::violation::OwnedStep;

use super::Declaration;
use super::after_apply::{ExpectedObject, Scene};

/// Longest cycle that is named in full.
const SHOWN_MAX: usize = 10;

/// Remedy for a cycle.
pub(super) const HELP: &str = "remove one of them from `dependsOn`";

/// Dependencies between objects, by their documents and as they are live.
pub(super) struct DependencyGraph<'a> {
    /// Every object that waits for something, in the order of objects: no other can be on a cycle.
    objects: Vec<&'a ObjectRef>,
    /// Dependencies of each object by its document, as positions.
    wanted: Vec<Vec<usize>>,
    /// Dependencies of each object as it is live.
    live: Vec<Vec<usize>>,
}

/// An object whose document makes it wait for itself in the end.
pub(super) struct CycleMember<'a> {
    pub(super) declared: &'a Declaration<'a>,
    /// Path of the dependency that leads around.
    pub(super) path: Vec<OwnedStep>,
    pub(super) message: String,
}

impl<'a> DependencyGraph<'a> {
    pub(super) fn from_scene(scene: &Scene<'a>) -> Self {
        let waits = |metadata: &ObjectMeta| !metadata.depends_on.is_empty();
        let declared = scene.declarations.iter().filter(|declared| waits(&declared.document.object.metadata));
        let live = scene.live.iter().filter(|(_, live)| waits(&live.value.metadata));
        let mut objects: Vec<&'a ObjectRef> = declared.map(|declared| &declared.document.reference).collect();
        objects.extend(live.map(|(object, _)| object));
        objects.sort_unstable();
        objects.dedup();
        let targets = |metadata: Option<&ObjectMeta>| -> Vec<usize> {
            let targets = metadata.into_iter().flat_map(dependencies);
            targets.filter_map(|target| objects.binary_search(&&target).ok()).collect()
        };
        let of_document =
            |object: &ObjectRef| scene.declared(object).map(|declared| &declared.document.object.metadata);
        let of_live = |object: &ObjectRef| scene.live.get(object).map(|live| &live.value.metadata);
        let wanted = objects.iter().map(|object| targets(of_document(object))).collect();
        let live = objects.iter().map(|object| targets(of_live(object))).collect();
        Self { objects, wanted, live }
    }

    /// Returns every object on a cycle of objects that `present` expects, if its document makes it wait. With
    /// `changed`, only cycles through these objects are new and searched for.
    pub(super) fn circles(
        &self,
        scene: &Scene<'a>,
        present: impl Fn(&ObjectRef) -> Option<ExpectedObject<'a>>,
        changed: Option<&[&ObjectRef]>,
    ) -> Vec<CycleMember<'a>> {
        let changed = changed.map(|changed| -> BTreeSet<usize> {
            let found = changed.iter().filter_map(|object| self.objects.binary_search(object).ok());
            // An object in quarantine waits as its live version does.
            found.filter(|at| !self.live[*at].is_empty()).collect()
        });
        if changed.as_ref().map_or(self.objects.is_empty(), BTreeSet::is_empty) {
            return Vec::new();
        }
        let present: Vec<Option<ExpectedObject<'a>>> =
            self.objects.iter().map(|object| present(object)).collect();
        let edges: Vec<&[usize]> = present
            .iter()
            .enumerate()
            .map(|(at, present)| match present {
                Some(ExpectedObject::Wanted(_)) => &*self.wanted[at],
                Some(ExpectedObject::Stays(_)) => &*self.live[at],
                None => &[],
            })
            .collect();
        let mut found = Vec::new();
        for knot in knots(&edges) {
            if changed.as_ref().is_some_and(|changed| knot.is_disjoint(changed)) {
                continue;
            }
            for at in &knot {
                // `None` for a live version: no manifest is at fault now.
                let is_wanted = matches!(present[*at], Some(ExpectedObject::Wanted(_)));
                let declared = if is_wanted { scene.declared(self.objects[*at]) } else { None };
                let Some((declared, next)) = declared.zip(next_in(&knot, &edges, *at)) else {
                    continue;
                };
                let message = format!("{} wait for each other", self.chain(&knot, &edges, *at));
                found.push(CycleMember { declared, path: path(declared, self.objects[next]), message });
            }
        }
        found
    }

    /// Formats `A → B → A`, starting at the object at `at`; `A → B → … → A` if the cycle is long, or if following
    /// the first dependency of each object does not lead back.
    fn chain(&self, knot: &BTreeSet<usize>, edges: &[&[usize]], at: usize) -> String {
        let mut way = vec![at];
        let mut next = next_in(knot, edges, at);
        while let Some(further) = next.filter(|next| !way.contains(next) && way.len() < SHOWN_MAX) {
            way.push(further);
            next = next_in(knot, edges, further);
        }
        let mut names: Vec<String> = way.iter().map(|at| self.objects[*at].to_string()).collect();
        if next != Some(at) {
            names.truncate(2);
            names.push("…".to_owned());
        }
        names.push(self.objects[at].to_string());
        names.join(" → ")
    }
}

/// Returns the sets of positions that all lead to each other.
fn knots(edges: &[&[usize]]) -> BTreeSet<BTreeSet<usize>> {
    let mut graph = DiGraph::<(), ()>::with_capacity(edges.len(), edges.len());
    edges.iter().for_each(|_| _ = graph.add_node(()));
    for (from, targets) in edges.iter().enumerate() {
        targets.iter().for_each(|to| _ = graph.add_edge(NodeIndex::new(from), NodeIndex::new(*to), ()));
    }
    // No recursion, unlike Tarjan's algorithm: a commit may hold a hundred thousand edges.
    let knots = kosaraju_scc(&graph).into_iter();
    let knots = knots.filter(|knot| knot.len() > 1 || knot.iter().all(|at| graph.contains_edge(*at, *at)));
    knots.map(|knot| knot.into_iter().map(NodeIndex::index).collect()).collect()
}

/// Returns the first dependency of `at` within its knot.
fn next_in(knot: &BTreeSet<usize>, edges: &[&[usize]], at: usize) -> Option<usize> {
    edges[at].iter().copied().find(|next| knot.contains(next))
}

/// Returns the path of the `dependsOn` item that names `object`.
fn path(declared: &Declaration<'_>, object: &ObjectRef) -> Vec<OwnedStep> {
    let metadata = &declared.document.object.metadata;
    let names = |text: &String| parse_reference(text, &metadata.namespace).is_ok_and(|one| one == *object);
    let index = metadata.depends_on.iter().position(names).unwrap_or_default();
    FieldLocation::dependency(index).path()
}

// Order in which objects are applied: by kind, refined by `dependsOn`. Pure.

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
