//! Python code of functions that can't be parsed: said before a push, by the Python of this machine. It parses the code
//! and runs none of it. Blocking.
//!
//! Decides which modules calls begin in; what is imported from there is found by the build or the start of a replica.

use std::io::Write as _;
use std::process::{Command, Stdio};

use schema::files::normal_path;
use schema::kinds::Resource;
use schema::kinds::function::{FunctionSpec, Runtime};
use schema::manifest::Document;
use schema::violation::{Violation, rules};
use serde::{Deserialize, Serialize};

use super::Manifests;

/// Parses a list of modules, and says of each that can't be parsed why. The alarm ends it whatever the code is like.
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
json.dump(found, sys.stdout)
"#;

/// Where Python is looked for.
const PYTHON: &str = "python3";

/// A module in which calls begin.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Module {
    path: String,
    text: String,
    #[serde(skip)]
    function: String,
}

#[derive(Deserialize)]
struct Found {
    path: String,
    line: u32,
    column: u32,
    message: String,
}

/// The modules of all functions; `read` gives a file of the repository, none if it is not there.
pub(crate) fn modules(manifests: &Manifests, read: impl Fn(&str) -> Option<String>) -> Vec<Module> {
    let documents = manifests.values().flat_map(|file| &file.documents);
    let mut modules: Vec<Module> = documents.flat_map(|document| of_function(document, &read)).collect();
    modules.sort();
    modules.dedup_by(|one, other| one.path == other.path);
    modules
}

fn of_function(document: &Document, read: impl Fn(&str) -> Option<String>) -> Vec<Module> {
    let Resource::Function(spec) = &document.object.resource else { return Vec::new() };
    let Some(source) = spec.source.as_deref().map(normal_path) else { return Vec::new() };
    let below = |file: &str| if source == "." { file.to_owned() } else { format!("{source}/{file}") };
    let is_python = spec.runtime == Some(Runtime::Python) || read(&below("Dockerfile")).is_none();
    if !is_python {
        return Vec::new();
    }
    let files = ["main.py".to_owned(), "func.py".to_owned()].into_iter().chain(handler_file(spec));
    let module = |file: String| {
        let path = below(&file);
        Some(Module { text: read(&path)?, path, function: document.reference.to_string() })
    };
    files.filter_map(module).collect()
}

/// The file of the module that the handler names.
fn handler_file(spec: &FunctionSpec) -> Option<String> {
    let (module, _) = spec.handler.as_deref()?.rsplit_once('.')?;
    Some(format!("{}.py", module.replace('.', "/")))
}

/// What is wrong with modules; a note where this machine has no Python.
pub(crate) fn check(modules: &[Module]) -> Vec<Violation> {
    check_with(PYTHON, modules)
}

fn check_with(python: &str, modules: &[Module]) -> Vec<Violation> {
    let Some(first) = modules.first() else { return Vec::new() };
    let found = match parse(python, modules) {
        Ok(found) => found,
        Err(why) => {
            let message = format!("the syntax of Python functions is not checked: {why}");
            let note = Violation::of(&rules::PYTHON_UNCHECKED, first.path.as_str(), (0, 0), message);
            return vec![note.with_help("install python3; a build would find it, too")];
        }
    };
    let violation = |found: Found| {
        let function = modules.iter().find(|module| module.path == found.path)?;
        let at = (found.line, found.column);
        Some(Violation::of(&rules::PYTHON_SYNTAX, found.path, at, found.message).about(&function.function))
    };
    found.into_iter().filter_map(violation).collect()
}

fn parse(python: &str, modules: &[Module]) -> Result<Vec<Found>, String> {
    // Isolated: nothing of this folder or of the environment is imported.
    let mut command = Command::new(python);
    command
        .args(["-I", "-S", "-c", PARSE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("cannot run {python} here ({error})"))?;
    let asked = serde_json::to_vec(modules).map_err(|error| error.to_string())?;
    if let Some(mut stdin) = child.stdin.take() {
        // It reads all before it answers. One that ends early says so by its status.
        let _ = stdin.write_all(&asked);
    }
    let done = child.wait_with_output().map_err(|error| error.to_string())?;
    if !done.status.success() {
        return Err(format!("{python} did not finish ({})", done.status));
    }
    serde_json::from_slice(&done.stdout)
        .map_err(|error| format!("{python} answered something else ({error})"))
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
        let found = check(&code);
        let [broken, nul] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((broken.file.as_str(), broken.line), ("b/main.py", 3), "{broken}");
        assert!(
            broken.message.starts_with("SyntaxError: ") && broken.message.contains("def main(params:"),
            "{broken}"
        );
        assert_eq!((nul.file.as_str(), nul.rule.as_str()), ("c/main.py", "python-syntax"));
    }

    #[test]
    fn without_python_it_is_said_that_nothing_was_checked() {
        let found = check_with("no-such-python", &[module("a/main.py", "(")]);
        assert_eq!(found.iter().map(|one| one.rule.as_str()).collect::<Vec<_>>(), ["python-unchecked"]);
        assert!(check_with("no-such-python", &[]).is_empty(), "nor is there anything to check");
    }

    #[test]
    fn code_that_is_nested_without_end_is_an_error_or_unchecked_and_no_crash() {
        let found = check(&[module("a/main.py", &"(".repeat(200_000))]);
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
