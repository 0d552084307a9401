//! Services and the hosts routed to them. No fixed addresses or ports: those of two seeds could clash.

use serde_json::{Value as Json, json};

use super::Chance;

pub(super) fn service(name: &str, chance: &mut Chance) -> Json {
    let mut service = json!({
        "selector": {"app": name},
        "ports": [{"name": "http", "port": 80, "targetPort": chance.between(8000, 8003)}],
    });
    match chance.below(4) {
        0 => service["type"] = json!("NodePort"),
        1 => service["clusterIP"] = json!("None"),
        2 => service["sessionAffinity"] = json!("ClientIP"),
        _ => {}
    }
    service
}

pub(super) fn dns(name: &str, chance: &mut Chance) -> Json {
    let to = || json!({"name": name, "port": 80});
    let mut paths = vec![json!({"path": "/", "service": to()})];
    for index in 0..chance.below(3) {
        paths.push(json!({"path": format!("/p{index}"), "service": to(), "rewrite": "/"}));
    }
    if chance.below(3) == 0 {
        let backend = |weight: u64| json!({"service": name, "port": 80, "weight": weight});
        let backends = [backend(chance.between(1, 1000)), backend(chance.below(1000))];
        paths.push(json!({"path": "/shared", "backends": backends, "sticky": {"cookie": "session"}}));
    }
    json!({"host": format!("{name}.lan"), "paths": paths})
}
