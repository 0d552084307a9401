//! Routing tables: the endpoints and the path for a host and a path.

use hyper::HeaderMap;
use serde_json::{Value, json};

use super::super::route::{NotFound, Table};
use super::super::shares::{Destination, Turns};
use super::{Bed, add_route, add_service, first_line, known, named};
use crate::catalog::Catalog;
use crate::http::path::normalized;
use crate::http::server::Limits;

fn service(endpoints: &Value) -> Value {
    json!({
        "ports": [{"protocol": "UDP", "port": 80}, {"protocol": "TCP", "port": 80}, {"protocol": "TCP", "port": 81}],
        "endpoints": endpoints,
    })
}

/// An endpoint with this number.
fn pod(number: u8) -> Value {
    service(&json!([{"address": format!("10.244.0.{number}"), "ports": [5300, 8080, 0], "node": "n1"}]))
}

fn catalog() -> Catalog {
    let mut catalog = known();
    for (number, name) in [(1, "web"), (2, "shop"), (3, "cart")] {
        add_service(&mut catalog, name, pod(number));
    }
    let paths = json!([
        {"path": "/shop/cart", "service": "cart", "port": 80, "rewrite": "/"},
        {"path": "/shop", "service": "shop", "port": 80, "rewrite": "/v2"},
        {"path": "/", "service": "web", "port": 80},
    ]);
    add_route(&mut catalog, "a", "shop.example", &paths);
    add_route(&mut catalog, "b", "only.example", &json!([{"path": "/api", "service": "web", "port": 80}]));
    catalog
}

/// Formats the endpoint and path.
fn found(table: &Table, host: &str, path: &str) -> String {
    let path = &*normalized(path).unwrap();
    match table.find(host, path) {
        Err(what) => format!("{what:?}"),
        Ok(route) => {
            let path = route.rewritten(path).unwrap_or_else(|| format!("{path} unchanged"));
            match route.shares.pick(&HeaderMap::new(), &Turns::default()).unwrap() {
                Destination::Endpoints(endpoints) => format!("{endpoints:?} {path}"),
                Destination::Function(id) => format!("{id} {path}"),
                Destination::Unavailable(why) => why.clone(),
            }
        }
    }
}

// Seen red without the check for a separator in `rest_behind`, and with `host` instead of `name(host)`.
#[test]
fn the_longest_path_that_ends_where_a_segment_ends_wins() {
    let table = Table::from_catalog(&catalog(), "n1");
    let to = |number: u8, path: &str| format!("[10.244.0.{number}:8080] {path}");
    for (host, path, wanted) in [
        ("shop.example", "/", to(1, "/ unchanged")),
        ("shop.example", "/other", to(1, "/other unchanged")),
        ("shop.example", "/shop", to(2, "/v2")),
        ("shop.example", "/shop/", to(2, "/v2/")),
        ("shop.example", "/shop/x/y", to(2, "/v2/x/y")),
        ("shop.example", "/shopping", to(1, "/shopping unchanged")),
        ("shop.example", "/shop/cart", to(3, "/")),
        ("shop.example", "/shop/cart/", to(3, "/")),
        ("shop.example", "/shop/cart/1", to(3, "/1")),
        ("shop.example", "/shop/carts", to(2, "/v2/carts")),
        ("shop.example", "/%73hop/%63art/%31%2f2", to(3, "/1%2F2")),
        ("shop.example", "//shop//cart//1", to(3, "//1")),
        ("shop.example", "/shop%2Fcart%2F1", to(3, "/%2F1")),
        ("SHOP.Example.:8080", "/shop", to(2, "/v2")),
        ("shop.example.", "/shop", to(2, "/v2")),
        ("only.example", "/api/x", to(1, "/api/x unchanged")),
        ("only.example", "/", "Path".to_owned()),
        ("only.example", "*", "Path".to_owned()),
        ("other.example", "/", "Host".to_owned()),
        ("shop.example:x", "/", "Host".to_owned()),
    ] {
        assert_eq!(found(&table, host, path), wanted, "{host} {path}");
    }
}

