//! Which fields of a pod name a file of the repository, a secret or an object's content. Pure.

use super::keyed::{AllOf, Variable, VolumeOf};
use super::{EnvVar, EnvVarSource, PodSpec};
use crate::files::{ContentRef, ContentUse, KeyUse, normal_path};
use crate::violation::{OwnedStep, field_path, indexed};

/// Every such field. The pod's spec stands below `above`.
pub fn content_uses(pod: &PodSpec, above: &[&str]) -> Vec<ContentUse> {
    let used = |at, what| ContentUse { at, what, is_login: false, is_optional: false, keys: Vec::new() };
    let mut found = Vec::new();
    for (index, volume) in pod.volumes.iter().enumerate() {
        // Made only where something is found: most fields of most pods name nothing.
        let at = || indexed(&[above, &["volumes"]].concat(), index, &[]);
        if let Some(repo) = &volume.repo {
            found.push(used(below(&at(), &["repo", "path"]), ContentRef::Path(normal_path(&repo.path))));
        }
        if let Some(VolumeOf { of, items, is_optional, at: [field, name], .. }) = volume.keyed() {
            let item = |index| [below(&at(), &[field]), indexed(&["items"], index, &["key"])].concat();
            let keys = items.iter().enumerate().map(|(n, one)| (item(n), KeyUse::File(one.key.clone())));
            let keys = keys.collect();
            found.push(ContentUse { is_optional, keys, ..used(below(&at(), &[field, name]), of) });
        }
    }
    for (list, containers) in [("initContainers", &pod.init_containers), ("containers", &pod.containers)] {
        for (index, container) in containers.iter().enumerate() {
            let container_at = || indexed(&[above, &[list]].concat(), index, &[]);
            for (list, number, variable) in container.variables() {
                let at = || [container_at(), indexed(&[list], number, &[])].concat();
                match variable {
                    Variable::One(one) => {
                        let Some(value) = one.value_from.as_ref().and_then(EnvVarSource::keyed) else {
                            continue;
                        };
                        let at = below(&at(), &value.at);
                        let keys = vec![(below(&at, &["key"]), KeyUse::Text(value.key.to_owned()))];
                        let used = used(below(&at, &["name"]), value.of);
                        found.push(ContentUse { is_optional: value.is_optional, keys, ..used });
                    }
                    Variable::All(AllOf { of, prefix, is_optional, at: field }) => {
                        let at = below(&at(), &[field, "name"]);
                        let keys = vec![(at.clone(), KeyUse::Texts(prefix.to_owned()))];
                        found.push(ContentUse { is_optional, keys, ..used(at, of) });
                    }
                }
            }
        }
    }
    for (index, secret) in pod.image_pull_secrets.iter().enumerate() {
        let at = indexed(&[above, &["imagePullSecrets"]].concat(), index, &["name"]);
        found.push(ContentUse { is_login: true, ..used(at, ContentRef::Secret(secret.name.clone())) });
    }
    found
}

/// The fields of a list of variables at `above` that name a value.
pub(in crate::kinds) fn env_uses(env: &[EnvVar], above: &[&str]) -> impl Iterator<Item = ContentUse> {
    env.iter().enumerate().filter_map(move |(number, one)| {
        let value = one.value_from.as_ref().and_then(EnvVarSource::keyed)?;
        let at = below(&indexed(above, number, &[]), &value.at);
        let keys = vec![(below(&at, &["key"]), KeyUse::Text(value.key.to_owned()))];
        let (at, is_optional) = (below(&at, &["name"]), value.is_optional);
        Some(ContentUse { at, what: value.of, is_login: false, is_optional, keys })
    })
}

fn below(at: &[OwnedStep], fields: &[&str]) -> Vec<OwnedStep> {
    [at, &field_path(fields)].concat()
}
