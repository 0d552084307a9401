//! Dns objects: good ones, what they become, and what is told of bad ones.

use schema::kinds::Resource;
use schema::kinds::dns::DnsSpec;

use super::cases::{Case, check, document, messages};
use super::{load, rules};

fn dns(spec: &str) -> String {
    document("minik8s.io/v1", "Dns", spec)
}

fn with(path: &str) -> String {
    dns(&format!("host: shop.example\npaths:\n- path: /a\n  service: {{name: web, port: 80}}\n{path}"))
}

fn spec(text: &str) -> DnsSpec {
    let loaded = load(text);
    assert_eq!(rules(&loaded), Vec::<String>::new(), "{text}");
    let Resource::Dns(spec) = &loaded.documents[0].object.resource else { panic!("a Dns object") };
    (**spec).clone()
}

#[test]
fn a_final_slash_says_nothing() {
    let one = spec(&with("- {path: /b/, service: {name: web, port: http}, rewrite: /}"));
    assert_eq!(one, spec(&with("- {path: /b, service: {name: web, port: http}, rewrite: /}")));
    assert_eq!(one.paths[1].path, "/b");
    assert_eq!(spec(&with("- {path: /, service: {name: web, port: 80}}")).paths[1].path, "/");
}

#[test]
fn the_references_have_places() {
    let loaded = load(&with(""));
    let places: Vec<_> = loaded.documents[0].places.iter().map(|place| (place.line, place.column)).collect();
    assert_eq!(places, [(6, 9), (8, 11), (9, 21), (9, 32)]);
}

fn cases() -> Vec<Case> {
    let host = |host: &str| ("host", with("").replace("shop.example", &format!("§{host}")));
    let path = |path: &str| {
        ("invalid-path", with(&format!("- {{path: §{path}, service: {{name: web, port: 80}}}}")))
    };
    let item = |rule, item: &str| (rule, with(&format!("- {{path: /b, {item}}}")));
    vec![
        host("Shop.example"),
        host("\"\""),
        host("\"*.example\""),
        host("shop..example"),
        host("10.0.0.1"),
        host("shop.example:80"),
        host("http://shop.example"),
        host("localhost"),
        // Seen red without the zone of the cluster.
        host("s.default.svc.cluster.local"),
        host("cluster.local"),
        host("a_b.example"),
        ("missing-field", dns("host: shop.example").replace("spec", "§spec")),
        ("required", dns("host: shop.example\n§paths: []")),
        path("b"),
        path("/b/../c"),
        path("/b//c"),
        path("/./b"),
        path("/b%2Fc"),
        path("/b?c=d"),
        path("\"/b c\""),
        path("\"\""),
        ("duplicate-name", with("- {path: §/a/, service: {name: web, port: 81}}")),
        item("invalid-path", "service: {name: web, port: 80}, rewrite: §c"),
        item("invalid-path", "service: {name: web, port: 80}, rewrite: §/../c"),
        item("invalid-name", "service: {name: §Web, port: 80}"),
        item("invalid-port", "service: {name: web, port: §0}"),
        item("invalid-port", "service: {name: web, port: §HTTP}"),
        item("out-of-range", "service: {name: web, port: §65536}"),
        item("wrong-type", "service: {name: web, port: §{number: 80}}"),
        item("missing-field", "§service: {name: web}"),
        item("unsupported-field", "§pathType: Prefix, service: {name: web, port: 80}"),
        item("unsupported-field", "service: {§namespace: other, name: web, port: 80}"),
        ("unsupported-field", with("§tls: []")),
        ("unknown-field", with("§hosts: [a.example]")),
    ]
}

#[test]
fn each_bad_dns_object_breaks_exactly_its_rule_at_its_place() {
    check(&cases());
}

#[test]
fn messages_say_what_is_wrong_and_what_to_do() {
    insta::assert_snapshot!(messages(&cases()));
}
