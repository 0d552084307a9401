//! Twelve applications of public repositories, from `../shared/corpora` next to the workspace: on three nodes each
//! becomes healthy, and answers by its Services. Their programs are replaced by busybox, which listens on the ports
//! that the manifest names. Where the corpus is missing, this test prints so and ends.
//!
//! Turns red for a Service that leads to a port without a listener: each run has one, which must not answer.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use harness::{
    Change, Cluster, ClusterOptions, Context, IMAGE, Result, Where, ensure, eventually, outcome, secs,
};
use schema::keys::Key;
use schema::kinds::Resource;
use schema::kinds::pod::Protocol;
use schema::manifest::{Document, load_file, values_of};
use schema::meta::NamespacedName;
use schema::records::ServiceRecord;
use schema::testing::corpora;
use serde_json::{Map, Value, json};

/// An application of the corpus.
struct App {
    /// Namespace and folder in the repository.
    name: &'static str,
    folder: &'static str,
    files: &'static [&'static str],
    /// Workloads and Services that load.
    size: (usize, usize),
}

const APPS: [App; 12] = [
    App {
        name: "bookinfo",
        folder: "istio__istio/samples/bookinfo/platform/kube",
        files: &["bookinfo.yaml"],
        size: (6, 4),
    },
    // Probes over gRPC, and users other than root.
    App {
        name: "boutique",
        folder: "GoogleCloudPlatform__microservices-demo/kubernetes-manifests",
        files: &[
            "checkoutservice.yaml",
            "currencyservice.yaml",
            "productcatalogservice.yaml",
            "recommendationservice.yaml",
        ],
        size: (4, 4),
    },
    // Ports that only probes name, and a second container.
    App {
        name: "bank",
        folder: "GoogleCloudPlatform__bank-of-anthos",
        files: &[
            "kubernetes-manifests/contacts.yaml",
            "extras/cloudsql/kubernetes-manifests/userservice.yaml",
            "extras/postgres-hpa/kubernetes-manifests/balance-reader.yaml",
            "extras/postgres-hpa/kubernetes-manifests/ledger-writer.yaml",
        ],
        size: (4, 4),
    },
    // Without the database, whose password is in clear.
    App {
        name: "voting",
        folder: "dockersamples__example-voting-app/k8s-specifications",
        files: &[
            "redis-deployment.yaml",
            "redis-service.yaml",
            "result-deployment.yaml",
            "result-service.yaml",
            "vote-deployment.yaml",
            "vote-service.yaml",
            "worker-deployment.yaml",
        ],
        size: (4, 3),
    },
    App {
        name: "store",
        folder: "Azure-Samples__aks-store-demo/kustomize/base",
        files: &["product-service.yaml", "virtual-worker.yaml"],
        size: (2, 1),
    },
    // A ConfigMap as a volume, and a node port.
    App {
        name: "prometheus",
        folder: "bibinwilson__kubernetes-prometheus",
        files: &["config-map.yaml", "prometheus-deployment.yaml", "prometheus-service.yaml"],
        size: (1, 1),
    },
    // TCP and UDP on one port.
    App {
        name: "coredns",
        folder: "nginxinc__kubernetes-ingress/examples/custom-resources/basic-tcp-udp",
        files: &["dns.yaml"],
        size: (1, 1),
    },
    // A ReplicationController with an autoscaler, and a DaemonSet. The database needs a claim of a volume.
    App { name: ZABBIX, folder: "zabbix__zabbix-docker", files: &["kubernetes.yaml"], size: (7, 7) },
    // Services without an address, and probes over HTTPS.
    App {
        name: "monitoring",
        folder: "prometheus-operator__kube-prometheus/manifests",
        files: &[
            "kubeStateMetrics-deployment.yaml",
            "kubeStateMetrics-service.yaml",
            "prometheusAdapter-configMap.yaml",
            "prometheusAdapter-deployment.yaml",
            "prometheusAdapter-service.yaml",
        ],
        size: (2, 2),
    },
    App {
        name: "echo",
        folder: "istio__istio/samples/tcp-echo",
        files: &["tcp-echo-services.yaml"],
        size: (2, 1),
    },
    App {
        name: "shop",
        folder: "digitalocean__kubernetes-sample-apps/microservices-demo/kustomize/base",
        files: &["frontend.yaml", "cartservice.yaml", "redis.yaml"],
        size: (3, 3),
    },
    // A Pod of its own.
    App {
        name: "shield",
        folder: "nigelpoulton__TheK8sBook/namespaces",
        files: &["shield-app.yml"],
        size: (1, 1),
    },
];

