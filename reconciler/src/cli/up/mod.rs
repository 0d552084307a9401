//! `minik8s up`: a private etcd, the reconciler and the agent on this machine, supervised.
//!
//! Reads its flags and the record of an earlier `up`, signs certificates, starts three children in order, shows the
//! progress of the repository, and restarts a child that dies. Ends the daemons, never the pods. With `--systemd` the
//! same three are services, and systemd does the rest.

mod certificates;
mod children;
mod detach;
mod enable;
mod etcd_users;
mod record;
mod services;
pub(crate) mod state;
mod supervise;

use std::fs;
use std::io::IsTerminal as _;
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use schema::control::spare_from_oom_killer;
use schema::names::is_in_clear;
use schema::store::StoreError;
use schema::store::etcd::{Access, LazyStore};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use super::output::print_errors;
use crate::args::{DownArgs, UpArgs};
use crate::trust::{self, EtcdMembership};
use crate::{config, crypt};
use certificates::Certificates;
use children::{agent, etcd, reconciler};
use detach::{Outcome, print_line};
use record::UpRecord;
use state::{StateDir, end_process};
use supervise::{Child, Children};

pub(super) use children::agent_program;
pub use enable::enable;
pub use etcd_users::etcd_users;
pub(super) use services::{AGENT_UNIT, AgentService, agent_service};

const ETCD_TIMEOUT: Duration = Duration::from_secs(5);
/// Starts of the agent that may fail while etcd, which `up` runs itself, is away for a moment.
const AGENT_TRIES: u32 = 3;

/// Runs `minik8s up` until Ctrl-C or SIGTERM.
pub async fn run(args: UpArgs) -> Result<ExitCode> {
    let fresh = !args.state_dir.exists();
    let outcome = Box::pin(start(&args)).await;
    // An `up` that still runs in the background keeps its state; one that never came up leaves nothing.
    if fresh && !matches!(outcome, Ok(Outcome::Running | Outcome::Ended | Outcome::Unhealthy)) {
        clean_up_failed_start(&args).await;
    }
    outcome.map(|outcome| ExitCode::from(u8::from(matches!(outcome, Outcome::Failed | Outcome::Unhealthy))))
}

async fn start(args: &UpArgs) -> Result<Outcome> {
    children::check_root()?;
    let state = StateDir::create(&args.state_dir)?;
    let earlier = state.load()?;
    let args = &with_joined_etcd(args, earlier.as_ref(), &state)?;
    let record = UpRecord::merge(args, earlier.as_ref())?;
    let left_behind = UpRecord::left_behind(args, earlier.as_ref())?;
    if let Err(error) = config::check_repo(&record.repo) {
        print_errors(&error.to_string());
        return Ok(Outcome::Failed);
    }
    if record.etcd.is_some() {
        trust::check_upgraded(state.root())?;
    }
    children::check_machine(&record)?;
    children::check_name(&record).await?;
    services::check_choice(&state, args.systemd)?;
    if let Some(pid) = state.running()
        && let Some(running) = &earlier
        && *running != record
    {
        bail!(
            "process {pid} on {} runs with other settings ({}), and nothing was changed; stop it with \
             'minik8s down --keep-pods' first; the pods keep running",
            state.root().display(),
            record.differences(running).join(", ")
        );
    }
    if let (Some(_), Some(url)) = (&args.etcd, &record.etcd) {
        // Checked before the address is recorded: a later `up` would wait for it.
        check_etcd(url, &state, &record).await?;
    }
    if args.detach {
        return detach::run(&state, &record).await;
    }
    if let Some(line) = left_behind {
        eprintln!("minik8s: {line}");
    }
    let lock = state.lock()?;
    if args.systemd {
        return services::start(&state, &record).await;
    }
    // Before the children, which inherit it: etcd does not set its own.
    spare_from_oom_killer();
    state.end_leftovers().await?;
    children::check_ports(&record)?;
    state::make_socket_folder(&record)?;
    let signed = certificates::sign(&record)?;
    state.save(&record)?;
    let outcome = supervise_all(&state, &record, &signed).await;
    drop(lock);
    outcome
}

/// Adds to the first `up` what follows from how this machine joined: the name of its node, the etcd of the cluster, or the
/// address of its own member. A later one has that in its record, or something else that the user chose since.
fn with_joined_etcd(args: &UpArgs, earlier: Option<&UpRecord>, state: &StateDir) -> Result<UpArgs> {
    let mut args = args.clone();
    if earlier.is_none() {
        args.node = args.node.or_else(|| trust::known_node(state.root()));
    }
    if earlier.is_none()
        && let Some(joined) = EtcdMembership::load(state.root())?
    {
        match joined.address {
            None => args.etcd = args.etcd.or_else(|| Some(joined.join.join(","))),
            Some(address) => args.advertise = args.advertise.or(Some(address)),
        }
    }
    Ok(args)
}

