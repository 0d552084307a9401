//! Loads YAML or JSON bytes into typed objects with file, line and column.
//!
//! Reads one file's bytes, decides whether it is a manifest and what is wrong with it, writes nothing. One
//! direction: bytes, text, nodes that know their line, documents meant as manifests, the walk along the kind's
//! schema, the typed spec, its defaults, its `validate`. One run reports all violations.

mod classify;
mod decode;
mod definition;
pub(crate) mod dialects;
mod draft;
pub mod json_schema;
mod layout;
mod sealing;
pub(crate) mod shape;
pub(crate) mod states_language;
pub(crate) mod unsupported;

use super::document;
use super::document::node::{IGNORE_HELP, Mark, Node, ParsedFile, Problem, Root};
use super::document::problems::{Faults, KEPT_MAX, Problems, violation};
use super::document::{Format, parse};
use super::kinds::cluster::PodSecurity;
use super::kinds::content::Values;
use super::kinds::{Kind, KindSpec, Resource, SpecVisitor};
use super::meta::ObjectRef;
use super::secrets::format::sops::is_sops;
use crate::file_text::file_text;
use crate::violation::{Rule, Severity, TEXT_MAX_CHARS, Violation, rules, shortened};
use classify::{DocumentClass, KustomizationFile, expand_list};
use decode::object_name;

pub use super::document::limits;
pub use super::document::nearest::{nearest, suggestion};
pub use classify::KUSTOMIZATION_NAMES;
pub use definition::{BARE_NAME, fill_in_definition, load_definition};
pub use draft::{BrokenDocument, Document, DraftObject, FieldLocation, Kustomization, ManifestFile};
pub use layout::Layout;
pub use sealing::{FileOfSecrets, FoundSecret, SealedLine, SecretObject, seal_line};
pub use unsupported::kind_help as foreign_kind;

/// True if a file of this name can be a manifest or change one: `.yaml`, `.yml`, `.json` or `Kustomization`, but no
/// file of SOPS.
pub fn is_manifest_path(path: &str) -> bool {
    Format::from_path(path).is_some() && !is_sops(path)
}

/// Loads one file. `path` is relative to the repository and names the file in violations; its extension selects the
/// format. Never panics, whatever the bytes.
pub fn load_file(path: &str, bytes: &[u8]) -> ManifestFile {
    or_foreign(path, bytes, load_keeping(path, bytes, None))
}

/// Lines above restrictions on pods that are read as part of a Cluster object, and the columns left of them.
const AROUND_POD_SECURITY: (&str, usize) =
    ("apiVersion: minik8s.io/v1\nkind: Cluster\nmetadata: {name: cluster}\nspec:\n  podSecurity:\n", 4);

/// Reads a file with the fields of the Cluster object's `podSecurity`, as strictly as a manifest; or returns its
/// errors.
pub fn load_pod_security(file: &str, text: &str) -> Result<PodSecurity, Vec<Violation>> {
    let text = file_text(text.as_bytes()).unwrap_or(text);
    let is_blank = |line: &str| matches!(line.trim(), "" | "---") || line.trim().starts_with('#');
    if text.lines().all(is_blank) {
        return Err(vec![Violation {
            file: file.to_owned(),
            line: 1,
            column: 1,
            severity: Severity::Error,
            rule: rules::REQUIRED.id.to_owned(),
            message: "Required value: the file has no restriction on pods".to_owned(),
            help: "write at least one, for example `level: baseline`".to_owned(),
            object: None,
        }]);
    }
    let (above, columns) = AROUND_POD_SECURITY;
    let lines = text.strip_prefix("---\n").map_or_else(|| text.to_owned(), |rest| format!("\n{rest}"));
    let left = " ".repeat(columns);
    let lines: String = lines.lines().map(|line| format!("{left}{line}\n")).collect();
    let loaded = load_file("cluster.yaml", format!("{above}{lines}").as_bytes());
    let errors = loaded.violations.into_iter().filter(Violation::is_error);
    let moved = |count: u32, by: usize| count.saturating_sub(u32::try_from(by).unwrap_or(u32::MAX));
    let errors = errors.map(|error| Violation {
        file: file.to_owned(),
        line: moved(error.line, above.lines().count()),
        column: moved(error.column, columns),
        object: None,
        ..error
    });
    let errors: Vec<Violation> = errors.collect();
    match loaded.documents.first().map(|document| &document.object.resource) {
        Some(Resource::Cluster(cluster)) if errors.is_empty() => Ok(cluster.pod_security.clone()),
        _ => Err(errors),
    }
}

