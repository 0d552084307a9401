//! What else is wrong with files that can't be applied anyway. Pure.
//!
//! Takes all files as if each could be applied, so that nobody who mends one mistake is reported the next one
//! only then. Who wins and who falls is decided before: nothing here puts a file into quarantine.

use std::collections::{BTreeMap, BTreeSet};

use schema::kinds::exclusive::{Exclusive, ExclusiveUse};
use schema::meta::ObjectRef;
use schema::violation::rules;

use super::super::diff::dotted;
use super::Claim;
use super::cycles::{self, Waiting, Waits};
use super::links::owner;
use super::scene::{Fault, Present, Scene};

/// Object, rule and field of what has been reported.
type Reported = BTreeSet<(String, String, String)>;

/// Someone who would have, or has, what only one can have.
#[derive(Debug)]
struct Holder<'a> {
    object: &'a ObjectRef,
    /// None: as the object is live.
    claim: Option<&'a Claim<'a>>,
    has_it: bool,
    wish: ExclusiveUse,
}

/// Tells it.
pub(super) fn tell(scene: &mut Scene<'_>) {
    if !scene.claims.iter().any(|claim| scene.is_quarantined(claim)) {
        return;
    }
    let reported = reported(scene);
    clashes(scene, &reported);
    circles(scene, &reported);
}

fn reported(scene: &Scene<'_>) -> Reported {
    let field = |message: &str| message.split(": ").next().unwrap_or_default().to_owned();
    let all = scene.violations().filter_map(|violation| {
        Some((violation.object.clone()?, violation.rule.clone(), field(&violation.message)))
    });
    all.collect()
}

fn clashes<'a>(scene: &mut Scene<'a>, reported: &Reported) {
    for (exclusive, holders) in holders(scene) {
        let place = |holder: &Holder<'a>| holder.claim.map(|claim| (claim.file, claim.document.line));
        // Whoever is in no quarantine has it by what was decided.
        let falls = |holder: &Holder<'a>| holder.claim.is_some_and(|claim| scene.is_quarantined(claim));
        let rank =
            |holder: &Holder<'a>| (holder.claim.is_some(), falls(holder), !holder.has_it, place(holder));
        let Some(winner) = holders.iter().min_by_key(|holder| rank(holder)) else { continue };
        let clashes = |holder: &&Holder<'a>| {
            holder.object != winner.object && !(holder.wish.shares && winner.wish.shares) && falls(holder)
        };
        let losers: Vec<&Holder<'a>> = holders.iter().filter(clashes).collect();
        if losers.is_empty() {
            continue;
        }
        let message = format!("the {exclusive} belongs to {}", owner(scene, winner.object, winner.claim));
        for loser in losers {
            let (rule, help) = (exclusive.rule(), exclusive.help(loser.wish.shares));
            let fault = Fault { rule, path: &loser.wish.path, message: &message, help };
            blame(scene, loser.claim, &fault, reported);
        }
    }
}

fn holders<'a>(scene: &Scene<'a>) -> BTreeMap<Exclusive, Vec<Holder<'a>>> {
    let mut found: BTreeMap<Exclusive, Vec<Holder<'a>>> = BTreeMap::new();
    for claim in scene.claims {
        let (metadata, resource) = (&claim.document.object.metadata, &claim.document.object.resource);
        let wishes = resource.exclusives(metadata);
        let live = claim.live.filter(|_| !wishes.is_empty());
        let live = live.map(|live| live.value.resource.exclusives(&live.value.metadata));
        for wish in wishes {
            let has_it = live.iter().flatten().any(|live| live.what == wish.what);
            let what = wish.what.clone();
            let holder = Holder { object: &claim.document.reference, claim: Some(claim), has_it, wish };
            found.entry(what).or_default().push(holder);
        }
    }
    for (object, live) in scene.live {
        let has = live.value.resource.exclusives(&live.value.metadata);
        if !has.is_empty() && matches!(scene.meant(object), Some(Present::Stays(_))) {
            for wish in has {
                let what = wish.what.clone();
                found.entry(what).or_default().push(Holder { object, claim: None, has_it: true, wish });
            }
        }
    }
    found
}

fn circles(scene: &mut Scene<'_>, reported: &Reported) {
    let waits = Waits::of(scene);
    for Waiting { claim, path, message } in waits.circles(scene, |object| scene.meant(object), None) {
        let fault =
            Fault { rule: &rules::DEPENDENCY_CYCLE, path: &path, message: &message, help: cycles::HELP };
        blame(scene, Some(claim), &fault, reported);
    }
}

fn blame<'a>(scene: &mut Scene<'a>, claim: Option<&Claim<'a>>, fault: &Fault<'_>, reported: &Reported) {
    let Some(claim) = claim.filter(|claim| scene.is_quarantined(claim)) else { return };
    let object = claim.document.reference.to_string();
    if !reported.contains(&(object, fault.rule.id.to_owned(), dotted(fault.path))) {
        scene.blame(claim, fault);
    }
}