async fn check_etcd(url: &str, state: &StateDir, record: &UpRecord) -> Result<()> {
    let endpoints: Vec<String> = url.split(',').map(|one| one.trim().to_owned()).collect();
    if let Some(open) = endpoints.iter().find(|url| is_in_clear(url)) {
        bail!(
            "cannot use etcd at {open}: others could read and change everything on the way; give it certificates and an \
             https address"
        );
    }
    let is_tls = endpoints.iter().any(|url| url.starts_with("https://"));
    let tls = is_tls.then(|| certificates::for_etcd(state, record)).transpose()?;
    let login = record.etcd_login.clone();
    let access = Access::new(endpoints, login.etcd_user, login.etcd_password_file).with_tls(tls);
    match LazyStore::new(access).connect(ETCD_TIMEOUT).await {
        Ok(()) => Ok(()),
        Err(error @ StoreError::Denied { .. }) => {
            bail!("{error}; 'minik8s trust etcd-users' prints the commands that create the users there")
        }
        Err(error) => bail!(
            "{error}; start etcd there, or give --etcd its address; '--etcd private' runs a private one"
        ),
    }
}

/// Starts the children one after the other, then watches them until a signal comes.
async fn supervise_all(state: &StateDir, record: &UpRecord, signed: &Certificates) -> Result<Outcome> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut children = Children::default();
    // Separate tasks, because a stopped terminal must not keep the daemons from being restarted.
    let mut tasks = JoinSet::new();
    let started = tokio::select! {
        // Cancel-safe: what was started is in `children` and is ended below.
        started = start_children(state, record, signed, &mut children, &mut tasks) => started,
        _ = interrupt.recv() => Err(anyhow::anyhow!("interrupted before everything was up")),
        _ = terminate.recv() => Err(anyhow::anyhow!("stopped before everything was up")),
    };
    if let Err(error) = started {
        children.end_all().await;
        return Err(match EtcdMembership::load(state.root())?.is_some_and(|own| own.initial_cluster.is_some()) {
            true => error.context(
                "this machine's member of etcd has stopped, and still counts as one of the cluster: run 'minik8s up' again, \
                 or remove it with 'minik8s trust remove reconciler-NAME' on another machine",
            ),
            false => error,
        });
    }
    // Cancel-safe: a mark is written in one step, and a lost line does no harm.
    let hint = match std::io::stdout().is_terminal() {
        true => "; Ctrl-C stops the daemons but not the pods",
        false => "",
    };
    tasks.spawn(detach::show(record.server(), state.clone(), hint));
    tokio::select! {
        // Cancel-safe: the children stay owned by `children`.
        () = children.keep_alive() => {}
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    print_line("stopping the daemons; pods keep running");
    tasks.abort_all();
    children.end_all().await;
    Ok(Outcome::Ended)
}

async fn start_children(
    state: &StateDir,
    record: &UpRecord,
    signed: &Certificates,
    children: &mut Children,
    tasks: &mut JoinSet<()>,
) -> Result<()> {
    if record.etcd.is_none() {
        start_etcd(state, record, children, tasks).await?;
    }
    let child = Child::spawn(reconciler(state, record)?.command(), state)?;
    children.add(child).until_ready(children::wait_for_reconciler(record)).await?;
    print_line(&format!("reconciler  ready at {}; see {}", record.api_url(), record.command("status")));
    let child = children.add(Child::spawn(agent(state, record)?.command(), state)?);
    let answers = || children::wait_for_agent(record, &signed.node, signed.reconciler.clone());
    // A new agent needs etcd, which the reconciler restarts when it has its turn.
    let tries = if record.etcd.is_none() { AGENT_TRIES } else { 1 };
    child.until_ready_with(tries, answers).await?;
    print_line(&format!("agent       ready as node {}", record.node));
    if let Some(line) = services::suggestion(state) {
        print_line(line);
    }
    Ok(())
}

/// Starts this machine's member of etcd. The daemons do not wait for one that was there before: it may need others, which
/// do not run.
async fn start_etcd(
    state: &StateDir,
    record: &UpRecord,
    children: &mut Children,
    tasks: &mut JoinSet<()>,
) -> Result<()> {
    let had_data = children::has_etcd_data(state);
    let joined = Box::pin(children::prepare_etcd(state, record)).await?;
    let within = children::etcd_max(joined.as_ref(), had_data);
    let child = children.add(Child::spawn(etcd(state, record)?.command(), state)?);
    let ready = Box::pin(children::wait_for_etcd(state, record, joined.as_ref()));
    if child.is_ready_within(within, ready).await? {
        children::publish_etcd(state, record).await?;
        print_line(&format!("etcd        ready at {}", record.published_url(record.etcd_port)));
        return Ok(());
    }
    let late = child.late(within);
    if !had_data {
        return Err(late);
    }
    eprintln!("minik8s: {late}; {}", children::WITHOUT_ETCD);
    tasks.spawn(children::finish_etcd(state.clone(), record.clone(), joined));
    Ok(())
}

