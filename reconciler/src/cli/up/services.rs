//! `minik8s up --systemd`: etcd, the reconciler and the agent as services of systemd, which start again after a reboot.
//!
//! Writes the units of deploy/systemd to /etc/systemd/system and the settings of `up` to /etc/minik8s, and starts them.
//! `down` stops the services and removes both. There is one set of services on a machine, for the default state directory.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, anyhow, bail, ensure};
use tokio::process::Command;
use tokio::time::timeout;

use super::certificates;
use super::children::{self, Program};
use super::detach::{self, Outcome, print_line};
use super::record::UpRecord;
use super::state::StateDir;
use super::supervise::OPERATOR_IDENTITY;
use crate::config::DEFAULT_STATE_DIR;
use crate::trust::EtcdMembership;

/// Directory that exists where systemd is the init process (sd_booted(3)).
const BOOTED: &str = "/run/systemd/system";
const UNITS_DIR: &str = "/etc/systemd/system";
const SETTINGS_DIR: &str = "/etc/minik8s";
/// Unit of the agent.
pub(in crate::cli) const AGENT_UNIT: &str = "minik8s-agent.service";
/// Variable with the flags of the agent that the user gave.
const AGENT_ARGS: &str = "MINIK8S_AGENT_ARGS";
/// Line of etcd's unit that keeps other machines out.
const ONLY_LOCALHOST: &str = "IPAddressAllow=localhost";
/// User of etcd and the reconciler, for systemd-sysusers. Members of its group may use the API's socket.
const USER: &str = include_str!("../../../../deploy/systemd/minik8s-sysusers.conf");

/// A service: its unit as in deploy/systemd, and what in it is replaced by the program's path on this machine.
struct Service {
    program: &'static str,
    unit: &'static str,
    text: &'static str,
    placeholder: &'static str,
}

static SERVICES: [Service; 3] = [
    Service {
        program: "etcd",
        unit: "minik8s-etcd.service",
        text: include_str!("../../../../deploy/systemd/minik8s-etcd.service"),
        placeholder: "ExecStart=/usr/bin/etcd",
    },
    Service {
        program: "reconciler",
        unit: "minik8s.service",
        text: include_str!("../../../../deploy/systemd/minik8s.service"),
        placeholder: "ExecStart=/usr/bin/minik8s",
    },
    Service {
        program: "agent",
        unit: AGENT_UNIT,
        text: include_str!("../../../../deploy/systemd/minik8s-agent.service"),
        placeholder: "ExecStart=/usr/bin/minik8s-agent",
    },
];

impl Service {
    fn unit_file(&self) -> std::path::PathBuf {
        Path::new(UNITS_DIR).join(self.unit)
    }

    fn settings_file(&self) -> std::path::PathBuf {
        Path::new(SETTINGS_DIR).join(format!("{}.env", self.program))
    }
}

/// True if services run, or would run, on this state directory.
pub(super) fn are_installed(state_dir: &Path) -> bool {
    state_dir == Path::new(DEFAULT_STATE_DIR) && SERVICES.iter().any(|service| service.unit_file().exists())
}

/// A line for users whose node would not come back after a reboot.
pub(super) fn suggestion(state: &StateDir) -> Option<&'static str> {
    let applies = Path::new(BOOTED).is_dir() && state.root() == Path::new(DEFAULT_STATE_DIR);
    applies.then_some("systemd runs here: 'minik8s up --systemd' makes the node come back after a reboot")
}

/// Checks that this machine can do what was chosen: services, or children of this process.
pub(super) fn check_choice(state: &StateDir, systemd: bool) -> Result<()> {
    if !systemd {
        ensure!(
            !are_installed(state.root()),
            "the services of an earlier 'minik8s up --systemd' run on {}; add --systemd, or remove them with 'minik8s \
             down --keep-pods' first; the pods keep running",
            state.root().display()
        );
        return Ok(());
    }
    ensure!(
        Path::new(BOOTED).is_dir(),
        "cannot start services: systemd does not run this machine; leave --systemd out"
    );
    ensure!(
        state.root() == Path::new(DEFAULT_STATE_DIR),
        "cannot start services on {}: they keep their state in {DEFAULT_STATE_DIR}; leave --state-dir or --systemd out",
        state.root().display()
    );
    Ok(())
}

