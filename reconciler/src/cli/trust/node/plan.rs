//! Plan of `minik8s node add`: facts of the machine, the steps that are missing there, and the commands of each step for
//! its shell. Tokens and settings go to commands through standard input, never on a command line.

use anyhow::{Context as _, Result, bail, ensure};
use schema::trust::{Certificate, Identity};

/// Path of the agent on a machine that was added.
pub(super) const AGENT: &str = "/usr/local/bin/minik8s-agent";
/// Mark before the facts: the text before it comes from the shell's start files.
pub(super) const BEGIN: &str = "==> minik8s begins";
/// Function of the shell that prints a file's digest.
pub(super) const DIGEST: &str = "digest() { sha256sum \"$1\" 2>/dev/null | cut -d' ' -f1; }";
/// Commands that take settings from standard input, as variables for the agent.
const SETTINGS_FROM_STDIN: &str = "set -a; eval \"$(cat)\"; set +a; set -f";

/// A word that a shell takes as it is.
pub(super) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Part of a machine that starts its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Starter {
    /// systemd, with the unit of the agent.
    Systemd,
    /// Nobody: it runs in the background until the machine reboots.
    Background,
}

/// Files of the agent on a machine.
pub(super) struct Files {
    state_dir: String,
    /// Name of the unit.
    unit: &'static str,
}

impl Files {
    pub(super) fn new(state_dir: &str, unit: &'static str) -> Result<Self> {
        let state_dir = state_dir.trim_end_matches('/');
        ensure!(
            state_dir.starts_with('/') && !state_dir.contains(|c: char| c.is_control()),
            "--state-dir {state_dir:?} is no absolute path other than /"
        );
        Ok(Self { state_dir: state_dir.to_owned(), unit })
    }

    pub(super) fn state_dir(&self) -> &str {
        &self.state_dir
    }

    fn in_state_dir(&self, name: &str) -> String {
        quoted(&format!("{}/{name}", self.state_dir))
    }

    fn unit_file(&self) -> String {
        quoted(&format!("/etc/systemd/system/{}", self.unit))
    }

    fn settings_file(&self, starter: Starter) -> String {
        match starter {
            Starter::Systemd => quoted("/etc/minik8s/agent.env"),
            Starter::Background => self.in_state_dir("run/agent.env"),
        }
    }

    /// Function of the shell that tells if the agent in the background runs. Its program may have been replaced.
    fn running(&self) -> String {
        let pid = self.in_state_dir("run/agent.pid");
        format!(
            "running() {{ case \"$(readlink \"/proc/$(cat {pid} 2>/dev/null)/exe\")\" in {AGENT}*) ;; *) return 1;; esac; }}"
        )
    }

    /// Prints the facts that [`Facts::parse`] reads.
    pub(super) fn probe(&self) -> String {
        let (unit, running) = (self.unit, self.running());
        let (unit_file, settings) = (self.unit_file(), self.settings_file(Starter::Systemd));
        let own_settings = self.settings_file(Starter::Background);
        let certificate = self.in_state_dir("agent/pki/certificate.pem");
        format!(
            "{DIGEST}\n{running}\n\
             echo '{BEGIN}'\n\
             echo \"user $(id -u)\"; echo \"machine $(uname -m)\"; echo \"host $(uname -n)\"\n\
             echo \"agent $(digest {AGENT})\"\n\
             if [ -d /run/systemd/system ]; then\n\
             echo 'systemd yes'; echo \"unit $(digest {unit_file})\"; echo \"settings $(digest {settings})\"\n\
             if systemctl is-active --quiet {unit}; then echo 'running yes'; fi\n\
             else\n\
             echo \"settings $(digest {own_settings})\"\n\
             if running; then echo 'running yes'; fi\n\
             fi\n\
             echo certificate; cat {certificate} 2>/dev/null || true"
        )
    }

    /// Writes a file of settings or a unit, of which the text is standard input.
    fn write(file: &str, mode: &str) -> String {
        format!(
            "set -e; umask 077; mkdir -p \"$(dirname {file})\"; cat >{file}.new; chmod {mode} {file}.new; mv -f {file}.new \
             {file}"
        )
    }

