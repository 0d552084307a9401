//! The file of `--sources`: several repositories, parsed strictly. An error names the place of the mistake. An
//! example is in docs/operations.md, "Repositories and credentials".

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use schema::kinds::Kind;
use schema::names::is_dns_label;
use schema::records::AllowedObjects;
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use super::repo::{POLL_DEFAULT, check_poll, reference};
use super::{ConfigError, parse_duration};
use crate::git::{
    CommitStatus, CommitStatusFields, Credentials, Forge, Mirror, SealedCredentials, SignaturePolicy,
    SourceConfig,
};
use crate::text_file::read_text;

/// Maximum number of sources: a longer list is more likely a wrong file; each source is a loop and a mirror.
const SOURCES_MAX: usize = 256;
const FILE_BYTES_MAX: u64 = 1024 * 1024;
const HELP: &str = "see docs/operations.md, \"Repositories and credentials\"";
const STATUS_HELP: &str = "see docs/operations.md, \"Notifications and commit status\"";

/// A source as written in the file.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[serde(expecting = "a map with `name` and `repo`")]
struct SourceEntry {
    name: OptionalField<Text>,
    repo: OptionalField<Text>,
    branch: OptionalField<Text>,
    tag: OptionalField<Text>,
    commit: OptionalField<Text>,
    path: OptionalField<String>,
    poll: OptionalField<Text>,
    strict: OptionalField<bool>,
    token_file: OptionalField<Text>,
    token_env: OptionalField<Text>,
    credentials_from: OptionalField<Text>,
    username: OptionalField<Text>,
    ssh_key: OptionalField<Text>,
    known_hosts: OptionalField<Text>,
    ca_file: OptionalField<Text>,
    proxy: OptionalField<Text>,
    signatures: OptionalField<Signatures>,
    allow: OptionalField<Allow>,
    commit_status: OptionalField<CommitStatusEntry>,
}

/// Forge that shows the verdicts.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[serde(expecting = "a map with `forge`, and with `api`, `repository`, `name`, `tokenFile` as needed")]
struct CommitStatusEntry {
    forge: OptionalField<Forge>,
    name: OptionalField<Text>,
    repository: OptionalField<Text>,
    api: OptionalField<Text>,
    token_file: OptionalField<Text>,
    token_env: OptionalField<Text>,
    allow_private: OptionalField<bool>,
}

/// Objects that a source may hold.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[serde(expecting = "a map with `kinds` or `namespaces`")]
struct Allow {
    kinds: OptionalField<Vec<String>>,
    namespaces: OptionalField<Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[serde(expecting = "a map with `allowedSigners` or `gpgKeys`")]
struct Signatures {
    allowed_signers: OptionalField<Text>,
    gpg_keys: OptionalField<Text>,
}

/// An optional field that must have a value if it is present. A missing value is an error: `tokenFile:` from an
/// unset variable, or `signatures:` with its fields commented out, does not mean to go without.
struct OptionalField<T>(Option<T>);

impl<T> Default for OptionalField<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OptionalField<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        T::deserialize(from).map(|value| Self(Some(value)))
    }
}

/// A non-empty text. A number is read as its digits: `tag: 3`.
struct Text(String);

struct TextVisitor;

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(TextVisitor)
    }
}

impl Visitor<'_> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, quoted if it looks like another type")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
        match text {
            "" => Err(E::invalid_value(Unexpected::Str(text), &self)),
            _ => Ok(Text(text.to_owned())),
        }
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Text, E> {
        Ok(Text(number.to_string()))
    }
}

impl OptionalField<Text> {
    fn text(self) -> Option<String> {
        self.0.map(|Text(text)| text)
    }

    /// A path, relative to the folder of the list unless it is absolute.
    fn file(self, folder: &Path) -> Option<PathBuf> {
        self.text().map(|file| folder.join(file))
    }
}

