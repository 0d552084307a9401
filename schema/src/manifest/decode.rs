//! Turns one document into one object: envelope, schema walk, serde, defaults, `validate`.

use serde::de::DeserializeOwned;

use super::classify::{TOP_LEVEL, top_level_field};
use super::dialects::Rewritten;
use super::shape::{Shapes, Walk, WalkPosition, compile};
use super::{
    BrokenDocument, Document, DraftObject, FieldLocation, Layout, ManifestFile, classify, dialects, limits,
    unsupported,
};
use crate::document::nearest::{nearest, suggestion};
use crate::document::node::{Budget, Entry, Mark, Node, Problem, Root, Value};
use crate::document::problems::{Faults, Problems, left_out, object_too_large, violation};
use crate::kinds::{FieldPlacement, Kind, KindSpec, Resource, SpecVisitor, links, metadata};
use crate::meta::{DEFAULT_NAMESPACE, ObjectMeta, StringMap};
use crate::violation::{Finding, Findings, OwnedStep, Path, rules};

/// Longest part of an object's name that its violations show: Kubernetes' limit.
const NAME_SHOWN: usize = 253;

/// Loads a document of `file` that is meant as a manifest into `loaded`. Returns the number of violations beyond
/// the limit, which are dropped.
pub(crate) fn load(
    file: &str,
    root: Root,
    left: &mut Budget,
    loaded: &mut ManifestFile,
    layout: Option<&mut Layout>,
) -> usize {
    let Root { mut node, problems } = root;
    if let Some(problem) = foreign(&node) {
        // Neither its name nor its other mistakes are about an object of Minik8s.
        loaded.violations.push(violation(file, problem, None));
        return 0;
    }
    let mut problems = Problems::from(problems);
    // Before the rewrite, which may move the first key.
    let line = node.first_mark().line;
    if let Some(note) = without_effect(&node) {
        problems.push(note);
        let (problems, left_out) = problems.into_parts();
        let object = object_name(&node);
        let violations = problems.into_iter().map(|problem| violation(file, problem, object.as_deref()));
        loaded.violations.extend(violations);
        return left_out;
    }
    let rewritten = dialects::rewrite(&mut node, left, &mut problems);
    let object = object_name(&node);
    let draft = read(&node, rewritten, &mut problems);
    match (draft, problems.has_errors()) {
        (Some(object), false) => {
            let places = places(&node, &object);
            loaded.documents.push(Document::new(object, line, places));
        }
        _ => {
            let reference =
                object.as_deref().and_then(|name| metadata::parse_reference(name, DEFAULT_NAMESPACE).ok());
            let labels = labels(&node);
            loaded.broken.extend(reference.map(|reference| BrokenDocument { reference, line, labels }));
        }
    }
    if let Some(layout) = layout {
        layout.add(line, node);
    }
    let (problems, left_out) = problems.into_parts();
    let violations = problems.into_iter().map(|problem| violation(file, problem, object.as_deref()));
    loaded.violations.extend(violations);
    left_out
}

/// Returns the note on an object of a kind that has no effect here, or the error if it would have one.
fn without_effect(node: &Node) -> Option<Problem> {
    let text = |key: &str| node.entry(key)?.value.text();
    let kind = text("kind")?;
    let why = unsupported::kind_without_effect(text("apiVersion")?, kind)?;
    if let Some(logins) = node.entry("imagePullSecrets").filter(|logins| !is_hollow(&logins.value)) {
        let message = "imagePullSecrets: pods get no logins from a ServiceAccount";
        let problem = Problem::new(logins.mark, &rules::UNSUPPORTED_FIELD, message);
        return Some(problem.help("write imagePullSecrets into the spec of the pods"));
    }
    Some(left_out(node.entry("kind")?.value.mark, kind, why))
}

/// Returns the error on an object of another system.
fn foreign(node: &Node) -> Option<Problem> {
    let (version, kind) = (node.entry("apiVersion")?.value.text()?, &node.entry("kind")?.value);
    let word = kind.text().filter(|_| !kind.is_null())?;
    let group = unsupported::foreign_group(version, word)?;
    let message = format!("`{word}` of {group} is not a kind of Minik8s");
    Some(
        Problem::new(kind.mark, &rules::UNKNOWN_KIND, message).help(unsupported::foreign_advice(group, word)),
    )
}

