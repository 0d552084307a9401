//! Decides whether a document is meant as a manifest, and reads the files of other programs that change or replace
//! manifests: kustomizations and Compose files.
//!
//! A manifest with a typo must never pass for another sort of file: its objects would be pruned. So any document
//! whose `kind` is a text, or with two of the four top-level fields, counts as a manifest. A field that is not `kind`
//! counts if its value is empty or of the sort that objects have there: `API Version` and `Metadata` are words of
//! translations, too. A manifest is missed only if it has two typos, one of them in `kind`; even then the checks
//! across files keep the live objects that came from the file.

use std::collections::BTreeSet;

use super::draft::{Kustomization, ManifestFile};
use super::shape;
use crate::document::Format;
use crate::document::nearest::{list, nearest};
use crate::document::node::{Entry, Mark, Node, ParsedFile, Problem, Root, Value};
use crate::document::problems::{left_out, violation};
use crate::kinds::Kind;
use crate::violation::rules;

/// Top-level fields of every object.
pub(crate) const TOP_LEVEL: [&str; 4] = ["apiVersion", "kind", "metadata", "spec"];

/// Classification of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DocumentClass {
    /// Only whitespace and comments.
    Empty,
    /// Meant as an object, valid or not.
    Manifest,
    /// Anything else.
    Other,
}

/// Classifies a document.
pub(crate) fn classify(node: &Node) -> DocumentClass {
    match &node.value {
        Value::Scalar { .. } if node.is_null() => DocumentClass::Empty,
        // With another first character, `{"kind":"Pod",…}` is one long word.
        Value::Scalar { text, .. } if count_top_level_words(text) >= 2 => DocumentClass::Manifest,
        Value::Scalar { .. } => DocumentClass::Other,
        // A list of objects is a mistake (Kubernetes has no such form), but objects are meant.
        Value::Sequence(items) if items.iter().any(looks_like_object) => DocumentClass::Manifest,
        Value::Sequence(_) => DocumentClass::Other,
        Value::Mapping(_) if looks_like_object(node) => DocumentClass::Manifest,
        Value::Mapping(_) => DocumentClass::Other,
    }
}

/// Counts the top-level fields that occur in a text.
fn count_top_level_words(text: &str) -> usize {
    TOP_LEVEL.iter().filter(|word| text.contains(**word)).count()
}

fn looks_like_object(node: &Node) -> bool {
    let Some(entries) = node.entries() else { return false };
    if let [only] = entries
        && only.key.is_empty()
    {
        // A stray `:` in front puts the whole object under an empty key.
        return looks_like_object(&only.value);
    }
    // `kind: List` with a typo.
    let holds_objects = |entry: &Entry| matches!(&entry.value.value, Value::Sequence(items) if entry.key == "items" && items.iter().any(looks_like_object));
    // Each once: `appVersion` of a Helm chart, beside `apiVersion`, is likely no second field.
    let words: BTreeSet<&str> = entries.iter().filter_map(top_level_word).collect();
    words.len() >= 2
        || entries.iter().any(|entry| entry.key == "kind" && entry.value.text().is_some())
        || entries.iter().any(holds_objects)
        // `knd: Pod` with nothing else.
        || entries.iter().any(|entry| {
            nearest(&entry.key, ["kind"]).is_some()
                && entry.value.text().is_some_and(|text| text.parse::<Kind>().is_ok())
        })
}

/// Returns the top-level field that an entry is, or is likely a misspelling of, by its key and its value.
fn top_level_word(entry: &Entry) -> Option<&'static str> {
    let (word, value) = (top_level_field(&entry.key)?, &entry.value);
    let fits = match word {
        "kind" => value.text().is_some(),
        "apiVersion" => value.text().is_some_and(is_version),
        _ => value.entries().is_some(),
    };
    (fits || value.is_null()).then_some(word)
}

/// True for `v1` and `group/v1`, with room for a typo.
fn is_version(text: &str) -> bool {
    let digit_after_v =
        || text.strip_prefix(['v', 'V']).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    !text.contains(char::is_whitespace) && (text.contains('/') || digit_after_v())
}

