//! HTTP begins in few files: each crate builds clients and URLs in one and accepts connections in one, so that time
//! limits, redirects, bounds and later TLS are set there.

use crate::structure::{of_crate, production};
use crate::{code, rust};

const CRATES: [&str; 2] = ["reconciler", "agent"];

/// Calls that build a client.
const CLIENTS: [&str; 8] = [
    "Client::builder",
    "ClientBuilder::new",
    "reqwest::Client::new",
    "reqwest::get(",
    "legacy::Builder",
    "legacy::Client::",
    "http1::handshake",
    ".handshake(",
];
const BUILD_CLIENTS: [&str; 4] = [
    // The gateway's pool of connections to pods; the requests themselves drive them.
    "agent/src/http/client.rs",
    "agent/src/http/outgoing.rs",
    // Docker's unix socket.
    "agent/src/worlds/docker/raw_log.rs",
    "reconciler/src/outgoing.rs",
];

/// What accepts a connection.
const ACCEPTS: [&str; 2] = [".accept()", "axum::serve"];
const ACCEPT: [&str; 4] = [
    // DNS over TCP.
    "agent/src/converge/dns/listen.rs",
    // The unix socket through which the next agent requests the sockets.
    "agent/src/daemon/serve_standby.rs",
    "agent/src/http/acceptor.rs",
    "reconciler/src/listener/stream.rs",
];

/// What makes a URL of an address. Help and messages have the scheme further on in their text.
const SCHEMES: [&str; 2] = ["\"http://", "http://{"];
/// What reads a scheme that somebody else wrote.
const READS_SCHEME: [&str; 4] =
    ["starts_with(\"http://", "strip_prefix(\"http://", "trim_start_matches(\"http://", "replace(\"http://"];
const MAKE_URLS: [&str; 2] = ["agent/src/http/outgoing.rs", "reconciler/src/outgoing.rs"];

/// Production files with a line that matches, in order.
fn files_with(matches: impl Fn(&str) -> bool) -> Vec<String> {
    let files = rust();
    let mut found: Vec<String> = CRATES
        .iter()
        .flat_map(|name| of_crate(&files, name))
        .filter(|file| code(production(&file.text)).any(|(_, line)| matches(line)))
        .map(|file| file.path.clone())
        .collect();
    found.sort();
    found
}

fn builds_a_client(line: &str) -> bool {
    CLIENTS.iter().any(|part| line.contains(part))
}

fn accepts(line: &str) -> bool {
    ACCEPTS.iter().any(|part| line.contains(part))
}

fn makes_a_url(line: &str) -> bool {
    SCHEMES.iter().any(|part| line.contains(part)) && !READS_SCHEME.iter().any(|part| line.contains(part))
}

#[test]
fn clients_are_built_in_one_file_of_a_crate() {
    assert_eq!(
        files_with(builds_a_client),
        BUILD_CLIENTS,
        "left: files that build clients; right: those that may"
    );
}

#[test]
fn connections_are_accepted_in_one_file_of_a_crate() {
    assert_eq!(files_with(accepts), ACCEPT, "left: files that accept connections; right: those that may");
}

#[test]
fn urls_of_addresses_are_made_in_one_file_of_a_crate() {
    assert_eq!(files_with(makes_a_url), MAKE_URLS, "left: files that write http://; right: those that may");
}

#[test]
fn the_rules_of_http_see_what_they_should() {
    let clients = [
        "let client = reqwest::Client::builder().no_proxy();",
        "reqwest::Client::new()",
        "let http = legacy::Client::builder(TokioExecutor::new());",
        "Client::new(args.server.given())?",
    ];
    assert_eq!(clients.map(builds_a_client), [true, true, true, false]);
    assert!(accepts("match listener.accept().await {") && accepts("axum::serve(listener, router)"));
    let urls = [
        "format!(\"http://{address}/\")",
        "format!(\"x=http://{address}\")",
        "if url.starts_with(\"http://\") {",
        "\"write it as http://node:8081\"",
    ];
    assert_eq!(urls.map(makes_a_url), [true, true, false, false]);
}
