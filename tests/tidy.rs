//! Keeps the tree in the shape that docs/architecture.md promises: reads every source, manifest
//! and page of the repository, runs nothing.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use schema::keys::{CONTRACT, ROOT, node_role};

#[path = "tidy/floors.rs"]
mod floors;
#[path = "tidy/http.rs"]
mod http;
#[path = "tidy/kinds.rs"]
mod kinds;
#[path = "tidy/observe.rs"]
mod observe;
#[path = "tidy/structure.rs"]
mod structure;
#[path = "tidy/units.rs"]
mod units;
#[path = "tidy/walkthrough.rs"]
mod walkthrough;
#[path = "tidy/words.rs"]
mod words;

/// Most lines that a source file may have.
const LINES_MAX: usize = 600;
/// Files, or folders, that decide and do nothing else.
const PURE: [&str; 8] = ["batches", "plan", "diff", "check", "fold", "render", "machine", "review"];
/// What of the webhooks decides: all that strangers' bytes go through.
const PURE_OF_WEBHOOKS: [&str; 5] = ["decide", "limit", "payload", "provider", "verify"];
/// What a file that decides must not name: waiting, the outside, the clock, chance.
const IMPURE: [&str; 12] = [
    "async",
    "await",
    "tokio",
    "std::fs",
    "std::net::TcpStream",
    "std::process",
    "etcd_client",
    "bollard",
    "Instant::now",
    "SystemTime::now",
    "Timestamp::now",
    "rand::",
];
const CRATES: [&str; 3] = ["schema", "reconciler", "agent"];
const MEMBERS: [&str; 4] = ["schema", "reconciler", "agent", "tests"];

/// One file of the repository: path from its root, `/`-separated, and text.
struct Source {
    path: String,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace")
}

/// All text files of the repository with one of these endings, in order.
fn sources(endings: &[&str]) -> Vec<Source> {
    let mut files = Vec::new();
    walk(root(), &mut files);
    files.sort();
    let wanted = files.into_iter().filter(|path| endings.iter().any(|e| path.to_string_lossy().ends_with(e)));
    let found: Vec<Source> = wanted
        .filter_map(|path| {
            let text = fs::read_to_string(&path).ok()?;
            let path = path.strip_prefix(root()).expect("the walk begins at the root");
            Some(Source { path: path.to_string_lossy().replace('\\', "/"), text })
        })
        .collect();
    assert!(!found.is_empty(), "no file ends with {endings:?}: the walk is broken");
    found
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("the repository can be read").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            if name != "target" && name != ".git" {
                walk(&path, files);
            }
        } else {
            files.push(path);
        }
    }
}

fn rust() -> Vec<Source> {
    sources(&[".rs"])
}

/// Fails with all complaints at once.
fn check(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// The lines that are code: number and text without comments. Words in strings stay.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let uncommented = text.lines().map(|line| match line.find("//") {
        // `https://` is no comment.
        Some(at) if !line[..at].ends_with(':') => &line[..at],
        _ => line,
    });
    uncommented.enumerate().map(|(index, line)| (index + 1, line))
}

/// Whether `line` holds `word` as a word of its own.
fn names(line: &str, word: &str) -> bool {
    let part_of_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        let before = part_of_word(line[..at].chars().next_back());
        let after = !word.ends_with(':') && part_of_word(line[at + word.len()..].chars().next());
        !before && !after
    })
}

fn is_pure(path: &str) -> bool {
    let in_crate = CRATES.iter().any(|name| path.starts_with(&format!("{name}/src/")));
    let parts = || path.split('/').map(|part| part.trim_end_matches(".rs"));
    in_crate
        && (parts().any(|part| PURE.contains(&part))
            || path.starts_with("reconciler/src/view/")
            || path.starts_with("reconciler/src/webhooks/")
                && parts().any(|part| PURE_OF_WEBHOOKS.contains(&part)))
}

#[test]
fn files_that_decide_do_not_wait_read_or_roll_dice() {
    let files = rust();
    let pure: Vec<_> = files.iter().filter(|file| is_pure(&file.path)).collect();
    assert!(pure.len() >= 3, "found only {} pure files: the rule is broken", pure.len());
    let mut complaints = Vec::new();
    for file in pure {
        for (number, line) in code(&file.text) {
            for word in IMPURE.iter().filter(|word| names(line, word)) {
                complaints.push(format!("{}:{number}: {word} in a file that only decides", file.path));
            }
        }
    }
    check(&complaints);
}