// Seen red with `port.port == path.port` alone, and without the check for port 0.
#[test]
fn a_path_that_leads_nowhere_says_why() {
    let mut catalog = catalog();
    let out = json!([{"pod": "late-1", "why": "its readiness probe fails"}]);
    let mut late = service(&json!([]));
    late["leftOut"] = out;
    add_service(&mut catalog, "late", late);
    let mut local = service(&json!([{"address": "10.244.1.9", "ports": [5300, 8080, 8081], "node": "n2"}]));
    local["internalLocal"] = json!(true);
    add_service(&mut catalog, "local", local);
    let paths = json!([
        {"path": "/broken", "service": "web", "port": 9, "broken": "service web has no port 9"},
        {"path": "/unknown", "service": "gone", "port": 80},
        {"path": "/portless", "service": "web", "port": 81},
        {"path": "/late", "service": "late", "port": 80},
        {"path": "/local", "service": "local", "port": 80},
        {"path": "/udp", "service": "web", "port": 53},
    ]);
    add_route(&mut catalog, "c", "bad.example", &paths);
    let table = Table::from_catalog(&catalog, "n1");
    for (path, wanted) in [
        ("/broken", "service web has no port 9"),
        ("/unknown", "this node does not know service default/gone"),
        ("/portless", "no endpoint of service default/web has its port 81"),
        ("/late", "service default/late has no ready endpoint: pod late-1 is out, its readiness probe fails"),
        (
            "/local",
            "service default/local has no ready endpoint on this node, and internalTrafficPolicy is Local",
        ),
        ("/udp", "service default/web has no TCP port 53"),
    ] {
        assert_eq!(found(&table, "bad.example", path), wanted);
    }
    assert_eq!(
        found(&Table::from_catalog(&catalog, "n2"), "bad.example", "/local"),
        "[10.244.1.9:8080] /local unchanged"
    );
}

// Seen red without the sort.
#[test]
fn two_objects_may_share_a_host_and_the_first_by_name_has_a_path_of_both() {
    let mut catalog = catalog();
    let paths = json!([
        {"path": "/new", "service": "cart", "port": 80},
        {"path": "/shop/", "service": "cart", "port": 80},
    ]);
    add_route(&mut catalog, "z", "Shop.Example", &paths);
    let table = Table::from_catalog(&catalog, "n1");
    assert_eq!(found(&table, "shop.example", "/new/x"), "[10.244.0.3:8080] /new/x unchanged");
    assert_eq!(found(&table, "shop.example", "/shop"), "[10.244.0.2:8080] /v2");
}

#[test]
fn before_anything_is_known_no_host_is_called_unknown() {
    assert_eq!(Table::default().find("shop.example", "/"), Err(NotFound::Unknown));
    assert_eq!(Table::from_catalog(&known(), "n1").find("shop.example", "/"), Err(NotFound::Host));
}

/// A host that shows one path only, and one whose path `/admin` leads elsewhere.
async fn shown_and_hidden() -> Bed {
    let mut catalog = known();
    for name in ["web", "guard"] {
        let at = named(name).await;
        let endpoints = json!([{"address": at.ip(), "ports": [at.port()]}]);
        let ports = json!([{"protocol": "TCP", "port": 80}]);
        add_service(&mut catalog, name, json!({"ports": ports, "endpoints": endpoints}));
    }
    let public = json!([{"path": "/public", "service": "web", "port": 80}]);
    add_route(&mut catalog, "public", "pub.example", &public);
    let both = json!([
        {"path": "/", "service": "web", "port": 80},
        {"path": "/admin", "service": "guard", "port": 80},
    ]);
    add_route(&mut catalog, "both", "adm.example", &both);
    Bed::start(Limits::default(), Table::from_catalog(&catalog, "n1")).await
}

// With paths compared as they are sent, all lead to `web`; `http/path.rs` has the forms that were seen red.
#[tokio::test]
async fn no_way_to_write_a_path_leads_past_the_paths_of_a_host() {
    let bed = shown_and_hidden().await;
    // A GET is plain, a POST goes through hyper.
    for (method, end) in [("GET", ""), ("POST", "Content-Length: 0\r\n")] {
        let ask = async |host: &str, path: &str| {
            bed.ask(&format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{end}\r\n")).await
        };
        for path in ["/public/../admin/secret", "/public/%2e%2E/admin", "/public/.%2e", "/public/x%2f..%2fy"]
        {
            let answer = ask("pub.example", path).await;
            assert_eq!(first_line(&answer), "http/1.1 400 bad request", "{method} {path}");
            assert!(answer.contains("the path has a segment `.` or `..`"), "{answer}");
        }
        assert_eq!(first_line(&ask("pub.example", "/public/%").await), "http/1.1 400 bad request");
        assert!(ask("pub.example", "/public/..a/b.").await.ends_with("web"));
        for path in ["/%61dmin/secret", "//admin/secret", "/admin%2fsecret", "/%2Fadmin", "/admin//x"] {
            assert!(ask("adm.example", path).await.ends_with("guard"), "{method} {path}");
        }
        assert!(ask("adm.example", "/administrator").await.ends_with("web"));
    }
}
