//! Page of a service: addresses, endpoints, pods left out with the reason, and the nodes that programmed it.

use jiff::Timestamp;

use super::page::{Page, indented, pairs};
use crate::cli::print::output::{Layout, Screen, column, cuttable, plain};
use crate::view::{NodeRules, ServiceDetail};

pub(in crate::cli) fn service_page(service: &ServiceDetail, screen: Screen, now: Timestamp) -> String {
    let mut page = Page::default();
    let row = &service.row;
    page.field(0, "Name", &row.name);
    page.field(0, "Namespace", &row.namespace);
    page.field(0, "Type", &row.kind);
    page.field(0, "Health", &screen.paint(&row.health));
    page.field(0, "Note", &row.note);
    page.field(0, "Cluster IP", &row.cluster_ip);
    page.fields(0, "External IPs", row.external_ips.iter().map(ToString::to_string));
    page.field(0, "External name", &row.external_name);
    page.fields(0, "Ports", row.ports.iter().cloned());
    page.field(0, "Age", &row.age);
    page.field(0, "Set by", &service.set_by);
    page.field(0, "Commit", &service.commit);
    page.fields(0, "Selector", pairs(&service.selector));
    page.fields(0, "Labels", pairs(&row.labels));
    page.fields(0, "Annotations", pairs(&service.annotations));
    let block = |columns: &[_], rows: Vec<Vec<String>>| match rows.is_empty() {
        true => "none".to_owned(),
        false => plain(columns, &rows, indented(screen), &mut Layout::default()),
    };
    let endpoints = service
        .endpoints
        .iter()
        .map(|one| vec![one.addresses.join(","), one.pod.clone(), one.node.clone()])
        .collect();
    let columns = [column("ADDRESS"), column("POD"), column("NODE")];
    let endpoints = match nobody_is_selected(service) {
        true => format!("none: no pod of namespace {} has the labels of the selector", row.namespace),
        false => block(&columns, endpoints),
    };
    page.block("Endpoints:", &endpoints);
    if !service.not_ready.is_empty() {
        let left = service.not_ready.iter().map(|one| vec![one.pod.clone(), one.why.clone()]).collect();
        page.block("Left out:", &block(&[column("POD"), cuttable("WHY")], left));
    }
    if !service.nodes.is_empty() {
        let row = |one: &NodeRules| vec![one.node.clone(), one.age.clone(), one.state.clone()];
        let columns = [column("NODE"), column("LAST PROGRAMMED"), cuttable("STATE")];
        page.block("Rules:", &block(&columns, service.nodes.iter().map(row).collect()));
    }
    page.events(&service.events, screen, now);
    page.0
}

/// True if the service has no endpoints because no pod has the labels of its selector.
fn nobody_is_selected(service: &ServiceDetail) -> bool {
    !service.selector.is_empty()
        && service.row.external_name.is_empty()
        && service.endpoints.is_empty()
        && service.not_ready.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::ServiceView;

    // Seen red with `nobody_is_selected` always false.
    #[test]
    fn the_page_says_that_no_pod_has_the_labels_and_only_then() {
        let page = |selector: serde_json::Value, left_out: &[&str]| {
            let left: Vec<_> = left_out
                .iter()
                .map(|pod| serde_json::json!({"pod": pod, "why": "it is not ready"}))
                .collect();
            let service: ServiceDetail = serde_json::from_value(serde_json::json!({
                "namespace": "default", "name": "web", "type": "ClusterIP", "clusterIP": "10.96.0.20",
                "externalIPs": [], "ports": ["80/TCP"], "ready": 0, "leftOut": left.len(), "health": "Healthy",
                "note": "", "age": "5m", "labels": {}, "selector": selector, "endpoints": [], "notReady": left,
                "nodes": [], "setBy": "", "commit": "", "annotations": {}, "events": [],
            }))
            .unwrap();
            service_page(&service, Screen { width: None, colour: false }, Timestamp::UNIX_EPOCH)
        };
        let says = |page: String| page.contains("no pod of namespace default has the labels of the selector");
        assert!(says(page(serde_json::json!({"app": "web"}), &[])));
        assert!(!says(page(serde_json::json!({"app": "web"}), &["web-1"])), "one is left out");
        assert!(!says(page(serde_json::json!({}), &[])), "its addresses are given");
    }

    #[test]
    fn the_page_says_which_node_has_programmed_it_and_when() {
        let node = |node: &str, age: &str, state: &str| NodeRules {
            node: node.to_owned(),
            state: state.to_owned(),
            programmed_at: None,
            age: age.to_owned(),
        };
        let row: ServiceView = serde_json::from_value(serde_json::json!({
            "namespace": "default", "name": "web", "type": "ClusterIP", "clusterIP": "10.96.0.20",
            "externalIPs": [], "ports": ["80/TCP"], "ready": 0, "leftOut": 0, "health": "Healthy",
            "note": "", "age": "5m", "labels": {},
        }))
        .unwrap();
        let service = ServiceDetail {
            row,
            selector: Default::default(),
            endpoints: Vec::new(),
            not_ready: Vec::new(),
            nodes: vec![node("n1", "12s", "programmed"), node("n22", "", "nothing yet")],
            set_by: String::new(),
            commit: String::new(),
            annotations: Default::default(),
            events: Vec::new(),
        };
        let page = service_page(&service, Screen { width: None, colour: false }, Timestamp::UNIX_EPOCH);
        let rules = page.split_once("Rules:\n").unwrap().1.split_once("Events:").unwrap().0;
        insta::assert_snapshot!(rules, @r"
        NODE   LAST PROGRAMMED   STATE
        n1     12s               programmed
        n22    -                 nothing yet
        ");
    }
}
