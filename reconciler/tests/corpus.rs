//! Manifests of public repositories, in `../shared/corpora` next to the workspace: each file loads by itself, or does not
//! for a known cause. Where they are missing, this test prints so and ends.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking, as tests do.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use reconciler::diagnostics::inspect;
use schema::testing::corpora;
use schema::violation::{Severity, Violation};

/// Errors that another file could lift.
const LIFTED: &[&str] = &[
    "dangling-target",
    "secret-file",
    "secret-key",
    "repo-file",
    "selector-matches-nothing",
    "depends-on-quarantined",
];

/// Words of a message, and the cause that they stand for.
const CAUSES: &[(&str, &str)] = &[
    ("`PersistentVolumeClaim`", "claims of volumes"),
    ("persistentVolumeClaim", "claims of volumes"),
    ("`PersistentVolume`", "claims of volumes"),
    ("`StorageClass`", "claims of volumes"),
    ("`StatefulSet`", "StatefulSet"),
    ("`LoadBalancer`", "Service of type LoadBalancer"),
    ("`Ingress`", "Ingress"),
    ("`HTTPRoute`", "HTTPRoute"),
    ("batch/v1", "Job and CronJob of batch"),
    ("`CronJob`", "Job and CronJob of batch"),
    ("`Secret`", "Secret or password in clear"),
    ("in clear text", "Secret or password in clear"),
    ("`ClusterRole`", "RBAC"),
    ("`ClusterRoleBinding`", "RBAC"),
    ("`Role`", "RBAC"),
    ("`RoleBinding`", "RBAC"),
    ("`NetworkPolicy`", "NetworkPolicy"),
    ("is not a kind of Minik8s", "kinds of other systems"),
    // What Kubernetes does not take either: the base of a patch, names that are made at each creation, a wrong reference.
    ("spec.selector: Required", "no whole object"),
    ("metadata.name: Required", "no whole object"),
    ("metadata.generateName", "no whole object"),
    ("`container-test`", "no whole object"),
    ("cinder", "disks of a cloud"),
    // Metrics of a system that answers for them in Kubernetes.
    ("`External`", "metrics of other systems"),
    ("`Pods`", "metrics of other systems"),
];

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn cause(violation: &Violation) -> Option<&'static str> {
    CAUSES.iter().find(|(words, _)| violation.message.contains(words)).map(|(_, cause)| *cause)
}

#[test]
fn manifests_of_public_repositories_load_or_have_a_known_cause() {
    let Some(corpus) = corpora("manifests/k8s") else { return };
    let (mut paths, mut causes, mut unknown, mut loads) = (Vec::new(), BTreeMap::new(), Vec::new(), 0);
    files(&corpus, &mut paths);
    let began = Instant::now();
    for path in &paths {
        let violations = inspect(&[path]).unwrap().report.violations;
        let is_error = |violation: &&Violation| {
            violation.severity == Severity::Error && !LIFTED.contains(&&*violation.rule)
        };
        let errors: Vec<&Violation> = violations.iter().filter(is_error).collect();
        loads += usize::from(errors.is_empty());
        for error in errors {
            match cause(error) {
                Some(cause) => {
                    causes.entry(cause).or_insert_with(Vec::new).push(path);
                }
                None => unknown.push(format!("{}: {error}", path.display())),
            }
        }
    }
    println!("{loads} of {} files load, in {:.1?}", paths.len(), began.elapsed());
    for (cause, mut paths) in causes {
        paths.dedup();
        println!("{:4} files have {cause}", paths.len());
    }
    assert!(unknown.is_empty(), "{} errors have no known cause:\n{}", unknown.len(), unknown.join("\n"));
}
