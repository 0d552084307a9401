//! Pods to push, as a person would write them.

use std::collections::BTreeMap;
use std::fmt;

use crate::image::IMAGE;

/// A pod with one container `web` that serves `$GREETING` at `/` on port 8080.
#[derive(Debug, Clone)]
pub struct WebPod {
    name: String,
    image: String,
    greeting: String,
    labels: BTreeMap<String, String>,
    host_port: Option<u16>,
    extra: String,
    sidecar: bool,
    node: Option<String>,
    verbose: bool,
}

/// A web pod called `name`.
pub fn web(name: &str) -> WebPod {
    WebPod {
        name: name.to_owned(),
        image: IMAGE.to_owned(),
        greeting: format!("hello from {name}"),
        labels: BTreeMap::from([("app".to_owned(), name.to_owned())]),
        host_port: None,
        extra: String::new(),
        sidecar: false,
        node: None,
        verbose: false,
    }
}

impl WebPod {
    /// Sets another image.
    #[must_use]
    pub fn image(mut self, image: &str) -> Self {
        image.clone_into(&mut self.image);
        self
    }

    /// Sets its answer.
    #[must_use]
    pub fn greeting(mut self, greeting: &str) -> Self {
        greeting.clone_into(&mut self.greeting);
        self
    }

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.labels.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Sets a host port that leads to it.
    #[must_use]
    pub fn host_port(mut self, port: u16) -> Self {
        self.host_port = Some(port);
        self
    }

    /// Logs the client of each request.
    #[must_use]
    pub fn verbose(mut self) -> Self {
        self.verbose = true;
        self
    }

    /// Pins it to that node.
    #[must_use]
    pub fn on(mut self, node: &str) -> Self {
        self.node = Some(node.to_owned());
        self
    }

    /// Adds lines to the container, indented like its fields (4 spaces).
    #[must_use]
    pub fn container_fields(mut self, lines: &str) -> Self {
        self.extra.push_str(lines);
        self
    }

    /// Adds a second container `files` that shares the volume from which the first serves, and
    /// writes `shared.txt` into it.
    #[must_use]
    pub fn with_sidecar(mut self) -> Self {
        self.sidecar = true;
        self
    }
}

/// Command of every container: it exits immediately on SIGTERM, as a well-behaved server does.
const SERVE: &str = "trap 'exit 0' TERM; echo \"$GREETING\" > /data/index.html; \
                     echo serving; httpd -f $VERBOSE -p 8080 -h /data & wait";
const WRITE: &str = "trap 'exit 0' TERM; echo 'from the sidecar' > /data/shared.txt; \
                     while :; do sleep 1000 & wait $!; done";

impl fmt::Display for WebPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {}\n  labels:", self.name)?;
        for (name, value) in &self.labels {
            writeln!(f, "    {name}: {value:?}")?;
        }
        writeln!(
            f,
            "spec:\n  terminationGracePeriodSeconds: 2\n  volumes:\n  - name: data\n    emptyDir: {{}}"
        )?;
        if let Some(node) = &self.node {
            writeln!(f, "  nodeName: {node}")?;
        }
        writeln!(f, "  containers:\n  - name: web\n    image: {}", self.image)?;
        writeln!(f, "    command: [sh, -c, {SERVE:?}]")?;
        writeln!(f, "    env:\n    - name: GREETING\n      value: {:?}", self.greeting)?;
        if self.verbose {
            writeln!(f, "    - name: VERBOSE\n      value: \"-v\"")?;
        }
        writeln!(f, "    volumeMounts:\n    - name: data\n      mountPath: /data")?;
        writeln!(f, "    ports:\n    - containerPort: 8080")?;
        if let Some(port) = self.host_port {
            writeln!(f, "      hostPort: {port}")?;
        }
        f.write_str(&self.extra)?;
        if self.sidecar {
            writeln!(f, "  - name: files\n    image: {}\n    command: [sh, -c, {WRITE:?}]", self.image)?;
            writeln!(f, "    volumeMounts:\n    - name: data\n      mountPath: /data")?;
        }
        Ok(())
    }
}

/// The smallest possible pod: one sleeping container. For benches.
pub fn sleeper(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  \
         terminationGracePeriodSeconds: 0\n  containers:\n  - name: main\n    image: {IMAGE}\n    \
         command: [sleep, \"100000\"]\n"
    )
}

/// A pod with everything that leaves traces on a node: volumes on disk and in memory, `subPath`, an init
/// container, and a host port if one is given. It stops immediately.
pub fn rich(name: &str, image: &str, host_port: Option<u16>) -> String {
    let port = host_port.map(|port| format!("    ports: [{{containerPort: 80, hostPort: {port}}}]\n"));
    let mounts = "    volumeMounts:\n    - {name: disk, mountPath: /disk}\n    \
                  - {name: memory, mountPath: /memory}\n    - {name: disk, mountPath: /part, subPath: deep/er}\n";
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  \
         volumes:\n  - {{name: disk, emptyDir: {{}}}}\n  \
         - {{name: memory, emptyDir: {{medium: Memory, sizeLimit: 1Mi}}}}\n  \
         initContainers:\n  - name: init\n    image: {image}\n    command: [touch, /disk/init]\n{mounts}  \
         containers:\n  - name: main\n    image: {image}\n    command: [sleep, \"100000\"]\n{mounts}{}",
        port.unwrap_or_default()
    )
}

/// Spec of a Workflow that counts to `{"n": 0, "until": n}`: two transitions per round, and one at the end.
pub const COUNTS: &str = "
  startAt: count
  states:
    count: {type: Pass, parameters: {n.$: 'States.MathAdd($.n, 1)', until.$: $.until}, next: enough}
    enough:
      type: Choice
      choices: [{variable: $.n, numericLessThanPath: $.until, next: count}]
      default: done
    done: {type: Succeed, outputPath: $.n}
";