/// Locates the fields that checks across objects point at.
fn places(node: &Node, object: &DraftObject) -> Vec<FieldLocation> {
    let paths = links::position_paths(&object.metadata, &object.resource);
    let place = |path: Vec<OwnedStep>| {
        let Mark { line, column } = node.locate(&path, false);
        FieldLocation { path, line, column }
    };
    paths.into_iter().map(place).collect()
}

/// Returns the labels of an object with errors and of its template, as far as they can be read.
fn labels(node: &Node) -> Vec<StringMap> {
    let of = |node: &Node| {
        let labels = &node.entry("metadata")?.value.entry("labels")?.value;
        let pair = |entry: &Entry| Some((entry.key.clone(), entry.value.text()?.to_owned()));
        Some(labels.entries()?.iter().filter_map(pair).collect())
    };
    let template = node.entry("spec").and_then(|spec| spec.value.entry("template"));
    [Some(node), template.map(|entry| &entry.value)].into_iter().flatten().filter_map(of).collect()
}

/// Returns the object's name as [`ObjectRef`](crate::meta::ObjectRef) shows it, if the document has it in readable
/// form.
pub(super) fn object_name(node: &Node) -> Option<String> {
    let text = |node: &Node, key: &str| {
        let text = node.entry(key)?.value.text().filter(|text| !text.is_empty())?;
        Some(text.chars().take(NAME_SHOWN).collect::<String>())
    };
    let metadata = &node.entry("metadata")?.value;
    let kind = text(node, "kind")?;
    if kind.parse().is_ok_and(Kind::is_cluster_scoped) {
        return Some(format!("{kind}/{}", text(metadata, "name")?));
    }
    let namespace = text(metadata, "namespace").unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
    Some(format!("{kind}/{namespace}/{}", text(metadata, "name")?))
}

/// Reads an object.
fn read(node: &Node, rewritten: Rewritten, problems: &mut Problems) -> Option<DraftObject> {
    let Value::Mapping(entries) = &node.value else {
        problems.push(classify::not_an_object(node));
        return None;
    };
    let kind = kind_of(node, entries, problems)?;
    kind.visit((kind, ReadInput { node, entries, rewritten, problems }))
}

/// Parts of a document that an object is read from.
struct ReadInput<'a> {
    node: &'a Node,
    entries: &'a [Entry],
    rewritten: Rewritten,
    problems: &'a mut Problems,
}

/// Returns the document's kind, if it names a known one.
fn kind_of(node: &Node, entries: &[Entry], problems: &mut Problems) -> Option<Kind> {
    let Some(entry) = node.entry("kind") else {
        let typo = entries.iter().find(|entry| nearest(&entry.key, ["kind"]).is_some());
        let mark = typo.map_or(node.first_mark(), |entry| entry.mark);
        let mut problem = Problem::new(mark, &rules::MISSING_KIND, "the document has no `kind`");
        problem.help = match typo {
            Some(entry) => format!("did you mean `kind` instead of `{}`?", entry.key),
            None => {
                "add `kind: Pod`; if this is not a manifest, list the file in `.minik8signore`".to_owned()
            }
        };
        problems.push(problem);
        return None;
    };
    let mark = if entry.value.is_blank() { entry.mark } else { entry.value.mark };
    let Some(text) = entry.value.text().filter(|_| !entry.value.is_null()) else {
        problems.push(Problem::new(mark, &rules::WRONG_TYPE, "kind: expected text, for example `Pod`"));
        return None;
    };
    match text.parse() {
        Ok(kind) => Some(kind),
        Err(_) if text == "Secret" => {
            problems.push(unsealed_secret(node, mark));
            None
        }
        Err(_) => {
            let message = format!("unknown kind `{text}`");
            let help = unsupported::kind_advice(text).map_or_else(|| Kind::suggestion(text), str::to_owned);
            problems.push(Problem::new(mark, &rules::UNKNOWN_KIND, message).help(help));
            None
        }
    }
}

/// True for an object that SOPS encrypted.
pub(super) fn is_encrypted_by_sops(node: &Node) -> bool {
    node.entry("sops").is_some_and(|entry| entry.value.entries().is_some())
}

/// Reports a Secret: nothing else about it matters.
fn unsealed_secret(node: &Node, mark: Mark) -> Problem {
    let (message, help) = if is_encrypted_by_sops(node) {
        (
            "unknown kind `Secret`: SOPS left its name in clear, where it can be changed",
            "'minik8s secrets seal --from {file} --remove' decrypts it with your age key and seals it for the nodes",
        )
    } else {
        (
            "unknown kind `Secret`: secrets are sealed, and anyone who can read the repository has the values of this one",
            "'minik8s secrets seal --from {file} --remove' seals it; if it was ever pushed, change its values where they \
are used",
        )
    };
    Problem::new(mark, &rules::UNKNOWN_KIND, message).help(help)
}

