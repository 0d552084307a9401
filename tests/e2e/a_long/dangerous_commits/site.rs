//! A repository of the table: twenty objects of many kinds, and changes that break it.

use std::fs;
use std::path::{Path, PathBuf};

use harness::{Context, GitRepo, Result};

/// Objects of each repository before its case.
pub(super) const OBJECTS: usize = 20;
/// Folder that the source reads.
pub(super) const FOLDER: &str = "cluster";
/// A file of the folder: one pod without dependants.
pub(super) const FIRST: &str = "apps/p05.yaml";

/// A repository whose objects are in a namespace named after the case.
pub(super) struct Site {
    pub(super) name: String,
    pub(super) repo: GitRepo,
    /// Commit with all twenty objects.
    pub(super) good: String,
}

impl Site {
    /// Creates the repository in a separate folder below `root`.
    pub(super) fn create(root: &Path, name: &str) -> Result<Self> {
        let dir = root.join(name);
        fs::create_dir_all(&dir)?;
        let repo = GitRepo::create(&dir)?;
        let mut site = Self { name: name.to_owned(), repo, good: String::new() };
        // Two commits, so that a rollback to the first loses most objects.
        for (path, text) in site.files().into_iter().take(4) {
            site.write(&path, &text)?;
        }
        site.commit("The first four")?;
        for (path, text) in site.files() {
            site.write(&path, &text)?;
        }
        site.good = site.commit("Twenty objects")?;
        Ok(site)
    }

    /// Every manifest file, relative to the folder.
    pub(super) fn files(&self) -> Vec<(String, String)> {
        let ns = &self.name;
        let meta = |name: &str| format!("metadata:\n  name: {name}\n  namespace: {ns}\n");
        let mut files: Vec<(String, String)> = (0..12).map(|n| pod_file(ns, n)).collect();
        let mut add = |path: &str, text: String| files.push((path.to_owned(), text));
        for (name, app) in [("web", "p00"), ("api", "p01")] {
            let head = format!("apiVersion: v1\nkind: Service\n{}", meta(name));
            let spec =
                format!("spec:\n  selector: {{app: {app}}}\n  ports:\n  - port: 80\n    targetPort: 8080\n");
            add(&format!("services/{name}.yaml"), head + &spec);
        }
        for name in ["front", "back"] {
            let head = format!("apiVersion: apps/v1\nkind: ReplicaSet\n{}", meta(name));
            let labels = format!("{{app: {name}}}");
            // No node takes their pods, so none are created.
            let spec = format!(
                "spec:\n  replicas: 0\n  selector:\n    matchLabels: {labels}\n  template:\n    metadata:\n      \
                 labels: {labels}\n    spec:\n      containers:\n      - name: main\n        image: example.test/{name}:1\n"
            );
            add(&format!("sets/{name}.yaml"), head + &spec);
        }
        let head = format!("apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\n{}", meta("front"));
        let target = "spec:\n  scaleTargetRef:\n    apiVersion: apps/v1\n    kind: ReplicaSet\n    name: front\n  \
                      maxReplicas: 4\n";
        add("scale/front.yaml", head + target);
        let head = format!("apiVersion: minik8s.io/v1\nkind: Dns\n{}", meta("shop"));
        let path = |path: &str, service: &str| {
            format!("  - path: {path}\n    service: {{name: {service}, port: 80}}\n")
        };
        let spec =
            format!("spec:\n  host: shop.{ns}.test\n  paths:\n{}{}", path("/", "web"), path("/api", "api"));
        add("dns/shop.yaml", head + &spec);
        let head = format!("apiVersion: minik8s.io/v1\nkind: Function\n{}", meta("resize"));
        add("functions/resize.yaml", head + "spec:\n  image: example.test/resize:1\n");
        let head = format!("apiVersion: minik8s.io/v1\nkind: Workflow\n{}", meta("order"));
        let states = "spec:\n  startAt: resize\n  states:\n    resize:\n      type: Task\n      function: resize\n      \
                      end: true\n";
        add("workflows/order.yaml", head + states);
        files
    }

    /// A path within the working tree's folder.
    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.repo.work().join(FOLDER).join(path)
    }

    /// Writes a file of the folder.
    pub(super) fn write(&self, path: &str, text: impl AsRef<[u8]>) -> Result<()> {
        let path = self.at(path);
        fs::create_dir_all(path.parent().context("a folder")?)?;
        // A link would be followed.
        let _ = fs::remove_file(&path);
        Ok(fs::write(path, text)?)
    }

    /// Reads a file of the folder.
    pub(super) fn read(&self, path: &str) -> Result<String> {
        Ok(fs::read_to_string(self.at(path))?)
    }

    /// Changes a file of the folder.
    pub(super) fn edit(&self, path: &str, to: impl Fn(&str) -> String) -> Result<()> {
        let text = self.read(path)?;
        self.write(path, to(&text))
    }

    /// Changes every manifest.
    pub(super) fn edit_all(&self, to: impl Fn(&str) -> String) -> Result<()> {
        self.files().iter().try_for_each(|(path, _)| self.edit(path, &to))
    }

    /// Removes manifests, all but the first `keep`.
    pub(super) fn remove_after(&self, keep: usize) -> Result<()> {
        self.files().iter().skip(keep).try_for_each(|(path, _)| Ok(fs::remove_file(self.at(path))?))
    }

    /// Removes a file or subfolder of the folder.
    pub(super) fn remove(&self, path: &str) -> Result<()> {
        let path = self.at(path);
        if path.is_dir() {
            fs::remove_dir_all(path)?;
        } else {
            fs::remove_file(path)?;
        }
        Ok(())
    }

    /// Commits the working tree and pushes it.
    pub(super) fn commit(&self, message: &str) -> Result<String> {
        self.repo.commit_all(message)
    }
}

/// A pod that no node runs: the table is about the content of etcd.
pub(super) fn pod(namespace: &str, name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: {namespace}\n  labels: {{app: {name}}}\n\
         spec:\n  containers:\n  - name: main\n    image: example.test/app:1\n"
    )
}

fn pod_file(namespace: &str, number: usize) -> (String, String) {
    let name = format!("p{number:02}");
    (format!("apps/{name}.yaml"), pod(namespace, &name))
}
