//! Services: valid ones with their loaded form, and the errors of invalid ones.

use schema::kinds::Resource;
use schema::kinds::pod::PortReference;
use schema::kinds::service::ServiceSpec;

use crate::cases::{Case, check, document, messages};
use crate::{load, rules};

fn service(spec: &str) -> String {
    document("v1", "Service", spec)
}

fn spec(text: &str) -> ServiceSpec {
    let loaded = load(text);
    assert_eq!(rules(&loaded), Vec::<String>::new(), "{text}");
    let Resource::Service(spec) = &loaded.documents[0].object.resource else { panic!("a service") };
    (**spec).clone()
}

#[test]
fn a_short_service_and_a_long_one_of_the_same_meaning_are_equal() {
    let short = spec(&service(
        "selector: {app: web}\nports: [{port: 80}]\nsessionAffinity: ClientIP\ntype: NodePort",
    ));
    let long = spec(&service(
        "selector: {app: web}\nclusterIP: ''\nports:\n- port: 80\n  name: ''\n  targetPort: 80\n  protocol: TCP\n  nodePort: 0\n\
         type: NodePort\nsessionAffinity: ClientIP\nsessionAffinityConfig: {clientIP: {timeoutSeconds: 10800}}\n\
         internalTrafficPolicy: Cluster\nexternalTrafficPolicy: Cluster\npublishNotReadyAddresses: false\nexternalIPs: []",
    ));
    assert_eq!(short, long);
    assert_eq!(short.ports[0].target_port, Some(PortReference::Number(80)));
}

#[test]
fn services_of_every_sort_are_taken() {
    for text in [
        "clusterIP: None\nselector: {app: web}",
        "clusterIP: 10.96.0.20\nselector: {app: web}\nports: [{port: 53, protocol: UDP}, {port: 53}]",
        "ports: [{port: 80, targetPort: http}]\nselector: {app: web}\ntype: NodePort\nexternalTrafficPolicy: Local",
        "ports: [{port: 80, targetPort: 8080, nodePort: 30080}]\nselector: {app: web}\ntype: NodePort",
        "ports: [{port: 5432}]\naddresses: [192.168.1.5, 192.168.1.6]",
        "type: ExternalName\nexternalName: www.example.com",
        "type: ExternalName\nexternalName: db.prod.svc.cluster.local\nports: [{port: 5432}]",
        "ports: [{port: 80}]\nselector: {app: web}\nexternalIPs: [192.0.2.7]\nexternalTrafficPolicy: Local",
    ] {
        // Two ports need names.
        let text =
            text.replace("{port: 53, ", "{name: a, port: 53, ").replace("{port: 53}", "{name: b, port: 53}");
        spec(&service(&text));
    }
}

