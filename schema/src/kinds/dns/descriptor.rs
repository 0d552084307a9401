//! The `Dns` kind: names, links, defaults.

use super::super::exclusive::{ExclusiveResource, ExclusiveUse};
use super::super::links::{FieldLocation, Reference};
use super::super::{Descriptor, Kind, KindSpec, Links, NameForm, OlderSpellings};
use super::{DnsSpec, validate, without_final_slash};
use crate::document::edit::{below, entry, items_mut, plain, put, rename, take};
use crate::manifest::dialects::{Node, Notes, Value};
use crate::meta::ObjectMeta;
use crate::violation::{Findings, OwnedStep, Path, field_path, indexed};

impl KindSpec for DnsSpec {
    const DESCRIPTOR: Descriptor = Descriptor {
        plural: "dns",
        names: NameForm::Label,
        older: OlderSpellings { words: &["DNS"], ..OlderSpellings::for_own_kind(rewrite) },
        ..Descriptor::DEFAULT
    };

    const LINKS: Links<Self> = Links {
        references: Self::references,
        exclusives: Self::exclusives,
        extra_position_paths: Self::extra_position_paths,
        ..Links::NONE
    };

    fn validate(&self, at: &Path<'_>, findings: &mut Findings) {
        validate::validate(self, at, findings);
    }

    /// Normalizes equal meanings: `/a/` becomes `/a`, and names of headers become lower case.
    fn fill_defaults(&mut self) {
        for path in &mut self.paths {
            path.path.truncate(without_final_slash(&path.path).len());
            for backend in &mut path.backends {
                let headers = std::mem::take(&mut backend.headers).into_iter();
                backend.headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
            }
        }
    }

    fn is_replaced_by(&self, _: &Self) -> bool {
        false
    }
}

impl DnsSpec {
    fn references(&self, metadata: &ObjectMeta) -> Vec<Reference<'_>> {
        let mut found = Vec::new();
        for (index, path) in self.paths.iter().enumerate() {
            found.extend(path.service.iter().map(|service| Reference {
                at: FieldLocation::Item(&["spec", "paths"], index, &["service", "name"]),
                target: metadata.reference(Kind::Service, &service.name),
                port: Some(&service.port),
                is_optional: false,
            }));
            for (number, backend) in path.backends.iter().enumerate() {
                let (kind, field, name, port) = match (&backend.service, &backend.function) {
                    (Some(name), _) => (Kind::Service, "service", name, backend.port.as_ref()),
                    (None, Some(name)) => (Kind::Function, "function", name, None),
                    (None, None) => continue,
                };
                let above = indexed(&["spec", "paths"], index, &[]);
                let at = FieldLocation::Steps([above, indexed(&["backends"], number, &[field])].concat());
                let target = metadata.reference(kind, name);
                found.push(Reference { at, target, port, is_optional: false });
            }
        }
        found
    }

    fn exclusives(&self, _: &ObjectMeta) -> Vec<ExclusiveUse> {
        let host = self.host.trim_end_matches('.').to_ascii_lowercase();
        let route =
            |path: &str| ExclusiveResource::Route(host.clone(), format!("/{}", path.trim_matches('/')));
        let at = |index| indexed(&["spec", "paths"], index, &["path"]);
        let paths = self.paths.iter().enumerate();
        paths.map(|(index, path)| ExclusiveUse::unshared(route(&path.path), at(index))).collect()
    }

    fn extra_position_paths(&self) -> Vec<Vec<OwnedStep>> {
        vec![field_path(&["spec", "host"])]
    }
}

// Older Dns manifests: `spec.paths[]: {subPath, svcName, svcPort}`.

pub(super) fn rewrite(document: &mut Node, notes: &mut Notes<'_>) {
    let paths = below(document, &["spec", "paths"]).and_then(items_mut);
    for path in paths.into_iter().flatten() {
        if let Some(mark) = rename(path, "subPath", "path") {
            notes.older(mark, "subPath", "path");
        }
        service(path, notes);
    }
}

fn service(path: &mut Node, notes: &mut Notes<'_>) {
    if path.entry("service").is_some() {
        return;
    }
    let mut fields = Vec::new();
    if let Some(mut name) = take(path, "svcName") {
        notes.older(name.mark, "svcName", "service.name");
        name.key = "name".to_owned();
        fields.push(name);
    }
    if let Some(mut port) = take(path, "svcPort") {
        notes.older(port.mark, "svcPort", "service.port");
        port.key = "port".to_owned();
        // The field was text: `"88"` still means a number.
        let number = port.value.text().and_then(|text| text.parse::<u16>().ok());
        port.value = number.map_or(port.value.clone(), |number| plain(port.value.mark, number));
        fields.push(port);
    }
    if let Some(mark) = fields.first().map(|field| field.mark) {
        put(path, entry("service", mark, Node { mark, value: Value::Mapping(fields) }));
    }
}
