//! Groups the steps of a plan that may be carried out concurrently. Pure.

use jiff::Timestamp;
use schema::control;

use super::active_runs::Heads;
use super::plan::{RunStep, RunSteps};

/// Maximum number of concurrent steps: etcd answers many in the time of one.
const CONCURRENT_STEPS_MAX: usize = 32;

/// Steps of a plan in the order of execution: batch after batch, the steps of each concurrently.
#[derive(Debug, Default)]
pub struct Batches {
    pub(super) batches: Vec<Vec<RunStep>>,
    /// Set if there are more runs to forget.
    pub(super) has_more_to_forget: bool,
    again_at: Option<Timestamp>,
}

impl control::Plan for Batches {
    fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    fn replan_at(&self) -> Option<Timestamp> {
        self.again_at
    }
}

impl Batches {
    /// Groups the steps. A run that may have ended a reconciler is resumed alone, so that no other run is blamed
    /// for it. Runs that take their definition along are forgotten after all others that have it.
    pub(super) fn of(plan: RunSteps, heads: &Heads) -> Self {
        let RunSteps { steps, has_more_to_forget, again_at } = plan;
        let (mut others, mut alone, mut forgets, mut last) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for step in steps {
            match &step {
                RunStep::Resume { id, .. } if heads.get(id).is_some_and(|kept| kept.head.tries.is_some()) => {
                    alone.push(vec![step]);
                }
                RunStep::Forget { definition: None, .. } => forgets.push(step),
                RunStep::Forget { definition: Some(_), .. } => last.push(step),
                _ => others.push(step),
            }
        }
        let groups = [others].into_iter().chain(alone).chain([forgets, last]);
        Self { batches: groups.flat_map(split_into_batches).collect(), has_more_to_forget, again_at }
    }
}

fn split_into_batches(mut steps: Vec<RunStep>) -> Vec<Vec<RunStep>> {
    let mut batches = Vec::new();
    while !steps.is_empty() {
        let rest = steps.split_off(steps.len().min(CONCURRENT_STEPS_MAX));
        batches.push(std::mem::replace(&mut steps, rest));
    }
    batches
}
