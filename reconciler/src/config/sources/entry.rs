//! One entry of a list of sources: its fields by name, and what is wrong with each. Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::super::parse_duration;
use super::super::repo::{POLL_DEFAULT, check_poll, reference};
use super::tree::{HELP, Node, Value, Wrong};
use crate::git::{Credentials, SignaturePolicy, SourceConfig};

const FIELDS: [&str; 16] = [
    "name",
    "repo",
    "branch",
    "tag",
    "commit",
    "path",
    "poll",
    "strict",
    "tokenFile",
    "tokenEnv",
    "username",
    "sshKey",
    "knownHosts",
    "caFile",
    "proxy",
    "signatures",
];
const SIGNATURE_FIELDS: [&str; 3] = ["mode", "allowedSigners", "gpgKeys"];

/// The source of an entry (counted from 1), and its name with its line. Every mistake goes to `wrongs`.
pub(super) fn read(
    node: Node,
    number: usize,
    folder: &Path,
    wrongs: &mut Vec<Wrong>,
) -> (Option<(String, usize)>, Option<SourceConfig>) {
    let before = wrongs.len();
    let Node { line, value: Value::Map(entries) } = node else {
        let why = format!("entry {number} is {}, and no source", node.value.described());
        wrongs.push(Wrong::new(node.line, why, "write it as a map with `name` and `repo`"));
        return (None, None);
    };
    let name = entries.iter().find_map(|(key, node)| match &node.value {
        Value::Text(text) if key == "name" => Some((text.clone(), node.line)),
        _ => None,
    });
    let who = name.as_ref().map_or_else(|| format!("entry {number}"), |(name, _)| format!("source `{name}`"));
    let mut fields = Fields { who, line, folder, texts: BTreeMap::new(), wrongs };
    let signatures = fields.take(entries, &FIELDS);
    let source = fields.source(signatures);
    (name, source.filter(|_| wrongs.len() == before))
}

/// The fields of an entry that are single values, each with its line.
struct Fields<'a> {
    who: String,
    line: usize,
    folder: &'a Path,
    texts: BTreeMap<String, (String, usize)>,
    wrongs: &'a mut Vec<Wrong>,
}