/// Like [`load_file`], and keeps the place of everything in the file.
pub fn load_file_with_layout(path: &str, bytes: &[u8]) -> (ManifestFile, Layout) {
    let mut layout = Layout::default();
    let loaded = load_keeping(path, bytes, Some(&mut layout));
    (or_foreign(path, bytes, loaded), layout)
}

/// Rules about the text of a file, whatever it is meant to be.
const TEXT_RULES: [&Rule; 8] = [
    &rules::YAML_SYNTAX,
    &rules::JSON_SYNTAX,
    &rules::YAML_TAG,
    &rules::DUPLICATE_KEY,
    &rules::TOO_LARGE,
    &rules::TOO_DEEP,
    &rules::TOO_MANY_NODES,
    &rules::TOO_MANY_DOCUMENTS,
];

/// Treats an unreadable file in another program's folder (`.vscode/settings.json`), or JSON with comments anywhere
/// (`tsconfig.json`), as another program's if it has none of the words of a manifest: it holds up nothing. If live
/// objects came from it, the checks across files find that they are missing. YAML in a folder of manifests is likely
/// meant as a manifest, or as a template of one.
fn or_foreign(path: &str, bytes: &[u8], loaded: ManifestFile) -> ManifestFile {
    let is_hidden = path.split('/').any(|part| part.starts_with('.'));
    let rules = TEXT_RULES.iter().filter(|rule| is_hidden || **rule == &rules::JSON_SYNTAX);
    let is_of_text = |violation: &Violation| rules.clone().any(|rule| rule.id == violation.rule);
    let mut errors =
        loaded.violations.iter().filter(|violation| violation.severity == Severity::Error).peekable();
    let Some(first) = errors.peek().map(|first| (first.line, first.column, first.message.clone())) else {
        return loaded;
    };
    if !loaded.documents.is_empty() || !errors.all(is_of_text) || classify::has_words_of_manifest(bytes) {
        return loaded;
    }
    let (line, column, message) = first;
    let message =
        format!("treated as another program's file, as it names no kind and can't be read: {message}");
    let violation =
        Violation::new(&rules::FOREIGN_FILE, path, (line, column), shortened(message, TEXT_MAX_CHARS))
            .with_help("list it in .minik8signore");
    ManifestFile { violations: vec![violation], ..ManifestFile::default() }
}

fn load_keeping(path: &str, bytes: &[u8], layout: Option<&mut Layout>) -> ManifestFile {
    let Some(format) = Format::from_path(path) else { return ManifestFile::default() };
    let text = match document::read(bytes) {
        Ok(text) => text,
        Err(problem) => {
            let words = classify::words(&String::from_utf8_lossy(bytes));
            return ManifestFile { words, ..broken_file(path, problem) };
        }
    };
    let mut parsed = parse(format, text);
    let is_unread_kustomization = match classify::kustomization_of(path, &parsed) {
        Some(KustomizationFile::Read(node)) => return classify::read_kustomization(path, node),
        Some(KustomizationFile::Unread) => true,
        None => false,
    };
    let without_help = parsed.failure.as_mut().filter(|problem| problem.rule == &rules::JSON_SYNTAX);
    without_help.into_iter().for_each(|problem| problem.help = IGNORE_HELP.to_owned());
    let is_cut_short = parsed.failure.is_some();
    let (mut loaded, is_read) = match (format, classify::vanished_manifest(text, &parsed)) {
        (Format::Yaml, Some(problem)) => (broken_file(path, problem), false),
        _ => (load_parsed(path, parsed, layout), !is_cut_short),
    };
    if !is_read && loaded.is_manifest {
        loaded.words = classify::words(text);
    }
    if is_unread_kustomization { classify::unread_kustomization(path, loaded) } else { loaded }
}