/// The only application with documents that do not load: rights, claims of volumes and Secrets in clear.
const ZABBIX: &str = "zabbix";
/// Most pods of all applications.
const PODS_MAX: usize = 45;
/// Service that leads to a port without a listener, and its application.
const ASTRAY: (&str, &str) = ("bookinfo", "astray");

/// Program of every container: it listens on the ports that are its arguments, and gives each client to `$0`.
const SERVE: &str = "trap 'exit 0' TERM; for port; do nc -ll -p $port -e sh -c \"$0\" & done; \
                     while :; do sleep 1000 & wait $!; done";
/// Reads a request up to its empty line, or the end of a connection without one, and answers 200.
const ANSWER: &str = "while read -r line; do case $line in ?*?) ;; *) break ;; esac; done; \
                      printf 'HTTP/1.0 200 OK\\r\\nContent-Length: 3\\r\\n\\r\\nok\\n'";

const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];
/// Fields of pods that need something of their own cluster.
const OF_CLUSTER: [&str; 8] = [
    "nodeSelector",
    "nodeName",
    "affinity",
    "topologySpreadConstraints",
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "imagePullSecrets",
];
/// A user other than root, for pods that demand one and leave it to their image.
const NOBODY: u32 = 65534;

/// The object as a manifest, in the namespace; `file` is its text, which has the values of a ConfigMap.
fn manifest(document: &Document, (path, file): (&str, &[u8]), namespace: &str) -> Result<Value> {
    let object = &document.object;
    let mut manifest = match &object.resource {
        Resource::ConfigMap(_) => {
            let values = values_of(path, file, &document.reference).context("no values")?;
            ensure!(values.binaries.is_empty(), "{} has values that are no text", document.reference.name);
            let texts = values.texts.iter();
            let data: Map<String, Value> =
                texts.map(|(key, text)| (key.clone(), json!(String::from_utf8_lossy(text)))).collect();
            json!({"kind": "ConfigMap", "data": data})
        }
        resource => serde_json::to_value::<&Resource>(resource)?,
    };
    manifest["apiVersion"] = json!(object.api_version);
    manifest["metadata"] = serde_json::to_value(&object.metadata)?;
    manifest["metadata"]["namespace"] = json!(namespace);
    Ok(manifest)
}

/// Objects of the application that load, without Services whose workloads do not.
fn read(corpus: &Path, app: &App) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for file in app.files {
        let path = corpus.join(app.folder).join(file);
        let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let loaded = load_file(file, &bytes);
        let is_whole = !loaded.has_errors() || app.name == ZABBIX;
        ensure!(is_whole, "{} does not load: {:#?}", path.display(), loaded.violations);
        for document in &loaded.documents {
            objects.push(manifest(document, (*file, bytes.as_slice()), app.name)?);
        }
    }
    let labels: Vec<Value> = objects.iter().filter_map(labels_of_pods).cloned().collect();
    objects.retain(|object| object["kind"] != "Service" || labels.iter().any(|pod| selects(object, pod)));
    let size = (labels.len(), objects.iter().filter(|object| object["kind"] == "Service").count());
    ensure!(size == app.size, "{} has {size:?} workloads and Services, not {:?}", app.name, app.size);
    Ok(objects)
}

/// Labels of a workload's pods; `None` for other objects.
fn labels_of_pods(object: &Value) -> Option<&Value> {
    match object["kind"].as_str()? {
        "Pod" => Some(&object["metadata"]["labels"]),
        "ReplicaSet" | "DaemonSet" => Some(&object["spec"]["template"]["metadata"]["labels"]),
        _ => None,
    }
}

fn selects(service: &Value, labels: &Value) -> bool {
    let selector = service["spec"]["selector"].as_object();
    selector.is_some_and(|all| !all.is_empty() && all.iter().all(|(key, value)| labels[key] == *value))
}

fn names(objects: &[Value], kind: &str) -> BTreeSet<String> {
    let of_kind = objects.iter().filter(|object| object["kind"] == kind);
    of_kind.filter_map(|object| object["metadata"]["name"].as_str()).map(str::to_owned).collect()
}

/// Puts stand-ins into every workload, and leaves one replica.
fn replace_programs(objects: &mut [Value]) {
    let maps = names(objects, "ConfigMap");
    for object in objects {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        let Some(spec) = object.get_mut("spec") else { continue };
        match kind.as_str() {
            "Pod" => replace_in_pod(spec, &maps),
            "ReplicaSet" | "DaemonSet" => {
                if kind == "ReplicaSet" {
                    spec["replicas"] = json!(1);
                }
                spec["minReadySeconds"] = json!(0);
                replace_in_pod(&mut spec["template"]["spec"], &maps);
            }
            "HorizontalPodAutoscaler" => {
                spec["minReplicas"] = json!(1);
                spec["maxReplicas"] = json!(1);
            }
            _ => {}
        }
    }
}