impl Fields<'_> {
    fn wrong(&mut self, line: usize, why: impl AsRef<str>, help: impl Into<String>) {
        self.wrongs.push(Wrong::new(line, format!("{}: {}", self.who, why.as_ref()), help));
    }

    /// Takes the fields in. Gives those of `signatures`, with its line.
    fn take(&mut self, entries: Vec<(String, Node)>, known: &[&str]) -> Option<(usize, Vec<(String, Node)>)> {
        let (mut signatures, mut seen) = (None, Vec::new());
        for (key, Node { line, value }) in entries {
            if seen.contains(&key) {
                self.wrong(line, format!("`{key}` appears twice"), "keep one of them");
                continue;
            }
            seen.push(key.clone());
            match value {
                _ if !known.contains(&key.as_str()) => {
                    self.wrong(line, format!("unknown field `{key}`"), suggestion(&key, known));
                }
                // `signatures:` with its fields commented out, or `tokenFile:` from an unset variable, does not
                // mean to go without.
                Value::Nothing => {
                    self.wrong(line, format!("{key} has no value"), "give it one, or remove the line");
                }
                Value::Map(fields) if key == "signatures" => signatures = Some((line, fields)),
                // An empty path would be the folder of the list itself. That of manifests may be: it is the root.
                Value::Text(text) if text.is_empty() && key != "path" => {
                    self.wrong(line, format!("{key} is empty"), "give it a value, or remove the line");
                }
                Value::Text(text) if key != "signatures" => {
                    self.texts.insert(key, (text, line));
                }
                other => {
                    let wanted = if key == "signatures" { "a map" } else { "a single value" };
                    let why = format!("{key} must be {wanted}, and is {}", other.described());
                    self.wrong(line, why, HELP);
                }
            }
        }
        signatures
    }

    fn text(&mut self, field: &str) -> Option<String> {
        self.texts.remove(field).map(|(text, _)| text)
    }

    fn file(&mut self, field: &str) -> Option<PathBuf> {
        self.text(field).map(|file| self.folder.join(file))
    }

    /// The first line of these fields that are there, if more than one is.
    fn both(&self, fields: &[&str]) -> Option<usize> {
        let mut lines = fields.iter().filter_map(|field| self.texts.get(*field)).map(|(_, line)| *line);
        let first = lines.next()?;
        lines.next().map(|second| first.max(second))
    }

    fn source(mut self, signatures: Option<(usize, Vec<(String, Node)>)>) -> Option<SourceConfig> {
        for field in ["name", "repo"] {
            let is_reported = self.wrongs.iter().any(|wrong| wrong.is_of(&self.who, field));
            if !self.texts.contains_key(field) && !is_reported {
                self.wrong(self.line, format!("has no `{field}`"), format!("add {field}: …"));
            }
        }
        if let Some(line) = self.both(&["branch", "tag", "commit"]) {
            self.wrong(line, "follows more than one of branch, tag and commit", "keep one of them");
        }
        if let Some(line) = self.both(&["tokenFile", "tokenEnv"]) {
            self.wrong(line, "has both tokenFile and tokenEnv", "keep one of them");
        }
        let poll = self.poll();
        let strict = self.strict();
        let signatures = signatures.and_then(|(line, fields)| self.signatures(line, fields));
        let (name, url) = (self.text("name")?, self.text("repo")?);
        let references = [self.text("branch"), self.text("tag"), self.text("commit")];
        let [branch, tag, commit] = references;
        let config = SourceConfig {
            name,
            url,
            reference: reference(branch, tag, commit),
            path: self.text("path").unwrap_or_default().trim_matches('/').to_owned(),
            credentials: Credentials {
                token_file: self.file("tokenFile"),
                token_env: self.text("tokenEnv"),
                username: self.text("username"),
                ssh_key: self.file("sshKey"),
                known_hosts: self.file("knownHosts"),
                ca_file: self.file("caFile"),
                proxy: self.text("proxy"),
            },
            poll,
            strict,
            signatures,
        };
        if let Err(error) = config.check() {
            self.wrong(self.line, error.to_string(), HELP);
        }
        Some(config)
    }

    fn poll(&mut self) -> std::time::Duration {
        let Some((text, line)) = self.texts.remove("poll") else { return POLL_DEFAULT };
        match parse_duration(&text) {
            Ok(poll) => {
                if let Err((why, help)) = check_poll(poll) {
                    self.wrong(line, format!("poll {poll:?} {why}"), help);
                }
                poll
            }
            Err(why) => {
                let why = why.split("; ").next().unwrap_or(&why).to_owned();
                self.wrong(line, format!("poll: {why}"), "write a number with ms, s, m or h, for example 5s");
                POLL_DEFAULT
            }
        }
    }

    fn strict(&mut self) -> bool {
        match self.texts.remove("strict") {
            None => false,
            Some((text, _)) if text == "true" || text == "false" => text == "true",
            Some((text, line)) => {
                self.wrong(line, format!("strict is `{text}`"), "write true or false");
                false
            }
        }
    }

    fn signatures(&mut self, line: usize, fields: Vec<(String, Node)>) -> Option<SignaturePolicy> {
        let before = self.wrongs.len();
        self.take(fields, &SIGNATURE_FIELDS);
        if let Some((mode, line)) = self.texts.remove("mode").filter(|(mode, _)| mode != "head") {
            self.wrong(line, format!("signatures have no mode `{mode}`"), "write head, or remove the line");
        }
        let (allowed_signers, gpg_keys) = (self.file("allowedSigners"), self.file("gpgKeys"));
        if allowed_signers.is_none() && gpg_keys.is_none() && self.wrongs.len() == before {
            // Fail closed: `signatures` asks for a check.
            let help = "name allowedSigners, gpgKeys or both, or remove `signatures`";
            self.wrong(line, "signatures name no file of keys", help);
        }
        Some(SignaturePolicy { allowed_signers, gpg_keys })
    }
}

/// The known word that was most likely meant, or all of them.
fn suggestion(word: &str, known: &[&str]) -> String {
    let lower = word.to_lowercase();
    let near = known.iter().map(|known| (strsim::damerau_levenshtein(&lower, &known.to_lowercase()), known));
    match near.filter(|(distance, _)| *distance <= (word.chars().count() / 3).clamp(1, 4)).min() {
        Some((_, nearest)) => format!("did you mean `{nearest}`?"),
        None => format!("fields are {}", known.join(", ")),
    }
}