    pub(super) fn write_settings(&self, starter: Starter) -> String {
        Self::write(&self.settings_file(starter), "600")
    }

    pub(super) fn write_unit(&self) -> String {
        Self::write(&self.unit_file(), "644")
    }

    /// Starts the agent with the settings that were written, in place of the one that runs.
    pub(super) fn start(&self, starter: Starter) -> String {
        if starter == Starter::Systemd {
            let unit = self.unit;
            return format!(
                "systemctl daemon-reload && systemctl --quiet enable {unit} && systemctl restart {unit}"
            );
        }
        let [pid, log, run, logs] =
            ["run/agent.pid", "logs/agent.log", "run", "logs"].map(|name| self.in_state_dir(name));
        let (settings, running) = (self.settings_file(starter), self.running());
        // The inner shell becomes the agent, so that its id is the agent's.
        format!(
            "{running}\n\
             set -e; umask 077; mkdir -p {run} {logs}; tries=0\n\
             if running; then kill \"$(cat {pid})\"; fi\n\
             while running; do\n\
             tries=$((tries + 1)); [ $tries -le 300 ] || {{ echo 'the running agent does not end' >&2; exit 1; }}; sleep 0.1\n\
             done\n\
             rm -f {pid}\n\
             setsid sh -c 'set -a; . \"$1\"; set +a; set -f; umask 022; cd /; echo $$ >\"$2\"; exec {AGENT} run \
             $MINIK8S_AGENT_ARGS' sh {settings} {pid} </dev/null >>{log} 2>&1 &\n\
             tries=0; until running; do tries=$((tries + 1)); [ $tries -le 50 ] || break; sleep 0.1; done"
        )
    }

    /// Prints the end of the agent's log.
    pub(super) fn log_end(&self, starter: Starter) -> String {
        match starter {
            Starter::Systemd => format!("journalctl -u {} -n 20 -o cat --no-pager", self.unit),
            Starter::Background => format!("tail -n 20 {}", self.in_state_dir("logs/agent.log")),
        }
    }

    /// The place of the agent's log, for people.
    pub(super) fn log(&self, starter: Starter) -> String {
        match starter {
            Starter::Systemd => format!("'journalctl -u {}'", self.unit),
            Starter::Background => format!("{}/logs/agent.log", self.state_dir),
        }
    }
}

/// Installs the agent from standard input, as a whole or not at all.
pub(super) fn copy(digest: &str) -> String {
    format!(
        "{DIGEST}\n\
         set -e; umask 022; new={AGENT}.new; mkdir -p \"$(dirname {AGENT})\"\n\
         trap 'rm -f \"$new\"' EXIT\n\
         cat >\"$new\"\n\
         [ \"$(digest \"$new\")\" = {digest} ] || {{ echo 'the copy differs from the original' >&2; exit 1; }}\n\
         chmod 755 \"$new\"; mv -f \"$new\" {AGENT}"
    )
}

/// Checks the machine, with settings from standard input.
pub(super) fn doctor() -> String {
    format!("{SETTINGS_FROM_STDIN}; exec {AGENT} doctor $MINIK8S_AGENT_ARGS")
}

/// Lets the machine join at these reconcilers, with the text of [`join_input`].
pub(super) fn join(reconcilers: &[String]) -> String {
    let urls = quoted(&reconcilers.join(","));
    format!(
        "IFS= read -r MINIK8S_JOIN_TOKEN; export MINIK8S_JOIN_TOKEN; {SETTINGS_FROM_STDIN}; exec {AGENT} join {urls} \
         --no-run $MINIK8S_AGENT_ARGS"
    )
}

/// Standard input of [`join`]: the token, then the settings.
pub(super) fn join_input(token: &str, settings: &str) -> String {
    format!("{token}\n{settings}")
}

/// Facts of a machine. Digests are SHA-256 in hex, and empty for a missing file.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    /// Id of the user who logged in.
    user: String,
    /// Architecture, as `uname -m` prints it.
    machine: String,
    pub(super) host: String,
    agent: String,
    pub(super) has_systemd: bool,
    unit: String,
    pub(super) settings: String,
    pub(super) is_running: bool,
    /// Certificate of the node that the machine is.
    certificate: Option<Certificate>,
}

