//! Functions, workflows, jobs, nodes and the Cluster object.

use serde_json::{Value as Json, json};

use super::Chance;

pub(super) fn function(chance: &mut Chance) -> Json {
    // Always an image: a source folder would have to be in the repository.
    let mut function = json!({"image": chance.pick(&["example/price:1", "lan.example:5000/orders/price"])});
    if chance.one_in(2) {
        function["env"] = json!([{"name": "MODE", "value": chance.text()}]);
    }
    if chance.one_in(3) {
        function["timeoutSeconds"] = json!(chance.between(1, 600));
    }
    if chance.one_in(3) {
        let least = chance.below(4);
        function["minScale"] = json!(least);
        function["maxScale"] = json!(least + chance.between(1, 5));
    }
    if chance.one_in(3) {
        function["concurrency"] = json!(chance.between(1, 20));
    }
    if chance.one_in(3) {
        function["resources"] = json!({"limits": {"memory": "64Mi"}});
    }
    if chance.one_in(4) {
        function["triggers"] = json!([{"name": "imported", "onCommit": {"paths": ["/data/", "*.csv"]}}]);
    }
    function
}

/// Generates a workflow and the names of the functions it calls.
pub(super) fn workflow(name: &str, chance: &mut Chance) -> (Json, Vec<String>) {
    let functions: Vec<String> = (0..chance.between(1, 3)).map(|index| format!("{name}-f{index}")).collect();
    let mut states = serde_json::Map::new();
    for (index, function) in functions.iter().enumerate() {
        let next = if index + 1 < functions.len() { format!("s{}", index + 1) } else { "large".to_owned() };
        let mut state = json!({"type": "Task", "function": function, "next": next});
        if chance.one_in(3) {
            state["retry"] = json!([{"errorEquals": ["States.ALL"], "maxAttempts": chance.below(5)}]);
        }
        states.insert(format!("s{index}"), state);
    }
    let rule = json!({"variable": "$.n", "numericGreaterThan": chance.below(100), "next": "wait"});
    states.insert("large".to_owned(), json!({"type": "Choice", "choices": [rule], "default": "done"}));
    states.insert("wait".to_owned(), json!({"type": "Wait", "seconds": chance.below(10), "next": "done"}));
    states.insert("done".to_owned(), json!({"type": "Succeed"}));
    let mut flow = json!({"startAt": "s0", "states": states});
    if chance.one_in(2) {
        flow["params"] = json!({"n": chance.below(100), "text": chance.text(), "list": [1, null, true]});
    }
    if chance.one_in(3) {
        let schedule = json!({"cron": format!("{} 3 * * *", chance.below(60)), "timeZone": "Europe/Berlin"});
        flow["triggers"] =
            json!([{"name": "nightly", "schedule": schedule, "params": {"n": chance.below(9)}}]);
    }
    (flow, functions)
}

pub(super) fn job(chance: &mut Chance) -> Json {
    let mut job = json!({"runCommands": ["./run \"$HOME\""], "nTasks": chance.between(1, 8)});
    if chance.one_in(2) {
        // Neither a secret nor a folder: both would have to be in the repository.
        job["login"] = json!({"host": "login.example.edu", "username": "alice"});
    }
    if chance.one_in(2) {
        job["workDir"] = json!("/scratch/alice");
        job["compileCommands"] = json!(["make"]);
    }
    if chance.one_in(2) {
        job["timeLimit"] = json!(chance.pick(&["30", "1:00:00", "2-12"]));
    }
    if chance.one_in(3) {
        job["gpusPerNode"] = json!(chance.below(3));
    }
    if chance.one_in(3) {
        job["array"] = json!(chance.pick(&["0-3", "1,5", "0-9%2"]));
    }
    if chance.one_in(3) {
        job["outputs"] = json!(["result.txt", "plots/*.png"]);
    }
    job
}

pub(super) fn node(chance: &mut Chance) -> Json {
    let mut node = json!({});
    if chance.one_in(2) {
        node["unschedulable"] = json!(chance.one_in(2));
        node["drain"] = json!(chance.one_in(4));
    }
    if chance.one_in(2) {
        node["taints"] = json!([{"key": chance.word(), "value": chance.word(), "effect": chance.pick(&["NoSchedule", "PreferNoSchedule", "NoExecute"])}]);
    }
    if chance.one_in(3) {
        node["identity"] = json!(format!("sha256:{:064x}", chance.below(1000)));
    }
    node
}

pub(super) fn cluster(chance: &mut Chance) -> Json {
    let strategies = ["spread", "random", "round-robin", "min-pods", "max-pods", "min-cpu", "min-memory"];
    let mut cluster = json!({"schedulerStrategy": chance.pick(&strategies)});
    if chance.one_in(2) {
        cluster["prune"] = json!({"maxObjects": chance.below(100), "maxPercent": chance.between(0, 100)});
    }
    if chance.one_in(2) {
        cluster["defaults"] = json!({"progressDeadlineSeconds": chance.between(1, 600)});
    }
    if chance.one_in(3) {
        cluster["nodes"] = json!({"evictAfterSeconds": chance.below(600)});
    }
    if chance.one_in(3) {
        cluster["podSecurity"] = json!({"forbidHostPaths": ["/etc"]});
    }
    if chance.one_in(3) {
        let count = chance.between(1, 3);
        cluster["notifications"] = (0..count).map(|index| notification(index, chance)).collect();
    }
    cluster
}

fn notification(index: u64, chance: &mut Chance) -> Json {
    let mut target = json!({"name": format!("target-{index}"), "secretName": "ops"});
    let (channel, settings) = match chance.below(5) {
        0 => ("webhook", json!({"template": "{\"text\": \"{{title}}: {{ link }}\"}"})),
        1 => ("webhook", json!({"url": "https://hooks.example.org/a?b=c"})),
        2 => ("slack", json!({})),
        3 => ("matrix", json!({"room": "!abc:example.org"})),
        _ => ("smtp", json!({"from": "minik8s@example.org", "to": ["ops@example.org"]})),
    };
    target[channel] = settings;
    if chance.one_in(2) {
        target["on"] = json!(["verdict", chance.pick(&["node", "prune", "disk"])]);
    }
    if chance.one_in(4) {
        target["allowPrivate"] = json!(true);
    }
    target
}
