//! The shape of the three crates: small folders, loops that don't import each other, tasks of the runtime's
//! set, no circles of imports.

use std::collections::{BTreeMap, BTreeSet};

use crate::{CRATES, Source, check, code, names, rust};

/// Most source files right in a folder: one that grows past it holds two things.
const FILES_MAX: usize = 20;

/// Most production files of the three crates: merge halves of a thing before you add one. 30 of them are for the page,
/// 35 for metrics and notifications, 59 for trust.
const PRODUCTION_FILES_MAX: usize = 783;

/// Least lines of the median production file.
const MEDIAN_LINES_MIN: usize = 135;

/// What a loop does in `act` and `report` only.
const ACTS: [&str; 15] = [
    "File::create",
    "fs::write",
    "fs::remove",
    "fs::rename",
    "fs::create",
    "DiskRecord",
    "write_bytes(",
    ".write(",
    "send_replace",
    "send_if_modified",
    "publish(",
    ".txn(",
    ".put(",
    ".record(",
    "self.record_",
];

pub(super) fn is_test(path: &str) -> bool {
    let parts = || path.trim_end_matches(".rs").split('/');
    parts().any(|part| ["tests", "test", "testing", "fake", "arbitrary", "simulation"].contains(&part))
        || path.ends_with("_tests.rs")
        || path.starts_with("schema/src/store/memory/")
}

/// Production files of a crate.
pub(crate) fn of_crate<'a>(files: &'a [Source], name: &str) -> Vec<&'a Source> {
    let root = format!("{name}/src/");
    files.iter().filter(|file| file.path.starts_with(&root) && !is_test(&file.path)).collect()
}

/// The text up to the tests at its end. A `mod tests;` further up ends nothing.
pub(crate) fn production(text: &str) -> &str {
    let at = text.match_indices("#[cfg(test)]\nmod ").find(|(at, _)| {
        let line = text[*at..].lines().nth(1).unwrap_or_default();
        line.ends_with('{') || text[*at..].lines().nth(2).is_none()
    });
    at.map_or(text, |(at, _)| &text[..at])
}

