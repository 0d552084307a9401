//! Flags of `serve` that are taken, and wrong ones with their messages.

use clap::Parser;

use crate::git::Reference;
use crate::workflows::BYTES_PER_MINUTE;

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    serve: ServeArgs,
}

fn config(flags: &[&str]) -> Result<ServeConfig, String> {
    let flags = ["minik8s", "--repo", "/srv/cluster.git"].iter().chain(flags);
    let cli = Cli::try_parse_from(flags).map_err(|error| error.to_string())?;
    ServeConfig::try_from(cli.serve).map_err(|error| error.to_string())
}

#[test]
fn a_repository_is_enough() {
    let config = config(&["--name", "r1"]).unwrap();
    assert_eq!(config.sources, [SourceConfig::branch("main", "/srv/cluster.git", "main")]);
    assert_eq!(config.settings.sources, BTreeSet::from(["main".to_owned()]));
    assert_eq!(config.etcd.endpoints, ["https://127.0.0.1:7079"]);
    let key = config.etcd.tls.as_ref().map(|tls| tls.key.as_path());
    assert_eq!(key, Some(Path::new("/var/lib/minik8s/reconciler/pki/key.pem")));
    assert!(!config.owns_etcd && config.socket.is_none());
    assert_eq!(
        (config.certificate_lifetime, config.authority_days),
        (SignedDuration::from_hours(168), 3_650)
    );
    assert_eq!(config.listen.to_string(), "127.0.0.1:7070");
    assert_eq!(config.run_bytes_per_minute, BYTES_PER_MINUTE);
    assert_eq!(config.own_dir(), Path::new("/var/lib/minik8s/reconciler"));
    assert_eq!(config.settings.cluster_cidr.to_string(), "10.244.0.0/16");
}

#[test]
fn every_wrong_value_says_what_why_and_what_to_do_in_one_line() {
    let table: &[(&[&str], &str)] = &[
        (
            &["--etcd", "localhost:2379"],
            "--etcd localhost:2379: is not an http:// or https:// address; write it",
        ),
        (&["--advertise", "10.0.0.5:7070"], "--advertise 10.0.0.5:7070: is not an http(s) URL; for example"),
        (&["--page-url", "page.example"], "--page-url page.example: is not an http(s) URL; for example"),
        (
            &["--allow-host", "http://api.example"],
            "--allow-host http://api.example: is not the name of a host; write a name without",
        ),
        (
            &["--run-bytes-per-minute", "1Ki"],
            "--run-bytes-per-minute 1Ki: does not hold the largest input of a run; give 1Mi or more",
        ),
        (&["--etcd-quota", "1Mi"], "--etcd-quota 1Mi: is too small for a cluster; give 16Mi or more"),
        (&["--etcd", ","], "--etcd: names no endpoint; for example https"),
        (&["--etcd", "http://10.0.0.1:2379"], "--etcd http://10.0.0.1:2379: is another machine without"),
        (
            &["--advertise", "http://10.0.0.5:7070"],
            "--advertise http://10.0.0.5:7070: is not encrypted; for example https://",
        ),
        (&["--certificate-lifetime", "5m"], "--certificate-lifetime 300s: is out of bounds; give a time"),
        (&["--authority-lifetime", "12h"], "--authority-lifetime 43200s: is out of bounds; give a time"),
        (&["--cluster-cidr", "10.244.0.0/26"], "--cluster-cidr 10.244.0.0/26: has no room for a /24"),
        (&["--cluster-cidr", "10.244.1.0/16"], "has bits set after its prefix; write 10.244.0.0/16"),
        (&["--cluster-cidr", "0.0.0.0/0"], "is larger than any private range"),
        (&["--name", "a/b"], "--name a/b: is not a valid name; use 1 to 53"),
        (&["--name", "Web_1"], "--name Web_1: is not a valid name; use 1 to 53"),
        (&["--cluster-name", "a b"], "--cluster-name a b: is not a valid name; use 1 to 64"),
        (&["--cluster-name", ""], "--cluster-name: is not a valid name"),
        (&["--poll", "1ms"], "--poll 1ms: is out of bounds; give a time from"),
        (&["--source", "Main"], "source name `Main`"),
        (&["--path", "../x"], "path `../x`"),
    ];
    for (flags, wanted) in table {
        let error = config(flags).unwrap_err();
        assert!(error.contains(wanted), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn the_api_answers_to_the_names_that_are_allowed_and_the_advertised_one() {
    let flags = ["--advertise", "https://Api.example:7070/", "--allow-host", "a.lan", "--allow-host", "b"];
    let hosts = config(&flags).unwrap().hosts;
    assert!(["api.example:7070", "a.lan", "b:1"].iter().all(|host| hosts.has(host)), "{hosts:?}");
    assert!(!hosts.has("c.lan"));
}

#[test]
fn lifetimes_are_in_days_or_hours() {
    let config = config(&["--certificate-lifetime", "12h", "--authority-lifetime", "30d"]).unwrap();
    assert_eq!((config.certificate_lifetime, config.authority_days), (SignedDuration::from_hours(12), 30));
}

#[test]
fn links_begin_with_the_url_of_the_page() {
    assert_eq!(config(&[]).unwrap().page_url, None);
    let page = config(&["--page-url", "https://page.example/minik8s/"]).unwrap().page_url;
    assert_eq!(page.as_deref(), Some("https://page.example/minik8s"));
    let error = config(&["--page-url", "https://kim:s3cret@page.example"]).unwrap_err();
    assert!(error.contains("--page-url: has a login") && !error.contains("s3cret"), "{error}");
}

#[test]
fn a_status_token_that_cannot_be_read_is_found_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token").display().to_string();
    let flags = ["--commit-status", "github", "--commit-status-api", "https://api.github.com"];
    let file = ["--commit-status-repository", "kim/shop", "--commit-status-token-file", &token];
    let flags = [&flags[..], &file].concat();
    let error = config(&flags).unwrap_err();
    assert!(error.starts_with(&format!("--commit-status-token-file {token}: cannot be read: ")), "{error}");
    let list = dir.path().join("sources.yaml");
    let text =
        "- {name: apps, repo: 'https://github.com/kim/a', commitStatus: {forge: github, tokenFile: token}}\n";
    std::fs::write(&list, text).unwrap();
    let args = RepoArgs { sources: Some(list), ..RepoArgs::default() };
    let error = check_repo(&args).unwrap_err().to_string();
    assert!(error.contains("source `apps`: tokenFile ") && error.contains("cannot be read: "), "{error}");
    std::fs::write(&token, "canary").unwrap();
    assert!(config(&flags).is_ok() && check_repo(&args).is_ok());
}

#[test]
fn tag_and_commit_take_the_place_of_the_branch() {
    assert_eq!(config(&["--tag", "v1"]).unwrap().sources[0].reference.clone(), Reference::Tag("v1".into()));
    let commit = "a".repeat(40);
    let pinned = config(&["--commit", &commit]).unwrap().sources[0].reference.clone();
    assert_eq!(pinned, Reference::Commit(commit));
    assert!(config(&["--tag", "v1", "--commit", "abc"]).is_err());
}

#[test]
fn durations_have_units() {
    for (text, millis) in [
        ("500ms", 500),
        ("5s", 5000),
        ("1.5s", 1500),
        ("2m", 120_000),
        ("1h", 3_600_000),
        ("7d", 604_800_000),
    ] {
        assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
    }
    for text in ["", "5", "s", "-5s", "5 s", "5w", "1.2.3s", "99999999999999999999h"] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
}
