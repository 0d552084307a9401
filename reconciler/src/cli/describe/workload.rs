//! Pods and rollout on the page of a workload.

use jiff::Timestamp;

use super::page::{Page, indented};
use crate::cli::print::output::{Layout, Screen, column, cuttable, plain};
use crate::view::{WorkloadView, age};

pub(super) fn sections(page: &mut Page, workload: &WorkloadView, screen: Screen, now: Timestamp) {
    let status = &workload.status;
    page.field(
        0,
        "Replicas",
        &format!(
            "{} wanted, {} there, {} up to date, {} ready, {} available",
            status.desired_replicas,
            status.replicas,
            status.updated_replicas,
            status.ready_replicas,
            status.available_replicas
        ),
    );
    page.field(0, "Template", &workload.wanted_template);
    page.field(0, "Last good", workload.good_template.as_deref().unwrap_or_default());
    page.field(0, "Rollout", &workload.rollout());
    let columns = [column("AGE"), cuttable("STEP")];
    let steps = workload.steps.iter().map(|step| vec![age(step.at, now), step.message.clone()]);
    let steps: Vec<Vec<String>> = steps.collect();
    if !steps.is_empty() {
        page.block("Steps:", &plain(&columns, &steps, indented(screen), &mut Layout::default()));
    }
}