/// First segments of all paths into the own crate: `crate::view::x` and `crate::{view::x, api}`.
fn own_modules(line: &str) -> BTreeSet<String> {
    let mut modules = BTreeSet::new();
    for (at, _) in line.match_indices("crate::") {
        let rest = &line[at + "crate::".len()..];
        let group = rest.strip_prefix('{').map(|group| group.split('}').next().unwrap_or(group));
        for path in group.map_or_else(|| vec![rest], |group| group.split(',').collect()) {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            modules.insert(path.trim().chars().take_while(|c| is_word(*c)).collect());
        }
    }
    modules
}

#[test]
fn modules_of_the_reconciler_know_only_what_they_may() {
    // Folder, and the modules that it must not use.
    let forbidden: [(&str, &[&str]); 7] = [
        ("reconciler/src/controllers/", &["gitops", "git", "api", "cli", "view"]),
        ("reconciler/src/api/", &["controllers", "gitops", "git", "cli"]),
        ("reconciler/src/cli/", &["controllers", "gitops", "git", "api"]),
        ("reconciler/src/view/", &["gitops", "git", "api", "cli", "daemon"]),
        ("reconciler/src/git/", &["controllers", "gitops", "api", "cli", "view"]),
        ("reconciler/src/gitops/", &["controllers", "api", "cli", "view"]),
        ("reconciler/src/webhooks/", &["controllers", "gitops", "api", "cli"]),
    ];
    let mut complaints = Vec::new();
    for file in rust() {
        // `minik8s plan` works on files and revisions that no reconciler has seen, with the same code. The row of a
        // kind stands above the rooms, whose tests may use it.
        let above = ["reconciler/src/cli/offline/preview.rs", "reconciler/src/cli/kinds.rs"];
        if above.contains(&file.path.as_str()) {
            continue;
        }
        for (_, modules) in forbidden.iter().filter(|(folder, _)| file.path.starts_with(folder)) {
            for (number, line) in code(&file.text) {
                if structure::is_test(&file.path) && line.contains("crate::cli::kinds::effects") {
                    continue;
                }
                for module in own_modules(line).iter().filter(|module| modules.contains(&module.as_str())) {
                    complaints.push(format!("{}:{number}: uses crate::{module}", file.path));
                }
            }
        }
    }
    check(&complaints);
}

/// Dependencies of a manifest: section, name and the rest of the line.
fn dependencies(manifest: &str) -> Vec<(String, String, String)> {
    let mut section = String::new();
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']).to_owned();
        } else if section.ends_with("dependencies") && !line.is_empty() && !line.starts_with('#') {
            let (name, rest) = line.split_once('=').expect("a dependency has a value");
            let (name, dotted) = name.trim().split_once('.').unwrap_or((name.trim(), ""));
            found.push((section.clone(), name.to_owned(), format!("{dotted} = {}", rest.trim())));
        }
    }
    found
}

fn manifest_of(member: &str) -> String {
    fs::read_to_string(root().join(member).join("Cargo.toml")).expect("every member has a manifest")
}

#[test]
fn the_daemons_never_import_each_other_and_the_schema_imports_neither() {
    let forbidden: [(&str, &[&str]); 4] = [
        ("schema", &["reconciler", "agent", "harness"]),
        ("reconciler", &["agent", "harness"]),
        ("agent", &["reconciler", "harness"]),
        ("tests", &["agent"]),
    ];
    let mut complaints = Vec::new();
    for (member, names) in forbidden {
        for (section, name, _) in dependencies(&manifest_of(member)) {
            if names.iter().any(|forbidden| name == *forbidden || name == format!("minik8s-{forbidden}")) {
                complaints.push(format!("{member}/Cargo.toml: {name} in [{section}]"));
            }
        }
    }
    // Benches time functions of the reconciler; stories see it from outside.
    if dependencies(&manifest_of("tests"))
        .iter()
        .any(|(section, name, _)| section == "dependencies" && name == "reconciler")
    {
        complaints.push("tests/Cargo.toml: the harness depends on the reconciler".to_owned());
    }
    for story in rust().iter().filter(|file| file.path.starts_with("tests/e2e/")) {
        for (number, _) in code(&story.text).filter(|(_, line)| names(line, "reconciler::")) {
            complaints.push(format!("{}:{number}: a story uses the reconciler's own code", story.path));
        }
    }
    check(&complaints);
}

