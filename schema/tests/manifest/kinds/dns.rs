//! Dns objects: valid ones with their loaded form, and the errors of invalid ones.

use schema::kinds::Resource;
use schema::kinds::dns::DnsSpec;

use crate::cases::{Case, check, document, messages};
use crate::{load, rules};

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

fn shared(backends: &str, more: &str) -> String {
    dns(&format!("host: shop.example\npaths:\n- path: /a\n  backends:\n{backends}{more}"))
}

#[test]
fn backends_share_a_path_and_their_references_have_places() {
    let text = shared(
        "  - {service: web, port: 80, weight: 9}\n  - {function: hello}\n  - {service: web, port: http, headers: {X-Canary: \"yes\"}}\n",
        "  sticky: {cookie: session}\n",
    );
    let path = &spec(&text).paths[0];
    assert_eq!(path.backends.iter().map(|one| one.weight).collect::<Vec<_>>(), [9, 1, 1]);
    assert_eq!(path.backends[2].headers["x-canary"], "yes");
    assert_eq!(
        path.in_words(),
        "service web:80 90%, function hello 10%, service web:http with x-canary: yes, sticky by cookie session"
    );
    let loaded = load(&text);
    let object = &loaded.documents[0].object;
    let named = schema::kinds::links::references(&object.metadata, &object.resource);
    let named: Vec<_> = named.iter().map(|one| (one.target.to_string(), one.port.is_some())).collect();
    let web = ("Service/default/web".to_owned(), true);
    assert_eq!(named, [web.clone(), ("Function/default/hello".to_owned(), false), web]);
}

fn bad_backends() -> Vec<Case> {
    let one = |rule, item: &str| (rule, shared(&format!("  - {{service: web, port: 80}}\n  - {item}\n"), ""));
    let with_sticky = |rule, sticky: &str| {
        (rule, shared("  - {service: web, port: 80}\n  - {function: f}\n", &format!("  {sticky}\n")))
    };
    let at_list = |backends: &str| shared(backends, "").replace("backends", "§backends");
    let many = "  - {function: f}\n".repeat(17);
    vec![
        one("exclusive", "§{weight: 1}"),
        one("exclusive", "{service: web, port: 80, §function: f}"),
        one("required", "§{service: web}"),
        one("exclusive", "{function: f, §port: 80}"),
        one("invalid-name", "{function: §F}"),
        one("out-of-range", "{function: f, weight: §1001}"),
        one("invalid-header", "{function: f, headers: {X Y: §a}}"),
        one("invalid-header", "{function: f, headers: {X: §\" a\"}}"),
        ("required", at_list("  - {function: f, headers: {X: a}}\n")),
        ("out-of-range", at_list("  - {function: f, weight: 0}\n")),
        ("out-of-range", at_list("  - {function: f}\n  - {function: f, weight: 0, headers: {x: a}}\n")),
        ("out-of-range", at_list(&many)),
        with_sticky("exclusive", "§sticky: {}"),
        with_sticky("exclusive", "§sticky: {header: a, cookie: b}"),
        with_sticky("invalid-header", "sticky: {header: §\"a b\"}"),
        ("exclusive", shared("  - {function: f}\n", "  §rewrite: /\n")),
        ("exclusive", with("- {path: /b, service: {name: web, port: 80}, §backends: [{function: f}]}")),
        ("exclusive", with("- {path: /b, service: {name: web, port: 80}, §sticky: {header: a}}")),
        ("required", with("- §{path: /b}")),
    ]
}

#[test]
fn each_bad_backend_breaks_exactly_its_rule_at_its_place() {
    check(&bad_backends());
}

#[test]
fn messages_of_backends_say_what_is_wrong_and_what_to_do() {
    insta::assert_snapshot!(messages(&bad_backends()));
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
        // Seen red without the cluster's zone.
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