fn replace_in_pod(spec: &mut Value, maps: &BTreeSet<String>) {
    let needs_user = spec.to_string().contains(r#""runAsNonRoot":true"#);
    if needs_user && spec["securityContext"]["runAsUser"].is_null() {
        spec["securityContext"]["runAsUser"] = json!(NOBODY);
    }
    remove(spec, &OF_CLUSTER);
    spec["terminationGracePeriodSeconds"] = json!(1);
    for container in items(spec, "containers") {
        replace_in_container(container, maps);
    }
    for container in items(spec, "initContainers") {
        replace_in_container(container, maps);
        if container["restartPolicy"] != "Always" {
            container["command"] = json!(["true"]);
        }
    }
    for volume in items(spec, "volumes") {
        let map = volume["configMap"]["name"].as_str();
        if !volume["emptyDir"].is_object() && !map.is_some_and(|map| maps.contains(map)) {
            *volume = json!({"name": volume["name"], "emptyDir": {}});
        }
    }
}

fn replace_in_container(container: &mut Value, maps: &BTreeSet<String>) {
    let ports = ports(container);
    let words = ["sh", "-c", SERVE, ANSWER].map(str::to_owned);
    let command: Vec<String> = words.into_iter().chain(ports.iter().map(u64::to_string)).collect();
    container["command"] = json!(command);
    container["image"] = json!(IMAGE);
    container["imagePullPolicy"] = json!("IfNotPresent");
    // The autoscaler needs them.
    container["resources"] = json!({"requests": {"cpu": "10m", "memory": "4Mi"}});
    remove(container, &["args", "workingDir", "lifecycle"]);
    for port in items(container, "ports") {
        remove(port, &["hostPort", "hostIP"]);
    }
    let is_there = |map: &Value| map["name"].as_str().is_some_and(|name| maps.contains(name));
    if let Some(Value::Array(variables)) = container.get_mut("env") {
        variables.retain(|variable| {
            let (from, map) = (&variable["valueFrom"], &variable["valueFrom"]["configMapKeyRef"]);
            from["secretKeyRef"].is_null() && (map.is_null() || is_there(map))
        });
    }
    if let Some(Value::Array(sources)) = container.get_mut("envFrom") {
        sources.retain(|source| is_there(&source["configMapRef"]));
    }
    for name in PROBES {
        let probe = container[name].is_object().then(|| container[name].take());
        remove(container, &[name]);
        if let Some(probe) = probe.and_then(|probe| replaced_probe(name, probe, &ports)) {
            container[name] = probe;
        }
    }
}

/// Ports over TCP that the manifest names for the container: its own, and those that its probes ask.
fn ports(container: &Value) -> BTreeSet<u64> {
    let own = container["ports"].as_array().into_iter().flatten();
    let own = own.filter(|port| port["protocol"] != "UDP").map(|port| &port["containerPort"]);
    let asked = PROBES.iter().flat_map(|probe| {
        ["httpGet", "tcpSocket"].into_iter().map(move |how| &container[*probe][how]["port"])
    });
    own.chain(asked).filter_map(Value::as_u64).collect()
}

/// A probe over HTTP or TCP stays, any other becomes a connection to the first port. Slow machines get time, and
/// nothing waits for a slow program.
fn replaced_probe(name: &str, mut probe: Value, ports: &BTreeSet<u64>) -> Option<Value> {
    let is_http = probe["httpGet"].is_object() && probe["httpGet"]["scheme"] != "HTTPS";
    if !is_http && !probe["tcpSocket"].is_object() {
        remove(&mut probe, &["exec", "grpc", "httpGet"]);
        probe["tcpSocket"] = json!({"port": ports.first()?});
    }
    probe["failureThreshold"] = json!(30);
    if name != "livenessProbe" {
        probe["initialDelaySeconds"] = json!(0);
        probe["periodSeconds"] = json!(1);
    }
    Some(probe)
}

fn items<'a>(of: &'a mut Value, field: &str) -> &'a mut [Value] {
    match of.get_mut(field) {
        Some(Value::Array(items)) => items,
        _ => &mut [],
    }
}

