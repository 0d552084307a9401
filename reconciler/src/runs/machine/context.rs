//! Resolves paths into a state's data, or into the context object, `$$`, which describes the run.

use std::borrow::Cow;
use std::cell::OnceCell;

use jiff::Timestamp;
use schema::kinds::workflow::{JsonPath, PathRoot, Segment};
use serde_json::{Value as Json, json};

use super::RunContext;
use super::random::Random;

/// Context of one state at one time. The object is built only if a path refers to it.
pub(super) struct Context<'a> {
    pub(super) run: &'a RunContext,
    pub(super) random: &'a Random<'a>,
    pub(super) state: &'a str,
    pub(super) entered: Timestamp,
    pub(super) retries: u32,
    /// Index and value of the item, inside a Map.
    pub(super) item: Option<(usize, &'a Json)>,
    pub(super) made: OnceCell<Json>,
}

impl Context<'_> {
    /// Returns the context object, with the names of the language.
    pub(super) fn object(&self) -> &Json {
        self.made.get_or_init(|| {
            let RunContext { namespace, workflow, id, input, started_at } = self.run;
            let mut object = json!({
                "Execution": {
                    "Id": format!("{namespace}/{workflow}/{id}"),
                    "Name": id,
                    "Input": input,
                    "StartTime": started_at,
                },
                "StateMachine": { "Id": format!("{namespace}/{workflow}"), "Name": workflow },
                "State": { "Name": self.state, "EnteredTime": self.entered, "RetryCount": self.retries },
            });
            if let (Some((index, value)), Some(fields)) = (self.item, object.as_object_mut()) {
                fields.insert("Map".to_owned(), json!({ "Item": { "Index": index, "Value": value } }));
            }
            object
        })
    }
}

/// Resolves a path; `None` if it leads nowhere. A path with slices or wildcards gives a list.
pub(super) fn resolve<'a>(
    path: &JsonPath,
    data: &'a Json,
    context: &'a Context<'_>,
) -> Option<Cow<'a, Json>> {
    let root = match path.root {
        PathRoot::Data => data,
        PathRoot::Context => context.object(),
    };
    let mut found = vec![root];
    for segment in &path.segments {
        found = found.into_iter().flat_map(|value| below(value, segment)).collect();
    }
    let is_many =
        path.segments.iter().any(|segment| matches!(segment, Segment::Slice(..) | Segment::Wildcard));
    if is_many {
        return Some(Cow::Owned(Json::Array(found.into_iter().cloned().collect())));
    }
    found.first().copied().map(Cow::Borrowed)
}

fn below<'a>(value: &'a Json, segment: &Segment) -> Vec<&'a Json> {
    match (segment, value) {
        (Segment::Name(name), Json::Object(fields)) => fields.get(name).into_iter().collect(),
        (Segment::Index(index), Json::Array(items)) => {
            place_in(items.len(), *index).and_then(|index| items.get(index)).into_iter().collect()
        }
        (Segment::Slice(first, last), Json::Array(items)) => {
            let bound = |bound: i64| bound_in(items.len(), bound);
            let (first, last) = (first.map_or(0, bound), last.map_or(items.len(), bound));
            items.get(first..last.max(first)).unwrap_or_default().iter().collect()
        }
        (Segment::Wildcard, Json::Array(items)) => items.iter().collect(),
        (Segment::Wildcard, Json::Object(fields)) => fields.values().collect(),
        _ => Vec::new(),
    }
}

/// Converts an index that may count from the end to one from the front.
fn place_in(length: usize, index: i64) -> Option<usize> {
    match usize::try_from(index) {
        Ok(index) => Some(index),
        Err(_) => length.checked_sub(usize::try_from(index.unsigned_abs()).ok()?),
    }
}

fn bound_in(length: usize, bound: i64) -> usize {
    place_in(length, bound).unwrap_or(0).min(length)
}