/// Reads the file of sources. `state_dir` has the mirrors and this reconciler's identity.
pub fn read_sources(file: &Path, state_dir: &Path) -> Result<Vec<SourceConfig>, ConfigError> {
    let wrong = |why: String, help| ConfigError::new("--sources", file.display(), why, help);
    let unreadable = |why: String| wrong(why, "name a YAML file with a list of sources");
    let size = fs::metadata(file).map_err(|error| unreadable(error.to_string()))?.len();
    if size > FILE_BYTES_MAX {
        return Err(unreadable("is larger than 1 MiB".to_owned()));
    }
    let text = read_text(file).map_err(|error| unreadable(error.to_string()))?;
    let folder = std::path::absolute(file).ok().and_then(|path| path.parent().map(Path::to_owned));
    parse(&text, &folder.unwrap_or_default(), state_dir).map_err(|why| {
        let help = help_for(&why);
        wrong(why, help)
    })
}

/// Returns the section of the documentation that helps with a mistake. Other mistakes may list `commitStatus` among the
/// fields.
fn help_for(why: &str) -> &'static str {
    let is_of_status = [".commitStatus", "an invalid commitStatus"].iter().any(|part| why.contains(part));
    if is_of_status { STATUS_HELP } else { HELP }
}

/// Parses the sources, or returns the first mistake.
fn parse(text: &str, folder: &Path, state_dir: &Path) -> Result<Vec<SourceConfig>, String> {
    let entries: Vec<SourceEntry> = serde_yaml::from_str(text).map_err(|error| error.to_string())?;
    if !(1..=SOURCES_MAX).contains(&entries.len()) {
        return Err(format!("lists {} sources; 1 to {SOURCES_MAX} are allowed", entries.len()));
    }
    let (mut sources, mut names): (Vec<SourceConfig>, _) = (Vec::new(), BTreeSet::new());
    let mut from = Vec::new();
    for (index, entry) in entries.into_iter().enumerate() {
        let Some(Text(name)) = &entry.name.0 else {
            return Err(format!("source {} has no `name`", index + 1));
        };
        let name = name.clone();
        from.push(entry.credentials_from.0.as_ref().map(|Text(from)| from.clone()));
        let source = source(entry, folder).map_err(|why| format!("source `{name}` {why}"))?;
        if !names.insert(name.clone()) {
            return Err(format!("source `{name}` is listed twice; give every source a unique name"));
        }
        sources.push(source);
    }
    for (index, from) in from.into_iter().enumerate() {
        let Some(from) = from else { continue };
        let sealed = sealed(&sources, &sources[index], &from, state_dir)
            .map_err(|why| format!("source `{}` {why}", sources[index].name))?;
        sources[index].credentials.sealed = Some(sealed);
    }
    Ok(sources)
}

/// Credentials of `source` that are in the repository of the source `from`.
fn sealed(
    sources: &[SourceConfig],
    source: &SourceConfig,
    from: &str,
    state_dir: &Path,
) -> Result<SealedCredentials, String> {
    let own = &source.credentials;
    if own.token_file.is_some() || own.token_env.is_some() || own.ssh_key.is_some() {
        return Err(
            "has both credentialsFrom and one of tokenFile, tokenEnv or sshKey; keep one of them".to_owned()
        );
    }
    let home = sources.iter().find(|home| home.name == from && home.name != source.name);
    let home =
        home.ok_or_else(|| format!("has credentialsFrom `{from}`, which is not the name of another source"))?;
    if home.credentials.sealed.is_some() {
        return Err(format!("has credentialsFrom `{from}`, which has credentialsFrom itself"));
    }
    Ok(Mirror::sealed(home, state_dir))
}