/// Installs and starts the services, or restarts them with new settings, and shows the progress of the repository.
pub(super) async fn start(state: &StateDir, record: &UpRecord) -> Result<Outcome> {
    let programs = programs(state, record)?;
    let had_etcd = children::has_etcd_data(state);
    let installed = are_installed(state.root());
    if !installed {
        state.end_leftovers().await?;
        children::check_ports(record)?;
    }
    for program in &programs {
        check_path(program)?;
    }
    run("systemd-sysusers", &["--inline", USER.trim()]).await?;
    certificates::sign(record)?;
    // At once: services that run already read what root has signed.
    give_to_user(state).await?;
    let joined = children::prepare_etcd(state, record).await?;
    // Both again: a member that has joined starts with the others, and has written that.
    let programs = self::programs(state, record)?;
    give_to_user(state).await?;
    state.save(record)?;
    let (wanted, unwanted): (Vec<_>, Vec<_>) =
        SERVICES.iter().partition(|service| programs.iter().any(|program| program.name == service.program));
    // The private etcd, if another one is used from now on.
    remove_services(&unwanted).await?;
    for (service, program) in wanted.iter().zip(&programs) {
        let unit = unit_text(service, program, record)?;
        write(&service.settings_file(), 0o600, &settings_text(program, variables())?)?;
        write(&service.unit_file(), 0o644, &unit)?;
    }
    run("systemctl", &["daemon-reload"]).await?;
    for service in &wanted {
        run("systemctl", &["enable", service.unit]).await?;
        // Returns once the daemon says that it is ready.
        let restarted = run("systemctl", &["restart", service.unit]).await;
        let restarted = restarted.map_err(|error| anyhow!("{error:#}; see 'journalctl -u {}'", service.unit));
        let started = match restarted {
            Ok(()) if service.program == "etcd" && record.advertise.is_some() => {
                introduce_etcd(state, record, joined.as_ref(), had_etcd).await
            }
            restarted => restarted,
        };
        match started {
            Ok(()) => print_line(&format!("{:11} ready, service {}", service.program, service.unit)),
            Err(error) if service.program == "etcd" && had_etcd => {
                eprintln!("minik8s: {error:#}; {}", children::WITHOUT_ETCD);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(detach::until_healthy(record, state, "'journalctl -u minik8s -u minik8s-agent'").await)
}

/// Gives the reconciler's folder to the user of the services; the agent's stays root's. As systemd does it for the
/// directory of a service: whole, and no link is followed.
async fn give_to_user(state: &StateDir) -> Result<()> {
    let own = state.root().join("reconciler");
    run("chown", &["-Rh", "minik8s:minik8s", &own.display().to_string()]).await
}

/// Waits for this machine's member of etcd, and tells the others its address.
async fn introduce_etcd(
    state: &StateDir,
    record: &UpRecord,
    joined: Option<&EtcdMembership>,
    had_etcd: bool,
) -> Result<()> {
    let within = children::etcd_max(joined, had_etcd);
    let waited = timeout(within, children::wait_for_etcd(state, record, joined)).await;
    waited.map_err(|_| anyhow!("etcd did not answer within {} s of its start", within.as_secs()))?;
    children::publish_etcd(state, record).await
}

/// The programs in the order of [`SERVICES`], without an etcd where the user has one.
fn programs(state: &StateDir, record: &UpRecord) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    if record.etcd.is_none() {
        programs.push(children::etcd(state, record)?);
    }
    programs.extend([children::reconciler(state, record)?, children::agent(state, record)?]);
    Ok(programs)
}

/// Checks that the services' user may run the program, and that a unit can name it.
fn check_path(program: &Program) -> Result<()> {
    let path = fs::canonicalize(&program.path).unwrap_or_else(|_| program.path.clone());
    let is_open = |path: &Path, mode: u32| {
        fs::metadata(path).is_ok_and(|there| there.permissions().mode() & mode == mode)
    };
    // The agent runs as root.
    let others_run_it = program.name == "agent"
        || is_open(&path, 0o005) && path.ancestors().skip(1).all(|dir| is_open(dir, 0o001));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if others_run_it && program.path.to_str().is_some_and(|path| path.chars().all(is_plain)) {
        return Ok(());
    }
    bail!(
        "cannot run {} as a service: its path is closed to other users, or has special characters; install it where all \
         may run it, with 'install -m 755 minik8s minik8s-agent /usr/local/bin', and run that one",
        program.path.display()
    )
}

/// The agent as the service of a machine.
pub(in crate::cli) struct AgentService {
    pub(in crate::cli) unit_text: String,
    pub(in crate::cli) settings: String,
}

/// The agent at this path as a service with these variables, and flags given by the user.
///
/// # Errors
/// The file of settings cannot hold one of them.
pub(in crate::cli) fn agent_service(
    path: &Path,
    variables: BTreeMap<String, String>,
    flags: &[String],
) -> Result<AgentService> {
    let [.., service] = &SERVICES;
    let settings = environment_file("minik8s node add", variables, Some(flags))?;
    Ok(AgentService { unit_text: with_path(service, path)?, settings })
}

fn with_path(service: &Service, path: &Path) -> Result<String> {
    let (before, after) =
        service.text.split_once(service.placeholder).context("the unit starts no program")?;
    Ok(format!("{before}ExecStart={}{after}", path.display()))
}

/// The unit with the path of the program on this machine. That of etcd is open to other machines if they are to reach it.
fn unit_text(service: &Service, program: &Program, record: &UpRecord) -> Result<String> {
    let text = with_path(service, &program.path)?;
    Ok(match record.advertise {
        Some(_) => text.replace(ONLY_LOCALHOST, "IPAddressAllow=any"),
        None => text,
    })
}

/// Variables of this process.
fn variables() -> impl Iterator<Item = (String, String)> {
    env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Settings of a program as an `EnvironmentFile`: those of this process that a child would inherit, and its own.
fn settings_text(program: &Program, inherited: impl Iterator<Item = (String, String)>) -> Result<String> {
    let own = program.variables();
    // The variable that --token-env names.
    let token = own.get("MINIK8S_TOKEN_ENV").cloned().unwrap_or_default();
    let is_inherited = |name: &str| {
        let upper = name.to_ascii_uppercase();
        let is_setting = upper.starts_with("MINIK8S_") && name != OPERATOR_IDENTITY;
        is_setting || upper.ends_with("_PROXY") || upper == "RUST_LOG" || name == token
    };
    let mut variables: BTreeMap<String, String> = inherited.filter(|(name, _)| is_inherited(name)).collect();
    variables.extend(own);
    let flags = (program.name == "agent").then_some(&program.more_flags[..]);
    environment_file("minik8s up --systemd", variables, flags)
}

/// Text of an `EnvironmentFile`, which a shell reads in the same way. `writer` is the command that writes it.
fn environment_file(
    writer: &str,
    mut variables: BTreeMap<String, String>,
    agent_flags: Option<&[String]>,
) -> Result<String> {
    if let Some(flags) = agent_flags {
        let splits = |c: char| c.is_whitespace() || "\"'\\".contains(c);
        if let Some(flag) = flags.iter().find(|flag| flag.contains(splits)) {
            bail!("cannot pass --agent-arg {flag} to a service: it contains a space, a quote or a backslash");
        }
        variables.insert(AGENT_ARGS.to_owned(), flags.join(" "));
    }
    let mut text = format!("# Written by '{writer}'; its next run replaces it.\n");
    for (name, value) in variables {
        ensure!(!value.contains(['\n', '\r']), "the value of {name} has more than one line");
        let escaped = value.chars().flat_map(|c| "\"\\`$".contains(c).then_some('\\').into_iter().chain([c]));
        text += &format!("{name}=\"{}\"\n", escaped.collect::<String>());
    }
    Ok(text)
}

/// Stops the services and removes their units and settings. The user stays, as files elsewhere may be its own.
pub(super) async fn remove() -> Result<()> {
    // The agent first: without etcd and a reconciler it would warn.
    remove_services(&SERVICES.iter().rev().collect::<Vec<_>>()).await?;
    // Fails, as intended, if the directory holds anything else.
    let _ = fs::remove_dir(SETTINGS_DIR);
    Ok(())
}

async fn remove_services(services: &[&Service]) -> Result<()> {
    let installed: Vec<_> = services.iter().filter(|service| service.unit_file().exists()).collect();
    for service in &installed {
        run("systemctl", &["disable", "--now", service.unit]).await?;
        for file in [service.unit_file(), service.settings_file()] {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot remove {}", file.display()));
                }
                _ => {}
            }
        }
    }
    if installed.is_empty() { Ok(()) } else { run("systemctl", &["daemon-reload"]).await }
}

/// Writes a file as a whole; it never has another mode, because it may hold a password.
fn write(file: &Path, mode: u32, text: &str) -> Result<()> {
    let folder = file.parent().context("a file without a folder")?;
    let temporary = file.with_extension("new");
    let written = fs::create_dir_all(folder)
        .and_then(|()| match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        })
        .and_then(|()| OpenOptions::new().create_new(true).write(true).mode(mode).open(&temporary))
        .and_then(|mut there| {
            // Whatever the umask.
            there.set_permissions(Permissions::from_mode(mode))?;
            there.write_all(text.as_bytes())?;
            there.sync_all()
        })
        .and_then(|()| fs::rename(&temporary, file));
    written.with_context(|| format!("cannot write {}", file.display()))
}

