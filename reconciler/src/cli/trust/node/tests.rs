//! Plans of machines in every state, and their commands in a shell of this machine.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use jiff::{SignedDuration, Timestamp};
use schema::trust::{Authority, Certificate, JoinToken, KeyPair, LeafRequest};

use super::plan::{
    AGENT, BEGIN, DIGEST, Facts, Files, Starter, Step, Target, join, join_input, plan, quoted,
};

const UNIT: &str = "minik8s-agent.service";

fn certificate(identity: &str) -> Certificate {
    let (now, day) = (Timestamp::now(), SignedDuration::from_hours(24));
    let key = KeyPair::generate().unwrap().public_key().unwrap();
    let leaf = LeafRequest { identity: &identity.parse().unwrap(), key: &key, addresses: &[], lifetime: day };
    Authority::create(day, now).unwrap().sign(&leaf, now).unwrap()
}

/// Output of a machine with these lines, and the certificate of this identity.
fn output(lines: &[&str], joined: Option<&Certificate>) -> String {
    let pem = joined.map(|certificate| certificate.to_pem().unwrap()).unwrap_or_default();
    format!("Welcome to web-2!\n{BEGIN}\n{}\ncertificate\n{pem}", lines.join("\n"))
}

fn steps(lines: &[&str], joined: Option<&Certificate>, key: Option<&str>) -> Result<Vec<Step>, String> {
    let found = Facts::parse(&output(lines, joined)).unwrap();
    let wanted = Target {
        identity: &"node-web-2".parse().unwrap(),
        key,
        machine: "x86_64",
        agent: "0a",
        unit: "0b",
        settings: "0c",
    };
    plan(&found, &wanted).map_err(|error| error.to_string())
}

static FRESH: [&str; 5] = ["user 0", "machine x86_64", "host web-2", "agent ", "settings "];
static DONE: [&str; 8] = [
    "user 0",
    "machine x86_64",
    "host web-2",
    "agent 0a",
    "systemd yes",
    "unit 0b",
    "settings 0c",
    "running yes",
];

#[test]
fn a_new_machine_takes_every_step_and_one_that_is_a_node_takes_none() {
    let all = vec![Step::Copy, Step::Check, Step::Join, Step::Configure, Step::Start];
    assert_eq!(steps(&FRESH, None, None), Ok(all));
    let own = certificate("node-web-2");
    let key = own.public_key().unwrap().fingerprint().unwrap();
    assert_eq!(steps(&DONE, Some(&own), Some(&key)), Ok(vec![]));
    // A new agent, other settings, another unit, and an agent that ended.
    let without = |what: &str, instead: &str| {
        let lines: Vec<&str> =
            DONE.iter().map(|line| if line.starts_with(what) { instead } else { *line }).collect();
        steps(&lines, Some(&own), Some(&key))
    };
    assert_eq!(without("agent", "agent 00"), Ok(vec![Step::Copy, Step::Start]));
    assert_eq!(without("settings", "settings "), Ok(vec![Step::Configure, Step::Start]));
    assert_eq!(without("unit", "unit 00"), Ok(vec![Step::Configure, Step::Start]));
    assert_eq!(without("running", ""), Ok(vec![Step::Check, Step::Start]));
}

#[test]
fn a_machine_that_cannot_be_this_node_keeps_what_it_has() {
    let refused = |what: &str, instead: &str, joined: &str| {
        let lines: Vec<&str> =
            DONE.iter().map(|line| if line.starts_with(what) { instead } else { *line }).collect();
        steps(&lines, Some(&certificate(joined)), Some("sha256:0a")).unwrap_err()
    };
    assert!(refused("user", "user 1000", "node-web-2").contains("root@HOST"));
    assert!(refused("machine", "machine aarch64", "node-web-2").contains("is aarch64"));
    assert!(refused("-", "", "node-web-3").contains("joined as node-web-3"));
    assert!(refused("-", "", "node-web-2").contains("not as node-web-2 of this cluster"));
    // No agent runs: the join itself decides.
    let lines = &DONE[..DONE.len() - 1];
    let steps = steps(lines, Some(&certificate("node-web-2")), None).unwrap();
    assert_eq!(steps, [Step::Check, Step::Join, Step::Start]);
}

#[test]
fn facts_are_read_after_the_greeting_and_only_whole() {
    let found = Facts::parse(&output(&DONE, Some(&certificate("node-web-2")))).unwrap();
    assert_eq!((found.host.as_str(), found.starter()), ("web-2", Starter::Systemd));
    assert_eq!(found.identity().unwrap().to_string(), "node-web-2");
    let found = Facts::parse(&output(&FRESH, None)).unwrap();
    assert_eq!((found.identity(), found.starter()), (None, Starter::Background));
    for cut in ["", "Welcome to web-2!\n", "==> minik8s begins\nuser 0\n"] {
        assert!(Facts::parse(cut).is_err(), "{cut:?}");
    }
}