/// Converts an entry to a source, or returns its mistake.
fn source(entry: SourceEntry, folder: &Path) -> Result<SourceConfig, String> {
    let references = [&entry.branch, &entry.tag, &entry.commit];
    if references.iter().filter(|reference| reference.0.is_some()).count() > 1 {
        return Err("follows more than one of branch, tag and commit; keep one of them".to_owned());
    }
    if entry.token_file.0.is_some() && entry.token_env.0.is_some() {
        return Err("has both tokenFile and tokenEnv; keep one of them".to_owned());
    }
    let poll = entry.poll.text().map_or(Ok(POLL_DEFAULT), |poll| parse_duration(&poll));
    let poll = poll.map_err(|why| format!("has an invalid poll: {why}"))?;
    check_poll(poll).map_err(|(why, help)| format!("has a poll of {poll:?}, which {why}; {help}"))?;
    let mut config = SourceConfig {
        name: entry.name.text().unwrap_or_default(),
        url: entry.repo.text().ok_or("has no `repo`")?,
        reference: reference(entry.branch.text(), entry.tag.text(), entry.commit.text()),
        path: entry.path.0.unwrap_or_default().trim_matches('/').to_owned(),
        credentials: Credentials {
            token_file: entry.token_file.file(folder),
            token_env: entry.token_env.text(),
            username: entry.username.text(),
            ssh_key: entry.ssh_key.file(folder),
            known_hosts: entry.known_hosts.file(folder),
            ca_file: entry.ca_file.file(folder),
            sealed: None,
            proxy: entry.proxy.text(),
        },
        poll,
        strict: entry.strict.0.unwrap_or_default(),
        signatures: entry.signatures.0.map(|keys| signatures(keys, folder)).transpose()?,
        allow: entry.allow.0.map_or_else(|| Ok(AllowedObjects::default()), allowed)?,
        commit_status: None,
    };
    config.check().map_err(|error| format!("is invalid: {error}"))?;
    config.commit_status =
        entry.commit_status.0.map(|entry| commit_status(entry, &config.url, folder)).transpose()?;
    Ok(config)
}

fn commit_status(entry: CommitStatusEntry, url: &str, folder: &Path) -> Result<CommitStatus, String> {
    let given = CommitStatusFields {
        forge: entry.forge.0,
        name: entry.name.text(),
        api: entry.api.text(),
        repository: entry.repository.text(),
        token_file: entry.token_file.file(folder),
        token_env: entry.token_env.text(),
        allow_private: entry.allow_private.0.unwrap_or_default(),
        is_by_flags: false,
    };
    CommitStatus::new(given, url).map_err(|(why, help)| format!("has an invalid commitStatus: {why}; {help}"))
}

/// Policy for `signatures`, which asks for a check: empty keys are an error, not a policy without checks.
fn signatures(keys: Signatures, folder: &Path) -> Result<SignaturePolicy, String> {
    let policy = SignaturePolicy {
        allowed_signers: keys.allowed_signers.file(folder),
        gpg_keys: keys.gpg_keys.file(folder),
    };
    match policy {
        SignaturePolicy { allowed_signers: None, gpg_keys: None } => {
            Err("has signatures without a key file; name allowedSigners, gpgKeys or both".to_owned())
        }
        policy => Ok(policy),
    }
}

