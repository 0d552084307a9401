//! Which objects an object names, and by which field. Pure.

use schema::kinds::metadata::parse_reference;
use schema::kinds::pod::PortReference;
use schema::kinds::{Kind, Resource, field_path};
use schema::meta::{ObjectMeta, ObjectRef};
use schema::violation::OwnedStep;

/// One field that names another object.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reference<'a> {
    /// The field.
    pub(super) at: At,
    /// What it names.
    pub(super) target: ObjectRef,
    /// The port of the target that it names, too.
    pub(super) port: Option<&'a PortReference>,
}

/// A field that names an object: short, since there may be a hundred thousand of them.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum At {
    /// The item of `dependsOn`.
    Dependency(usize),
    /// What an autoscaler scales.
    ScaleTarget,
    /// The path of a host, and its service.
    Service(usize),
    /// A step of a workflow.
    Function(Vec<OwnedStep>),
}

impl At {
    /// From the document's root.
    pub(super) fn path(&self) -> Vec<OwnedStep> {
        match self {
            At::Dependency(index) => indexed(&["metadata", "dependsOn"], *index, &[]),
            At::ScaleTarget => field_path(&["spec", "scaleTargetRef", "name"]),
            At::Service(index) => indexed(&["spec", "paths"], *index, &["service", "name"]),
            At::Function(path) => path.clone(),
        }
    }
}

/// The objects that `metadata` says to wait for. Malformed items, which the kind's own check tells
/// of, are passed over.
pub(crate) fn dependencies(metadata: &ObjectMeta) -> impl Iterator<Item = ObjectRef> {
    metadata.depends_on.iter().filter_map(|text| parse_reference(text, &metadata.namespace).ok())
}

/// Every field of an object that names another one.
pub(super) fn references<'a>(metadata: &ObjectMeta, resource: &'a Resource) -> Vec<Reference<'a>> {
    let mut found = of_kind(metadata, resource);
    for (index, text) in metadata.depends_on.iter().enumerate() {
        let Ok(target) = parse_reference(text, &metadata.namespace) else { continue };
        found.push(Reference { at: At::Dependency(index), target, port: None });
    }
    found
}

fn of_kind<'a>(metadata: &ObjectMeta, resource: &'a Resource) -> Vec<Reference<'a>> {
    let object =
        |kind, name: &str| ObjectRef { kind, namespace: metadata.namespace.clone(), name: name.to_owned() };
    match resource {
        Resource::HorizontalPodAutoscaler(hpa) => {
            let target = &hpa.scale_target_ref;
            let kind = target.kind.kind();
            vec![Reference { at: At::ScaleTarget, target: object(kind, &target.name), port: None }]
        }
        Resource::Dns(dns) => {
            let paths = dns.paths.iter().enumerate();
            let service = paths.map(|(index, path)| Reference {
                at: At::Service(index),
                target: object(Kind::Service, &path.service.name),
                port: Some(&path.service.port),
            });
            service.collect()
        }
        Resource::Workflow(workflow) => {
            let functions = workflow.functions().into_iter();
            let reference = functions.map(|(path, name)| Reference {
                at: At::Function(path),
                target: match name.split_once('/') {
                    Some((namespace, name)) => {
                        ObjectRef { namespace: namespace.to_owned(), ..object(Kind::Function, name) }
                    }
                    None => object(Kind::Function, name),
                },
                port: None,
            });
            reference.collect()
        }
        Resource::Cluster(_)
        | Resource::Node(_)
        | Resource::Function(_)
        | Resource::Service(_)
        | Resource::Pod(_)
        | Resource::ReplicaSet(_)
        | Resource::Job(_) => Vec::new(),
    }
}

/// `before[index].after`.
pub(super) fn indexed(before: &[&str], index: usize, after: &[&str]) -> Vec<OwnedStep> {
    let mut path = field_path(before);
    path.push(OwnedStep::Index(index));
    path.extend(field_path(after));
    path
}

/// `spec.paths[0].service.name`, for messages.
pub(super) fn shown(path: &[OwnedStep]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            OwnedStep::Field(name) if text.is_empty() => text.push_str(name),
            OwnedStep::Field(name) => {
                text.push('.');
                text.push_str(name);
            }
            OwnedStep::Index(index) => text.push_str(&format!("[{index}]")),
        }
    }
    text
}
