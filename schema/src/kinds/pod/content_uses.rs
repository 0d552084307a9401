//! Fields of a pod that name a repository file, a secret or the content of an object. Pure.

use super::keyed::{FileSource, TextsSource, VolumeContent};
use super::{EnvVar, EnvVarSource, PodSpec, SecretKeyRef};
use crate::content_refs::{ContentRef, ContentUse, KeyUse, normalize_path};
use crate::violation::{OwnedStep, field_path, indexed};

/// Returns every such field of the pod whose spec is below `above`.
pub fn content_uses(pod: &PodSpec, above: &[&str]) -> Vec<ContentUse> {
    let mut found = Vec::new();
    for (index, volume) in pod.volumes.iter().enumerate() {
        // Built only on a match: most fields of most pods name nothing.
        let at = || indexed(&[above, &["volumes"]].concat(), index, &[]);
        if let Some(repo) = &volume.repo {
            found.push(content_use(
                below(&at(), &["repo", "path"]),
                ContentRef::Path(normalize_path(&repo.path)),
            ));
        }
        for (source, files) in volume.files().into_iter().flat_map(|files| files.sources) {
            let FileSource::Values(VolumeContent { of, items, is_optional, at: [field, name] }) = files
            else {
                continue;
            };
            let at = match source {
                None => at(),
                Some(source) => [at(), indexed(&["projected", "sources"], source, &[])].concat(),
            };
            let item = |index| [below(&at, &[field]), indexed(&["items"], index, &["key"])].concat();
            let keys = items.iter().enumerate().map(|(n, one)| (item(n), KeyUse::File(one.key.clone())));
            let keys = keys.collect();
            found.push(ContentUse { is_optional, keys, ..content_use(below(&at, &[field, name]), of) });
        }
    }
    for (list, containers) in [("initContainers", &pod.init_containers), ("containers", &pod.containers)] {
        for (index, container) in containers.iter().enumerate() {
            let container_at = || indexed(&[above, &[list]].concat(), index, &[]);
            let item = |list: &str, number| [container_at(), indexed(&[list], number, &[])].concat();
            for (number, from) in container.env_from.iter().enumerate() {
                let Some(TextsSource { of, prefix, is_optional, at: field }) = from.texts() else { continue };
                let at = below(&item("envFrom", number), &[field, "name"]);
                let keys = vec![(at.clone(), KeyUse::Texts(prefix.to_owned()))];
                found.push(ContentUse { is_optional, keys, ..content_use(at, of) });
            }
            found.extend(env_uses(&container.env, |number| item("env", number)));
        }
    }
    for (index, secret) in pod.image_pull_secrets.iter().enumerate() {
        let at = indexed(&[above, &["imagePullSecrets"]].concat(), index, &["name"]);
        found.push(ContentUse { is_login: true, ..content_use(at, ContentRef::Secret(secret.name.clone())) });
    }
    found
}

/// Returns the fields of a list of variables that name a value; variable `number` is at `at(number)`.
pub(in crate::kinds) fn env_uses(
    env: &[EnvVar],
    at: impl Fn(usize) -> Vec<OwnedStep>,
) -> impl Iterator<Item = ContentUse> {
    env.iter().enumerate().filter_map(move |(number, one)| {
        let value = one.value_from.as_ref().and_then(EnvVarSource::keyed)?;
        let at = below(&at(number), &value.at);
        let keys = vec![(below(&at, &["key"]), KeyUse::Text(value.key.to_owned()))];
        let used = content_use(below(&at, &["name"]), value.owner);
        Some(ContentUse { is_optional: value.is_optional, keys, ..used })
    })
}

/// Returns the use of a secret's key as a login by the field `at`. Objects that already run do not need it.
pub(in crate::kinds) fn login_key(at: &[&str], secret: &SecretKeyRef) -> ContentUse {
    let keys = vec![(field_path(&[at, &["key"]].concat()), KeyUse::Text(secret.key.clone()))];
    let used = content_use(field_path(&[at, &["name"]].concat()), ContentRef::Secret(secret.name.clone()));
    ContentUse { is_login: true, keys, ..used }
}

/// Returns the use of `what`, which must exist, by the field `at`.
pub(in crate::kinds) fn content_use(at: Vec<OwnedStep>, what: ContentRef) -> ContentUse {
    ContentUse { field: at, content: what, is_login: false, is_optional: false, keys: Vec::new() }
}

fn below(at: &[OwnedStep], fields: &[&str]) -> Vec<OwnedStep> {
    [at, &field_path(fields)].concat()
}
