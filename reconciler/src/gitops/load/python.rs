//! Syntax check of Python functions before a push, with the Python of this machine. It parses the code and runs
//! none of it. Blocking.
//!
//! Decides which modules to check: those in which calls begin, and those of the same folder that they import
//! unconditionally, on lines that are not indented.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};

use schema::content_refs::normalize_path;
use schema::kinds::Resource;
use schema::kinds::function::{FunctionSpec, Runtime};
use schema::manifest::Document;
use schema::violation::{Severity, Violation, rules};
use serde::{Deserialize, Serialize};

use super::Manifests;

/// Parses a list of modules, and reports the reason for each that can't be parsed. The alarm ends it whatever the
/// code is like.
const PARSE: &str = r#"
import json, signal, sys, warnings
signal.alarm(20)
warnings.simplefilter('ignore')
found = []
for module in json.load(sys.stdin):
    try:
        compile(module['text'], module['path'], 'exec', 0x400, True)
    except SyntaxError as error:
        line = (error.text or '').strip()
        found.append({'path': module['path'], 'line': error.lineno or 0, 'column': max(error.offset or 0, 0),
                      'message': f'{type(error).__name__}: {error.msg}' + (f': {line}' if line else '')})
    except (ValueError, RecursionError, MemoryError) as error:
        found.append({'path': module['path'], 'line': 0, 'column': 0, 'message': f'{type(error).__name__}: {error}'})
json.dump({'version': sys.version_info[:2], 'found': found}, sys.stdout)
"#;

/// Command for the Python interpreter.
const PYTHON: &str = "python3";
/// Python of Debian 12, whose packages the default base consists of; a node's may be newer.
const BASE_VERSION: (u32, u32) = (3, 11);

/// Limit on followed imports of a function, and on bytes of text, after which none is followed: the code may be
/// hostile.
const IMPORTS_MAX: usize = 500;
const TEXT_MAX_BYTES: usize = 64 << 20;
/// Limit on names in a module's path, and on bytes of a line that imports.
const DEPTH_MAX: usize = 10;
const LINE_MAX_BYTES: usize = 4 << 10;

/// A module that calls run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Module {
    path: String,
    text: String,
    #[serde(skip)]
    function: String,
}

#[derive(Deserialize)]
struct ParseResult {
    version: (u32, u32),
    found: Vec<SyntaxFault>,
}

#[derive(Deserialize)]
struct SyntaxFault {
    path: String,
    line: u32,
    column: u32,
    message: String,
}

/// Reports syntax errors in the code of all functions; a note if this machine has no Python. `read` returns a file
/// of the repository, `None` if it is missing.
pub(crate) fn check(manifests: &Manifests, read: impl Fn(&str) -> Option<String>) -> Vec<Violation> {
    check_with(PYTHON, &modules(manifests, read), overrides_base(manifests))
}

/// True if the cluster sets its own Python base.
fn overrides_base(manifests: &Manifests) -> bool {
    let mut documents = manifests.values().flat_map(|file| &file.documents);
    documents.any(|document| match &document.object.resource {
        Resource::Cluster(spec) => spec.functions.python_base.is_some(),
        _ => false,
    })
}

fn modules(manifests: &Manifests, read: impl Fn(&str) -> Option<String>) -> Vec<Module> {
    let mut modules = Modules { read, seen: BTreeSet::new(), bytes: 0, found: BTreeMap::new() };
    for document in manifests.values().flat_map(|file| &file.documents) {
        if let Resource::Function(spec) = &document.object.resource {
            modules.add_function(document, spec);
        }
    }
    modules.found.into_values().collect()
}

/// Collects the modules of all functions.
struct Modules<R> {
    read: R,
    /// Look-ups so far: the folder of a function, and the file in it.
    seen: BTreeSet<(String, String)>,
    bytes: usize,
    /// Modules by path.
    found: BTreeMap<String, Module>,
}