#[test]
fn no_folder_of_the_crates_holds_more_than_20_files() {
    let files = rust();
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    for file in &files {
        if CRATES.iter().any(|name| file.path.starts_with(&format!("{name}/"))) {
            *folders.entry(file.path.rsplit_once('/').expect("a path has a folder").0).or_default() += 1;
        }
    }
    assert!(folders.len() > 10, "found only {} folders: the rule is broken", folders.len());
    let full = folders.iter().filter(|(_, count)| **count > FILES_MAX);
    check(
        &full
            .map(|(folder, count)| format!("{folder}: {count} files, {FILES_MAX} at most"))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn files_of_the_crates_are_few_and_of_a_good_size() {
    let files = rust();
    let mut lines: Vec<usize> = CRATES
        .iter()
        .flat_map(|name| of_crate(&files, name))
        .map(|file| production(&file.text).lines().count())
        .collect();
    lines.sort_unstable();
    let (count, median) = (lines.len(), lines[lines.len() / 2]);
    assert!(count <= PRODUCTION_FILES_MAX, "{count} production files, {PRODUCTION_FILES_MAX} at most");
    assert!(median >= MEDIAN_LINES_MIN, "the median file has {median} lines, {MEDIAN_LINES_MIN} at least");
}

#[test]
fn no_loop_of_the_agent_imports_another() {
    let files = rust();
    let imports = imports(&of_crate(&files, "agent"), "agent");
    assert!(imports.loops().len() > 10, "found only {:?}: the rule is broken", imports.loops());
    check(&imports.between_loops());
}

#[test]
fn tasks_belong_to_the_runtime() {
    let files = rust();
    let spawns = |file: &&Source| {
        !file.path.starts_with("schema/src/control/")
            && code(production(&file.text)).any(|(_, line)| spawns_a_task(line))
    };
    let found = CRATES.iter().flat_map(|name| of_crate(&files, name)).filter(spawns);
    check(&found.map(|file| format!("{}: calls tokio::spawn", file.path)).collect::<Vec<_>>());
}

/// Starts a task, or imports what does.
fn spawns_a_task(line: &str) -> bool {
    let is_imported = line.trim_start().starts_with("use tokio::") && names(line, "spawn");
    is_imported || ["tokio::spawn", "task::spawn"].iter().any(|name| names(line, name))
}

#[test]
fn no_loop_writes_or_publishes_while_it_observes() {
    let (mut complaints, mut looks) = (Vec::new(), 0);
    let files = rust();
    for file in CRATES.iter().flat_map(|name| of_crate(&files, name)) {
        let found = acts_of_observe(file);
        looks += found.0;
        complaints.extend(found.1);
    }
    assert!(looks > 15, "found only {looks} loops: the rule is broken");
    check(&complaints);
}

/// How many loops observe in this file, and what else they do there.
fn acts_of_observe(file: &Source) -> (usize, Vec<String>) {
    let only_reads = file.path.ends_with("/observe.rs");
    let (mut looks, mut found, mut end) = (0, Vec::new(), None);
    for (number, line) in code(production(&file.text)) {
        let indent = line.len() - line.trim_start().len();
        if line.trim_start().starts_with("async fn observe(") && !line.ends_with(';') {
            looks += 1;
            end = Some(format!("{}}}", " ".repeat(indent)));
        }
        for act in ACTS.iter().filter(|act| (only_reads || end.is_some()) && line.contains(**act)) {
            found.push(format!("{}:{number}: {act} while a loop observes", file.path));
        }
        end = end.filter(|end| line != end);
    }
    (looks, found)
}

pub(crate) type Module = Vec<String>;

/// Which module each file is.
pub(crate) fn module_of(path: &str, name: &str) -> Module {
    let inner = path[name.len() + "/src/".len()..].trim_end_matches(".rs");
    let mut parts: Module = inner.split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| last == "mod" || last == "lib") {
        parts.pop();
    }
    parts
}

/// The paths of one `use` tree, flat.
fn flatten(tree: &str, before: &[String], paths: &mut Vec<Module>) {
    let tree = tree.trim();
    let part = |text: &str| {
        text.split("::").map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
    };
    let Some((head, group)) = tree.split_once('{') else {
        let path: Vec<String> = part(tree.split(" as ").next().unwrap_or(tree));
        paths.push([before, &path].concat());
        return;
    };
    let head: Vec<String> = part(head);
    let before = [before, &head].concat();
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    let (mut depth, mut start) = (0_i32, 0);
    for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 && !group[start..at].trim().is_empty() => {
                flatten(&group[start..at], &before, paths);
                start = at + 1;
            }
            ',' if depth == 0 => start = at + 1,
            _ => {}
        }
    }
}

/// What a crate's files import from each other: `use` trees, and paths that begin with `crate`, `self` or
/// `super` elsewhere.
pub(crate) struct Imports {
    /// What a module offers under a name that another module defines.
    offered: BTreeMap<(Module, String), Module>,
    used: BTreeMap<Module, Vec<Module>>,
}

