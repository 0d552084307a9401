//! `minik8s node add`: makes a machine a node over SSH, and brings it up to date when it is run again.
//!
//! Reads the facts of the machine and the identities of the cluster, plans what is missing, lets a shell of the machine do
//! it step by step, and waits until the node is Ready.

mod plan;
mod remote;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow, bail};
use nix::sys::utsname::uname;
use openssl::sha::sha256;
use schema::trust::{Identity, Role};
use tokio::time::{Instant, sleep};

use super::token;
use super::user::IdentityRow;
use crate::args::{NodeAddArgs, NodeArgs, NodeCommand};
use crate::cli::client::Client;
use crate::cli::output::{note, write_lines};
use crate::cli::up::{AGENT_UNIT, AgentService, agent_program, agent_service};
use crate::view::{List, NodeDetail};
use plan::{AGENT, Facts, Files, Starter, Step, Target};
use remote::Remote;

/// Address of the API of an agent that was added. It answers only reconcilers and nodes.
const LISTEN: &str = "0.0.0.0:7071";
/// Time until which the token can be used; it is used at once.
const TOKEN_TTL: Duration = Duration::from_secs(600);
/// Longest time from the start of the agent until the node is Ready.
const READY_MAX: Duration = Duration::from_secs(90);
/// Interval between looks at the node and its agent.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

pub(in crate::cli) async fn run(args: &NodeArgs) -> Result<ExitCode> {
    let NodeCommand::Add(args) = &args.command;
    add(args).await.with_context(|| format!("cannot add {}", args.destination))?;
    Ok(ExitCode::SUCCESS)
}

async fn add(args: &NodeAddArgs) -> Result<()> {
    check_flags(&args.agent_arg)?;
    let client = Client::new(args.server.given())?;
    let program = agent_program()?;
    let agent = fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
    let own = uname().context("cannot find the architecture of this machine")?;
    let files = Files::new(&args.state_dir, AGENT_UNIT)?;
    let List { items } = client.get::<List<IdentityRow>>(&["identities"], &[]).await?;

    let remote = Remote::log_in(&args.destination, &args.ssh_option).await?;
    let found = facts(&remote, &files).await?;
    let identity = identity(args.name.as_deref(), &found)?;
    let service = service(&identity, &files, &args.agent_arg)?;
    let digest = hex::encode(sha256(&agent));
    let wanted = Target {
        identity: &identity,
        key: items.iter().find(|item| item.identity == identity).map(|item| item.key.as_str()),
        machine: &own.machine().to_string_lossy(),
        agent: &digest,
        unit: &hex::encode(sha256(service.unit_text.as_bytes())),
        settings: &hex::encode(sha256(service.settings.as_bytes())),
    };
    let steps = plan::plan(&found, &wanted)?;
    if steps.is_empty() {
        write_lines(&format!("{}: nothing to change\n", args.destination))?;
    }
    let starter = found.starter();
    let addition = Addition { client, remote, files, identity, service, starter };
    for step in steps.into_iter().filter(|step| *step != Step::Check || !args.skip_doctor) {
        let line = match step {
            Step::Copy => addition.copy(&agent, &digest).await?,
            Step::Check => addition.check().await?,
            Step::Join => addition.join().await?,
            Step::Configure => addition.configure().await?,
            Step::Start => addition.start().await?,
        };
        write_lines(&format!("{}: {line}\n", args.destination))?;
    }
    addition.wait_until_ready().await?;
    write_lines(&format!("node {} is Ready\n", addition.identity.name()))?;
    Ok(())
}

/// Refuses flags of the agent that are flags of this command.
fn check_flags(flags: &[String]) -> Result<()> {
    for flag in flags {
        match flag.split('=').next() {
            Some("--node") => bail!("--agent-arg {flag}: name the node with --name"),
            Some("--state-dir") => bail!("--agent-arg {flag}: name the directory with --state-dir"),
            _ => {}
        }
    }
    Ok(())
}

async fn facts(remote: &Remote, files: &Files) -> Result<Facts> {
    Facts::parse(&remote.run(&files.probe(), b"").await?.ok()?)
}

/// The node by its name as given, else that under which the machine has joined, else that of its host.
fn identity(name: Option<&str>, found: &Facts) -> Result<Identity> {
    match (name, found.identity()) {
        (Some(name), _) => Ok(Identity::new(Role::Node, name)?),
        (None, Some(joined)) => Ok(joined),
        (None, None) => {
            Identity::new(Role::Node, &found.host).context("its host name is none for a node; use --name")
        }
    }
}

