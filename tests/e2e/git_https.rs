//! A repository behind TLS: own CA, token by file and variable, proxy, redirect; and a secret that
//! appears nowhere.

use std::fs;

use harness::manifests::sleeper;
use harness::{
    Change, Cluster, ClusterOptions, Context as _, Daemon, GitHttp, HttpProxy, Result, ensure, secs,
};
use nix::sys::signal::Signal;

use crate::serving::{self, flags};

const CANARY: &str = "c4nary-t0ken-never-shown";

#[test]
fn https_takes_the_right_ca_and_token_and_shows_the_token_to_nobody() -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions::default())?;
    cluster.start_etcd()?;
    let dir = cluster.dir("");
    let server = GitHttp::serve_tls(&dir, cluster.slot().port(13), CANARY)?;
    let head = cluster.repo.push(&[Change::write("a.yaml", sleeper("a"))], "One")?;
    let (token, wrong, stranger) = (dir.join("canary"), dir.join("wrong"), dir.join("stranger.pem"));
    fs::write(&token, format!("{CANARY}\n"))?;
    fs::write(&wrong, format!("{CANARY}-not\n"))?;
    let url = server.url("repo.git");
    let (ca, token) = (server.ca_file().display().to_string(), token.display().to_string());
    let wrong = wrong.display().to_string();
    let stranger_dir = cluster.dir("stranger");
    fs::create_dir_all(&stranger_dir)?;
    let other = GitHttp::serve_tls(&stranger_dir, cluster.slot().port(15), CANARY)?;
    fs::copy(stranger_dir.join("ca.pem"), &stranger)?;
    let stranger = stranger.display().to_string();
    let base = [("--repo", url.as_str()), ("--poll", "500ms")];
    let and = |more: &[(&str, &str)]| flags(&[&base[..], more].concat());

    serving::refused(&cluster, "noca", &and(&[("--token-file", &token)]), &["refused access", "--ca-file"])?;
    let flags_of = and(&[("--token-file", &token), ("--ca-file", &stranger)]);
    serving::refused(&cluster, "otherca", &flags_of, &["its certificate is not trusted by", "--ca-file"])?;
    let flags_of = and(&[("--token-file", &wrong), ("--ca-file", &ca)]);
    serving::refused(&cluster, "wrong", &flags_of, &["not accepted", "token"])?;
    serving::refused(&cluster, "none", &and(&[("--ca-file", &ca)]), &["requires a login", "--token-env"])?;
    let flags_of = and(&[("--token-env", "NO_SUCH_TOKEN"), ("--ca-file", &ca)]);
    serving::refused(&cluster, "unset", &flags_of, &["NO_SUCH_TOKEN", "is not set"])?;

    // Redirected to another host: the login is not sent there.
    let elsewhere = other.url("").replace("127.0.0.1", "localhost");
    server.redirect(Some(elsewhere.trim_end_matches('/')));
    let good = and(&[("--token-file", &token), ("--ca-file", &ca)]);
    serving::refused(&cluster, "moved", &good, &["redirect", "--repo"])?;
    ensure!(other.logins() == 0, "a login went to another host");
    server.redirect(None);

    serving::with(&cluster, "good", &good, |_| {
        serving::source(&cluster, "main", |s| s.applied_commit.as_deref() == Some(&head))?;
        server.set_token("another");
        serving::source(&cluster, "main", |s| s.error.is_some())?;
        serving::nowhere(&cluster, CANARY)?;
        server.set_token(CANARY);
        serving::source(&cluster, "main", |s| s.error.is_none()).map(drop)
    })?;
    serving::nowhere_in_logs(&cluster, CANARY)
}

#[test]
fn a_token_of_the_environment_goes_through_the_proxy_only_to_the_server() -> Result<()> {
    let mut cluster = Cluster::prepare(ClusterOptions::default())?;
    cluster.start_etcd()?;
    let server = GitHttp::serve_tls(&cluster.dir(""), cluster.slot().port(13), CANARY)?;
    let proxy = HttpProxy::serve(cluster.slot().port(14))?;
    let head = cluster.repo.push(&[Change::write("a.yaml", sleeper("a"))], "One")?;
    let sources = cluster.dir("sources.yaml");
    let entry = |name: &str, proxy: &str| {
        let (url, ca) = (server.url("repo.git"), server.ca_file().display().to_string());
        format!("- name: {name}\n  repo: {url}\n  poll: 500ms\n  tokenEnv: CANARY\n  caFile: {ca}\n{proxy}")
    };
    let run = |name: &str, list: String, environment: &[(&str, &str)]| -> Result<()> {
        fs::write(&sources, list)?;
        let command =
            serving::command(&cluster, name, &flags(&[("--sources", &sources.display().to_string())]));
        let mut daemon =
            Daemon::new(format!("serve-{name}"), &cluster.dir(""), command).env("CANARY", CANARY);
        for (variable, value) in environment {
            daemon = daemon.env(variable, value);
        }
        daemon.start()?;
        let seen = serving::source(&cluster, name, |s| s.observed_commit.as_deref() == Some(&head));
        let outcome = seen.map(drop).and_then(|()| serving::nowhere(&cluster, CANARY));
        if outcome.is_err() {
            eprintln!("{}", daemon.log_tail());
        }
        daemon.end(Signal::SIGTERM, secs(30))?;
        outcome.context(name.to_owned())
    };
    run("named", entry("named", &format!("  proxy: {}\n", proxy.url())), &[])?;
    let named = proxy.tunnels();
    ensure!(named > 0, "the proxy of the source was not used");
    run("environment", entry("environment", ""), &[("https_proxy", &proxy.url())])?;
    let through = proxy.tunnels();
    ensure!(through > named, "the proxy of the environment was not used");
    run("excepted", entry("excepted", ""), &[("https_proxy", &proxy.url()), ("no_proxy", "127.0.0.0/8")])?;
    run("direct", entry("direct", "  proxy: none\n"), &[("https_proxy", &proxy.url())])?;
    ensure!(proxy.tunnels() == through, "an exception went through the proxy");
    ensure!(
        !proxy.seen().to_lowercase().contains("\nauthorization:"),
        "the proxy saw a login: {}",
        proxy.seen()
    );
    Ok(())
}