impl SpecVisitor for (Kind, ReadInput<'_>) {
    type Output = Option<DraftObject>;

    fn visit<S: KindSpec>(self, resource: fn(S) -> Resource) -> Option<DraftObject> {
        let (kind, ReadInput { node, entries, rewritten, problems }) = self;
        let kind_word = rewritten.kind_word.unwrap_or(kind.as_str());
        check_envelope(node, entries, (kind, kind_word), problems);
        let in_spec = Path::ROOT.field("spec");
        let at = if S::DESCRIPTOR.fields == FieldPlacement::AtTop { Path::ROOT } else { in_spec };
        // In a spec that could not be carried over, findings of `validate` would only follow from that.
        let mut faults = Faults::default();
        if !rewritten.is_complete {
            faults.push(at.steps());
        }
        let metadata: Option<ObjectMeta> =
            section(node, "metadata", compile::metadata(), problems, &mut faults);
        let spec: Option<S> = spec(node, kind, problems, &mut faults);
        let mut findings = Findings::default();
        if let Some(metadata) = &metadata {
            metadata::validate(kind, metadata, &Path::ROOT.field("metadata"), &mut findings);
        }
        let spec = spec.map(|mut spec| {
            spec.validate(&at, &mut findings);
            if let Some(pod) = metadata.as_ref().and_then(|metadata| (S::LINKS.pod)(&spec, metadata)) {
                pod.validate(&mut findings);
            }
            spec.fill_defaults();
            spec
        });
        let kept = findings.into_vec().into_iter().filter(|finding| !is_consequence_of(&faults, finding));
        // Checks know the kind as which the manifest is read, the author the one that it names.
        let reworded = |text: String| with_kind_word(&text, kind.as_str(), kind_word);
        kept.map(|one| Finding { message: reworded(one.message), help: reworded(one.help), ..one })
            .for_each(|finding| problems.push(located(node, finding)));
        let draft = DraftObject {
            api_version: kind.api_version().to_owned(),
            metadata: metadata?,
            resource: resource(spec?),
        };
        check_size(node, &draft, problems);
        Some(draft)
    }
}

/// Replaces the name of a kind by `word`, but within quotes, which hold the author's own words.
fn with_kind_word(text: &str, kind: &str, word: &str) -> String {
    let part = |(index, part): (usize, &str)| {
        if index % 2 == 0 { part.replace(kind, word) } else { part.to_owned() }
    };
    text.split('`').enumerate().map(part).collect::<Vec<_>>().join("`")
}

/// Reads the spec as written, without defaults.
pub(super) fn spec<S: KindSpec>(
    node: &Node,
    kind: Kind,
    problems: &mut Problems,
    faults: &mut Faults,
) -> Option<S> {
    match S::DESCRIPTOR.fields {
        FieldPlacement::InSpec => section(node, "spec", compile::for_kind(kind), problems, faults),
        FieldPlacement::AtTop => {
            let (own, mark) = (own_fields(node), node.first_mark());
            read_typed(
                &own,
                WalkPosition { path: &Path::ROOT, mark },
                compile::for_kind(kind),
                problems,
                faults,
            )
        }
    }
}

/// Returns the fields next to the envelope's own.
fn own_fields(node: &Node) -> Node {
    const ENVELOPE: [&str; 4] = ["apiVersion", "kind", "metadata", "status"];
    let own =
        node.entries().unwrap_or_default().iter().filter(|entry| !ENVELOPE.contains(&entry.key.as_str()));
    Node { mark: node.mark, value: Value::Mapping(own.cloned().collect()) }
}

/// Checks top-level fields and apiVersion.
fn check_envelope(node: &Node, entries: &[Entry], (kind, word): (Kind, &str), problems: &mut Problems) {
    let (api_version, is_flat) = (kind.api_version(), kind.descriptor().fields == FieldPlacement::AtTop);
    let is_known = |key: &str| TOP_LEVEL.contains(&key) || is_flat && key != "status";
    for entry in entries.iter().filter(|entry| !is_known(&entry.key)) {
        if entry.key == "status" {
            // `kubectl … --dry-run -o yaml` ends with `status: {}` or `status: {loadBalancer: {}}`.
            if !is_hollow(&entry.value) {
                problems.push(left_out(entry.mark, "status", "the cluster writes it"));
            }
            continue;
        }
        let message = format!("{}: unknown field `{}`", entry.key, entry.key);
        let help = match top_level_field(&entry.key) {
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
            Some(text) => format!("apiVersion `{text}` does not match kind {word}"),
            None => "the document has no `apiVersion`".to_owned(),
        };
        problems.push(
            Problem::new(mark, &rules::API_VERSION, message)
                .help(format!("write `apiVersion: {api_version}`")),
        );
    }
}

