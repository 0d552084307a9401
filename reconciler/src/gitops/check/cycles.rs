//! Objects that wait for each other in a circle. Pure.
//!
//! What waits for itself in the end is found in one walk over all edges (Tarjan's strongly connected
//! components, without recursion): a commit may hold a hundred thousand edges, and as many ways back.

use std::collections::VecDeque;

use schema::kinds::links::{FieldAt, dependencies};
use schema::kinds::metadata::parse_reference;
use schema::meta::{ObjectMeta, ObjectRef};
use schema::violation::OwnedStep;

use super::Claim;
use super::scene::{Present, Scene};

/// Most objects of a circle that are named.
const SHOWN_MAX: usize = 10;
/// Most circles of a knot that are looked for: each costs a walk over it. What is on none of these is reported
/// that he is in the knot.
const CIRCLES_MAX: usize = 10;

/// What to do about a circle.
pub(super) const HELP: &str = "take one of them out of `dependsOn`";

/// Not visited, or nowhere.
const NONE: usize = usize::MAX;

/// Which objects wait for which, as documents say and as they are live.
pub(super) struct Waits<'a> {
    /// All that wait for something, in the order of objects: no other can be on a circle.
    objects: Vec<&'a ObjectRef>,
    /// What each waits for as its document says, by position.
    wanted: Vec<Vec<usize>>,
    /// What each waits for as it is live.
    live: Vec<Vec<usize>>,
}

/// An object that waits for itself in the end, by its document.
pub(super) struct Waiting<'a> {
    pub(super) claim: &'a Claim<'a>,
    /// The dependency that leads around.
    pub(super) path: Vec<OwnedStep>,
    pub(super) message: String,
}

impl<'a> Waits<'a> {
    pub(super) fn of(scene: &Scene<'a>) -> Self {
        let waits = |metadata: &ObjectMeta| !metadata.depends_on.is_empty();
        let claimed = scene.claims.iter().filter(|claim| waits(&claim.document.object.metadata));
        let live = scene.live.iter().filter(|(_, live)| waits(&live.value.metadata));
        let mut objects: Vec<&'a ObjectRef> = claimed.map(|claim| &claim.document.reference).collect();
        objects.extend(live.map(|(object, _)| object));
        objects.sort_unstable();
        objects.dedup();
        let targets = |metadata: Option<&ObjectMeta>| -> Vec<usize> {
            let targets = metadata.into_iter().flat_map(dependencies);
            targets.filter_map(|target| objects.binary_search(&&target).ok()).collect()
        };
        let of_document =
            |object: &ObjectRef| scene.claim(object).map(|claim| &claim.document.object.metadata);
        let of_live = |object: &ObjectRef| scene.live.get(object).map(|live| &live.value.metadata);
        let wanted = objects.iter().map(|object| targets(of_document(object))).collect();
        let live = objects.iter().map(|object| targets(of_live(object))).collect();
        Self { objects, wanted, live }
    }

    /// Everyone who is on a circle of what `present` says will be there, and waits by his document.
    /// `changed`: only circles through these are new, and looked for.
    pub(super) fn circles(
        &self,
        scene: &Scene<'a>,
        present: impl Fn(&ObjectRef) -> Option<Present<'a>>,
        changed: Option<&[&ObjectRef]>,
    ) -> Vec<Waiting<'a>> {
        let changed = changed.map(|changed| -> Vec<usize> {
            let found = changed.iter().filter_map(|object| self.objects.binary_search(object).ok());
            // What is in quarantine waits as its live version does.
            found.filter(|at| !self.live[*at].is_empty()).collect()
        });
        if changed.as_ref().map_or(self.objects.is_empty(), Vec::is_empty) {
            return Vec::new();
        }
        let present: Vec<Option<Present<'a>>> = self.objects.iter().map(|object| present(object)).collect();
        let edges = present.iter().enumerate().map(|(at, present)| match present {
            Some(Present::Wanted(_)) => &*self.wanted[at],
            Some(Present::Stays(_)) => &*self.live[at],
            None => &[],
        });
        let graph = Graph { edges: edges.collect() };
        let knots = match changed {
            Some(changed) => graph.knots(changed.into_iter()),
            None => graph.knots(0..self.objects.len()),
        };
        let mut found = Vec::new();
        let mut add = |at: usize, next: usize, message: &dyn Fn() -> String| {
            // None: as it is live, so no manifest is at fault now.
            let is_wanted = matches!(present[at], Some(Present::Wanted(_)));
            let claim = if is_wanted { scene.claim(self.objects[at]) } else { None };
            if let Some(claim) = claim {
                found.push(Waiting { claim, path: path(claim, self.objects[next]), message: message() });
            }
        };
        let mut walk = Walk { came_from: vec![NONE; self.objects.len()] };
        let mut knot_of = vec![NONE; self.objects.len()];
        for (number, knot) in knots.iter().enumerate() {
            knot.iter().for_each(|at| knot_of[*at] = number);
            let is_inside = |at: usize| knot_of[at] == number;
            let mut is_reported = vec![false; knot.len()];
            let mut circles = 0;
            for (place, at) in knot.iter().enumerate() {
                if is_reported[place] {
                    continue;
                }
                if circles == CIRCLES_MAX {
                    let Some(next) = graph.edges[*at].iter().find(|next| is_inside(**next)) else { continue };
                    let (object, next_object) = (self.objects[*at], self.objects[*next]);
                    add(*at, *next, &|| {
                        format!("{object} → {next_object} → … → {object} wait for each other")
                    });
                    continue;
                }
                circles += 1;
                let circle = walk.around(&graph, *at, is_inside);
                let names: Vec<&ObjectRef> = circle.iter().map(|at| self.objects[*at]).collect();
                for (step, at) in circle.iter().enumerate() {
                    let place = knot.binary_search(at).ok().and_then(|place| is_reported.get_mut(place));
                    // On a circle that was reported before: once is enough.
                    if place.is_some_and(|shown| std::mem::replace(shown, true)) {
                        continue;
                    }
                    let next = circle[(step + 1) % circle.len()];
                    add(*at, next, &|| format!("{} wait for each other", chain(&names, step)));
                }
            }
        }
        found
    }
}

