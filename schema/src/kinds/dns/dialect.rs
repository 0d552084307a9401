//! Older Dns manifests: `spec.paths[]: {subPath, svcName, svcPort}`.

use crate::manifest::dialects::tree::{below, entry, items_mut, plain, put, rename, take};
use crate::manifest::dialects::{Node, Notes, Value};

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
