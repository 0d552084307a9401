//! Random valid manifests for property tests: the same seed gives the same text, on every machine and with every
//! version of this crate's dependencies.

use serde_json::{Value as Json, json};

use crate::kinds::{FieldPlacement, Kind};

mod chance;
mod compute;
mod emit;
mod network;
mod workloads;

pub use chance::Chance;

/// Kinds that [`arbitrary_object`] generates: all but Cluster, which may exist only once.
fn kinds() -> Vec<Kind> {
    Kind::ALL.into_iter().filter(|kind| *kind != Kind::Cluster).collect()
}

/// Returns YAML of one object of any kind but Cluster, with the objects it refers to: the text is valid on its own,
/// and texts of different seeds can share a repository.
pub fn arbitrary_object(seed: u64) -> String {
    let mut chance = Chance::new(seed);
    let kind = chance.pick(&kinds());
    arbitrary_object_of(kind, &format!("x{seed:x}"), seed)
}

/// Returns YAML of an object of this kind and name, with the objects it refers to (their names begin with `name`).
/// Another seed gives other content under the same names.
pub fn arbitrary_object_of(kind: Kind, name: &str, seed: u64) -> String {
    let mut chance = Chance::new(seed);
    // `arbitrary_object` draws the kind from the first number; the content must not depend on it.
    chance.below(2);
    let objects = match kind {
        Kind::Cluster => vec![object(kind, "cluster", compute::cluster(&mut chance), &mut chance)],
        Kind::ConfigMap => vec![object(kind, name, config_map(&mut chance), &mut chance)],
        Kind::Node => vec![object(kind, name, compute::node(&mut chance), &mut chance)],
        Kind::Function => vec![object(kind, name, compute::function(&mut chance), &mut chance)],
        Kind::Job => vec![object(kind, name, compute::job(&mut chance), &mut chance)],
        Kind::Pod => vec![object(kind, name, workloads::pod(&mut chance), &mut chance)],
        Kind::ReplicaSet => vec![object(kind, name, workloads::replica_set(name, &mut chance), &mut chance)],
        Kind::DaemonSet => vec![object(kind, name, workloads::daemon_set(name, &mut chance), &mut chance)],
        Kind::Service => vec![object(kind, name, network::service(name, &mut chance), &mut chance)],
        Kind::HorizontalPodAutoscaler => {
            let target =
                object(Kind::ReplicaSet, name, workloads::replica_set(name, &mut chance), &mut chance);
            vec![object(kind, name, workloads::autoscaler(name, &mut chance), &mut chance), target]
        }
        Kind::PodDisruptionBudget => {
            vec![object(kind, name, workloads::disruption_budget(name, &mut chance), &mut chance)]
        }
        Kind::Dns => {
            let service = object(Kind::Service, name, network::service(name, &mut chance), &mut chance);
            vec![object(kind, name, network::dns(name, &mut chance), &mut chance), service]
        }
        Kind::Workflow => {
            let (flow, functions) = compute::workflow(name, &mut chance);
            let mut objects = vec![object(kind, name, flow, &mut chance)];
            for function in functions {
                let spec = compute::function(&mut chance);
                objects.push(object(Kind::Function, &function, spec, &mut chance));
            }
            objects
        }
    };
    let documents: Vec<String> = objects.iter().map(|object| emit::yaml(object, &mut chance)).collect();
    documents.join("---\n")
}

fn config_map(chance: &mut Chance) -> Json {
    let data: serde_json::Map<String, Json> =
        (0..chance.below(4)).map(|index| (format!("KEY_{index}"), chance.text().into())).collect();
    json!({"data": data, "binaryData": {"logo.png": "iVBORw0KGgo="}})
}

/// Builds the envelope, with random labels and annotations.
fn object(kind: Kind, name: &str, spec: impl Into<Json>, chance: &mut Chance) -> Json {
    let mut metadata = json!({"name": name});
    if chance.one_in(2) {
        metadata["labels"] = json!({"app": chance.word(), "example.com/tier": chance.word()});
    }
    if chance.one_in(3) {
        metadata["annotations"] = json!({"note": chance.text()});
    }
    if chance.one_in(4) {
        metadata["namespace"] = json!("default");
    }
    let mut whole = json!({"apiVersion": kind.api_version(), "kind": kind.as_str(), "metadata": metadata});
    match (kind.descriptor().fields, spec.into()) {
        (FieldPlacement::AtTop, Json::Object(own)) => {
            own.into_iter().for_each(|(name, field)| whole[name] = field);
        }
        (_, spec) => whole["spec"] = spec,
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::load_file;
    use crate::violation::Severity;

    #[test]
    fn every_arbitrary_manifest_is_valid_and_the_same_for_the_same_seed() {
        for seed in 0..300 {
            for kind in Kind::ALL {
                let text = arbitrary_object_of(kind, "one", seed);
                assert_eq!(text, arbitrary_object_of(kind, "one", seed));
                let loaded = load_file("a.yaml", text.as_bytes());
                let found: Vec<_> =
                    loaded.violations.iter().filter(|one| one.severity != Severity::Note).collect();
                assert!(found.is_empty(), "seed {seed}: {found:#?}\n{text}");
                assert_eq!(loaded.documents[0].object.resource.kind(), kind);
            }
        }
    }

    #[test]
    fn what_is_written_out_again_loads_as_the_same() {
        for seed in 0..300 {
            for document in load_file("a.yaml", arbitrary_object(seed).as_bytes()).documents {
                let draft = document.object;
                // The values are not part of the object.
                if draft.resource.content().is_some() {
                    continue;
                }
                let mut json = serde_json::to_value(&draft.resource).unwrap();
                json["apiVersion"] = draft.api_version.clone().into();
                json["metadata"] = serde_json::to_value(&draft.metadata).unwrap();
                let again = load_file("a.json", json.to_string().as_bytes());
                assert_eq!(again.documents.len(), 1, "{json} {:#?}", again.violations);
                assert_eq!(again.documents[0].object, draft, "seed {seed}");
            }
        }
    }

    #[test]
    fn seeds_differ_and_all_kinds_come_up() {
        let texts: std::collections::BTreeSet<String> = (0..200).map(arbitrary_object).collect();
        assert_eq!(texts.len(), 200);
        for kind in kinds() {
            assert!(texts.iter().any(|text| text.contains(&format!("kind: \"{kind}\""))), "{kind}");
        }
        let same_name: std::collections::BTreeSet<String> =
            (0..50).map(|seed| arbitrary_object_of(Kind::Pod, "one", seed)).collect();
        assert!(same_name.len() > 40, "{}", same_name.len());
    }
}
