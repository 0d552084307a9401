//! Runs that the commits of a revision trigger, and their input. Pure.

use std::collections::BTreeMap;

use schema::kinds::trigger::{OnCommit, Trigger, TriggerEvent};
use schema::meta::ObjectRef;
use schema::object::Object;
use schema::snapshot::Table;
use serde_json::{Value as Json, json};

use crate::git::{Changes, CommitMeta, PathPatterns};
use crate::gitops::plan::Step;
use crate::workflows::{Origin, RunId};

/// Limit on runs started by one revision; the newest commits win.
const STARTS_MAX: usize = 256;
/// Limit on paths in the input of a run; the others are counted.
const PATHS_SHOWN_MAX: usize = 1_000;
/// Limit on the bytes of those paths as JSON: an input has 256 KiB at most.
const PATHS_SHOWN_MAX_BYTES: usize = 192 * 1024;

/// A run to request.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::gitops) struct RunStart {
    pub(in crate::gitops) run: RunId,
    pub(in crate::gitops) origin: Origin,
    pub(in crate::gitops) input: Json,
}

/// Returns the commit triggers of a source's objects, as they are once the steps are done.
pub(in crate::gitops) fn commit_triggers<'a>(
    source: &str,
    live: &'a Table<ObjectRef, Object>,
    steps: &'a [Step],
) -> Vec<(ObjectRef, &'a Trigger)> {
    let live = live.values().map(|found| &found.value);
    let of_source = live.filter(|object| object.provenance.source == source);
    let mut objects: BTreeMap<ObjectRef, &Object> = of_source
        .filter(|object| !object.resource.triggers().is_empty())
        .map(|o| (o.reference(), o))
        .collect();
    for step in steps {
        match step.object_after() {
            Some(object) => _ = objects.insert(step.object.clone(), object),
            None => _ = objects.remove(&step.object),
        }
    }
    let all = objects
        .into_iter()
        .flat_map(|(id, object)| object.resource.triggers().iter().map(move |trigger| (id.clone(), trigger)));
    all.filter(|(_, trigger)| matches!(trigger.event(), Some(TriggerEvent::Commit(_)))).collect()
}

/// Returns the runs that these commits start, oldest first.
pub(in crate::gitops) fn starts(
    triggers: &[(ObjectRef, &Trigger)],
    commits: &[(CommitMeta, Changes)],
) -> Vec<RunStart> {
    let patterns: Vec<_> = triggers.iter().map(|(_, trigger)| patterns(trigger.on_commit.as_ref())).collect();
    let mut starts = Vec::new();
    for (meta, changes) in commits {
        for ((object, trigger), patterns) in triggers.iter().zip(&patterns) {
            let fits = |path: &&String| patterns.as_ref().is_none_or(|patterns| patterns.selects(path));
            let paths: Vec<&String> = changes.paths.iter().filter(fits).collect();
            if patterns.is_none() || !paths.is_empty() {
                starts.push(start((object, trigger), meta, &paths));
            }
        }
    }
    starts.split_off(starts.len().saturating_sub(STARTS_MAX))
}

/// Compiles the path patterns; `None` matches every commit, even one without changes.
fn patterns(commits: Option<&OnCommit>) -> Option<PathPatterns> {
    let paths = commits.map(|commits| &commits.paths).filter(|paths| !paths.is_empty())?;
    Some(PathPatterns::new(paths))
}

fn start((object, trigger): (&ObjectRef, &Trigger), meta: &CommitMeta, paths: &[&String]) -> RunStart {
    let mut bytes = 0;
    let fits = |path: &&&String| {
        bytes += Json::from(path.as_str()).to_string().len() + 1;
        bytes <= PATHS_SHOWN_MAX_BYTES
    };
    let shown: Vec<&&String> = paths.iter().take(PATHS_SHOWN_MAX).take_while(fits).collect();
    let said = || {
        let mut said = json!({
            "trigger": trigger.name,
            "commit": meta.id,
            "author": meta.author,
            "subject": meta.subject,
            "paths": shown,
        });
        if shown.len() < paths.len() {
            said["morePaths"] = json!(paths.len() - shown.len());
        }
        said
    };
    RunStart {
        run: RunId::for_object(object, trigger.run_id(&format!("{:.12}", meta.id))),
        origin: Origin::Commit { trigger: trigger.name.clone(), commit: meta.id.clone() },
        input: trigger.params.clone().unwrap_or_else(said),
    }
}

