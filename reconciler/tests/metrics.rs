//! Checks the reconciler's sections of docs/metrics.md. `MINIK8S_UPDATE=1` rewrites them.

use reconciler::metrics::METRICS;
use reconciler::view::{own_infos, state_infos};
use schema::metrics::{FamilyInfo, common_families};
use schema::testing::{check_metrics_page, is_common_family};

#[test]
fn the_page_of_metrics_has_what_the_reconciler_exports() {
    let own = [METRICS.infos(), &own_infos()[..]].concat();
    let (common, own): (Vec<&FamilyInfo>, Vec<&FamilyInfo>) =
        own.into_iter().chain(common_families()).partition(|info| is_common_family(info));
    check_metrics_page("both", common);
    check_metrics_page("reconciler", own);
    check_metrics_page("leader", state_infos());
}