/// Returns the top-level field that a key is, or is likely a misspelling of. `kind` and `spec` are so short that
/// only their exact spelling counts, in any case: `bind` and `specs` are words of other files.
pub(crate) fn top_level_field(key: &str) -> Option<&'static str> {
    TOP_LEVEL
        .into_iter()
        .find(|word| word.eq_ignore_ascii_case(key))
        .or_else(|| nearest(key, ["apiVersion", "metadata"]))
}

/// Finds a one-line manifest that became a comment or a `%` directive: with its first brace replaced, a whole
/// object would vanish silently. ([`classify`] catches other shapes.) Comments that only mention manifests have no
/// braces and no colons; lines in a block of text are no comments.
pub(crate) fn vanished_manifest(text: &str, parsed: &ParsedFile) -> Option<Problem> {
    let mut suspects = (1u32..).zip(text.lines()).filter(|(_, line)| is_commented_manifest(line)).peekable();
    suspects.peek()?;
    let mut in_blocks = BTreeSet::new();
    parsed.roots.iter().for_each(|root| lines_of_blocks(&root.node, &mut in_blocks));
    let (number, _) = suspects.find(|(_, line)| !in_blocks.contains(line.trim()))?;
    let message = "this line reads like a whole manifest, but is a comment or directive";
    Some(
        Problem::new(Mark { line: number, column: 1 }, &rules::COMMENTED_MANIFEST, message)
            .help("remove the line to delete the object, or repair it"),
    )
}

/// True if a line is a comment or directive that would be a flow-style manifest with another first character.
fn is_commented_manifest(line: &str) -> bool {
    let line = line.strip_prefix("---").unwrap_or(line).trim_start();
    let text = line.trim_start_matches(|c: char| !c.is_alphanumeric());
    line.starts_with(['#', '%'])
        && line[1..].contains('{')
        && TOP_LEVEL.iter().any(|word| text.starts_with(word))
        && count_top_level_words(text) >= 3
        && TOP_LEVEL.iter().filter(|word| has_key(text, word)).count() >= 2
}

/// True if any top-level field occurs as a key in a text that can't be parsed.
pub(crate) fn has_words_of_manifest(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    TOP_LEVEL.iter().any(|word| has_key(&text, word))
}

/// Most bytes of a text whose words are kept.
const WORDS_TEXT_MAX_BYTES: usize = 256 * 1024;

/// Returns the words of a text that can't be parsed; none for a large text, because every file keeps them in memory.
pub(crate) fn words(text: &str) -> BTreeSet<String> {
    if text.len() > WORDS_TEXT_MAX_BYTES {
        return BTreeSet::new();
    }
    let is_part = |c: char| c.is_alphanumeric() || "-_./".contains(c);
    text.split(|c: char| !is_part(c)).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// True if `word` is followed by a colon somewhere, possibly after a closing quote.
fn has_key(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let rest = text[at + word.len()..].trim_start();
        let rest = rest.strip_prefix(['"', '\'']).unwrap_or(rest);
        rest.trim_start().starts_with(':')
    })
}

/// Collects the lines of all multi-line texts.
fn lines_of_blocks<'a>(node: &'a Node, lines: &mut BTreeSet<&'a str>) {
    match &node.value {
        Value::Scalar { text, .. } if text.contains('\n') => lines.extend(text.lines().map(str::trim)),
        Value::Scalar { .. } => {}
        Value::Sequence(items) => items.iter().for_each(|item| lines_of_blocks(item, lines)),
        Value::Mapping(entries) => entries.iter().for_each(|entry| lines_of_blocks(&entry.value, lines)),
    }
}

/// Reports a document without any mark of a manifest in a file that has manifests.
pub(crate) fn stray_document(node: &Node) -> Problem {
    let mark = node.first_mark();
    if node.entries().is_none() {
        return not_an_object(node);
    }
    Problem::new(mark, &rules::MISSING_KIND, "the document has no `kind`, but others in this file do")
        .help("add apiVersion, kind and metadata, or move it into a file of its own")
}

/// Reports a document that is a list or a text.
pub(crate) fn not_an_object(node: &Node) -> Problem {
    let message = format!(
        "expected an object with apiVersion, kind, metadata and spec, found {}",
        shape::describe_found(node, false)
    );
    let help = match node.value {
        Value::Sequence(_) => "separate objects with `---`, or write `kind: List` with `items`",
        _ => "",
    };
    Problem::new(node.mark, &rules::NOT_A_MAPPING, message).help(help)
}

