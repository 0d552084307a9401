//! Decides whether the files of a folder can become a function: of a commit before it is applied, and of the folder on
//! a node before a build. Pure.

use super::{DEFAULT_HANDLER, FunctionSpec, Runtime};

/// Files whose function is called if no handler names a module, in order of precedence.
pub const MAIN_FILES: [&str; 2] = ["main.py", "func.py"];
/// File that makes a folder an image by itself.
pub const DOCKERFILE: &str = "Dockerfile";

/// Returns the runtime of the folder `path`: as the manifest says, or else by its files. Fails if it holds neither a
/// Dockerfile nor a Python module, in any of its folders.
pub fn detect_runtime(
    path: &str,
    runtime: Option<Runtime>,
    has_dockerfile: bool,
    has_python: bool,
) -> Result<Runtime, String> {
    match (runtime, has_dockerfile, has_python) {
        (Some(Runtime::Dockerfile), true, _) | (None, true, _) => Ok(Runtime::Dockerfile),
        (Some(Runtime::Python), _, _) | (None, false, true) => Ok(Runtime::Python),
        (Some(Runtime::Dockerfile), false, _) => Err(format!("{path} holds no Dockerfile")),
        (None, false, false) => Err(format!("{path} holds neither main.py nor func.py nor a Dockerfile")),
    }
}

/// True for the name of a Python module's file.
pub fn is_python_file(name: &str) -> bool {
    name.ends_with(".py")
}

/// A folder of the repository, for [`handler_fault`].
pub trait FunctionFolder {
    /// True if the folder holds a file or folder of this path.
    fn holds(&self, path: &str) -> bool;

    /// Returns a file's text, if it is short enough and UTF-8.
    fn text(&self, path: &str) -> Option<String>;
}

/// Returns why Python will not find the handler in the folder `path`, as far as its files tell for certain. A module
/// that `requirements.txt` may install, or a name that code may set at run time, is left to the build and the start.
pub fn handler_fault(spec: &FunctionSpec, path: &str, folder: &impl FunctionFolder) -> Option<String> {
    let handler = spec.handler.as_deref().unwrap_or(DEFAULT_HANDLER);
    let Some((module, name)) = handler.rsplit_once('.') else {
        let Some(file) = MAIN_FILES.into_iter().find(|file| folder.holds(file)) else {
            return Some(format!(
                "{path} holds neither main.py nor func.py; add one, or name the module, as in `handler: module.{handler}`"
            ));
        };
        return name_fault(handler, &format!("{path}/{file}"), folder.text(file)?.as_str());
    };
    let file = module.replace('.', "/");
    let candidates = [format!("{file}.py"), format!("{file}/__init__.py")];
    match candidates.iter().find(|file| folder.holds(file)) {
        Some(file) => name_fault(name, &format!("{path}/{file}"), folder.text(file)?.as_str()),
        // Also a folder without `__init__.py`, and compiled modules.
        None if folder.holds(&file) || folder.holds("requirements.txt") || folder.holds("wheels") => None,
        None => Some(format!("{path} holds no module `{module}`: there is no {}", candidates[0])),
    }
}

/// Ways in which a module can have a name that its text does not contain.
const DYNAMIC: [&str; 8] =
    ["import *", "globals", "__getattr__", "setattr", "exec", "eval", "__dict__", "sys.modules"];

fn name_fault(name: &str, file: &str, text: &str) -> Option<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let has_name = text.split(|c| !is_part(c)).any(|word| word == name);
    let may_set_it = DYNAMIC.iter().any(|words| text.contains(words));
    (!has_name && !may_set_it).then(|| format!("{file} has no function `{name}`"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    impl FunctionFolder for BTreeMap<&str, &str> {
        fn holds(&self, path: &str) -> bool {
            self.keys().any(|file| *file == path || file.starts_with(&format!("{path}/")))
        }

        fn text(&self, path: &str) -> Option<String> {
            self.get(path).map(|text| (*text).to_owned())
        }
    }

    fn fault(handler: Option<&str>, files: &[(&'static str, &'static str)]) -> Option<String> {
        let spec = FunctionSpec { handler: handler.map(str::to_owned), ..FunctionSpec::default() };
        handler_fault(&spec, "f", &files.iter().copied().collect::<BTreeMap<_, _>>())
    }

    #[test]
    fn a_handler_that_no_file_can_have_is_refused() {
        let main = ("main.py", "def main(params):\n    return {}\n");
        for (handler, files, message) in [
            (None, &[("util.py", "")][..], "f holds neither main.py nor func.py"),
            (None, &[("main.py", "def mian(params): pass\n")], "f/main.py has no function `main`"),
            (
                None,
                &[("main.py", ""), ("func.py", "def main(p): pass\n")],
                "f/main.py has no function `main`",
            ),
            (Some("main.nofunc"), &[main], "f/main.py has no function `nofunc`"),
            (Some("nomod.f"), &[main], "f holds no module `nomod`: there is no nomod.py"),
            (Some("app.nomod.f"), &[("app/__init__.py", "")], "there is no app/nomod.py"),
        ] {
            let found = fault(handler, files).unwrap_or_default();
            assert!(found.contains(message), "{handler:?} {files:?}: {found}");
        }
    }

    #[test]
    fn what_may_be_found_at_run_time_is_left_to_the_run() {
        for (handler, files) in [
            (None, &[("func.py", "from app import main\n")][..]),
            (Some("handle"), &[("main.py", "handle = print\n")]),
            (Some("app.handlers.handle"), &[("app/handlers.py", "async def handle(params): pass\n")]),
            (Some("app.handle"), &[("app/__init__.py", "from .handlers import *\n")]),
            (Some("app.handle"), &[("app/x.so", "")]),
            (Some("installed.handle"), &[("requirements.txt", "installed\n")]),
            (Some("main.f"), &[("main.py", "globals()['f' + ''] = print\n")]),
        ] {
            assert_eq!(fault(handler, files), None, "{handler:?} {files:?}");
        }
    }

    #[test]
    fn the_runtime_follows_from_the_manifest_and_then_from_the_files() {
        use Runtime::{Dockerfile, Python};
        for (runtime, docker, python, expected) in [
            (None, true, true, Ok(Dockerfile)),
            (None, false, true, Ok(Python)),
            (None, false, false, Err("f holds neither main.py nor func.py nor a Dockerfile")),
            (Some(Python), true, true, Ok(Python)),
            // `requirements.txt` may install all of it.
            (Some(Python), false, false, Ok(Python)),
            (Some(Dockerfile), false, true, Err("f holds no Dockerfile")),
            (Some(Dockerfile), true, false, Ok(Dockerfile)),
        ] {
            let found = detect_runtime("f", runtime, docker, python);
            assert_eq!(found, expected.map_err(str::to_owned), "{runtime:?} {docker} {python}");
        }
    }
}
