//! Commits that are or look like a removal, and the expected message of the source.

use std::fs;
use std::os::unix::fs::symlink;

use harness::Result;

use super::site::{FIRST, FOLDER, Site, pod};

/// A commit that must not remove anything.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// Required text of the source's status.
    pub(super) says: &'static str,
    pub(super) danger: fn(&Site) -> Result<()>,
}

fn case(name: &'static str, says: &'static str, danger: fn(&Site) -> Result<()>) -> Case {
    Case { name, says, danger }
}

fn committed(site: &Site) -> Result<()> {
    site.commit("Change").map(|_| ())
}

/// Changes the text of every file.
fn all(site: &Site, to: impl Fn(&str) -> String) -> Result<()> {
    site.edit_all(to)?;
    committed(site)
}

/// Changes the text of one file.
fn one(site: &Site, to: impl Fn(&str) -> String) -> Result<()> {
    site.edit(FIRST, to)?;
    committed(site)
}

/// Replaces the bytes of one file.
fn bytes(site: &Site, bytes: impl AsRef<[u8]>) -> Result<()> {
    site.write(FIRST, bytes)?;
    committed(site)
}

/// Adds a file.
fn add(site: &Site, path: &str, text: &str) -> Result<()> {
    site.write(path, text)?;
    committed(site)
}