#[test]
fn every_dependency_is_the_workspaces_and_is_used() {
    let mut complaints = Vec::new();
    let mut used = BTreeSet::new();
    let files = rust();
    for member in MEMBERS {
        let manifest = manifest_of(member);
        if !manifest.contains("[lints]\nworkspace = true") {
            complaints.push(format!("{member}/Cargo.toml: no workspace lints"));
        }
        for (_, name, rest) in dependencies(&manifest) {
            if !rest.contains("workspace = true") {
                complaints.push(format!("{member}/Cargo.toml: {name} is not the workspace's"));
            }
            let word = name.replace('-', "_");
            let own = files.iter().filter(|file| file.path.starts_with(&format!("{member}/")));
            if !own.flat_map(|file| code(&file.text)).any(|(_, line)| names(line, &word)) {
                complaints.push(format!("{member}/Cargo.toml: {name} is not used"));
            }
            used.insert(name);
        }
    }
    let workspace = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace has a manifest");
    for (_, name, _) in dependencies(&workspace) {
        if !used.contains(&name) && !CRATES.contains(&name.as_str()) {
            complaints.push(format!("Cargo.toml: no member uses {name}"));
        }
    }
    check(&complaints);
}

/// The folders right below `folder`.
fn folders(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.path().is_dir())
        .map(|entry| format!("{folder}/{}", entry.file_name().to_string_lossy()))
        .collect()
}