/// Runs a program of systemd; the error has its words.
async fn run(program: &str, args: &[&str]) -> Result<()> {
    let ran = Command::new(program).args(args).stdin(Stdio::null()).output().await;
    let output = ran.with_context(|| format!("cannot run {program}"))?;
    if output.status.success() {
        return Ok(());
    }
    bail!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim())
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::args::{Cli, UpArgs};

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: UpArgs,
    }

    fn record(flags: &[&str]) -> UpRecord {
        let always = ["up", "--repo", "https://ada:s3$cret\"@git.example/a.git", "--node", "n1"];
        UpRecord::merge(&Line::parse_from(always.iter().chain(flags)).args, None).unwrap()
    }

    fn reconciler(flags: &[&str]) -> Program {
        children::reconciler(&StateDir::open(Path::new(DEFAULT_STATE_DIR)).unwrap(), &record(flags)).unwrap()
    }

    #[test]
    fn etcd_is_open_to_other_machines_only_if_this_one_is_advertised() {
        let program = reconciler(&[]);
        let allowed = |flags: &[&str]| {
            let text = unit_text(&SERVICES[0], &program, &record(flags)).unwrap();
            text.lines().find(|line| line.starts_with("IPAddressAllow=")).map(str::to_owned)
        };
        assert_eq!(allowed(&[]).as_deref(), Some(ONLY_LOCALHOST));
        assert_eq!(allowed(&["--advertise", "192.0.2.7"]).as_deref(), Some("IPAddressAllow=any"));
    }

    #[test]
    fn each_setting_of_the_reconciler_is_a_variable_that_serve_reads() {
        let all = [
            "--etcd=https://192.0.2.1:2379",
            "--etcd-user=both",
            "--etcd-password-file=/etc/p",
            "--etcd-ca=/etc/ca",
            "--etcd-cert=/etc/cert",
            "--etcd-key=/etc/key",
            "--advertise=192.0.2.7",
            "--authority-lifetime=365d",
            "--certificate-lifetime=1d",
            "--allow-host=a.lan",
            "--allow-host=b.lan",
            "--webhook-listen=127.0.0.1:7072",
            "--webhook-secret-file=/etc/s",
            "--page-url=https://page.example",
            "--commit-status=none",
            "--path=apps",
            "--token-file=/etc/t",
        ];
        let mut variables = reconciler(&all).variables();
        // Only with a private etcd.
        variables
            .extend(reconciler(&[]).variables().into_iter().filter(|(name, _)| name == "MINIK8S_OWN_ETCD"));
        assert!(variables.contains_key("MINIK8S_OWN_ETCD"));
        assert_eq!(variables["MINIK8S_ALLOW_HOST"], "a.lan,b.lan");
        assert_eq!(variables["MINIK8S_PATH"], "apps");
        let cli = Cli::command();
        let serve = cli.find_subcommand("serve").unwrap();
        let known: Vec<_> = serve.get_arguments().filter_map(|arg| arg.get_env()?.to_str()).collect();
        let unknown: Vec<_> = variables.keys().filter(|name| !known.contains(&name.as_str())).collect();
        assert_eq!(unknown, [""; 0]);
    }

    #[test]
    fn settings_are_quoted_and_hold_what_a_child_would_inherit() {
        let inherited = [
            ("MINIK8S_LOG_LEVEL", "debug"),
            ("MINIK8S_LISTEN", "192.0.2.9:1"),
            ("https_proxy", "http://proxy:3128"),
            ("FORGE_TOKEN", "t0ken"),
            ("HOME", "/root"),
            ("MINIK8S_AGE_IDENTITY", "/root/identity"),
        ];
        let inherited = inherited.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let text = settings_text(&reconciler(&["--token-env=FORGE_TOKEN"]), inherited.into_iter()).unwrap();
        for line in [
            r#"MINIK8S_REPO="https://ada:s3\$cret\"@git.example/a.git""#,
            r#"MINIK8S_LOG_LEVEL="debug""#,
            r#"MINIK8S_LISTEN="127.0.0.1:7070""#,
            r#"https_proxy="http://proxy:3128""#,
            r#"FORGE_TOKEN="t0ken""#,
        ] {
            assert!(text.lines().any(|there| there == line), "{line} is not in {text}");
        }
        assert!(!text.contains("HOME") && !text.contains("AGE_IDENTITY"), "{text}");
    }

    #[test]
    fn the_agent_of_another_machine_has_the_same_unit_with_its_own_settings() {
        let variables = BTreeMap::from([("MINIK8S_NODE".to_owned(), "web-2".to_owned())]);
        let of = |flag: &str| {
            agent_service(Path::new("/opt/minik8s-agent"), variables.clone(), &[flag.to_owned()])
        };
        let service = of("--node-dns").unwrap();
        assert!(service.unit_text.contains("\nExecStart=/opt/minik8s-agent run $MINIK8S_AGENT_ARGS\n"));
        let settings: Vec<&str> = service.settings.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(settings, [r#"MINIK8S_AGENT_ARGS="--node-dns""#, r#"MINIK8S_NODE="web-2""#]);
        assert!(of("--allow-host=a b").is_err());
    }
}
