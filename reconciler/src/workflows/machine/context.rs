//! Resolves paths into a state's data, or into the context object, `$$`, which describes the run.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};

use jiff::{SignedDuration, Timestamp};
use schema::kinds::workflow::{JsonPath, PathRoot, Segment};
use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};

use super::RunContext;

/// Context of one state at one time. The object is built only if a path refers to it.
pub(super) struct Context<'a> {
    pub(super) run: &'a RunContext,
    pub(super) random: &'a Random<'a>,
    pub(super) state: &'a str,
    pub(super) entered: Timestamp,
    pub(super) retries: u32,
    /// Index and value of the item, inside a Map.
    pub(super) item: Option<(usize, &'a Json)>,
    pub(super) object_cell: OnceCell<Json>,
}

impl Context<'_> {
    /// Returns the context object, with the names of the language.
    pub(super) fn object(&self) -> &Json {
        self.object_cell.get_or_init(|| {
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
        found = found.into_iter().flat_map(|value| children(value, segment)).collect();
    }
    let is_many =
        path.segments.iter().any(|segment| matches!(segment, Segment::Slice(..) | Segment::Wildcard));
    if is_many {
        return Some(Cow::Owned(Json::Array(found.into_iter().cloned().collect())));
    }
    found.first().copied().map(Cow::Borrowed)
}

fn children<'a>(value: &'a Json, segment: &Segment) -> Vec<&'a Json> {
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

// Random values of a run: they follow from its id and the number of draws, so that a replay gives the same.

/// Random source of one run.
pub(super) struct Random<'a> {
    run: &'a str,
    draws: Cell<u64>,
}

impl<'a> Random<'a> {
    /// Creates the source of a run after `draws` draws.
    pub(super) fn new(run: &'a str, draws: u64) -> Self {
        Self { run, draws: Cell::new(draws) }
    }

    /// Returns the number of draws.
    pub(super) fn draws(&self) -> u64 {
        self.draws.get()
    }

    /// Returns 16 bytes that no other draw gives.
    pub(super) fn bytes(&self) -> [u8; 16] {
        self.draws.set(self.draws.get() + 1);
        hash(&[self.run.as_bytes(), &self.draws.get().to_be_bytes()])
    }

    pub(super) fn number(&self) -> u64 {
        first(self.bytes())
    }

    /// Returns a number from 0 up to, but excluding, 1.
    pub(super) fn unit(&self) -> f64 {
        // The 53 bits that a double holds.
        #[allow(clippy::cast_precision_loss, reason = "a double holds 53 bits")]
        let bits = (self.number() >> 11) as f64;
        bits / 9_007_199_254_740_992.0
    }
}

/// Returns the number of a seed, always the same.
pub(super) fn seeded(seed: i64) -> u64 {
    first(hash(&[b"seed", &seed.to_be_bytes()]))
}

fn hash(parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
        hasher.update([0]);
    }
    let digest = hasher.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    bytes
}

fn first(bytes: [u8; 16]) -> u64 {
    bytes.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

// Limits of a run, and the reasons for their values.

/// Maximum number of states that a run enters, in all branches. Step Functions ends a run at 25,000 history events.
pub(crate) const STEPS_MAX: u32 = 25_000;

/// Maximum number of entries in a run's journal. A Task that is retried forever enters only one state.
pub(crate) const EVENTS_MAX: u32 = 25_000;

/// Largest input, output and payload of a state, as JSON: the same as in Step Functions.
pub(crate) const PAYLOAD_MAX_BYTES: usize = 256 * 1024;

/// Maximum size of all answers and errors of a run together: they are in etcd for as long as the run is kept, and
/// the private etcd holds 2 GiB. Equals 64 answers of the largest size. Also the maximum that all strands of a run
/// hold at the same time, in memory.
pub(crate) const RUN_MAX_BYTES: usize = 64 * PAYLOAD_MAX_BYTES;

/// Maximum nesting of lists and objects in an input, an answer and an output: 127 levels can be read back, and the
/// journal adds some.
pub(crate) const DEPTH_MAX: usize = 100;

/// Maximum number of items of a Map in progress at the same time: as many as the concurrent calls of a run. Step
/// Functions' inline Map has the same limit.
pub(crate) const MAP_CONCURRENCY_MAX: u32 = 40;

/// Maximum number of concurrent calls of a run, however its Maps and Parallels are nested. The other Tasks wait,
/// and their time limits begin with their calls.
pub(crate) const CALLS_MAX: usize = 40;

/// Number of strands in progress from which on a Map begins no further item while another one of its own is in
/// progress. A few levels of nested Maps fit in; each step of a run visits all strands.
pub(crate) const STRANDS_MAX: usize = 1_000;

/// Time limit of a run whose workflow has no `timeoutSeconds`.
pub(crate) const RUN_MAX: SignedDuration = SignedDuration::from_hours(24);

/// Maximum size of the inputs and outputs in a displayed history.
pub(super) const HISTORY_MAX_BYTES: usize = 32 * 1024 * 1024;

/// Returns the size of a value as JSON, without writing it anywhere.
pub(crate) fn size(value: &Json) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    match serde_json::to_writer(&mut count, value) {
        Ok(()) => count.0,
        Err(_) => usize::MAX,
    }
}