/// Edges by position.
struct Graph<'w> {
    edges: Vec<&'w [usize]>,
}

impl Graph<'_> {
    /// Sets of positions that all lead to each other, in order, as far as `starts` lead to them.
    fn knots(&self, starts: impl Iterator<Item = usize>) -> Vec<Vec<usize>> {
        let count = self.edges.len();
        // In which order each was come to, and the earliest of the open ones that it leads back to.
        let (mut number, mut low) = (vec![NONE; count], vec![NONE; count]);
        let (mut open, mut is_open) = (Vec::new(), vec![false; count]);
        let (mut next, mut found) = (0, Vec::new());
        for start in starts {
            if number[start] != NONE {
                continue;
            }
            let mut way = vec![(start, 0_usize)];
            while let Some((at, edge)) = way.last_mut() {
                let at = *at;
                if number[at] == NONE {
                    (number[at], low[at]) = (next, next);
                    next += 1;
                    open.push(at);
                    is_open[at] = true;
                }
                if let Some(target) = self.edges[at].get(*edge).copied() {
                    *edge += 1;
                    if number[target] == NONE {
                        way.push((target, 0));
                    } else if is_open[target] {
                        low[at] = low[at].min(number[target]);
                    }
                    continue;
                }
                way.pop();
                if let Some((before, _)) = way.last() {
                    low[*before] = low[*before].min(low[at]);
                }
                if low[at] != number[at] {
                    continue;
                }
                let first = open.iter().rposition(|one| *one == at).unwrap_or_default();
                let mut knot = open.split_off(first);
                knot.iter().for_each(|one| is_open[*one] = false);
                if knot.len() > 1 || self.edges[at].contains(&at) {
                    knot.sort_unstable();
                    found.push(knot);
                }
            }
        }
        found.sort_unstable();
        found
    }
}

/// Room for a walk, kept from one to the next.
struct Walk {
    came_from: Vec<usize>,
}

impl Walk {
    /// A shortest way from `start` back to it, within its knot.
    fn around(&mut self, graph: &Graph<'_>, start: usize, is_inside: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut visited = vec![start];
        let mut queue = VecDeque::from([start]);
        let mut last = start;
        'walk: while let Some(at) = queue.pop_front() {
            for target in graph.edges[at].iter().copied().filter(|target| is_inside(*target)) {
                if target == start {
                    last = at;
                    break 'walk;
                }
                if self.came_from[target] == NONE {
                    self.came_from[target] = at;
                    visited.push(target);
                    queue.push_back(target);
                }
            }
        }
        let mut circle = vec![last];
        while last != start {
            last = self.came_from[last];
            circle.push(last);
        }
        circle.reverse();
        visited.into_iter().for_each(|at| self.came_from[at] = NONE);
        circle
    }
}

/// `A → B → A`, from the object at `at`.
fn chain(cycle: &[&ObjectRef], at: usize) -> String {
    let around = cycle.iter().cycle().skip(at).take(cycle.len());
    let mut names: Vec<String> = around.take(SHOWN_MAX).map(ToString::to_string).collect();
    if cycle.len() > SHOWN_MAX {
        names.push(format!("… {} more …", cycle.len() - SHOWN_MAX));
    }
    names.push(cycle[at].to_string());
    names.join(" → ")
}

/// The item of `dependsOn` that names `object`.
fn path(claim: &Claim<'_>, object: &ObjectRef) -> Vec<OwnedStep> {
    let metadata = &claim.document.object.metadata;
    let names = |text: &String| parse_reference(text, &metadata.namespace).is_ok_and(|one| one == *object);
    let index = metadata.depends_on.iter().position(names).unwrap_or_default();
    FieldAt::dependency(index).path()
}
