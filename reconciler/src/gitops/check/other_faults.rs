//! Further problems of files that can't be applied anyway. Pure.
//!
//! Treats every file as if it could be applied, so that an author who fixes one mistake does not find the next one
//! only then. Winners and quarantined files are decided before: nothing here puts a file into quarantine.

use std::collections::BTreeSet;

use schema::violation::rules;

use super::after_apply::{Fault, Scene};
use super::cycles::{CycleMember, DependencyGraph};
use super::links::{Holder, holders, owner};
use super::{Declaration, cycles};
use crate::gitops::diff::dotted;

/// Object, rule and field of each violation reported before.
type ReportedViolations = BTreeSet<(String, String, String)>;

/// Reports clashes and cycles of quarantined files.
pub(super) fn report(scene: &mut Scene<'_>) {
    if !scene.declarations.iter().any(|declared| scene.is_quarantined(declared)) {
        return;
    }
    let reported = reported(scene);
    clashes(scene, &reported);
    circles(scene, &reported);
}

fn reported(scene: &Scene<'_>) -> ReportedViolations {
    let field = |message: &str| message.split(": ").next().unwrap_or_default().to_owned();
    let all = scene.violations().filter_map(|violation| {
        Some((violation.object.clone()?, violation.rule.clone(), field(&violation.message)))
    });
    all.collect()
}

fn clashes<'a>(scene: &mut Scene<'a>, reported: &ReportedViolations) {
    for (exclusive, holders) in holders(scene, |_| true, |object| scene.intended(object)) {
        let place =
            |holder: &Holder<'a>| holder.declared.map(|declared| (declared.file, declared.document.line));
        // A holder that is not in quarantine has it by an earlier decision.
        let falls =
            |holder: &Holder<'a>| holder.declared.is_some_and(|declared| scene.is_quarantined(declared));
        let rank =
            |holder: &Holder<'a>| (holder.declared.is_some(), falls(holder), !holder.has_it, place(holder));
        let Some(winner) = holders.iter().min_by_key(|holder| rank(holder)) else { continue };
        let clashes = |holder: &&Holder<'a>| {
            holder.object != winner.object && !(holder.used.shares && winner.used.shares) && falls(holder)
        };
        let losers: Vec<&Holder<'a>> = holders.iter().filter(clashes).collect();
        if losers.is_empty() {
            continue;
        }
        let message = format!("the {exclusive} belongs to {}", owner(scene, winner.object, winner.declared));
        for loser in losers {
            let (rule, help) = (exclusive.rule(), exclusive.help(loser.used.shares));
            let fault = Fault { rule, path: &loser.used.path, message: &message, help };
            blame(scene, loser.declared, &fault, reported);
        }
    }
}

fn circles(scene: &mut Scene<'_>, reported: &ReportedViolations) {
    let waits = DependencyGraph::from_scene(scene);
    for CycleMember { declared, path, message } in waits.circles(scene, |object| scene.intended(object), None)
    {
        let fault =
            Fault { rule: &rules::DEPENDENCY_CYCLE, path: &path, message: &message, help: cycles::HELP };
        blame(scene, Some(declared), &fault, reported);
    }
}

fn blame<'a>(
    scene: &mut Scene<'a>,
    declared: Option<&Declaration<'a>>,
    fault: &Fault<'_>,
    reported: &ReportedViolations,
) {
    let Some(declared) = declared.filter(|declared| scene.is_quarantined(declared)) else {
        return;
    };
    let object = declared.document.reference.to_string();
    if !reported.contains(&(object, fault.rule.id.to_owned(), dotted(fault.path))) {
        scene.blame(declared, fault);
    }
}