pub(crate) fn imports(files: &[&Source], name: &str) -> Imports {
    let modules: BTreeSet<Module> = files.iter().map(|file| module_of(&file.path, name)).collect();
    let mut found = Imports { offered: BTreeMap::new(), used: BTreeMap::new() };
    for file in files {
        let module = module_of(&file.path, name);
        let text: String = code(production(&file.text)).map(|(_, line)| format!("{line}\n")).collect();
        // Who may see an item is no import.
        let text: String = text.split("pub(in ").enumerate().fold(String::new(), |text, (number, part)| {
            let part = if number == 0 { part } else { part.split_once(')').map_or(part, |(_, after)| after) };
            text + if number == 0 { "" } else { "pub" } + part
        });
        let absolute = |path: &Module| -> Option<Module> {
            match path.first()?.as_str() {
                "crate" => Some(path[1..].to_vec()),
                "self" => Some([&module[..], &path[1..]].concat()),
                "super" => {
                    let up = path.iter().take_while(|part| *part == "super").count();
                    Some([&module[..module.len().checked_sub(up)?], &path[up..]].concat())
                }
                first => {
                    let child = [&module[..], &[first.to_owned()]].concat();
                    modules.contains(&child).then(|| [&module[..], path].concat())
                }
            }
        };
        let mut used = Vec::new();
        let mut rest = String::new();
        for statement in text.split_inclusive(';') {
            let at = statement.rfind("use ").filter(|at| {
                let lead = statement[..*at].rsplit('\n').next().unwrap_or_default().trim();
                lead.is_empty() || lead.starts_with("pub")
            });
            let Some(at) = at else {
                rest.push_str(statement);
                continue;
            };
            rest.push_str(&statement[..at]);
            let is_offered = statement[..at].rsplit('\n').next().unwrap_or_default().contains("pub");
            let mut paths = Vec::new();
            flatten(statement[at + 4..].trim_end_matches(';'), &[], &mut paths);
            for mut path in paths.iter().filter_map(absolute) {
                if path.last().is_some_and(|last| last == "self") {
                    path.pop();
                }
                match path.last().cloned() {
                    Some(last) if is_offered => drop(found.offered.insert((module.clone(), last), path)),
                    _ => used.push(path),
                }
            }
        }
        // A path may begin with a name that the file imports.
        let by_name: BTreeMap<String, Module> =
            used.iter().filter_map(|path: &Module| Some((path.last()?.clone(), path.clone()))).collect();
        for word in rest.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':') {
            let path: Module = word.split("::").map(str::to_owned).filter(|part| !part.is_empty()).collect();
            let imported = || path.first().and_then(|first| by_name.get(first));
            let path_of = || absolute(&path).or_else(|| Some([imported()?, &path[1..]].concat()));
            used.extend(path_of().filter(|_| path.len() > 1));
        }
        found.used.insert(module, used);
    }
    found
}

impl Imports {
    /// The module that defines what the path names.
    fn resolve(&self, path: &Module, depth: usize) -> Option<Module> {
        let at = (0..=path.len()).rev().find(|at| self.used.contains_key(&path[..*at]))?;
        let (module, rest) = (path[..at].to_vec(), &path[at..]);
        let offered = rest.first().and_then(|next| self.offered.get(&(module.clone(), next.clone())));
        match offered.filter(|_| depth < 8) {
            Some(target) => self.resolve(&[target, &rest[1..]].concat(), depth + 1),
            None => Some(module),
        }
    }

    /// The folders of `converge`, each of which is a loop, except `shared`.
    fn loops(&self) -> BTreeSet<&str> {
        let inner = self
            .used
            .keys()
            .filter(|module| module.len() > 2 && module[0] == "converge" && module[1] != "shared");
        inner.map(|module| module[1].as_str()).collect()
    }

    /// Which loop imports which other one, where, however the path is written.
    fn between_loops(&self) -> Vec<String> {
        let loops = self.loops();
        let loop_of = |module: &Module| match &module[..] {
            [first, name, ..] if first == "converge" => loops.get(name.as_str()).copied(),
            _ => None,
        };
        let used = self.used.iter().flat_map(|(module, paths)| paths.iter().map(move |path| (module, path)));
        let offered = self.offered.iter().map(|((module, _), path)| (module, path));
        let between = used.chain(offered).filter_map(|(module, path)| {
            let (own, other) = (loop_of(module)?, loop_of(path)?);
            (own != other).then(|| format!("{}: the loop {own} imports {other}", module.join("/")))
        });
        between.collect()
    }

