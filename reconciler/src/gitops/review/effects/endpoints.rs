//! Services that lose their last pod: the one effect that depends on more than one step.

use std::collections::BTreeMap;

use schema::kinds::{Kind, Resource};
use schema::meta::{ObjectRef, StringMap};
use schema::object::Object;

use super::case::PlannedObjects;
use super::effect::Effect;
use crate::gitops::plan::Step;

/// Returns the lost endpoints by the step that causes the loss.
pub(crate) fn lost(planned: &PlannedObjects<'_>, steps: &[Step]) -> BTreeMap<ObjectRef, Vec<Effect>> {
    let mut found: BTreeMap<ObjectRef, Vec<Effect>> = BTreeMap::new();
    let gone: Vec<&Step> =
        steps.iter().filter(|step| labels(planned.before(&step.object)).is_some()).collect();
    let changed = |service: &ObjectRef| planned.changed.contains_key(service);
    let services = planned.live.iter().filter(|(object, _)| object.kind == Kind::Service);
    for (service, live) in services {
        let selector_before = selector(Some(&live.value));
        let Some(selector_after) = selector(planned.now(service)) else { continue };
        let Some(selector_before) = selector_before else { continue };
        let same_namespace = |object: &ObjectRef| object.namespace == service.namespace;
        let causes: Vec<&ObjectRef> = gone
            .iter()
            .map(|step| &step.object)
            .filter(|object| {
                same_namespace(object) && matches(selector_before, labels(planned.before(object)))
            })
            .filter(|object| !matches(selector_after, labels(planned.now(object))))
            .collect();
        if causes.is_empty() && !changed(service) {
            continue;
        }
        let had = planned.live.iter().any(|(object, live)| {
            same_namespace(object) && matches(selector_before, labels(Some(&live.value)))
        });
        let has = planned.after().any(|(object, _)| {
            same_namespace(object) && matches(selector_after, labels(planned.now(object)))
        });
        if !had || has {
            continue;
        }
        let effect = Effect::EndpointsLost { service: format!("{}/{}", service.namespace, service.name) };
        if changed(service) {
            found.entry(service.clone()).or_default().push(effect.clone());
        }
        for cause in causes {
            found.entry(cause.clone()).or_default().push(effect.clone());
        }
    }
    found
}

/// Returns the selector of a service, if it has one.
fn selector(object: Option<&Object>) -> Option<&StringMap> {
    match &object?.resource {
        Resource::Service(service) if !service.selector.is_empty() => Some(&service.selector),
        _ => None,
    }
}

/// Returns the labels of the pods that an object creates, if it creates any.
fn labels(object: Option<&Object>) -> Option<&StringMap> {
    let object = object?;
    object.resource.pod(&object.metadata).filter(|pod| pod.count > 0).map(|pod| pod.labels)
}

fn matches(selector: &StringMap, labels: Option<&StringMap>) -> bool {
    labels.is_some_and(|labels| selector.iter().all(|(key, value)| labels.get(key) == Some(value)))
}
