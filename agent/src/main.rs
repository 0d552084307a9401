//! `minik8s-agent`: parse, run, return an exit code.

use std::path::Path;
use std::process::ExitCode;

use agent::args::{Arguments, Command, JoinArguments, OutputFormat};
use agent::config::JoinConfig;
use agent::converge::builds::BaseImages;
use agent::converge::builds::python::bases;
use agent::doctor::Ranges;
use agent::worlds::docker::RealDocker;
use agent::{daemon, doctor, join, reset};
use clap::Parser as _;
use schema::control::{error_chain, logging};

/// Exit code for an invalid flag, the same as clap's.
const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, &error),
    };
    let log = &arguments.log;
    if let Err(error) = logging::init(log.log_level.as_deref(), log.log_format == OutputFormat::Json) {
        return fail(WRONG_USAGE, error);
    }
    let done = match arguments.command {
        Command::Run(run) => run.check().map(|config| runtime.block_on(daemon::run(config)).map(|()| true)),
        Command::Join(flags) => {
            flags.check().map(|config| runtime.block_on(join_and_run(&flags, &config)).map(|()| true))
        }
        Command::Standby(flags) => flags
            .run
            .check()
            .map(|config| runtime.block_on(daemon::serve_standby::run(config)).map(|()| true)),
        Command::Doctor(flags) => flags.run.check().map(|config| {
            let ranges = Ranges { cluster: flags.cluster_cidr, service: flags.service_cidr };
            runtime.block_on(doctor::run(&config, ranges, flags.output))
        }),
        Command::PythonBase(flags) => flags.machine.check().map(|machine| {
            runtime.block_on(python_base(&machine.docker, &machine.agent_dir())).map(|()| true)
        }),
        Command::Reset(flags) => flags.check().map(|(machine, leaving)| {
            runtime.block_on(reset::run(&machine, leaving.as_ref())).map(|()| true)
        }),
    };
    match done {
        Ok(Ok(true)) => ExitCode::SUCCESS,
        Ok(Ok(false)) => ExitCode::FAILURE,
        Ok(Err(error)) => fail(1, error_chain(error.as_ref())),
        Err(error) => fail(WRONG_USAGE, error),
    }
}

/// Joins, and runs the agent with what it learned.
async fn join_and_run(flags: &JoinArguments, config: &JoinConfig) -> anyhow::Result<()> {
    join::run(config).await?;
    if flags.no_run {
        println!("the agent is not started; 'minik8s-agent run' with the same flags starts it");
        return Ok(());
    }
    daemon::run(flags.run.check()?).await
}

/// Builds the base images and prints their names.
async fn python_base(docker: &str, scratch: &Path) -> anyhow::Result<()> {
    let docker = RealDocker::connect(docker).await?;
    let made = bases(&docker, None, scratch, &|said| eprint!("{said}")).await;
    let BaseImages { runtime, packages } = made.map_err(anyhow::Error::msg)?;
    println!("{runtime}\n{packages}");
    Ok(())
}

/// Prints the error as a single line on standard error.
fn fail(code: u8, error: impl std::fmt::Display) -> ExitCode {
    let line =
        error.to_string().lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join(" ");
    eprintln!("minik8s-agent: {line}");
    ExitCode::from(code)
}