impl<R: Fn(&str) -> Option<String>> Modules<R> {
    fn add_function(&mut self, document: &Document, spec: &FunctionSpec) {
        let Some(source) = spec.source.as_deref().map(normalize_path) else { return };
        let below = |file: &str| if source == "." { file.to_owned() } else { format!("{source}/{file}") };
        let is_python = spec.runtime == Some(Runtime::Python) || (self.read)(&below("Dockerfile")).is_none();
        if !is_python {
            return;
        }
        let mut files = vec!["main.py".to_owned(), "func.py".to_owned()];
        files.extend(handler_file(spec));
        files.retain(|file| self.seen.insert((source.clone(), file.clone())));
        let most = files.len() + IMPORTS_MAX;
        let mut next = 0;
        while let Some(file) = files.get(next).cloned() {
            next += 1;
            let path = below(&file);
            let Some(text) = (self.read)(&path) else { continue };
            self.bytes += text.len();
            if self.bytes <= TEXT_MAX_BYTES {
                let new =
                    imports(&file, &text).filter(|file| self.seen.insert((source.clone(), file.clone())));
                files.extend(new.take(most.saturating_sub(files.len())));
            }
            let module = Module { text, path: path.clone(), function: document.reference.to_string() };
            self.found.insert(path, module);
        }
    }
}

/// Returns the files that a module's imports may refer to, if they exist.
fn imports<'t>(file: &'t str, text: &'t str) -> impl Iterator<Item = String> + 't {
    let folder: Vec<&str> =
        file.rsplit_once('/').map_or(Vec::new(), |(folder, _)| folder.split('/').collect());
    // Indented imports may be for another Python only, or may fail without harm.
    text.lines().flat_map(named).filter_map(move |module| path(&folder, &module)).flat_map(|parts| {
        // A package's own file runs before its contents.
        let packages = (1..=parts.len()).map(|end| format!("{}/__init__.py", parts[..end].join("/")));
        packages.chain([format!("{}.py", parts.join("/"))]).collect::<Vec<_>>()
    })
}

/// Returns the modules that a line imports, as written.
fn named(line: &str) -> Vec<String> {
    let first_word = |text: &str| text.split_whitespace().next().unwrap_or_default().to_owned();
    if line.len() > LINE_MAX_BYTES {
        return Vec::new();
    }
    if let Some(names) = line.strip_prefix("import ") {
        return names.split(',').map(first_word).collect();
    }
    let Some((from, names)) = line.strip_prefix("from ").and_then(|line| line.split_once(" import ")) else {
        return Vec::new();
    };
    // A name imported from a package may be a module of it.
    let from = from.trim();
    let dot = if from.ends_with('.') { "" } else { "." };
    let names = names.split(',').map(|name| first_word(name.trim_matches(['(', ')', ' '])));
    names.map(|name| format!("{from}{dot}{name}")).chain([from.to_owned()]).collect()
}

/// Resolves a module imported in this folder as Python does: leading dots lead upwards.
fn path(folder: &[&str], module: &str) -> Option<Vec<String>> {
    let name = module.trim_start_matches('.');
    let up = module.len() - name.len();
    let from = if up == 0 { &[][..] } else { folder.get(..folder.len().checked_sub(up - 1)?)? };
    let names = name.split('.').filter(|part| !part.is_empty()).take(DEPTH_MAX + 1);
    let parts: Vec<String> = from.iter().copied().chain(names).map(str::to_owned).collect();
    let is_name = |part: &String| part.chars().all(|c| c.is_alphanumeric() || c == '_');
    ((1..=DEPTH_MAX).contains(&parts.len()) && parts.iter().all(is_name)).then_some(parts)
}

/// Returns the file of the handler's module.
fn handler_file(spec: &FunctionSpec) -> Option<String> {
    let (module, _) = spec.handler.as_deref()?.rsplit_once('.')?;
    Some(format!("{}.py", module.replace('.', "/")))
}

fn check_with(python: &str, modules: &[Module], names_base: bool) -> Vec<Violation> {
    let Some(first) = modules.first() else { return Vec::new() };
    let ParseResult { version, found } = match parse(python, modules) {
        Ok(parsed) => parsed,
        Err(why) => {
            let message = format!("the syntax of Python functions is not checked: {why}");
            let note = Violation::new(&rules::PYTHON_UNCHECKED, first.path.as_str(), (0, 0), message);
            return vec![note.with_help("install python3; a build would also find syntax errors")];
        }
    };
    found.into_iter().filter_map(|found| violation(found, modules, version, names_base)).collect()
}

fn violation(
    found: SyntaxFault,
    modules: &[Module],
    version: (u32, u32),
    names_base: bool,
) -> Option<Violation> {
    let function = modules.iter().find(|module| module.path == found.path)?;
    let SyntaxFault { path, line, column, message } = found;
    let message = format!("{message} (parsed by Python {}.{})", version.0, version.1);
    let violation = Violation::new(&rules::PYTHON_SYNTAX, path, (line, column), message);
    let violation = violation.about(&function.function);
    if !names_base && version >= BASE_VERSION {
        return Some(violation);
    }
    // A newer Python may know the syntax.
    let help = "the cluster's Python may be newer than this machine's python3; the build there decides";
    Some(Violation { severity: Severity::Warning, ..violation.with_help(help) })
}