/// Whole folders disappear, or change their type.
#[rustfmt::skip]
pub(super) fn folders() -> Vec<Case> {
    vec![
        case("every file removed", "has no folder", |s| { s.remove("")?; committed(s) }),
        case("only a readme is left", "Minik8s-Allow-Prune", |s| { s.remove_after(0)?; add(s, "README.md", "x") }),
        case("folder renamed", "has no folder", |s| { fs::rename(s.at(""), s.repo.work().join("clusters"))?; committed(s) }),
        case("folder in another case", "has no folder", |s| { fs::rename(s.at(""), s.repo.work().join("Cluster"))?; committed(s) }),
        case("folder replaced by a file", "has no folder", |s| { s.remove("")?; fs::write(s.repo.work().join(FOLDER), "x")?; committed(s) }),
        case("folder replaced by a link", "has no folder", |s| { fs::rename(s.at(""), s.repo.work().join("real"))?; symlink("real", s.repo.work().join(FOLDER))?; committed(s) }),
        case("folder made a submodule", "has no folder", |s| { let id = s.good.clone(); s.repo.git(&["rm", "-rq", FOLDER])?; s.repo.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{id},{FOLDER}")])?; s.repo.commit_index("x").map(|_| ()) }),
        case("everything ignored", "Minik8s-Allow-Prune", |s| add(s, ".minik8signore", "*.yaml\n")),
        case("most ignored by a folder's own list", "12 of 20", |s| add(s, "apps/.minik8signore", "/p*\n")),
        case("every extension another", "Minik8s-Allow-Prune", |s| { for (path, _) in s.files() { fs::rename(s.at(&path), s.at(&format!("{path}.bak")))?; } committed(s) }),
        case("the folder copied", "duplicate-object", |s| { for (path, text) in s.files() { s.write(&format!("zz-copy/{path}"), text)?; } committed(s) }),
        case("a file became a folder", "missing-field", |s| { s.remove(FIRST)?; s.write(&format!("{FIRST}/x.yaml"), "kind: Pod\n")?; committed(s) }),
        case("a file became a link out of the tree", "manifest-vanished", |s| { s.remove(FIRST)?; symlink("../../../../etc/hostname", s.at(FIRST))?; committed(s) }),
    ]
}

/// Broken file contents.
#[rustfmt::skip]
pub(super) fn contents() -> Vec<Case> {
    vec![
        case("every file broken", "yaml-syntax", |s| all(s, |t| format!("{t}\n\t: ["))),
        case("every file emptied", "manifest-vanished", |s| all(s, |_| String::new())),
        case("every file without its kind", "missing-kind", |s| all(s, |t| t.lines().filter(|l| !l.starts_with("kind:")).map(|l| format!("{l}\n")).collect())),
        case("every file commented out", "manifest-vanished", |s| all(s, |t| t.lines().map(|l| format!("# {l}\n")).collect())),
        case("every file a pointer of LFS", "lfs-pointer", |s| all(s, |_| format!("version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 120\n", "a".repeat(64)))),
        case("every object renamed", "route-clash", |s| all(s, |t| t.replacen("  name: ", "  name: team-", 1).replace("app: p", "app: team-p").replace("name: front\n  maxR", "name: team-front\n  maxR").replace("name: web,", "name: team-web,").replace("name: api,", "name: team-api,").replace("function: resize", "function: team-resize"))),
        case("every object in another namespace", "route-clash", |s| { let ns = format!("{}-other", s.name); all(s, |t| t.replace(&format!("namespace: {}", s.name), &format!("namespace: {ns}"))) }),
        case("every object without its namespace", "route-clash", |s| { let line = format!("  namespace: {}\n", s.name); all(s, |t| t.replace(&line, &format!("  namespace: {}-n\n", s.name))) }),
        case("one file emptied", "manifest-vanished", |s| bytes(s, "")),
        case("one file cut short", "missing-field", |s| one(s, |t| t[..40].to_owned())),
        case("one file of zeros", "control-character", |s| bytes(s, [0_u8; 300])),
        case("one file in UTF-16", "not-utf8", |s| { let text = s.read(FIRST)?; let wide: Vec<u8> = [0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect(); bytes(s, wide) }),
        case("one file with a merge conflict", "yaml-syntax", |s| one(s, |t| format!("<<<<<<< HEAD\n{t}=======\n{t}>>>>>>> other\n"))),
        case("one file a template", "template", |s| one(s, |t| t.replace("name: p05", "name: {{ .Values.name }}"))),
        case("one file with tabs", "tab", |s| one(s, |t| t.replace("  ", "\t"))),
        case("apiVersion misspelt", "piVersion", |s| one(s, |t| t.replace("apiVersion", "piVersion"))),
        case("kind misspelt", "unknown-kind", |s| one(s, |t| t.replace("kind: Pod", "kind: Pood"))),
        case("a field misspelt and six files removed", "unknown-field", |s| { s.edit(FIRST, |t| t.replace("containers", "contaners"))?; for n in 6..12 { s.remove(&format!("apps/p{n:02}.yaml"))?; } committed(s) }),
        case("a key twice", "duplicate-key", |s| one(s, |t| format!("{t}spec:\n  containers: []\n"))),
        case("an object twice", "duplicate-object", |s| { let text = s.read(FIRST)?; add(s, "apps/zz.yaml", &text) }),
        case("aliases without end", "too-many-nodes", |s| bytes(s, alias_bomb())),
        case("nested without end", "too-deep", |s| bytes(s, format!("kind: Pod\napiVersion: v1\nmetadata: {}1{}\n", "[".repeat(5000), "]".repeat(5000)))),
        case("a huge file", "too-large", |s| bytes(s, format!("kind: Pod\n# {}\n", "x".repeat(5 << 20)))),
        case("a huge object", "too-large", |s| one(s, |t| format!("{t}    args: [\"{}\"]\n", "x".repeat(70_000)))),
    ]
}

fn alias_bomb() -> String {
    let mut text = String::from("kind: Pod\na0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let before = format!("*a{}", level - 1);
        text += &format!("a{level}: &a{level} [{}]\n", vec![before; 9].join(", "));
    }
    text
}

/// Objects that depend on each other.
#[rustfmt::skip]
pub(super) fn relations() -> Vec<Case> {
    vec![
        case("a service goes that a host leads to", "dangling-target", |s| { s.remove("services/api.yaml")?; committed(s) }),
        case("a set goes that an autoscaler scales", "dangling-target", |s| { s.remove("sets/front.yaml")?; committed(s) }),
        case("a function goes that a workflow calls", "dangling-target", |s| { s.remove("functions/resize.yaml")?; committed(s) }),
        case("a circle of dependencies", "dependency-cycle", |s| {
            let depends = |t: &str, on: &str| t.replace("  labels:", &format!("  dependsOn: [Pod/{on}]\n  labels:"));
            s.edit("apps/p05.yaml", |t| depends(t, "p06"))?;
            s.edit("apps/p06.yaml", |t| depends(t, "p05"))?;
            committed(s)
        }),
        case("two hosts of one name", "shop.", |s| { let text = s.read("dns/shop.yaml")?; add(s, "dns/zz.yaml", &text.replace("name: shop\n", "name: mall\n")) }),
    ]
}

/// Too many removals at once, or another history.
#[rustfmt::skip]
pub(super) fn histories() -> Vec<Case> {
    vec![
        case("nine of ten removed", "16 of 20", |s| { s.remove_after(4)?; committed(s) }),
        case("one more than the budget", "11 of 20", |s| { for n in 0..2 { s.remove(&format!("services/{}.yaml", ["web", "api"][n]))?; } s.remove("dns/shop.yaml")?; for n in 2..10 { s.remove(&format!("apps/p{n:02}.yaml"))?; } committed(s) }),
        case("a trailer that says no", "16 of 20", |s| { s.remove_after(4)?; s.commit("Clean up\n\nMinik8s-Allow-Prune: false").map(|_| ()) }),
        case("a trailer in the middle of the text", "16 of 20", |s| { s.remove_after(4)?; s.commit("Clean up\n\nMinik8s-Allow-Prune: true\nis what we would write.\n\nBut we don't.").map(|_| ()) }),
        case("a trailer in the subject", "16 of 20", |s| { s.remove_after(4)?; s.commit("Minik8s-Allow-Prune: true").map(|_| ()) }),
        case("a trailer in the commit before", "16 of 20", |s| { s.commit("Nothing yet\n\nMinik8s-Allow-Prune: true")?; s.remove_after(4)?; committed(s) }),
        case("a rollback to the first commit", "16 of 20", |s| { let first = format!("{}~1", s.good); s.repo.push_commit(&first).map(|_| ()) }),
        case("removed in ten commits before anyone looked", "11 of 20", |s| { for n in 2..12 { s.remove(&format!("apps/p{n:02}.yaml"))?; s.commit("One less")?; } s.remove("workflows/order.yaml")?; committed(s) }),
        case("a history of its own", "no common history", |s| {
            let kept: Vec<_> = s.files().into_iter().take(15).collect();
            let put = kept.into_iter().map(|(path, text)| harness::Change::write(format!("{FOLDER}/{path}"), text));
            s.repo.push_unrelated(&put.collect::<Vec<_>>(), "Another world").map(|_| ())
        }),
        case("a history of its own with other objects", "no common history", |s| {
            let file = harness::Change::write(format!("{FOLDER}/apps/other.yaml"), pod(&s.name, "other"));
            s.repo.push_unrelated(&[file], "Another world").map(|_| ())
        }),
    ]
}

/// No commit at all: the remote itself changes.
#[rustfmt::skip]
pub(super) fn remotes() -> Vec<Case> {
    vec![
        case("the branch removed", "branch `main`", |s| s.repo.delete_branch()),
        case("the branch points nowhere", "repository", |s| Ok(fs::write(s.repo.bare().join("refs/heads/main"), "0123456789012345678901234567890123456789\n")?)),
        case("the repository gone", "repository", |s| s.repo.reachable(false)),
        case("the repository made anew, empty", "branch `main`", |s| s.repo.make_anew()),
        case("objects of the commit lost", "repository", |s| { s.remove_after(6)?; committed(s)?; let objects = s.repo.bare().join("objects"); fs::remove_dir_all(&objects)?; Ok(fs::create_dir_all(objects.join("pack"))?) }),
    ]
}
