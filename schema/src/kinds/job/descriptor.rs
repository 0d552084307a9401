//! The `Job` kind: names, links, defaults.

use super::super::pod::content_uses::{content_use, login_key};
use super::super::{Descriptor, KindSpec, Links, OlderSpellings};
use super::{JobSpec, SlurmLogin, validate};
use crate::content_refs::{ContentRef, ContentUse, normalize_path};
use crate::document::edit::{below, entry, list, mapping, put, rename, take, text};
use crate::kinds::Kind;
use crate::kinds::reference::{FieldLocation, Reference};
use crate::manifest::dialects::{Mark, Node, Notes, Value};
use crate::meta::ObjectMeta;
use crate::violation::{Findings, Path, field_path, rules};

impl KindSpec for JobSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "jobs",
        failure_is_final: true,
        older: OlderSpellings::for_own_kind(rewrite),
        ..Descriptor::DEFAULT
    };

    const LINKS: Links<Self> = Links { references: Self::references, files: Self::files, ..Links::NONE };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate::validate(self, at, findings);
    }

    fn fill_defaults(&mut self) {
        if let Some(files) = &mut self.files {
            *files = normalize_path(files);
        }
        self.gpus_per_node = self.gpus_per_node.filter(|gpus| *gpus > 0);
        let default = if self.array.is_some() { "slurm-%A_%a.out" } else { "slurm-%j.out" };
        self.output_file.get_or_insert_with(|| default.to_owned());
    }

    fn is_replaced_by(&self, after: &Self) -> bool {
        self != after
    }
}

impl JobSpec {
    fn files(&self) -> Vec<ContentUse> {
        let folder = self.files.iter().map(|path| ContentRef::Path(normalize_path(path)));
        let files = folder.map(|folder| content_use(field_path(&["spec", "files"]), folder));
        files.chain(self.login.content_uses(&["spec", "login"])).collect()
    }

    fn references(&self, metadata: &ObjectMeta) -> Vec<Reference<'_>> {
        let on = self.dependency.iter().map(|dependency| Reference {
            at: FieldLocation::Fields(&["spec", "dependency", "job"]),
            target: metadata.reference(Kind::Job, &dependency.job),
            port: None,
            is_optional: false,
        });
        on.collect()
    }
}

