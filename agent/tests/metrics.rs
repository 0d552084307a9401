//! Checks the agent's section of docs/metrics.md. `MINIK8S_UPDATE=1` rewrites it.

use schema::testing::{check_metrics_page, is_common_family};

#[test]
fn the_page_of_metrics_has_what_the_agent_exports() {
    // Those of both daemons have a section of their own.
    let own = agent::metrics::families().into_iter().filter(|info| !is_common_family(info));
    check_metrics_page("agent", own);
}