fn parse(python: &str, modules: &[Module]) -> Result<ParseResult, String> {
    // Isolated mode: nothing from this folder or the environment is imported.
    let mut command = Command::new(python);
    command
        .args(["-I", "-S", "-c", PARSE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("cannot run {python} here ({error})"))?;
    let asked = serde_json::to_vec(modules).map_err(|error| error.to_string())?;
    if let Some(mut stdin) = child.stdin.take() {
        // Python reads all input before it answers. An early exit shows in its status.
        let _ = stdin.write_all(&asked);
    }
    let done = child.wait_with_output().map_err(|error| error.to_string())?;
    if !done.status.success() {
        return Err(format!("{python} did not finish ({})", done.status));
    }
    serde_json::from_slice(&done.stdout)
        .map_err(|error| format!("{python} gave an unexpected answer ({error})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str, text: &str) -> Module {
        Module { path: path.to_owned(), text: text.to_owned(), function: "Function/default/f".to_owned() }
    }

    #[test]
    fn code_that_cannot_be_parsed_is_said_with_its_line_and_nothing_of_it_runs() {
        let code = [
            module("a/main.py", "import not_there\nraise SystemExit(3)\n"),
            module("b/main.py", "import os\n\ndef main(params:\n    pass\n"),
            module("c/main.py", "x = '\0'\n"),
        ];
        let found = check_with(PYTHON, &code, false);
        let [broken, nul] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((broken.file.as_str(), broken.line), ("b/main.py", 3), "{broken}");
        assert!(
            broken.message.starts_with("SyntaxError: ") && broken.message.contains("def main(params:"),
            "{broken}"
        );
        assert_eq!((nul.file.as_str(), nul.rule.as_str()), ("c/main.py", "python-syntax"));
    }

    #[test]
    fn what_a_module_of_the_folder_imports_is_looked_at_too() {
        let found = |file: &str, text: &str| imports(file, text).collect::<Vec<_>>();
        assert_eq!(
            found("main.py", "import json, a.b as c\n"),
            ["json/__init__.py", "json.py", "a/__init__.py", "a/b/__init__.py", "a/b.py"]
        );
        let of_package = found("pkg/one.py", "from . import two\nfrom ..three import (four)\n");
        for file in ["pkg/__init__.py", "pkg/two.py", "three.py", "three/four.py"] {
            assert!(of_package.contains(&file.to_owned()), "{file}: {of_package:?}");
        }
        let of_another = "from ... import x\nimport ../../etc\n'import'\ntry:\n    import new\n";
        assert!(found("main.py", of_another).is_empty());
        // Hostile input.
        let deep = format!("import a{}\nfrom a import a{}\n", ".a".repeat(1_000), ",a".repeat(200_000));
        assert!(found("main.py", &deep).is_empty());
    }

    #[test]
    fn an_older_python_than_the_clusters_only_warns() {
        let modules = [module("a/main.py", "type X = int\n")];
        let severity = |version, names_base| {
            let path = "a/main.py".to_owned();
            let found = SyntaxFault { path, line: 1, column: 1, message: "SyntaxError: no".to_owned() };
            let violation = violation(found, &modules, version, names_base).unwrap();
            let says = format!("parsed by Python {}.{}", version.0, version.1);
            assert!(violation.message.contains(&says), "{violation}");
            violation.severity
        };
        assert_eq!(severity((3, 11), false), Severity::Error);
        assert_eq!(severity((3, 10), false), Severity::Warning);
        assert_eq!(severity((3, 13), true), Severity::Warning);
    }

    #[test]
    fn without_python_it_is_said_that_nothing_was_checked() {
        let found = check_with("no-such-python", &[module("a/main.py", "(")], false);
        assert_eq!(found.iter().map(|one| one.rule.as_str()).collect::<Vec<_>>(), ["python-unchecked"]);
        assert!(check_with("no-such-python", &[], false).is_empty(), "nor is there anything to check");
    }

    #[test]
    fn code_that_is_nested_without_end_is_an_error_or_unchecked_and_no_crash() {
        let found = check_with(PYTHON, &[module("a/main.py", &"(".repeat(200_000))], false);
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
