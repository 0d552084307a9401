//! One document to one object: envelope, schema walk, serde, defaults, `validate`.

use std::sync::OnceLock;

use serde::de::DeserializeOwned;

use super::classify::{self, TOP_LEVEL, stands_for};
use super::foreign;
use super::nearest::{nearest, suggestion};
use super::node::{Entry, Mark, Node, Problem, Root, Value};
use super::shape::{Here, Shapes, Walk};
use super::{Document, DraftObject, LoadedFile, limits, object_too_large, violation};
use crate::kinds::pod::PodSpec;
use crate::kinds::{Kind, Resource, metadata};
use crate::meta::{DEFAULT_NAMESPACE, ObjectMeta};
use crate::violation::{Finding, Findings, OwnedStep, Path, Severity, rules};

/// Loads a document of `file` that is meant as a manifest into `loaded`.
pub(crate) fn load(file: &str, root: Root, loaded: &mut LoadedFile) {
    let Root { node, mut problems } = root;
    let object = object_name(&node);
    let draft = read(&node, &mut problems);
    let has_errors = problems.iter().any(|problem| problem.rule.severity == Severity::Error);
    if let (Some(object), false) = (draft, has_errors) {
        loaded.documents.push(Document { object, line: node.first_mark().line });
    }
    let violations = problems.into_iter().map(|problem| violation(file, problem, object.as_deref()));
    loaded.violations.extend(violations);
}