fn files(state_dir: &str) -> Files {
    Files::new(state_dir, UNIT).unwrap()
}

#[test]
fn a_token_is_on_no_command_line() {
    let token = JoinToken::create(&"ab".repeat(32)).unwrap().to_string();
    let command = join(&["https://10.0.0.5:7070".to_owned(), "https://r2.lan:7070".to_owned()]);
    assert!(command.contains("join 'https://10.0.0.5:7070,https://r2.lan:7070' --no-run"), "{command}");
    assert!(!command.contains(&token) && !command.contains("--token"), "{command}");
    let input = join_input(&token, "MINIK8S_NODE=\"web-2\"\n");
    assert_eq!(input.lines().next(), Some(token.as_str()));
}

/// Runs commands in a shell of this machine; returns the exit code and the output.
fn sh(script: &str, input: &str) -> (i32, String) {
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_shell_takes_settings_and_paths_as_they_are() {
    for word in ["", "a b", "it's", "'; touch /tmp/x; '", "$(id) `id` \\ \" *"] {
        assert_eq!(sh(&format!("printf %s {}", quoted(word)), ""), (0, word.to_owned()));
    }
    // The token is the first line, the rest are variables of the agent.
    let script = join(&[]).replace(&format!("exec {AGENT}"), "env; echo");
    let settings = "# Written.\nMINIK8S_NODE=\"it's \\\"web\\\" \\$1\"\nMINIK8S_AGENT_ARGS=\"--a=* --b\"\n";
    let (code, said) = sh(&script, &join_input("0a.s.0b", settings));
    assert_eq!(code, 0);
    for line in ["MINIK8S_JOIN_TOKEN=0a.s.0b", "MINIK8S_NODE=it's \"web\" $1", "join  --no-run --a=* --b"] {
        assert!(said.lines().any(|there| there == line), "{line} is not in {said}");
    }
}

#[test]
fn files_are_written_whole_and_agents_that_never_ran_do_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let state_dir = dir.path().join("it's state");
    let files = files(state_dir.to_str().unwrap());
    let found = Facts::parse(&sh(&files.probe(), "").1).unwrap();
    assert_eq!((found.settings.as_str(), found.is_running, found.identity()), ("", false, None));

    assert_eq!(sh(&files.write_settings(Starter::Background), "A=\"1\"\n").0, 0);
    let written = state_dir.join("run/agent.env");
    assert_eq!(fs::read_to_string(&written).unwrap(), "A=\"1\"\n");
    assert_eq!(fs::metadata(&written).unwrap().permissions().mode() & 0o777, 0o600);
    let (_, digest) = sh(&format!("{DIGEST}; digest \"$(cat)\""), written.to_str().unwrap());
    if !found.has_systemd {
        assert_eq!(Facts::parse(&sh(&files.probe(), "").1).unwrap().settings, digest.trim());
    }
    let pem = certificate("node-web-2").to_pem().unwrap();
    fs::create_dir_all(state_dir.join("agent/pki")).unwrap();
    fs::write(state_dir.join("agent/pki/certificate.pem"), pem).unwrap();
    let found = Facts::parse(&sh(&files.probe(), "").1).unwrap();
    assert_eq!(found.identity().unwrap().to_string(), "node-web-2");
    for wrong in ["state", "/", "", "/a\nb"] {
        assert!(Files::new(wrong, UNIT).is_err(), "{wrong:?}");
    }
}

#[test]
fn the_node_has_the_name_as_given_else_its_own_else_that_of_the_host() {
    let named = |name: Option<&str>, lines: &[&str], joined: Option<&Certificate>| {
        let found = Facts::parse(&output(lines, joined)).unwrap();
        super::identity(name, &found).map(|identity| identity.to_string()).map_err(|e| format!("{e:#}"))
    };
    let own = certificate("node-web-7");
    assert_eq!(named(Some("db"), &DONE, Some(&own)).unwrap(), "node-db");
    assert_eq!(named(None, &DONE, Some(&own)).unwrap(), "node-web-7");
    assert_eq!(named(None, &FRESH, None).unwrap(), "node-web-2");
    let error = named(None, &["user 0", "host Web_2"], None).unwrap_err();
    assert!(error.contains("--name") && error.contains("Web_2"), "{error}");
    for wrong in ["--node=a", "--state-dir"] {
        assert!(super::check_flags(&[wrong.to_owned()]).is_err(), "{wrong}");
    }
    assert!(super::check_flags(&["--node-ip=10.0.0.7".to_owned()]).is_ok());
}
