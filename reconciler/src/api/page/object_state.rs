//! Parts about the state of an object or a node: its conditions, and its rollout step by step.

use askama::Template;
use jiff::Timestamp;
use schema::condition::{Condition, ConditionStatus};
use schema::kinds::autoscaler::SCALING_DISABLED;

use super::parts::{Part, TemplateHelpers};
use crate::view::{self, RolloutStage, RolloutState, RolloutView, StageState, TemplateRole};

/// Conditions that are bad news if they hold.
const BAD_IF_TRUE: [&str; 2] = ["Evicted", "ReplicaFailure"];
/// Condition of an autoscaler at one of its bounds: no failure, but a reason that it does not scale further.
const LIMITED: &str = "ScalingLimited";

/// Renders the part with the conditions; empty without any.
pub(super) fn conditions(conditions: Vec<Condition>, now: Timestamp) -> Part {
    Part::new("conditions", &ConditionsTemplate { conditions, now })
}

/// Renders the part with the rollout; empty without one.
pub(super) fn rollout(rollout: Option<RolloutView>, now: Timestamp) -> Part {
    Part::new("rollout", &RolloutTemplate { rollout, now })
}

#[derive(Template)]
#[template(path = "conditions.html")]
struct ConditionsTemplate {
    conditions: Vec<Condition>,
    now: Timestamp,
}

impl ConditionsTemplate {
    fn word(&self, condition: &Condition) -> &'static str {
        match condition.status {
            ConditionStatus::True => "True",
            ConditionStatus::False => "False",
            ConditionStatus::Unknown => "Unknown",
        }
    }

    /// Class of the mark of a condition, by what its status means.
    fn mark_of(&self, condition: &Condition) -> &'static str {
        let kind = condition.kind.as_str();
        let is_good = match condition.status {
            ConditionStatus::Unknown => return "busy",
            ConditionStatus::True if kind == LIMITED => return "busy",
            // `replicas: 0` in Git turns an autoscaler off.
            ConditionStatus::False if condition.reason == SCALING_DISABLED => return "none",
            ConditionStatus::True => !BAD_IF_TRUE.contains(&kind),
            ConditionStatus::False => kind == LIMITED || BAD_IF_TRUE.contains(&kind),
        };
        if is_good { "good" } else { "bad" }
    }

    fn age(&self, condition: &Condition) -> String {
        view::age(condition.last_transition_time, self.now)
    }
}

#[derive(Template)]
#[template(path = "rollout.html")]
struct RolloutTemplate {
    rollout: Option<RolloutView>,
    now: Timestamp,
}

impl RolloutTemplate {
    fn word(&self, shown: &RolloutView) -> &'static str {
        match shown.state {
            RolloutState::Complete => "Complete",
            RolloutState::UnderWay => "Under way",
            RolloutState::Paused => "Paused",
            RolloutState::Failed => "Failed",
            RolloutState::RolledBack => "Rolled back",
            RolloutState::ScaledToZero => "Scaled to 0",
        }
    }

    fn mark_of(&self, shown: &RolloutView) -> &'static str {
        match shown.state {
            RolloutState::Complete => "good",
            RolloutState::UnderWay | RolloutState::Paused => "busy",
            RolloutState::Failed | RolloutState::RolledBack => "bad",
            RolloutState::ScaledToZero => "none",
        }
    }

    fn word_of_stage(&self, stage: &RolloutStage) -> &'static str {
        match stage.state {
            StageState::Done => "done",
            StageState::Current => "now",
            StageState::Ahead => "later",
        }
    }

    fn mark_of_stage(&self, stage: &RolloutStage) -> &'static str {
        match stage.state {
            StageState::Done => "good",
            StageState::Current => "busy",
            StageState::Ahead => "none",
        }
    }

    fn role(&self, shown: &RolloutView, role: &TemplateRole) -> &'static str {
        match role {
            TemplateRole::Wanted
                if matches!(shown.state, RolloutState::Failed | RolloutState::RolledBack) =>
            {
                "given up"
            }
            TemplateRole::Wanted => "new",
            TemplateRole::LastGood => "last good",
            TemplateRole::Former => "former",
        }
    }

    fn age(&self, at: &Timestamp) -> String {
        view::age(*at, self.now)
    }
}

#[cfg(test)]
mod tests {
    use schema::kinds::replica_set::ReplicaSetStatus;
    use schema::records::RolloutStep;

    use super::*;
    use crate::view::TemplatePods;
    use crate::view::testing::*;

    #[test]
    fn a_condition_is_marked_by_what_it_means() {
        use ConditionStatus::{False, True, Unknown};
        let template = ConditionsTemplate { conditions: Vec::new(), now: at(0) };
        let mark = |kind: &str, status: ConditionStatus, reason: &str| {
            let condition = condition(kind, status, at(0));
            template.mark_of(&Condition { reason: reason.to_owned(), ..condition })
        };
        assert_eq!([mark("Ready", True, ""), mark("Ready", False, "")], ["good", "bad"]);
        assert_eq!([mark("Evicted", True, ""), mark("Ready", Unknown, "")], ["bad", "busy"]);
        assert_eq!([mark("ScalingLimited", True, ""), mark("ScalingLimited", False, "")], ["busy", "good"]);
        assert_eq!(mark("ScalingActive", False, SCALING_DISABLED), "none");
    }

    #[test]
    fn conditions_are_a_table_with_what_others_wrote_as_text() {
        assert_eq!(conditions(Vec::new(), at(0)).html, "");
        let hostile = Condition {
            reason: "<b>".to_owned(),
            message: "\u{1b}[31m".to_owned(),
            ..condition("Ready", false, at(40))
        };
        let html = conditions(vec![hostile], at(100)).html;
        for part in ["<td class=\"name\">Ready</td>", "state bad", "False", "60s"] {
            assert!(html.contains(part), "no {part} in {html}");
        }
        assert!(!html.contains("<b>") && !html.contains('\u{1b}'), "{html}");
    }

    #[test]
    fn a_rollout_shows_stages_counts_templates_and_events() {
        assert_eq!(rollout(None, at(0)).html, "");
        let shown = RolloutView {
            state: RolloutState::RolledBack,
            why: "no <such> image".to_owned(),
            waits_for: "a commit".to_owned(),
            status: ReplicaSetStatus { desired_replicas: 3, replicas: 4, ..ReplicaSetStatus::default() },
            stages: vec![RolloutStage {
                state: StageState::Current,
                name: "start pods".to_owned(),
                note: "1 of 3".to_owned(),
            }],
            templates: vec![TemplatePods {
                role: TemplateRole::LastGood,
                template: "0a1b2c3d".to_owned(),
                commit: "2222222".to_owned(),
                pods: 1,
                ready: 0,
            }],
            started_at: at(0),
            progressed_at: at(60),
            fails_at: Some(at(180)),
            steps: vec![RolloutStep { at: at(10), message: "rollout began".to_owned() }],
        };
        let html = rollout(Some(shown), at(100)).html;
        for part in [
            "<span class=\"state bad\">Rolled back</span>",
            "a commit",
            "3 wanted, 4 in total",
            "100s ago, last progress 40s ago",
            "00:03:00 UTC",
            "<span class=\"state busy\">start pods</span> <span class=\"quiet\">now, 1 of 3",
            "last good",
            "0a1b2c3d",
            "90s",
            "rollout began",
        ] {
            assert!(html.contains(part), "no {part} in {html}");
        }
        assert!(!html.contains("<such>"), "{html}");
    }
}
