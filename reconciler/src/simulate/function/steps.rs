//! Runs only the decider, on the observations of each step.

use super::Entry;
use super::trace::Step;
use crate::controllers::functions::decider::{Config, Observation, ScalerMemory, decide};
use crate::simulate::trace::{TraceError, number, time};

/// Returns a decision for each step. `ready` is the number of ready replicas when the decider is created, and at
/// steps without one; if `None`, the first step with data creates the decider.
pub(super) fn follow_steps(
    mut config: Config,
    ready: Option<u32>,
    steps: &[Step],
) -> Result<Vec<Entry>, TraceError> {
    let begin = steps.first().map(|step| time(step.at)).unwrap_or_default();
    let mut memory = ready.map(|ready| ScalerMemory::at_first(ready, begin)).unwrap_or_default();
    let mut last_known = ready;
    let mut entries = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        step.check(index)?;
        if let Some(changes) = &step.config {
            changes.apply(&format!("steps[{index}].config"), &mut config)?;
        }
        let ready = step.ready.unwrap_or(last_known);
        last_known = ready.or(last_known);
        let (stable, panic) = (step.stable_concurrency, step.panic_concurrency);
        let (decision, after) = decide(&config, &memory, Observation { ready, stable, panic }, time(step.at));
        entries.push(Entry {
            at: number(step.at),
            desired: decision.map(|decision| decision.desired).unwrap_or_default(),
            valid: decision.is_some(),
            panic: after.is_panic(),
            excess_burst_capacity: decision.map(|it| it.excess_burst_capacity).unwrap_or_default(),
            ready,
            averages: (stable, panic),
        });
        memory = after;
    }
    Ok(entries)
}
