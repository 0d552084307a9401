//! `sample-repo/`, which people copy first, must load without any violation.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use schema::kinds::metadata::parse_reference;
use schema::kinds::{Kind, Resource};
use schema::manifest::{DraftObject, is_manifest_path, load_file};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../sample-repo")
}

/// Paths of all files, relative to the root.
fn files() -> Vec<String> {
    fn collect(folder: &Path, below: &str, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("the folder is there") {
            let entry = entry.expect("an entry");
            let path = format!("{below}{}", entry.file_name().to_str().expect("UTF-8"));
            if entry.file_type().expect("a type").is_dir() {
                collect(&entry.path(), &format!("{path}/"), found);
            } else {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    collect(&root(), "", &mut found);
    found.sort();
    found
}

fn objects() -> Vec<DraftObject> {
    let mut objects = Vec::new();
    for file in files().iter().filter(|file| is_manifest_path(file)) {
        let loaded = load_file(file, &std::fs::read(root().join(file)).expect("the file is there"));
        assert!(loaded.violations.is_empty(), "{:#?}", loaded.violations);
        assert!(loaded.is_manifest, "{file}");
        objects.extend(loaded.documents.into_iter().map(|document| DraftObject::clone(&document.object)));
    }
    objects
}

#[test]
fn the_sample_has_every_kind_and_no_mistake() {
    let kinds: BTreeSet<Kind> = objects().iter().map(|object| object.resource.kind()).collect();
    assert_eq!(kinds, BTreeSet::from(Kind::ALL));
}

#[test]
fn the_folders_that_the_sample_names_are_there() {
    let files = files();
    let holds = |folder: &str, file: &str| files.contains(&format!("{folder}/{file}"));
    for object in objects() {
        match object.resource {
            Resource::Function(function) => {
                let source = function.source.as_deref().unwrap_or_default();
                assert!(holds(source, "main.py"), "{source}");
            }
            Resource::Job(job) => assert!(holds(job.files.as_ref().unwrap(), "matrix.cu")),
            _ => {}
        }
    }
}

#[test]
fn the_objects_that_the_sample_names_are_there() {
    let objects = objects();
    let references: BTreeSet<String> = objects.iter().map(|object| object.reference().to_string()).collect();
    let mut named = Vec::new();
    for object in &objects {
        let namespace = &object.metadata.namespace;
        named.extend(
            object
                .metadata
                .depends_on
                .iter()
                .map(|text| parse_reference(text, namespace).unwrap().to_string()),
        );
        match &object.resource {
            Resource::Dns(dns) => {
                for path in &dns.paths {
                    named.extend(path.service.iter().map(|to| format!("Service/{namespace}/{}", to.name)));
                    for to in &path.backends {
                        named.extend(to.service.iter().map(|name| format!("Service/{namespace}/{name}")));
                        named.extend(to.function.iter().map(|name| format!("Function/{namespace}/{name}")));
                    }
                }
            }
            Resource::HorizontalPodAutoscaler(scaler) => {
                named.push(format!("ReplicaSet/{namespace}/{}", scaler.scale_target_ref.name));
            }
            Resource::Workflow(flow) => {
                named.extend(
                    flow.functions().into_iter().map(|(_, name)| format!("Function/{namespace}/{name}")),
                );
            }
            _ => {}
        }
    }
    assert!(named.len() >= 12, "{named:?}");
    for name in named {
        assert!(references.contains(&name), "{name}");
    }
    assert_eq!(references.len(), objects.len(), "no object twice");
}
