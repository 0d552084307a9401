//! The choice of a backend for each request to a path.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use schema::kinds::dns::StickyKey;
use serde_json::json;

use super::super::route::Table;
use super::super::shares::{Backend, Destination, Shares, Turns};
use super::{Bed, add_route, add_service, get, known, named};
use crate::http::server::Limits;

fn to(number: u8) -> Destination {
    Destination::Endpoints(Arc::new([SocketAddr::from(([10, 244, 0, number], 80))]))
}

fn backend(weight: u32, leads: Destination) -> Backend {
    Backend { weight, headers: BTreeMap::new(), leads }
}

fn with_header(name: &str, value: &str, backend: Backend) -> Backend {
    Backend { headers: BTreeMap::from([(name.to_owned(), value.to_owned())]), ..backend }
}

fn shares(backends: Vec<Backend>) -> Shares {
    Shares::new("default/shop /", backends, None)
}

fn headers(all: &[(&str, &str)]) -> HeaderMap {
    let header = |(name, value): &(&str, &str)| {
        (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
    };
    all.iter().map(header).collect()
}

/// Counts the picks of each backend.
fn count(shares: &Shares, turns: &Turns, requests: u32, counts: &mut BTreeMap<String, u32>) {
    for _ in 0..requests {
        let picked = shares.pick(&HeaderMap::new(), turns).unwrap();
        *counts.entry(format!("{picked:?}")).or_default() += 1;
    }
}

// Seen red with randomly drawn points.
#[test]
fn shares_are_exact_over_any_stretch_of_requests() {
    let shares = shares(vec![backend(90, to(1)), backend(10, to(2))]);
    let turns = Turns::default();
    for requests in [10_000, 1_000, 100, 1_000] {
        let mut counts = BTreeMap::new();
        count(&shares, &turns, requests, &mut counts);
        let few = counts[&format!("{:?}", to(2))];
        assert!(few.abs_diff(requests / 10) <= 3, "{requests}: {counts:?}");
    }
}

#[test]
fn shares_are_exact_over_several_gateways_and_through_changes_of_the_table() {
    let gateways = [Turns::default(), Turns::default(), Turns::default()];
    let mut counts = BTreeMap::new();
    for round in 0..1_000_u32 {
        // A new table each time, as when endpoints change.
        let shares = shares(vec![backend(9, to(1)), backend(1, to(2))]);
        count(&shares, &gateways[(round % 3) as usize], 10, &mut counts);
    }
    let few = counts[&format!("{:?}", to(2))];
    assert!(few.abs_diff(1_000) <= 10, "{counts:?}");
}

// Seen red without the sorting of groups in `Shares::new`.
#[test]
fn header_rules_come_first_and_take_no_other_requests() {
    let shares = shares(vec![
        backend(1, to(1)),
        with_header("x-canary", "yes", backend(1, to(2))),
        with_header("x-team", "a", backend(1, Destination::Unavailable("none is ready".to_owned()))),
    ]);
    let turns = Turns::default();
    let pick = |all: &[(&str, &str)]| shares.pick(&headers(all), &turns).unwrap().clone();
    assert_eq!(pick(&[]), to(1));
    assert_eq!(pick(&[("X-Canary", "no")]), to(1));
    assert_eq!(pick(&[("X-Canary", "no"), ("X-Canary", "yes")]), to(2));
    assert_eq!(
        pick(&[("x-team", "a")]),
        Destination::Unavailable("none is ready".to_owned()),
        "what is asked for by name"
    );
}

#[test]
fn what_leads_nowhere_leaves_its_share_to_the_others() {
    let nowhere = || Destination::Unavailable("none is ready".to_owned());
    let turns = Turns::default();
    let two = shares(vec![backend(9, nowhere()), backend(1, to(2)), backend(0, to(3))]);
    for _ in 0..50 {
        assert_eq!(two.pick(&HeaderMap::new(), &turns), Some(&to(2)));
    }
    let none = shares(vec![backend(9, nowhere()), backend(1, nowhere())]);
    assert_eq!(none.pick(&HeaderMap::new(), &turns), Some(&nowhere()));
}

// Seen red without `kept` in `pick`.
#[test]
fn who_is_kept_by_a_value_stays_at_one_backend_and_few_move_with_the_weights() {
    let kept = |first: u32, sticky: StickyKey| {
        let backends = vec![backend(first, to(1)), backend(100 - first, to(2))];
        Shares::new("default/shop /", backends, Some(sticky))
    };
    let by_cookie = StickyKey { cookie: Some("session".to_owned()), header: None };
    let by_header = StickyKey { header: Some("X-User".to_owned()), cookie: None };
    let (before, after) = (kept(90, by_cookie.clone()), kept(80, by_cookie));
    let (turns, other_node) = (Turns::default(), Turns::default());
    let (mut few, mut moved) = (0, 0);
    for user in 0..2_000 {
        let cookies = headers(&[("cookie", &format!("a=b; session={user}; sessions=1"))]);
        let picked = before.pick(&cookies, &turns);
        assert_eq!(picked, before.pick(&cookies, &other_node));
        let header = headers(&[("x-user", &user.to_string())]);
        assert_eq!(picked, kept(90, by_header.clone()).pick(&header, &turns));
        few += u32::from(picked == Some(&to(2)));
        moved += u32::from(picked != after.pick(&cookies, &turns));
    }
    assert!((150..250).contains(&few), "{few}");
    assert!((150..250).contains(&moved), "{moved}");
}

#[test]
fn only_paths_that_share_have_turns() {
    let mut catalog = known();
    let service = |number: u8| {
        let endpoint = json!({"address": format!("10.244.0.{number}"), "ports": [80]});
        json!({"ports": [{"protocol": "TCP", "port": 80}], "endpoints": [endpoint]})
    };
    add_service(&mut catalog, "a", service(1));
    add_service(&mut catalog, "b", service(2));
    let paths = json!([
        {"path": "/shared", "backends": [{"service": "a", "port": 80}, {"service": "b", "port": 80}]},
        {"path": "/", "service": "a", "port": 80},
    ]);
    add_route(&mut catalog, "shop", "shop.example", &paths);
    let table = Table::from_catalog(&catalog, "n1");
    assert_eq!(table.turns(), BTreeSet::from(["default/shop /shared#0".into()]));
    assert_eq!(table.endpoints().len(), 2);
}

#[tokio::test]
async fn requests_go_to_backends_by_weight_and_a_function_that_is_gone_says_so() {
    let (web, next) = (named("web").await, named("next").await);
    let mut catalog = known();
    for (name, address) in [("web", web), ("next", next)] {
        let endpoint = json!({"address": address.ip(), "ports": [address.port()]});
        let record = json!({"ports": [{"protocol": "TCP", "port": 80}], "endpoints": [endpoint]});
        add_service(&mut catalog, name, record);
    }
    let paths = json!([
        {"path": "/shared", "backends": [
            {"service": "web", "port": 80, "weight": 3},
            {"service": "next", "port": 80},
            {"service": "next", "port": 80, "headers": {"x-canary": "yes"}},
        ]},
        {"path": "/call", "backends": [{"function": "hello"}]},
        {"path": "/asleep", "backends": [{"function": "asleep"}]},
    ]);
    add_route(&mut catalog, "shop", "shop.example", &paths);
    let bed = Bed::start(Limits::default(), Table::from_catalog(&catalog, "n1")).await;
    let mut few = 0;
    for _ in 0..40 {
        let said = bed.ask(&get("/shared")).await;
        assert!(said.ends_with("web") || said.ends_with("next"), "{said}");
        few += u32::from(said.ends_with("next"));
    }
    assert!((8..=12).contains(&few), "{few}");
    let canary = get("/shared").replace("\r\n\r\n", "\r\nX-Canary: yes\r\n\r\n");
    assert!(bed.ask(&canary).await.ends_with("next"));
    let called = bed.ask(&get("/call")).await;
    assert!(
        called.starts_with("http/1.1 404") && called.contains("there is no function default/hello"),
        "{called}"
    );
    assert!(called.contains("x-activation-id: "), "{called}");
    let asleep = bed.ask(&get("/asleep")).await;
    assert!(asleep.starts_with("http/1.1 503") && asleep.contains("retry-after: 1"), "{asleep}");
}