#[cfg(test)]
mod tests {
    use git2::Oid;
    use schema::kinds::Kind;

    use super::*;

    fn commit(digit: char, paths: &[&str]) -> (CommitMeta, Changes) {
        let id = digit.to_string().repeat(40);
        let meta = CommitMeta {
            id: id.clone(),
            author: "Ada <ada@example.com>".into(),
            subject: "Add data".into(),
            committed_at: jiff::Timestamp::UNIX_EPOCH,
            allows_prune: false,
        };
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        (meta, Changes { commit: Oid::from_str(&id).unwrap(), paths })
    }

    fn trigger(paths: &[&str]) -> Trigger {
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        Trigger {
            name: "data".into(),
            schedule: None,
            on_commit: Some(OnCommit { paths }),
            on_call: None,
            params: None,
        }
    }

    fn order(kind: Kind) -> ObjectRef {
        ObjectRef { kind, namespace: "shop".into(), name: "order".into() }
    }

    #[test]
    fn a_run_for_each_commit_that_changed_what_the_patterns_name() {
        let commits = [
            commit('a', &["README.md", "data/1.csv"]),
            commit('b', &["README.md"]),
            commit('c', &["data/1.tmp.csv", "other/data/2.csv"]),
        ];
        let ids = |patterns: &[&str]| -> Vec<String> {
            let trigger = trigger(patterns);
            let found = starts(&[(order(Kind::Workflow), &trigger)], &commits);
            found.into_iter().map(|start| start.run.to_string()).collect()
        };
        assert_eq!(ids(&["/data/"]), ["shop/order/data.aaaaaaaaaaaa", "shop/order/data.cccccccccccc"]);
        assert_eq!(ids(&["/data/*.csv", "!*.tmp.csv"]), ["shop/order/data.aaaaaaaaaaaa"]);
        assert_eq!(ids(&["*.md"]), ["shop/order/data.aaaaaaaaaaaa", "shop/order/data.bbbbbbbbbbbb"]);
        assert_eq!(ids(&[]).len(), 3);
        assert_eq!(ids(&["/nothing"]).len(), 0);
    }

    #[test]
    fn an_input_has_as_many_paths_as_a_run_takes_and_counts_the_rest() {
        // Written as JSON, each such character has six bytes.
        let long: Vec<String> = (0..100).map(|n| format!("data/{n:03}{}", "\u{1}".repeat(1_000))).collect();
        let commits = [commit('a', &long.iter().map(String::as_str).collect::<Vec<_>>())];
        let found = starts(&[(order(Kind::Function), &trigger(&["/data/"]))], &commits);
        let input = &found[0].input;
        let shown = input["paths"].as_array().unwrap().len();
        assert!(shown > 20 && input["morePaths"] == json!(100 - shown), "{shown}");
        assert!(input.to_string().len() < 200 * 1024);
    }

    #[test]
    fn the_input_says_which_commit_and_what_of_it() {
        let mut on_data = trigger(&["/data/"]);
        let commits = [commit('a', &["README.md", "data/1.csv"])];
        let [found] = &starts(&[(order(Kind::Function), &on_data)], &commits)[..] else { panic!("not one") };
        assert_eq!(found.run.to_string(), "shop/function:order/data.aaaaaaaaaaaa");
        assert_eq!(
            found.input,
            json!({"trigger": "data", "commit": "a".repeat(40), "author": "Ada <ada@example.com>",
                   "subject": "Add data", "paths": ["data/1.csv"]})
        );
        on_data.params = Some(json!({"n": 1}));
        assert_eq!(starts(&[(order(Kind::Function), &on_data)], &commits)[0].input, json!({"n": 1}));
    }
}
