//! Changes of a commit: all of them on the page of the commit, those of one object on the page of the object.
//!
//! Reads the history and the comparisons with the commits before. Decides which two commits are compared: each is named
//! by the history, none by the address.

use askama::Template;
use schema::meta::ObjectRef;
use schema::object::short_commit;
use schema::records::ChangeCounts;
use schema::violation::{plural, visible};

use super::parts::{Part, RenderContext, TemplateHelpers};
use crate::api::app::ApiState;
use crate::api::comparisons::{
    Answer, CommitPair, Comparison, ComparisonError, ComparisonLine, ObjectChange,
};
use crate::api::kinds::results::escape_html;
use crate::view::{self, RevisionView, short};

/// Said where a commit changed more or less in etcd than in the manifests.
const APPLIED_OTHERWISE: &str = "The numbers above are those of the objects that were written at once: some may have \
                                 waited for others, removals may have been held, or objects differed from Git.";
/// Most bytes of HTML for the changes of a commit, and for the lines above them: 64 KiB with the frame around both.
const CHANGES_MAX_BYTES: usize = 47 * 1024;
const LINES_MAX_BYTES: usize = 16 * 1024;

/// Returns the part with all changes of a commit; empty if the commit is not in the history.
pub(super) async fn plan(app: &ApiState, context: &RenderContext<'_>, source: &str, sequence: u64) -> Part {
    let history = view::history(context.snapshot, Some(source), context.now);
    let template = match history.iter().position(|one| one.revision.sequence == sequence) {
        Some(at) => match pair_of(&history, at) {
            Some(pair) => {
                let answer = app.deps.comparisons.get(&pair).await;
                PlanTemplate::new(&pair, answer, &history[at].revision.counts)
            }
            None => PlanTemplate {
                problem: "the commit before is no longer kept".to_owned(),
                ..PlanTemplate::default()
            },
        },
        None => PlanTemplate::default(),
    };
    Part::new("plan", &template)
}

/// Returns the part with the last change of an object; empty if that commit is no longer in the history, and for a pod
/// of a workload, which no commit names.
pub(super) async fn diff(app: &ApiState, context: &RenderContext<'_>, id: &ObjectRef) -> Part {
    let template = match last_change(context, id) {
        Some((pair, sequence)) => {
            let answer = app.deps.comparisons.get(&pair).await;
            DiffTemplate::new((&pair, sequence), id, answer)
        }
        None => DiffTemplate::default(),
    };
    Part::new("diff", &template)
}

/// Returns the commit at a place of the history, newest first, and the one before it. Parts of a commit that were
/// applied later are a revision of the same commit. `None` if the one before is no longer kept.
fn pair_of(history: &[RevisionView], at: usize) -> Option<CommitPair> {
    let head = &history[at].revision;
    let mut before = history[at + 1..].iter().map(|one| &one.revision.commit);
    let base = before.find(|commit| **commit != head.commit).cloned();
    let is_first = history.last().is_some_and(|oldest| oldest.revision.sequence == 1);
    let pair = CommitPair { source: head.source.clone(), base, head: head.commit.clone() };
    (is_first || pair.base.is_some()).then_some(pair)
}

/// Returns the commit that set an object, with the one before it, and its number in the history.
fn last_change(context: &RenderContext<'_>, id: &ObjectRef) -> Option<(CommitPair, u64)> {
    let set_by = &context.snapshot.objects.get(id)?.value.provenance;
    let history = view::history(context.snapshot, Some(&set_by.source), context.now);
    let at = history.iter().position(|one| one.revision.commit == set_by.commit)?;
    Some((pair_of(&history, at)?, history[at].revision.sequence))
}

#[derive(Default, Template)]
#[template(path = "plan.html")]
struct PlanTemplate {
    /// Numbers of changes, and the commit before.
    headline: String,
    /// Reason why there are no changes to show, or why others were applied.
    problem: String,
    lines: String,
    changes: String,
    /// Sentence on everything that is not shown.
    rest: String,
}