fn remove(from: &mut Value, fields: &[&str]) {
    if let Value::Object(all) = from {
        all.retain(|field, _| !fields.contains(&field.as_str()));
    }
}

/// A copy of an application's first Service that leads to a port on which nobody listens.
fn astray(objects: &[Value]) -> Result<Value> {
    let service = objects.iter().find(|object| object["kind"] == "Service");
    let mut service = service.context("the application has no Service")?.clone();
    service["metadata"]["name"] = json!(ASTRAY.1);
    service["spec"]["ports"] = json!([{"port": 80, "targetPort": 9}]);
    Ok(service)
}

/// Asks a Service on each of its ports over TCP, or each of its pods if it has no address, from one node; returns the
/// number of answers.
fn ask(cluster: &Cluster, (namespace, name): (&str, &str), node: usize) -> Result<usize> {
    let record: ServiceRecord = cluster.etcd.value(Key::Service(NamespacedName::new(namespace, name)))?;
    ensure!(!record.endpoints.is_empty(), "{namespace}/{name} leads nowhere: {record:?}");
    let mut asked = 0;
    for (index, port) in record.ports.iter().enumerate().filter(|(_, port)| port.protocol == Protocol::Tcp) {
        let addresses: Vec<String> = match record.cluster_ip {
            Some(address) => vec![format!("{address}:{}", port.port)],
            None => {
                let pods = record.endpoints.iter();
                pods.map(|pod| format!("{}:{}", pod.address, pod.ports[index])).collect()
            }
        };
        for address in addresses {
            let url = format!("http://{address}/");
            let args = ["-sS", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}", &url];
            let said = cluster.numbered(node)?.net.run("curl", &args);
            let code = said.with_context(|| format!("port {} of {namespace}/{name}", port.port))?;
            ensure!(code.trim() == "200", "{namespace}/{name} says {code} at {address}");
            asked += 1;
        }
    }
    Ok(asked)
}

/// Number of pods in Docker, which all run.
fn pods(cluster: &Cluster) -> Result<usize> {
    let mut all = cluster.containers()?;
    all.retain(|container| container.label("container") == "POD" && container.running);
    Ok(all.len())
}

#[test]
fn applications_of_public_repositories_become_healthy_and_answer() -> Result<()> {
    let Some(corpus) = corpora("manifests/k8s") else { return Ok(()) };
    let (mut changes, mut services, mut workloads, mut wanted) = (Vec::new(), Vec::new(), 0, 0);
    for app in &APPS {
        let mut objects = read(&corpus, app)?;
        replace_programs(&mut objects);
        services.extend(names(&objects, "Service").into_iter().map(|service| (app.name, service)));
        if app.name == ASTRAY.0 {
            objects.push(astray(&objects)?);
        }
        let sets = names(&objects, "DaemonSet").len();
        workloads += app.size.0;
        wanted += app.size.0 - sets + 3 * sets;
        for (number, object) in objects.iter().enumerate() {
            let (file, text) = (format!("{}/{number:02}.json", app.name), object.to_string());
            let loaded = load_file(&file, text.as_bytes());
            ensure!(!loaded.has_errors(), "{text}\n{:#?}", loaded.violations);
            changes.push(Change::write(file, text));
        }
    }
    ensure!(wanted <= PODS_MAX, "{wanted} pods are more than {PODS_MAX}");

    let options = ClusterOptions { place: Where::Namespaces(3), ..ClusterOptions::default() };
    Cluster::run(options, |cluster| {
        let began = Instant::now();
        let commit = cluster.push(&changes, "Deploy")?;
        let wait = ["wait", "--for", "healthy", "--commit", &commit, "--timeout", "90s"];
        outcome(&mut cluster.cli_command(&wait), secs(100))?.ok()?;
        let healthy = began.elapsed();
        let pods = pods(cluster)?;
        ensure!(pods == wanted, "{pods} pods run, not {wanted}");
        let mut answers = 0;
        for (index, (namespace, service)) in services.iter().enumerate() {
            let node = index % cluster.nodes.len() + 1;
            let what = format!("{namespace}/{service} answers on node {node}");
            answers += eventually(&what, secs(20), || ask(cluster, (*namespace, service.as_str()), node))?;
        }
        println!(
            "{} applications: {workloads} workloads with {pods} pods were healthy after {healthy:.1?}; \
             {} services gave {answers} answers",
            APPS.len(),
            services.len()
        );
        let nobody = ask(cluster, ASTRAY, 1).err().context("a port without a listener answers")?;
        ensure!(format!("{nobody:#}").contains("exit code 7:"), "{nobody:#}");
        Ok(())
    })
}
