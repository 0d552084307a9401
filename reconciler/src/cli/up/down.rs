//! `minik8s down`: ends the processes of `up` and removes everything it created on this machine.

use std::process::{ExitCode, Stdio};

use anyhow::{Result, bail};
use nix::sys::signal::Signal;

use super::process::end_process;
use super::record::StateDir;
use super::{remove_state, reset_node};
use crate::args::DownArgs;

/// Runs `minik8s down`. Running it again is harmless.
pub async fn run(args: DownArgs) -> Result<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        bail!("cannot end daemons and remove containers of this machine: not root; run 'sudo minik8s down'");
    }
    let state = StateDir::open(&args.state_dir)?;
    let Some(record) = state.load()? else {
        println!("nothing to remove: no 'minik8s up' was run on {}", state.root().display());
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(pid) = state.running() {
        println!("ending process {pid}");
        end_process(pid, Signal::SIGTERM).await;
    }
    state.end_leftovers().await?;
    if args.keep_pods {
        println!("the pods keep running; 'minik8s up' takes them over again");
        return Ok(ExitCode::SUCCESS);
    }
    reset_node(&record, Stdio::inherit()).await?;
    remove_state(state.root());
    println!("removed {}", state.root().display());
    if let Some(etcd) = &record.etcd {
        println!("the keys below /minik8s/ in {etcd} are left: other nodes may use them");
    }
    Ok(ExitCode::SUCCESS)
}
