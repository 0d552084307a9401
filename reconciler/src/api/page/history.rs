//! Applied commits, and one of them with its timeline.

use askama::Template;
use serde::Deserialize;

use super::parts::{Page, Part, ROWS_MAX, RenderContext, TemplateHelpers, timeline};
use crate::api::error::ApiError;
use crate::api::input;
use crate::view::{self, RevisionView, TimelineView, seconds, short};

/// Filter of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryQuery {
    #[serde(default)]
    source: String,
}

pub(super) fn page(context: &RenderContext<'_>, query: &HistoryQuery) -> Result<Page, ApiError> {
    let source = Some(query.source.as_str()).filter(|source| !source.is_empty());
    input::optional_name("source", source)?;
    let mut commits = view::history(context.snapshot, source, context.now);
    // At most 100 are kept for each source, so one source fits.
    let left = commits.len().saturating_sub(ROWS_MAX);
    commits.truncate(ROWS_MAX);
    let sources = context.snapshot.sources.keys().cloned().collect();
    let query = query.source.clone();
    Ok(Page {
        title: "History".to_owned(),
        parts: vec![Part::new("history", &HistoryTemplate { commits, left, sources, query })],
    })
}

pub(super) fn revision_page(
    context: &RenderContext<'_>,
    source: &str,
    sequence: u64,
) -> Result<Page, ApiError> {
    let commits = view::history(context.snapshot, Some(source), context.now);
    let Some(at) = commits.iter().position(|one| one.revision.sequence == sequence) else {
        let error = format!("revision {sequence} of source {source} is not in the history");
        return Err(ApiError::not_found(error, "the last 100 commits of each source are kept"));
    };
    let shown = &commits[at];
    let title = format!("Commit {} of {source}", short(&shown.revision.commit));
    let neighbors = [at + 1, at.wrapping_sub(1)].map(|at| commits.get(at).map(|one| one.revision.sequence));
    let timeline = view::timeline(shown);
    Ok(Page {
        title,
        parts: vec![
            Part::new("revision", &RevisionTemplate { shown: shown.clone(), neighbors }),
            Part::new("timeline", &TimelineTemplate { timeline }),
        ],
    })
}

#[derive(Template)]
#[template(path = "history.html")]
struct HistoryTemplate {
    commits: Vec<RevisionView>,
    left: usize,
    sources: Vec<String>,
    query: String,
}

impl HistoryTemplate {
    /// Time until the last step of the commit's timeline.
    fn took(&self, one: &RevisionView) -> String {
        view::timeline(one).map(|shown| seconds(shown.total)).unwrap_or_default()
    }
}

#[derive(Template)]
#[template(path = "revision.html")]
struct RevisionTemplate {
    shown: RevisionView,
    /// Sequence numbers of the previous and the next commit.
    neighbors: [Option<u64>; 2],
}

#[derive(Template)]
#[template(path = "timeline.html")]
struct TimelineTemplate {
    timeline: Option<TimelineView>,
}

impl TimelineTemplate {
    fn chart(&self, shown: &TimelineView) -> String {
        timeline(shown)
    }

    fn seconds(&self, milliseconds: &u64) -> String {
        seconds(*milliseconds)
    }

    fn took(&self, from: &u64, to: &u64) -> String {
        seconds(to - from)
    }

    fn maybe(&self, milliseconds: &Option<u64>) -> String {
        milliseconds.map_or_else(|| "–".to_owned(), seconds)
    }
}