/// Expands Kubernetes' `kind: List`, and typed lists such as `PodList`, to their items, if they are objects.
pub(crate) fn expand_list(mut root: Root) -> Vec<Root> {
    let field = |key: &str| root.node.entry(key).and_then(|entry| entry.value.text()).map(str::to_owned);
    let kind = field("kind").and_then(|kind| kind.strip_suffix("List").map(str::to_owned));
    let api_version = field("apiVersion");
    let Value::Mapping(entries) = &mut root.node.value else { return vec![root] };
    let items = entries.iter_mut().find(|entry| entry.key == "items").map(|entry| &mut entry.value.value);
    let (Some(kind), Some(Value::Sequence(items))) = (kind, items) else { return vec![root] };
    if !kind.is_empty() {
        let given = [("kind", Some(kind)), ("apiVersion", api_version)];
        let given = given.into_iter().filter_map(|(key, text)| Some((key, text?)));
        given.for_each(|(key, text)| items.iter_mut().for_each(|item| give(item, key, &text)));
    }
    let are_objects = items.iter().all(|item| classify(item) == DocumentClass::Manifest);
    if items.is_empty() || !are_objects {
        return vec![root];
    }
    // Problems of the text are reported once, with the first item.
    let (items, mut problems) = (std::mem::take(items), root.problems);
    items.into_iter().map(|node| Root { node, problems: std::mem::take(&mut problems) }).collect()
}

/// Adds a field of the list to an item that lacks it, as the API server does.
fn give(item: &mut Node, key: &str, text: &str) {
    let mark = item.first_mark();
    if item.entry(key).is_none()
        && let Value::Mapping(entries) = &mut item.value
    {
        let value = Value::Scalar { text: text.to_owned(), plain: false };
        entries.push(Entry { key: key.to_owned(), mark, value: Node { mark, value } });
    }
}

// Files of kustomize. They are not rendered, so they must not pass for files that do nothing.

/// Names under which kustomize reads a file of a folder.
pub const KUSTOMIZATION_NAMES: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// Fields of a kustomization that name its manifests.
const RESOURCES: [&str; 3] = ["resources", "bases", "components"];

/// Fields of a kustomization that leave the manifests as they are.
const WITHOUT_CHANGE: [&str; 12] = [
    "apiVersion",
    "kind",
    "metadata",
    "resources",
    "bases",
    "crds",
    "openapi",
    "buildMetadata",
    "sortOptions",
    "generatorOptions",
    "helmGlobals",
    "validators",
];

/// File that kustomize reads by its name.
pub(crate) enum KustomizationFile<'a> {
    /// The document that kustomize takes from it.
    Read(&'a Node),
    /// Nothing that kustomize takes.
    Unread,
}

/// Returns the file as kustomize would read it; `None` for a file of another name, an empty one, and an object of another
/// group.
pub(crate) fn kustomization_of<'a>(path: &str, parsed: &'a ParsedFile) -> Option<KustomizationFile<'a>> {
    if !KUSTOMIZATION_NAMES.contains(&file_name(path)) {
        return None;
    }
    let mut nodes = parsed.roots.iter().map(|root| &root.node).filter(|node| !node.is_null());
    let (first, is_one) = (nodes.next(), nodes.next().is_none() && parsed.failure.is_none());
    if first.is_none() && is_one {
        return None;
    }
    let Some(node) = first.filter(|node| is_one && node.entries().is_some()) else {
        return Some(KustomizationFile::Unread);
    };
    let text = |key: &str| node.entry(key).and_then(|entry| entry.value.text());
    let is_of_group = text("apiVersion").is_none_or(|text| text.starts_with("kustomize.config.k8s.io/"));
    match text("kind") {
        _ if !is_of_group => None,
        None | Some("Kustomization" | "Component") => Some(KustomizationFile::Read(node)),
        Some(_) => Some(KustomizationFile::Unread),
    }
}

/// Marks a kustomization that cannot be read, so that what it may change is not applied.
pub(crate) fn unread_kustomization(path: &str, mut loaded: ManifestFile) -> ManifestFile {
    let problem = Problem::new(
        Mark { line: 1, column: 1 },
        &rules::KUSTOMIZATION,
        "a kustomization that cannot be read: the manifests in and below its folder are not applied",
    );
    let problem = problem.help("mend it, or list its folder in `.minik8signore`");
    loaded.violations.push(violation(path, problem, None));
    let kustomization = Some(Kustomization { is_unread: true, ..Kustomization::default() });
    ManifestFile { kustomization, is_manifest: true, ..loaded }
}

