//! Effects of a change on what runs, in words. One small function per kind. Pure.
//!
//! Reads an object before and after, decides its effects. They keep the order of the functions, so the same change
//! always reads the same.

use super::change::{Action, Field};
use crate::gitops::plan::{Step, StepReason};
use crate::kinds;

mod case;
mod effect;
pub(crate) mod other;
pub(crate) mod service;
pub(crate) mod workload;

pub(crate) use case::EffectCase;
pub(super) use case::PlannedObjects;
pub use effect::Effect;

/// Returns the effects of one step, except those of all steps together.
pub(super) fn for_step(planned: &PlannedObjects<'_>, step: &Step, fields: &[Field]) -> Vec<Effect> {
    if matches!(step.why, StepReason::Moved { .. }) {
        return vec![Effect::Moved];
    }
    let (before, after) = (planned.before(&step.object), planned.now(&step.object));
    let case = EffectCase {
        object: &step.object,
        before: before.map(|object| &object.resource),
        after: after.map(|object| &object.resource),
        fields,
        action: Action::from_act(&step.act),
        planned,
    };
    let mut effects = (kinds::descriptor(step.object.kind).effects)(&case);
    if effects.is_empty() && case.action == Action::Update {
        effects.push(Effect::InPlace);
    }
    effects
}