/// Cleans up after a failed first start: removes what the agent may have created, and the state directory.
async fn clean_up_failed_start(args: &UpArgs) {
    let dir = args.state_dir.as_path();
    if services::are_installed(dir)
        && let Err(error) = services::remove().await
    {
        eprintln!("minik8s: {error:#}");
    }
    let record = StateDir::open(dir).and_then(|state| state.load()).ok().flatten();
    if let Some(record) = &record {
        state::remove_socket(record);
    }
    if let Some(record) = record
        && let Err(error) = reset_node(&record, Stdio::null()).await
    {
        eprintln!("minik8s: some things were left behind: {error:#}; remove them with 'minik8s down'");
        return;
    }
    remove_state(dir);
}

/// Removes the known entries of the state directory, and the directory itself if it is empty then.
pub(crate) fn remove_state(dir: &Path) {
    for name in state::KNOWN_DIRS {
        let _ = fs::remove_dir_all(dir.join(name));
    }
    let _ = fs::remove_file(dir.join(state::RECORD_FILE));
    // Fails, as intended, if the directory holds anything else.
    let _ = fs::remove_dir(dir);
}

/// Runs `minik8s-agent reset` with the settings that `up` recorded.
pub(crate) async fn reset_node(record: &UpRecord, output: Stdio) -> Result<()> {
    let status = Command::new(agent_program()?)
        .arg("reset")
        .arg("--state-dir")
        .arg(&record.state_dir)
        .args(["--instance", &record.instance, "--docker", &record.docker])
        .stdout(output)
        .status()
        .await
        .context("cannot run minik8s-agent reset")?;
    if !status.success() {
        bail!("minik8s-agent reset ended with {status}");
    }
    Ok(())
}

// `minik8s down`: ends the processes of `up` and removes everything it created on this machine.

/// Runs `minik8s down`. Running it again is harmless.
pub async fn down(args: DownArgs) -> Result<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        bail!("cannot stop daemons and remove containers on this machine: not root; run 'sudo minik8s down'");
    }
    let state = StateDir::open(&args.state_dir)?;
    if services::are_installed(state.root()) {
        println!("stopping and removing the services");
        services::remove().await?;
    }
    let Some(record) = state.load()? else {
        println!("nothing to remove: no 'minik8s up' was run on {}", state.root().display());
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(pid) = state.running() {
        println!("stopping process {pid}");
        end_process(pid, Signal::SIGTERM).await;
    }
    state.end_leftovers().await?;
    state::remove_socket(&record);
    if args.keep_pods {
        println!("the pods keep running; 'minik8s up' takes them over again");
        return Ok(ExitCode::SUCCESS);
    }
    reset_node(&record, Stdio::inherit()).await?;
    let recipient = crypt::recipient_of(&config::identity_file(state.root()));
    remove_state(state.root());
    if let Ok(recipient) = recipient {
        println!(
            "removed the reconciler's age identity of recipient {recipient}: remove it from the list with 'minik8s \
             secrets recipients remove'"
        );
    }
    println!("removed {}", state.root().display());
    if let Some(etcd) = &record.etcd {
        println!("the keys below /minik8s/ in {etcd} are kept: other nodes may use them");
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: UpArgs,
    }

    // Would fail with the etcd of the join at each start, and without the login that was given.
    #[test]
    fn a_machine_that_joined_begins_with_the_clusters_etcd_and_keeps_what_is_chosen_later() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let joined = EtcdMembership {
            name: "r2".to_owned(),
            address: None,
            join: vec!["https://10.0.0.5:7079".to_owned()],
            initial_cluster: None,
            rolled: 0,
        };
        joined.save(state.root()).unwrap();
        let up = |flags: &[&str], earlier: Option<&UpRecord>| {
            let always = ["up", "--repo", "https://git.example/a.git", "--node", "n1"];
            let args = Line::parse_from(always.iter().chain(flags)).args;
            UpRecord::merge(&with_joined_etcd(&args, earlier, &state).unwrap(), earlier).unwrap()
        };
        let first = up(&[], None);
        assert_eq!(first.etcd.as_deref(), Some("https://10.0.0.5:7079"));
        let login = ["--etcd-user", "both", "--etcd-password-file", "/p"];
        let chosen = up(&[&["--etcd", "https://10.0.0.6:2379"][..], &login].concat(), Some(&first));
        assert_eq!(up(&[], Some(&chosen)), chosen);
    }
}
