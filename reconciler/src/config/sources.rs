//! The file of `--sources`: several repositories, read strictly; every error names file and line.
//!
//! ```yaml
//! - name: apps
//!   repo: https://git.example.org/apps.git
//!   tokenFile: apps.token        # relative to this file
//! - name: platform
//!   repo: git@git.example.org:platform.git
//!   tag: v3
//!   sshKey: /etc/minik8s/id_ed25519
//!   knownHosts: /etc/minik8s/known_hosts
//!   signatures: {allowedSigners: signers}
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use saphyr_parser::{Event, Parser};
use serde::Deserialize;
use serde_yaml::Value;

use super::repo::{POLL_DEFAULT, check_poll, reference};
use super::{ConfigError, parse_duration};
use crate::git::{Credentials, SignatureMode, SignaturePolicy, SourceConfig};

/// A longer list is more likely a wrong file; each source is a loop and a mirror.
const SOURCES_MAX: usize = 256;
/// A larger file holds no list of so many.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// One entry of the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SourceEntry {
    /// Name: a DNS label.
    pub name: String,
    /// Address: a path, `file://`, `https://`, `ssh://` or `user@host:path`.
    pub repo: String,
    /// Branch to follow; `main` when nothing is named.
    pub branch: Option<String>,
    /// Tag to follow.
    pub tag: Option<String>,
    /// Commit to stay at.
    pub commit: Option<String>,
    /// Folder with the manifests.
    #[serde(default)]
    pub path: String,
    /// Time between two looks, like `5s`.
    pub poll: Option<String>,
    /// All or nothing.
    #[serde(default)]
    pub strict: bool,
    /// File with a token.
    pub token_file: Option<PathBuf>,
    /// Environment variable with a token.
    pub token_env: Option<String>,
    /// User that goes with the token.
    pub username: Option<String>,
    /// File with a private key.
    pub ssh_key: Option<PathBuf>,
    /// File with host keys.
    pub known_hosts: Option<PathBuf>,
    /// File with the only CA certificates to trust.
    pub ca_file: Option<PathBuf>,
    /// Address of the proxy; `none` for none whatever the environment says.
    pub proxy: Option<String>,
    /// Only signed commits.
    pub signatures: Option<SignatureEntry>,
}

/// `signatures` of an entry.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SignatureEntry {
    /// Which commits must be signed.
    #[serde(default)]
    pub mode: SignatureMode,
    /// File in OpenSSH's allowed_signers format.
    pub allowed_signers: Option<PathBuf>,
    /// File with public keys of OpenPGP.
    pub gpg_keys: Option<PathBuf>,
}

/// Reads the file.
///
/// # Errors
/// The first thing that is wrong, with its line.
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
    parse(&text, &folder.unwrap_or_default()).map_err(|Wrong { line, why, help }| {
        let place = if line > 0 { format!("{}:{line}", file.display()) } else { file.display().to_string() };
        ConfigError::new("--sources", place, why, help)
    })
}

/// What is wrong where; line 0: the file as a whole.
#[derive(Debug)]
struct Wrong {
    line: usize,
    why: String,
    help: String,
}

const HELP: &str = "see docs/operations.md, \"Repositories and credentials\"";

fn parse(text: &str, folder: &Path) -> Result<Vec<SourceConfig>, Wrong> {
    let unreadable = |error: serde_yaml::Error| {
        let line = error.location().map_or(0, |at| at.line());
        let why = error.to_string();
        let why = why.split(" at line ").next().unwrap_or(&why).replace('\n', " ");
        Wrong { line, why, help: HELP.to_owned() }
    };
    let entries: Vec<SourceEntry> = serde_yaml::from_str(text).map_err(unreadable)?;
    let values: Vec<Value> = serde_yaml::from_str(text).map_err(unreadable)?;
    let whole = |why: String| Wrong { line: 0, why, help: HELP.to_owned() };
    if entries.is_empty() {
        return Err(whole("lists no source".to_owned()));
    }
    if entries.len() > SOURCES_MAX {
        return Err(whole(format!("lists {} sources; {SOURCES_MAX} at most", entries.len())));
    }
    let lines = lines_of_items(text);
    let mut seen = BTreeMap::<String, usize>::new();
    let mut sources = Vec::new();
    for (index, entry) in entries.into_iter().enumerate() {
        let line = lines.get(index).copied().unwrap_or(0);
        let name = entry.name.clone();
        let wrong =
            |(why, help): (String, String)| Wrong { line, why: format!("source `{name}`: {why}"), help };
        if let Some(field) = values.get(index).and_then(field_without_value) {
            let help = "give it one, or remove the line".to_owned();
            return Err(wrong((format!("{field} is there without a value"), help)));
        }
        let source = source_of(entry, folder).map_err(wrong)?;
        if let Some(first) = seen.insert(source.name.clone(), line) {
            let why = format!("its name is taken by the one in line {first}");
            return Err(wrong((why, "give every source a name of its own".to_owned())));
        }
        sources.push(source);
    }
    Ok(sources)
}

