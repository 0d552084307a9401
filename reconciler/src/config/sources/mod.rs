//! The file of `--sources`: several repositories, read strictly; all mistakes at once, each with file and line.
//! An example is in docs/operations.md, "Repositories and credentials".

mod entry;
mod tree;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::ConfigError;
use crate::git::SourceConfig;
use tree::{HELP, Node, Value, Wrong};

/// A longer list is more likely a wrong file; each source is a loop and a mirror.
const SOURCES_MAX: usize = 256;
const FILE_BYTES_MAX: u64 = 1024 * 1024;
const SHOWN_MAX: usize = 50;

pub fn read_sources(file: &Path) -> Result<Vec<SourceConfig>, ConfigError> {
    let unreadable = |why: String| {
        ConfigError::new("--sources", file.display(), why, "name a YAML file with a list of sources")
    };
    let size = fs::metadata(file).map_err(|error| unreadable(error.to_string()))?.len();
    if size > FILE_BYTES_MAX {
        return Err(unreadable("is larger than 1 MiB".to_owned()));
    }
    let text = fs::read_to_string(file).map_err(|error| unreadable(error.to_string()))?;
    let folder = std::path::absolute(file).ok().and_then(|path| path.parent().map(Path::to_owned));
    parse(&text, &folder.unwrap_or_default()).map_err(|wrongs| {
        let more = wrongs.len().saturating_sub(SHOWN_MAX);
        let shown = wrongs.into_iter().take(SHOWN_MAX).map(|Wrong { line, why, help }| {
            let file = file.display();
            let place = if line > 0 { format!("{file}:{line}") } else { file.to_string() };
            ConfigError::new("--sources", place, why, help)
        });
        let rest = format!("has {more} more mistakes");
        let rest =
            (more > 0).then(|| ConfigError::new("--sources", file.display(), rest, "fix those above first"));
        ConfigError::all(shown.chain(rest))
    })
}