/// Reads a kustomization: with a note if it only lists files, with an error if it would change them.
pub(crate) fn read_kustomization(path: &str, node: &Node) -> ManifestFile {
    let (mut named, mut changes): (_, Vec<&Entry>) = (Kustomization::default(), Vec::new());
    for entry in node.entries().unwrap_or_default().iter().filter(|entry| !is_empty(&entry.value)) {
        let mut texts = Vec::new();
        collect_texts(&entry.value, &mut texts);
        let is_remote =
            |text: &&str| text.contains("//") || text.contains("?ref=") || text.starts_with("github.com/");
        let lists = RESOURCES.contains(&entry.key.as_str());
        if !WITHOUT_CHANGE.contains(&entry.key.as_str()) || lists && texts.iter().any(is_remote) {
            changes.push(entry);
        }
        // Other fields name files, too, generators as `key=file`.
        let files = texts.iter().map(|text| text.rsplit_once('=').map_or(*text, |(_, file)| file));
        let files = files.filter(|file| lists || Format::from_path(file).is_some());
        named.files.extend(files.filter_map(|file| beside(path, file)));
    }
    let problem = match changes.first() {
        None => left_out(
            node.first_mark(),
            "Kustomization",
            "it only lists files, and every manifest of the repository is loaded, listed or not",
        ),
        Some(first) => {
            let fields = list(changes.iter().map(|entry| entry.key.as_str()));
            let message = format!(
                "a kustomization is not rendered, and {fields} would change or add to the manifests that it lists: these are not applied"
            );
            Problem::new(first.mark, &rules::KUSTOMIZATION, message).help(
                "put what `kubectl kustomize` prints into the repository, and list this folder and those it refers to in `.minik8signore`",
            )
        }
    };
    let violations = vec![violation(path, problem, None)];
    ManifestFile {
        violations,
        is_manifest: !changes.is_empty(),
        kustomization: Some(named),
        ..ManifestFile::default()
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn is_empty(node: &Node) -> bool {
    match &node.value {
        Value::Scalar { text, .. } => text.is_empty() || node.is_null(),
        Value::Sequence(items) => items.is_empty(),
        Value::Mapping(entries) => entries.is_empty(),
    }
}

fn collect_texts<'a>(node: &'a Node, texts: &mut Vec<&'a str>) {
    match &node.value {
        Value::Scalar { text, .. } => texts.push(text),
        Value::Sequence(items) => items.iter().for_each(|item| collect_texts(item, texts)),
        Value::Mapping(entries) => entries.iter().for_each(|entry| collect_texts(&entry.value, texts)),
    }
}

/// Resolves a path as written in the file `path`, from that file's folder; `None` if it leads out of the repository.
fn beside(path: &str, written: &str) -> Option<String> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts = Vec::new();
    for part in folder.split('/').chain(written.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

// Compose files. Their services run nowhere, which their author must be told.

/// Top-level fields of a Compose file, beside those that begin with `x-`.
const COMPOSE_FIELDS: [&str; 8] =
    ["services", "version", "name", "include", "volumes", "networks", "secrets", "configs"];

/// Returns the note on a Compose file.
pub(crate) fn compose_note(path: &str, node: &Node) -> Option<Problem> {
    let services = node.entry("services")?;
    let is_field = |key: &str| COMPOSE_FIELDS.contains(&key) || key.starts_with("x-");
    let is_named = ["compose", "docker-compose"].iter().any(|name| file_name(path).starts_with(name));
    let runs = |service: &Entry| ["image", "build"].iter().any(|key| service.value.entry(key).is_some());
    let is_compose = node.entries()?.iter().all(|entry| is_field(&entry.key))
        && services.value.entries()?.iter().any(|service| is_named || runs(service));
    let message = "this is a Compose file, which is not read: none of its services runs here";
    let help = "write a Pod, or a ReplicaSet and a Service, for each of them";
    is_compose.then(|| Problem::new(services.mark, &rules::NO_EFFECT, message).help(help))
}