/// Objects of `allow`, which asks for a limit: empty lists are an error, not no limit.
fn allowed(allow: Allow) -> Result<AllowedObjects, String> {
    let Allow { kinds: OptionalField(kinds), namespaces: OptionalField(namespaces) } = allow;
    let is_empty = |list: &Option<Vec<String>>| list.as_ref().is_some_and(Vec::is_empty);
    if kinds.is_none() && namespaces.is_none() || is_empty(&kinds) || is_empty(&namespaces) {
        return Err("has an allow without kinds or namespaces; list them, or leave allow out".to_owned());
    }
    let kind = |name: String| {
        name.parse::<Kind>()
            .map_err(|_| format!("has an allow with `{name}`, which is not a kind; write for example Pod"))
    };
    let namespace = |name: String| match is_dns_label(&name) {
        true => Ok(name),
        false => Err(format!("has an allow with `{name}`, which is not a namespace")),
    };
    Ok(AllowedObjects {
        kinds: kinds.unwrap_or_default().into_iter().map(kind).collect::<Result<_, _>>()?,
        namespaces: namespaces.unwrap_or_default().into_iter().map(namespace).collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::Reference;

    fn wrong(text: &str) -> String {
        let why = parse(text, Path::new("/etc/minik8s"), Path::new("/state")).unwrap_err();
        assert!(!why.contains('\n'), "{why}");
        why
    }

    #[test]
    fn each_entry_is_a_source_with_its_files_beside_the_list() {
        let text = "- name: apps\n  repo: https://h/a.git\n  tokenFile: apps.token\n  poll: 2s\n  strict: true\n\
                    - name: base\n  repo: git@h:b.git\n  tag: 3\n  sshKey: /k\n  knownHosts: hosts\n  \
                    signatures: {allowedSigners: signers}\n  allow: {kinds: [Pod], namespaces: [shop]}\n- name: extra\n  repo: https://h/c.git\n  \
                    credentialsFrom: base\n  commitStatus: {forge: gitea, name: lab, api: 'https://h', repository: kim/c, tokenFile: t}\n";
        let sources = parse(text, Path::new("/etc/minik8s"), Path::new("/state")).unwrap();
        assert_eq!(sources.len(), 3);
        let sealed = sources[2].credentials.sealed.as_ref().unwrap();
        assert_eq!(*sealed.home, sources[1]);
        assert_eq!(sealed.mirror, Path::new("/state/reconciler/mirrors/base"));
        assert_eq!(sources[0].credentials.token_file.as_deref(), Some(Path::new("/etc/minik8s/apps.token")));
        assert_eq!(sources[0].reference, Reference::Branch("main".into()));
        assert!(sources[0].strict && sources[0].signatures.is_none());
        assert_eq!(sources[1].reference, Reference::Tag("3".into()));
        assert_eq!(sources[1].credentials.ssh_key.as_deref(), Some(Path::new("/k")));
        let allow = AllowedObjects { kinds: vec![Kind::Pod], namespaces: vec!["shop".into()] };
        assert_eq!((&sources[0].allow, &sources[1].allow), (&AllowedObjects::default(), &allow));
        let signers = sources[1].signatures.as_ref().unwrap().allowed_signers.as_deref();
        assert_eq!(signers, Some(Path::new("/etc/minik8s/signers")));
        let status = sources[2].commit_status.as_ref().unwrap();
        assert_eq!((status.forge, status.repository.as_str()), (Forge::Gitea, "kim/c"));
        assert_eq!(status.name.as_deref(), Some("lab"));
        assert_eq!(status.token_file.as_deref(), Some(Path::new("/etc/minik8s/t")));
        assert!(!status.allow_private && sources[0].commit_status.is_none());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, holds) in [
            ("", ""),
            ("[]", "lists 0 sources"),
            ("# nothing\n", ""),
            ("name: a\nrepo: /x\n", "expected a sequence"),
            ("- a\n", "[0]"),
            ("- name: a\n  repo: /x\n  brnch: main\n", "unknown field `brnch`"),
            ("- name: a\n  repo: /x\n  brnch: main\n", "line 3"),
            ("- name: a\n", "source `a` has no `repo`"),
            ("- repo: /x\n", "source 1 has no `name`"),
            ("- name: a\n  repo: [/x]\n", "[0].repo: invalid type: sequence, expected a string"),
            ("- name: a\n  repo: /x\n  strict: maybe\n", "[0].strict: "),
            ("- name: a\n  repo: /x\n  repo: /y\n", "duplicate field `repo`"),
            ("# one\n- name: A\n  repo: /x\n", "not a DNS label"),
            ("- name: a\n  repo: /x\n  branch: b\n  tag: t\n", "more than one of"),
            ("- name: a\n  repo: /x\n  tokenFile: f\n  tokenEnv: E\n", "both"),
            ("- name: a\n  repo: /x\n  credentialsFrom: a\n", "of another source"),
            (
                "- {name: a, repo: /x, credentialsFrom: b, sshKey: k}\n- {name: b, repo: /y}\n",
                "one of tokenFile",
            ),
            (
                "- {name: a, repo: /x, credentialsFrom: b}\n- {name: b, repo: /y, credentialsFrom: a}\n",
                "credentialsFrom itself",
            ),
            ("- name: a\n  repo: /x\n  poll: 1ms\n", "out of bounds"),
            ("- name: a\n  repo: /x\n  poll: soon\n", "is not a time"),
            ("- name: a\n  repo: /x\n  signatures: signers\n", "[0].signatures: "),
            ("- name: a\n  repo: /x\n  signatures: {keys: f}\n", "unknown field `keys`"),
            ("- {name: a, repo: /x, allow: {kinds: [Pod, Gizmo]}}\n", "`Gizmo`, which is not a kind"),
            ("- {name: a, repo: /x, allow: {namespaces: [a/b]}}\n", "`a/b`, which is not a namespace"),
            ("- {name: a, repo: /x, allow: {}}\n", "without kinds or namespaces"),
            ("- {name: a, repo: /x, allow: {kinds: []}}\n", "without kinds or namespaces"),
            ("- {name: a, repo: /x, allow: {kind: [Pod]}}\n", "unknown field `kind`"),
            ("- {name: a, repo: /x, commitStatus: {forge: bitbucket}}\n", "unknown variant `bitbucket`"),
            (
                "- {name: a, repo: /x, commitStatus: {}}\n",
                "source `a` has an invalid commitStatus: no forge is",
            ),
            (
                "- {name: a, repo: /x, commitStatus: {forge: github}}\n",
                "not at github.com; give `api: https://",
            ),
            (
                "- {name: a, repo: /x, commitStatus: {forge: gitea, api: 'https://h'}}\n",
                "has no owner; give `repository: OWNER/NAME`",
            ),
            ("- {name: a, repo: /x, commitStatus: github}\n", "expected a map with `forge`"),
            ("- {name: a, repo: /x, commitStatus: {token: t}}\n", "unknown field `token`"),
            ("- {name: a, repo: /x}\n- {name: a, repo: /y}\n", "source `a` is listed twice"),
            ("- {name: a, repo: /x}\n---\n- {name: b, repo: /y}\n", "document"),
            ("- name: a\n  repo: [\n", "line 2"),
        ] {
            let said = wrong(text);
            assert!(said.contains(holds), "{text:?}: {said}");
        }
    }

    #[test]
    fn mistakes_of_a_commit_status_lead_to_their_section() {
        for (text, section) in [
            ("- {name: a, repo: /x, commitStatus: github}\n", STATUS_HELP),
            ("- {name: a, repo: /x, commitStatus: {forge: x}}\n", STATUS_HELP),
            ("- {name: a, repo: /x, commitStatus: {forge: gitea}}\n", STATUS_HELP),
            ("- {name: a, repo: /x, commitstatus: {}}\n", HELP),
            ("- {name: a}\n", HELP),
        ] {
            assert_eq!(help_for(&wrong(text)), section, "{text}");
        }
    }

    // Seen red with an `Option` in `Given`: a field without a value counts as left out.
    #[test]
    fn a_key_without_a_value_is_an_error_and_never_means_without() {
        let fields = [
            "branch",
            "tag",
            "commit",
            "poll",
            "strict",
            "tokenFile",
            "tokenEnv",
            "credentialsFrom",
            "username",
            "sshKey",
            "knownHosts",
            "caFile",
            "proxy",
            "signatures",
            "allow",
            "commitStatus",
        ];
        for field in fields {
            for empty in ["", " ~", " null", "\n    # allowedSigners: signers"] {
                let said = wrong(&format!("- name: a\n  repo: /x\n  {field}:{empty}\n"));
                assert!(said.contains(field), "{field}:{empty}: {said}");
            }
        }
        for field in ["tokenFile", "tokenEnv", "sshKey", "knownHosts", "caFile", "proxy"] {
            let said = wrong(&format!("- name: a\n  repo: /x\n  {field}: ''\n"));
            assert!(said.contains(field) && said.contains("expected a string"), "{said}");
        }
        for keys in ["{}", "{allowedSigners: ''}", "{gpgKeys: k, allowedSigners: }", "{gpgKeys: ~}"] {
            wrong(&format!("- name: a\n  repo: /x\n  signatures: {keys}\n"));
        }
    }
}
