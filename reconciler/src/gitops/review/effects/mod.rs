//! Effects of a change on what runs, in words. One small function per kind, which
//! the caller gives. Pure.
//!
//! Reads an object before and after, decides its effects. They keep the order of the functions, so the same change
//! always reads the same.

use schema::kinds::Kind;

use super::change::{Action, Field};
use crate::gitops::plan::{Step, StepReason};

mod case;
mod effect;
pub(crate) mod other;
pub(crate) mod service;
pub(crate) mod workload;

pub(crate) use case::EffectCase;
pub use case::NodeRoom;
pub(super) use case::PlannedObjects;
pub use effect::Effect;

/// Computes the effects of a change of an object of some kind.
pub(crate) type EffectsOf = fn(&EffectCase<'_>) -> Vec<Effect>;

/// Returns the effects of one step, except those of all steps together.
pub(super) fn of(
    planned: &PlannedObjects<'_>,
    step: &Step,
    fields: &[Field],
    effects_of: fn(Kind) -> EffectsOf,
) -> Vec<Effect> {
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
    let mut effects = effects_of(step.object.kind)(&case);
    if effects.is_empty() && case.action == Action::Update {
        effects.push(Effect::InPlace);
    }
    effects
}