    /// Pairs of modules of which the first imports from the second, after re-exports are resolved.
    pub(crate) fn edges(&self) -> BTreeSet<(Module, Module)> {
        let targets = |(module, paths): (&Module, &Vec<Module>)| {
            let targets: Vec<_> = paths.iter().filter_map(|path| self.resolve(path, 0)).collect();
            targets.into_iter().map(|target| (module.clone(), target)).collect::<Vec<_>>()
        };
        self.used.iter().flat_map(targets).filter(|(from, to)| from != to).collect()
    }

    /// The modules that reach themselves.
    fn in_circles(&self) -> Vec<Module> {
        let edges: BTreeMap<&Module, BTreeSet<Module>> = self
            .used
            .iter()
            .map(|(module, paths)| {
                let targets = paths.iter().filter_map(|path| self.resolve(path, 0));
                (module, targets.filter(|target| target != module).collect())
            })
            .collect();
        let reaches_itself = |start: &Module| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
            while let Some(module) = open.pop() {
                for next in &edges[module] {
                    if next == start {
                        return true;
                    }
                    if seen.insert(next) {
                        open.push(next);
                    }
                }
            }
            false
        };
        self.used.keys().filter(|module| reaches_itself(module)).cloned().collect()
    }
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let files = rust();
    let mut complaints = Vec::new();
    for name in CRATES {
        let imports = imports(&of_crate(&files, name), name);
        assert!(imports.used.values().flatten().count() > 100, "{name} imports nothing: the rule is broken");
        complaints.extend(imports.in_circles().iter().map(|module| format!("{name}: {}", module.join("/"))));
    }
    check(&complaints);
}

#[test]
fn the_rules_of_structure_see_what_they_should() {
    let source = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
    let files = [
        source("agent/src/a/mod.rs", "pub mod b;\nmod c;\npub use c::Thing;\n"),
        source("agent/src/a/b.rs", "use super::{Thing, x::{Y, Z}};\nfn f() {}\n"),
        source("agent/src/a/c.rs", "use std::fmt;\nfn g() { crate::a::b::f(); }\n"),
        source("agent/src/a/d.rs", "use crate::a::b;\n"),
        source("agent/src/e/mod.rs", "#[cfg(test)]\nmod tests;\nmod f;\nuse f::F;\n"),
        source("agent/src/e/f.rs", "use super::G;\n"),
    ];
    let looks = "    async fn observe(&mut self) -> X {\n        if a {\n            b();\n        }\n        c.put(d);\n    }\n    fn act(&self) { c.put(e) }\n";
    let (count, acts) = acts_of_observe(&source("agent/src/a/mod.rs", looks));
    assert_eq!((count, acts), (1, vec!["agent/src/a/mod.rs:5: .put( while a loop observes".to_owned()]));
    let found = imports(&files.iter().collect::<Vec<_>>(), "agent").in_circles();
    let found: Vec<String> = found.iter().map(|module| module.join("/")).collect();
    let why = "through what another file offers, by a path in the code, below the name of a test module";
    assert_eq!(found, ["a/b", "a/c", "e", "e/f"], "{why}");
    let loops = [
        source("agent/src/converge/dns/act.rs", "use crate::{converge::pods::x, worlds};\n"),
        source("agent/src/converge/pods/act.rs", "use super::super::images::act;\nuse super::plan;\n"),
        source("agent/src/converge/images/act.rs", "fn f() { crate::converge::clients::of() }\n"),
        source(
            "agent/src/converge/slurm/act.rs",
            "use crate::converge;\nfn f() { converge::dns::act::g() }\n",
        ),
    ];
    let found = imports(&loops.iter().collect::<Vec<_>>(), "agent").between_loops();
    let between = [
        "converge/dns/act: the loop dns imports pods",
        "converge/pods/act: the loop pods imports images",
        "converge/slurm/act: the loop slurm imports dns",
    ];
    assert_eq!(found, between);
    let lines = [
        "tokio::spawn(f)",
        "tokio::task::spawn(f)",
        "use tokio::task::{self, spawn};",
        "task::spawn_blocking(f)",
    ];
    assert_eq!(lines.map(spawns_a_task), [true, true, true, false]);
}