#[test]
fn every_loop_has_its_files() {
    // `plan` is a file of its own, so that it can be checked to be pure; the others may be functions of `mod.rs`.
    let parts: [(&str, &[&str]); 2] =
        [("agent/src/converge", &["observe", "act"]), ("reconciler/src/controllers", &[])];
    let mut complaints = Vec::new();
    for (parent, steps) in parts {
        let loops: Vec<String> =
            folders(parent).into_iter().filter(|folder| !folder.ends_with("/shared")).collect();
        assert!(!loops.is_empty(), "{parent} has no loop");
        for folder in loops {
            let exists = |name: &str| {
                [format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")]
                    .iter()
                    .any(|path| root().join(path).exists())
            };
            let module = fs::read_to_string(root().join(&folder).join("mod.rs")).unwrap_or_default();
            if !exists("plan") {
                complaints.push(format!("{folder}: no plan.rs"));
            }
            for step in steps {
                if !exists(step) && !module.contains(&format!("async fn {step}(")) {
                    complaints.push(format!("{folder}: no {step}.rs, and no `async fn {step}` in mod.rs"));
                }
            }
        }
    }
    check(&complaints);
}

#[test]
fn no_source_file_is_longer_than_it_should_be() {
    let mut complaints = Vec::new();
    for file in sources(&[".rs", ".sh"]) {
        let lines = file.text.lines().count();
        if lines > LINES_MAX {
            complaints.push(format!("{}: {lines} lines, {LINES_MAX} at most", file.path));
        }
    }
    check(&complaints);
}

/// What in a page is marked as code or as a link's target.
fn mentions(text: &str) -> Vec<String> {
    let coded = text.split('`').skip(1).step_by(2).map(str::to_owned);
    let linked = text.match_indices("](").map(|(at, mark)| {
        let target = &text[at + mark.len()..];
        target.split([')', '#', ' ']).next().unwrap_or_default().to_owned()
    });
    coded.chain(linked).collect()
}

/// The path of the repository that a mention names; up to its first placeholder.
fn named_path(mention: &str) -> Option<&str> {
    let mention = mention.trim_start_matches("./");
    let tops =
        ["schema/", "reconciler/src", "agent/src", "sample-repo/", "deploy/", "tests/", "docs/", ".ci/"];
    if !tops.iter().any(|top| mention.starts_with(top)) || mention.contains([' ', '\n', '"']) {
        return None;
    }
    let end = mention.find(['<', '*', '{', '…', ':']).unwrap_or(mention.len());
    let end = if end < mention.len() { mention[..end].rfind('/')? } else { end };
    Some(&mention[..end])
}

#[test]
fn every_path_that_the_pages_name_exists() {
    let mut complaints = Vec::new();
    let mut seen = 0;
    for page in sources(&[".md"]) {
        let folder = root().join(&page.path).parent().map(Path::to_owned).unwrap_or_default();
        for mention in mentions(&page.text) {
            let Some(path) = named_path(&mention) else { continue };
            seen += 1;
            if !root().join(path).exists() && !folder.join(path).exists() {
                complaints.push(format!("{}: {path} does not exist", page.path));
            }
        }
    }
    assert!(seen >= 3, "the pages name only {seen} paths: the rule is broken");
    check(&complaints);
}

#[test]
fn no_file_names_the_machine_it_was_written_on() {
    // In parts, so that this file does not name them itself.
    let places = ["main", "wt", "shared"].map(|folder| format!("/{}/{folder}", "work"));
    let places = places.into_iter().chain([concat!("/tm", "p/w/").to_owned()]).collect::<Vec<_>>();
    let mut complaints = Vec::new();
    for file in sources(&[".rs", ".sh", ".md", ".toml", ".yaml", ".yml", ".snap", "justfile", "run"]) {
        for (number, line) in file.text.lines().enumerate() {
            for place in &places {
                let starts_there = |at: usize| {
                    let before = line[..at].chars().next_back();
                    !before.is_some_and(|c| c.is_alphanumeric() || "_-.>}/".contains(c))
                };
                if line.match_indices(place.as_str()).any(|(at, _)| starts_there(at)) {
                    complaints.push(format!("{}:{}: names {place}", file.path, number + 1));
                }
            }
        }
    }
    check(&complaints);
}

/// docs/contract.md as the keys themselves have it.
fn contract() -> String {
    let mut page = String::from(
        "# The etcd contract\n\n\
         Made from `schema/src/keys/mod.rs` by `tests/tidy.rs`; `MINIK8S_UPDATE=1 cargo test -p minik8s-tests \
         --test tidy` rewrites it.\n\n\
         Keys lie under `/minik8s/`, which the table leaves out, and those of runs under `/minik8s-runs/`. \
         Values are JSON, 64\nKiB at most. Every key has exactly one writer, and every write is a \
         transaction guarded by the key's revision; those\nof the reconciler also by the create revision of \
         `leader`. Not guarded are `heartbeats/`, `events/`, `requests/` and\n`etcd/defrag`. A reconciler that is asked \
         again counts that at the former request, which another may have taken, and deletes the oldest ones where\nthere \
         are too many. Only the leader writes the heads, journals, payloads and definitions of runs, under \
         its fence: to\ncompact a journal or to delete a run it compares no other revision. Any reconciler \
         may ask for a run, if neither the\nrun nor a request for it is there; the leader deletes the \
         request and its input. The keys of a node that leaves for\ngood are deleted by the reconciler that it \
         asks (`minik8s-agent reset --leave`), without the fence, and by\nthe nodes controller where Git says that the \
         node is gone; both only while the node has no heartbeat.\n\n\
         | key | holds | only writer | main reader |\n|---|---|---|---|\n",
    );
    for row in CONTRACT {
        let key = row.pattern.trim_start_matches(ROOT);
        writeln!(page, "| `{key}` | {} | {} | {} |", row.holds, row.writer, row.reader).expect("text grows");
    }
    page.push_str(
        "\n## The etcd role of a node\n\n\
         etcd knows each agent by its certificate, as a user without a password. Reconcilers make users and roles, and\n\
         have the role `root` themselves. For an etcd of your own, `minik8s trust etcd-users` prints the commands:\n\n\
         ```sh\nNODE=worker-1\netcdctl role add node-$NODE\n",
    );
    for permission in node_role("$NODE") {
        writeln!(page, "etcdctl role grant-permission node-$NODE {permission}").expect("text grows");
    }
    page.push_str(
        "etcdctl user add node-$NODE --no-password\netcdctl user grant-role node-$NODE node-$NODE\n```\n",
    );
    page
}

#[test]
fn the_page_of_the_contract_is_what_the_keys_say() {
    let path = root().join("docs/contract.md");
    if std::env::var_os("MINIK8S_UPDATE").is_some() {
        fs::create_dir_all(root().join("docs")).expect("docs/ can be made");
        fs::write(&path, contract()).expect("docs/contract.md can be written");
    }
    let page = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        page == contract(),
        "docs/contract.md is not what the keys say: set MINIK8S_UPDATE=1 to rewrite it"
    );
}

#[test]
fn the_rules_themselves_see_what_they_should() {
    assert!(names("pub async fn x()", "async") && !names("my_async_thing", "async"));
    assert!(names("x.await?", "await") && names("let n = rand::rng();", "rand::"));
    assert!(code("let a = 1; // tokio").all(|(_, line)| !names(line, "tokio")));
    assert!(is_pure("agent/src/converge/pods/plan/mod.rs") && !is_pure("agent/src/converge/pods/act.rs"));
    assert!(own_modules("use crate::{git, view::x};").contains("git"));
    assert!(own_modules("crate::gitops::plan()").contains("gitops"));
    assert_eq!(named_path("agent/src/converge/*/plan.rs"), Some("agent/src/converge"));
    assert_eq!(named_path("./tests/run.sh"), Some("tests/run.sh"));
    assert_eq!(named_path("agent/desired/"), None);
}
