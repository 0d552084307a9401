//! The published files `schema/json/`, `docs/manifests.md` and `docs/kubernetes.md` match the types. `MINIK8S_UPDATE=1` writes them again.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking, as tests do.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use schema::explain::{kubernetes_page, manifests_page};
use schema::kinds::Kind;
use schema::manifest::json_schema;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Every page by its path in the repository.
fn pages() -> BTreeMap<String, String> {
    let mut pages = BTreeMap::from([
        ("docs/kubernetes.md".to_owned(), kubernetes_page()),
        ("docs/manifests.md".to_owned(), manifests_page()),
        ("schema/json/manifest.json".to_owned(), json_schema::text(&json_schema::for_any_kind())),
    ]);
    for kind in Kind::ALL {
        let name = kind.as_str().to_lowercase();
        pages.insert(format!("schema/json/{name}.json"), json_schema::text(&json_schema::for_kind(kind)));
    }
    pages
}

#[test]
fn the_published_pages_are_what_the_types_say() {
    let mut stale = Vec::new();
    for (path, text) in pages() {
        let file = root().join(&path);
        if std::env::var_os("MINIK8S_UPDATE").is_some() {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, &text).unwrap();
        }
        if fs::read_to_string(&file).unwrap_or_default() != text {
            stale.push(path);
        }
    }
    assert!(stale.is_empty(), "not what the types say, set MINIK8S_UPDATE=1 to rewrite: {stale:?}");
}

#[test]
fn no_other_schema_lies_beside_them() {
    let pages = pages();
    for entry in fs::read_dir(root().join("schema/json")).unwrap() {
        let name = format!("schema/json/{}", entry.unwrap().file_name().to_string_lossy());
        assert!(pages.contains_key(&name), "{name} belongs to no kind");
    }
}