impl SlurmLogin {
    /// Returns the secrets that the login names. A submitted job does not need them, so a new key does not resubmit
    /// it.
    pub(in crate::kinds) fn content_uses(&self, at: &[&'static str]) -> Vec<ContentUse> {
        self.secrets().map(|(field, secret)| login_key(&[at, &[field]].concat(), secret)).collect()
    }
}

// Older Job manifests: other names of options, and the login's fields directly under `spec`. Passwords and keys in
// clear text are errors, in the current spelling too; their text is removed from the tree, so that no later
// message repeats it. A Kubernetes Job gets an explanation.

/// Renamed fields of `spec`, each with its current name.
const RENAMED: [(&str, &str); 2] = [("gpuNums", "gpusPerNode"), ("submitDirectory", "files")];
/// Fields of `spec` that have moved to `spec.login`, each with its current name.
const LOGIN_FIELDS: [(&str, &str); 2] = [("submitHost", "host"), ("username", "username")];
/// Names under which people write secrets, and the fields for references to secrets.
const SECRETS: [(&str, &str); 6] = [
    ("password", "password"),
    ("passwd", "password"),
    ("sshKey", "sshKey"),
    ("privateKey", "sshKey"),
    ("identityFile", "sshKey"),
    ("passphrase", "sshKey"),
];

pub(super) fn rewrite(node: &mut Node, notes: &mut Notes<'_>) {
    if is_kubernetes_job(node) {
        return not_a_batch_job(node, notes);
    }
    let Some(spec) = below(node, &["spec"]) else { return };
    secrets_in_clear(spec, "spec", notes);
    for (old, new) in RENAMED {
        if let Some(mark) = rename(spec, old, new) {
            notes.older(mark, &format!("spec.{old}"), &format!("spec.{new}"));
        }
    }
    for (old, new) in LOGIN_FIELDS {
        let Some(written) = spec.entry(old) else { continue };
        let mark = written.mark;
        let of_login = spec.entry("login").map(|login| &login.value);
        // If the login has the field already, or is not a mapping, the older field stays and is reported as unknown.
        if of_login.is_some_and(|login| login.entries().is_none() || login.entry(new).is_some()) {
            continue;
        }
        let Some(written) = take(spec, old) else { continue };
        put(spec, entry("login", mark, mapping(mark, [])));
        if let Some(login) = below(spec, &["login"]) {
            put(login, entry(new, mark, written.value));
        }
        notes.older(mark, &format!("spec.{old}"), &format!("spec.login.{new}"));
    }
    if let Some(login) = below(spec, &["login"]) {
        secrets_in_clear(login, "spec.login", notes);
    }
}

/// Removes and reports secrets in clear text in the login that the Cluster object gives to all jobs.
pub(in crate::kinds) fn rewrite_cluster(node: &mut Node, notes: &mut Notes<'_>) {
    if let Some(login) = below(node, &["spec", "slurm", "login"]) {
        secrets_in_clear(login, "spec.slurm.login", notes);
    }
}

/// Removes and reports secrets in clear text in the mapping at `path`.
fn secrets_in_clear(node: &mut Node, path: &str, notes: &mut Notes<'_>) {
    let login = if path.ends_with("login") { path.to_owned() } else { format!("{path}.login") };
    for (field, reference) in SECRETS {
        let is_clear = |value: &Node| {
            matches!(value.value, Value::Scalar { .. } | Value::Sequence(_)) && !value.is_null()
        };
        if !node.entry(field).is_some_and(|entry| is_clear(&entry.value)) {
            continue;
        }
        let Some(written) = take(node, field) else { continue };
        if written.value.text().is_some_and(str::is_empty) {
            notes.dropped(written.mark, &format!("{path}.{field}"), "it is empty");
            continue;
        }
        notes.error(
            written.mark,
            &rules::LITERAL_SECRET,
            format!("{path}.{field}: a secret in clear text: anyone who can read the repository has it, even after removal"),
            &format!(
                "change it on its host, write the new one with 'minik8s secrets seal SECRET --from -', and refer to it: \
`{login}.{reference}: {{name: SECRET, key: KEY}}`"
            ),
        );
    }
}

/// True for a Kubernetes Job, which runs pods.
fn is_kubernetes_job(node: &Node) -> bool {
    let is_batch = node
        .entry("apiVersion")
        .and_then(|entry| entry.value.text())
        .is_some_and(|text| text.starts_with("batch/"));
    let has_template = node.entry("spec").is_some_and(|spec| spec.value.entry("template").is_some());
    is_batch && has_template
}

/// Reports a single error instead of one for each field. The replacement spec is valid and never stored.
fn not_a_batch_job(node: &mut Node, notes: &mut Notes<'_>) {
    let mark = |key: &str| node.entry(key).map_or(node.first_mark(), |entry| entry.value.mark);
    let (version, spec): (Mark, Mark) = (mark("apiVersion"), mark("spec"));
    let message =
        "apiVersion `batch/v1` is for Kubernetes Jobs, which run pods; a Minik8s Job is a Slurm job";
    notes.error(
        version,
        &rules::API_VERSION,
        message.to_owned(),
        "for containers that run to completion, write a Pod with `restartPolicy: OnFailure` (or Never)",
    );
    take(node, "apiVersion");
    take(node, "spec");
    put(node, entry("apiVersion", version, text(version, Kind::Job.api_version())));
    let commands = list(spec, vec![text(spec, "true")]);
    put(node, entry("spec", spec, mapping(spec, [("runCommands", commands)])));
}
