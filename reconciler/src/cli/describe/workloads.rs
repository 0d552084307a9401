//! Page of an autoscaler: metrics, behavior, and the last decision with its reason. Parts of the pages of workloads and
//! disruption budgets.

use jiff::Timestamp;
use schema::kinds::autoscaler::{Behavior, PolicyType, ScalingRules, SelectPolicy};
use schema::kinds::replica_set::IntOrPercent;
use schema::snapshot::BudgetStatus;

use super::page::{Page, pairs};
use crate::cli::error::CliError;
use crate::cli::output::{Detail, Screen, column, cuttable};
use crate::view::{AutoscalerDetail, AutoscalerView, BudgetView, ObjectDetail, WorkloadView, age};

impl Detail for AutoscalerDetail {
    type Row = AutoscalerView;
    const PLURAL: &str = "autoscalers";

    fn row(&self) -> &AutoscalerView {
        &self.row
    }

    fn page(&self, screen: Screen, now: Timestamp) -> Result<String, CliError> {
        Ok(autoscaler_page(self, screen, now))
    }
}

fn autoscaler_page(hpa: &AutoscalerDetail, screen: Screen, now: Timestamp) -> String {
    let mut page = Page::default();
    let row = &hpa.row;
    page.field(0, "Name", &row.name);
    page.field(0, "Namespace", &row.namespace);
    page.field(0, "Reference", &row.reference);
    page.state("Health", &row.health, screen);
    page.field(0, "Note", &row.note);
    page.fields(0, "Metrics", row.targets.iter().cloned());
    page.field(0, "Range", &format!("{} to {} pods", row.min_replicas, row.max_replicas));
    let desired = row.desired_replicas.map(|desired| format!(", {desired} wanted")).unwrap_or_default();
    page.field(0, "Replicas", &format!("{} now{desired}", row.replicas));
    let last = match hpa.last_scale_time {
        Some(_) => format!("{} ago, {}", hpa.last_scale_age, hpa.last_scale_reason),
        None => "never".to_owned(),
    };
    page.field(0, "Last scale", &last);
    page.fields(0, "Behavior", behavior(hpa.behavior.as_ref()));
    page.field(0, "Age", &row.age);
    page.field(0, "Set by", &hpa.set_by);
    page.field(0, "Commit", &hpa.commit);
    page.fields(0, "Labels", pairs(&row.labels));
    page.fields(0, "Annotations", pairs(&hpa.annotations));
    page.conditions(&hpa.conditions, screen, now);
    page.events(&hpa.events, screen, now);
    page.text()
}

fn behavior(behavior: Option<&Behavior>) -> Vec<String> {
    let Some(Behavior { scale_up, scale_down }) = behavior else {
        return vec![
            "up: at most double or 4 more every 15 s; down: after 300 s of lower recommendations".to_owned(),
        ];
    };
    [("up", scale_up), ("down", scale_down)]
        .into_iter()
        .filter_map(|(direction, rules)| Some(format!("{direction}: {}", in_words(rules.as_ref()?))))
        .collect()
}

fn in_words(rules: &ScalingRules) -> String {
    let select = rules.select_policy.unwrap_or_default();
    if select == SelectPolicy::Disabled {
        return "never".to_owned();
    }
    let policies = rules.policies.iter().map(|policy| {
        let unit = match policy.kind {
            PolicyType::Pods => " pods",
            PolicyType::Percent => "%",
        };
        format!("{}{unit} per {} s", policy.value, policy.period_seconds)
    });
    let policies = policies.collect::<Vec<_>>().join(", ");
    let which = match (rules.policies.len(), select) {
        (0 | 1, _) => String::new(),
        (_, SelectPolicy::Min) => "the lowest of ".to_owned(),
        (_, SelectPolicy::Max | SelectPolicy::Disabled) => "the highest of ".to_owned(),
    };
    let window = rules.stabilization_window_seconds.unwrap_or_default();
    let tolerance = rules.tolerance.map(|share| format!("; tolerance {share}")).unwrap_or_default();
    format!("{which}{policies}; window {window} s{tolerance}")
}

// Pods and rollout on the page of a workload.

/// Adds the status of a workload.
pub(in crate::cli) fn sections(page: &mut Page, object: &ObjectDetail, (screen, now): (Screen, Timestamp)) {
    let workload = &WorkloadView::from_status(&object.row.status);
    let status = &workload.status;
    page.field(
        0,
        "Replicas",
        &format!(
            "{} wanted, {} total, {} up to date, {} ready, {} available",
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
    page.table("Steps:", &columns, &steps, screen);
}

/// Adds the numbers of a disruption budget.
pub(in crate::cli) fn budget(page: &mut Page, object: &ObjectDetail, _: (Screen, Timestamp)) {
    let BudgetView { min_available, max_unavailable, status } = BudgetView::from_status(&object.row.status);
    let named = |name: &str, amount: IntOrPercent| format!("{name} {amount}");
    let budget = min_available.map(|amount| named("minAvailable", amount));
    let budget = budget.or_else(|| max_unavailable.map(|amount| named("maxUnavailable", amount)));
    page.field(0, "Budget", &budget.unwrap_or_default());
    let BudgetStatus { current_healthy, desired_healthy, expected_pods, disruptions_allowed, .. } = status;
    let healthy =
        format!("{current_healthy} currently, {desired_healthy} desired, of {expected_pods} expected");
    page.field(0, "Healthy", &healthy);
    page.field(0, "Disruptions", &format!("{disruptions_allowed} allowed"));
    page.field(0, "Remark", status.trouble());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_by_what_it_scales_and_why_it_last_did() {
        let hpa: AutoscalerDetail = serde_json::from_value(serde_json::json!({
            "namespace": "default", "name": "web", "reference": "ReplicaSet/web", "targets": ["cpu: 63%/50%"],
            "minReplicas": 1, "maxReplicas": 4, "replicas": 2, "desiredReplicas": 4, "health": "Healthy", "note": "",
            "age": "5m", "labels": {}, "lastScaleTime": "2026-01-01T00:00:00Z", "lastScaleAge": "12s",
            "lastScaleReason": "2 to 4: cpu resource utilization (percentage of request) above target",
            "behavior": {"scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [
                {"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15}]},
                "scaleDown": {"selectPolicy": "Disabled"}},
            "conditions": [{"type": "AbleToScale", "status": "True", "reason": "SucceededRescale", "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "setBy": "apps/web.yaml:1 of source main", "commit": "2222 by Ada", "annotations": {}, "events": [],
        }))
        .unwrap();
        let now = "2026-01-01T00:00:12Z".parse().unwrap();
        let page = autoscaler_page(&hpa, Screen { width: None, color: false }, now);
        insta::assert_snapshot!(page, @r"
        Name:          web
        Namespace:     default
        Reference:     ReplicaSet/web
        Health:        Healthy
        Metrics:       cpu: 63%/50%
        Range:         1 to 4 pods
        Replicas:      2 now, 4 wanted
        Last scale:    12s ago, 2 to 4: cpu resource utilization (percentage of request) above target
        Behavior:      up: the highest of 4 pods per 15 s, 100% per 15 s; window 0 s
                       down: never
        Age:           5m
        Set by:        apps/web.yaml:1 of source main
        Commit:        2222 by Ada
        Conditions:
          TYPE          STATUS   AGE   REASON             MESSAGE
          AbleToScale   True     12s   SucceededRescale   m
        Events:
          none in the last hour
        ");
    }
}