fn cases() -> Vec<Case> {
    let with = |rule, rest: &str| (rule, service(&format!("selector: {{app: web}}\n{rest}")));
    let ports = |rule, ports: &str| with(rule, &format!("ports:\n{ports}"));
    let node = |rule, ports: &str| with(rule, &format!("type: NodePort\nports:\n{ports}"));
    vec![
        with("required", "§ports: []"),
        ("required", service("§selector: {app: web}").replace("§", "").replace("spec", "§spec")),
        ports("required", "- {name: a, port: 80}\n- §port: 81"),
        ports("duplicate-name", "- {name: a, port: 80}\n- {name: §a, port: 81}"),
        ports("invalid-port", "- {name: §A_b, port: 80}"),
        ports("invalid-port", "- {name: a, port: 80}\n- {name: b, port: §80}"),
        ports("out-of-range", "- {port: §0}"),
        ports("out-of-range", "- {port: §70000}"),
        ports("invalid-port", "- {port: 80, targetPort: §HTTP}"),
        ports("invalid-port", "- {port: 80, targetPort: §\"8080\"}"),
        ("not-found", service("addresses: [10.0.0.5]\nports: [{port: 80, targetPort: §http}]")),
        ports("node-port", "- {port: 80, §nodePort: 30080}"),
        node("node-port", "- {port: 80, nodePort: §80}"),
        node("node-port", "- {name: a, port: 80, nodePort: 30080}\n- {name: b, port: 81, nodePort: §30080}"),
        with("unknown-value", "type: §LoadBalancer\nports: [{port: 80}]"),
        ports("unknown-value", "- {port: 80, protocol: §SCTP}"),
        ports("no-effect", "- {port: 80, §appProtocol: http}"),
        with("no-effect", "ports: [{port: 80}]\n§ipFamilyPolicy: SingleStack"),
        with("no-effect", "ports: [{port: 80}]\n§ipFamilies: [IPv6, IPv4]"),
        with("unsupported-field", "ports: [{port: 80}]\n§ipFamilies: [IPv6]"),
        with("unsupported-field", "ports: [{port: 80}]\n§clusterIPs: [10.96.0.20]"),
        with("unsupported-field", "ports: [{port: 80}]\n§loadBalancerIP: 192.0.2.1"),
        with("external-name", "ports: [{port: 80}]\n§externalName: example.com"),
        ("required", service("type: ExternalName").replace("spec", "§spec")),
        ("required", service("type: ExternalName\nexternalName: §\"\"")),
        ("external-name", service("type: ExternalName\nexternalName: §Example.com")),
        ("external-name", service("type: ExternalName\nexternalName: §example.com.")),
        ("external-name", service("type: ExternalName\nexternalName: §192.0.2.1")),
        ("external-name", service("type: ExternalName\nexternalName: a.example\n§selector: {app: web}")),
        ("external-name", service("type: ExternalName\nexternalName: a.example\n§addresses: [10.0.0.5]")),
        ("external-name", service("type: ExternalName\nexternalName: a.example\n§externalIPs: [192.0.2.7]")),
        ("cluster-ip", service("type: ExternalName\nexternalName: a.example\n§clusterIP: 10.96.0.20")),
        ("cluster-ip", service("type: ExternalName\nexternalName: a.example\n§clusterIP: None")),
        (
            "node-port",
            service("type: ExternalName\nexternalName: a.example\nports: [{port: 80, §nodePort: 30080}]"),
        ),
        with("unsupported-field", "ports: [{port: 80}]\n§trafficDistribution: PreferClose"),
        with("cluster-ip", "ports: [{port: 80}]\nclusterIP: §none"),
        with("cluster-ip", "ports: [{port: 80}]\nclusterIP: §fd00::1"),
        with("cluster-ip", "ports: [{port: 80}]\nclusterIP: §127.0.0.1"),
        with("cluster-ip", "type: NodePort\nports: [{port: 80}]\nclusterIP: §None"),
        with("invalid-address", "ports: [{port: 80}]\nexternalIPs: [§node-1]"),
        with("invalid-address", "ports: [{port: 80}]\nexternalIPs: [§0.0.0.0]"),
        ("invalid-address", service("ports: [{port: 80}]\naddresses: [§169.254.1.1]")),
        ("invalid-address", service("ports: [{port: 80}]\naddresses: [§224.0.0.1]")),
        with("exclusive", "ports: [{port: 80}]\n§addresses: [10.0.0.5]"),
        ("no-endpoints", service("ports: [{port: 80}]").replace("spec", "§spec")),
        with(
            "session-affinity",
            "ports: [{port: 80}]\n§sessionAffinityConfig: {clientIP: {timeoutSeconds: 5}}",
        ),
        with(
            "session-affinity",
            "ports: [{port: 80}]\nsessionAffinity: ClientIP\nsessionAffinityConfig: {clientIP: {timeoutSeconds: §0}}",
        ),
        with(
            "session-affinity",
            "ports: [{port: 80}]\nsessionAffinity: ClientIP\nsessionAffinityConfig: {clientIP: {timeoutSeconds: §86401}}",
        ),
        with("traffic-policy", "ports: [{port: 80}]\nexternalTrafficPolicy: §Local"),
        ("invalid-label", service("ports: [{port: 80}]\nselector: {app: §\"a b\"}")),
        with("unknown-field", "ports: [{port: 80}]\n§sesionAffinity: ClientIP"),
    ]
}

#[test]
fn each_bad_service_breaks_exactly_its_rule_at_its_place() {
    check(&cases());
}

#[test]
fn messages_say_what_is_wrong_and_what_to_do() {
    insta::assert_snapshot!(messages(&cases()));
}

#[test]
fn places_are_those_that_clash_or_lead_elsewhere() {
    let text = service(
        "clusterIP: 10.96.0.20\ntype: NodePort\nselector: {app: web}\nports:\n- port: 80\n  nodePort: 30080",
    );
    let loaded = load(&text);
    let places: Vec<_> = loaded.documents[0].places.iter().map(|place| (place.line, place.column)).collect();
    assert_eq!(places, [(8, 3), (6, 14), (11, 15)]);
}