/// The agent as the service of a node. Addresses of etcd and of reconcilers come with the join.
fn service(identity: &Identity, files: &Files, flags: &[String]) -> Result<AgentService> {
    let variables = [
        ("MINIK8S_AGENT_LISTEN", LISTEN),
        ("MINIK8S_NODE", identity.name()),
        ("MINIK8S_STATE_DIR", files.state_dir()),
    ];
    let variables: BTreeMap<String, String> =
        variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    agent_service(Path::new(AGENT), variables, flags)
}

/// A machine that becomes a node, step by step. Each step returns a line for people.
struct Addition {
    client: Client,
    remote: Remote,
    files: Files,
    identity: Identity,
    service: AgentService,
    starter: Starter,
}

impl Addition {
    async fn copy(&self, agent: &[u8], digest: &str) -> Result<String> {
        let copied = self.remote.run(&plan::copy(digest), agent).await?;
        copied.ok().with_context(|| format!("cannot copy the agent to {AGENT}"))?;
        Ok(format!("copied the agent to {AGENT}"))
    }

    async fn check(&self) -> Result<String> {
        let checked = self.remote.run(&plan::doctor(), self.service.settings.as_bytes()).await?;
        let failures: Vec<&str> = checked.stdout.lines().filter(|line| line.starts_with("FAIL")).collect();
        if !failures.is_empty() {
            note(&failures.join("\n"));
            bail!("an agent cannot run there; repair what is said above, or use --skip-doctor");
        }
        checked.ok().context("cannot check it")?;
        Ok("an agent can run there".to_owned())
    }

    async fn join(&self) -> Result<String> {
        let token = token::create(&self.client, &self.identity, TOKEN_TTL).await?;
        let input = plan::join_input(&token.token, &self.service.settings);
        let joined = self.remote.run(&plan::join(&token.reconcilers), input.as_bytes()).await?;
        Ok(joined.ok()?.trim().to_owned())
    }

    async fn configure(&self) -> Result<String> {
        let (settings, unit) = (&self.service.settings, &self.service.unit_text);
        let written = self.remote.run(&self.files.write_settings(self.starter), settings.as_bytes()).await?;
        written.ok().context("cannot write the settings of the agent")?;
        if self.starter == Starter::Systemd {
            let written = self.remote.run(&self.files.write_unit(), unit.as_bytes()).await?;
            written.ok().with_context(|| format!("cannot write {AGENT_UNIT}"))?;
        }
        Ok("wrote the settings of the agent".to_owned())
    }

    async fn start(&self) -> Result<String> {
        let started = self.remote.run(&self.files.start(self.starter), b"").await?;
        if let Err(error) = started.ok() {
            return Err(self.with_log(error).await);
        }
        let log = self.files.log(self.starter);
        Ok(match self.starter {
            Starter::Systemd => format!("started the agent as service {AGENT_UNIT}; see {log}"),
            Starter::Background => format!(
                "started the agent in the background; its log is {log}. After a reboot of that machine, run this again"
            ),
        })
    }

    /// Prints the end of the agent's log for an error.
    async fn with_log(&self, error: Error) -> Error {
        if let Ok(end) = self.remote.run(&self.files.log_end(self.starter), b"").await {
            note(end.stdout.trim_end());
        }
        error.context(format!("the agent does not run; the end of {} is above", self.files.log(self.starter)))
    }

    async fn wait_until_ready(&self) -> Result<()> {
        let deadline = Instant::now() + READY_MAX;
        loop {
            let missing = self.missing().await?;
            // Asked afterwards: a node is Ready for a while after its agent ended.
            if !facts(&self.remote, &self.files).await?.is_running {
                return Err(self.with_log(anyhow!("it ended")).await);
            }
            match missing {
                None => return Ok(()),
                Some(why) if Instant::now() >= deadline => {
                    let (name, log) = (self.identity.name(), self.files.log(self.starter));
                    bail!(
                        "node {name} is not Ready after {} s: {why}; see its log, {log}",
                        READY_MAX.as_secs()
                    );
                }
                Some(_) => sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Returns why the node is not Ready; `None` if it is.
    async fn missing(&self) -> Result<Option<String>> {
        match self.client.get::<NodeDetail>(&["nodes", self.identity.name()], &[]).await {
            Ok(node) if node.row.is_ready && node.row.why.is_empty() => Ok(None),
            Ok(node) => Ok(Some(node.row.why)),
            Err(error) if error.is_not_found() => Ok(Some("it has not registered yet".to_owned())),
            Err(error) if error.is_transient() => Ok(Some(error.to_string())),
            Err(error) => Err(error.into()),
        }
    }
}
