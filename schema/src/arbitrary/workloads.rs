//! Pods, workloads, their autoscalers and disruption budgets.

use serde_json::{Value as Json, json};

use super::Chance;

pub(super) fn pod(chance: &mut Chance) -> Json {
    let mut pod = json!({});
    let volumes: Vec<Json> = (0..chance.below(3)).map(|index| volume(index, chance)).collect();
    let count = chance.between(1, 3);
    pod["containers"] = (0..count).map(|index| container(index, volumes.len(), chance)).collect();
    if !volumes.is_empty() {
        pod["volumes"] = json!(volumes);
    }
    if chance.one_in(6) {
        pod["initContainers"] = json!([{"name": "s0", "image": "busybox", "restartPolicy": "Always"}]);
    }
    if chance.one_in(4) {
        pod["restartPolicy"] = json!(chance.pick(&["Always", "OnFailure", "Never"]));
    }
    if chance.one_in(3) {
        pod["terminationGracePeriodSeconds"] = json!(chance.below(60));
    }
    if chance.one_in(4) {
        pod["nodeSelector"] = json!({"disk": chance.word()});
    }
    if chance.one_in(4) {
        pod["affinity"] = affinity(chance);
    }
    if chance.one_in(4) {
        pod["tolerations"] = json!([{"key": chance.word(), "operator": "Exists"}]);
    }
    if chance.one_in(5) {
        pod["securityContext"] = json!({"runAsUser": chance.between(1, 1000)});
    }
    pod
}

fn affinity(chance: &mut Chance) -> Json {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let pods = json!([{"labelSelector": {"matchLabels": {"app": chance.word()}}, "topologyKey": "kubernetes.io/hostname"}]);
    match chance.below(3) {
        0 => json!({"podAffinity": {required: pods}}),
        1 => json!({"podAntiAffinity": {required: pods}}),
        _ => {
            let disk = json!({"key": "disk", "operator": "In", "values": [chance.word()]});
            json!({"nodeAffinity": {required: {"nodeSelectorTerms": [{"matchExpressions": [disk]}]}}})
        }
    }
}

fn container(index: u64, volumes: usize, chance: &mut Chance) -> Json {
    let mut container = json!({
        "name": format!("c{index}"),
        "image": chance.pick(&["busybox", "nginx:1.27", "registry.lan:5000/team/app:v1", "minik8s-sample/busybox:1"]),
    });
    if chance.one_in(2) {
        container["args"] = (0..chance.below(3)).map(|_| chance.text()).collect();
    }
    if chance.one_in(2) {
        container["env"] = (0..chance.below(3))
            .map(|index| json!({"name": format!("V{index}"), "value": chance.text()}))
            .collect();
    }
    if chance.one_in(2) {
        container["ports"] = json!([{"name": "http", "containerPort": 8000 + index}]);
    }
    if chance.one_in(2) {
        container["resources"] = json!({"requests": {"cpu": "10m"}, "limits": {"cpu": chance.pick(&["100m", "0.5", "2"]), "memory": chance.pick(&["16Mi", "128Mi", "1G"])}});
    }
    if chance.one_in(4) {
        container["livenessProbe"] =
            json!({"tcpSocket": {"port": 8000 + index}, "periodSeconds": chance.between(1, 30)});
    }
    if volumes > 0 && chance.one_in(2) {
        let volume = format!("v{}", chance.below(volumes as u64));
        container["volumeMounts"] =
            json!([{"name": volume, "mountPath": "/data", "readOnly": chance.one_in(2)}]);
    }
    container
}

fn volume(index: u64, chance: &mut Chance) -> Json {
    let name = format!("v{index}");
    match chance.below(4) {
        0 => json!({"name": name, "emptyDir": {}}),
        3 => json!({"name": name, "projected": {"sources": [{"downwardAPI": {"items": [
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
            {"path": "cpu", "resourceFieldRef": {"containerName": "c0", "resource": "limits.cpu", "divisor": "1m"}}]}}]}}),
        1 => json!({"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}),
        _ => json!({"name": name, "hostPath": {"path": "/srv/data", "type": "DirectoryOrCreate"}}),
    }
}

pub(super) fn replica_set(name: &str, chance: &mut Chance) -> Json {
    let mut template = pod(chance);
    // A ReplicaSet requires `Always`.
    template["restartPolicy"] = json!("Always");
    let mut set = json!({
        "replicas": chance.below(5),
        "selector": {"matchLabels": {"set": name}},
        "template": {"metadata": {"labels": {"set": name, "app": name}}, "spec": template},
    });
    if chance.one_in(3) {
        set["minReadySeconds"] = json!(chance.below(10));
    }
    set
}

pub(super) fn daemon_set(name: &str, chance: &mut Chance) -> Json {
    let mut set = replica_set(name, chance);
    if let Some(fields) = set.as_object_mut() {
        fields.remove("replicas");
    }
    // A ReplicaSet may have the same name.
    set["selector"] = json!({"matchLabels": {"daemon": name}});
    set["template"]["metadata"]["labels"] = json!({"daemon": name, "app": name});
    if chance.one_in(2) {
        let most = chance.pick(&["1%", "20%", "100%"]);
        set["updateStrategy"] = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": most}});
    }
    set
}

pub(super) fn autoscaler(name: &str, chance: &mut Chance) -> Json {
    let least = chance.between(1, 3);
    json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name},
        "minReplicas": least,
        "maxReplicas": least + chance.below(5),
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": chance.between(10, 90)}}}],
    })
}

pub(super) fn disruption_budget(name: &str, chance: &mut Chance) -> Json {
    let field = chance.pick(&["minAvailable", "maxUnavailable"]);
    let amount =
        if chance.one_in(2) { json!(chance.below(5)) } else { json!(format!("{}%", chance.below(101))) };
    let mut budget = json!({"selector": {"matchLabels": {"set": name}}, field: amount});
    if chance.one_in(3) {
        budget["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow");
    }
    budget
}