/// True for null, and for mappings with nothing else in them.
fn is_hollow(node: &Node) -> bool {
    node.is_null()
        || node.entries().is_some_and(|entries| entries.iter().all(|entry| is_hollow(&entry.value)))
}

/// Reads a top-level field as its type. Stand-ins replace the mistakes that the walk finds, so that the rest can be
/// checked as well; `faults` holds their places.
fn section<T: DeserializeOwned>(
    node: &Node,
    name: &str,
    shapes: &Shapes,
    problems: &mut Problems,
    faults: &mut Faults,
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
    let here = WalkPosition { path: &Path::ROOT.field(name), mark: entry.mark };
    read_typed(&entry.value, here, shapes, problems, faults)
}

/// Reads a value as its type.
fn read_typed<T: DeserializeOwned>(
    value: &Node,
    here: WalkPosition<'_>,
    shapes: &Shapes,
    problems: &mut Problems,
    faults: &mut Faults,
) -> Option<T> {
    let mut walk = Walk { shapes, problems: Problems::default(), faults: Faults::default() };
    let json = walk.value(shapes.root, value, here);
    problems.append(walk.problems);
    faults.append(walk.faults);
    serde_json::from_value(json?)
        .map_err(|error| {
            // The walk knows all that serde checks; should it miss something, the file is still quarantined.
            problems.push(Problem::new(here.mark, &rules::WRONG_TYPE, format!("{}: {error}", here.path)));
        })
        .ok()
}

/// True if a finding merely echoes a mistake that was reported already: it concerns the same value, one around or
/// inside it, or misses a name, or a way to it, that may have been mistyped.
fn is_consequence_of(faults: &Faults, finding: &Finding) -> bool {
    let misses_name = finding.rule == &rules::NOT_FOUND;
    let misses_way = [&rules::UNREACHABLE_STATE, &rules::NO_END].contains(&finding.rule);
    // A field of one type of service may fit the one that was meant.
    let misses_type =
        [&rules::NODE_PORT, &rules::TRAFFIC_POLICY, &rules::EXTERNAL_NAME].contains(&finding.rule);
    faults.any_near(&finding.at)
        || misses_type && faults.any(|fault| fault.last().is_some_and(|step| is_one_of(step, &["type"])))
        || misses_name && faults.any(may_declare)
        || misses_way
            && faults.any(|fault| may_declare(fault) || fault.iter().any(|step| is_one_of(step, &MACHINES)))
}

/// Lists whose items have names.
const LISTS: [&str; 2] = ["volumes", "ports"];
const MACHINES: [&str; 2] = ["states", "nodes"];

/// True if the mistake may be in a list that declares names, or be a mistyped name of such a list. The names of
/// states stay whatever is wrong with one of them.
fn may_declare(fault: &[OwnedStep]) -> bool {
    fault.iter().any(|step| is_one_of(step, &LISTS))
        || fault.last().is_some_and(|step| is_one_of(step, &MACHINES))
        || fault.len() <= 1
}

fn is_one_of(step: &OwnedStep, names: &[&str]) -> bool {
    match step {
        OwnedStep::Field(name) => {
            names.contains(&name.as_str()) || nearest(name, names.iter().copied()).is_some()
        }
        OwnedStep::Index(_) => false,
    }
}

/// Turns a finding by path into a problem by line.
fn located(node: &Node, finding: Finding) -> Problem {
    let Finding { at, on_key, rule, message, help } = finding;
    Problem { mark: node.locate(&at, on_key), rule, message, help }
}

fn check_size(node: &Node, draft: &DraftObject, problems: &mut Problems) {
    let bytes = serde_json::to_vec(&(&draft.metadata, &draft.resource)).map_or(usize::MAX, |json| json.len());
    if bytes > limits::OBJECT_MAX_BYTES {
        problems.push(object_too_large(Mark { column: 0, ..node.first_mark() }, bytes));
    }
}