impl PlanTemplate {
    fn new(pair: &CommitPair, answer: Answer, applied: &ChangeCounts) -> Self {
        let comparison = match answer {
            Ok(comparison) => comparison,
            Err(error) => return Self { problem: problem(pair, &error), ..Self::default() },
        };
        let planned = comparison.changes.len() + comparison.left_out;
        let is_other = applied.create + applied.update + applied.replace + applied.delete != planned as u64;
        let (lines, lines_left) = bounded(&comparison.lines, LINES_MAX_BYTES, line_html);
        let (changes, changes_left) = bounded(&comparison.changes, CHANGES_MAX_BYTES, change_html);
        let left = changes_left + comparison.left_out;
        let base = comparison.base.as_deref().map_or("nothing", short);
        Self {
            headline: format!("{}, compared with {base}", comparison.headline),
            problem: if is_other { APPLIED_OTHERWISE.to_owned() } else { String::new() },
            lines,
            changes,
            rest: if left + lines_left > 0 { rest(&comparison, left) } else { String::new() },
        }
    }
}

#[derive(Default, Template)]
#[template(path = "diff.html")]
struct DiffTemplate {
    /// Commit that set the object; the part is empty without it.
    commit: String,
    /// Address of its page.
    address: String,
    problem: String,
    change: String,
    rest: String,
}

impl DiffTemplate {
    fn new((pair, sequence): (&CommitPair, u64), id: &ObjectRef, answer: Answer) -> Self {
        let shown = Self {
            commit: short(&pair.head).to_owned(),
            address: format!("/history/{}/{sequence}", pair.source),
            ..Self::default()
        };
        let comparison = match answer {
            Ok(comparison) => comparison,
            Err(error) => return Self { problem: problem(pair, &error), ..shown },
        };
        let own: Vec<&ObjectChange> =
            comparison.changes.iter().filter(|change| change.object == *id).collect();
        let (change, left) = bounded(&own, CHANGES_MAX_BYTES, |change| change_html(change));
        match (change.is_empty(), left + comparison.left_out > 0) {
            (false, _) => Self { change, ..shown },
            (true, true) => Self { rest: rest(&comparison, 0), ..shown },
            // Etcd was changed by hand, or an object of another source is missing in the comparison.
            (true, false) => Self::default(),
        }
    }
}

#[derive(Template)]
#[template(path = "change.html")]
struct ChangeTemplate<'a> {
    change: &'a ObjectChange,
}

fn change_html(change: &ObjectChange) -> String {
    ChangeTemplate { change }.render().unwrap_or_default()
}

fn line_html(line: &ComparisonLine) -> String {
    let text = escape_html(&visible(&line.text));
    match line.is_warning {
        true => format!("<li><span class=\"state busy wrap\">{text}</span></li>"),
        false => format!("<li class=\"quiet\">{text}</li>"),
    }
}

/// Renders the items that fit into `bytes_max`; returns the number of the others, too. A large one hides no other.
fn bounded<T>(items: &[T], bytes_max: usize, render: impl Fn(&T) -> String) -> (String, usize) {
    let (mut html, mut left) = (String::new(), 0);
    for item in items {
        let rendered = render(item);
        if html.len() + rendered.len() > bytes_max {
            left += 1;
        } else {
            html.push_str(&rendered);
        }
    }
    (html, left)
}

/// Sentence that says why nothing is shown, and how to see it elsewhere.
fn problem(pair: &CommitPair, error: &ComparisonError) -> String {
    if *error == ComparisonError::Unfinished {
        return error.to_string();
    }
    let head = short_commit(&pair.head);
    let command = match &pair.base {
        Some(base) => format!("git diff {} {head}", short_commit(base)),
        None => format!("git show {head}"),
    };
    format!("{error}; '{command}' in a clone shows what changed")
}

fn rest(comparison: &Comparison, left: usize) -> String {
    let more = if left > 0 { format!("{}; ", plural(left, "further change")) } else { String::new() };
    format!("… {more}'{}' in a clone prints all of it", comparison.command)
}