impl Facts {
    /// Reads the output of [`Files::probe`].
    pub(super) fn parse(output: &str) -> Result<Self> {
        let (_, facts) =
            output.rsplit_once(&format!("{BEGIN}\n")).context("its shell ran no command of 'node add'")?;
        let (facts, certificate) =
            facts.split_once("\ncertificate\n").context("its shell ended before the last command")?;
        let mut found = Self::default();
        for line in facts.lines() {
            let (name, value) = line.split_once(' ').unwrap_or((line, ""));
            match name {
                "user" => value.clone_into(&mut found.user),
                "machine" => value.clone_into(&mut found.machine),
                "host" => value.clone_into(&mut found.host),
                "agent" => value.clone_into(&mut found.agent),
                "unit" => value.clone_into(&mut found.unit),
                "settings" => value.clone_into(&mut found.settings),
                "systemd" => found.has_systemd = true,
                "running" => found.is_running = true,
                _ => {}
            }
        }
        found.certificate = Certificate::from_pem(certificate).ok();
        Ok(found)
    }

    pub(super) fn starter(&self) -> Starter {
        if self.has_systemd { Starter::Systemd } else { Starter::Background }
    }

    /// Identity under which the machine has joined.
    pub(super) fn identity(&self) -> Option<Identity> {
        self.certificate.as_ref()?.identity().ok()
    }

    /// Fingerprint of the machine's key.
    fn key(&self) -> Option<String> {
        self.certificate.as_ref()?.public_key().ok()?.fingerprint().ok()
    }
}

/// State to bring about.
pub(super) struct Target<'a> {
    pub(super) identity: &'a Identity,
    /// Fingerprint of that identity's key in the cluster, if it is known there.
    pub(super) key: Option<&'a str>,
    /// Architecture of the agent.
    pub(super) machine: &'a str,
    /// Digest of the agent.
    pub(super) agent: &'a str,
    /// Digest of the unit.
    pub(super) unit: &'a str,
    /// Digest of the settings.
    pub(super) settings: &'a str,
}

/// A step, in the order of its execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Copy the agent.
    Copy,
    /// Check the machine.
    Check,
    /// Join the cluster.
    Join,
    /// Write the settings, and the unit for systemd.
    Configure,
    /// Start the agent, or start it again.
    Start,
}

/// Returns the steps that are missing.
///
/// # Errors
/// The machine cannot be this node.
pub(super) fn plan(found: &Facts, wanted: &Target<'_>) -> Result<Vec<Step>> {
    ensure!(found.user == "0", "the login is not root's; log in as root@HOST");
    ensure!(
        found.machine == wanted.machine,
        "its architecture is {}, and that of the agent here {}; run this on a reconciler of that architecture, or install \
         the agent there and use 'minik8s token create --node {}'",
        found.machine,
        wanted.machine,
        wanted.identity.name()
    );
    let (joined, key) = (found.identity(), found.key());
    if let Some(other) = joined.as_ref().filter(|joined| *joined != wanted.identity) {
        bail!("it has joined as {other} already; run 'minik8s-agent reset' there first, or leave out --name");
    }
    let is_joined = joined.is_some() && key.is_some() && key.as_deref() == wanted.key;
    if found.is_running && !is_joined {
        bail!(
            "an agent runs there, and not as {} of this cluster; stop it and run 'minik8s-agent reset' there first",
            wanted.identity
        );
    }
    let is_agent_same = found.agent == wanted.agent;
    let is_configured =
        found.settings == wanted.settings && (!found.has_systemd || found.unit == wanted.unit);
    let steps = [
        (Step::Copy, !is_agent_same),
        (Step::Check, !found.is_running),
        (Step::Join, !is_joined),
        (Step::Configure, !is_configured),
        (Step::Start, !(found.is_running && is_agent_same && is_configured)),
    ];
    Ok(steps.into_iter().filter(|(_, is_missing)| *is_missing).map(|(step, _)| step).collect())
}
