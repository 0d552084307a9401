//! Groups the steps of a plan that may be carried out concurrently. Pure.

use jiff::Timestamp;
use schema::control;

use super::active_runs::Heads;
use super::plan::{Step, Steps};

/// Maximum number of concurrent steps: etcd answers many in the time of one.
const AT_ONCE: usize = 32;

/// Steps of a plan in the order of execution: batch after batch, the steps of each concurrently.
#[derive(Debug, Default)]
pub struct Batches {
    pub(super) batches: Vec<Vec<Step>>,
    /// Set if there are more runs to forget.
    pub(super) has_more_to_forget: bool,
    again_at: Option<Timestamp>,
}

impl control::Plan for Batches {
    fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    fn again_at(&self) -> Option<Timestamp> {
        self.again_at
    }
}

impl Batches {
    /// Groups the steps. A run that may have ended a reconciler is resumed alone, so that no other run is blamed
    /// for it. Runs that take their definition along are forgotten after all others that have it.
    pub(super) fn of(plan: Steps, heads: &Heads) -> Self {
        let Steps { steps, has_more_to_forget, again_at } = plan;
        let (mut others, mut alone, mut forgets, mut last) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for step in steps {
            match &step {
                Step::Resume { id, .. } if heads.get(id).is_some_and(|kept| kept.head.tries.is_some()) => {
                    alone.push(vec![step]);
                }
                Step::Forget { definition: None, .. } => forgets.push(step),
                Step::Forget { definition: Some(_), .. } => last.push(step),
                _ => others.push(step),
            }
        }
        let groups = [others].into_iter().chain(alone).chain([forgets, last]);
        Self { batches: groups.flat_map(at_once).collect(), has_more_to_forget, again_at }
    }
}

fn at_once(mut steps: Vec<Step>) -> Vec<Vec<Step>> {
    let mut batches = Vec::new();
    while !steps.is_empty() {
        let rest = steps.split_off(steps.len().min(AT_ONCE));
        batches.push(std::mem::replace(&mut steps, rest));
    }
    batches
}