/// `Kind/namespace/name` as far as the document says it readably.
fn object_name(node: &Node) -> Option<String> {
    let text = |node: &Node, key: &str| {
        node.entry(key)?.value.text().filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let metadata = &node.entry("metadata")?.value;
    let kind = text(node, "kind")?;
    let namespace = text(metadata, "namespace").unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
    Some(format!("{kind}/{namespace}/{}", text(metadata, "name")?))
}

fn read(node: &Node, problems: &mut Vec<Problem>) -> Option<DraftObject> {
    let Value::Mapping(entries) = &node.value else {
        problems.push(classify::not_an_object(node));
        return None;
    };
    let kind = kind_of(node, entries, problems)?;
    match kind {
        Kind::Pod => read_pod(node, entries, problems),
        other => {
            let mark = node.entry("kind").map_or(node.mark, |entry| entry.value.mark);
            let message = format!("kind {other} is not run by this version of Minik8s yet");
            problems.push(Problem::new(mark, &rules::UNSUPPORTED_KIND, message).help("supported: `Pod`"));
            None
        }
    }
}

/// The document's kind, if it names a known one.
fn kind_of(node: &Node, entries: &[Entry], problems: &mut Vec<Problem>) -> Option<Kind> {
    let Some(entry) = node.entry("kind") else {
        let typo = entries.iter().find(|entry| nearest(&entry.key, ["kind"]).is_some());
        let mark = typo.map_or(node.first_mark(), |entry| entry.mark);
        let mut problem = Problem::new(mark, &rules::MISSING_KIND, "the document has no `kind`");
        problem.help = match typo {
            Some(entry) => format!("did you mean `kind` where it says `{}`?", entry.key),
            None => "add `kind: Pod`; if this is no manifest, list the file in `.minik8signore`".to_owned(),
        };
        problems.push(problem);
        return None;
    };
    let mark = if entry.value.is_blank() { entry.mark } else { entry.value.mark };
    let Some(text) = entry.value.text().filter(|_| !entry.value.is_null()) else {
        problems.push(Problem::new(mark, &rules::WRONG_TYPE, "kind: text is wanted, for example `Pod`"));
        return None;
    };
    match text.parse() {
        Ok(kind) => Some(kind),
        Err(_) => {
            let message = format!("no kind is called `{text}`");
            let help = foreign::kind(text)
                .map_or_else(|| suggestion(text, Kind::ALL.iter().map(|kind| kind.as_str())), str::to_owned);
            problems.push(Problem::new(mark, &rules::UNKNOWN_KIND, message).help(help));
            None
        }
    }
}

fn read_pod(node: &Node, entries: &[Entry], problems: &mut Vec<Problem>) -> Option<DraftObject> {
    check_envelope(node, entries, Kind::Pod, "v1", problems);
    let mut faults = Vec::new();
    let metadata: Option<ObjectMeta> = section(node, "metadata", metadata_shapes(), problems, &mut faults);
    let spec: Option<PodSpec> = section(node, "spec", pod_shapes(), problems, &mut faults);
    let mut findings = Findings::default();
    if let Some(metadata) = &metadata {
        metadata::validate(Kind::Pod, metadata, &Path::ROOT.field("metadata"), &mut findings);
    }
    let spec = spec.map(|mut spec| {
        spec.validate(&Path::ROOT.field("spec"), &mut findings);
        spec.fill_defaults();
        spec
    });
    let told = findings.into_vec().into_iter().filter(|finding| !follows_from(&faults, finding));
    problems.extend(told.map(|finding| located(node, finding)));
    let draft =
        DraftObject { api_version: "v1".to_owned(), metadata: metadata?, resource: Resource::Pod(spec?) };
    check_size(node, &draft, problems);
    Some(draft)
}

/// Top-level fields and apiVersion.
fn check_envelope(
    node: &Node,
    entries: &[Entry],
    kind: Kind,
    api_version: &str,
    problems: &mut Vec<Problem>,
) {
    for entry in entries.iter().filter(|entry| !TOP_LEVEL.contains(&entry.key.as_str())) {
        let is_empty = entry.value.is_null() || entry.value.entries().is_some_and(<[_]>::is_empty);
        if entry.key == "status" {
            // `kubectl … --dry-run -o yaml` ends with `status: {}`.
            if !is_empty {
                let problem = Problem::new(
                    entry.mark,
                    &rules::UNSUPPORTED_FIELD,
                    "status: written by the cluster, never by a manifest",
                );
                problems.push(problem.help("remove it"));
            }
            continue;
        }
        let message = format!("{}: unknown field `{}`", entry.key, entry.key);
        let help = match stands_for(&entry.key) {
            Some(word) => format!("did you mean `{word}`?"),
            None => suggestion(&entry.key, TOP_LEVEL),
        };
        problems.push(Problem::new(entry.mark, &rules::UNKNOWN_FIELD, message).help(help));
    }
    let (mark, found) = match node.entry("apiVersion") {
        Some(entry) if !entry.value.is_null() => (entry.value.mark, entry.value.text()),
        other => (other.map_or(node.first_mark(), |entry| entry.mark), None),
    };
    if found != Some(api_version) {
        let message = match found {
            Some(text) => format!("apiVersion `{text}` is not that of kind {kind}"),
            None => "the document has no `apiVersion`".to_owned(),
        };
        problems.push(
            Problem::new(mark, &rules::API_VERSION, message)
                .help(format!("write `apiVersion: {api_version}`")),
        );
    }
}

/// A top-level field as its type. Where the walk found mistakes, stand-ins take their place, so that
/// the rest can be checked as well; `faults` says where.
fn section<T: DeserializeOwned>(
    node: &Node,
    name: &str,
    shapes: &Shapes,
    problems: &mut Vec<Problem>,
    faults: &mut Vec<Vec<OwnedStep>>,
) -> Option<T> {
    let entry = match node.entry(name) {
        Some(entry) if !entry.value.is_null() => entry,
        other => {
            let mark = other.map_or(node.first_mark(), |entry| entry.mark);
            let message = format!("{name}: Required value: the field is missing");
            problems.push(Problem::new(mark, &rules::MISSING_FIELD, message));
            return None;
        }
    };
    let mut walk = Walk { shapes, problems: Vec::new(), faults: Vec::new() };
    let json =
        walk.value(shapes.root, &entry.value, Here { path: &Path::ROOT.field(name), mark: entry.mark });
    problems.append(&mut walk.problems);
    faults.append(&mut walk.faults);
    serde_json::from_value(json?)
        .map_err(|error| {
            // The walk knows all that serde checks; should it miss something, the file is still held.
            problems.push(Problem::new(entry.mark, &rules::WRONG_TYPE, format!("{name}: {error}")));
        })
        .ok()
}

/// Whether a finding is only the echo of a mistake that was told already: it speaks of the same value,
/// of one around or inside it, or misses a name that may have been mistyped.
fn follows_from(faults: &[Vec<OwnedStep>], finding: &Finding) -> bool {
    let at = finding.at.as_slice();
    let near = faults.iter().any(|fault| fault.starts_with(at) || at.starts_with(fault));
    near || (finding.rule == &rules::NOT_FOUND && !faults.is_empty())
}

/// A finding by path as a problem by line.
fn located(node: &Node, finding: Finding) -> Problem {
    let Finding { at, on_key, rule, message, help } = finding;
    Problem { mark: node.locate(&at, on_key), rule, message, help }
}

fn check_size(node: &Node, draft: &DraftObject, problems: &mut Vec<Problem>) {
    let bytes = serde_json::to_vec(&(&draft.metadata, &draft.resource)).map_or(usize::MAX, |json| json.len());
    if bytes > limits::OBJECT_MAX_BYTES {
        problems.push(object_too_large(Mark { column: 0, ..node.first_mark() }, bytes));
    }
}

fn metadata_shapes() -> &'static Shapes {
    static SHAPES: OnceLock<Shapes> = OnceLock::new();
    SHAPES.get_or_init(|| {
        Shapes::compile("ObjectMeta", &schemars::schema_for!(ObjectMeta))
            .expect("a test compiles this schema")
    })
}

fn pod_shapes() -> &'static Shapes {
    static SHAPES: OnceLock<Shapes> = OnceLock::new();
    SHAPES.get_or_init(|| {
        Shapes::compile("PodSpec", &schemars::schema_for!(PodSpec)).expect("a test compiles this schema")
    })
}
