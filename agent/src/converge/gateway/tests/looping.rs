//! The gateway's loop: its listening address, when it rebuilds the table, and a taken port that ends nothing.

use std::net::TcpListener;
use std::sync::Arc;

use jiff::Timestamp;
use schema::control::{Loop, Observation, Plan};
use schema::records::Subnet;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::super::plan::{Observed, plan};
use super::super::{GatewayDeps, GatewayLoop};
use super::{Wire, add_route, add_service, first_line, get, known, named};
use crate::catalog::Catalog;
use crate::http::server::Limits;
use crate::standby::Handover;

fn observed(cidr: &str) -> Observed {
    Observed {
        node: "n1".to_owned(),
        service_cidr: cidr.parse().unwrap(),
        port: 80,
        listens: None,
        catalog: Arc::new(known()),
        routed: None,
    }
}

// Seen red with `listens.is_none()` for `Some(*wanted)`, and without `current`.
#[test]
fn it_listens_at_the_eleventh_address_and_does_nothing_twice() {
    let mut seen = observed("10.96.16.0/20");
    let first = plan(&seen);
    assert_eq!(first.listen.unwrap().at, "10.96.16.11:80".parse().unwrap());
    assert!(first.table.is_some());
    seen.listens = first.listen.map(|listen| listen.at);
    seen.routed = Some(Arc::clone(&seen.catalog));
    assert!(plan(&seen).is_empty());
    // Another node joined: routes and services are the same.
    seen.catalog = Arc::new(Catalog { revision: 9, ..Catalog::clone(&seen.catalog) });
    assert!(plan(&seen).is_empty());
    add_route(Arc::make_mut(&mut seen.catalog), "shop", "shop.example", &json!([]));
    assert!(plan(&seen).table.is_some());
    seen.service_cidr = "10.97.0.0/16".parse().unwrap();
    assert_eq!(plan(&seen).listen.unwrap().at, "10.97.0.11:80".parse().unwrap());
    assert_eq!(plan(&observed("10.96.0.0/29")).listen, None, "the range has no 11th address");
}

async fn run(the_loop: &mut GatewayLoop) -> Result<(), String> {
    let Observation::Ready(observed) = the_loop.observe().await.unwrap() else {
        return Err("not ready".to_owned());
    };
    let plan = GatewayLoop::plan(&observed, Timestamp::now());
    let outcome = the_loop.act(&observed, plan).await;
    the_loop.report(observed, outcome).await.map(|_| ()).map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_taken_port_is_reported_and_tried_again_while_routes_are_kept_up() {
    let taken = TcpListener::bind("127.93.0.11:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let (subnets, subnet) = watch::channel(None);
    let (catalogs, catalog) = watch::channel(Arc::new(Catalog::default()));
    let deps = GatewayDeps {
        node: "n1".to_owned(),
        port,
        limits: Limits::default(),
        subnet,
        catalog,
        functions: super::functions(),
        handover: Handover::from_sockets(Vec::new()),
    };
    let shutdown = CancellationToken::new();
    let (mut the_loop, serving) = GatewayLoop::new(deps, shutdown.clone());
    let serving = tokio::spawn(serving);
    assert_eq!(run(&mut the_loop).await, Err("not ready".to_owned()));

    let range = |service_cidr: &str| {
        let (cidr, cluster) = ("10.244.1.0/24".parse().unwrap(), "10.244.0.0/16".parse().unwrap());
        Some(Subnet { service_cidr: service_cidr.parse().unwrap(), ..Subnet::new(cidr, cluster) })
    };
    subnets.send_replace(range("127.93.0.0/16"));
    let mut catalog = known();
    let at = named("hello").await;
    let endpoints = json!([{"address": at.ip(), "ports": [at.port()]}]);
    add_service(
        &mut catalog,
        "web",
        json!({"ports": [{"protocol": "TCP", "port": 80}], "endpoints": endpoints}),
    );
    add_route(&mut catalog, "shop", "shop.example", &json!([{"path": "/", "service": "web", "port": 80}]));
    catalogs.send_replace(Arc::new(catalog));
    let why = run(&mut the_loop).await.unwrap_err();
    assert!(
        why.contains(&format!("cannot listen at 127.93.0.11:{port}")) && why.contains("ss -ltnp"),
        "{why}"
    );

    drop(taken);
    run(&mut the_loop).await.unwrap();
    let ask = |host: &'static str| async move {
        let stream = tokio::net::TcpStream::connect((host, port)).await.unwrap();
        let mut client = Wire::new(stream);
        client.send(&get("/")).await;
        client.message().await
    };
    let answer = ask("127.93.0.11").await;
    assert_eq!(first_line(&answer), "http/1.1 200 ok");

    // First an address that no link has yet, then a reachable one: the gateway moves.
    subnets.send_replace(range("192.0.2.0/24"));
    run(&mut the_loop).await.unwrap();
    subnets.send_replace(range("127.94.0.0/16"));
    run(&mut the_loop).await.unwrap();
    assert_eq!(first_line(&ask("127.94.0.11").await), "http/1.1 200 ok");
    assert!(tokio::net::TcpStream::connect(("127.93.0.11", port)).await.is_err(), "the former one is closed");
    shutdown.cancel();
    serving.await.unwrap();
}
