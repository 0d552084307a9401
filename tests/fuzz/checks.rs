//! Invariants for any bytes, shared by the fuzz targets and a plain test (`schema/tests/fuzz_smoke.rs`).

use schema::kinds::Resource;
use schema::manifest::{Document, Layout, load_file, load_file_with_layout};

/// Loads the bytes as YAML and as JSON: no panic, and every reported position is within the file.
pub(crate) fn manifest_load(bytes: &[u8]) {
    for path in ["a.yaml", "a.json"] {
        let loaded = load_file(path, bytes);
        let has_nothing = loaded.documents.is_empty() && !loaded.has_errors();
        assert!(loaded.is_manifest || has_nothing, "no manifest, but {loaded:?}");
        let lines = bytes.iter().filter(|byte| **byte == b'\n' || **byte == b'\r').count() + 1;
        for violation in &loaded.violations {
            assert!(violation.line as usize <= lines + 1, "beyond the file: {violation}");
            assert!(!violation.message.is_empty(), "{violation:?}");
        }
        let (again, kept) = load_file_with_layout(path, bytes);
        assert_eq!(again, loaded);
        for layout in [Layout::read(path, bytes), kept] {
            loaded.documents.iter().for_each(|document| places(&layout, document));
        }
    }
}

/// Checks that the position of a field is found again from the file alone. (Documents on one line can't be
/// distinguished.)
fn places(layout: &Layout, document: &Document) {
    for place in &document.places {
        let found = layout.find(document.line, &place.path);
        assert!(found.is_some(), "{:?} is lost", place.path);
    }
}

/// Checks that anything that loads without errors, written as a current manifest, is the same object, without a note
/// about an older spelling.
pub(crate) fn dialects(bytes: &[u8]) {
    for path in ["a.yaml", "a.json"] {
        let loaded = load_file(path, bytes);
        for document in loaded.documents {
            let today = today(&document);
            let again = load_file("a.json", today.as_bytes());
            let older = again.violations.iter().find(|note| note.rule == "older-spelling");
            assert_eq!(older, None, "{today}");
            assert!(!again.has_errors(), "{today}\n{:#?}", again.violations);
            let [same] = again.documents.as_slice() else { panic!("{today}\n{again:#?}") };
            assert_eq!(same.object, document.object, "{today}");
            assert_eq!(same.object.hash(), document.object.hash(), "{today}");
        }
    }
}

/// The object as a manifest in the current spelling.
fn today(document: &Document) -> String {
    let object = &document.object;
    let Ok(serde_json::Value::Object(mut manifest)) = serde_json::to_value::<&Resource>(&object.resource)
    else {
        panic!("a resource is a mapping");
    };
    manifest.insert("apiVersion".to_owned(), object.api_version.as_str().into());
    manifest.insert("metadata".to_owned(), serde_json::to_value(&object.metadata).expect("metadata is JSON"));
    serde_json::Value::Object(manifest).to_string()
}