fn parse(text: &str, folder: &Path) -> Result<Vec<SourceConfig>, Vec<Wrong>> {
    let Node { line, value } = tree::read(text).map_err(|wrong| vec![wrong])?;
    let items = match value {
        Value::List(items) if !items.is_empty() => items,
        Value::List(_) | Value::Nothing => return Err(vec![Wrong::new(0, "lists no source", HELP)]),
        other => {
            let why = format!("is {}, and no list of sources", other.described());
            return Err(vec![Wrong::new(line, why, "begin each source with `- name: `")]);
        }
    };
    if items.len() > SOURCES_MAX {
        let why = format!("lists {} sources; {SOURCES_MAX} at most", items.len());
        return Err(vec![Wrong::new(0, why, HELP)]);
    }
    let (mut wrongs, mut sources) = (Vec::new(), Vec::new());
    let mut seen = BTreeMap::<String, usize>::new();
    for (index, item) in items.into_iter().enumerate() {
        let (name, source) = entry::read(item, index + 1, folder, &mut wrongs);
        sources.extend(source);
        let Some((name, line)) = name else { continue };
        if let Some(first) = seen.get(&name) {
            let why = format!("source `{name}`: its name is taken by the one in line {first}");
            wrongs.push(Wrong::new(line, why, "give every source a unique name"));
        }
        seen.entry(name).or_insert(line);
    }
    wrongs.sort_by_key(|wrong| wrong.line);
    if wrongs.is_empty() { Ok(sources) } else { Err(wrongs) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::Reference;

    fn wrong(text: &str) -> String {
        let wrongs = parse(text, Path::new("/etc/minik8s")).unwrap_err();
        let shown = wrongs.iter().map(|Wrong { line, why, help }| {
            assert!(!why.contains('\n') && !help.is_empty());
            format!("{line}: {why}")
        });
        shown.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn each_entry_is_a_source_with_its_files_beside_the_list() {
        let text = "- name: apps\n  repo: https://h/a.git\n  tokenFile: apps.token\n  poll: 2s\n  strict: true\n\
                    - name: base\n  repo: git@h:b.git\n  tag: v3\n  sshKey: /k\n  knownHosts: hosts\n  \
                    signatures: {allowedSigners: signers}\n";
        let sources = parse(text, Path::new("/etc/minik8s")).unwrap();
        assert_eq!(sources.len(), 2);
        assert_eq!(sources[0].credentials.token_file.as_deref(), Some(Path::new("/etc/minik8s/apps.token")));
        assert_eq!(sources[0].reference, Reference::Branch("main".into()));
        assert!(sources[0].strict && sources[0].signatures.is_none());
        assert_eq!(sources[1].reference, Reference::Tag("v3".into()));
        assert_eq!(sources[1].credentials.ssh_key.as_deref(), Some(Path::new("/k")));
        let signers = sources[1].signatures.as_ref().unwrap().allowed_signers.as_deref();
        assert_eq!(signers, Some(Path::new("/etc/minik8s/signers")));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let two = "- name: a\n  repo: /x\n- name: a\n  repo: /y\n";
        assert_eq!(wrong(two), "3: source `a`: its name is taken by the one in line 1");
        for (text, starts, holds) in [
            ("", "0: ", "lists no source"),
            ("[]", "0: ", "lists no source"),
            ("# nothing\n", "0: ", "lists no source"),
            ("name: a\nrepo: /x\n", "1: ", "is a map, and no list"),
            ("- a\n", "1: ", "entry 1 is a single value, and no source"),
            ("- name: a\n  repo: /x\n  brnch: main\n", "3: ", "unknown field `brnch`"),
            ("- name: a\n", "1: ", "has no `repo`"),
            ("- repo: /x\n", "1: ", "entry 1: has no `name`"),
            ("- name: a\n  repo: [/x]\n", "2: ", "repo must be a single value, and is a list"),
            ("- name: a\n  repo: /x\n  strict: maybe\n", "3: ", "strict is `maybe`"),
            ("- name: a\n  repo: /x\n  repo: /y\n", "3: ", "`repo` appears twice"),
            ("# one\n- name: A\n  repo: /x\n", "2: ", "not a DNS label"),
            ("- name: a\n  repo: /x\n  branch: b\n  tag: t\n", "4: ", "more than one of"),
            ("- name: a\n  repo: /x\n  tokenFile: f\n  tokenEnv: E\n", "4: ", "both"),
            ("- name: a\n  repo: /x\n  poll: 1ms\n", "3: ", "out of bounds"),
            ("- name: a\n  repo: /x\n  poll: soon\n", "3: ", "is no time"),
            ("- name: a\n  repo: /x\n  signatures: {}\n", "3: ", "no file of keys"),
            ("- name: a\n  repo: /x\n  signatures: signers\n", "3: ", "signatures must be a map"),
            ("- name: a\n  repo: /x\n  signatures: {keys: f}\n", "3: ", "unknown field `keys`"),
            ("- name: a\n  repo: /x\n  signatures: {mode: all, gpgKeys: f}\n", "3: ", "no mode `all`"),
            ("- name: &a a\n  repo: *a\n", "2: ", "an alias"),
            ("- {name: a, repo: /x}\n---\n- {name: b, repo: /y}\n", "2: ", "second document"),
            ("- name: a\n  repo: [\n", "", "is no YAML"),
            ("[[[[[[[[[[[[", "1: ", "nested too deep"),
        ] {
            let said = wrong(text);
            assert!(said.starts_with(starts) && said.contains(holds), "{text:?}: {said}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once_and_in_words_of_the_file() {
        let text =
            "- name: a\n  repo: /x\n  tokenfile: t\n  poll: soon\n- repo: /y\n  strict: 1\n- name: a\n";
        assert_eq!(
            wrong(text),
            "3: source `a`: unknown field `tokenfile`\n\
             4: source `a`: poll: `soon` is no time\n\
             5: entry 2: has no `name`\n\
             6: entry 2: strict is `1`\n\
             7: source `a`: has no `repo`\n\
             7: source `a`: its name is taken by the one in line 1"
        );
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sources.yaml");
        fs::write(&file, text).unwrap();
        let error = read_sources(&file).unwrap_err().to_string();
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!(lines.len(), 6, "{error}");
        let first = format!(
            "--sources {}:3: source `a`: unknown field `tokenfile`; did you mean `tokenFile`?",
            file.display()
        );
        assert_eq!(lines[0], first);
        fs::write(&file, "- name: A\n".repeat(SHOWN_MAX)).unwrap();
        let error = read_sources(&file).unwrap_err().to_string();
        assert_eq!(error.lines().count(), SHOWN_MAX + 1, "{error}");
        assert!(error.ends_with("more mistakes; fix those above first"), "{error}");
    }

    #[test]
    fn a_key_without_a_value_is_an_error_and_never_means_without() {
        for field in [
            "signatures",
            "tokenFile",
            "tokenEnv",
            "username",
            "sshKey",
            "knownHosts",
            "caFile",
            "proxy",
            "branch",
            "tag",
            "commit",
            "poll",
        ] {
            for empty in ["", " ~", " null", "\n    # allowedSigners: signers"] {
                let said = wrong(&format!("- name: a\n  repo: /x\n  {field}:{empty}\n"));
                assert!(said.contains(field) && said.contains("has no value"), "{field}:{empty}: {said}");
                assert!(!said.starts_with("0:"), "{said}");
            }
        }
        for field in ["allowedSigners", "gpgKeys"] {
            let said = wrong(&format!("- name: a\n  repo: /x\n  signatures: {{gpgKeys: k, {field}: }}\n"));
            assert!(said.contains(field), "{said}");
        }
        for field in ["tokenFile", "tokenEnv", "sshKey", "knownHosts", "caFile", "proxy"] {
            let said = wrong(&format!("- name: a\n  repo: /x\n  {field}: ''\n"));
            assert!(said.contains(&format!("{field} is empty")), "{said}");
        }
        let said = wrong("- name: a\n  repo: /x\n  signatures: {allowedSigners: ''}\n");
        assert!(said.contains("allowedSigners is empty"), "{said}");
    }
}