fn load_parsed(path: &str, parsed: ParsedFile, mut layout: Option<&mut Layout>) -> ManifestFile {
    let roots: Vec<Root> = parsed.roots.into_iter().flat_map(expand_list).collect();
    let meanings: Vec<DocumentClass> = roots.iter().map(|root| classify::classify(&root.node)).collect();
    let any_manifest = meanings.contains(&DocumentClass::Manifest);
    if !any_manifest && parsed.failure.is_none() {
        let note = roots.iter().find_map(|root| classify::compose_note(path, &root.node));
        let violations = note.into_iter().map(|note| violation(path, note, None)).collect();
        return ManifestFile { violations, ..ManifestFile::default() };
    }
    let mut loaded = ManifestFile { is_manifest: true, ..ManifestFile::default() };
    let (mut left, mut left_out) = (parsed.left, 0);
    for (root, meaning) in roots.into_iter().zip(meanings) {
        match meaning {
            DocumentClass::Empty => {}
            DocumentClass::Manifest => {
                left_out += decode::load(path, root, &mut left, &mut loaded, layout.as_deref_mut());
            }
            // Next to manifests, a document of another sort is one whose kind was lost.
            DocumentClass::Other if any_manifest => {
                let problem = classify::stray_document(&root.node);
                loaded.violations.push(violation(path, problem, None));
            }
            DocumentClass::Other => {}
        }
        if loaded.violations.len() > 2 * KEPT_MAX {
            left_out += keep_first(&mut loaded.violations);
        }
    }
    loaded.violations.extend(parsed.failure.map(|problem| violation(path, problem, None)));
    left_out += keep_first(&mut loaded.violations);
    if left_out > 0 {
        let message = format!("{left_out} more violations of this file are not shown");
        let problem = Problem::new(Mark::default(), &rules::MORE_VIOLATIONS, message);
        loaded.violations.push(violation(path, problem, None));
    }
    loaded.violations.sort_by(|a, b| (a.line, a.column, &a.rule).cmp(&(b.line, b.column, &b.rule)));
    loaded
}

/// Keeps the first of very many, errors before all: dropping some never lets a file pass. Returns the number of
/// dropped ones.
fn keep_first(violations: &mut Vec<Violation>) -> usize {
    let left_out = violations.len().saturating_sub(limits::VIOLATIONS_MAX);
    if left_out > 0 {
        violations.sort_by_key(|violation| (violation.severity, violation.line, violation.column));
        violations.truncate(limits::VIOLATIONS_MAX);
    }
    left_out
}

/// Returns a file that is entirely unusable.
fn broken_file(path: &str, problem: Problem) -> ManifestFile {
    let violations = vec![violation(path, problem, None)];
    ManifestFile { violations, is_manifest: true, ..ManifestFile::default() }
}

// Values of an object whose content travels by digest, reread from its manifest when a node requests them.

/// Returns the values of `object` in the file `path` with these bytes; `None` if it has no such object with content.
pub fn values_of(path: &str, bytes: &[u8], object: &ObjectRef) -> Option<Values> {
    let parsed = parse(Format::from_path(path)?, document::read(bytes).ok()?);
    let (mut left, name) = (parsed.left, object.to_string());
    for mut root in parsed.roots.into_iter().flat_map(expand_list) {
        dialects::rewrite(&mut root.node, &mut left, &mut Problems::default());
        if object_name(&root.node).is_some_and(|found| found == name) {
            return object.kind.visit(ValuesVisitor(&root.node, object.kind));
        }
    }
    None
}

struct ValuesVisitor<'a>(&'a Node, Kind);

impl SpecVisitor for ValuesVisitor<'_> {
    type Output = Option<Values>;

    fn visit<S: KindSpec>(self, _: fn(S) -> Resource) -> Option<Values> {
        let content = S::LINKS.content?;
        let spec: S = decode::spec(self.0, self.1, &mut Problems::default(), &mut Faults::default())?;
        Some((content.values)(&spec))
    }
}
