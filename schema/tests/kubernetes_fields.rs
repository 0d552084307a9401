//! Each field that Kubernetes' types have runs here, is left out with a note, or is refused with advice. The types are
//! those of the crate k8s-openapi, made from Kubernetes' published API.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking, as tests do.

use std::collections::BTreeSet;

use k8s_openapi::api::{apps, autoscaling, core};
use schema::explain::is_known_field;
use schema::kinds::Kind;
use schema::manifest::json_schema;
use schemars::schema_for;
use serde_json::Value as Json;

/// A place in a JSON Schema.
#[derive(Clone, Copy)]
struct View<'a> {
    whole: &'a Json,
    here: &'a Json,
}

impl<'a> View<'a> {
    fn root(whole: &'a Json) -> Self {
        Self { whole, here: whole }
    }

    fn at(self, here: &'a Json) -> Self {
        Self { here, ..self }
    }

    /// Name of the type, and its fields; `None` for a value without fields.
    fn record(self) -> Option<(&'a str, &'a serde_json::Map<String, Json>, Self)> {
        let name = self.here["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/"));
        let target = name.map_or(self, |name| self.at(&self.whole["$defs"][name]));
        if let Some(fields) = target.here["properties"].as_object() {
            return Some((name.unwrap_or_default(), fields, target));
        }
        if name.is_some() && target.here.get("$ref").is_some() {
            return target.record();
        }
        let inner = [target.here.get("items"), target.here.get("additionalProperties")];
        if let Some(inner) = inner.into_iter().flatten().find(|inner| inner.is_object()) {
            return target.at(inner).record();
        }
        let branches =
            ["anyOf", "allOf"].into_iter().filter_map(|word| target.here[word].as_array()).flatten();
        branches.into_iter().find_map(|branch| target.at(branch).record())
    }
}

/// Collects the fields of Kubernetes' type that ours has no row for.
fn compare(ours: View<'_>, theirs: View<'_>, seen: &mut BTreeSet<String>, lost: &mut BTreeSet<String>) {
    let (Some((name, own, own_view)), Some((_, fields, their_view))) = (ours.record(), theirs.record())
    else {
        return;
    };
    if !seen.insert(name.to_owned()) {
        return;
    }
    for (field, value) in fields {
        match own.get(field) {
            Some(own) => compare(own_view.at(own), their_view.at(value), seen, lost),
            None if !is_known_field(name, field) => {
                lost.insert(format!("{name}.{field}"));
            }
            None => {}
        }
    }
}

#[test]
fn each_field_of_kubernetes_runs_is_left_out_or_is_refused_with_advice() {
    let kinds = [
        (Kind::Pod, schema_for!(core::v1::Pod)),
        (Kind::Service, schema_for!(core::v1::Service)),
        (Kind::ConfigMap, schema_for!(core::v1::ConfigMap)),
        (Kind::Node, schema_for!(core::v1::Node)),
        (Kind::ReplicaSet, schema_for!(apps::v1::Deployment)),
        (Kind::ReplicaSet, schema_for!(apps::v1::ReplicaSet)),
        (Kind::ReplicaSet, schema_for!(core::v1::ReplicationController)),
        (Kind::DaemonSet, schema_for!(apps::v1::DaemonSet)),
        (Kind::HorizontalPodAutoscaler, schema_for!(autoscaling::v2::HorizontalPodAutoscaler)),
    ];
    let (any, mut lost) = (json_schema::for_any_kind(), BTreeSet::new());
    for (kind, theirs) in kinds {
        let theirs = theirs.to_value();
        let ours = View::root(&any).at(&any["$defs"][format!("{kind}Manifest")]);
        let (_, own, own_view) = ours.record().unwrap();
        let (_, fields, their_view) = View::root(&theirs).record().unwrap();
        // The loader takes any `status`.
        for (field, value) in fields.iter().filter(|(field, _)| *field != "status") {
            match own.get(field) {
                Some(own) => compare(own_view.at(own), their_view.at(value), &mut BTreeSet::new(), &mut lost),
                None => assert!(lost.insert(format!("{kind}.{field}"))),
            }
        }
    }
    assert!(lost.is_empty(), "neither read nor in a table of manifest/unsupported.rs: {lost:#?}");
}