fn source_of(entry: SourceEntry, folder: &Path) -> Result<SourceConfig, (String, String)> {
    let references = [&entry.branch, &entry.tag, &entry.commit].into_iter().flatten().count();
    if references > 1 {
        return Err(("follows more than one of branch, tag and commit".into(), "keep one of them".into()));
    }
    if entry.token_file.is_some() && entry.token_env.is_some() {
        return Err(("has both tokenFile and tokenEnv".into(), "keep one of them".into()));
    }
    let poll = match entry.poll.as_deref().map(parse_duration) {
        None => POLL_DEFAULT,
        Some(poll) => poll.map_err(|why| (format!("poll: {why}"), "for example 5s".to_owned()))?,
    };
    check_poll(poll).map_err(|(why, help)| (format!("poll {poll:?} {why}"), help.to_owned()))?;
    let at = |file: Option<PathBuf>| file.map(|file| folder.join(file));
    if let Some(field) = empty_field(&entry) {
        return Err((format!("{field} is empty"), "give it a value, or remove the line".to_owned()));
    }
    let signatures = match entry.signatures {
        None => None,
        Some(SignatureEntry { allowed_signers: None, gpg_keys: None, .. }) => {
            // Fail closed: whoever writes `signatures` wants them checked.
            let help = "name allowedSigners, gpgKeys or both, or remove `signatures`";
            return Err(("signatures name no file of keys".into(), help.into()));
        }
        Some(entry) => Some(SignaturePolicy {
            mode: entry.mode,
            allowed_signers: at(entry.allowed_signers),
            gpg_keys: at(entry.gpg_keys),
        }),
    };
    let config = SourceConfig {
        name: entry.name,
        url: entry.repo,
        reference: reference(entry.branch, entry.tag, entry.commit),
        path: entry.path.trim_matches('/').to_owned(),
        credentials: Credentials {
            token_file: at(entry.token_file),
            token_env: entry.token_env,
            username: entry.username,
            ssh_key: at(entry.ssh_key),
            known_hosts: at(entry.known_hosts),
            ca_file: at(entry.ca_file),
            proxy: entry.proxy,
        },
        poll,
        strict: entry.strict,
        signatures,
    };
    config.check().map_err(|error| (error.to_string(), HELP.to_owned()))?;
    Ok(config)
}

/// A key that is there has a value. Whoever writes `signatures:` and comments out what was below it, or
/// fills in `tokenFile:` from a variable that is not set, did not mean to go without.
fn field_without_value(value: &Value) -> Option<String> {
    value.as_mapping()?.iter().find_map(|(key, value)| match value {
        Value::Null => Some(key.as_str().unwrap_or_default().to_owned()),
        other => field_without_value(other),
    })
}

/// An empty path would be the folder of the list itself; an empty name is one that was not filled in.
fn empty_field(entry: &SourceEntry) -> Option<&'static str> {
    let signatures = entry.signatures.as_ref();
    let files = [
        ("tokenFile", entry.token_file.as_ref()),
        ("sshKey", entry.ssh_key.as_ref()),
        ("knownHosts", entry.known_hosts.as_ref()),
        ("caFile", entry.ca_file.as_ref()),
        ("allowedSigners", signatures.and_then(|signatures| signatures.allowed_signers.as_ref())),
        ("gpgKeys", signatures.and_then(|signatures| signatures.gpg_keys.as_ref())),
    ];
    let words = [("tokenEnv", &entry.token_env), ("username", &entry.username), ("proxy", &entry.proxy)];
    let files = files.into_iter().map(|(name, file)| (name, file.is_some_and(|f| f.as_os_str().is_empty())));
    let words = words.into_iter().map(|(name, word)| (name, word.as_ref().is_some_and(String::is_empty)));
    files.chain(words).find(|(_, empty)| *empty).map(|(name, _)| name)
}

/// The 1-based line of each item of the list.
fn lines_of_items(text: &str) -> Vec<usize> {
    let mut lines = Vec::new();
    let mut depth = 0_usize;
    for event in Parser::new_from_str(text) {
        let Ok((event, span)) = event else { break };
        match event {
            Event::SequenceStart(..) | Event::MappingStart(..) => {
                if depth == 1 {
                    lines.push(span.start.line());
                }
                depth += 1;
            }
            Event::SequenceEnd | Event::MappingEnd => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::Reference;

    fn wrong(text: &str) -> String {
        let Wrong { line, why, help } = parse(text, Path::new("/etc/minik8s")).unwrap_err();
        assert!(!why.contains('\n') && !help.is_empty());
        format!("{line}: {why}")
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
            ("", "0: ", ""),
            ("[]", "0: ", "lists no source"),
            ("name: a\nrepo: /x\n", "1: ", "sequence"),
            ("- name: a\n  repo: /x\n  brnch: main\n", "3: ", "unknown field `brnch`"),
            ("- name: a\n", "1: ", "missing field `repo`"),
            ("- name: a\n  repo: /x\n  strict: maybe\n", "3: ", "strict"),
            ("# one\n- name: A\n  repo: /x\n", "2: ", "not a DNS label"),
            ("- name: a\n  repo: /x\n  branch: b\n  tag: t\n", "1: ", "more than one of"),
            ("- name: a\n  repo: /x\n  tokenFile: f\n  tokenEnv: E\n", "1: ", "both"),
            ("- name: a\n  repo: /x\n  poll: 1ms\n", "1: ", "out of bounds"),
            ("- name: a\n  repo: /x\n  signatures: {}\n", "1: ", "no file of keys"),
            ("- name: a\n  repo: /x\n  signatures: {keys: f}\n", "3: ", "unknown field"),
            ("- name: a\n  repo: [\n", "", ""),
        ] {
            let said = wrong(text);
            assert!(said.starts_with(starts) && said.contains(holds), "{text:?}: {said}");
        }
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
                assert!(said.contains(field) && said.contains("without a value"), "{field}:{empty}: {said}");
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
